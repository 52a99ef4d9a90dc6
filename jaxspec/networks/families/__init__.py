"""Families of published models: what a checkpoint's config means, and which of its keys are refused.

Reads nothing of jaxspec; the transformer and the loaders import it.
"""
