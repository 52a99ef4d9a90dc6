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
    acceptance = np.atleast_2d(np.asarray(profile.acceptance))
    longest = max_length if len(profile.verify_ms) == 1 else min(max_length, max(profile.verify_ms) - 1)
    by_depth = np.ndim(profile.acceptance) == 2
    chains = [
        plan.predict(chain(length), profile)
        for length in range(1, (min(longest, len(acceptance)) if by_depth else longest) + 1)
    ]
    found = [_of_plan(plan.predict(chain(0), profile)), _of_plan(max(chains, key=lambda one: one.expected_speedup))]
    tree = plan.best(profile)
    if tree.method == "sequoia":
        found.append(_of_plan(tree))
    ranks = min(max_branches, acceptance.shape[1])
    found.append(_best_overlap("pearl", profile, acceptance, longest, (1,)))
    if ranks > 1:
        found.append(_best_overlap("specbranch", profile, acceptance, longest, range(2, ranks + 1)))
    return tuple(sorted(found, key=lambda one: -one.speedup))


def _of_plan(planned: Plan) -> Prediction:
    is_tree = planned.method == "sequoia"
    length = planned.tree.depth if planned.method == "speculative" else None
    tree = planned.tree if is_tree else None
    return Prediction(planned.method, tree, length, None, planned.expected_tokens, planned.expected_speedup, None)


def _best_overlap(
    method: str, profile: Profile, acceptance: np.ndarray, longest: int, branches: range | tuple[int, ...]
) -> Prediction:
    """The branch decoder's length and branches that are best on two devices."""
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

    tried = [predict(length, count) for length in range(1, longest + 1) for count in branches]
    return max(tried, key=lambda one: one.overlap_speedup or 0.0)
