"""Closed forms: what chains, overlap, the best lengths of both, trees and forks (`renewal`) give before measurement.

Reads `profiles`' checks alone; `plan.ranking`, training, studies and scripts import it.
"""

from jaxspec.plan.theory.chains import (
    accepted_pmf,
    chain_rollback,
    chain_speedup,
    chain_time,
    chain_tokens,
    expected_accepted,
)
from jaxspec.plan.theory.lengths import Best, best_chain, best_overlap, chain_region, overlap_threshold
from jaxspec.plan.theory.overlap import (
    ideal_time,
    overlap_post_share,
    overlap_rollback,
    overlap_rollback_all,
    overlap_speedup,
    overlap_time,
    overlap_tokens,
    overlap_tokens_limit,
    theorem_1_time,
    theorem_1_tokens,
)
from jaxspec.plan.theory.trees import (
    chains_limit,
    k_ary_limit,
    power_law_exponent,
    tree_lower_bound,
    tree_lower_bound_start,
)

__all__ = [
    "Best",
    "accepted_pmf",
    "best_chain",
    "best_overlap",
    "chain_region",
    "chain_rollback",
    "chain_speedup",
    "chain_time",
    "chain_tokens",
    "chains_limit",
    "expected_accepted",
    "ideal_time",
    "k_ary_limit",
    "overlap_post_share",
    "overlap_rollback",
    "overlap_rollback_all",
    "overlap_speedup",
    "overlap_threshold",
    "overlap_time",
    "overlap_tokens",
    "overlap_tokens_limit",
    "power_law_exponent",
    "theorem_1_time",
    "theorem_1_tokens",
    "tree_lower_bound",
    "tree_lower_bound_start",
]
