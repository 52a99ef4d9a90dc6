"""Granite: a Llama with four multipliers, of embeddings, scores, what is added to the residual stream, and logits."""

from collections.abc import Mapping
from typing import Any

from jaxspec.networks.families.common import Family, given
from jaxspec.networks.families.config import TransformerConfig


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    bias = bool(config.get("attention_bias"))
    return {
        "attention_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": bool(config.get("mlp_bias")),
        "embedding_multiplier": float(given(config, "embedding_multiplier", 1.0)),
        "residual_multiplier": float(given(config, "residual_multiplier", 1.0)),
        "score_divisor": 1 / float(given(config, "attention_multiplier", 1.0)),
        "logit_divisor": float(given(config, "logits_scaling", 1.0)),
    }


def _keys(config: TransformerConfig) -> dict[str, Any]:
    return {
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "embedding_multiplier": config.embedding_multiplier,
        "residual_multiplier": config.residual_multiplier,
        "attention_multiplier": 1 / (config.score_divisor or config.head_dim**0.5),
        "logits_scaling": config.logit_divisor,
    }


GRANITE = Family(
    model_type="granite",
    architecture="GraniteForCausalLM",
    fields=_fields,
    keys=_keys,
    understood=frozenset(
        [
            *("attention_bias", "mlp_bias", "embedding_multiplier", "residual_multiplier", "attention_multiplier"),
            "logits_scaling",
        ]
    ),
)
