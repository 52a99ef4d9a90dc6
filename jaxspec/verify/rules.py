"""The rules by name."""

from collections.abc import Mapping

from jaxspec.verify.rule import Rule
from jaxspec.verify.sequoia import SEQUOIA
from jaxspec.verify.top_k import TOP_K

RULES: Mapping[str, Rule] = {"sequoia": SEQUOIA, "topk": TOP_K}
