"""The choice: the tree with the best tokens per second on a measured machine, or plain decoding."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxspec.plan.solver import INFEASIBLE, expected_tokens, solve
from jaxspec.profiles import Profile
from jaxspec.tree import TokenTree, chain

DEFAULT_MAX_SIZE = 64


DEFAULT_MAX_DEPTH = 16


@dataclass(frozen=True)
class Plan:
    """A method with its tree, and what the profile lets one expect of it.

    Attributes:
        tree: The tree; the root alone for plain decoding.
        method: "autoregressive" for the root alone, "speculative" for a chain, "sequoia" for any other tree.
        expected_tokens: Tokens a round.
        round_ms: Milliseconds a round.
        expected_ms_per_token: Their quotient.
        expected_speedup: Over plain decoding, which takes the profile's `verify_time(1)` a token.
    """

    tree: TokenTree
    method: str
    expected_tokens: float
    round_ms: float
    expected_ms_per_token: float
    expected_speedup: float


def predict(tree: TokenTree, profile: Profile) -> Plan:
    """What a profile lets one expect of a tree.

    A round is `depth` draft steps, each over the level's nodes that have children (the first one carries the catch-up
    token along), and one target step over the whole tree; plain decoding is one target step over 1 token. A round with
    a draft also costs the profile's overhead.

    Raises:
        ValueError: The profile's acceptance does not cover the tree.
    """
    tokens = expected_tokens(tree, profile.acceptance)
    plain_ms = profile.verify_time(1)
    round_ms = plain_ms
    if tree.size > 1:
        draft_ms = sum(map(profile.draft_time, tree.level_widths))
        round_ms = draft_ms + profile.verify_time(tree.size) + profile.overhead_ms
    method = "autoregressive" if tree.size == 1 else "speculative" if tree.is_chain else "sequoia"
    return Plan(tree, method, tokens, round_ms, round_ms / tokens, plain_ms * tokens / round_ms)


def best(profile: Profile, max_size: int | None = None, max_depth: int | None = None) -> Plan:
    """The plan with the fewest milliseconds a token: SEQUOIA's hardware-aware choice (section 4.1).

    For every size and depth limit the optimal tree is priced with its own level widths, and plain decoding is among
    the candidates. SEQUOIA charges one more draft step, for the newly emitted token; here the root's step carries it.

    Args:
        profile: Measured acceptance and step times.
        max_size: Largest tree, its root counted. By default the largest measured `verify_ms`, but at most 64; 64 where
            only one size was measured, which stands for a constant time.
        max_depth: Largest depth in edges; 16 by default. An acceptance by depth also limits it to its rows.

    Raises:
        ValueError: A limit below 1.
    """
    if max_size is None:
        max_size = DEFAULT_MAX_SIZE if len(profile.verify_ms) == 1 else min(max(profile.verify_ms), DEFAULT_MAX_SIZE)
    max_depth = DEFAULT_MAX_DEPTH if max_depth is None else max_depth
    if max_size < 1 or max_depth < 1:
        raise ValueError(f"max_size is {max_size} and max_depth {max_depth}, but both must be at least 1")
    limits = range(1, max_depth + 1)
    solution = solve(profile.acceptance, max_size, limits)
    values = solution.totals[[solution.roots[limit] for limit in limits]].max(1)  # [max_depth, max_size + 1]
    chosen = predict(chain(0), profile)
    for size in range(2, max_size + 1):
        best_value = INFEASIBLE
        for limit in limits:
            if values[limit - 1, size] > best_value:  # a looser limit that gains nothing gives no new tree
                best_value = values[limit - 1, size]
                candidate = predict(solution.tree(size, limit), profile)
                if candidate.expected_ms_per_token < chosen.expected_ms_per_token:
                    chosen = candidate
    return chosen


def table(profile: Profile, sizes: Sequence[int], max_depths: Sequence[int]) -> np.ndarray:
    """`[len(sizes), len(max_depths)]` predicted speedups of the optimal trees; NaN where no such tree exists.

    Args:
        profile: Measured acceptance and step times.
        sizes: Numbers of nodes, the root counted.
        max_depths: Depth limits in edges.
    """
    solution = solve(profile.acceptance, max(sizes), max_depths)
    speedups = np.full((len(sizes), len(max_depths)), np.nan)
    for row, size in enumerate(sizes):
        for column, limit in enumerate(max_depths):
            if np.isfinite(solution.totals[solution.roots[limit], :, size].max()):
                speedups[row, column] = predict(solution.tree(size, limit), profile).expected_speedup
    return speedups
