"""Distillation of a draft with optax: labels from the target, the loss, a train step, packing, held-out acceptance.

The arithmetic takes arrays and functions, and knows no network. A draft is trained over the C kept tokens of a trimmed
vocabulary; a target's labels are its k most probable tokens with their log-probabilities.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from safetensors.numpy import load_file, save_file

from jaxspec import sampling
from jaxspec.base import Context, Model, Output, Params

Arrays = jax.Array | np.ndarray
"""On the device, or on the host before a step takes them."""


class Labels(NamedTuple):
    """A target's distribution after each token, cut to its k most probable tokens.

    Attributes:
        token_ids: `[…, k]` int32, most probable first.
        log_probs: `[…, k]` natural logarithms of their probabilities at temperature 1. What is missing to a sum of 1
            lies on other tokens. Minus infinity: no label.
    """

    token_ids: Arrays
    log_probs: Arrays


class Batch(NamedTuple):
    """Packed sequences, and what is to be predicted at some of their positions among some of the tokens.

    Attributes:
        tokens: `[B, T]` int32.
        positions: `[M]` int32 into the B x T positions, those that are trained on.
        labels: `[M, k]` each; the ids are indices into the candidates, -1 where a label is none of them.
        weights: `[M]` float32, how much each position counts.
        candidates: `[K]` int32 indices into the kept tokens; see `candidates`.
        log_weights: `[K]` float32, added to the candidates' logits.
    """

    tokens: Arrays
    positions: Arrays
    labels: Labels
    weights: Arrays
    candidates: Arrays
    log_weights: Arrays


class TrainState(NamedTuple):
    """What training carries from step to step.

    Attributes:
        params: The trained parameters.
        optimiser: optax's state.
        step: `[]` int32, steps done.
    """

    params: Params
    optimiser: optax.OptState
    step: jax.Array


class Agreement(NamedTuple):
    """How well a draft agrees with its target, as decoding sees it, at each position or on average.

    Attributes:
        ranks: `[…, R]`, whether the target's most probable token is the draft's first, second, … choice: greedy
            acceptance by child rank.
        overlap: `[…, T]`, the sum over tokens of min(target, draft) at each temperature: how often a sampled draft
            token is accepted (Leviathan et al. 2023, Corollary 3.6). A lower bound, as it is taken over the labels.
    """

    ranks: jax.Array
    overlap: jax.Array


def forward(model: Model, params: Params, tokens: jax.Array) -> Output:
    """Outputs `[B, T, …]` of whole sequences, each token seeing itself and those in front of it.

    Args:
        model: Any model.
        params: Its parameters.
        tokens: `[B, T]` int32; padding goes behind, where no other token sees it.
    """

    def one(row: jax.Array) -> Output:
        positions = jnp.arange(row.shape[0], dtype=jnp.int32)
        mask = positions[:, None] >= positions[None, :]
        context = Context(model.empty(0), jnp.int32(0))
        return model.apply(params, row, positions, context, model.empty(row.shape[0]), 0, mask)

    return jax.vmap(one)(tokens)


def label(logits: jax.Array, count: int) -> Labels:
    """The `count` most probable tokens of each distribution.

    Args:
        logits: `[…, V]`.
        count: k.
    """
    logits = logits.astype(jnp.float32)
    rows = logits.reshape(-1, logits.shape[-1])
    top, token_ids = jax.vmap(lambda row: sampling.top_k(row, count))(rows)
    log_probs = top - jax.nn.logsumexp(rows, axis=-1, keepdims=True)
    shape = (*logits.shape[:-1], count)
    return Labels(token_ids.reshape(shape), log_probs.reshape(shape))


def kept_tokens(counts: np.ndarray, size: int, stop_ids: Iterable[int]) -> np.ndarray:
    """`[C]` int32 ids of a trimmed vocabulary, ascending: the stop tokens and the most frequent others (FR-Spec).

    Args:
        counts: `[V]`, how often the target emits each token.
        size: C, at most V.
        stop_ids: Kept whatever their counts.

    Raises:
        ValueError: C is smaller than the number of stop tokens or larger than V.
    """
    stops = np.unique(np.fromiter(stop_ids, np.int32))
    if not len(stops) <= size <= len(counts):
        raise ValueError(
            f"size={size}: a trimmed vocabulary holds its {len(stops)} stop tokens and at most {len(counts)} tokens."
        )
    order = np.argsort(-counts, kind="stable").astype(np.int32)
    others = order[~np.isin(order, stops)]
    return np.sort(np.concatenate([stops, others[: size - len(stops)]]))


def positions_of(kept_ids: np.ndarray, vocab_size: int) -> np.ndarray:
    """`[V]` int32 index of each token among the kept ones, -1 where it is not kept."""
    index = np.full(vocab_size, -1, np.int32)
    index[kept_ids] = np.arange(len(kept_ids), dtype=np.int32)
    return index


def candidates(gain: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """`[K]` int32 tokens that a batch's softmax runs over, and `[K]` float32 that their logits get added.

    The tokens with the most to gain are all there; of the others there is a random sample, each standing for as many
    as it was drawn from, so that the expected sum of exponentials is that over all C tokens. At least a quarter of the
    places goes to the sample.

    Args:
        gain: `[C]`, the batch's target mass on each token.
        count: K, at least 1. All C tokens, unweighted, where K is at least C.
        rng: Draws the sample.
    """
    size = len(gain)
    if count >= size:
        return np.arange(size, dtype=np.int32), np.zeros(size, np.float32)
    order = np.argsort(-gain, kind="stable").astype(np.int32)
    num_certain = min(int((gain > 0).sum()), count - -(-count // 4))
    others = rng.choice(order[num_certain:], count - num_certain, replace=False)
    log_weights = np.zeros(count, np.float32)
    log_weights[num_certain:] = np.log((size - num_certain) / (count - num_certain))
    return np.concatenate([order[:num_certain], others]), log_weights


def distillation_loss(logits: jax.Array, labels: Labels, hard: float) -> jax.Array:
    """`[M]` nats: cross-entropy to the target's distribution, mixed with that to its most probable token.

    The tokens without a label form one class of their own, so that their mass counts too. Mass of the target on labels
    that are not candidates is left out: no draft over the candidates could earn it.

    Args:
        logits: `[M, K]` of the draft, over the candidates.
        labels: `[M, k]` each, as in `Batch`.
        hard: Share of the most probable token, 0 to 1.
    """
    target_probs = jnp.exp(labels.log_probs)
    counts = (labels.token_ids >= 0) & (target_probs > 0)
    chosen = jnp.take_along_axis(logits, jnp.maximum(labels.token_ids, 0), axis=-1)
    log_probs = jnp.where(counts, chosen - jax.nn.logsumexp(logits, axis=-1, keepdims=True), 0.0)
    rest = jnp.maximum(1.0 - target_probs.sum(-1), 0.0)
    draft_rest = 1.0 - jnp.where(counts, jnp.exp(log_probs), 0.0).sum(-1)
    soft = -(target_probs * log_probs).sum(-1) - rest * jnp.log(jnp.maximum(draft_rest, 1e-6))
    return (1.0 - hard) * soft - hard * log_probs[..., 0]


def agreement(
    logits: jax.Array, labels: Labels, kept_ids: jax.Array, ranks: int, temperatures: tuple[float, ...]
) -> Agreement:
    """Agreement of a draft with its target at each position.

    Args:
        logits: `[…, C]` of the draft, over the kept tokens.
        labels: `[…, k]` each, over the whole vocabulary.
        kept_ids: `[C]`, ascending.
        ranks: R.
        temperatures: Above 0, of both models. Below 1 the target is normalised over its labels, which hold all but a
            trace of its mass there.
    """
    _, top = jax.lax.top_k(logits, ranks)
    found = jnp.searchsorted(kept_ids, labels.token_ids)
    index = jnp.minimum(found, kept_ids.shape[0] - 1)
    is_kept = kept_ids[index] == labels.token_ids

    def overlap(temperature: float) -> jax.Array:
        scaled = labels.log_probs / temperature
        target_log_probs = scaled if temperature == 1 else jax.nn.log_softmax(scaled, axis=-1)
        chosen = jnp.take_along_axis(logits, index, axis=-1) / temperature
        draft_log_probs = chosen - jax.nn.logsumexp(logits / temperature, axis=-1, keepdims=True)
        return jnp.where(is_kept, jnp.exp(jnp.minimum(target_log_probs, draft_log_probs)), 0.0).sum(-1)

    is_rank = kept_ids[top] == labels.token_ids[..., :1]
    return Agreement(is_rank.astype(jnp.float32), jnp.stack([overlap(t) for t in temperatures], axis=-1))


def schedule(peak: float, steps: int, warm_up: int, decay: float) -> optax.Schedule:
    """Learning rate by step: a linear rise, a plateau, and half a cosine down to 0.

    Args:
        peak: On the plateau.
        steps: In all.
        warm_up: Steps of the rise.
        decay: Share of the steps that the descent takes, 0 to 1. The plateau may be cut or prolonged on resuming.
    """
    start = max(round(steps * (1.0 - decay)), warm_up)
    descent = optax.cosine_decay_schedule(peak, max(steps - start, 1))
    rise = optax.linear_schedule(peak / max(warm_up, 1), peak, max(warm_up - 1, 1))
    return optax.join_schedules([rise, optax.constant_schedule(peak), descent], [warm_up, start])


def train_step(
    loss: Callable[[Params, Batch], jax.Array], optimiser: optax.GradientTransformation
) -> Callable[[TrainState, Batch], tuple[TrainState, jax.Array]]:
    """A pure function from a state and a batch to the next state and the mean loss in nats.

    Args:
        loss: `[M]` nats of each position.
        optimiser: Any of optax's.
    """

    def mean(params: Params, batch: Batch) -> jax.Array:
        losses = loss(params, batch)
        chex.assert_equal_shape([losses, batch.weights])
        return (losses * batch.weights).sum() / jnp.maximum(batch.weights.sum(), 1e-6)

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
        value, gradient = jax.value_and_grad(mean)(state.params, batch)
        updates, inner = optimiser.update(gradient, state.optimiser, state.params)
        params: Params = optax.apply_updates(state.params, updates)
        return TrainState(params, inner, state.step + 1), value

    return step


def save(file: Path, tree: Params) -> None:
    """Writes a tree of arrays, such as a `TrainState`, as safetensors; a crash leaves the old file."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    part = file.with_name(file.name + ".part")
    save_file({jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}, part)
    part.replace(file)


def restore(file: Path, like: Params) -> Params:
    """A tree of arrays that `save` wrote, in the form of another; what the other lacks is left out.

    Raises:
        ValueError: The file lacks a leaf, or has it in another shape.
    """
    stored = load_file(file)

    def read(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        name = jax.tree_util.keystr(path)
        if name not in stored or stored[name].shape != leaf.shape:
            raise ValueError(f"{file} has no {name} of shape {leaf.shape}: it was written for other settings.")
        return jnp.asarray(stored[name])

    return jax.tree_util.tree_map_with_path(read, like)


def pack(lengths: np.ndarray, size: int, seed: int | tuple[int, ...]) -> list[list[int]]:
    """Numbers of the sequences that share a row of `size` tokens, every sequence once, in random order.

    Each sequence goes into the fullest open row that still holds it; one longer than a row is for the caller to cut.

    Args:
        lengths: `[n]` tokens of each sequence.
        size: Tokens of a row.
        seed: Of the order.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    is_open: list[int] = []
    for number in np.random.default_rng(seed).permutation(len(lengths)):
        length = min(int(lengths[number]), size)
        fitting = [row for row in is_open if room[row] >= length]
        row = min(fitting, key=lambda row: room[row], default=len(rows))
        if row == len(rows):
            rows.append([])
            room.append(size)
            is_open = [*is_open[-31:], row]
        rows[row].append(int(number))
        room[row] -= length
    return [rows[row] for row in np.random.default_rng(seed).permutation(len(rows))]
