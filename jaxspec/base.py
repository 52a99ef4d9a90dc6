"""What everything else is written in: the letters, the `Model` protocol and its `Output`.

Letters of array shapes, the same in every module:

    B batch    T new tokens      S cache slots    V vocabulary    D width      L layers   H heads
    N tokens in flight (a tree's nodes, with its root)            C children   n tokens of one call
    G draft length               R branches       K feature layers

`target_…` and `draft_…` name the two models and what belongs to them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import chex
import jax
import jax.numpy as jnp

Params = Any
"""A nested dict of arrays."""

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""

BLOCK = 64
"""Tokens of one block of the vocabulary. On a CPU the head's product gives logits in such blocks
(`networks.weights.products`), and searches and draws read them as they lie (`sampling.draws`)."""

Entries = Any
"""A pytree of arrays with one slot axis each: whatever a model stores for a token (keys and values, say)."""


class Context(NamedTuple):
    """Committed tokens of one sequence, as a model stores them.

    Attributes:
        entries: What `Model.empty(S)` gives, slots `0 … length - 1` filled.
        length: `[]` int32, how many slots hold committed tokens. Whatever lies behind them is never read.
    """

    entries: Entries
    length: jax.Array


class Output(NamedTuple):
    """What `Model.apply` returns for the n tokens of one call.

    Attributes:
        logits: `[n, V]`, in the network's own dtype.
        hidden: `[n, K, D]` features of the last K layers, or None where a model offers none.
        block: The block that was handed in, with the n tokens' entries written.
    """

    logits: jax.Array
    hidden: jax.Array | None
    block: Entries


@runtime_checkable
class Model(Protocol):
    """A language model as a hashable description without arrays, written for one sequence.

    Two models that are equal and hash alike compile once. A model may have two further attributes:

        max_length  The number of positions that it was made for; None: no limit.
        kept_ids    For a draft with a reduced output vocabulary: the ascending ids that its logits `[n, len(kept_ids)]`
                    belong to. It never proposes another token. None: all of them.
    """

    @property
    def vocab_size(self) -> int:
        """V."""
        ...

    def init(self, key: jax.Array) -> Params:
        """Random parameters; the key is consumed."""
        ...

    def empty(self, slots: int) -> Entries:
        """Entries for `slots` tokens. Each leaf has exactly one axis that follows `slots`: its slot axis."""
        ...

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
        """One forward over n tokens in flight.

        Args:
            params: The model's parameters.
            tokens: `[n]` int32.
            positions: `[n]` int32 absolute positions, which need not follow one another.
            context: Read up to its length by every token, never written.
            block: Entries of the N tokens in flight, as from `empty(N)`.
            slot: Where the n tokens' entries begin in the block; `slot + n <= N`.
            mask: `[n, N]` bool, which slots of the block each token sees; it must see its own.

        Returns:
            Logits for the token after each of the n tokens, features, and the block with their entries.
        """
        ...

    def embed(self, params: Params, token: jax.Array) -> jax.Array:
        """`[D]` input embedding of one token."""
        ...


def forward(
    model: Model,
    params: Params,
    tokens: jax.Array,
    positions: jax.Array,
    context: Context,
    block: Entries,
    slot: jax.Array | int,
    mask: jax.Array,
) -> Output:
    """`Model.apply`, whose arguments these are, with the shapes of what it returns checked while it is traced.

    Raises:
        AssertionError: Something else than a model promises.
    """
    output = model.apply(params, tokens, positions, context, block, slot, mask)
    num_tokens, kept = tokens.shape[0], getattr(model, "kept_ids", None)
    chex.assert_shape(output.logits, (num_tokens, model.vocab_size if kept is None else len(kept)))
    chex.assert_type(output.logits, jnp.floating)
    if output.hidden is not None:
        chex.assert_shape(output.hidden, (num_tokens, None, None))
    chex.assert_trees_all_equal_shapes_and_dtypes(output.block, block)
    return output
