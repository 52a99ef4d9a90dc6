"""H-RAD's training: rounds are collected, a head is fitted, set and evaluated, and gets a card.

Reads `measure` and `networks`; the command line imports it.
"""
