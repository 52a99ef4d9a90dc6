"""The two models of a pair as they are read, and the vocabulary that they must share."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import networks
from jaxspec.base import Params
from jaxspec.networks import Transformer, Trimmed, early_exit, early_exit_params, with_blocks

BLOCKS_LIMIT = 2 << 30
"""Bytes of a model's weights up to which it gets blocks by itself."""


class Loaded(NamedTuple):
    """A model as read: what it is, its parameters, its tokenizer, where it came from, and what ends its texts.

    Attributes:
        stop_ids: The tokenizer's EOS, then what the model's files list; there may be others than tokens.
    """

    model: Transformer
    params: Params
    tokenizer: Any
    source: str
    stop_ids: tuple[int, ...]

    def exit(self, layers: int) -> "Loaded":
        """The early exit, with the same arrays and tokenizer."""
        model, params = early_exit(self.model, layers), early_exit_params(self.model, self.params, layers)
        return self._replace(model=model, params=params, source=f"the first {layers} layers of {self.source}")


def read(path: str | Path, source: str, dtype: Any, options: dict[str, Any], tokenizer: Any = None) -> Loaded:
    """The model at a path or hub id. `tokenizer` is that of a folder without one."""
    if tokenizer is None or not Path(path).is_dir() or _has_tokenizer(Path(path)):
        if Path(path).is_dir() and not _has_tokenizer(Path(path)):
            raise ValueError(
                f"{source} has no tokenizer that can be read. Both models of a pair need theirs, so that they can be "
                "compared: put its files into the folder, for a draft those of its target."
            )
        tokenizer = networks.load_tokenizer(path)
    model, params = networks.load(path, jnp.dtype(dtype).name, **options)
    if "blocks" not in options and _blocks_pay(model, params):
        model, params = with_blocks(model, params)
    ends = (tokenizer.eos_token_id, *networks.listed_stop_ids(path))
    stop_ids = tuple(dict.fromkeys(token for token in ends if token is not None))
    return Loaded(model, params, tokenizer, source, stop_ids)


def kept_ids(file: Path) -> list[int]:
    """Token ids of a `.npy` file.

    Raises:
        ValueError: There is no such file, or it holds no list of whole numbers.
    """
    try:
        # Mapped: a header that promises more than the file has is an error before memory is taken.
        found = np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # numpy has many kinds of them for what is no array
        raise ValueError(f"{file} can't be read as a .npy file of token ids: {error}") from error
    if not isinstance(found, np.ndarray) or found.ndim != 1 or not np.issubdtype(found.dtype, np.integer):
        raise ValueError(f"{file} holds no list of whole numbers, which token ids are.")
    return found.tolist()


def _blocks_pay(model: Transformer, params: Params) -> bool:
    is_plain = model.columns and not model.scan_layers and model.dtype == "float32"
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    return is_plain and jax.default_backend() == "cpu" and size <= BLOCKS_LIMIT


def _has_tokenizer(folder: Path) -> bool:
    names = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")
    return any((folder / name).exists() for name in names)


def common_vocab(target: Loaded, draft: Loaded) -> dict[str, int]:
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


def trimmed(role: str, loaded: Loaded, size: int) -> Transformer | Trimmed:
    rows = loaded.model.vocab_size
    if rows < size:
        raise ValueError(
            f"The {role} {loaded.source} has {rows} embedding rows, but its tokenizer has ids up to {size - 1}: "
            "a token without a row can't be read. Remove the tokens that were added to the tokenizer."
        )
    return loaded.model if rows == size else Trimmed(loaded.model, size)
