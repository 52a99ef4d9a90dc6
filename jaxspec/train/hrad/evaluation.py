"""What a fitted head is worth beside other predictors, on rounds that none of them was fitted to; and what it costs."""

import functools
import statistics
import time
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.base import Params
from jaxspec.decode.branches import cuts
from jaxspec.networks import MLP
from jaxspec.train.hrad import deciding
from jaxspec.train.hrad.collecting import Rounds
from jaxspec.train.hrad.deciding import Estimate, Settings
from jaxspec.train.hrad.fitting import Fitted, logits, predicted_lengths
from jaxspec.train.hrad.scores import Epsilons, Lengths, Score, accepted_lengths, classes_of, score

PREDICTORS = ("hrad", "lengths", "regression", "confidence", "confidence_balanced", "majority")
"""H-RAD, the two other predictors of `fitting`, the confidence alone at its two best thresholds, and the most
frequent class."""

CUTS = ("hrad", "argmax", "confidence", "nothing", "ideal")
"""H-RAD as it is set and without offsets, the confidence alone, no cut, and a cut that knows how many are accepted."""


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


def evaluate(
    fitted: Mapping[str, Fitted],
    rounds: Rounds,
    inputs: np.ndarray,
    *,
    epsilons: Epsilons,
    settings: Settings,
    majority: int,
) -> Evaluation:
    """The predictors of `fitting.fit_all` and the simpler ones, on rounds that none of them was fitted to.

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
        "confidence": classes_of(deciding.confidence_counts(rounds.confidence, epsilons.accurate), length),
        "confidence_balanced": classes_of(deciding.confidence_counts(rounds.confidence, epsilons.balanced), length),
        "majority": np.full(len(found), majority),
    }
    kept = {
        "hrad": deciding.kept_by_head(found, rounds.confidence, settings.head),
        "argmax": deciding.kept_by_head(found, rounds.confidence, settings.argmax),
        "confidence": deciding.confidence_counts(rounds.confidence, settings.confidence),
        "nothing": np.full(len(found), length - 1),
        "ideal": rounds.num_accepted,
    }
    soft = float((deciding.decided(found, settings.head) == cuts.PARTIAL).mean())
    return Evaluation(
        rounds=len(found),
        lengths=accepted_lengths(rounds.num_accepted, length),
        scores={name: score(rounds.classes, predicted[name]) for name in PREDICTORS},
        cuts={name: deciding.estimate(kept[name], rounds) for name in CUTS},
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


@functools.partial(jax.jit, static_argnames=("network", "steps"))
def _classifications(network: MLP, params: Params, steps: int) -> jax.Array:
    """Some classifications, each waiting for the one before."""

    def step(_: jax.Array, inputs: jax.Array) -> jax.Array:
        found = jnp.argmax(network.apply(params, inputs)).astype(jnp.float32)
        return inputs + 1e-6 * jnp.broadcast_to(found, inputs.shape)

    return jax.lax.fori_loop(0, steps, step, params["mean"])
