"""What a trained H-RAD head is worth, on rounds that it was not trained on, and training with that assessment."""

import functools
import statistics
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.base import Params, Progress
from jaxspec.decode.branches import cuts
from jaxspec.networks import MLP
from jaxspec.networks.mlp import HIDDEN_SIZES
from jaxspec.plan import theory
from jaxspec.train.hrad import settings as settings_
from jaxspec.train.hrad.collecting import Rounds
from jaxspec.train.hrad.fitting import (
    EPOCHS,
    LEARNING_RATE,
    Fitted,
    fit_all,
    logits,
    predicted_lengths,
    split_by_prompt,
)
from jaxspec.train.hrad.settings import EPSILONS, Estimate, Settings, confidence_counts

PREDICTORS = ("hrad", "lengths", "regression", "confidence", "confidence_balanced", "majority")
"""H-RAD, the two other predictors of `hrad_training`, the confidence alone at its two best thresholds, and the most
frequent class."""


CUTS = ("hrad", "argmax", "confidence", "nothing", "ideal")
"""H-RAD as it is set and without offsets, the confidence alone, no cut, and a cut that knows how many are accepted."""


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


class Evaluation(NamedTuple):
    """A head and what it is compared with, on one set of rounds.

    Attributes:
        rounds: How many there are.
        lengths: Their accepted lengths.
        scores: By the names of `PREDICTORS`.
        cuts: What cutting gives by `CUTS`.
        hard_share: Share of the rounds that the head, as it is set, decides by itself, by none or all.
        soft_share: Share that it leaves to the confidence.
    """

    rounds: int
    lengths: Lengths
    scores: dict[str, Score]
    cuts: dict[str, Estimate]
    hard_share: float
    soft_share: float


class Epsilons(NamedTuple):
    """Thresholds of the confidence by itself, chosen on training rounds.

    Attributes:
        accurate: Predicts the class most often.
        balanced: Predicts it with the best mean over the classes.
    """

    accurate: float
    balanced: float


class Cost(NamedTuple):
    """What the head costs.

    Attributes:
        apply_ms: Milliseconds of one classification, measured alone.
        round_ms: Milliseconds of a round, batch size 1.
        share: Their quotient.
    """

    apply_ms: float
    round_ms: float
    share: float


class Collected(NamedTuple):
    """Logged rounds.

    Attributes:
        rounds: The rounds.
        inputs: `[n, F]` float32, what the network reads in each; `hrad_rounds.inputs`.
    """

    rounds: Rounds
    inputs: np.ndarray


class Trained(NamedTuple):
    """A head, what it was trained on and what it is worth.

    Attributes:
        fitted: The head and the predictors that it is compared with, by name.
        epsilons: Thresholds that predict best, chosen on the training rounds.
        settings: How the head and the confidence decide, chosen on the stopping rounds.
        held_out: On rounds of prompts that nothing was fitted or chosen on.
        other_task: On rounds of other prompts; None without them.
        num_rounds: By the part of the split.
        num_prompts: Likewise.
    """

    fitted: dict[str, Fitted]
    epsilons: Epsilons
    settings: Settings
    held_out: Evaluation
    other_task: Evaluation | None
    num_rounds: dict[str, int]
    num_prompts: dict[str, int]

    @property
    def head(self) -> tuple[MLP, Params]:
        """H-RAD's network and parameters, its setting's offsets in them."""
        fitted = self.fitted["hrad"]
        return fitted.network, settings_.settled(fitted.params, self.settings.head)

    def protocol(self) -> dict[str, Any]:
        """How the training went, for JSON."""
        head = self.fitted["hrad"]
        losses = [{"training": first, "stopping": second} for first, second in head.losses.tolist()]
        return {
            "rounds": self.num_rounds,
            "prompts_of_rounds": self.num_prompts,
            "best_epoch": head.best_epoch,
            "losses": losses,
        }


def train(
    collected: Collected,
    other_task: Collected | None = None,
    *,
    seed: int,
    epochs: int = EPOCHS,
    learning_rate: float = LEARNING_RATE,
    hidden_sizes: tuple[int, ...] = HIDDEN_SIZES,
    progress: Progress | None = None,
) -> Trained:
    """A head fitted to logged rounds, with what it is compared with and its scores on held-out prompts.

    Args:
        collected: The rounds, which are split by prompt.
        other_task: Rounds that it is tried on beside.
        seed: Of the split and of the fits.
        epochs: At most.
        learning_rate: Of AdamW.
        hidden_sizes: Of the network.
        progress: Told after each epoch.

    Raises:
        ValueError: Rounds of fewer than 3 prompts.
    """
    rounds, inputs = collected
    num_features, width = rounds.features.shape[1:]
    split = split_by_prompt(rounds.prompts, seed)
    network = MLP(num_features, width, hidden_sizes)
    options: dict[str, Any] = {"seed": seed, "epochs": epochs, "learning_rate": learning_rate}
    fitted = fit_all(network, rounds, inputs, split, **options, progress=progress)
    training = rounds.take(split.training)
    epsilons = choose_epsilons(training)
    settings = settings_.choose(logits(fitted["hrad"], inputs[split.stopping]), rounds.take(split.stopping))
    majority = int(np.bincount(training.classes).argmax())
    rate = functools.partial(evaluate, fitted, epsilons=epsilons, settings=settings, majority=majority)
    return Trained(
        fitted=fitted,
        epsilons=epsilons,
        settings=settings,
        held_out=rate(rounds.take(split.held_out), inputs[split.held_out]),
        other_task=None if other_task is None else rate(*other_task),
        num_rounds={name: int(mask.sum()) for name, mask in split._asdict().items()},
        num_prompts={name: len(np.unique(rounds.prompts[mask])) for name, mask in split._asdict().items()},
    )


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
    alpha = settings_.acceptance(num_accepted, length)
    geometric = counts.sum() * theory.accepted_pmf(alpha, length - 1)
    is_bimodal = bool(min(counts[0], counts[-1]) > counts[1:-1].max())
    return Lengths(tuple(counts.tolist()), alpha, tuple(geometric.tolist()), is_bimodal)


def classes_of(lengths: np.ndarray, length: int) -> np.ndarray:
    """`[n]` H-RAD's classes of accepted or predicted lengths."""
    return np.asarray(cuts.labels(lengths, length - 1))


def choose_epsilons(rounds: Rounds) -> Epsilons:
    """The thresholds of `EPSILONS` by which the confidence predicts best; the smallest among equally good ones."""
    cuts = {epsilon: confidence_counts(rounds.confidence, epsilon) for epsilon in EPSILONS}
    scores = {epsilon: score(rounds.classes, classes_of(cut, rounds.length)) for epsilon, cut in cuts.items()}
    return Epsilons(
        accurate=max(EPSILONS, key=lambda epsilon: scores[epsilon].accuracy),
        balanced=max(EPSILONS, key=lambda epsilon: scores[epsilon].balanced),
    )


def evaluate(
    fitted: Mapping[str, Fitted],
    rounds: Rounds,
    inputs: np.ndarray,
    *,
    epsilons: Epsilons,
    settings: Settings,
    majority: int,
) -> Evaluation:
    """The predictors of `hrad_training.fit_all` and the simpler ones, on rounds that none of them was fitted to.

    Args:
        fitted: By name.
        rounds: The rounds.
        inputs: `[n, F]`, theirs.
        epsilons: Chosen on training rounds.
        settings: Chosen on stopping rounds.
        majority: The most frequent class in the training rounds.
    """
    length = rounds.length
    found = logits(fitted["hrad"], inputs)
    predicted = {
        "hrad": found.argmax(-1),
        "lengths": classes_of(predicted_lengths(fitted["lengths"], inputs, length), length),
        "regression": classes_of(predicted_lengths(fitted["regression"], inputs, length), length),
        "confidence": classes_of(confidence_counts(rounds.confidence, epsilons.accurate), length),
        "confidence_balanced": classes_of(confidence_counts(rounds.confidence, epsilons.balanced), length),
        "majority": np.full(len(found), majority),
    }
    kept = {
        "hrad": settings_.kept_by_head(found, rounds.confidence, settings.head),
        "argmax": settings_.kept_by_head(found, rounds.confidence, settings.argmax),
        "confidence": confidence_counts(rounds.confidence, settings.confidence),
        "nothing": np.full(len(found), length - 1),
        "ideal": rounds.num_accepted,
    }
    soft = float((settings_.decided(found, settings.head) == cuts.PARTIAL).mean())
    return Evaluation(
        rounds=len(found),
        lengths=accepted_lengths(rounds.num_accepted, length),
        scores={name: score(rounds.classes, predicted[name]) for name in PREDICTORS},
        cuts={name: settings_.estimate(kept[name], rounds) for name in CUTS},
        hard_share=1.0 - soft,
        soft_share=soft,
    )


def cost(network: MLP, params: Params, round_ms: float, repeats: int = 7) -> Cost:
    """What one classification costs, beside a round of so many milliseconds."""
    steps = 100
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(_classifications(network, params, steps))
        times.append((time.perf_counter() - start) / steps * 1000)
    apply_ms = statistics.median(times[1:])  # the first one compiles
    return Cost(apply_ms, round_ms, apply_ms / round_ms)


def metrics(trained: Trained, cost: Cost) -> dict[str, Any]:
    """All figures of a head, for JSON."""

    def entries(evaluation: Evaluation) -> dict[str, Any]:
        scores = {name: one._asdict() for name, one in evaluation.scores.items()}
        cuts = {name: one._asdict() for name, one in evaluation.cuts.items()}
        return evaluation._asdict() | {"lengths": evaluation.lengths._asdict(), "scores": scores, "cuts": cuts}

    return {
        "held_out": entries(trained.held_out),
        "other_task": None if trained.other_task is None else entries(trained.other_task),
        "epsilons": trained.epsilons._asdict(),
        "settings": {
            "head": trained.settings.head._asdict(),
            "argmax": trained.settings.argmax._asdict(),
            "confidence": trained.settings.confidence,
        },
        "cost": cost._asdict(),
    }


@functools.partial(jax.jit, static_argnames=("network", "steps"))
def _classifications(network: MLP, params: Params, steps: int) -> jax.Array:
    """Some classifications, each waiting for the one before."""

    def step(_: jax.Array, inputs: jax.Array) -> jax.Array:
        found = jnp.argmax(network.apply(params, inputs)).astype(jnp.float32)
        return inputs + 1e-6 * jnp.broadcast_to(found, inputs.shape)

    return jax.lax.fori_loop(0, steps, step, params["mean"])
