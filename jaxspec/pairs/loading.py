"""A ready pair by name, from a folder, or from two models.

`pair_file` says what a pair's folder holds, `reading` how its models are read, `ready` what a pair is.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

import jaxspec
from jaxspec.networks import Copying, Trimmed, early_exit, early_exit_params, packed, reduce_vocabulary, with_features
from jaxspec.networks.weights import distinct
from jaxspec.pairs import heads, pair_file, reading
from jaxspec.pairs.fetching import DEFAULT, Unavailable, fetch, locate
from jaxspec.pairs.heads import Head
from jaxspec.pairs.reading import Loaded
from jaxspec.pairs.ready import Pair
from jaxspec.profiles import Profile

__all__ = ["DEFAULT", "Pair", "Trimmed", "Unavailable", "early_exit", "early_exit_params", "fetch", "load", "pair"]

DRAFT_LAYERS = 6
"""Layers of the default pair's draft, its target's own first ones. Untrained, it is rarely right: plumbing only."""

PACKED_LIMIT = 4 << 30
"""Bytes of both models' parameters up to which a CPU has them in one piece of memory; they are copied there."""

PAIRS: dict[str, dict[str, Any]] = {DEFAULT: {"target": DEFAULT, "draft": {"early_exit": DRAFT_LAYERS}}}
"""The pairs that are known by name, written as in a `pair.json`."""


def load(
    name_or_folder: str | os.PathLike[str] = DEFAULT,
    *,
    dtype: Any = "float32",
    draft_layers: int | None = None,
    **options: Any,
) -> Pair:
    """A ready pair.

    Args:
        name_or_folder: A name of `PAIRS`, or a folder with `pair.json`.
        dtype: Of both models' parameters.
        draft_layers: Where given, the draft is the target's first so many layers, whatever the pair says.
        **options: Further fields of `networks.Transformer`, for both models. Without `num_features` a target with
            heads has those that they read. Without `blocks` a model has them where they pay: on a CPU, in float32, up
            to `BLOCKS_LIMIT`; its weights are then in memory twice.

    Raises:
        ValueError: Neither a name nor a pair's folder, or models or heads that don't make a pair.
        Unavailable: The target has to be fetched, and can't be.
    """
    name, folder = str(name_or_folder), Path(name_or_folder).expanduser()
    ours = shipped(name)
    if ours is not None:
        folder, entries = ours, pair_file.read(ours / pair_file.NAME)
    elif name in PAIRS:
        folder, entries = None, PAIRS[name]
    elif (folder / pair_file.NAME).is_file():
        name, entries = folder.resolve().name, pair_file.read(folder / pair_file.NAME)
    else:
        raise ValueError(
            f"{name!r} is neither the name of a pair nor a folder with {pair_file.NAME}. Names: {', '.join(PAIRS)}. "
            "For two models use pairs.pair(target, draft) (--target, --draft)."
        )
    target = reading.read(*locate(entries["target"], folder), dtype, options)
    wanted = entries["draft"] if draft_layers is None else {"early_exit": draft_layers}
    if isinstance(wanted, dict):
        draft = target.exit(wanted["early_exit"])
    else:
        draft = reading.read(*locate(wanted, folder), dtype, options, target.tokenizer)
    profiles: tuple[Profile, ...] = ()
    if folder is not None and draft_layers is None:  # what was measured is of the pair's own draft
        profiles = tuple(Profile.load(folder / file) for file in entries.get("profiles", ()))
    description = entries.get("description", "") if draft_layers is None else ""
    read = _pair(name, target, draft, profiles, description)
    if folder is None or draft_layers is not None:
        return _packed(read)
    read = _with_heads(read, [heads.load(folder / place) for place in entries.get("hrad", ())], options)
    draft, params = read.draft, read.params["draft"]
    if "kept_ids" in entries:
        draft, params = reduce_vocabulary(draft, params, reading.kept_ids(folder / entries["kept_ids"]))
    if "copying" in entries:
        draft = Copying(draft, tuple(entries["copying"]))
    return _packed(dataclasses.replace(read, draft=draft, params={**read.params, "draft": params}))


def pair(
    target: str | os.PathLike[str], draft: str | os.PathLike[str], *, dtype: Any = "float32", **options: Any
) -> Pair:
    """A pair of two models with the same vocabulary; their embeddings may be padded to different sizes.

    Args:
        target: A folder, a `.gguf` file, a hub id or a name of `fetching.SOURCES`.
        draft: The same.
        dtype: Of both models' parameters.
        **options: Further fields of `networks.Transformer`, for both models; without `blocks` as in `load`.

    Raises:
        ValueError: A model can't be read, or the vocabularies differ.
        Unavailable: A named model has to be fetched, and can't be.
    """
    first, second = (reading.read(*locate(str(one)), dtype, options) for one in (target, draft))
    return _packed(_pair(f"{target} + {draft}", first, second))


def _pair(name: str, target: Loaded, draft: Loaded, profiles: tuple[Profile, ...] = (), description: str = "") -> Pair:
    """The pair, checked and trimmed to the vocabulary that both have."""
    vocab = reading.common_vocab(target, draft)
    size = max(vocab.values()) + 1
    return Pair(
        name=name,
        target=reading.trimmed("target", target, size),
        draft=reading.trimmed("draft", draft, size),
        params={"target": target.params, "draft": draft.params},
        tokenizer=target.tokenizer,
        profiles=profiles,
        stop_ids=tuple(token for token in target.stop_ids if 0 <= token < size),
        sources={"target": target.source, "draft": draft.source},
        description=description or f"target: {target.source}; draft: {draft.source}",
    )


def _with_heads(read: Pair, found: Sequence[Head], options: Mapping[str, Any]) -> Pair:
    """The pair with its heads, and a target that gives what they read.

    Raises:
        ValueError: Heads of different networks, or of another target.
    """
    if not found:
        return read
    network = found[0].network
    if any(head.network != network for head in found):
        raise ValueError(f"The heads of {read.name} differ in more than their weights: one pair has one network.")
    target = read.target if "num_features" in options else with_features(read.target, network.num_features)
    width = read.params["target"]["embed_tokens"]["weight"].shape[1]
    if width != network.width:
        raise ValueError(f"The heads of {read.name} are for a target of width {network.width}; this one has {width}.")
    return dataclasses.replace(read, target=target, heads=tuple(found), params={**read.params, "hrad": found[0].params})


def _packed(read: Pair) -> Pair:
    """The pair with its models' parameters in one piece of memory, where that pays."""
    both = {name: read.params[name] for name in ("target", "draft")}
    size = sum(array.nbytes for array in distinct(both))
    if jax.default_backend() != "cpu" or size > PACKED_LIMIT:
        return read
    return dataclasses.replace(read, params={**read.params, **packed(both)})


def shipped(name: str) -> Path | None:
    """The folder of a trained pair that comes with jaxspec, in an installed package or in a checkout."""
    package = Path(jaxspec.__file__).parent
    folders = [place / "models" / name for place in (package, package.parent)]
    return next((folder for folder in folders if name in PAIRS and (folder / pair_file.NAME).is_file()), None)
