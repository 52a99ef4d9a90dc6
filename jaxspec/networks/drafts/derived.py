"""Models made of other models: an early exit, a reduced output vocabulary or one without padding rows; with blocks."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.base import Context, Entries, Model, Output, Params
from jaxspec.networks.transformer import Transformer


def early_exit(target: Model, layers: int) -> Model:
    """A target's own first layers with its own final norm and head, as a model: self-speculation.

    Its parameters are those of `early_exit_params`.

    Args:
        target: A `Transformer`, possibly `Trimmed`.
        layers: How many layers it keeps, fewer than the target has.

    Raises:
        ValueError: `layers` is out of range, or the target is of another kind.
    """
    network = _network(target)
    num_layers = network.config.num_layers
    if not 1 <= layers < num_layers:
        raise ValueError(f"layers={layers}: an early exit of {num_layers} layers keeps 1 to {num_layers - 1} of them.")
    config = dataclasses.replace(network.config, num_layers=layers)
    first = dataclasses.replace(network, config=config, num_features=min(network.num_features, layers + 1))
    return _around(target, first)


def early_exit_params(target: Model, params: Params, layers: int) -> Params:
    """Parameters of `early_exit(target, layers)`: the target's own arrays, not copies (scanned layers are sliced)."""
    if _network(target).scan_layers:
        return {**params, "layers": jax.tree.map(lambda leaf: leaf[:layers], params["layers"])}
    return {**params, "layers": {str(index): params["layers"][str(index)] for index in range(layers)}}


def with_features(model: Model, num_features: int) -> Model:
    """The same model, which also gives its last `num_features` hidden states: what H-RAD reads.

    Raises:
        ValueError: It has not so many of them, or it is of another kind.
    """
    return _around(model, dataclasses.replace(_network(model), num_features=num_features))


def with_blocks(model: Transformer, params: Params) -> tuple[Transformer, Params]:
    """The same model with its weights in blocks too, which makes calls of few tokens cheaper on a CPU; see `products`.

    It can't be differentiated in reverse: train the model without blocks.

    Raises:
        ValueError: Its activations are in rows, or its layers scanned.
    """
    network = dataclasses.replace(model, blocks=True)
    return network, network.add_blocks(params)


def reduce_vocabulary(model: Model, params: Params, kept_ids: Sequence[int]) -> tuple[Transformer, Params]:
    """A draft that gives logits for some tokens only, by the rows of its head that belong to them (FR-Spec).

    A verifier sees zero draft probability elsewhere, so that every rule stays exact; the draft's step gets cheaper by
    the head's missing rows. All arrays but the new head are the model's own.

    Args:
        model: A `Transformer`, possibly `Trimmed`.
        params: Its parameters.
        kept_ids: Token ids, in any order. The stop tokens should be among them: a draft that can't end a text costs a
            rejection there.

    Raises:
        ValueError: Ids that repeat or are no tokens of the model, none at all, or a model of another kind.
    """
    size = model.vocab_size
    inner = _network(model)
    if inner.kept_ids is not None:
        raise ValueError(f"This model keeps {len(inner.kept_ids)} tokens already: reduce the whole model instead.")
    ids = np.unique(np.asarray(kept_ids, np.int64))
    if not ids.size or ids.size != len(kept_ids) or ids[0] < 0 or ids[-1] >= size:
        raise ValueError(f"kept_ids must be different token ids between 0 and {size - 1}, and at least one.")
    head = params["embed_tokens" if inner.config.tie_word_embeddings else "lm_head"]["weight"]
    reduced = dataclasses.replace(inner, kept_ids=tuple(ids.tolist()))
    rows = jnp.take(head, jnp.asarray(ids, jnp.int32), axis=0)
    return reduced, reduced.add_blocks({**params, "lm_head": {"weight": rows}})


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


def _network(model: Model) -> Transformer:
    """The `Transformer` itself, with its padding rows."""
    network = model.model if isinstance(model, Trimmed) else model
    if not isinstance(network, Transformer):
        raise ValueError(f"This needs a networks.Transformer, possibly Trimmed; not a {type(network).__name__}.")
    return network


def _around(model: Model, network: Transformer) -> Model:
    """Another network, with the same padding rows left out as the model's."""
    return dataclasses.replace(model, model=network) if isinstance(model, Trimmed) else network
