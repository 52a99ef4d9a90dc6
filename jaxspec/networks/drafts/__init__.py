"""Drafts made of other models: a target's first layers, a reduced vocabulary, a draft that copies.

Reads the transformer; only `networks` imports it, which exports its names.
"""

from jaxspec.networks.drafts.copying import Copying
from jaxspec.networks.drafts.derived import early_exit, early_exit_params, reduce_vocabulary

__all__ = ["Copying", "early_exit", "early_exit_params", "reduce_vocabulary"]
