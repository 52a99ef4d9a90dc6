"""Distils a small draft from a target: its own completions, its distributions on them, training, evaluation, export.

Each command writes files that the next one reads:

    generate   completions by the target, an .npz
    label      the target's most probable tokens after each token of completions, a folder
    train      a run: a folder with a checkpoint, that goes on where it was stopped
    evaluate   a run's acceptance by child rank, and at temperatures, on held-out prompts
    export     a run as a Hugging Face folder, with the ids that a trimmed vocabulary keeps

A completions file holds `tokens` [total], `offsets` [n + 1], `prompt_lengths` [n] and `temperatures` [n].
"""

import argparse
import dataclasses
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
from distil_data import Data, console, generate, label, packed, progress_bar, read_data, uncopied, weigh
from rich.table import Table

from jaxspec import networks, training
from jaxspec.networks import Transformer, TransformerConfig

CHECKPOINT = "checkpoint.safetensors"
KEPT_IDS = "kept_ids.npy"


@dataclasses.dataclass(frozen=True)
class Draft:
    """What is trained: the layers, the last norm, and the embeddings of the kept tokens. The others stay.

    Attributes:
        model: The whole draft.
        frozen: `[V, D]` embeddings as they began.
        kept_ids: `[C]`.
    """

    model: Transformer
    frozen: jax.Array
    kept_ids: np.ndarray

    @property
    def kept_index(self) -> np.ndarray:
        return training.positions_of(self.kept_ids, self.model.vocab_size)

    def whole(self, params: Any) -> Any:
        """Parameters of the model."""
        embedding = self.frozen.at[self.kept_ids].set(params["kept"], unique_indices=True, indices_are_sorted=True)
        return {"embed_tokens": {"weight": embedding}, "layers": params["layers"], "norm": params["norm"]}

    def hidden(self, params: Any, tokens: jax.Array) -> jax.Array:
        """`[B, T, D]` in front of the head."""
        found = training.forward(self.model, self.whole(params), tokens).hidden
        assert found is not None
        return found[:, :, -1]

    def logits(self, params: Any, tokens: jax.Array) -> jax.Array:
        """`[B, T, C]` over the kept tokens."""
        return self.hidden(params, tokens) @ params["kept"].T


def begin(options: argparse.Namespace, data: Data) -> None:
    """Writes where a run begins, and the kept ids."""
    target, target_params = networks.load(options.target)
    emitted = weigh(data, ~data.is_held_out, 0.0)[:-1] > 0
    counts = np.bincount(data.tokens[1:][emitted], minlength=target.vocab_size)
    kept_ids = training.kept_tokens(counts, options.kept, options.stop_ids)
    if options.prune:
        model, params = pruned(target, target_params, options.prune)
    else:
        model, params = fresh(options, target, target_params, counts, kept_ids)
    networks.save(Path(options.out) / "start", model, params)
    np.save(Path(options.out) / KEPT_IDS, kept_ids)


def fresh(
    options: argparse.Namespace, target: Transformer, target_params: Any, counts: np.ndarray, kept_ids: np.ndarray
) -> tuple[Transformer, Any]:
    """A new draft whose embedding holds the principal components of the target's, by how often each token is met."""
    config = TransformerConfig(
        vocab_size=target.vocab_size,
        hidden_size=options.width,
        intermediate_size=options.intermediate,
        num_layers=options.layers,
        num_heads=options.heads,
        num_kv_heads=options.kv_heads,
        head_dim=options.head_dim,
        rms_norm_eps=1e-5,
        rope_theta=options.rope_theta,
        tie_word_embeddings=True,
        max_length=target.max_length,
    )
    model = Transformer(config)
    embedding = np.asarray(target_params["embed_tokens"]["weight"], np.float64)
    _, directions = np.linalg.eigh(embedding.T @ (embedding * np.sqrt(counts + 1.0)[:, None]))
    principal = embedding @ directions[:, ::-1][:, : options.width]
    principal /= np.linalg.norm(principal[kept_ids], axis=1).mean()  # logits of about unit deviation to begin with
    params = model.init(jax.random.key(options.seed))
    return model, {**params, "embed_tokens": {"weight": jnp.asarray(principal, jnp.float32)}}


def pruned(target: Transformer, target_params: Any, layers: list[int]) -> tuple[Transformer, Any]:
    """A draft of some of the target's own layers between its embedding and its norm.

    Raises:
        ValueError: A layer that the target lacks, or a target with a head of its own.
    """
    if not all(0 <= layer < target.config.num_layers for layer in layers):
        raise ValueError(f"--prune {layers}: the target has the layers 0 to {target.config.num_layers - 1}.")
    if not target.config.tie_word_embeddings:
        raise ValueError("--prune needs a target whose head is its embedding, and this one has a head of its own.")
    model = Transformer(dataclasses.replace(target.config, num_layers=len(layers)))
    kept = {str(place): target_params["layers"][str(layer)] for place, layer in enumerate(layers)}
    return model, {**target_params, "layers": kept}


def open_run(folder: Path) -> tuple[Draft, Any]:
    """A run's draft, and the parameters that it began with."""
    model, params = networks.load(folder / "start", num_features=1, columns=False)
    draft = Draft(model, params["embed_tokens"]["weight"], np.load(folder / KEPT_IDS))
    kept = params["embed_tokens"]["weight"][draft.kept_ids]
    return draft, {"kept": kept, "layers": params["layers"], "norm": params["norm"]}


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
        hidden = draft.hidden(params, batch.tokens).reshape(-1, draft.model.config.hidden_size)[batch.positions]
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


# ------------------------------------------------------------------------------------------------ evaluate and export


def evaluate(options: argparse.Namespace) -> None:
    """Prints a run's held-out acceptance: a table, and JSON on stdout."""
    data = read_data(options.data, options.labels, options.held_out)
    draft, params = trained(Path(options.run_folder))
    found = {length: make_measure(draft, data, length)(params) for length in options.lengths}
    table = Table("context", "rank 1", "2", "3", "4", "overlap T=0.6", "T=1")
    for length, measured in found.items():
        table.add_row(str(length), *(f"{value:.3f}" for value in (*measured["ranks"], *measured["overlap"])))
    console.print(table)
    print(json.dumps(found))


def export(options: argparse.Namespace) -> None:
    """Writes a run as a Hugging Face folder, and beside it the ids that a trimmed vocabulary keeps."""
    draft, params = trained(Path(options.run_folder))
    out = Path(options.out)
    networks.save(out, dataclasses.replace(draft.model, num_features=0), draft.whole(params), options.dtype)
    np.save(out / KEPT_IDS, draft.kept_ids)
    special = {"bos_token_id": options.bos_id, "eos_token_id": options.stop_ids, "pad_token_id": options.pad_id}
    for file, config in (
        ("config.json", json.loads((out / "config.json").read_text())),
        ("generation_config.json", {}),
    ):
        (out / file).write_text(json.dumps({**config, **special}, indent=2) + "\n")
    size = sum(file.stat().st_size for file in out.iterdir())
    console.print(f"{out}: {size / 1e6:.1f} MB")


def trained(folder: Path) -> tuple[Draft, Any]:
    """A run's draft and the parameters of its last checkpoint."""
    draft, params = open_run(folder)
    return draft, training.restore(folder / CHECKPOINT, training.TrainState(params, None, None)).params


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(run: Callable[[argparse.Namespace], None], *groups: str) -> Callable[..., None]:
        doc = run.__doc__ or ""
        sub = commands.add_parser(run.__name__, help=doc.split(". ")[0].rstrip("."), description=doc)
        sub.set_defaults(run=run)

        def add(name: str, default: Any, text: str, **more: Any) -> None:
            kind = type(default[0] if default else 0.0) if isinstance(default, list) else type(default)
            kind = more.pop("type", kind)
            if default is None:
                sub.add_argument(name, required=True, help=text, **more)
            else:
                sub.add_argument(name, type=kind, default=default, help=f"{text} (default: %(default)s)", **more)

        if "target" in groups:
            add("--target", None, "the target: a Hugging Face folder, hub id or GGUF file")
        if "data" in groups:
            add("--data", None, "completions files", nargs="+")
            add("--labels", None, "folders of labels, one a file, in order", nargs="+")
            add("--held-out", 0.03, "share of the prompts that is kept from training")
        if "run" in groups:
            add("--run", None, "the run's folder", dest="run_folder")
        if "stops" in groups:
            add("--stop-ids", [2], "tokens that end a text", nargs="+")
        return add

    add = command(generate, "target", "stops")
    add("--data", None, "completions file whose prompts are used")
    add("--out", None, "completions file to write")
    add("--rows", 1000, "prompts to complete, drawn without replacement")
    add("--temperature", 0.0, "0 is greedy")
    add("--max-new-tokens", 192, "longest completion")
    add("--batch", 16, "prompts decoded together")
    add("--seed", 0, "of prompts and tokens")
    add = command(label, "target")
    add("--data", None, "completions file")
    add("--out", None, "folder of labels to write")
    add("--count", 32, "tokens stored at each position")
    add("--batch-tokens", 1024, "tokens of one forward")
    add = command(train, "target", "data", "stops")
    add("--out", None, "the run's folder")
    about = "numbers of the target's layers that the draft begins with, in place of a new network"
    add("--prune", [], about, nargs="*", type=int)
    add("--width", 256, "D")
    add("--layers", 2, "L")
    add("--heads", 4, "query heads")
    add("--kv-heads", 2, "key and value heads")
    add("--head-dim", 64, "features of a head")
    add("--intermediate", 768, "width inside a feed-forward layer")
    add("--rope-theta", 10000.0, "base of the rotary frequencies")
    add("--kept", 8192, "tokens of the trimmed vocabulary")
    add("--steps", 2000, "in all; may be changed on resuming, before the descent of the learning rate")
    add("--batch", 8, "rows of a step")
    add("--length", 512, "tokens of a row, which whole sequences are packed into")
    add("--positions", 0.7, "share of the positions that is trained on, those of most weight first")
    add("--candidates", 2560, "kept tokens that a step's softmax runs over; see training.candidates")
    add("--labels-used", 16, "of those stored at each position")
    add("--hard", 0.3, "share of the loss that looks at the target's most probable token alone")
    add("--prompt-weight", 0.3, "of positions inside prompts, where completions have 1")
    add("--copying", [], "shares of the copying draft that this will be (fit_copying.py)", nargs="*")
    add("--optimiser", "adamw", "for the layers' matrices", choices=["adamw", "muon"])
    add("--learning-rate", 2e-3, "peak of AdamW's")
    add("--muon-rate", 0.02, "peak of Muon's")
    add("--weight-decay", 0.05, "AdamW's, on the layers' matrices")
    add("--warm-up", 50, "steps")
    add("--decay", 0.4, "share of the steps in which the learning rate falls to 0")
    add("--every", 100, "steps from checkpoint to checkpoint")
    add("--evaluation-length", 512, "tokens that held-out completions are packed into")
    add("--seed", 0, "of weights and order")
    add = command(evaluate, "run", "data")
    add("--lengths", [512, 1024], "tokens that held-out completions are packed into", nargs="+")
    add = command(export, "run", "stops")
    add("--out", None, "the Hugging Face folder")
    add("--dtype", "bfloat16", "of the weights", choices=["bfloat16", "float16", "float32"])
    add("--bos-id", 1, "token that begins a text")
    add("--pad-id", 2, "token that pads")
    return parser.parse_args()


if __name__ == "__main__":
    options = parse()
    options.run(options)
