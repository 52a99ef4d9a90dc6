"""Checkpoints: a Hugging Face folder, a hub id or a GGUF file becomes a `Transformer` and its parameters; and back.

Tensors go to the device one by one, each read on its own, so that host memory never holds the weights twice. Every
source is the same mapping from a tensor's checkpoint name to a function that reads it.
"""

import dataclasses
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
_HUB_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")


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
    return model, model.stack(_place(model, tensors, path))


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
        *parents, leaf = name.split(".")
        branch = params
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[leaf] = jax.block_until_ready(jnp.asarray(found[name].read().astype(model.dtype, copy=False)))
    if duplicate is not None and not np.array_equal(duplicate.read(), found["embed_tokens.weight"].read()):
        raise ValueError(
            f"{path}: lm_head.weight differs from the embedding although tie_word_embeddings is true. "
            "Remove the tensor, or set tie_word_embeddings to false."
        )
    return params


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
    from gguf import GGUFReader, quants

    reader = GGUFReader(file)
    stored = {tensor.name: tensor for tensor in reader.tensors}
    fields = {name: field.contents for name, field in reader.fields.items()}
    architecture = fields["general.architecture"]()
    config: dict[str, Any] = {
        "model_type": architecture,
        "tie_word_embeddings": "output.weight" not in stored,
        "vocab_size": int(stored["token_embd.weight"].shape[1]) if "token_embd.weight" in stored else None,
    }
    own = {
        name.removeprefix(f"{architecture}."): read
        for name, read in fields.items()
        if name.startswith(f"{architecture}.")
    }
    for name, read in own.items():
        key = _GGUF_KEYS.get(name, f"{architecture}.{name}")  # An unknown key keeps its name and is refused by it.
        if key is not None:
            config[key] = read()
    parsed = from_hugging_face(config)
    for name in ("rope.dimension_count", "attention.value_length"):
        if name in own and own[name]() != parsed.head_dim:
            raise ValueError(f"{file}: {architecture}.{name}={own[name]()} is not the head size {parsed.head_dim}.")

    def read(name: str) -> np.ndarray:
        return quants.dequantize(stored[name].data, stored[name].tensor_type)

    if "rope_freqs.weight" in stored:
        config["rope_scaling"] = _gguf_rope_scaling(file, parsed, read("rope_freqs.weight"))
        del stored["rope_freqs.weight"]
    tensors: dict[str, _Tensor] = {}
    for name, tensor in stored.items():
        head_count = {"attn_q": parsed.num_heads, "attn_k": parsed.num_kv_heads}.get(name.split(".")[-2])
        permuted = architecture == "llama" and head_count is not None
        tensors[_gguf_checkpoint_name(name)] = _Tensor(
            tuple(int(size) for size in reversed(tensor.shape)),
            (lambda name=name, heads=head_count: _unpermute(read(name), heads))
            if permuted
            else (lambda name=name: read(name)),
        )
    return config, tensors


def _unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of a query or key weight in rotate-half order, from GGUF's, where the two features of a pair are neighbours."""
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
    from gguf import GGUFReader
    from transformers import PreTrainedTokenizerFast

    try:
        from transformers.integrations.gguf import convert_gguf_tokenizer
    except ImportError:  # where the conversion stood in transformers 5.0
        from transformers.integrations.ggml import convert_gguf_tokenizer

    prefix = "tokenizer.ggml."
    fields = GGUFReader(file).fields
    stored = {name.removeprefix(prefix): field.contents() for name, field in fields.items() if name.startswith(prefix)}
    if "tokens" not in stored:
        raise ValueError(f"{file} holds no tokenizer.")
    tokens = stored["tokens"]
    named = {"model": "tokenizer_type", "pre": "pre_tokenizer_type"}
    backend, extra = convert_gguf_tokenizer(
        fields["general.architecture"].contents(), {named.get(name, name): value for name, value in stored.items()}
    )
    special = {
        token: tokens[stored[key]]
        for token, key in (
            ("bos_token", "bos_token_id"),
            ("eos_token", "eos_token_id"),
            ("unk_token", "unknown_token_id"),
            ("pad_token", "padding_token_id"),
        )
        if key in stored
    }
    template = fields.get("tokenizer.chat_template")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=template.contents() if template is not None else None,
        # llama.cpp's default where the file does not say: only sentencepiece vocabularies begin with BOS.
        add_bos_token=stored.get("add_bos_token", stored.get("model") == "llama"),
        add_eos_token=stored.get("add_eos_token", False),
        **{"bos_token": None, "eos_token": None, **extra, **special},
    )
