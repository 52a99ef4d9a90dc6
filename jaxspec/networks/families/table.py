"""The families that are known, and a network's constants by way of the one that it is of."""

from collections.abc import Mapping
from typing import Any

from jaxspec.networks.families import common
from jaxspec.networks.families.common import Family
from jaxspec.networks.families.config import TransformerConfig
from jaxspec.networks.families.llama import LLAMA
from jaxspec.networks.families.qwen import QWEN2, QWEN3

FAMILIES: dict[str, Family] = {family.model_type: family for family in (LLAMA, QWEN2, QWEN3)}
"""By `model_type`. A new family is a file beside this one and an entry here."""


def from_hugging_face(config: Mapping[str, Any]) -> TransformerConfig:
    """The constants of a network from its `config.json`, in the form of transformers 4 or 5.

    Args:
        config: The file's dict.

    Raises:
        ValueError: A key is missing, or would change the mathematics in a way that is not implemented.
    """
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        raise ValueError(f"model_type={model_type!r} is not implemented; supported: {', '.join(FAMILIES)}.")
    return common.read(config, FAMILIES[model_type])


def to_hugging_face(config: TransformerConfig) -> dict[str, Any]:
    """A `config.json` that transformers 4 and 5 read.

    Raises:
        ValueError: No family has this combination of biases and norms.
    """
    family = next((family for family in FAMILIES.values() if family.is_one(config)), None)
    if family is None:
        biases = (config.attention_bias, config.attention_output_bias, config.mlp_bias)
        raise ValueError(
            f"attention_bias, attention_output_bias, mlp_bias = {biases} with qk_norm={config.qk_norm} is none of "
            f"{', '.join(FAMILIES)}, so it has no config.json."
        )
    return common.written(config, family)
