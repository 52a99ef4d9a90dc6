"""Verification rules, one a file: arithmetic at one position; and their output law by enumeration.

Reads `sampling`; decoding imports it. A new rule is a file here and a line in `rules`.
"""

from jaxspec.verify.law import output_distribution
from jaxspec.verify.rule import Rule, draw_outcome
from jaxspec.verify.rules import RULES
from jaxspec.verify.sequoia import SEQUOIA, Sequoia
from jaxspec.verify.top_k import TOP_K, TopK

__all__ = ["RULES", "SEQUOIA", "TOP_K", "Rule", "Sequoia", "TopK", "draw_outcome", "output_distribution"]
