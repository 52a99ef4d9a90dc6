"""How well classes are predicted, how many pending tokens are accepted, and what the confidence predicts by itself."""

from typing import NamedTuple

import numpy as np

from jaxspec.decode.branches import cuts
from jaxspec.plan import theory
from jaxspec.train.hrad import deciding
from jaxspec.train.hrad.collecting import Rounds
from jaxspec.train.hrad.deciding import EPSILONS


class Score(NamedTuple):
    """How often classes were predicted rightly.

    Attributes:
        confusion: `[3][3]` rounds, by the true class and the predicted one.
        accuracy: Share of the rounds whose class was predicted.
        recall: `[3]` the same among the rounds of each class; NaN where there are none.
        balanced: The mean of these.
    """

    confusion: tuple[tuple[int, ...], ...]
    accuracy: float
    recall: tuple[float, ...]
    balanced: float


class Lengths(NamedTuple):
    """How many pending tokens were accepted.

    Attributes:
        counts: `[G]` rounds that accepted 0 to G - 1 of them.
        alpha: Accepted tokens over tested ones: what each would be accepted with if all were alike.
        geometric: `[G]` rounds that would then be expected, a truncated geometric law (SpecBranch's model).
        is_bimodal: Whether none and all each have more rounds than any length between them.
    """

    counts: tuple[int, ...]
    alpha: float
    geometric: tuple[float, ...]
    is_bimodal: bool


class Epsilons(NamedTuple):
    """Thresholds of the confidence by itself, chosen on training rounds.

    Attributes:
        accurate: Predicts the class most often.
        balanced: Predicts it with the best mean over the classes.
    """

    accurate: float
    balanced: float


def score(true: np.ndarray, predicted: np.ndarray) -> Score:
    """The score of `[n]` predicted classes."""
    confusion = np.zeros((cuts.NUM_CLASSES, cuts.NUM_CLASSES), int)
    np.add.at(confusion, (true, predicted), 1)
    totals = confusion.sum(1)
    recall = np.where(totals > 0, np.diag(confusion) / np.maximum(totals, 1), np.nan)
    balanced = float(np.nanmean(recall)) if totals.any() else float("nan")
    accuracy = float(np.diag(confusion).sum() / max(len(true), 1))
    return Score(tuple(map(tuple, confusion.tolist())), accuracy, tuple(recall.tolist()), balanced)


def accepted_lengths(num_accepted: np.ndarray, length: int) -> Lengths:
    """The histogram of `[n]` accepted lengths from 0 to `length` - 1, beside a truncated geometric law."""
    counts = np.bincount(num_accepted, minlength=length)
    alpha = deciding.acceptance(num_accepted, length)
    geometric = counts.sum() * theory.accepted_pmf(alpha, length - 1)
    is_bimodal = bool(min(counts[0], counts[-1]) > counts[1:-1].max())
    return Lengths(tuple(counts.tolist()), alpha, tuple(geometric.tolist()), is_bimodal)


def classes_of(lengths: np.ndarray, length: int) -> np.ndarray:
    """`[n]` H-RAD's classes of accepted or predicted lengths."""
    return np.asarray(cuts.labels(lengths, length - 1))


def choose_epsilons(rounds: Rounds) -> Epsilons:
    """The thresholds of `EPSILONS` by which the confidence predicts best; the smallest among equally good ones."""
    kept = {epsilon: deciding.confidence_counts(rounds.confidence, epsilon) for epsilon in EPSILONS}
    scores = {epsilon: score(rounds.classes, classes_of(counts, rounds.length)) for epsilon, counts in kept.items()}
    return Epsilons(
        accurate=max(EPSILONS, key=lambda epsilon: scores[epsilon].accuracy),
        balanced=max(EPSILONS, key=lambda epsilon: scores[epsilon].balanced),
    )
