"""SmolLM3: a Llama in which every fourth layer does not turn queries and keys."""

from collections.abc import Mapping
from typing import Any

from jaxspec.networks.families import rope_keys
from jaxspec.networks.families.common import Family, given, layer_types, windows
from jaxspec.networks.families.config import TransformerConfig, pattern


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    bias, num_layers = bool(config.get("attention_bias")), config["num_hidden_layers"]
    interval = given(config, "no_rope_layer_interval", 4)
    has_rope = config.get("no_rope_layers")  # in spite of its name, 1 where a layer has it
    if has_rope is None:
        has_rope = [(layer + 1) % interval != 0 for layer in range(num_layers)]
    if not isinstance(has_rope, list | tuple) or len(has_rope) != num_layers:
        raise ValueError(f"no_rope_layers={has_rope!r}: it must have one entry for each of {num_layers} layers.")
    return {
        "tie_word_embeddings": bool(given(config, "tie_word_embeddings", True)),
        "attention_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": bool(config.get("mlp_bias")),
        "rope_layers": pattern([bool(one) for one in has_rope]),
        **(windows(config, lambda layer: not has_rope[layer]) if config.get("use_sliding_window") else {}),
    }


def _keys(config: TransformerConfig) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "no_rope_layers": [int(kind.rope_theta is not None) for kind in config.layer_kinds],
    }
    if config.window is None:
        return keys
    window = {"use_sliding_window": True, "sliding_window": config.window, "layer_types": layer_types(config)}
    return keys | window


SMOLLM3 = Family(
    model_type="smollm3",
    architecture="SmolLM3ForCausalLM",
    fields=_fields,
    keys=_keys,
    rope=lambda config: rope_keys.read(config, 2e6),
    understood=frozenset(
        [
            *("attention_bias", "mlp_bias", "no_rope_layers", "no_rope_layer_interval", "layer_types"),
            *("use_sliding_window", "sliding_window"),
        ]
    ),
)
