"""Every method's predicted speed from one profile, on one device and on two.

Trees are planned by `plan`, from the acceptance of each child. PEARL and SpecBranch are predicted by the exact renewal
model of `theory`, which takes the acceptance to be the same at every position and independent, and cuts nothing: what
H-RAD adds is not in it. On two devices a round of theirs takes as long as its longer half.
"""

from typing import NamedTuple

import numpy as np

from jaxspec import plan, theory
from jaxspec.plan import Plan
from jaxspec.profiles import Profile
from jaxspec.tree import TokenTree, chain

MAX_LENGTH = 32
"""The longest chain and branch that are tried."""

MAX_BRANCHES = 4


class Prediction(NamedTuple):
    """What a profile lets one expect of a method at its best setting.

    Attributes:
        method: Its name.
        tree: Its tree, for "sequoia".
        length: Drafted tokens, for the methods that have a length.
        max_branches: Branches, for "specbranch".
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


def rank(profile: Profile, max_length: int = MAX_LENGTH, max_branches: int = MAX_BRANCHES) -> tuple[Prediction, ...]:
    """The methods, the fastest on one device first.

    Chains and trees have the setting that is best on one device, PEARL and SpecBranch the one that is best on two.

    Args:
        profile: Measured acceptance and step times.
        max_length: The longest chain and branch that are tried; at most what `verify_ms` covers.
        max_branches: The most branches that are tried; at most as many as the acceptance has ranks.

    Raises:
        ValueError: A limit below 1.
    """
    if max_length < 1 or max_branches < 1:
        raise ValueError(f"max_length is {max_length} and max_branches {max_branches}, but both must be at least 1")
    chains = _chains(profile, max_length)
    found = [_of_plan(plan.predict(chain(0), profile)), max(chains, key=_on_one_device)]
    tree = plan.best(profile)
    if tree.method == "sequoia":
        found.append(_of_plan(tree))
    ranks = min(max_branches, np.atleast_2d(profile.acceptance).shape[1])
    found.append(max(_overlapping("pearl", profile, max_length, (1,)), key=_on_two_devices))
    if ranks > 1:
        found.append(max(_overlapping("specbranch", profile, max_length, range(2, ranks + 1)), key=_on_two_devices))
    return tuple(sorted(found, key=_on_one_device, reverse=True))


def best(method: str, profile: Profile, max_branches: int = 1, max_length: int = MAX_LENGTH) -> Prediction:
    """A method with a drafted length at the one that makes it the fastest on one device.

    Args:
        method: "speculative", "adaedl" (predicted as a chain that never stops early), "pearl" or "specbranch".
        profile: Measured acceptance and step times.
        max_branches: Branches of "specbranch"; as many as the acceptance has ranks stand for more.
        max_length: The longest that is tried; at most what `verify_ms` covers.
    """
    if method in ("speculative", "adaedl"):
        predictions = _chains(profile, max_length)
    else:
        count = min(max_branches, np.atleast_2d(profile.acceptance).shape[1])
        predictions = _overlapping(method, profile, max_length, (count,))
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


def _overlapping(method: str, profile: Profile, max_length: int, branches: range | tuple[int, ...]) -> list[Prediction]:
    """The branch decoder at every length with each of these numbers of branches."""
    acceptance = np.atleast_2d(np.asarray(profile.acceptance))
    weights = np.broadcast_to(1.0 if profile.counts is None else np.asarray(profile.counts, float), len(acceptance))
    mean = np.average(acceptance, axis=0, weights=weights)
    plain_ms = profile.verify_time(1)

    def predict(length: int, count: int) -> Prediction:
        tokens = float(theory.overlap_tokens(float(mean[0]), length, min(float(mean[:count].sum()), 1.0)))
        draft_ms = profile.draft_time(length + 1) + length * profile.draft_time(count)
        verify_ms = profile.verify_time(length)
        alone = draft_ms + verify_ms + profile.overhead_ms
        overlapped = max(draft_ms, verify_ms) + profile.overhead_ms
        kept = count if method == "specbranch" else None
        return Prediction(method, None, length, kept, tokens, plain_ms * tokens / alone, plain_ms * tokens / overlapped)

    lengths = range(1, _longest(profile, max_length) + 1)
    return [predict(length, count) for length in lengths for count in branches]
