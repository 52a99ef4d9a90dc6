"""The same network, looked at otherwise: without the rows that pad its vocabulary, with features, with blocks."""

import dataclasses

import jax

from jaxspec.base import Context, Entries, Model, Output, Params
from jaxspec.networks.transformer import Transformer


@dataclasses.dataclass(frozen=True)
class Trimmed:
    """A model without the rows that pad its embedding: their tokens have no logits, so nothing can draw them.

    Attributes:
        model: The padded model.
        vocab_size: How many tokens are real; the first ones.
    """

    model: Transformer
    vocab_size: int

    @property
    def max_length(self) -> int | None:
        return self.model.max_length

    def init(self, key: jax.Array) -> Params:
        """The padded model's random parameters; the key is consumed."""
        return self.model.init(key)

    def empty(self, slots: int) -> Entries:
        """The padded model's entries."""
        return self.model.empty(slots)

    def embed(self, params: Params, token: jax.Array) -> jax.Array:
        """`[D]` input embedding of one token."""
        return self.model.embed(params, token)

    def apply(
        self,
        params: Params,
        tokens: jax.Array,
        positions: jax.Array,
        context: Context,
        block: Entries,
        slot: jax.Array | int,
        mask: jax.Array,
    ) -> Output:
        """One forward over n tokens in flight; see `jaxspec.base.Model.apply`."""
        output = self.model.apply(params, tokens, positions, context, block, slot, mask)
        return output._replace(logits=output.logits[:, : self.vocab_size])


def with_features(model: Model, num_features: int) -> Model:
    """The same model, which also gives its last `num_features` hidden states: what H-RAD reads.

    Raises:
        ValueError: It has not so many of them, or it is of another kind.
    """
    return with_network(model, dataclasses.replace(network_of(model), num_features=num_features))


def with_blocks(model: Transformer, params: Params) -> tuple[Transformer, Params]:
    """The same model with its weights in blocks too (`weights.products`): on a CPU, cheaper calls of few tokens.

    It can't be differentiated in reverse: train the model without blocks.

    Raises:
        ValueError: Its activations are in rows, or its layers scanned.
    """
    network = dataclasses.replace(model, blocks=True)
    return network, network.add_blocks(params)


def network_of(model: Model) -> Transformer:
    """The `Transformer` itself, with its padding rows."""
    network = model.model if isinstance(model, Trimmed) else model
    if not isinstance(network, Transformer):
        raise ValueError(f"This needs a networks.Transformer, possibly Trimmed; not a {type(network).__name__}.")
    return network


def with_network(model: Model, network: Transformer) -> Model:
    """Another network, with the same padding rows left out as the model's."""
    return dataclasses.replace(model, model=network) if isinstance(model, Trimmed) else network
