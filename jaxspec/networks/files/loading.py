"""Checkpoints: a Hugging Face folder, a hub id or a GGUF file becomes a `Transformer` and its parameters; and back.

Tensors go to the device one by one, each read on its own, so that host memory never holds the weights twice. Every
source is the same mapping from a tensor's checkpoint name to a function that reads it.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import documents, records
from jaxspec.base import Params
from jaxspec.networks.families import from_hugging_face, to_hugging_face
from jaxspec.networks.files.folder import CONFIG, INDEX, WEIGHTS, checkpoint_name, read_folder
from jaxspec.networks.files.gguf_file import read_gguf, read_gguf_ends, read_gguf_tokenizer
from jaxspec.networks.files.safetensors_file import Tensor
from jaxspec.networks.files.tokenizer import listed_ends, read_tokenizer
from jaxspec.networks.transformer import Transformer

_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


def load(path_or_hub_id: str | Path, dtype: str = "float32", **options: Any) -> tuple[Transformer, Params]:
    """A model description and its parameters.

    Args:
        path_or_hub_id: A folder with `config.json` and safetensors (sharded or not), a `.gguf` file, or a hub id, which
            is taken from the local cache where it is there.
        dtype: Of the parameters, whatever the checkpoint's.
        **options: Further fields of `Transformer`.

    Raises:
        ValueError: Nothing is found there, the config asks for what is not implemented, or tensors are missing,
            unexpected or of another shape.
    """
    path = _locate(path_or_hub_id)
    config, tensors = read_gguf(path) if path.suffix == ".gguf" else read_folder(path)
    model = Transformer(from_hugging_face(config), dtype=dtype, **options)
    return model, model.add_blocks(_place(model, tensors, path))


def save(folder: str | Path, model: Transformer, params: Params, dtype: str | None = None) -> None:
    """Writes `config.json` and `model.safetensors`, which `load` and transformers read.

    Args:
        folder: Made where it does not exist.
        model: The model's description.
        params: Its parameters.
        dtype: Of the file; None keeps the model's.

    Raises:
        ValueError: The config belongs to no family of Hugging Face's, or the vocabulary is reduced.
    """
    if model.kept_ids is not None:
        raise ValueError("A reduced vocabulary can't be saved as a Hugging Face folder: save the whole model.")
    from safetensors.numpy import save_file

    dtype = dtype or model.dtype
    config = {**to_hugging_face(model.config), "dtype": dtype}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = jax.tree.map(lambda leaf: np.asarray(leaf.astype(dtype)), model.unstack(params))
    save_file(
        {checkpoint_name(name): array for name, array in _flatten(arrays).items()}, folder / WEIGHTS, {"format": "pt"}
    )
    records.write(folder / CONFIG, config, indent=2)


def load_tokenizer(path_or_hub_id: str | Path) -> Any:
    """The tokenizer of a folder, a hub id or a GGUF file, with its chat template and special tokens.

    torch is not needed.

    Returns:
        A transformers tokenizer.

    Raises:
        ValueError: Nothing is found there, or what is damaged, not understood, or asks for code of its own.
    """
    path = _locate(path_or_hub_id)
    if path.suffix == ".gguf":
        return read_gguf_tokenizer(path)
    return read_tokenizer(path)


def listed_stop_ids(path_or_hub_id: str | Path) -> tuple[int, ...]:
    """Ids that end a text, beside the tokenizer's own, by a model's files; what they list may be no token.

    Raises:
        ValueError: Nothing is found there, or it lists what is no id.
    """
    path = _locate(path_or_hub_id)
    return read_gguf_ends(path) if path.suffix == ".gguf" else listed_ends(path)


def _place(model: Transformer, tensors: Mapping[str, Tensor], path: Path) -> Params:
    """Every parameter on the device, layers apart.

    Raises:
        ValueError: Names or shapes are not the model's.
    """
    shapes = _flatten(model.shapes())
    found = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if not name.endswith(".inv_freq")}
    duplicate = found.pop("lm_head.weight", None) if model.config.tie_word_embeddings else None
    for kind, names in (("lacks tensors", shapes.keys() - found), ("has unexpected tensors", found.keys() - shapes)):
        if names:
            raise ValueError(f"{path} {kind}: {', '.join(checkpoint_name(name) for name in sorted(names))}.")
    for name, shape in shapes.items():
        if found[name].shape != shape.shape:
            raise ValueError(
                f"{path}: {checkpoint_name(name)} is {found[name].shape}, the config makes it {shape.shape}."
            )
    params: dict[str, Any] = {}
    for name in shapes:
        kind, _, within_layer = name.partition(".")
        if model.scan_layers and kind == "layers":
            index, _, within_layer = within_layer.partition(".")
            if index == "0":
                parts = [found[f"layers.{layer}.{within_layer}"] for layer in range(model.config.num_layers)]
                _insert(params, f"layers.{within_layer}", _stack_on_device(parts, model.dtype))
        else:
            # Once it is on the device the host's copy can go.
            tensor = jnp.asarray(found[name].read().astype(model.dtype, copy=False))
            _insert(params, name, jax.block_until_ready(tensor))
    if duplicate is not None and not np.array_equal(duplicate.read(), found["embed_tokens.weight"].read()):
        raise ValueError(
            f"{path}: lm_head.weight differs from the embedding although tie_word_embeddings is true. "
            "Remove the tensor, or set tie_word_embeddings to false."
        )
    return params


def _stack_on_device(parts: list[Tensor], dtype: str) -> jax.Array:
    """One tensor of every layer, in one array that is written in place, so that one layer at a time is on the host."""
    stacked = jnp.zeros((len(parts), *parts[0].shape), dtype)
    for layer, part in enumerate(parts):
        stacked = jax.block_until_ready(_write_layer(stacked, jnp.int32(layer), part.read().astype(dtype, copy=False)))
    return stacked


@functools.partial(jax.jit, donate_argnums=0)
def _write_layer(stacked: jax.Array, layer: jax.Array, tensor: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_index_in_dim(stacked, tensor, layer, 0)


def _insert(params: dict[str, Any], name: str, array: jax.Array) -> None:
    """Puts an array under its dotted path."""
    *parents, leaf = name.split(".")
    functools.reduce(lambda branch, parent: branch.setdefault(parent, {}), parents, params)[leaf] = array


def _flatten(tree: Params, prefix: str = "") -> dict[str, Any]:
    """Leaves by their dotted path."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(_flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return flat


def _locate(path_or_hub_id: str | Path) -> Path:
    """A folder or GGUF file on this machine, fetched from the hub where it must be.

    Raises:
        ValueError: It is neither here nor to be had.
    """
    path = documents.path(path_or_hub_id)
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    if path.exists():
        raise ValueError(f"{path} is neither a folder nor a .gguf file.")
    name = str(path_or_hub_id)
    if name.endswith(".gguf") or name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise ValueError(f"{name!r} does not exist, and it is no hub id (organisation/name).")
    import huggingface_hub

    try:
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=_HUB_FILES, local_files_only=True))
        if (folder / CONFIG).exists() and ((folder / WEIGHTS).exists() or (folder / INDEX).exists()):
            return folder
    except huggingface_hub.errors.LocalEntryNotFoundError:
        pass
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=_HUB_FILES))
    except Exception as error:  # The hub's client raises many kinds, and those of its HTTP library.
        raise ValueError(
            f"{name!r} is not a folder here, not in the local hub cache, and could not be fetched from the hub: {error}"
        ) from error
