"""A run: batches, the optimiser, and training with checkpoints and held-out acceptance."""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from distil.data import Data, console, packed, progress_bar, read_data, uncopied, weigh
from distil.network import CHECKPOINT, Draft, begin, open_run

from jaxspec import training


def make_optimiser(options: argparse.Namespace) -> optax.GradientTransformation:
    """AdamW, or Muon for the layers' matrices and AdamW for the rest."""
    rate = training.schedule(options.learning_rate, options.steps, options.warm_up, options.decay)

    def is_matrix(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, leaf: leaf.ndim == 2 and path[0].key == "layers", params)

    adamw = optax.adamw(rate, b2=0.99, weight_decay=options.weight_decay, mask=is_matrix)
    if options.optimiser == "adamw":
        return optax.chain(optax.clip_by_global_norm(1.0), adamw)

    def dimensions(params: Any) -> Any:
        return jax.tree.map(lambda use: optax.contrib.MuonDimensionNumbers(1, 0) if use else None, is_matrix(params))

    muon = optax.contrib.muon(
        training.schedule(options.muon_rate, options.steps, options.warm_up, options.decay),
        adam_b2=0.99,
        adam_learning_rate=rate,
        muon_weight_dimension_numbers=dimensions,
    )
    return optax.chain(optax.clip_by_global_norm(1.0), muon)


def train(options: argparse.Namespace) -> None:
    """Trains a draft. A run that was stopped goes on from its last checkpoint, with the options given now."""
    data = read_data(options.data, options.labels, options.held_out)
    out = Path(options.out)
    if not (out / CHECKPOINT).exists():
        begin(options, data)
    draft, params = open_run(out)

    def loss(params: Any, batch: training.Batch) -> jax.Array:
        hidden = draft.hidden(params, jnp.asarray(batch.tokens))
        hidden = hidden.reshape(-1, draft.model.config.hidden_size)[batch.positions]
        logits = hidden @ params["kept"][batch.candidates].T + batch.log_weights[None, :]
        return training.distillation_loss(logits, batch.labels, options.hard)

    optimiser = make_optimiser(options)
    step = jax.jit(training.train_step(loss, optimiser), donate_argnums=0)
    state = training.TrainState(params, optimiser.init(params), jnp.int32(0))
    if (out / CHECKPOINT).exists():
        state = training.restore(out / CHECKPOINT, state)
    measure = make_measure(draft, data, options.evaluation_length)
    weights = weigh(data, ~data.is_held_out, options.prompt_weight) * uncopied(data, options.copying)
    started, first = time.monotonic(), int(state.step)
    recent: list[float] = []
    with progress_bar() as progress, (out / "log.jsonl").open("a") as log:
        task = progress.add_task("train", total=options.steps, completed=first, status="")
        for done, batch in enumerate(_endless(options, draft, data, weights, first), first + 1):
            if done > options.steps:
                break
            state, value = step(state, batch)
            recent = [*recent[-49:], float(value)]
            progress.advance(task)
            if done % options.every == 0 or done == options.steps:
                training.save(out / CHECKPOINT, state)
                record = {
                    "step": done,
                    "tokens": done * options.batch * options.length,
                    "seconds": round(time.monotonic() - started, 1),
                    "processor_seconds": round(time.process_time(), 1),
                    "loss": round(float(np.mean(recent)), 4),
                    **measure(state.params),
                }
                print(json.dumps(record), file=log, flush=True)
                progress.update(task, status=f"loss {record['loss']}  {record['ranks']}  {record['overlap']}")
                if not console.is_terminal:
                    print(json.dumps(record), file=sys.stderr, flush=True)


def _endless(
    options: argparse.Namespace, draft: Draft, data: Data, weights: np.ndarray, skip: int
) -> Iterator[training.Batch]:
    """Batches of epoch after epoch, from batch `skip` on."""
    rows, kept_index = np.flatnonzero(~data.is_held_out), draft.kept_index
    number = 0
    for epoch in itertools.count():
        for index in packed(data, rows, options.batch, options.length, (options.seed, epoch)):
            if number >= skip:
                yield _batch(options, data, weights, index, kept_index, np.random.default_rng((options.seed, number)))
            number += 1


def _batch(
    options: argparse.Namespace,
    data: Data,
    weights: np.ndarray,
    index: np.ndarray,
    kept_index: np.ndarray,
    rng: np.random.Generator,
) -> training.Batch:
    """The head runs only where there is most to learn, and over only some of the kept tokens."""
    flat = index.ravel()
    weight = np.where(flat < 0, 0.0, weights[flat]).astype(np.float32)
    count = round(options.positions * len(flat))
    positions = np.lexsort((rng.random(len(flat)), -weight))[:count]
    labels = training.Labels(
        kept_index[data.token_ids[flat[positions], : options.labels_used]],
        data.log_probs[flat[positions], : options.labels_used],
    )
    weight = weight[positions]
    mass = np.exp(labels.log_probs) * weight[:, None] * (labels.token_ids >= 0)
    gain = np.bincount(np.maximum(labels.token_ids, 0).ravel(), mass.ravel(), minlength=options.kept)
    candidates, log_weights = training.candidates(gain, options.candidates, rng)
    among = training.positions_of(candidates, options.kept)
    labels = labels._replace(token_ids=np.where(labels.token_ids >= 0, among[labels.token_ids], -1))
    tokens = np.where(index < 0, 0, data.tokens[index]).astype(np.int32)
    return training.Batch(tokens, positions.astype(np.int32), labels, weight, candidates, log_weights)


def make_measure(draft: Draft, data: Data, length: int) -> Callable[[Any], dict[str, list[float]]]:
    """A function from parameters to held-out acceptance, `ranks` [4] and `overlap` [2].

    Args:
        draft: What the parameters are of.
        data: Its held-out greedy completions give the ranks, its sampled ones the overlap at temperatures 0.6 and 1.
        length: Tokens that completions are packed into; with longer ones, contexts are longer.
    """
    held_out = np.flatnonzero(data.is_held_out)
    greedy = weigh(data, data.is_held_out & (data.temperatures == 0), 0.0)
    sampled = weigh(data, data.is_held_out & (data.temperatures > 0), 0.0)
    labelled = np.isfinite(data.log_probs[:, -1])
    kept_ids = jnp.asarray(draft.kept_ids)

    @jax.jit
    def sums(params: Any, tokens: jax.Array, labels: training.Labels, greedy: jax.Array, sampled: jax.Array) -> Any:
        found = training.agreement(draft.logits(params, tokens), labels, kept_ids, 4, (0.6, 1.0))
        return (
            (found.ranks * greedy[..., None]).sum((0, 1)),
            (found.overlap * sampled[..., None]).sum((0, 1)),
            greedy.sum(),
            sampled.sum(),
        )

    def measure(params: Any) -> dict[str, Any]:
        totals = (0.0, 0.0, 0.0, 0.0)
        for index in packed(data, held_out, 8, length, 0):
            found = sums(
                params,
                np.where(index < 0, 0, data.tokens[index]).astype(np.int32),
                training.Labels(data.token_ids[index], data.log_probs[index]),
                np.where(index < 0, 0.0, greedy[index]).astype(np.float32),
                np.where(index < 0, 0.0, (sampled * labelled)[index]).astype(np.float32),
            )
            totals = jax.tree.map(lambda total, more: total + np.asarray(more, np.float64), totals, found)
        ranks, overlap, greedy_count, sampled_count = totals
        return {
            "ranks": np.round(ranks / max(greedy_count, 1.0), 4).tolist(),
            "overlap": np.round(overlap / max(sampled_count, 1.0), 4).tolist(),
        }

    return measure
