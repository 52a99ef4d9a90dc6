"""Checkpoints: a Hugging Face folder, a hub id or a GGUF file becomes a `Transformer` and its parameters; and back.

Tensors go to the device one by one, each read on its own, so that host memory never holds the weights twice. Every
source is the same mapping from a tensor's checkpoint name to a function that reads it.
"""

import dataclasses
import functools
import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxspec.base import Params
from jaxspec.networks.config import Llama3RopeScaling, TransformerConfig, from_hugging_face
from jaxspec.networks.transformer import Transformer, inverse_frequencies

_CONFIG, _WEIGHTS, _INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
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
    config, tensors = _read_gguf(path) if path.suffix == ".gguf" else _read_folder(path)
    model = Transformer(from_hugging_face(config), dtype=dtype, **options)
    return model, _place(model, tensors, path)


def save(folder: str | Path, model: Transformer, params: Params, dtype: str | None = None) -> None:
    """Writes `config.json` and `model.safetensors`, which `load` and transformers read.

    Args:
        folder: Made where it does not exist.
        model: The model's description.
        params: Its parameters.
        dtype: Of the file; None keeps the model's.

    Raises:
        ValueError: The config belongs to no family of Hugging Face's.
    """
    from safetensors.numpy import save_file

    dtype = dtype or model.dtype
    config = {**model.config.to_hugging_face(), "dtype": dtype}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = jax.tree.map(lambda leaf: np.asarray(leaf.astype(dtype)), model.unstack(params))
    save_file(
        {_checkpoint_name(name): array for name, array in _flatten(arrays).items()}, folder / _WEIGHTS, {"format": "pt"}
    )
    (folder / _CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def load_tokenizer(path_or_hub_id: str | Path) -> Any:
    """The tokenizer of a folder, a hub id or a GGUF file, with its chat template and special tokens.

    torch is not needed.

    Returns:
        A transformers tokenizer.

    Raises:
        ValueError: Nothing is found there, or a GGUF file has a tokenizer of a kind that is not understood.
    """
    path = _locate(path_or_hub_id)
    if path.suffix == ".gguf":
        return _gguf_tokenizer(path)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path)


class _Tensor(NamedTuple):
    """One tensor of a checkpoint.

    Attributes:
        shape: As stored, `[out, in]` for a weight.
        read: Gives the array; the only time that its bytes are in host memory.
    """

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


def _place(model: Transformer, tensors: Mapping[str, _Tensor], path: Path) -> Params:
    """Every parameter on the device, layers apart.

    Raises:
        ValueError: Names or shapes are not the model's.
    """
    shapes = _flatten(model.shapes())
    found = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if not name.endswith(".inv_freq")}
    duplicate = found.pop("lm_head.weight", None) if model.config.tie_word_embeddings else None
    for kind, names in (("lacks tensors", shapes.keys() - found), ("has unexpected tensors", found.keys() - shapes)):
        if names:
            raise ValueError(f"{path} {kind}: {', '.join(_checkpoint_name(name) for name in sorted(names))}.")
    for name, shape in shapes.items():
        if found[name].shape != shape.shape:
            raise ValueError(
                f"{path}: {_checkpoint_name(name)} is {found[name].shape}, the config makes it {shape.shape}."
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


def _stack_on_device(parts: list[_Tensor], dtype: str) -> jax.Array:
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


def _checkpoint_name(name: str) -> str:
    return name if name.startswith("lm_head.") else f"model.{name}"


def _locate(path_or_hub_id: str | Path) -> Path:
    """A folder or GGUF file on this machine, fetched from the hub where it must be.

    Raises:
        ValueError: It is neither here nor to be had.
    """
    path = Path(path_or_hub_id).expanduser()
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
        if (folder / _CONFIG).exists() and ((folder / _WEIGHTS).exists() or (folder / _INDEX).exists()):
            return folder
    except huggingface_hub.errors.LocalEntryNotFoundError:
        pass
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=_HUB_FILES))
    except Exception as error:  # The hub's client raises many kinds, and those of its HTTP library.
        raise ValueError(
            f"{name!r} is not a folder here, not in the local hub cache, and could not be fetched from the hub: {error}"
        ) from error


_SAFETENSORS_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


def _read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, _Tensor]]:
    """Config and tensors of a Hugging Face folder."""
    if not (folder / _CONFIG).exists():
        raise ValueError(f"{folder} has no {_CONFIG}.")
    config = json.loads((folder / _CONFIG).read_text())
    if (folder / _WEIGHTS).exists():
        return config, _read_safetensors(folder / _WEIGHTS)
    if not (folder / _INDEX).exists():
        raise ValueError(f"{folder} has neither {_WEIGHTS} nor {_INDEX}; other formats of weights are not read.")
    places: dict[str, str] = json.loads((folder / _INDEX).read_text())["weight_map"]
    files = {file: _read_safetensors(folder / Path(file).name) for file in sorted(set(places.values()))}
    lost = [name for name, file in places.items() if name not in files[file]]
    if lost:
        raise ValueError(f"{folder / _INDEX} names tensors that its files lack: {', '.join(lost)}.")
    return config, {name: tensor for tensors in files.values() for name, tensor in tensors.items()}


def _read_safetensors(file: Path) -> dict[str, _Tensor]:
    """The file's tensors, each read with its own seek: a memory map would count the whole file as memory in use.

    The format: 8 bytes length of the header, the header as JSON, the bytes that it points into.
    """
    if not file.exists():
        raise ValueError(f"{file} does not exist.")
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if not 2 <= length <= file.stat().st_size - 8:
            raise ValueError(f"{file} is not a whole safetensors file.")
        header = json.loads(opened.read(length))

    def tensor(name: str, dtype: str, shape: list[int], data_offsets: list[int]) -> _Tensor:
        if dtype not in _SAFETENSORS_DTYPES:
            raise ValueError(f"{file}: {name} has dtype {dtype}; read are {', '.join(_SAFETENSORS_DTYPES)}.")
        start, end = data_offsets
        kind = _SAFETENSORS_DTYPES[dtype]
        if 8 + length + end > file.stat().st_size or (end - start) != kind.itemsize * int(np.prod(shape)):
            raise ValueError(f"{file}: the bytes of {name} are not all there.")

        def read() -> np.ndarray:
            return np.fromfile(file, kind, (end - start) // kind.itemsize, offset=8 + length + start).reshape(shape)

        return _Tensor(tuple(shape), read)

    return {name: tensor(name, **entry) for name, entry in header.items() if name != "__metadata__"}


_GGUF_NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

# Keys behind "<architecture>." and their names in a Hugging Face config; None: said twice, or bookkeeping.
_GGUF_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "rope.dimension_count": None,
    "attention.value_length": None,
    "vocab_size": None,
}


def _read_gguf(file: Path) -> tuple[dict[str, Any], dict[str, _Tensor]]:
    """Config, in Hugging Face's names, and tensors of a GGUF file."""
    reader = _gguf_reader(file, file.stat().st_mtime_ns)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    if "general.architecture" not in reader.fields or "token_embd.weight" not in stored:
        raise ValueError(f"{file} says no general.architecture, or has no token_embd.weight: it is no language model.")
    architecture = reader.fields["general.architecture"].contents()
    own = {
        name.removeprefix(f"{architecture}."): field.contents()
        for name, field in reader.fields.items()
        if name.startswith(f"{architecture}.")
    }
    config: dict[str, Any] = {
        "model_type": architecture,
        "tie_word_embeddings": "output.weight" not in stored,
        "vocab_size": int(stored["token_embd.weight"].shape[1]),
    }
    for name, value in own.items():
        if isinstance(value, list):
            raise ValueError(
                f"{file}: {architecture}.{name}={value} differs from layer to layer, which is not implemented."
            )
        key = _GGUF_KEYS.get(name, f"{architecture}.{name}")  # An unknown key keeps its name and is refused by it.
        if key is not None:
            config[key] = value
    parsed = from_hugging_face(config)
    for name in ("rope.dimension_count", "attention.value_length"):
        if own.get(name, parsed.head_dim) != parsed.head_dim:
            raise ValueError(f"{file}: {architecture}.{name}={own[name]} is not the head size {parsed.head_dim}.")
    if "rope_freqs.weight" in stored:
        config["rope_scaling"] = _gguf_rope_scaling(file, parsed, _dequantise(stored.pop("rope_freqs.weight")))
    heads = {"attn_q": parsed.num_heads, "attn_k": parsed.num_kv_heads} if architecture == "llama" else {}
    tensors: dict[str, _Tensor] = {}
    for name, tensor in stored.items():
        shape = tuple(int(size) for size in reversed(tensor.shape))
        read = functools.partial(_dequantise, tensor, heads.get(name.split(".")[-2]) if "." in name else None)
        tensors[_gguf_checkpoint_name(name)] = _Tensor(shape, read)
    return config, tensors


@functools.lru_cache(maxsize=1)
def _gguf_reader(file: Path, modified: int) -> Any:
    """The `gguf` package's reader, kept because parsing a vocabulary takes seconds and the tokenizer needs it again."""
    from gguf import GGUFReader

    return GGUFReader(file)


def _dequantise(tensor: Any, num_heads: int | None = None) -> np.ndarray:
    """A GGUF tensor as floats; `num_heads` is said where its rows are permuted."""
    from gguf import quants

    weight = quants.dequantize(tensor.data, tensor.tensor_type)
    return weight if num_heads is None else _unpermute(weight, num_heads)


def _unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Query or key rows in rotate-half order, from GGUF's, where the two features that turn together are neighbours."""
    rows, width = weight.shape
    return weight.reshape(num_heads, rows // num_heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def _gguf_checkpoint_name(name: str) -> str:
    """A tensor's name in a Hugging Face checkpoint; names that have none stay, and are refused as unexpected."""
    *place, kind, leaf = name.split(".")
    if kind not in _GGUF_NAMES or (place and (len(place) != 2 or place[0] != "blk")):
        return name
    return _checkpoint_name(".".join([*(["layers", place[1]] if place else []), _GGUF_NAMES[kind], leaf]))


def _gguf_rope_scaling(file: Path, config: TransformerConfig, divisors: np.ndarray) -> dict[str, Any]:
    """Llama 3's scaling, of which GGUF stores only what each frequency is divided by.

    Every Llama 3 has the low and high factors 1 and 4 and the old context 8,192, which is checked.
    """
    scaling = Llama3RopeScaling(float(divisors.max()), 1.0, 4.0, 8192)
    plain, scaled = (
        inverse_frequencies(dataclasses.replace(config, rope_scaling=which)).astype(np.float64)
        for which in (None, scaling)
    )
    if divisors.shape != plain.shape or not np.allclose(plain / scaled, divisors, rtol=1e-3):
        raise ValueError(f"{file}: rope_freqs.weight is not Llama 3's scaling (factors 1 and 4, 8192 positions).")
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_max_length,
    }


def _gguf_tokenizer(file: Path) -> Any:
    """A transformers tokenizer from a GGUF file's metadata."""
    from transformers import PreTrainedTokenizerFast

    prefix = "tokenizer.ggml."
    fields = _gguf_reader(file, file.stat().st_mtime_ns).fields
    stored = {
        str(name).removeprefix(prefix): field.contents() for name, field in fields.items() if name.startswith(prefix)
    }
    if "tokens" not in stored:
        raise ValueError(f"{file} holds no tokenizer.")
    template = fields.get("tokenizer.chat_template")
    convert = _gguf_tokenizer_conversion()
    backend, extra = convert(
        fields["general.architecture"].contents(),
        {**stored, "tokenizer_type": stored.get("model"), "pre_tokenizer_type": stored.get("pre")},
    )
    special = {name: stored["tokens"][stored[key]] for name, key in _GGUF_SPECIAL_TOKENS.items() if key in stored}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=template.contents() if template is not None else None,
        # llama.cpp's default where the file does not say: only sentencepiece vocabularies begin with BOS.
        add_bos_token=stored.get("add_bos_token", stored.get("model") == "llama"),
        add_eos_token=stored.get("add_eos_token", False),
        **{"bos_token": None, "eos_token": None, **extra, **special},
    )


_GGUF_SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def _gguf_tokenizer_conversion() -> Callable[[str, dict[str, Any]], tuple[Any, dict[str, Any]]]:
    """transformers' conversion to its tokenizers' backend, from where each of its versions keeps it."""
    for module in ("transformers.integrations.gguf", "transformers.integrations.ggml"):
        try:
            return importlib.import_module(module).convert_gguf_tokenizer
        except (ImportError, AttributeError):
            continue
    raise ValueError(
        "This version of transformers converts no GGUF tokenizer; take 5.0 or newer, or a folder's tokenizer."
    )
