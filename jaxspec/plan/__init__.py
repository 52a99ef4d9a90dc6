"""What to decode with: SEQUOIA's optimal tree, the choice by measured times, every method's predicted speed.

Reads `tree` and `profiles`, and never decodes; `theory` has the closed forms that need no measurement.
"""

from jaxspec.plan.choice import DEFAULT_MAX_DEPTH, DEFAULT_MAX_SIZE, Plan, best, predict, table
from jaxspec.plan.solver import Solution, expected_tokens, node_scores, optimal_tree, solve

__all__ = [
    "DEFAULT_MAX_DEPTH",
    "DEFAULT_MAX_SIZE",
    "Plan",
    "Solution",
    "best",
    "expected_tokens",
    "node_scores",
    "optimal_tree",
    "predict",
    "solve",
    "table",
]
