"""Gemma 2 and the text networks of Gemma 3: windows in most layers, norms on both sides, scaled embeddings.

Weights of norms are stored as what they differ from 1 by. Gemma 2 caps scores and logits; Gemma 3 normalises queries
and keys instead, and turns them by another base in layers with a window.
"""

import math
from collections.abc import Mapping
from typing import Any

from jaxspec.networks.families import rope_keys
from jaxspec.networks.families.common import GGUF, Family, given, layer_types, windows
from jaxspec.networks.families.config import TransformerConfig

_GELU = "gelu_pytorch_tanh"


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """What both have."""
    activation = given(config, "hidden_activation", given(config, "hidden_act", _GELU))
    if activation != _GELU:
        raise ValueError(f"hidden_activation={activation!r} is not implemented; supported: {_GELU!r}.")
    if config.get("use_bidirectional_attention"):
        raise ValueError("use_bidirectional_attention=True is not implemented: a decoder sees what came before.")
    bias = bool(config.get("attention_bias"))
    return {
        "head_dim": given(config, "head_dim", 256),
        "tie_word_embeddings": bool(given(config, "tie_word_embeddings", True)),
        "attention_bias": bias,
        "attention_output_bias": bias,
        "activation": _GELU,
        "norm_offset": 1.0,
        "post_norms": True,
        "embedding_multiplier": math.sqrt(config["hidden_size"]),
        "score_divisor": math.sqrt(given(config, "query_pre_attn_scalar", 256)),
        "logit_cap": config.get("final_logit_softcapping"),
    }


def _keys(config: TransformerConfig) -> dict[str, Any]:
    return {
        "hidden_activation": config.activation,
        "attention_bias": config.attention_bias,
        "query_pre_attn_scalar": round((config.score_divisor or math.sqrt(config.head_dim)) ** 2),
        "sliding_window": config.window,
        "layer_types": layer_types(config),
        "attn_logit_softcapping": config.score_cap,
        "final_logit_softcapping": config.logit_cap,
    }


def _gemma2_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    caps = {
        "score_cap": config.get("attn_logit_softcapping", 50.0),
        "logit_cap": config.get("final_logit_softcapping", 30.0),
    }
    window = given(config, "sliding_window", 4096)
    return {**_fields(config), **caps, **windows({**config, "sliding_window": window}, lambda layer: layer % 2 == 0)}


def _gemma3_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("attn_logit_softcapping") is not None:
        raise ValueError(f"attn_logit_softcapping={config['attn_logit_softcapping']!r}: Gemma 3 has none.")
    period = given(config, "sliding_window_pattern", given(config, "_sliding_window_pattern", 6))
    window = given(config, "sliding_window", 4096)
    _, local = _ropes(config)
    return {
        **_fields(config),
        "window_rope_theta": local.theta,
        "qk_norm": True,
        **windows({**config, "sliding_window": window}, lambda layer: (layer + 1) % period != 0),
    }


def _ropes(config: Mapping[str, Any]) -> tuple[rope_keys.Rope, rope_keys.Rope]:
    """Rotation in layers without a window and with one; transformers 5 writes `rope_parameters` for each."""
    each = config.get("rope_parameters") or {}
    if unknown := each.keys() - {"full_attention", "sliding_attention"}:
        raise ValueError(f"rope_parameters={each!r}: {', '.join(sorted(unknown))} is no kind of layer of Gemma 3.")
    plain = {key: value for key, value in config.items() if key != "rope_scaling"}
    whole = rope_keys.read(config, 1e6, each.get("full_attention") or {})
    local_theta = {"rope_theta": given(config, "rope_local_base_freq", 10000.0)}
    local = rope_keys.read(plain, 10000.0, {**local_theta, **(each.get("sliding_attention") or {})})
    if local.scaling is not None or whole.share != 1 or local.share != 1:
        raise ValueError(f"rope_parameters={each!r}: stretched layers with a window are not implemented.")
    return whole, local


def _gemma3_keys(config: TransformerConfig) -> dict[str, Any]:
    return {**_keys(config), "rope_local_base_freq": config.window_rope_theta}


def _gguf_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The files do not say the scores' divisor: it is the head's size but in the two networks of 27 billion."""
    is_27b = config["num_hidden_layers"] in (46, 62)
    heads, head_dim = config["num_attention_heads"], given(config, "head_dim", 256)
    return {"query_pre_attn_scalar": config["hidden_size"] // heads if is_27b else head_dim}


_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_UNDERSTOOD = frozenset(
    [
        *("hidden_activation", "attention_bias", "query_pre_attn_scalar", "sliding_window", "layer_types"),
        *("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention"),
    ]
)

GEMMA2 = Family(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    fields=_gemma2_fields,
    keys=_keys,
    understood=_UNDERSTOOD,
    harmless=frozenset({"cache_implementation"}),
    activations=(_GELU,),
    gguf=GGUF(
        "gemma2",
        names=_NAMES,
        keys={
            "attention.sliding_window": "sliding_window",
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        config=_gguf_config,
    ),
)
GEMMA3 = Family(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    fields=_gemma3_fields,
    keys=_gemma3_keys,
    understood=_UNDERSTOOD | {"rope_local_base_freq", "sliding_window_pattern", "_sliding_window_pattern"},
    harmless=frozenset({"cache_implementation"}),
    activations=(_GELU,),
    rope=lambda config: _ropes(config)[0],
    gguf=GGUF("gemma3", names=_NAMES, keys={"attention.sliding_window": "sliding_window"}, config=_gguf_config),
)
