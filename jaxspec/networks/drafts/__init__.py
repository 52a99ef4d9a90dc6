"""Drafts made of other models: the target's first layers, a reduced vocabulary, a draft that copies.

Reads the transformer; `networks` exports them.
"""
