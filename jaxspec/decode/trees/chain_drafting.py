"""Drafting a chain with a model, token by token, until something says that it is long enough."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxspec import sampling
from jaxspec.base import Entries, Model, Params
from jaxspec.decode import batching
from jaxspec.decode.state import Row, State
from jaxspec.decode.trees import structure
from jaxspec.decode.trees.drafter import Drafted
from jaxspec.decode.trees.drafting import Nodes, Propose, first_step, stacked, step_of
from jaxspec.decode.trees.levels import constants_of
from jaxspec.tree import TokenTree

GoesOn = Callable[[Row, jax.Array], jax.Array]
"""From the row as its options read it at a node, and the node's `[V]` draft logits, to `[]` bool."""


def draft_chain(
    draft: Model, chain: TokenTree, params: Params, state: State, propose: Propose, goes_on: GoesOn
) -> Drafted:
    """A chain's tokens, drawn one by one until `goes_on` says no; the draft steps behind that do not run.

    The first token is always drafted. A batch takes as many steps as its longest row; what they write for the other
    rows lies at nodes that are not active, which nobody reads.

    Args:
        draft: The draft.
        chain: A chain; its length is the most tokens that are drafted.
        params: The draft's parameters.
        state: The state at the beginning of the round.
        propose: Draws a node's child.
        goes_on: From a node's draft logits, before a draw from them, whether its child is drafted.
    """
    row = state.row

    def propose_and_judge(row: Row, node: jax.Array, logits: jax.Array, count: int) -> tuple[jax.Array, Any]:
        children, probs = propose(row, node, logits, count)
        return children, (probs, goes_on(row, logits))

    step = step_of(draft, chain, params, state, propose_and_judge)
    block, first, (probs, _) = first_step(draft, chain, state, step)
    limit = getattr(draft, "max_length", None)  # as in `draft_tree`
    room = jnp.int32(chain.depth) if limit is None else jnp.clip(limit - row.root_position, 0, chain.depth)
    drafted = _Chain(
        depth=jnp.int32(1),
        block=block,
        tokens=jnp.zeros(chain.size, jnp.int32).at[:2].set(jnp.concatenate([row.root[None], first.tokens])),
        pasts=first.pasts,
        probs=None if probs is None else jnp.zeros((chain.depth, probs.shape[1]), jnp.float32).at[:1].set(probs),
        num_drafted=jnp.minimum(room, 1),
        is_open=~row.is_finished & (room > 1),
    )
    for run in constants_of(chain).runs[1:]:  # one at most
        levels = stacked(run)

        def extend(carry: _Chain, levels: Any = levels) -> _Chain:
            depth = carry.depth
            level = jax.tree.map(lambda leaves: leaves[depth - 1], levels)
            nodes = Nodes(carry.tokens[depth][None], carry.pasts)
            block, below, (probs, is_confident) = step(1, carry.block, nodes, level)
            is_drafted = carry.is_open & is_confident[0]
            return _Chain(
                depth=depth + 1,
                block=block,
                tokens=carry.tokens.at[depth + 1].set(below.tokens[0]),
                pasts=below.pasts,
                probs=None if carry.probs is None else carry.probs.at[depth].set(probs[0]),
                num_drafted=carry.num_drafted + is_drafted.astype(jnp.int32),
                is_open=is_drafted & (depth + 1 < room),
            )

        drafted = jax.lax.while_loop(lambda carry: batching.any_row(carry.is_open), extend, drafted)
    shape = structure.of_tree(chain)
    is_active = (shape.depths > 0) & (shape.depths <= drafted.num_drafted)
    return Drafted(drafted.tokens, is_active, shape, drafted.probs, drafted.block)


class _Chain(NamedTuple):
    """A chain while it grows."""

    depth: jax.Array  # [] of the newest drafted token
    block: Entries
    tokens: jax.Array  # [G + 1]
    pasts: sampling.Past | None  # of the newest drafted token, with an axis of 1 in front
    probs: jax.Array | None  # [G, V]
    num_drafted: jax.Array  # []
    is_open: jax.Array  # [] whether the next token may be drafted
