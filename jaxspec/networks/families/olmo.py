"""OLMo 2: norms behind attention and feed-forward alone, and queries and keys normalised over all heads at once."""

from collections.abc import Mapping
from typing import Any

from jaxspec.networks.families.common import Family, given
from jaxspec.networks.families.config import TransformerConfig


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    bias = bool(config.get("attention_bias"))
    return {
        "rms_norm_eps": float(given(config, "rms_norm_eps", 1e-5)),
        "attention_bias": bias,
        "attention_output_bias": bias,
        "qk_norm": True,
        "qk_norm_is_wide": True,
        "pre_norms": False,
        "post_norms": True,
    }


def _keys(config: TransformerConfig) -> dict[str, Any]:
    return {"attention_bias": config.attention_bias}


OLMO2 = Family(
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    fields=_fields,
    keys=_keys,
    understood=frozenset({"attention_bias"}),
)
