"""H-RAD's network fitted with optax to logged rounds, and the two predictors that its three classes are compared with.

The comparison is of what is predicted, on the same features, rounds and weights: the class (none, partial, all), the
accepted length as one of G classes, and the length as a number (as AdaEAGLE does, arXiv 2412.18910).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxspec.base import Params, Progress
from jaxspec.decode.branches import cuts
from jaxspec.networks import MLP
from jaxspec.train.hrad.collecting import Rounds

EPOCHS = 20
BATCH_SIZE = 32
"""SpecBranch's."""

LEARNING_RATE = 1e-4
WEIGHT_DECAY = 1e-2
PATIENCE = 5
"""Epochs without a smaller held-out loss after which training ends. These three are ours: the paper names none."""

HELD_OUT, STOPPING = 0.2, 0.1
"""Shares of the prompts that reports are made on, and that say when training ends."""

NAMES = ("hrad", "lengths", "regression")
"""The three predictors."""

Loss = Callable[[jax.Array, jax.Array], jax.Array]
"""`[B]` losses from `[B, C]` outputs and `[B]` targets."""


class Examples(NamedTuple):
    """What is fitted.

    Attributes:
        inputs: `[n, F]` float32.
        targets: `[n]` int32 classes, or float32 numbers.
        weights: `[n]` float32, how much each counts.
    """

    inputs: Any
    targets: Any
    weights: Any


class Fitted(NamedTuple):
    """A network that was fitted.

    Attributes:
        network: Its description.
        params: Those of the epoch with the smallest loss on the stopping examples.
        losses: `[epochs, 2]` mean training loss (with dropout) and loss on the stopping examples.
        best_epoch: From 1 on.
    """

    network: MLP
    params: Params
    losses: np.ndarray
    best_epoch: int


class Split(NamedTuple):
    """Masks `[n]` of the rounds of each part; no prompt is in two of them."""

    training: np.ndarray
    stopping: np.ndarray
    held_out: np.ndarray


def split_by_prompt(prompts: np.ndarray, seed: int) -> Split:
    """The parts, by `HELD_OUT` and `STOPPING`, of rounds with these `[n]` prompts.

    Raises:
        ValueError: Fewer than 3 prompts.
    """
    names = np.random.default_rng(seed).permutation(np.unique(prompts))
    if len(names) < 3:
        raise ValueError(
            f"The logged rounds are of {len(names)} prompts, and 3 parts need one each: take more prompts."
        )
    held_out, stopping = (max(1, round(share * len(names))) for share in (HELD_OUT, STOPPING))
    parts = names[held_out + stopping :], names[held_out : held_out + stopping], names[:held_out]
    return Split(*(np.isin(prompts, part) for part in parts))


def class_weights(classes: np.ndarray, among: np.ndarray) -> np.ndarray:
    """`[n]` float32 weights, inverse to how frequent each one's class is `among` others; 1 on average there."""
    counts = np.bincount(among, minlength=cuts.NUM_CLASSES)
    weights = len(among) / np.maximum(counts, 1) / max((counts > 0).sum(), 1)
    return weights[classes].astype(np.float32)


def cross_entropy(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """`[B]` nats of the class."""
    return optax.softmax_cross_entropy_with_integer_labels(outputs, targets)


def squared_error(outputs: jax.Array, targets: jax.Array) -> jax.Array:
    """`[B]` of the one output."""
    return (outputs[:, 0] - targets) ** 2


def fit_all(
    network: MLP,
    rounds: Rounds,
    inputs: np.ndarray,
    split: Split,
    *,
    seed: int,
    epochs: int = EPOCHS,
    learning_rate: float = LEARNING_RATE,
    progress: Progress | None = None,
) -> dict[str, Fitted]:
    """The three predictors, by `NAMES`. A round's weight is that of its class in all of them.

    Args:
        network: H-RAD's.
        rounds: All rounds.
        inputs: `[n, F]`, theirs.
        split: Of them.
        seed: Of initialisation, order and dropout.
        epochs: At most.
        learning_rate: Of AdamW.
        progress: Told after each epoch.
    """
    classes, lengths = rounds.classes, rounds.num_accepted
    weights = class_weights(classes, classes[split.training])
    kinds: dict[str, tuple[int, Loss, np.ndarray]] = {
        "hrad": (cuts.NUM_CLASSES, cross_entropy, classes.astype(np.int32)),
        "lengths": (rounds.length, cross_entropy, lengths.astype(np.int32)),
        "regression": (1, squared_error, lengths.astype(np.float32)),
    }
    fitted = {}
    for name, (size, loss, targets) in kinds.items():
        everything = Examples(inputs, targets, weights)
        parts = [Examples(*(leaf[mask] for leaf in everything)) for mask in (split.training, split.stopping)]
        sized = dataclasses.replace(network, num_classes=size)
        options: dict[str, Any] = {"seed": seed, "epochs": epochs, "learning_rate": learning_rate}
        fitted[name] = fit(sized, loss, *parts, **options, progress=progress, name=name)
    return fitted


def fit(
    network: MLP,
    loss: Loss,
    training: Examples,
    stopping: Examples,
    *,
    seed: int,
    epochs: int = EPOCHS,
    batch_size: int = BATCH_SIZE,
    learning_rate: float = LEARNING_RATE,
    patience: int = PATIENCE,
    progress: Progress | None = None,
    name: str = "fit",
) -> Fitted:
    """The network fitted to weighted examples by AdamW; its inputs are standardised by the training examples.

    Args:
        network: Its outputs go into the loss.
        loss: A function at the top of a module, since each one compiles.
        training: The examples, at least one.
        stopping: Those that say when to end, likewise.
        seed: Of initialisation, order and dropout.
        epochs: At most.
        batch_size: Examples of a step.
        learning_rate: Of AdamW.
        patience: Epochs without a smaller loss on `stopping` after which it ends.
        progress: Told after each epoch.
        name: What is told.

    Raises:
        ValueError: A part without examples, or a number below 1.
    """
    if min(epochs, batch_size, patience) < 1:
        raise ValueError(f"epochs={epochs}, batch_size={batch_size}, patience={patience}: each must be at least 1.")
    for part, examples in (("training", training), ("stopping", stopping)):
        if not len(examples.inputs):
            raise ValueError(f"There are no {part} rounds: take more prompts or more tokens.")
    optimiser = _optimiser(learning_rate)
    key, first = jax.random.split(jax.random.key(seed))
    params = network.init(first) | standardisation(training.inputs)
    state = optimiser.init(params["layers"])
    fixed, held = (jax.tree.map(jnp.asarray, part) for part in (training, stopping))
    rng = np.random.default_rng(seed)
    losses: list[tuple[float, float]] = []
    best, best_epoch = params, 0
    for epoch in range(1, epochs + 1):
        order = jnp.asarray(batches(rng.permutation(len(training.inputs)), batch_size))
        key, dropout = jax.random.split(key)
        params, state, mean = _epoch(network, loss, learning_rate, params, state, fixed, order, dropout)
        losses.append((float(mean), float(mean_loss(network, loss, params, held))))
        if losses[-1][1] < min((loss for _, loss in losses[:-1]), default=np.inf):
            best, best_epoch = params, epoch
        if progress is not None:
            progress(name, epoch, epochs)
        if epoch - best_epoch >= patience:
            break
    if progress is not None:
        progress(name, epochs, epochs)
    return Fitted(network, best, np.array(losses), best_epoch)


def standardisation(inputs: np.ndarray) -> dict[str, jax.Array]:
    """`mean` and `scale` `[F]` of `[n, F]` inputs; a number that never changes keeps its scale."""
    deviation = inputs.std(axis=0, dtype=np.float64)
    scale = np.where(deviation > 1e-6, deviation, 1.0)
    return {
        "mean": jnp.asarray(inputs.mean(axis=0, dtype=np.float64), jnp.float32),
        "scale": jnp.asarray(scale, jnp.float32),
    }


def batches(order: np.ndarray, batch_size: int) -> np.ndarray:
    """`[steps, batch_size]` int32 places of the examples in an order, filled up with -1."""
    steps = -(-len(order) // batch_size)
    padded = np.full(steps * batch_size, -1, np.int32)
    padded[: len(order)] = order
    return padded.reshape(steps, batch_size)


@functools.partial(jax.jit, static_argnames=("network", "loss"))
def mean_loss(network: MLP, loss: Loss, params: Params, examples: Examples) -> jax.Array:
    """`[]` float32 weighted mean loss, without dropout."""
    return _mean(loss(network.apply(params, examples.inputs), examples.targets), examples.weights)


def logits(fitted: Fitted, inputs: np.ndarray) -> np.ndarray:
    """`[n, C]` outputs of a fitted network."""
    return np.asarray(_outputs(fitted.network, fitted.params, inputs))


def predicted_lengths(fitted: Fitted, inputs: np.ndarray, length: int) -> np.ndarray:
    """`[n]` accepted lengths, 0 to G - 1, that a network of `length` = G classes or of one output predicts."""
    found = logits(fitted, inputs)
    if fitted.network.num_classes == 1:
        return np.clip(np.rint(found[:, 0]), 0, length - 1).astype(int)
    return found.argmax(-1)


@functools.partial(jax.jit, static_argnames="network")
def _outputs(network: MLP, params: Params, inputs: jax.Array) -> jax.Array:
    return network.apply(params, inputs)


@functools.cache
def _optimiser(learning_rate: float) -> optax.GradientTransformation:
    return optax.adamw(learning_rate, weight_decay=WEIGHT_DECAY)


@functools.partial(jax.jit, static_argnames=("network", "loss", "learning_rate"))
def _epoch(
    network: MLP,
    loss: Loss,
    learning_rate: float,
    params: Params,
    state: optax.OptState,
    examples: Examples,
    order: jax.Array,
    key: jax.Array,
) -> tuple[Params, optax.OptState, jax.Array]:
    """Parameters and optimiser's state after one step for each row of the order, and the mean loss of these steps."""
    optimiser = _optimiser(learning_rate)

    def batch_loss(layers: Params, places: jax.Array, key: jax.Array) -> jax.Array:
        batch = jax.tree.map(lambda leaf: leaf[jnp.maximum(places, 0)], examples)
        found = network.apply_dropout({**params, "layers": layers}, batch.inputs, key)
        return _mean(loss(found, batch.targets), jnp.where(places < 0, 0.0, batch.weights))

    def step(carry: tuple[Params, optax.OptState], drawn: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
        layers, state = carry
        value, gradient = jax.value_and_grad(batch_loss)(layers, *drawn)
        updates, state = optimiser.update(gradient, state, layers)
        return (optax.apply_updates(layers, updates), state), value

    keys = jax.random.split(key, order.shape[0])
    (layers, state), values = jax.lax.scan(step, (params["layers"], state), (order, keys))
    return {**params, "layers": layers}, state, values.mean()


def _mean(losses: jax.Array, weights: jax.Array) -> jax.Array:
    return (losses * weights).sum() / jnp.maximum(weights.sum(), 1e-9)
