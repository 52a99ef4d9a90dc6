"""Phi-3 and Phi-4: one product for queries, keys and values and one for gate and up; a window; stretched rotation."""

from collections.abc import Mapping
from typing import Any

from jaxspec.networks.families import rope_keys
from jaxspec.networks.families.common import Family, windows
from jaxspec.networks.families.config import TransformerConfig
from jaxspec.networks.families.rope import LongRopeScaling

# Names that old configs have for the one way of stretching that there is.
_OLD_KINDS = ("su", "yarn")


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"fused_projections": True, **windows(config, lambda layer: True)}


def _rope(config: Mapping[str, Any]) -> rope_keys.Rope:
    renamed = dict(config)
    for key in ("rope_scaling", "rope_parameters"):
        rope = config.get(key)
        if isinstance(rope, Mapping) and rope.get("rope_type", rope.get("type")) in _OLD_KINDS:
            renamed[key] = {**rope, "rope_type": "longrope"}
    if renamed.get("original_max_position_embeddings") is None:
        renamed["original_max_position_embeddings"] = 4096
    return rope_keys.read(renamed)


def _keys(config: TransformerConfig) -> dict[str, Any]:
    keys: dict[str, Any] = {"sliding_window": config.window}
    if isinstance(config.rope_scaling, LongRopeScaling):
        keys["original_max_position_embeddings"] = config.rope_scaling.original_max_length
    return keys


PHI3 = Family(
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    fields=_fields,
    keys=_keys,
    rope=_rope,
    understood=frozenset({"sliding_window"}),
    harmless=frozenset({"resid_pdrop", "embd_pdrop"}),
)
