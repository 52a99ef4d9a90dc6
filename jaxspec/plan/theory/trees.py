"""SEQUOIA's bounds: what trees can give, from the acceptance by child rank alone.

Acceptance is the same at every depth here, `[B]` by child rank; sizes count the root.
"""

import math
from typing import Any

import numpy as np

from jaxspec.profiles import SUM_TOLERANCE, check_acceptance


def power_law_exponent(acceptance: Any) -> float:
    """b, the largest with r_k <= k^(-b) for every measured k: the premise of SEQUOIA's theorem 3.6.

    r_k = 1 - (sum of the first k acceptances) is the probability that all of k children are rejected. b is 0 if even
    the last child does not help, infinite if two children never fail. It speaks for the measured k only; theorem 3.6
    wants every k.

    Args:
        acceptance: `[B]` by child rank, B at least 2 (r_1 <= 1 holds for any b).

    Raises:
        ValueError: Not a vector of probabilities with a sum of at most 1, or shorter than 2.
    """
    alpha = _acceptance_vector(acceptance)
    if alpha.size < 2:
        raise ValueError(
            f"acceptance has {alpha.size} entry, but b is fitted to k = 2 and up: measure 2 children or more"
        )
    rejections = np.maximum(1 - np.cumsum(alpha)[1:], 0.0)
    ranks = np.arange(2, alpha.size + 1)
    with np.errstate(divide="ignore"):
        return max(0.0, float(np.min(-np.log(rejections) / np.log(ranks))))


def tree_lower_bound(exponent: float, log_size: float) -> float:
    """SEQUOIA's theorem 3.6: at least b log n / (10 log log n) expected tokens of the best tree of n nodes.

    Holds from `tree_lower_bound_start` on, which is beyond any tree that can be built unless b is small.

    Args:
        exponent: b, as from `power_law_exponent`.
        log_size: log n, the natural logarithm of the number of nodes; above 1.

    Raises:
        ValueError: The exponent is negative or not finite, or log_size is not above 1.
    """
    exponent = _exponent(exponent)
    if not log_size > 1:
        raise ValueError(
            f"log_size is {log_size}, but log log n must be above 0: trees of more than e nodes are needed"
        )
    return exponent * log_size / (10 * math.log(log_size))


def tree_lower_bound_start(exponent: float) -> float:
    """log n from which theorem 3.6 holds, n >= exp((1 + exp(2^(b + 1) / log 1.9))^b); about 510 at b = 1.

    Infinite where it exceeds every float.

    Raises:
        ValueError: The exponent is negative or not finite.
    """
    exponent = _exponent(exponent)
    try:
        return (1 + math.exp(2 ** (exponent + 1) / math.log(1.9))) ** exponent
    except OverflowError:
        return math.inf


def k_ary_limit(acceptance: Any, branching: int) -> float:
    """Upper bound of every tree with at most `branching` children a node: 1 / (1 - sum of the first acceptances).

    It is the infinite tree's value: 1 / (1 - alpha_1) for chains, 1 / (1 - alpha_1 - alpha_2) for binary trees
    (SEQUOIA, beside theorem 3.6). Infinite if the sum is 1.

    Args:
        acceptance: `[B]` by child rank.
        branching: Children a node, 1 … B.

    Raises:
        ValueError: Not a vector of probabilities with a sum of at most 1, or branching is not in 1 … B.
    """
    total = float(_first(acceptance, branching).sum())
    return math.inf if total >= 1 else 1 / (1 - total)


def chains_limit(acceptance: Any, count: int) -> float:
    """Upper bound of `count` chains below one root: 1 + (sum of the first acceptances) / (1 - alpha_1).

    At most 1 more than a single chain's 1 / (1 - alpha_1) (SEQUOIA, beside theorem 3.6). Infinite if alpha_1 is
    1.

    Args:
        acceptance: `[B]` by child rank.
        count: Number of chains, 1 … B.

    Raises:
        ValueError: Not a vector of probabilities with a sum of at most 1, or count is not in 1 … B.
    """
    first = _first(acceptance, count)
    return math.inf if first[0] >= 1 else 1 + float(first.sum() / (1 - first[0]))


def _exponent(exponent: float) -> float:
    if not 0 <= exponent < math.inf:
        raise ValueError(f"the exponent b is {exponent}, but theorem 3.6 is about a finite one, 0 or more")
    return float(exponent)


def _acceptance_vector(acceptance: Any) -> np.ndarray:
    alpha = check_acceptance(acceptance)
    if alpha.ndim != 1:
        raise ValueError(f"acceptance has shape {alpha.shape}, but the bounds need [B]: pool it over the depths")
    if alpha.sum() > 1 + SUM_TOLERANCE:
        raise ValueError(f"acceptance sums to {alpha.sum()}, but at most one child is accepted: the sum is at most 1")
    return alpha


def _first(acceptance: Any, count: int) -> np.ndarray:
    alpha = _acceptance_vector(acceptance)
    if not 1 <= count <= alpha.size:
        raise ValueError(f"{count} children were asked for, but acceptance covers 1 … {alpha.size}: measure more")
    return alpha[:count]
