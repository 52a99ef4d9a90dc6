"""How long forwards take: tables of step times, measured ones and a GPU's."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from jaxspec.profiles import Profile

FLAT_TOKENS = 64
"""Up to how many tokens a GPU's step takes the same time, about."""


class StepTimes(NamedTuple):
    """How long a forward takes.

    Attributes:
        target: Milliseconds of one target forward by its number of tokens.
        draft: Milliseconds of one draft forward, likewise.
    """

    target: Callable[[int], float]
    draft: Callable[[int], float]


def profile_times(profile: Profile) -> StepTimes:
    """The step times that were measured of a pair on a machine."""
    return StepTimes(profile.verify_time, profile.draft_time)


def table_times(target_ms: Mapping[int, float], draft_ms: Mapping[int, float]) -> StepTimes:
    """Measured step times, milliseconds by number of tokens; between them as `Profile.verify_time` has it.

    Raises:
        ValueError: As for a `Profile`; 1 must be among the target's sizes.
    """
    return profile_times(Profile(acceptance=(0.0,), verify_ms=target_ms, draft_ms=draft_ms))


def flat_times(target_ms: float, c: float, num_tokens: int = FLAT_TOKENS) -> StepTimes:
    """A GPU's step times, roughly: one time up to `num_tokens` tokens, in proportion to them beyond.

    Args:
        target_ms: Milliseconds of a target forward.
        c: Target step / draft step, as in SpecBranch.
        num_tokens: How far both are flat.

    Raises:
        ValueError: A number that is not above 0.
    """
    if not (target_ms > 0 and c > 0 and num_tokens > 0):
        raise ValueError(f"target_ms={target_ms}, c={c}, num_tokens={num_tokens}: each is above 0.")

    def time_of(ms: float) -> Callable[[int], float]:
        return lambda tokens: ms * max(1.0, tokens / num_tokens)

    return StepTimes(time_of(target_ms), time_of(target_ms / c))
