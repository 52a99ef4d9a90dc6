"""Qwen2, whose queries, keys and values always have biases, and Qwen3, whose query and key heads are normalised."""

from collections.abc import Mapping
from typing import Any

from jaxspec.networks.families.common import Family, given
from jaxspec.networks.families.config import TransformerConfig

# A sliding window is not in use while use_sliding_window is false, which is checked among the common keys.
_WINDOW = frozenset({"sliding_window", "max_window_layers"})


def _qwen2_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"attention_bias": True}


def _is_qwen2(config: TransformerConfig) -> bool:
    return not config.qk_norm and _biases(config) == (True, False, False)


def _qwen2_keys(config: TransformerConfig) -> dict[str, Any]:
    return {}


def _qwen3_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    bias = bool(config.get("attention_bias"))
    return {
        "head_dim": given(config, "head_dim", 128),
        "attention_bias": bias,
        "attention_output_bias": bias,
        "qk_norm": True,
    }


def _is_qwen3(config: TransformerConfig) -> bool:
    return config.qk_norm and _biases(config) in ((False, False, False), (True, True, False))


def _qwen3_keys(config: TransformerConfig) -> dict[str, Any]:
    return {"attention_bias": config.attention_bias}


def _biases(config: TransformerConfig) -> tuple[bool, bool, bool]:
    return config.attention_bias, config.attention_output_bias, config.mlp_bias


QWEN2 = Family("qwen2", "Qwen2ForCausalLM", _qwen2_fields, _is_qwen2, _qwen2_keys, harmless=_WINDOW)
QWEN3 = Family(
    "qwen3", "Qwen3ForCausalLM", _qwen3_fields, _is_qwen3, _qwen3_keys, frozenset({"attention_bias"}), _WINDOW
)
