"""Networks that decoders run, described with Flax nnx. The only place that knows a network."""

from jaxspec.networks.drafts.copying import Copying
from jaxspec.networks.drafts.derived import (
    Trimmed,
    early_exit,
    early_exit_params,
    reduce_vocabulary,
    with_blocks,
    with_features,
)
from jaxspec.networks.families.common import Llama3RopeScaling, TransformerConfig, from_hugging_face
from jaxspec.networks.files.loading import load, load_tokenizer, save
from jaxspec.networks.mlp import MLP
from jaxspec.networks.transformer import Transformer
from jaxspec.networks.weights.memory import packed

__all__ = [
    "MLP",
    "Copying",
    "Llama3RopeScaling",
    "Transformer",
    "TransformerConfig",
    "Trimmed",
    "early_exit",
    "early_exit_params",
    "from_hugging_face",
    "load",
    "load_tokenizer",
    "packed",
    "reduce_vocabulary",
    "save",
    "with_blocks",
    "with_features",
]
