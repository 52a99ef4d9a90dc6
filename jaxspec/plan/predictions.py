"""What a profile lets one expect of a method at each of its settings.

Chains and trees are predicted by `plan.predict`, from the acceptance of each child. PEARL is predicted by the renewal
model of `theory.renewal` where the profile has a calibration of the draft's confidence, and else by that of `theory`,
which has one acceptance for every token. On two devices a round of PEARL takes as long as its longer half.

Not predicted are methods whose tokens a round no model here gives within a tenth: AdaEDL, whose chain ends where the
draft's entropy says so; SpecBranch, whose pending tokens a head or the confidence cuts; and the draft's most probable
tokens as children at a temperature above 0, whose acceptance a profile does not hold.
"""

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


class Prediction(NamedTuple):
    """What a profile lets one expect of a method at one of its settings; a number is None where it is not predicted.

    Attributes:
        method: Its name.
        tree: Its tree, for methods that have one.
        length: Drafted tokens, for the methods that have a length.
        max_branches: Branches, for "specbranch".
        expected_tokens: Tokens a round.
        speedup: On one device, over plain decoding.
        overlap_speedup: On two devices; None also for a method whose draft waits for its target.
        epsilon: The confidence below which "specbranch" cuts.
    """

    method: str
    tree: TokenTree | None = None
    length: int | None = None
    max_branches: int | None = None
    expected_tokens: float | None = None
    speedup: float | None = None
    overlap_speedup: float | None = None
    epsilon: float | None = None


def on_one_device(prediction: Prediction) -> float:
    """The speedup on one device, to compare settings and methods by; 0 where it is not predicted."""
    return prediction.speedup or 0.0


def on_two_devices(prediction: Prediction) -> float:
    """The speedup on two devices, which is that on one where the draft waits for the target."""
    return prediction.overlap_speedup or on_one_device(prediction)


def plain(profile: Profile) -> list[Prediction]:
    """Of plain decoding, over which every speedup is."""
    planned = plan.predict(chain(0), profile)
    return [Prediction("autoregressive", expected_tokens=planned.expected_tokens, speedup=planned.expected_speedup)]


def chains(profile: Profile) -> list[Prediction]:
    """Of chains of every length; an acceptance by depth has none behind its rows."""
    longest = _longest(profile)
    if np.ndim(profile.acceptance) == 2:
        longest = min(longest, len(profile.acceptance))
    found = []
    for length in range(1, longest + 1):
        planned = plan.predict(chain(length), profile)
        found.append(
            Prediction(
                "speculative",
                length=length,
                expected_tokens=planned.expected_tokens,
                speedup=planned.expected_speedup,
            )
        )
    return found


def adaptive_chains(profile: Profile) -> list[Prediction]:
    """AdaEDL at the length of the fastest chain. How early it stops, a profile does not say."""
    fastest = max(chains(profile), key=on_one_device)
    return [Prediction("adaedl", length=fastest.length)]


def trees(profile: Profile, size: int | None = None) -> list[Prediction]:
    """SEQUOIA's optimal tree of this size, or the tree that is planned; none where plain decoding is the fastest."""
    planned = _planned_tree(profile, size)
    if planned.tree.size == 1:
        return []
    return [
        Prediction(
            "sequoia",
            tree=planned.tree,
            expected_tokens=planned.expected_tokens,
            speedup=planned.expected_speedup,
        )
    ]


def top_k_trees(profile: Profile, size: int | None = None) -> list[Prediction]:
    """The same trees for the draft's most probable tokens.

    A greedy draft's children are these, so that they are predicted alike there; elsewhere their acceptance is another.
    """
    is_greedy = profile.temperature == 0 and not profile.draft_temperature
    found = []
    for one in trees(profile, size):
        found.append(one._replace(method="topk") if is_greedy else Prediction("topk", tree=one.tree))
    return found


def pearls(profile: Profile) -> list[Prediction]:
    """PEARL of every length."""
    mean = mean_acceptance(profile)
    setting = None
    if profile.calibration is not None:
        setting = renewal.forking(np.asarray(profile.calibration), mean, 1, 0.0)
    found = []
    for length in range(1, _longest(profile) + 1):
        if setting is None:
            tokens = float(theory.overlap_tokens(float(mean[0]), length))
        else:
            tokens = renewal.tokens(setting, length)
        found.append(_overlapping(profile, length, tokens))
    return found


def mean_acceptance(profile: Profile) -> np.ndarray:
    """`[C]` by child rank, over depths as often as each was tested."""
    acceptance = np.atleast_2d(np.asarray(profile.acceptance))
    weights = np.broadcast_to(1.0 if profile.counts is None else np.asarray(profile.counts, float), len(acceptance))
    return np.average(acceptance, axis=0, weights=weights)


def _longest(profile: Profile) -> int:
    """As far as the target's times were measured; where one stands for all, `MAX_LENGTH`."""
    return MAX_LENGTH if len(profile.verify_ms) == 1 else min(MAX_LENGTH, max(profile.verify_ms) - 1)


def _planned_tree(profile: Profile, size: int | None) -> Plan:
    if size is None:
        return plan.best(profile)
    return plan.predict(plan.optimal_tree(profile.acceptance, size), profile)


def _overlapping(profile: Profile, length: int, tokens: float) -> Prediction:
    """PEARL at one length, from its tokens a round."""
    draft_ms = profile.draft_time(length + 1) + length * profile.draft_time(1)
    verify_ms = profile.verify_time(length)
    plain_ms = profile.verify_time(1)
    return Prediction(
        "pearl",
        length=length,
        expected_tokens=tokens,
        speedup=plain_ms * tokens / (draft_ms + verify_ms + profile.overhead_ms),
        overlap_speedup=plain_ms * tokens / (max(draft_ms, verify_ms) + profile.overhead_ms),
    )
