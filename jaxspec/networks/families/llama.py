"""Llama 2 and 3, SmolLM2 and what else calls itself "llama": the common reading, with biases that a config may have."""

from collections.abc import Mapping
from typing import Any

from jaxspec.networks.families.common import GGUF, Family
from jaxspec.networks.families.config import TransformerConfig


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    bias = bool(config.get("attention_bias"))
    return {"attention_bias": bias, "attention_output_bias": bias, "mlp_bias": bool(config.get("mlp_bias"))}


def _keys(config: TransformerConfig) -> dict[str, Any]:
    return {"attention_bias": config.attention_bias, "mlp_bias": config.mlp_bias}


LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    fields=_fields,
    keys=_keys,
    understood=frozenset({"attention_bias", "mlp_bias"}),
    gguf=GGUF("llama", has_interleaved_rows=True),
)
