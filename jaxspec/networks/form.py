"""`Form`: how a network is computed. A model makes it, its layers read it, and neither needs to know the other."""

import dataclasses

from jaxspec.networks.families import TransformerConfig


@dataclasses.dataclass(frozen=True)
class Form:
    """What the layers of one model read.

    Attributes:
        config: The network's constants.
        dtype: Of weights, activations and entries.
        columns: Whether products are taken of columns, `weight @ x.T`.
        blocks: Whether weights are held a second time, in blocks; see `weights.products`.
        num_logits: Rows of the head.
        has_tied_head: Whether the embedding is the head too.
    """

    config: TransformerConfig
    dtype: str
    columns: bool
    blocks: bool
    num_logits: int
    has_tied_head: bool
