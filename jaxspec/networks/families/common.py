"""What Hugging Face's `config.json` means in every family, and what a `Family` adds: its own keys and refusals.

A key of a checkpoint's config is understood, known to be harmless, or refused by name: nothing is ignored in silence.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jaxspec.networks.families.config import Llama3RopeScaling, TransformerConfig


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of published models.

    Attributes:
        model_type: Its name in a config.
        architecture: Its class in transformers.
        fields: From a config, the fields of `TransformerConfig` in which it differs from the common reading.
        is_one: Whether a network's mathematics is this family's.
        keys: From a network's constants, the keys of a config that not every family has.
        understood: Keys that `fields` reads.
        harmless: Keys that change nothing in this family.
        has_interleaved_rows: Whether its GGUF files store the rows of queries and keys for interleaved rotation.
    """

    model_type: str
    architecture: str
    fields: Callable[[Mapping[str, Any]], dict[str, Any]]
    is_one: Callable[[TransformerConfig], bool]
    keys: Callable[[TransformerConfig], dict[str, Any]]
    understood: frozenset[str] = frozenset()
    harmless: frozenset[str] = frozenset()
    has_interleaved_rows: bool = False


def read(config: Mapping[str, Any], family: Family) -> TransformerConfig:
    """The constants of a network of this family.

    Raises:
        ValueError: A key is missing, or would change the mathematics in a way that is not implemented.
    """
    _refuse_unknown(config, family)
    missing = [key for key in _REQUIRED if config.get(key) is None]
    if missing:
        raise ValueError(f"The config lacks {', '.join(missing)}.")
    num_heads = config["num_attention_heads"]
    theta, scaling = _read_rope(config)
    common = {
        "vocab_size": config["vocab_size"],
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": num_heads,
        "num_kv_heads": given(config, "num_key_value_heads", num_heads),
        "head_dim": given(config, "head_dim", config["hidden_size"] // num_heads),
        "rms_norm_eps": float(given(config, "rms_norm_eps", 1e-6)),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "tie_word_embeddings": bool(config.get("tie_word_embeddings")),
        "max_length": config.get("max_position_embeddings"),
        "initializer_range": float(given(config, "initializer_range", 0.02)),
    }
    return TransformerConfig(**{**common, **family.fields(config)})


def written(config: TransformerConfig, family: Family) -> dict[str, Any]:
    """The `config.json` of a network of this family, which transformers 4 and 5 read."""
    entries: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "initializer_range": config.initializer_range,
    }
    if config.max_length is not None:
        entries["max_position_embeddings"] = config.max_length
    entries |= family.keys(config)
    if config.rope_scaling is not None:
        entries["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": config.rope_scaling.factor,
            "low_freq_factor": config.rope_scaling.low_freq_factor,
            "high_freq_factor": config.rope_scaling.high_freq_factor,
            "original_max_position_embeddings": config.rope_scaling.original_max_length,
        }
    return entries


def given(config: Mapping[str, Any], key: str, otherwise: Any) -> Any:
    """The value of a key, or `otherwise` where it is absent or null."""
    value = config.get(key)
    return otherwise if value is None else value


_REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")

_UNDERSTOOD = frozenset(_REQUIRED) | {
    "model_type",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "tie_word_embeddings",
    "max_position_embeddings",
    "initializer_range",
}

# Bookkeeping, training, or the shape of transformers' own outputs.
_HARMLESS = frozenset(
    [
        "architectures",
        "attention_dropout",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "unk_token_id",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "_name_or_path",
        "name_or_path",
        "tokenizer_class",
        "return_dict",
        "output_hidden_states",
        "output_attentions",
        "is_llama_config",
        "transformers.js_config",
        "unsloth_version",
        "unsloth_fixed",
        "id2label",
        "label2id",
        "problem_type",
        "task_specific_params",
        "_attn_implementation_autoset",
        "use_bfloat16",
        "chunk_size_feed_forward",
    ]
)

# Keys that change the mathematics at any other value than these.
_ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "pretraining_tp": (1, None),
    "partial_rotary_factor": (1, None),
    "rope_interleaved": (False, None),
    "use_sliding_window": (False, None),
    "sliding_window": (None,),
    "quantization_config": (None,),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "use_qk_norm": (False, None),
    "is_encoder_decoder": (False,),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, None),
    "num_experts": (0, None),
    "num_local_experts": (0, None),
}


def _refuse_unknown(config: Mapping[str, Any], family: Family) -> None:
    understood = _UNDERSTOOD | family.understood | _HARMLESS | family.harmless
    for key, value in config.items():
        if key in understood:
            continue
        if key == "layer_types":
            if value is not None and any(kind != "full_attention" for kind in value):
                raise ValueError(
                    f"layer_types={value!r} is not implemented; supported: 'full_attention' in every layer."
                )
        elif key not in _ONLY:
            raise ValueError(
                f"{key}={value!r} is not a key of a {family.model_type} config that is understood, and it may change "
                "the mathematics. Remove it if it does not."
            )
        elif value not in _ONLY[key]:
            allowed = " or ".join(repr(allowed) for allowed in _ONLY[key])
            raise ValueError(f"{key}={value!r} is not implemented for {family.model_type}; supported: {allowed}.")


_LLAMA3_KEYS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def _read_rope(config: Mapping[str, Any]) -> tuple[float, Llama3RopeScaling | None]:
    """Theta and scaling: transformers 5 writes both under `rope_parameters`, transformers 4 under two keys."""
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = float(given(rope, "rope_theta", given(config, "rope_theta", 10000.0)))
    kind = given(rope, "rope_type", given(rope, "type", "default"))
    if kind not in ("default", "llama3"):
        raise ValueError(f"rope_type={kind!r} is not implemented; supported: 'default', 'llama3'.")
    if given(rope, "partial_rotary_factor", 1) != 1:
        raise ValueError(f"partial_rotary_factor={rope['partial_rotary_factor']!r} is not implemented; supported: 1.")
    known = ("rope_theta", "rope_type", "type", "partial_rotary_factor", *(_LLAMA3_KEYS if kind == "llama3" else ()))
    for key, value in rope.items():
        if key not in known:
            raise ValueError(f"{key}={value!r} is not understood among the parameters of rope_type {kind!r}.")
    if kind == "default":
        return theta, None
    original = given(rope, "original_max_position_embeddings", config.get("max_position_embeddings"))
    missing = [key for key in _LLAMA3_KEYS[:3] if rope.get(key) is None]
    if missing or original is None:
        missing += ["original_max_position_embeddings"] if original is None else []
        raise ValueError(f"rope_type 'llama3' lacks {', '.join(missing)}.")
    scaling = Llama3RopeScaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_max_length=int(original),
    )
    return theta, scaling
