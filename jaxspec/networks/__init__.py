"""Networks that decoders run, described with Flax nnx: the only place that knows a network.

`families` reads published configs, `files` weights, `weights` multiplies them, `drafts` makes drafts of models.
Reads `base` alone and never `decode`; pairs and training import it.
"""

from jaxspec.networks.drafts import Copying, early_exit, early_exit_params, reduce_vocabulary
from jaxspec.networks.families import Llama3RopeScaling, TransformerConfig, from_hugging_face, to_hugging_face
from jaxspec.networks.files import listed_stop_ids, load, load_tokenizer, save
from jaxspec.networks.mlp import MLP
from jaxspec.networks.transformer import Transformer
from jaxspec.networks.trimmed import Trimmed, with_blocks, with_features
from jaxspec.networks.weights import packed

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
    "listed_stop_ids",
    "load",
    "load_tokenizer",
    "packed",
    "reduce_vocabulary",
    "save",
    "to_hugging_face",
    "with_blocks",
    "with_features",
]
