"""What SpecBranch gives by renewal: overlap whose pending tokens are cut, and whose forks branch, by the confidence.

`theory` has overlap that cuts nothing, with one acceptance for every token. Here each drafted token has a confidence
too, and its acceptance is that of its confidence (see `measure.calibration`), one for tokens right behind a rejection
and one for all others; beyond that tokens are independent.
"""

from typing import NamedTuple

import numpy as np


class Forking(NamedTuple):
    """What the confidence decides, on average over drafted tokens.

    Attributes:
        kept: Probability that a token is sure enough not to end the pending ones.
        stands: Probability that it is, and is accepted.
        cut_fork: Acceptance at a fork in front of a token that is not sure enough.
        any_fork: Acceptance at a fork in front of any token.
        fresh_fork: Acceptance at a fork right behind a rejection.
    """

    kept: float
    stands: float
    cut_fork: float
    any_fork: float
    fresh_fork: float


def forking(calibration: np.ndarray, acceptance: np.ndarray, max_branches: int, epsilon: float) -> Forking:
    """The averages for one setting.

    A fork tries k = max(1, floor(max_branches (1 - confidence))) candidates (SpecBranch, section 4.2), with the
    confidence in the middle of its step. The first is accepted with the step's acceptance; the further ones, once it is
    not, as often as they are anywhere.

    Args:
        calibration: `[2, n, 2]` share and acceptance by steps of the confidence, behind a rejection and elsewhere.
        acceptance: `[C]` by child rank, unconditional, as in a profile. Further candidates are taken to be of no use.
        max_branches: The most candidates.
        epsilon: The confidence below which a token ends the pending ones; taken at the ends of steps.

    Raises:
        ValueError: Fewer than one branch, or an epsilon outside 0 to 1.
    """
    if max_branches < 1 or not 0 <= epsilon <= 1:
        raise ValueError(f"max_branches={max_branches}, epsilon={epsilon}: at least 1, and from 0 to 1, are needed.")
    shares, firsts = np.moveaxis(np.asarray(calibration, float), -1, 0)  # each [2, n]
    confidence = (np.arange(shares.shape[1]) + 0.5) / shares.shape[1]
    counts = np.maximum(1, np.floor(max_branches * (1 - confidence))).astype(int)
    siblings = np.concatenate([[0.0], np.cumsum(acceptance[1:])]) / max(1 - acceptance[0], 1e-9)
    further = np.minimum(siblings[np.minimum(counts, len(acceptance)) - 1], 1.0)
    (fresh_share, share), (_, first), (fresh_fork, fork) = shares, firsts, firsts + (1 - firsts) * further
    is_sure = confidence >= epsilon
    cut = share[~is_sure]
    return Forking(
        kept=float(share[is_sure].sum()),
        stands=float((share * first)[is_sure].sum()),
        cut_fork=float(cut @ fork[~is_sure] / cut.sum()) if cut.sum() else 0.0,
        any_fork=float(share @ fork),
        fresh_fork=float(fresh_share @ fresh_fork),
    )


def tokens(setting: Forking, length: int) -> float:
    """Expected tokens a round of branches of `length` tokens: 1 + pi (sum of stands^n for n = 1 … length - 1).

    pi is the share of rounds that have pending tokens: of a fork that survived. See `theory.overlap_post_share`.
    """
    return 1.0 + _share(setting, length) * float((setting.stands ** np.arange(1, length)).sum())


def rollback(setting: Forking, length: int) -> float:
    """Share of the tokens drafted on the verified path that are not committed, as `Stats.rollback_path` counts them.

    A round drafts `length` tokens on it, less one where the fork's first candidate was cut from the last continuation.
    One that fails loses them and the pending tokens that do not stand.
    """
    share, longest = _share(setting, length), length - 1
    counts = np.arange(length)
    pending = setting.kept**counts * np.where(counts < longest, 1 - setting.kept, 1.0)
    stands = setting.stands / setting.kept if setting.kept else 0.0
    fork = np.where(counts < longest, setting.cut_fork, setting.any_fork)
    accepted = counts[None]  # [pending, accepted] before the first that is not
    first_wrong = np.where(accepted < counts[:, None], stands**accepted * (1 - stands), 0.0)
    lost_early = (first_wrong * (counts[:, None] + length - accepted)).sum(1)
    lost_late = stands**counts * (1 - fork) * length
    lost = share * pending @ (lost_early + lost_late) + (1 - share) * (1 - setting.fresh_fork) * length
    drafted = length - share * pending[:longest].sum()
    return float(lost / drafted)


def _share(setting: Forking, length: int) -> float:
    """pi, by renewal: a fork of a round without pending tokens survives into a round that has some."""
    counts = np.arange(length - 1)
    cut = (setting.stands**counts).sum() * (1 - setting.kept) * setting.cut_fork
    survives = cut + setting.stands ** (length - 1) * setting.any_fork
    return float(setting.fresh_fork / max(setting.fresh_fork + 1 - survives, 1e-9))
