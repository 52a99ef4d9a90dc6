"""The best lengths of chains and of overlap, and where which of the two wins.

Acceptance is i.i.d.; alpha, `length`, c and times are as in `chains`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxspec.plan.theory.arguments import Number, VerifyTime, integer, ratio, step_time
from jaxspec.plan.theory.chains import chain_time
from jaxspec.plan.theory.overlap import overlap_time

DEFAULT_MAX_LENGTH = 256

_GRID = np.linspace(0, 1, 1001)[1:-1]


class Best(NamedTuple):
    """The best length of a method, each field a number, or shaped like alpha.

    Attributes:
        length: Drafted tokens a round or step; the shortest of equals.
        time: Expected time a token, in the unit of the times handed in.
        speedup: Over plain decoding.
    """

    length: Any
    time: Any
    speedup: Any


def best_chain(alpha: Number, draft_time: float, verify_time: VerifyTime, max_length: int = DEFAULT_MAX_LENGTH) -> Best:
    """The chain with the least `chain_time`; length 0, plain decoding, is among the candidates.

    Raises:
        ValueError: As `chain_time`, or max_length is below 0.
    """
    lengths = range(integer("max_length", max_length, 0) + 1)
    return _best(lengths, [chain_time(alpha, length, draft_time, verify_time) for length in lengths], verify_time)


def best_overlap(
    alpha: Number,
    draft_time: float,
    verify_time: VerifyTime,
    fork_alpha: Number | None = None,
    max_length: int = DEFAULT_MAX_LENGTH,
) -> Best:
    """The overlap with the least `overlap_time`. With constant times the best length is about c.

    Raises:
        ValueError: As `overlap_time`, or max_length is below 1.
    """
    lengths = range(1, integer("max_length", max_length, 1) + 1)
    times = [overlap_time(alpha, length, draft_time, verify_time, fork_alpha) for length in lengths]
    return _best(lengths, times, verify_time)


def chain_region(c: float, fork: Callable[[Any], Any] | None = None) -> tuple[float, float] | None:
    """The lowest and highest alpha at which the best chain is faster than the best overlap, or None.

    Outside overlap is at least as fast, having a second device for its draft. It wins at both ends: near 1 a chain pays
    for its drafting, and near 0 it falls back to plain decoding, where overlap still gains alpha^2 for nothing. The
    chain wins nowhere for c = 1 … 5.3, from .11 to .73 at c = 10, from .05 to .87 at 20, from .03 to .94 at 40. Below
    c = 1 its length 0, plain decoding, always wins. Found on a grid of thousandths and refined by bisection: a
    narrower region is not seen.

    Args:
        c: Time of a target step / time of a draft step, whatever the number of tokens.
        fork: alpha at the fork as a function of alpha (a number or an array); None for alpha itself.

    Raises:
        ValueError: c is not above 0.
    """
    c = ratio(c)
    max_length = max(DEFAULT_MAX_LENGTH, 2 * math.ceil(c))

    def gain(alpha: Any) -> Any:
        fork_alpha = alpha if fork is None else fork(alpha)
        overlap = best_overlap(alpha, 1.0, c, fork_alpha, max_length)
        return overlap.speedup - best_chain(alpha, 1.0, c, max_length).speedup + 1e-12  # equal is not faster

    wins = np.flatnonzero(gain(_GRID) < 0)
    if not wins.size:
        return None
    low, high = wins[0], wins[-1]
    below = _GRID[low - 1] if low > 0 else 0.0
    above = _GRID[high + 1] if high + 1 < _GRID.size else 1.0
    return _crossing(gain, below, _GRID[low]), _crossing(gain, above, _GRID[high])


def overlap_threshold(c: float, fork: Callable[[Any], Any] | None = None) -> float:
    """The smallest alpha from which on overlap is at least as fast as a chain, both at their best lengths.

    0 where it always is. Below `chain_region`'s lower end, where little can be gained, overlap wins as well.

    Raises:
        ValueError: c is not above 0.
    """
    region = chain_region(c, fork)
    return 0.0 if region is None else region[1]


def _best(lengths: Sequence[int], times: Sequence[Any], verify_time: VerifyTime) -> Best:
    stacked = np.stack(times)
    index = stacked.argmin(0)
    time = stacked.min(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        speedup = step_time(verify_time, 1) / time
    return Best(np.asarray(lengths)[index], time, speedup)


def _crossing(gain: Callable[[float], float], good: Any, bad: Any) -> float:
    """Where the gain changes its sign between a point at which it is not negative and one at which it is."""
    good, bad = float(good), float(bad)
    for _ in range(30):
        middle = (good + bad) / 2
        good, bad = (good, middle) if gain(middle) < 0 else (middle, bad)
    return good
