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
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from fit_copying import followers
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from jaxspec import decode, networks, training
from jaxspec.networks import Transformer, TransformerConfig

console = Console(stderr=True)

CHECKPOINT = "checkpoint.safetensors"
KEPT_IDS = "kept_ids.npy"


class Data(NamedTuple):
    """Sequences with the target's labels on them.

    Attributes:
        tokens: `[total]` int32, one sequence after another.
        offsets: `[n + 1]`, where each begins.
        prompt_lengths: `[n]` tokens.
        temperatures: `[n]`, 0 for greedy completions.
        token_ids: `[total, k]`, as in `training.Labels`.
        log_probs: `[total, k]`.
        is_held_out: `[n]` bool, by prompt.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    prompt_lengths: np.ndarray
    temperatures: np.ndarray
    token_ids: np.ndarray
    log_probs: np.ndarray
    is_held_out: np.ndarray


# ---------------------------------------------------------------------------------------------------------- generate


def generate(options: argparse.Namespace) -> None:
    """New completions of the prompts of a completions file, by the target itself."""
    model, params = networks.load(options.target)
    data = np.load(options.data)
    prompts = [
        data["tokens"][a : a + n].tolist() for a, n in zip(data["offsets"], data["prompt_lengths"], strict=False)
    ]
    rng = np.random.default_rng(options.seed)
    chosen = rng.permutation(len(prompts))[: options.rows]
    chosen = chosen[np.argsort([len(prompts[index]) for index in chosen], kind="stable")]
    sampling = decode.Sampling(temperature=options.temperature)
    sequences: list[np.ndarray] = []
    with _progress() as progress:
        task = progress.add_task("generate", total=len(chosen), status="")
        for start in range(0, len(chosen), options.batch):
            batch = [prompts[index] for index in chosen[start : start + options.batch]]
            batch += batch[-1:] * (options.batch - len(batch))  # one compiled program for the last batch too
            made = decode.generate(
                decode.autoregressive(model),
                {"target": params},
                batch,
                key=jax.random.fold_in(jax.random.key(options.seed), start),
                max_new_tokens=options.max_new_tokens,
                sampling=sampling,
                stop_ids=options.stop_ids,
                logprobs=False,
            )
            for row in range(min(options.batch, len(chosen) - start)):
                new = np.asarray(made.tokens[row][: int(made.lengths[row])])
                sequences.append(np.concatenate([batch[row], new]).astype(np.int32))
            progress.advance(task, min(options.batch, len(chosen) - start))
            _write_completions(options, sequences, [len(prompts[index]) for index in chosen])


def _write_completions(options: argparse.Namespace, sequences: list[np.ndarray], prompt_lengths: list[int]) -> None:
    np.savez(
        options.out,
        tokens=np.concatenate(sequences),
        offsets=np.cumsum([0, *map(len, sequences)]),
        prompt_lengths=np.array(prompt_lengths[: len(sequences)], np.int32),
        temperatures=np.full(len(sequences), options.temperature, np.float32),
    )


# ------------------------------------------------------------------------------------------------------------- label


def label(options: argparse.Namespace) -> None:
    """Stores the target's most probable tokens after every token of the data. Goes on where it was stopped."""
    data = np.load(options.data)
    tokens, offsets = data["tokens"], data["offsets"]
    lengths = np.diff(offsets)
    model, params = networks.load(options.target, columns=False)
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    shape = (len(tokens), options.count)
    token_ids = _open(folder / "token_ids.npy", shape, np.int32, 0)
    log_probs = _open(folder / "log_probs.npy", shape, np.float16, np.nan)
    run = jax.jit(lambda params, batch: training.label(training.forward(model, params, batch).logits, options.count))
    buckets = -(-lengths // 64) * 64
    batches = []
    for bucket in np.unique(buckets):
        rows = np.flatnonzero(buckets == bucket)
        size = max(1, options.batch_tokens // bucket)
        batches += [(bucket, size, rows[start : start + size]) for start in range(0, len(rows), size)]
    # In random order, so that what a stopped run leaves is a fair sample.
    batches = [batches[index] for index in np.random.default_rng(0).permutation(len(batches))]
    with _progress() as progress:
        task = progress.add_task("label", total=len(tokens), status="")
        for bucket, size, rows in batches:
            if np.isnan(log_probs[offsets[rows], 0]).any():
                batch = np.zeros((size, bucket), np.int32)
                for index, row in enumerate(rows):
                    batch[index, : lengths[row]] = tokens[offsets[row] : offsets[row + 1]]
                found = jax.tree.map(np.asarray, run(params, batch))
                for index, row in enumerate(rows):
                    part = slice(offsets[row], offsets[row + 1])
                    token_ids[part] = found.token_ids[index, : lengths[row]]
                    log_probs[part] = found.log_probs[index, : lengths[row]]
            progress.advance(task, int(lengths[rows].sum()))
    token_ids.flush()
    log_probs.flush()


def _open(file: Path, shape: tuple[int, ...], dtype: type, fill: float) -> np.memmap:
    """A file of an array on disk, made where it does not exist."""
    if file.exists():
        return np.lib.format.open_memmap(file, "r+")
    array = np.lib.format.open_memmap(file, "w+", dtype, shape)
    array[:] = fill
    return array


def read_data(files: list[str], labels: list[str], held_out: float) -> Data:
    """All sequences of several files.

    A position without labels gets the next token of its completion as its only one.

    Args:
        files: Completions files.
        labels: Folders of labels, one a file, in order.
        held_out: Share of the prompts that are kept from training. A prompt falls on the same side in every file.
    """
    parts = []
    for file, folder in zip(files, labels, strict=True):
        data = np.load(file)
        tokens, offsets, prompts = data["tokens"], data["offsets"], data["prompt_lengths"]
        token_ids = np.load(Path(folder) / "token_ids.npy")
        log_probs = np.load(Path(folder) / "log_probs.npy").astype(np.float32)
        lacks = ~np.isfinite(log_probs[:, 0])
        if lacks.any():
            console.print(f"{file}: {lacks.mean():.1%} of the positions have no labels; their next tokens serve.")
            inside = np.arange(len(tokens)) - np.repeat(offsets[:-1], np.diff(offsets))
            has_next = np.append(inside[1:] > 0, False) & (inside + 1 >= np.repeat(prompts, np.diff(offsets)))
            token_ids[lacks] = 0
            token_ids[lacks, 0] = np.append(tokens[1:], 0)[lacks]
            log_probs[lacks] = -np.inf
            log_probs[lacks & has_next, 0] = 0.0
        crcs = [zlib.crc32(tokens[a : a + n].tobytes()) for a, n in zip(offsets, prompts, strict=False)]
        is_held_out = np.array(crcs) % 10000 < held_out * 10000
        parts.append(Data(tokens, offsets, prompts, data["temperatures"], token_ids, log_probs, is_held_out))
    shifts = np.cumsum([0, *(len(part.tokens) for part in parts)])
    shifted = [part.offsets[:-1] + shift for part, shift in zip(parts, shifts, strict=False)]
    joined = Data(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    return joined._replace(offsets=np.concatenate([*shifted, shifts[-1:]]))


def packed(data: Data, rows: np.ndarray, size: int, length: int, seed: int | tuple[int, ...]) -> Iterator[np.ndarray]:
    """Index `[size, length]` into the data's positions of each batch, every sequence once; -1 is padding.

    Args:
        data: The sequences.
        rows: Numbers of those to use.
        size: Rows of a batch.
        length: Tokens of a row.
        seed: Of the order.
    """
    packs = training.pack(np.diff(data.offsets)[rows], length, seed)
    for start in range(0, len(packs), size):
        index = np.full((size, length), -1)
        for place, pack in enumerate(packs[start : start + size]):
            flat = np.concatenate([np.arange(data.offsets[rows[n]], data.offsets[rows[n] + 1]) for n in pack])[:length]
            index[place, : len(flat)] = flat
        yield index


# ------------------------------------------------------------------------------------------------------------- train


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
    """Writes where a run begins: a draft whose embedding holds the target's principal components, and the kept ids."""
    target, target_params = networks.load(options.target)
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
    emitted = weigh(data, ~data.is_held_out, 0.0)[:-1] > 0
    counts = np.bincount(data.tokens[1:][emitted], minlength=target.vocab_size)
    kept_ids = training.kept_tokens(counts, options.kept, options.stop_ids)
    embedding = np.asarray(target_params["embed_tokens"]["weight"], np.float64)
    _, directions = np.linalg.eigh(embedding.T @ (embedding * np.sqrt(counts + 1.0)[:, None]))
    principal = embedding @ directions[:, ::-1][:, : options.width]
    principal /= np.linalg.norm(principal[kept_ids], axis=1).mean()  # logits of about unit deviation to begin with
    params = model.init(jax.random.key(options.seed))
    params = {**params, "embed_tokens": {"weight": jnp.asarray(principal, jnp.float32)}}
    networks.save(Path(options.out) / "start", model, params)
    np.save(Path(options.out) / KEPT_IDS, kept_ids)


def open_run(folder: Path) -> tuple[Draft, Any]:
    """A run's draft, and the parameters that it began with."""
    model, params = networks.load(folder / "start", num_features=1, columns=False)
    draft = Draft(model, params["embed_tokens"]["weight"], np.load(folder / KEPT_IDS))
    kept = params["embed_tokens"]["weight"][draft.kept_ids]
    return draft, {"kept": kept, "layers": params["layers"], "norm": params["norm"]}


def weigh(data: Data, rows: np.ndarray, prompt_weight: float) -> np.ndarray:
    """`[total]` float32: 1 where a completion's tokens are predicted, `prompt_weight` inside prompts, 0 elsewhere.

    Args:
        data: The sequences.
        rows: `[n]` bool, those that count.
        prompt_weight: Of positions in prompts.
    """
    lengths = np.diff(data.offsets)
    inside = np.arange(len(data.tokens)) - np.repeat(data.offsets[:-1], lengths)
    is_completion = inside + 1 >= np.repeat(data.prompt_lengths, lengths)
    return np.where(is_completion, 1.0, prompt_weight).astype(np.float32) * np.repeat(rows, lengths)


def uncopied(data: Data, shares: list[float]) -> np.ndarray:
    """`[total]` float32 probability that the next token was drafted rather than copied; 1 where there are no shares.

    A draft that is wrapped in `networks.Copying` need not learn what that finds. Half of the draft's own probability is
    taken to be on the token, as is about right once it is trained.

    Args:
        data: The sequences.
        shares: Those of `Copying`, from fit_copying.py.
    """
    weights = np.ones(len(data.tokens), np.float32)
    odds = np.array([0.0, *shares]) / (1.0 - np.array([0.0, *shares]))
    for start, stop in itertools.pairwise(data.offsets if shares else []):
        agreement, follower = followers(data.tokens[start:stop], len(shares))
        is_copied = follower[:-1] == data.tokens[start + 1 : stop]
        weights[start : stop - 1] = 0.5 / (0.5 + odds[agreement[:-1]] * is_copied)
    return weights


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
    with _progress() as progress, (out / "log.jsonl").open("a") as log:
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


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[status]}", markup=False),
        console=console,
    )


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
