"""A pair in a folder, small enough to decode within a test: its draft is its target with a little noise."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
from commands import byte_tokenizer

from jaxspec import networks
from jaxspec.networks import Transformer, TransformerConfig


def save(folder: Path, files: Mapping[str, Sequence[str]], num_layers: int) -> Path:
    """Writes the pair and, by name, files of prompts; returns the folder."""
    model = Transformer(TransformerConfig(257, 16, 32, num_layers, 2, 1, 8, max_length=256, initializer_range=0.5))
    params = model.init(jax.random.key(0))
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noisy = [leaf + 0.02 * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    networks.save(folder / "target", model, params)
    networks.save(folder / "draft", model, jax.tree.unflatten(structure, noisy))
    byte_tokenizer().save_pretrained(folder / "target")
    (folder / "pair.json").write_text(json.dumps({"target": "target", "draft": "draft"}))
    for name, chosen in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"prompt": one}) + "\n" for one in chosen))
    return folder
