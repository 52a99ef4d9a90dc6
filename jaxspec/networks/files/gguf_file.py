"""A GGUF file as a Hugging Face folder would be: config, tensors and tokenizer under the same names.

The `gguf` package parses and dequantises. What is different in a family's files stands with the family
(`families.common.GGUF`): Llama's query and key rows are stored for interleaved rotation, and are put back in the order
of halves; norms of Gemma are stored whole, and get back to what they differ from 1 by.
"""

import functools
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec import documents
from jaxspec.networks.families import ARCHITECTURES, Llama3RopeScaling, TransformerConfig, from_hugging_face
from jaxspec.networks.families.config import LayerKind
from jaxspec.networks.files import gguf_reading
from jaxspec.networks.files.folder import checkpoint_name
from jaxspec.networks.files.gguf_reading import Stored
from jaxspec.networks.files.safetensors_file import Tensor
from jaxspec.networks.files.tokenizer import understood
from jaxspec.networks.rotation import inverse_frequencies

_NAMES = {
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
_KEYS = {
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


def read_gguf(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config, in Hugging Face's names, and tensors of a GGUF file.

    Raises:
        ValueError: It is damaged, no language model's, or asks for what is not implemented.
    """
    found = gguf_reading.read(file)
    architecture, stored = _architecture(file, found.fields), dict(found.tensors)
    if "token_embd.weight" not in stored:
        raise ValueError(f"{file} has no token_embd.weight: it is no language model.")
    own = {
        name.removeprefix(f"{architecture}."): value
        for name, value in found.fields.items()
        if name.startswith(f"{architecture}.")
    }
    family = ARCHITECTURES[architecture]
    assert family.gguf is not None
    keys = {**_KEYS, **family.gguf.keys}
    config: dict[str, Any] = {
        "model_type": family.model_type,
        "tie_word_embeddings": "output.weight" not in stored,
        "vocab_size": stored["token_embd.weight"].shape[0],
    }
    for name, value in own.items():
        if isinstance(value, list):
            raise ValueError(
                f"{file}: {architecture}.{name}={documents.shown(value)} differs from layer to layer, which is not "
                "implemented."
            )
        key = keys.get(name, f"{architecture}.{name}")  # An unknown key keeps its name and is refused by it.
        if key is not None:
            config[key] = value
    config |= family.gguf.config(config)
    parsed = from_hugging_face(config)
    for name in ("rope.dimension_count", "attention.value_length"):
        if own.get(name, parsed.head_dim) != parsed.head_dim:
            raise ValueError(f"{file}: {architecture}.{name}={own[name]} is not the head size {parsed.head_dim}.")
    if "rope_freqs.weight" in stored:
        divisors = gguf_reading.values(file, "rope_freqs.weight", stored.pop("rope_freqs.weight"))
        config["rope_scaling"] = _rope_scaling(file, parsed, divisors)
    is_interleaved = family.gguf.has_interleaved_rows
    heads = {"attn_q": parsed.num_heads, "attn_k": parsed.num_kv_heads} if is_interleaved else {}
    names = {**_NAMES, **family.gguf.names}
    tensors: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        kind = name.split(".")[-2] if "." in name else ""
        offset = parsed.norm_offset if kind.endswith("norm") else 0.0
        read = functools.partial(_values, file, name, tensor, heads.get(kind), offset)
        tensors[_name(name, names)] = Tensor(tensor.shape, read)
    return config, tensors


def _architecture(file: Path, fields: dict[str, Any]) -> str:
    """The family that a file is of; looked at before anything dear is done with the file.

    Raises:
        ValueError: None that is implemented, or a part of a model.
    """
    architecture, parts = fields.get("general.architecture"), fields.get("split.count", 1)
    if architecture not in list(ARCHITECTURES):
        raise ValueError(
            f"{file}: general.architecture is {documents.shown(architecture)}, which is not implemented "
            f"(model_type={architecture!r}); supported: {', '.join(ARCHITECTURES)}."
        )
    if parts not in (0, 1):
        raise ValueError(f"{file} is one of {parts} parts: put them together first (llama-gguf-split --merge).")
    return architecture


def _values(file: Path, name: str, tensor: Stored, num_heads: int | None, offset: float) -> np.ndarray:
    """A tensor as floats, less the offset; `num_heads` is said where its rows are permuted."""
    weight = gguf_reading.values(file, name, tensor)
    if offset:
        return weight - weight.dtype.type(offset)
    return weight if num_heads is None else _unpermute(weight, num_heads)


def _unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Query or key rows in rotate-half order, from GGUF's, where the two features that turn together are neighbours."""
    rows, width = weight.shape
    return weight.reshape(num_heads, rows // num_heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width)


def _name(name: str, names: Mapping[str, str]) -> str:
    """A tensor's name in a Hugging Face checkpoint; names that have none stay, and are refused as unexpected."""
    *place, kind, leaf = name.split(".")
    if kind not in names or (place and (len(place) != 2 or place[0] != "blk")):
        return name
    return checkpoint_name(".".join([*(["layers", place[1]] if place else []), names[kind], leaf]))


def _rope_scaling(file: Path, config: TransformerConfig, divisors: np.ndarray) -> dict[str, Any]:
    """Llama 3's scaling, of which GGUF stores only what each frequency is divided by.

    Every Llama 3 has the low and high factors 1 and 4 and the old context 8,192, which is checked.
    """
    scaling = Llama3RopeScaling(float(divisors.max()), 1.0, 4.0, 8192)
    plain, scaled = (
        inverse_frequencies(config, LayerKind(None, config.rope_theta, which), None).astype(np.float64)
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


def read_gguf_tokenizer(file: Path) -> Any:
    """A transformers tokenizer from a GGUF file's metadata.

    Raises:
        ValueError: It holds none, or one that is damaged or of a kind that is not understood.
    """
    fields = gguf_reading.read(file).fields
    stored = {name.removeprefix(_TOKENIZER): value for name, value in fields.items() if name.startswith(_TOKENIZER)}
    if "tokens" not in stored:
        raise ValueError(f"{file} holds no tokenizer.")
    return understood(
        lambda: _tokenizer(_architecture(file, fields), stored, fields.get("tokenizer.chat_template")), str(file)
    )


def read_gguf_ends(file: Path) -> tuple[int, ...]:
    """Ids that end a text, a turn or a message by a GGUF file's metadata.

    Raises:
        ValueError: One of them is no token's.
    """
    fields = gguf_reading.read(file).fields
    size, found = len(fields.get(f"{_TOKENIZER}tokens", ())), []
    for name in _ENDS:
        token = fields.get(f"{_TOKENIZER}{name}")
        if token is not None and not (type(token) is int and 0 <= token < size):
            raise ValueError(
                f"{file}: {_TOKENIZER}{name} is {documents.shown(token)}, but a token's id is needed: 0 to {size - 1}."
            )
        found += [] if token is None else [token]
    return tuple(dict.fromkeys(found))


def _tokenizer(architecture: str, stored: dict[str, Any], template: Any) -> Any:
    from transformers import PreTrainedTokenizerFast

    convert = _tokenizer_conversion()
    backend, extra = convert(
        architecture, {**stored, "tokenizer_type": stored.get("model"), "pre_tokenizer_type": stored.get("pre")}
    )
    special = {name: stored["tokens"][stored[key]] for name, key in _SPECIAL_TOKENS.items() if key in stored}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=template,
        # llama.cpp's default where the file does not say: only sentencepiece vocabularies begin with BOS.
        add_bos_token=stored.get("add_bos_token", stored.get("model") == "llama"),
        add_eos_token=stored.get("add_eos_token", False),
        **{"bos_token": None, "eos_token": None, **extra, **special},
    )


_TOKENIZER = "tokenizer.ggml."

_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""The ends of a text, of a turn and of a message, behind the tokenizer's prefix."""

_SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def _tokenizer_conversion() -> Callable[[str, dict[str, Any]], tuple[Any, dict[str, Any]]]:
    """transformers' conversion to its tokenizers' backend, from where each of its versions keeps it."""
    for module in ("transformers.integrations.gguf", "transformers.integrations.ggml"):
        try:
            return importlib.import_module(module).convert_gguf_tokenizer
        except (ImportError, AttributeError):
            continue
    raise ValueError(
        "This version of transformers converts no GGUF tokenizer; take 5.0 or newer, or a folder's tokenizer."
    )
