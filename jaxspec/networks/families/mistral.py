"""Mistral: a Llama whose layers see a window of the newest tokens, where the config has one."""

from collections.abc import Mapping
from typing import Any

from jaxspec.networks.families.common import Family, windows
from jaxspec.networks.families.config import TransformerConfig


def _fields(config: Mapping[str, Any]) -> dict[str, Any]:
    return windows({"sliding_window": 4096, **config}, lambda layer: True)


def _keys(config: TransformerConfig) -> dict[str, Any]:
    return {"sliding_window": config.window}


MISTRAL = Family(
    model_type="mistral",
    architecture="MistralForCausalLM",
    fields=_fields,
    keys=_keys,
    understood=frozenset({"sliding_window"}),
)
