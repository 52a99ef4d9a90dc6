"""The families that are known, and a network's constants by way of the one that it is of."""

from collections.abc import Mapping
from typing import Any

from jaxspec.networks.families import common
from jaxspec.networks.families.common import Family
from jaxspec.networks.families.config import TransformerConfig
from jaxspec.networks.families.gemma import GEMMA2, GEMMA3
from jaxspec.networks.families.granite import GRANITE
from jaxspec.networks.families.llama import LLAMA
from jaxspec.networks.families.mistral import MISTRAL
from jaxspec.networks.families.olmo import OLMO2
from jaxspec.networks.families.phi import PHI3
from jaxspec.networks.families.qwen import QWEN2, QWEN3
from jaxspec.networks.families.smollm import SMOLLM3

_FAMILIES = (LLAMA, QWEN2, QWEN3, MISTRAL, PHI3, OLMO2, GRANITE, SMOLLM3, GEMMA2, GEMMA3)
"""A new family is a file beside this one and an entry here. The first that can say a network's constants writes it."""

FAMILIES: dict[str, Family] = {family.model_type: family for family in _FAMILIES}
"""By `model_type`."""

ARCHITECTURES: dict[str, Family] = {family.gguf.architecture: family for family in FAMILIES.values() if family.gguf}
"""By the architecture that GGUF files name."""


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
        ValueError: No family has these constants.
    """
    for family in FAMILIES.values():
        entries = common.written(config, family)
        if _means(entries, config):
            return entries
    raise ValueError(f"{config} is none of {', '.join(FAMILIES)}, so it has no config.json.")


def _means(entries: Mapping[str, Any], config: TransformerConfig) -> bool:
    """Whether a config is read as these constants: a family has those that its own config can say."""
    try:
        return from_hugging_face(entries) == config
    except ValueError:
        return False
