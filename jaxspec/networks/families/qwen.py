"""Qwen2, whose queries, keys and values always have biases, and Qwen3, whose query and key heads are normalised."""

from collections.abc import Mapping
from typing import Any

from jaxspec.networks.families.common import GGUF, Family, given, layer_types, windows
from jaxspec.networks.families.config import TransformerConfig

_WINDOW = frozenset({"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"})


def _windows(config: Mapping[str, Any]) -> dict[str, Any]:
    """A window is in use only where `use_sliding_window` says so, and only from `max_window_layers` on."""
    first = given(config, "max_window_layers", 28)
    return windows(config, lambda layer: layer >= first) if config.get("use_sliding_window") else {}


def _window_keys(config: TransformerConfig) -> dict[str, Any]:
    if config.window is None:
        return {}
    return {"use_sliding_window": True, "sliding_window": config.window, "layer_types": layer_types(config)}


def _qwen2_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"attention_bias": True, **_windows(config)}


def _qwen3_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    bias = bool(config.get("attention_bias"))
    return {
        "head_dim": given(config, "head_dim", 128),
        "attention_bias": bias,
        "attention_output_bias": bias,
        "qk_norm": True,
        **_windows(config),
    }


def _qwen3_keys(config: TransformerConfig) -> dict[str, Any]:
    return {"attention_bias": config.attention_bias, **_window_keys(config)}


QWEN2 = Family(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    fields=_qwen2_fields,
    keys=_window_keys,
    understood=_WINDOW,
    gguf=GGUF("qwen2"),
)
QWEN3 = Family(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    fields=_qwen3_fields,
    keys=_qwen3_keys,
    understood=_WINDOW | {"attention_bias"},
    gguf=GGUF("qwen3"),
)
