"""Every method's predicted speed from one profile, on one device and on two.

Trees are planned by `plan`, from the acceptance of each child. PEARL and SpecBranch are predicted by the renewal model
of `branch_theory` where the profile has a calibration of the draft's confidence, and else by that of `theory`, which
has one acceptance for every token, cuts nothing and tries all candidates. What H-RAD adds to the confidence is in
neither. On two devices a round of theirs takes as long as its longer half.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from jaxspec import plan
from jaxspec.plan import theory
from jaxspec.plan.choice import Plan
from jaxspec.plan.theory import renewal
from jaxspec.profiles import Profile
from jaxspec.tree import TokenTree, chain

MAX_LENGTH = 32
"""The longest chain and branch that are tried."""

MAX_BRANCHES = 8
"""The most candidates of a fork that are tried."""


class Prediction(NamedTuple):
    """What a profile lets one expect of a method at its best setting.

    Attributes:
        method: Its name.
        tree: Its tree, for "sequoia".
        length: Drafted tokens, for the methods that have a length.
        max_branches: Branches, for "specbranch".
        epsilon: The confidence below which "specbranch" cuts; None where the profile has no calibration.
        expected_tokens: Tokens a round.
        speedup: On one device, over plain decoding.
        overlap_speedup: On two devices; None for a method whose draft waits for its target.
    """

    method: str
    tree: TokenTree | None
    length: int | None
    max_branches: int | None
    expected_tokens: float
    speedup: float
    overlap_speedup: float | None
    epsilon: float | None = None


def rank(profile: Profile, max_length: int = MAX_LENGTH, max_branches: int = MAX_BRANCHES) -> tuple[Prediction, ...]:
    """The methods, the fastest on one device first.

    Chains and trees have the setting that is best on one device, PEARL and SpecBranch the one that is best on two.

    Args:
        profile: Measured acceptance and step times.
        max_length: The longest chain and branch that are tried; at most what `verify_ms` covers.
        max_branches: The most branches that are tried; without a calibration no more than the acceptance has ranks.

    Raises:
        ValueError: A limit below 1.
    """
    if max_length < 1 or max_branches < 1:
        raise ValueError(f"max_length is {max_length} and max_branches {max_branches}, but both must be at least 1")
    found = [_of_plan(plan.predict(chain(0), profile)), max(_chains(profile, max_length), key=_on_one_device)]
    tree = plan.best(profile)
    if tree.method == "sequoia":
        found.append(_of_plan(tree))
    lengths = range(1, _longest(profile, max_length) + 1)
    found.append(max(_pearls(profile, lengths), key=_on_two_devices))
    if max_branches > 1 and np.atleast_2d(profile.acceptance).shape[1] > 1:
        branches = _branches(profile, lengths, range(2, max_branches + 1))
        found.append(max(branches, key=_on_two_devices))
    return tuple(sorted(found, key=_on_one_device, reverse=True))


def best(
    method: str,
    profile: Profile,
    *,
    length: int | None = None,
    max_branches: int | None = None,
    epsilon: float | None = None,
) -> Prediction:
    """A method with a drafted length at the setting that makes it the fastest on one device. What is given is kept.

    Args:
        method: "speculative", "adaedl" (predicted as a chain that never stops early), "pearl" or "specbranch".
        profile: Measured acceptance and step times.
        length: Drafted tokens; None: at most `MAX_LENGTH`, and what `verify_ms` covers.
        max_branches: Of "specbranch"; None: at most `MAX_BRANCHES`.
        epsilon: Of "specbranch"; read where the profile has a calibration.
    """
    if method in ("speculative", "adaedl"):
        predictions = _chains(profile, MAX_LENGTH)
    else:
        lengths = range(1, _longest(profile, MAX_LENGTH) + 1) if length is None else (length,)
        if method == "pearl":
            predictions = _pearls(profile, lengths)
        else:
            branches = range(1, MAX_BRANCHES + 1) if max_branches is None else (max_branches,)
            predictions = _branches(profile, lengths, branches, epsilon)
    return max(predictions, key=_on_one_device)._replace(method=method)


def _on_one_device(prediction: Prediction) -> float:
    return prediction.speedup


def _on_two_devices(prediction: Prediction) -> float:
    return prediction.overlap_speedup or prediction.speedup


def _longest(profile: Profile, max_length: int) -> int:
    return max_length if len(profile.verify_ms) == 1 else min(max_length, max(profile.verify_ms) - 1)


def _chains(profile: Profile, max_length: int) -> list[Prediction]:
    """Of every length; an acceptance by depth has none behind its rows."""
    longest = _longest(profile, max_length)
    if np.ndim(profile.acceptance) == 2:
        longest = min(longest, len(profile.acceptance))
    return [_of_plan(plan.predict(chain(length), profile)) for length in range(1, longest + 1)]


def _of_plan(planned: Plan) -> Prediction:
    is_tree = planned.method == "sequoia"
    length = planned.tree.depth if planned.method == "speculative" else None
    tree = planned.tree if is_tree else None
    return Prediction(planned.method, tree, length, None, planned.expected_tokens, planned.expected_speedup, None)


def _pearls(profile: Profile, lengths: Iterable[int]) -> list[Prediction]:
    """PEARL at these lengths."""
    mean = mean_acceptance(profile)
    if profile.calibration is None:
        tokens = {length: float(theory.overlap_tokens(float(mean[0]), length)) for length in lengths}
    else:
        setting = renewal.forking(np.asarray(profile.calibration), mean, 1, 0.0)
        tokens = {length: renewal.tokens(setting, length) for length in lengths}
    return [_overlapping("pearl", profile, length, 1, expected) for length, expected in tokens.items()]


def _branches(
    profile: Profile, lengths: Iterable[int], counts: Iterable[int], epsilon: float | None = None
) -> list[Prediction]:
    """SpecBranch at these lengths with each of these numbers of branches, and at every epsilon unless one is given."""
    mean = mean_acceptance(profile)
    lengths = tuple(lengths)
    if profile.calibration is None:
        forks = {min(count, len(mean)): min(float(mean[:count].sum()), 1.0) for count in counts}
        return [
            _overlapping(
                "specbranch", profile, length, count, float(theory.overlap_tokens(float(mean[0]), length, fork))
            )
            for length in lengths
            for count, fork in forks.items()
        ]
    table = np.asarray(profile.calibration)
    epsilons = np.arange(table.shape[1]) / table.shape[1] if epsilon is None else (epsilon,)
    return [
        _overlapping("specbranch", profile, length, count, renewal.tokens(setting, length), float(value))
        for count in counts
        for value in epsilons
        for setting in (renewal.forking(table, mean, count, float(value)),)
        for length in lengths
    ]


def mean_acceptance(profile: Profile) -> np.ndarray:
    """`[C]` by child rank, over depths as often as each was tested."""
    acceptance = np.atleast_2d(np.asarray(profile.acceptance))
    weights = np.broadcast_to(1.0 if profile.counts is None else np.asarray(profile.counts, float), len(acceptance))
    return np.average(acceptance, axis=0, weights=weights)


def _overlapping(
    method: str, profile: Profile, length: int, branches: int, tokens: float, epsilon: float | None = None
) -> Prediction:
    """The branch decoder at one setting, from its tokens a round."""
    draft_ms = profile.draft_time(length + 1) + length * profile.draft_time(branches)
    verify_ms = profile.verify_time(length)
    plain_ms = profile.verify_time(1)
    alone = draft_ms + verify_ms + profile.overhead_ms
    overlapped = max(draft_ms, verify_ms) + profile.overhead_ms
    kept = branches if method == "specbranch" else None
    speedups = plain_ms * tokens / alone, plain_ms * tokens / overlapped
    return Prediction(method, None, length, kept, tokens, *speedups, epsilon)
