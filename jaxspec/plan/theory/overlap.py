"""Closed forms: what a chain and what overlap of draft and target can give before anything is measured.

Acceptance is i.i.d. here: each drafted token is accepted with probability alpha, whatever came before. alpha may be a
number or an array of them, and the result has its shape. `length` is the number of drafted tokens (gamma), and

    c = time of a target step / time of a draft step

as in SpecBranch and PEARL (SEQUOIA's c is the reciprocal). Where times are handed in they may have any one unit. A
speedup is over plain decoding, one target step over one token for each token.
"""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

Number = TypeVar("Number", float, np.ndarray)
VerifyTime = float | Callable[[int], float]
"""Time of a target step: one number, or a function of its number of tokens such as `Profile.verify_time`."""

DEFAULT_MAX_LENGTH = 256

_GRID = np.linspace(0, 1, 1001)[1:-1]


# Chains


def accepted_pmf(alpha: float | np.ndarray, length: int) -> np.ndarray:
    """`[…, length + 1]` probability that exactly 0 … length tokens of a chain are accepted (SpecBranch).

    P(X = k) = (1 - alpha) alpha^k for k < length, and alpha^length for all of them: a truncated geometric.

    Raises:
        ValueError: alpha is not a probability, or length is below 0.
    """
    alphas = np.asarray(_probability("alpha", alpha))[..., None]
    length = _integer("length", length, 0)
    powers = alphas ** np.arange(length + 1)
    return np.concatenate([powers[..., :-1] * (1 - alphas), powers[..., -1:]], axis=-1)


def expected_accepted(alpha: Number, length: int) -> Number:
    """E[X], expected accepted tokens of a chain: alpha (1 - alpha^length) / (1 - alpha), or length at alpha = 1.

    Raises:
        ValueError: alpha is not a probability, or length is below 0.
    """
    alpha = _probability("alpha", alpha)
    return alpha * _geometric(alpha, _integer("length", length, 0))


def chain_tokens(alpha: Number, length: int) -> Number:
    """Expected tokens a round of a chain, with the correction or bonus token: E[X] + 1.

    (1 - alpha^(length + 1)) / (1 - alpha), or length + 1 at alpha = 1 (SpS: Leviathan et al., equation 1).

    Raises:
        ValueError: alpha is not a probability, or length is below 0.
    """
    return _geometric(_probability("alpha", alpha), _integer("length", length, 0) + 1)


def chain_rollback(alpha: Number, length: int) -> Number:
    """Share of a chain's drafted tokens that are not committed: 1 - E[X] / length.

    Raises:
        ValueError: alpha is not a probability, or length is below 1.
    """
    return 1 - expected_accepted(alpha, length) / _integer("length", length, 1)


def chain_time(alpha: Number, length: int, draft_time: float, verify_time: VerifyTime) -> Number:
    """Expected time a token of a chain: `length` draft steps, then a target step over length + 1 tokens.

    Args:
        alpha: Acceptance.
        length: Drafted tokens a round; 0 is plain decoding.
        draft_time: Of one draft step.
        verify_time: Of one target step, in the same unit.

    Raises:
        ValueError: alpha is not a probability, length is below 0, or a time is negative or not finite.
    """
    tokens = chain_tokens(alpha, length)
    return (length * _time("draft_time", draft_time) + _step_time(verify_time, length + 1)) / tokens


def chain_speedup(alpha: Number, length: int, c: float) -> Number:
    """Speedup of a chain where a target step takes c draft steps, whatever its number of tokens (SpS, theorem 3.8).

    Raises:
        ValueError: As `chain_time`, or c is not above 0.
    """
    c = _ratio(c)
    return c / chain_time(alpha, length, 1.0, c)


# Overlap: the draft proposes the next chunk while the target verifies the last one


def overlap_post_share(alpha: Number, length: int, fork_alpha: Number | None = None) -> Number:
    """pi, the share of steps that verify a whole chunk; the others verify its first token only.

    PEARL is a chain of two states. Each step drafts `length` tokens while the target runs. A *pre* step (at the start
    and after a rejection) tests the first of them; accepted, all stay. A *post* step tests the length - 1 pending
    tokens and the first of the new chunk; all accepted, the next step is a post step again. Hence

        pi = a / (a + 1 - alpha^(length - 1) a)

    with a the acceptance of a chunk's first token. For PEARL it is alpha. For SpecBranch, which forks into k candidates
    there, it is the probability that one of them is accepted.

    Args:
        alpha: Acceptance of a token that has no siblings.
        length: Tokens of a chunk, or of a branch with its candidate.
        fork_alpha: Acceptance at the fork; None for alpha.

    Raises:
        ValueError: alpha or fork_alpha is not a probability, or length is below 1.
    """
    alpha, fork = _forked(alpha, fork_alpha)
    return fork / (fork + 1 - alpha ** (_integer("length", length, 1) - 1) * fork)


def overlap_tokens(alpha: Number, length: int, fork_alpha: Number | None = None) -> Number:
    """Expected tokens a step of overlap: (1 - pi) + pi (1 - alpha^length) / (1 - alpha); exact, by renewal.

    A pre step emits one token, accepted or corrected. A post step emits its accepted tokens, and the correction if
    there is one: never a bonus, as the draft has gone on already.

    Raises:
        ValueError: As `overlap_post_share`.
    """
    post = overlap_post_share(alpha, length, fork_alpha)
    return 1 - post + post * _geometric(_probability("alpha", alpha), length)


def overlap_tokens_limit(alpha: Number, fork_alpha: Number | None = None) -> Number:
    """What `overlap_tokens` tends to as the length grows; infinite at alpha = 1.

    1 / (1 - alpha^2) without forks. A step takes at least as long as plain decoding's, so that this also bounds the
    speedup, whatever c is: 1.33 at alpha = .5.

    Raises:
        ValueError: alpha or fork_alpha is not a probability.
    """
    alpha, fork = _forked(alpha, fork_alpha)
    with np.errstate(divide="ignore", invalid="ignore"):
        post = np.divide(fork, (1 - alpha) * (1 + fork))
    return 1 / (1 + fork) + np.where(fork > 0, post, 0.0)[()]


def overlap_rollback(alpha: Number, length: int, fork_alpha: Number | None = None) -> Number:
    """Share of the tokens drafted on the verified path that are not committed (the papers' rollback rate).

    On the path are `length` tokens a step: at a fork only the surviving branch counts, or the first if none survives.
    Committed are fork_alpha of them in a pre step, and E[X] in a post step with fork_alpha for its last token.

    Raises:
        ValueError: As `overlap_post_share`.
    """
    return 1 - _overlap_committed(alpha, length, fork_alpha) / length


def overlap_rollback_all(alpha: Number, length: int, fork_alpha: Number, branches: int) -> Number:
    """Share of all drafted tokens that are not committed, where each step drafts `branches` branches of `length`.

    Raises:
        ValueError: As `overlap_post_share`, or branches is below 1.
    """
    return 1 - _overlap_committed(alpha, length, fork_alpha) / (_integer("branches", branches, 1) * length)


def overlap_time(
    alpha: Number, length: int, draft_time: float, verify_time: VerifyTime, fork_alpha: Number | None = None
) -> Number:
    """Expected time a token of overlap on two devices: the longer of `length` draft steps and a target step.

    The target step is over `length` tokens, in a pre step too: a compiled step has one width.

    Args:
        alpha: Acceptance.
        length: Tokens that each branch drafts in a step.
        draft_time: Of one draft step, over all branches.
        verify_time: Of one target step, in the same unit.
        fork_alpha: Acceptance at the fork; None for alpha.

    Raises:
        ValueError: As `overlap_post_share`, or a time is negative or not finite.
    """
    tokens = overlap_tokens(alpha, length, fork_alpha)
    return max(length * _time("draft_time", draft_time), _step_time(verify_time, length)) / tokens


def overlap_speedup(alpha: Number, length: int, c: float, fork_alpha: Number | None = None) -> Number:
    """Speedup of overlap where a target step takes c draft steps, whatever its number of tokens.

    Raises:
        ValueError: As `overlap_time`, or c is not above 0.
    """
    c = _ratio(c)
    return c / overlap_time(alpha, length, 1.0, c, fork_alpha)


# The best lengths, and where which method wins


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
    lengths = range(_integer("max_length", max_length, 0) + 1)
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
    lengths = range(1, _integer("max_length", max_length, 1) + 1)
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
    c = _ratio(c)
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


# SpecBranch's times, in draft steps


def ideal_time(length: int, c: float) -> float:
    """T_PSD, draft steps a token of overlap if everything is accepted: max(length, c) / length.

    (length + c) / max(length, c) of it, at most twice, is a chain's; twice where length = c (SpecBranch).

    Raises:
        ValueError: length is below 1, or c not above 0.
    """
    length = _integer("length", length, 1)
    return max(length, _ratio(c)) / length


def theorem_1_tokens(alpha: Number, length: int) -> Number:
    """The tokens a step that SpecBranch's theorem 1 amounts to: (1 + alpha^length) E[X] / 2.

    Raises:
        ValueError: alpha is not a probability, or length is below 1.
    """
    accepted = expected_accepted(alpha, _integer("length", length, 1))
    return (1 + _probability("alpha", alpha) ** length) / 2 * accepted


def theorem_1_time(alpha: Number, length: int, c: float) -> Number:
    """T_PSDr of SpecBranch's theorem 1 as published: 2 max(length, c) / [(1 + alpha^length) E[X]] draft steps a token.

    For comparison only; nothing here plans with it. It weighs a fully accepted round 1 and any other one half, and
    multiplies the mean weight by E[X], where a rate is expected tokens over expected time (renewal); and it leaves the
    correction token out, so that it is infinite at alpha = 0, where overlap still emits a token a step. At alpha = .5
    and length 8 it gives .50 tokens a step for 1.33, at .95 and 10 it gives 6.09 for 5.94. `overlap_time` is exact.

    Raises:
        ValueError: alpha is not a probability, length is below 1, or c not above 0.
    """
    step: Any = np.float64(max(length, _ratio(c)))
    with np.errstate(divide="ignore"):
        return step / theorem_1_tokens(alpha, length)


def _geometric(alpha: Any, terms: int) -> Any:
    """1 + alpha + … + alpha^(terms - 1), without the cancellation of its closed form near 1."""
    total = 0 * alpha
    for _ in range(terms):
        total = total * alpha + 1
    return total


def _forked(alpha: Any, fork_alpha: Any) -> tuple[Any, Any]:
    alpha = _probability("alpha", alpha)
    return alpha, alpha if fork_alpha is None else _probability("fork_alpha", fork_alpha)


def _overlap_committed(alpha: Any, length: int, fork_alpha: Any) -> Any:
    """Expected drafted tokens a step that are committed."""
    post = overlap_post_share(alpha, length, fork_alpha)
    alpha, fork = _forked(alpha, fork_alpha)
    accepted = expected_accepted(alpha, length - 1) + alpha ** (length - 1) * fork
    return (1 - post) * fork + post * accepted


def _best(lengths: Sequence[int], times: Sequence[Any], verify_time: VerifyTime) -> Best:
    stacked = np.stack(times)
    index = stacked.argmin(0)
    time = stacked.min(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        speedup = _step_time(verify_time, 1) / time
    return Best(np.asarray(lengths)[index], time, speedup)


def _crossing(gain: Callable[[float], float], good: Any, bad: Any) -> float:
    """Where the gain changes its sign between a point at which it is not negative and one at which it is."""
    good, bad = float(good), float(bad)
    for _ in range(30):
        middle = (good + bad) / 2
        good, bad = (good, middle) if gain(middle) < 0 else (middle, bad)
    return good


def _probability(name: str, value: Any) -> Any:
    values = np.asarray(value, np.float64)
    if not np.all((values >= 0) & (values <= 1)):
        raise ValueError(f"{name} is {value}, but a probability lies in [0, 1]")
    return values if values.ndim else float(values)


def _integer(name: str, value: int, minimum: int) -> int:
    try:
        number = operator.index(value)
    except TypeError as error:
        raise ValueError(f"{name} is {value!r}, but an integer is needed") from error
    if number < minimum:
        raise ValueError(f"{name} is {value}, but at least {minimum} is needed")
    return number


def _time(name: str, value: float) -> float:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value}, but a time is finite, 0 or more")
    return float(value)


def _step_time(verify_time: VerifyTime, tokens: int) -> float:
    if callable(verify_time):
        return _time(f"verify_time({tokens})", verify_time(tokens))
    return _time("verify_time", verify_time)


def _ratio(c: float) -> float:
    if not 0 < c < math.inf:
        raise ValueError(f"c is {c}, but target step / draft step is finite and above 0")
    return float(c)
