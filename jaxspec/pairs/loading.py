"""A ready pair: target, draft, tokenizer and profile, by name, from a folder, or from two models.

`pair_file` says what a pair's folder holds.
"""

import dataclasses
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec import networks
from jaxspec.base import Model, Params
from jaxspec.networks import (
    MLP,
    Copying,
    Transformer,
    Trimmed,
    early_exit,
    early_exit_params,
    packed,
    reduce_vocabulary,
    with_blocks,
    with_features,
)
from jaxspec.networks.weights.memory import distinct
from jaxspec.pairs import heads, pair_file
from jaxspec.pairs.fetching import DEFAULT, Unavailable, fetch, locate
from jaxspec.pairs.heads import Head
from jaxspec.profiles import Profile

__all__ = ["DEFAULT", "Pair", "Trimmed", "Unavailable", "early_exit", "early_exit_params", "fetch", "load", "pair"]

DRAFT_LAYERS = 6
"""Layers of the default pair's draft, its target's own first ones. Untrained, it is rarely right: plumbing only."""

BLOCKS_LIMIT = 2 << 30
"""Bytes of a model's weights up to which it gets blocks by itself."""

PACKED_LIMIT = 4 << 30
"""Bytes of both models' parameters up to which a CPU has them in one piece of memory; they are copied there."""

PAIRS: dict[str, dict[str, Any]] = {DEFAULT: {"target": DEFAULT, "draft": {"early_exit": DRAFT_LAYERS}}}
"""The pairs that are known by name, written as in a `pair.json`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """A target with its draft, and what turns text into their tokens and back.

    Attributes:
        name: The built-in name, the folder's, or both models'.
        target: The model whose law every method keeps. With heads it gives the features that they read.
        draft: The model that proposes. Both have the tokenizer's vocabulary: rows that pad an embedding are cut off.
        params: Parameters by model name, `{"target": …, "draft": …}`; with heads `"hrad"` too, those of the first.
        tokenizer: A transformers tokenizer.
        profiles: What was measured of the pair, at different temperatures; empty where nothing was.
        heads: H-RAD's trained heads for different temperatures, all of one network; empty where there are none.
        stop_ids: Token ids that end a text.
        sources: Where target and draft came from.
        description: One line on the pair.
    """

    name: str
    target: Model
    draft: Model
    params: dict[str, Params] = dataclasses.field(repr=False)
    tokenizer: Any = dataclasses.field(repr=False)
    profiles: tuple[Profile, ...] = dataclasses.field(default=(), repr=False)
    heads: tuple[Head, ...] = dataclasses.field(default=(), repr=False)
    stop_ids: tuple[int, ...] = ()
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    description: str = ""

    @property
    def profile(self) -> Profile | None:
        """The first of the profiles; None where nothing was measured."""
        return self.profiles[0] if self.profiles else None

    def profile_at(self, temperature: float) -> Profile | None:
        """The profile whose temperature is nearest; None where nothing was measured."""
        return min(self.profiles, key=lambda profile: abs(profile.temperature - temperature), default=None)

    @property
    def hrad(self) -> MLP | None:
        """H-RAD's network, as `decode.specbranch` takes it; None where there is no head."""
        return self.heads[0].network if self.heads else None

    def hrad_at(self, temperature: float) -> Head | None:
        """The head whose temperature is nearest, with network and parameters; None where there is none."""
        return min(self.heads, key=lambda head: abs(head.temperature - temperature), default=None)

    def params_at(self, temperature: float) -> dict[str, Params]:
        """`params`, with the head whose temperature is nearest."""
        head = self.hrad_at(temperature)
        return self.params if head is None else {**self.params, "hrad": head.params}

    def encode(self, prompt: str | Sequence[Mapping[str, str]], *, raw: bool = False) -> list[int]:
        """Token ids of a prompt.

        Args:
            prompt: A text, or messages `{"role": …, "content": …}`.
            raw: Whether a text is taken as it is, instead of as a user's message in the chat template with the
                assistant's turn opened behind it. It begins with BOS where the tokenizer puts it by itself.

        Raises:
            ValueError: Messages with `raw`, or a tokenizer without a chat template without it.
        """
        if raw:
            if not isinstance(prompt, str):
                raise ValueError("raw=True takes a text: messages need the chat template.")
            return list(self.tokenizer(prompt)["input_ids"])
        if not self.tokenizer.chat_template:
            raise ValueError(f"The tokenizer of {self.name} has no chat template: give a text and raw=True (--raw).")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(one) for one in prompt]
        return list(self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of token ids, without special tokens; negative ids (padding of a `Generation`) are left out."""
        kept = [token for token in map(int, token_ids) if token >= 0]
        return self.tokenizer.decode(kept, skip_special_tokens=True, clean_up_tokenization_spaces=False)


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
    shipped = _shipped(name)
    if shipped is not None:
        folder, entries = shipped, pair_file.read(shipped / pair_file.NAME)
    elif name in PAIRS:
        folder, entries = None, PAIRS[name]
    elif (folder / pair_file.NAME).is_file():
        name, entries = folder.resolve().name, pair_file.read(folder / pair_file.NAME)
    else:
        raise ValueError(
            f"{name!r} is neither the name of a pair nor a folder with {pair_file.NAME}. Names: {', '.join(PAIRS)}. "
            "For two models use pairs.pair(target, draft) (--target, --draft)."
        )
    target = _read(*locate(entries["target"], folder), dtype, options)
    wanted = entries["draft"] if draft_layers is None else {"early_exit": draft_layers}
    if isinstance(wanted, dict):
        draft = target.exit(wanted["early_exit"])
    else:
        draft = _read(*locate(wanted, folder), dtype, options, target.tokenizer)
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
        draft, params = reduce_vocabulary(draft, params, np.load(folder / entries["kept_ids"]).tolist())
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
    first, second = (_read(*locate(str(one)), dtype, options) for one in (target, draft))
    return _packed(_pair(f"{target} + {draft}", first, second))


class _Loaded(NamedTuple):
    """A model as read: what it is, its parameters, its tokenizer and where it came from."""

    model: Transformer
    params: Params
    tokenizer: Any
    source: str

    def exit(self, layers: int) -> "_Loaded":
        """The early exit, with the same arrays and tokenizer."""
        model, params = early_exit(self.model, layers), early_exit_params(self.model, self.params, layers)
        return self._replace(model=model, params=params, source=f"the first {layers} layers of {self.source}")


def _read(path: str | Path, source: str, dtype: Any, options: dict[str, Any], tokenizer: Any = None) -> _Loaded:
    """The model at a path or hub id. `tokenizer` is that of a folder without one."""
    if tokenizer is None or not Path(path).is_dir() or _has_tokenizer(Path(path)):
        try:
            tokenizer = networks.load_tokenizer(path)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{source} has no tokenizer that can be read. Both models of a pair need theirs, so that they can be "
                f"compared: put its files into the folder, for a draft those of its target. {error}"
            ) from error
    model, params = networks.load(path, jnp.dtype(dtype).name, **options)
    if "blocks" not in options and _blocks_pay(model, params):
        model, params = with_blocks(model, params)
    return _Loaded(model, params, tokenizer, source)


def _blocks_pay(model: Transformer, params: Params) -> bool:
    is_plain = model.columns and not model.scan_layers and model.dtype == "float32"
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    return is_plain and jax.default_backend() == "cpu" and size <= BLOCKS_LIMIT


def _packed(read: Pair) -> Pair:
    """The pair with its models' parameters in one piece of memory, where that pays."""
    models = {name: read.params[name] for name in ("target", "draft")}
    size = sum(array.nbytes for array in distinct(models))
    if jax.default_backend() != "cpu" or size > PACKED_LIMIT:
        return read
    return dataclasses.replace(read, params={**read.params, **packed(models)})


def _has_tokenizer(folder: Path) -> bool:
    names = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
    return any((folder / name).exists() for name in names)


def _pair(
    name: str, target: _Loaded, draft: _Loaded, profiles: tuple[Profile, ...] = (), description: str = ""
) -> Pair:
    """The pair, checked and trimmed to the vocabulary that both have."""
    vocab = _common_vocab(target, draft)
    size = max(vocab.values()) + 1
    return Pair(
        name=name,
        target=_trim("target", target, size),
        draft=_trim("draft", draft, size),
        params={"target": target.params, "draft": draft.params},
        tokenizer=target.tokenizer,
        profiles=profiles,
        stop_ids=tuple(token for token in _stop_ids(target.tokenizer) if 0 <= token < size),
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


def _common_vocab(target: _Loaded, draft: _Loaded) -> dict[str, int]:
    """Token ids by token, added tokens too, where target and draft agree.

    Raises:
        ValueError: They differ; says in what.
    """
    wanted: dict[str, int] = target.tokenizer.get_vocab()
    if draft.tokenizer is target.tokenizer:
        return wanted
    found: dict[str, int] = draft.tokenizer.get_vocab()
    rule = "A draft needs the target's own tokenizer; drafting across tokenizers is not implemented."
    if len(found) != len(wanted):
        raise ValueError(
            f"The vocabularies differ: {len(wanted)} tokens in the target {target.source}, "
            f"{len(found)} in the draft {draft.source}. {rule}"
        )
    for token, index in sorted(wanted.items(), key=lambda entry: entry[1]):
        if found.get(token) != index:
            other = f"id {found[token]} there" if token in found else "not there"
            raise ValueError(
                f"The vocabularies of the target {target.source} and the draft {draft.source} differ: "
                f"token {token!r} has id {index} in the target's and is {other} in the draft's. {rule}"
            )
    return wanted


def _trim(role: str, loaded: _Loaded, size: int) -> Transformer | Trimmed:
    rows = loaded.model.vocab_size
    if rows < size:
        raise ValueError(
            f"The {role} {loaded.source} has {rows} embedding rows, but its tokenizer has ids up to {size - 1}: "
            "a token without a row can't be read. Remove the tokens that were added to the tokenizer."
        )
    return loaded.model if rows == size else Trimmed(loaded.model, size)


def _stop_ids(tokenizer: Any) -> tuple[int, ...]:
    """Ids that end a text: the tokenizer's EOS, then what `config.json` and `generation_config.json` beside it list."""
    listed = [tokenizer.eos_token_id]
    files = [Path(tokenizer.name_or_path or "", name) for name in ("config.json", "generation_config.json")]
    for file in files if tokenizer.name_or_path else ():
        entry = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.is_file() else None
        listed += entry if isinstance(entry, list) else [entry]
    return tuple(dict.fromkeys(token for token in listed if token is not None))


def _shipped(name: str) -> Path | None:
    """The folder of a trained pair that comes with jaxspec, in an installed package or in a checkout."""
    package = Path(jaxspec.__file__).parent
    folders = [models / name for models in (package / "models", package.parent / "models")]
    return next((folder for folder in folders if name in PAIRS and (folder / pair_file.NAME).is_file()), None)
