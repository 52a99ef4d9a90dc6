"""A strongly aligned pair, to try overlap on: the draft is the target itself with noise in its weights.

    python scripts/noisy_pair.py --noise 0.03 --out aligned
    jaxspec train-hrad --pair aligned --prompts humaneval.jsonl --out aligned/hrad-t0
    python scripts/ablation.py --pair aligned --heads aligned/hrad-t0 --prompts humaneval.jsonl --out ablation.json

Such a draft costs as much as its target, so that its speed is only ever simulated, with a chosen c.
"""

import argparse
from pathlib import Path

import jax

from jaxspec import networks, records
from jaxspec.base import Params
from jaxspec.pairs import fetching, pair_file


def noisy(params: Params, scale: float, seed: int) -> Params:
    """Parameters, each weight times 1 + `scale` times normal noise."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    changed = [leaf * (1 + scale * jax.random.normal(key, leaf.shape)) for leaf, key in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(tree, changed)


def main() -> None:
    """Writes the pair's folder."""
    options = parse()
    folder = Path(options.out)
    if folder.exists():
        raise SystemExit(f"--out {folder} exists: name a new folder.")
    place, source = fetching.locate(options.target)
    model, params = networks.load(place)
    networks.save(folder / "draft", model, noisy(params, options.noise, options.seed), "float32")
    is_file = Path(options.target).expanduser().exists()
    entries = {
        "target": str(Path(options.target).expanduser().resolve()) if is_file else options.target,
        "draft": "draft",
        "description": f"{source}, and itself with noise of {options.noise:g} in its weights as draft",
    }
    records.write(folder / pair_file.NAME, entries, indent=2)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default=fetching.DEFAULT, help="name, folder or .gguf file (default %(default)s)")
    parser.add_argument("--noise", type=float, default=0.03, help="share of each weight (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", required=True, help="folder to write; weights of the target's size")
    return parser.parse_args()


if __name__ == "__main__":
    main()
