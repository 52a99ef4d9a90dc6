"""What a draft is distilled from: completions, the target's labels on them, and how much each position counts.

`scripts/distil_draft.py` has the commands; a completions file is described there.
"""

import argparse
import itertools
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from fit_copying import followers
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from jaxspec import decode, networks, training

console = Console(stderr=True)


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
    with progress_bar() as progress:
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
    with progress_bar() as progress:
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
    begins, ends = data.offsets[rows].tolist(), data.offsets[rows + 1].tolist()
    packs = training.pack(np.diff(data.offsets)[rows], length, seed)
    for start in range(0, len(packs), size):
        index = np.full((size, length), -1)
        for place, pack in enumerate(packs[start : start + size]):
            flat = np.concatenate([np.arange(begins[n], ends[n]) for n in pack])[:length]
            index[place, : len(flat)] = flat
        yield index


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


def progress_bar() -> Progress:
    """A bar with its times and a status."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[status]}", markup=False),
        console=console,
    )
