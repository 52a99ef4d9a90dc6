"""What a chain can give before anything is measured.

Acceptance is i.i.d. here: each drafted token is accepted with probability alpha, whatever came before. alpha may be a
number or an array of them, and the result has its shape. `length` is the number of drafted tokens (gamma), and

    c = time of a target step / time of a draft step

as in SpecBranch and PEARL (SEQUOIA's c is the reciprocal). Where times are handed in they may have any one unit. A
speedup is over plain decoding, one target step over one token for each token.
"""

from typing import Any

import numpy as np

from jaxspec.plan.theory.arguments import Number, VerifyTime, duration, integer, probability, ratio, step_time


def accepted_pmf(alpha: float | np.ndarray, length: int) -> np.ndarray:
    """`[…, length + 1]` probability that exactly 0 … length tokens of a chain are accepted (SpecBranch).

    P(X = k) = (1 - alpha) alpha^k for k < length, and alpha^length for all of them: a truncated geometric.

    Raises:
        ValueError: alpha is not a probability, or length is below 0.
    """
    alphas = np.asarray(probability("alpha", alpha))[..., None]
    length = integer("length", length, 0)
    powers = alphas ** np.arange(length + 1)
    return np.concatenate([powers[..., :-1] * (1 - alphas), powers[..., -1:]], axis=-1)


def expected_accepted(alpha: Number, length: int) -> Number:
    """E[X], expected accepted tokens of a chain: alpha (1 - alpha^length) / (1 - alpha), or length at alpha = 1.

    Raises:
        ValueError: alpha is not a probability, or length is below 0.
    """
    alpha = probability("alpha", alpha)
    return alpha * geometric(alpha, integer("length", length, 0))


def chain_tokens(alpha: Number, length: int) -> Number:
    """Expected tokens a round of a chain, with the correction or bonus token: E[X] + 1.

    (1 - alpha^(length + 1)) / (1 - alpha), or length + 1 at alpha = 1 (SpS: Leviathan et al., equation 1).

    Raises:
        ValueError: alpha is not a probability, or length is below 0.
    """
    return geometric(probability("alpha", alpha), integer("length", length, 0) + 1)


def chain_rollback(alpha: Number, length: int) -> Number:
    """Share of a chain's drafted tokens that are not committed: 1 - E[X] / length.

    Raises:
        ValueError: alpha is not a probability, or length is below 1.
    """
    return 1 - expected_accepted(alpha, length) / integer("length", length, 1)


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
    return (length * duration("draft_time", draft_time) + step_time(verify_time, length + 1)) / tokens


def chain_speedup(alpha: Number, length: int, c: float) -> Number:
    """Speedup of a chain where a target step takes c draft steps, whatever its number of tokens (SpS, theorem 3.8).

    Raises:
        ValueError: As `chain_time`, or c is not above 0.
    """
    c = ratio(c)
    return c / chain_time(alpha, length, 1.0, c)


def geometric(alpha: Any, terms: int) -> Any:
    """1 + alpha + … + alpha^(terms - 1), without the cancellation of its closed form near 1."""
    total = 0 * alpha
    for _ in range(terms):
        total = total * alpha + 1
    return total
