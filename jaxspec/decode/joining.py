"""Programs on a batch whose rows come and go: read a prompt, join, leave, resize, and run a few rounds.

States are kept without options and log-probabilities (`_bare`): their kind changes with the rows that are there.
"""

import functools

import jax
import jax.numpy as jnp

from jaxspec import cache
from jaxspec.base import Context, Params
from jaxspec.decode import loop, stats
from jaxspec.decode import state as states
from jaxspec.decode.state import Decoder, Row, State
from jaxspec.sampling import Options


@functools.partial(jax.jit, static_argnames=("decoder", "num_slots"))
def empty(decoder: Decoder, params: dict[str, Params], row: Row, num_slots: int) -> State:
    """States of B rows like one, with a leading axis of 1, before anything is read."""
    rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[0], (num_slots, *leaf.shape[1:])), row)
    return _bare(jax.vmap(lambda one: decoder.init(params, one))(rows))


@functools.partial(jax.jit, static_argnames=("decoder", "chunk"), donate_argnames="state")
def read(decoder: Decoder, params: dict[str, Params], state: State, start: jax.Array, chunk: int) -> State:
    """The states with one more chunk of their prompts in the contexts."""
    return jax.vmap(lambda one: states.prefill(decoder, params, one, start, chunk))(state)


@functools.partial(jax.jit, donate_argnames=("state", "counts"))
def join(state: State, counts: stats.Counts, one: State, slot: jax.Array) -> tuple[State, stats.Counts]:
    """The states with another row, of a batch of one and at most their capacity, in a slot; its counts are zero."""

    def put(all_rows: jax.Array, row: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice(all_rows, row, (slot, *[jnp.int32(0)] * (all_rows.ndim - 1)))

    return jax.tree.map(put, state, one), jax.tree.map(lambda leaf: leaf.at[slot].set(0), counts)


@functools.partial(jax.jit, donate_argnames="state")
def leave(state: State, left: jax.Array) -> State:
    """The states in which `[B]` slots are free: finished rows of one token, which need no room."""
    row = state.row
    row = row._replace(
        is_finished=row.is_finished | left,
        num_tokens=jnp.where(left, 1, row.num_tokens),
        prompt_length=jnp.where(left, 1, row.prompt_length),
    )
    contexts = {
        name: Context(context.entries, jnp.where(left, 0, context.length)) for name, context in state.contexts.items()
    }
    return State(row, contexts, state.memory)


@jax.jit
def pick(
    state: State, counts: stats.Counts, logprobs: jax.Array | None, rows: jax.Array
) -> tuple[State, stats.Counts, jax.Array | None]:
    """The `[B]` rows of a batch, by their places."""
    return jax.tree.map(lambda leaf: leaf[rows], (state, counts, logprobs))


@functools.partial(jax.jit, static_argnames=("decoder", "slots"))
def resize(decoder: Decoder, state: State, slots: int) -> State:
    """The states with room for so many tokens a row; where that is less, all have room in it."""
    if slots >= state.row.tokens.shape[1]:
        return loop.grow(decoder, state, slots)
    contexts = {}
    for name, (entries, length) in state.contexts.items():
        axes = cache.slot_axes(decoder.models[name][0])
        cut = jax.tree.map(lambda leaf, axis: jax.lax.slice_in_dim(leaf, 0, slots, axis=axis + 1), entries, axes)
        contexts[name] = Context(cut, length)
    return State(state.row._replace(tokens=state.row.tokens[:, :slots]), contexts, state.memory)


@functools.partial(jax.jit, static_argnames="decoder", donate_argnames=("state", "counts", "logprobs"))
def segment(
    decoder: Decoder,
    params: dict[str, Params],
    state: State,
    counts: stats.Counts,
    options: Options,
    logprobs: jax.Array | None,
    max_rounds: jax.Array,
) -> tuple[State, stats.Counts, jax.Array | None]:
    """Rounds until there were so many, a row was finished, or one of them has no room for another."""
    state = state._replace(row=state.row._replace(options=options, logprobs=logprobs))
    was_finished = state.row.is_finished

    def goes_on(carry: tuple[State, stats.Counts, jax.Array]) -> jax.Array:
        row = carry[0].row
        is_same = (row.is_finished == was_finished).all()
        return (carry[2] < max_rounds) & is_same & loop.fits(decoder, row)

    def body(carry: tuple[State, stats.Counts, jax.Array]) -> tuple[State, stats.Counts, jax.Array]:
        state, info = jax.vmap(lambda one: decoder.round(params, one))(carry[0])
        return state, jax.vmap(stats.add)(carry[1], info), carry[2] + 1

    state, counts, _ = jax.lax.while_loop(goes_on, body, (state, counts, jnp.zeros((), jnp.int32)))
    return _bare(state), counts, state.row.logprobs


def _bare(state: State) -> State:
    """The state without options and log-probabilities, which are kept beside it: their kind changes."""
    return state._replace(row=state.row._replace(options=Options(), logprobs=None))
