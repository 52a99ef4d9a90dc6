"""Families of published models: what a checkpoint's config means, and which of its keys are refused.

`config` has a network's constants, `common` what all families read, and each family a file of its own.
Reads nothing of jaxspec; the transformer and `networks.files` import it.
"""

from jaxspec.networks.families.config import Llama3RopeScaling, TransformerConfig
from jaxspec.networks.families.table import FAMILIES, from_hugging_face, to_hugging_face

__all__ = ["FAMILIES", "Llama3RopeScaling", "TransformerConfig", "from_hugging_face", "to_hugging_face"]
