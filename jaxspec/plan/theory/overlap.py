"""What overlap of draft and target can give before anything is measured: the draft proposes the next chunk while the
target verifies the last one (PEARL), and forks into branches there (SpecBranch).

Acceptance is i.i.d.; alpha, `length`, c and times are as in `chains`.
"""

from typing import Any

import numpy as np

from jaxspec.plan.theory.arguments import Number, VerifyTime, duration, integer, probability, ratio, step_time
from jaxspec.plan.theory.chains import expected_accepted, geometric


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
    return fork / (fork + 1 - alpha ** (integer("length", length, 1) - 1) * fork)


def overlap_tokens(alpha: Number, length: int, fork_alpha: Number | None = None) -> Number:
    """Expected tokens a step of overlap: (1 - pi) + pi (1 - alpha^length) / (1 - alpha); exact, by renewal.

    A pre step emits one token, accepted or corrected. A post step emits its accepted tokens, and the correction if
    there is one: never a bonus, as the draft has gone on already.

    Raises:
        ValueError: As `overlap_post_share`.
    """
    post = overlap_post_share(alpha, length, fork_alpha)
    return 1 - post + post * geometric(probability("alpha", alpha), length)


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
    return 1 - _overlap_committed(alpha, length, fork_alpha) / (integer("branches", branches, 1) * length)


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
    return max(length * duration("draft_time", draft_time), step_time(verify_time, length)) / tokens


def overlap_speedup(alpha: Number, length: int, c: float, fork_alpha: Number | None = None) -> Number:
    """Speedup of overlap where a target step takes c draft steps, whatever its number of tokens.

    Raises:
        ValueError: As `overlap_time`, or c is not above 0.
    """
    c = ratio(c)
    return c / overlap_time(alpha, length, 1.0, c, fork_alpha)


# SpecBranch's times, in draft steps


def ideal_time(length: int, c: float) -> float:
    """T_PSD, draft steps a token of overlap if everything is accepted: max(length, c) / length.

    (length + c) / max(length, c) of it, at most twice, is a chain's; twice where length = c (SpecBranch).

    Raises:
        ValueError: length is below 1, or c not above 0.
    """
    length = integer("length", length, 1)
    return max(length, ratio(c)) / length


def theorem_1_tokens(alpha: Number, length: int) -> Number:
    """The tokens a step that SpecBranch's theorem 1 amounts to: (1 + alpha^length) E[X] / 2.

    Raises:
        ValueError: alpha is not a probability, or length is below 1.
    """
    accepted = expected_accepted(alpha, integer("length", length, 1))
    return (1 + probability("alpha", alpha) ** length) / 2 * accepted


def theorem_1_time(alpha: Number, length: int, c: float) -> Number:
    """T_PSDr of SpecBranch's theorem 1 as published: 2 max(length, c) / [(1 + alpha^length) E[X]] draft steps a token.

    For comparison only; nothing here plans with it. It weighs a fully accepted round 1 and any other one half, and
    multiplies the mean weight by E[X], where a rate is expected tokens over expected time (renewal); and it leaves the
    correction token out, so that it is infinite at alpha = 0, where overlap still emits a token a step. At alpha = .5
    and length 8 it gives .50 tokens a step for 1.33, at .95 and 10 it gives 6.09 for 5.94. `overlap_time` is exact.

    Raises:
        ValueError: alpha is not a probability, length is below 1, or c not above 0.
    """
    step: Any = np.float64(max(length, ratio(c)))
    with np.errstate(divide="ignore"):
        return step / theorem_1_tokens(alpha, length)


def _forked(alpha: Any, fork_alpha: Any) -> tuple[Any, Any]:
    alpha = probability("alpha", alpha)
    return alpha, alpha if fork_alpha is None else probability("fork_alpha", fork_alpha)


def _overlap_committed(alpha: Any, length: int, fork_alpha: Any) -> Any:
    """Expected drafted tokens a step that are committed."""
    post = overlap_post_share(alpha, length, fork_alpha)
    alpha, fork = _forked(alpha, fork_alpha)
    accepted = expected_accepted(alpha, length - 1) + alpha ** (length - 1) * fork
    return (1 - post) * fork + post * accepted
