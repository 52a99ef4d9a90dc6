"""Families of published models: what a checkpoint's config means, and which of its keys are refused.

`config` has a network's constants, `common` what all families read, and each family a file of its own.
Reads nothing of jaxspec; the transformer and `networks.files` import it.
"""

from jaxspec.networks.families.config import TransformerConfig
from jaxspec.networks.families.rope import Llama3RopeScaling
from jaxspec.networks.families.table import ARCHITECTURES, FAMILIES, from_hugging_face, to_hugging_face

__all__ = [
    "ARCHITECTURES",
    "FAMILIES",
    "Llama3RopeScaling",
    "TransformerConfig",
    "from_hugging_face",
    "to_hugging_face",
]
