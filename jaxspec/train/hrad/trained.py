"""A head trained and assessed: fitted to logged rounds, set, and evaluated on prompts that it has not seen."""

import functools
from typing import Any, NamedTuple

import numpy as np

from jaxspec.base import Params, Progress
from jaxspec.networks import MLP
from jaxspec.networks.mlp import HIDDEN_SIZES
from jaxspec.train.hrad import deciding
from jaxspec.train.hrad.collecting import Rounds
from jaxspec.train.hrad.deciding import Settings
from jaxspec.train.hrad.evaluation import Cost, Evaluation, evaluate
from jaxspec.train.hrad.fitting import EPOCHS, LEARNING_RATE, Fitted, fit_all, logits, split_by_prompt
from jaxspec.train.hrad.scores import Epsilons, choose_epsilons


class Collected(NamedTuple):
    """Logged rounds.

    Attributes:
        rounds: The rounds.
        inputs: `[n, F]` float32, what the network reads in each; `collecting.inputs`.
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
        return fitted.network, deciding.settled(fitted.params, self.settings.head)

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
    settings = deciding.choose(logits(fitted["hrad"], inputs[split.stopping]), rounds.take(split.stopping))
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
