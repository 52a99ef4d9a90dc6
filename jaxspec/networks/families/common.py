"""What Hugging Face's `config.json` means in every family, and what a `Family` adds: its own keys and refusals.

A key of a checkpoint's config is understood, known to be harmless, or refused by name: nothing is ignored in silence.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jaxspec.networks.families import rope_keys
from jaxspec.networks.families.config import TransformerConfig, pattern


@dataclasses.dataclass(frozen=True)
class GGUF:
    """What the GGUF files of a family are like, beyond what all have in common.

    Attributes:
        architecture: Their `general.architecture`.
        names: Names of tensors that differ, by the name in the file; as in `gguf_file`.
        keys: Further keys of the metadata, and their names in a Hugging Face config.
        config: From such a config, keys that the files leave to the reader's knowledge.
        has_interleaved_rows: Whether the rows of queries and keys are stored for interleaved rotation.
    """

    architecture: str
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    keys: Mapping[str, str] = dataclasses.field(default_factory=dict)
    config: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda config: {}
    has_interleaved_rows: bool = False


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of published models.

    Attributes:
        model_type: Its name in a config.
        architecture: Its class in transformers.
        fields: From a config, the fields of `TransformerConfig` in which it differs from the common reading.
        keys: From a network's constants, the keys of a config that not every family has; or other values of those.
        understood: Keys that `fields` reads.
        harmless: Keys that change nothing in this family.
        activations: What `hidden_act` may be.
        rope: What its configs say of rotation.
        gguf: What its GGUF files are like; None: it is not read from them.
    """

    model_type: str
    architecture: str
    fields: Callable[[Mapping[str, Any]], dict[str, Any]]
    keys: Callable[[TransformerConfig], dict[str, Any]]
    understood: frozenset[str] = frozenset()
    harmless: frozenset[str] = frozenset()
    activations: tuple[str, ...] = ("silu",)
    rope: Callable[[Mapping[str, Any]], rope_keys.Rope] = rope_keys.read
    gguf: GGUF | None = None


def read(config: Mapping[str, Any], family: Family) -> TransformerConfig:
    """The constants of a network of this family.

    Raises:
        ValueError: A key is missing, or would change the mathematics in a way that is not implemented.
    """
    _refuse_unknown(config, family)
    missing = [key for key in _REQUIRED if config.get(key) is None]
    if missing:
        raise ValueError(f"The config lacks {', '.join(missing)}.")
    for key in (*_REQUIRED, *_SIZES):
        if not isinstance(config.get(key), int | None) or isinstance(config.get(key), bool):
            raise ValueError(f"{key}={config[key]!r} is not a whole number.")
        if (config.get(key) or 1) < 1:
            raise ValueError(f"{key}={config[key]!r}: it must be at least 1.")
    num_heads = config["num_attention_heads"]
    rope = family.rope(config)
    common = {
        "vocab_size": config["vocab_size"],
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": num_heads,
        "num_kv_heads": given(config, "num_key_value_heads", num_heads),
        "head_dim": given(config, "head_dim", config["hidden_size"] // num_heads),
        "rms_norm_eps": float(given(config, "rms_norm_eps", 1e-6)),
        "rope_theta": rope.theta,
        "rope_scaling": rope.scaling,
        "rope_share": rope.share,
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
        "hidden_act": config.activation,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "initializer_range": config.initializer_range,
    }
    if config.max_length is not None:
        entries["max_position_embeddings"] = config.max_length
    if config.rope_share != 1:
        entries["partial_rotary_factor"] = config.rope_share
    if config.rope_scaling is not None:
        entries["rope_scaling"] = rope_keys.written(config.rope_scaling)
    return entries | family.keys(config)


def given(config: Mapping[str, Any], key: str, otherwise: Any) -> Any:
    """The value of a key, or `otherwise` where it is absent or null."""
    value = config.get(key)
    return otherwise if value is None else value


_REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")

_SIZES = ("num_key_value_heads", "head_dim", "max_position_embeddings", "original_max_position_embeddings")

_UNDERSTOOD = (
    frozenset(_REQUIRED)
    | rope_keys.UNDERSTOOD
    | {
        "model_type",
        "num_key_value_heads",
        "head_dim",
        "rms_norm_eps",
        "tie_word_embeddings",
        "max_position_embeddings",
        "initializer_range",
    }
)

# Bookkeeping, training, or the shape of transformers' own outputs; and what says how to generate, not what is computed.
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
        "torchscript",
        "prefix",
        "sep_token_id",
        "finetuning_task",
        "gradient_checkpointing",
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
        "max_length",
        "min_length",
        "max_new_tokens",
        "num_beams",
        "num_beam_groups",
        "early_stopping",
        "diversity_penalty",
        "length_penalty",
        "repetition_penalty",
        "encoder_no_repeat_ngram_size",
        "no_repeat_ngram_size",
        "bad_words_ids",
        "num_return_sequences",
        "output_scores",
        "return_dict_in_generate",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "remove_invalid_values",
        "exponential_decay_length_penalty",
        "suppress_tokens",
        "begin_suppress_tokens",
    ]
)

# Keys that change the mathematics at any other value than these.
_ONLY: dict[str, tuple[Any, ...]] = {
    "pretraining_tp": (1, None),
    "rope_interleaved": (False, None),
    "use_sliding_window": (False, None),
    "sliding_window": (None,),
    "use_mrope": (False, None),
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


_KINDS_OF_LAYERS = ("full_attention", "sliding_attention")


def _refuse_unknown(config: Mapping[str, Any], family: Family) -> None:
    understood = _UNDERSTOOD | family.understood | _HARMLESS | family.harmless
    only = {**_ONLY, "hidden_act": (*family.activations, None)}
    for key, value in config.items():
        if key in understood:
            continue
        if key == "layer_types":
            if value is not None and any(kind != "full_attention" for kind in value):
                raise ValueError(
                    f"layer_types={value!r} is not implemented for {family.model_type}; supported: 'full_attention' "
                    "in every layer."
                )
        elif key not in only:
            raise ValueError(
                f"{key}={value!r} is not a key of a {family.model_type} config that is understood, and it may change "
                "the mathematics. Remove it if it does not."
            )
        elif value not in only[key]:
            allowed = " or ".join(repr(allowed) for allowed in only[key])
            raise ValueError(f"{key}={value!r} is not implemented for {family.model_type}; supported: {allowed}.")


def windows(config: Mapping[str, Any], default: Callable[[int], bool]) -> dict[str, Any]:
    """The fields on windows, from `sliding_window` and the kinds of layers that a config lists.

    Args:
        config: The config.
        default: Whether a layer has a window, where `layer_types` is not there.

    Raises:
        ValueError: A kind of layer that is not known, or a window that is not a positive number.
    """
    window, kinds, num_layers = config.get("sliding_window"), config.get("layer_types"), config["num_hidden_layers"]
    if kinds is None:
        layers = [default(layer) for layer in range(num_layers)]
    elif not isinstance(kinds, list | tuple) or len(kinds) != num_layers or not set(kinds) <= set(_KINDS_OF_LAYERS):
        known = " or ".join(repr(kind) for kind in _KINDS_OF_LAYERS)
        raise ValueError(f"layer_types={kinds!r} is not implemented; supported: {known} for each of the layers.")
    else:
        layers = [kind == "sliding_attention" for kind in kinds]
    if window is None or not any(layers):
        return {}
    if not isinstance(window, int) or isinstance(window, bool) or window < 1:
        raise ValueError(f"sliding_window={window!r}: it must be a whole number of tokens, at least 1.")
    return {"window": window, "window_layers": pattern(layers)}


def layer_types(config: TransformerConfig) -> list[str]:
    """The kind of each layer, as configs list them."""
    return [_KINDS_OF_LAYERS[kind.window is not None] for kind in config.layer_kinds]
