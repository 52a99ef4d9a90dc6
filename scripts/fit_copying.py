"""Fits the shares of a copying draft (`jaxspec.networks.Copying`) to completions, by expectation maximisation.

    python scripts/fit_copying.py --draft FOLDER --data completions.npz

For each length of agreement the share is the mean probability, under the mixture, that a token was copied rather than
drafted. Completions are what `distil_draft.py generate` writes; those of the held-out prompts are used.
"""

import argparse
import json
import zlib

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import track

from jaxspec import networks, training

console = Console(stderr=True)


def followers(tokens: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """`[T]` agreement and `[T]` token that followed the latest longest earlier agreement, after each token.

    Args:
        tokens: `[T]`.
        longest: The most tokens that are compared.
    """
    agreement, follower = np.zeros(len(tokens), int), np.zeros(len(tokens), int)
    latest: list[dict[tuple[int, ...], int]] = [{} for _ in range(longest)]
    for place in range(len(tokens)):
        for length in range(min(longest, place + 1), 0, -1):
            key = tuple(tokens[place - length + 1 : place + 1])
            earlier = latest[length - 1].get(key)
            if earlier is not None and agreement[place] == 0:
                agreement[place], follower[place] = length, tokens[earlier + 1]
            latest[length - 1][key] = place
    return agreement, follower


def fit(agreement: np.ndarray, drafted: np.ndarray, is_copied: np.ndarray, longest: int) -> list[float]:
    """The shares, by length.

    Args:
        agreement: `[n]` of each position.
        drafted: `[n]` probability that the draft gives the token that came.
        is_copied: `[n]` bool, whether the token that came is the follower.
        longest: How many shares.
    """
    shares = []
    for length in range(1, longest + 1):
        own, copied = drafted[agreement == length], is_copied[agreement == length]
        share = 0.5
        for _ in range(200):
            mixed = share * copied + (1.0 - share) * own
            share = float(np.mean(share * copied / np.maximum(mixed, 1e-9))) if len(own) else 0.0
        shares.append(round(min(share, 0.99), 3))
    return shares


def main() -> None:
    """Prints the shares as JSON."""
    options = parse()
    model, params = networks.load(options.draft, columns=False)
    if options.kept_ids:
        model, params = networks.reduce_vocabulary(model, params, np.load(options.kept_ids).tolist())
    kept = np.arange(model.vocab_size) if model.kept_ids is None else np.asarray(model.kept_ids)
    index = training.positions_of(kept, model.vocab_size)
    probs = jax.jit(lambda params, tokens: jax.nn.softmax(training.forward(model, params, tokens[None]).logits[0]))
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for file in options.data:
        data = np.load(file)
        rows = [
            (data["tokens"][start:stop], int(prompt))
            for start, stop, prompt in zip(data["offsets"], data["offsets"][1:], data["prompt_lengths"], strict=False)
        ]
        held_out = [row for row in rows if zlib.crc32(row[0][: row[1]].tobytes()) % 10000 < options.held_out * 10000]
        for tokens, prompt in track(held_out, file, console=console):
            size = -(-len(tokens) // 256) * 256
            drafted = np.asarray(probs(params, jnp.asarray(np.pad(tokens, (0, size - len(tokens))), jnp.int32)))
            agreement, follower = followers(tokens, options.longest)
            places = np.arange(prompt - 1, len(tokens) - 1)
            came = tokens[places + 1]
            own = np.where(index[came] >= 0, drafted[places, np.maximum(index[came], 0)], 0.0)
            found.append((agreement[places], own, follower[places] == came))
    agreement, own, copied = (np.concatenate(parts) for parts in zip(*found, strict=True))
    counts = [int((agreement == length).sum()) for length in range(options.longest + 1)]
    console.print(f"positions by agreement: {counts}")
    print(json.dumps(fit(agreement, own, copied, options.longest)))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", required=True, help="the draft: a Hugging Face folder")
    parser.add_argument("--kept-ids", help="a .npy file: the tokens of the draft's reduced vocabulary")
    parser.add_argument("--data", nargs="+", required=True, help="completions files")
    parser.add_argument("--held-out", type=float, default=0.1, help="share of the prompts that is used")
    parser.add_argument("--longest", type=int, default=4, help="the longest agreement")
    return parser.parse_args()


if __name__ == "__main__":
    main()
