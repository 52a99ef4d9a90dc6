"""Context, block and commit: the committed tokens of a sequence, and how accepted ones join them.

A context holds committed tokens only. A model reads it and writes the tokens in flight into a block of its own; what is
accepted is then gathered from the block and appended. A rejected token was never in the context, so nothing is ever
rolled back, and whatever lies behind `length` is never read.
"""

import functools
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jaxspec import base
from jaxspec.base import Context, Entries, Model, Params

MIN_CAPACITY = 64


def bucket(num_slots: int) -> int:
    """The capacity that holds `num_slots` slots: the next power of two, at least `MIN_CAPACITY`."""
    return max(MIN_CAPACITY, 1 << (num_slots - 1).bit_length())


def empty(model: Model, slots: int) -> Context:
    """A context of `slots` slots that holds no token yet."""
    return Context(model.empty(slots), jnp.zeros((), jnp.int32))


def commit(
    model: Model,
    context: Context,
    block: Entries,
    count: jax.Array,
    indices: jax.Array | None = None,
    anchor: jax.Array | None = None,
) -> Context:
    """The context with `count` more tokens, taken from the block.

    All candidates are written behind the committed tokens and only the first `count` of them are counted, so the caller
    reserves room for all: `length + m <= S`, where m is the number of indices (`dynamic_update_slice` clamps).

    Args:
        model: Tells the slot axis of the entries.
        context: `length` tokens committed so far.
        block: Entries of N tokens in flight.
        count: `[]` int32, how many tokens join; may be 0.
        indices: `[m]` int32 slots of the block in the order in which they join. None: the block as it stands.
        anchor: `[]` int32 of at least 0, known at the round's end, which this commit waits for. XLA copies a whole
            cache whose update it could start before the last read of it, which happens where the update does not depend
            on the round's outcome.
    """
    chex.assert_rank([context.length, count], 0)
    if indices is not None:
        chex.assert_rank(indices, 1)
        chex.assert_type(indices, jnp.integer)
    start = context.length if anchor is None else context.length + jnp.minimum(anchor, 0)
    return Context(write(model, context.entries, block, start, indices), context.length + count)


def prefill(
    model: Model, params: Params, context: Context, tokens: jax.Array, start: jax.Array, stop: jax.Array, chunk: int
) -> Context:
    """The context after one chunk of a prompt.

    Args:
        model: The model whose entries are filled.
        params: Its parameters.
        context: Holds at least the tokens before `start`, unless the prompt ended before it.
        tokens: `[S]` int32 whose first `stop` are to be committed.
        start: `[]` int32, a multiple of `chunk`; `start + chunk <= S`. Chunks of a batch march in step.
        stop: `[]` int32, how many tokens of this row belong in the context.
        chunk: Tokens of one forward.

    Returns:
        The context with the tokens `start … min(start + chunk, stop) - 1`; unchanged (as far as anyone can read it)
        where `stop <= start`.
    """
    chunk_tokens = jax.lax.dynamic_slice(tokens, (start,), (chunk,))
    positions = start + jnp.arange(chunk, dtype=jnp.int32)
    causal = jnp.tril(jnp.ones((chunk, chunk), bool))
    output = base.forward(model, params, chunk_tokens, positions, context, model.empty(chunk), 0, causal)
    entries = write(model, context.entries, output.block, start, None)
    return Context(entries, jnp.maximum(context.length, jnp.minimum(start + chunk, stop)))


def grow(model: Model, context: Context, slots: int) -> Context:
    """The same context with room for `slots` slots, for a single sequence."""
    room = model.empty(slots)
    entries = jax.tree.map(
        lambda old, new, axis: jax.lax.dynamic_update_slice_in_dim(new, old, 0, axis),
        context.entries,
        room,
        slot_axes(model),
    )
    return Context(entries, context.length)


def write(
    model: Model, entries: Entries, block: Entries, start: jax.Array | int, indices: jax.Array | None = None
) -> Entries:
    """The entries with the slots of a block written from slot `start` on.

    Args:
        model: Tells the slot axis of both.
        entries: Of a context, or a block.
        block: What is written.
        start: Where; `start` and the number of written slots fit into the entries (`dynamic_update_slice` clamps).
        indices: `[m]` int32 slots of the block in the order in which they are written. None: the block as it stands.
    """

    def write_leaf(old: jax.Array, new: jax.Array, axis: int) -> jax.Array:
        if indices is not None:
            new = jnp.take(new, indices, axis=axis, mode="clip")
        return jax.lax.dynamic_update_slice_in_dim(old, new, start, axis)

    return jax.tree.map(write_leaf, entries, block, slot_axes(model))


@functools.lru_cache(maxsize=64)
def slot_axes(model: Model) -> Any:
    """The slot axis of each leaf of the model's entries: the one that follows the number of slots.

    Raises:
        ValueError: A leaf whose shape follows the number of slots along no axis or along several.
    """

    def axis(path: Any, three: jax.ShapeDtypeStruct, five: jax.ShapeDtypeStruct) -> int:
        follows = [i for i, sizes in enumerate(zip(three.shape, five.shape, strict=True)) if sizes == (3, 5)]
        if len(follows) != 1:
            raise ValueError(
                f"{type(model).__name__}.empty(3) and empty(5) give {three.shape} and {five.shape} at"
                f" {jax.tree_util.keystr(path)}: each leaf needs exactly one axis as long as the number of slots."
            )
        return follows[0]

    return jax.tree_util.tree_map_with_path(
        axis, jax.eval_shape(lambda: model.empty(3)), jax.eval_shape(lambda: model.empty(5))
    )
