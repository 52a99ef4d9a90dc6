"""Drafting a token tree: one draft forward for each of its levels."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.base import Entries, Model, Params
from jaxspec.decode import batching
from jaxspec.decode.state import State
from jaxspec.decode.trees.levels import Constants, Level, constants_of
from jaxspec.tree import TokenTree

Propose = Callable[[jax.Array, jax.Array, int], tuple[jax.Array, jax.Array | None]]
"""From a node's id, its `[V]` draft logits and a count C to `[C]` children and the distribution that they come from."""

GoesOn = Callable[[jax.Array], jax.Array]
"""From `[V]` draft logits to `[]` bool."""


class Drafted(NamedTuple):
    """A drafted tree.

    Attributes:
        tokens: `[N]` int32 node tokens.
        is_active: `[N]` bool, nodes that the draft could propose (all, unless its position limit is reached).
        probs: `[I, V]` float32 draft distributions of the I nodes that have children, over the tokens that the draft
            can propose; None where all rows are greedy.
        block: The draft's entries: the catch-up token, then the nodes that have children.
    """

    tokens: jax.Array
    is_active: jax.Array
    probs: jax.Array | None
    block: Entries


def draft_tree(draft: Model, tree: TokenTree, params: Params, state: State, propose: Propose) -> Drafted:
    """The tree's tokens, drawn level by level; one draft forward for each level that has children.

    The draft's context lacks the token before the root (it was a leaf, or the rule's own), so the root's step carries
    that token in front.

    Args:
        draft: The draft.
        tree: The tree.
        params: The draft's parameters.
        state: The state at the beginning of the round.
        propose: Draws a node's children.
    """
    row, constants = state.row, constants_of(tree)
    step = functools.partial(_draft_level, draft, params, state, propose, constants)
    previous = row.tokens[jnp.maximum(row.num_tokens - 2, 0)][None]
    block, level_tokens, probs = step(draft.empty(constants.num_slots), row.root[None], constants.levels[0], previous)
    tokens, distributions = [row.root[None], level_tokens], [probs]
    for run in constants.runs:
        block, run_tokens, run_probs = _draft_run(step, block, level_tokens, run)
        level_tokens = run_tokens[-1]
        tokens.append(run_tokens.reshape(-1))
        distributions.append(None if run_probs is None else run_probs.reshape(-1, run_probs.shape[-1]))
    is_active = jnp.asarray(tree.depths) > 0
    limit = getattr(draft, "max_length", None)
    if limit is not None:  # a node was proposed by its parent's forward, whose position must lie below the limit
        is_active &= row.root_position + tree.depths <= limit
    kept = [probs for probs in distributions if probs is not None]
    return Drafted(jnp.concatenate(tokens), is_active, jnp.concatenate(kept) if kept else None, block)


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
    row, constants = state.row, constants_of(chain)

    def propose_and_judge(node: jax.Array, logits: jax.Array, count: int) -> tuple[jax.Array, Any]:
        children, probs = propose(node, logits, count)
        return children, (probs, goes_on(logits))

    step = functools.partial(_draft_level, draft, params, state, propose_and_judge, constants)
    previous = row.tokens[jnp.maximum(row.num_tokens - 2, 0)][None]
    block, first, (probs, _) = step(draft.empty(constants.num_slots), row.root[None], constants.levels[0], previous)
    limit = getattr(draft, "max_length", None)  # as in `draft_tree`
    room = jnp.int32(chain.depth) if limit is None else jnp.clip(limit - row.root_position, 0, chain.depth)
    start = _Chain(
        depth=jnp.int32(1),
        block=block,
        tokens=jnp.zeros(chain.size, jnp.int32).at[:2].set(jnp.concatenate([row.root[None], first])),
        probs=None if probs is None else jnp.zeros((chain.depth, probs.shape[1]), jnp.float32).at[:1].set(probs),
        num_drafted=jnp.minimum(room, 1),
        is_open=~row.is_finished & (room > 1),
    )
    if chain.depth > 1:
        levels = _stack(constants.levels[1:])

        def extend(carry: _Chain) -> _Chain:
            depth = carry.depth
            level = jax.tree.map(lambda leaves: leaves[depth - 1], levels)
            block, token, (probs, is_confident) = step(carry.block, carry.tokens[depth][None], level)
            is_drafted = carry.is_open & is_confident[0]
            return _Chain(
                depth=depth + 1,
                block=block,
                tokens=carry.tokens.at[depth + 1].set(token[0]),
                probs=None if carry.probs is None else carry.probs.at[depth].set(probs[0]),
                num_drafted=carry.num_drafted + is_drafted.astype(jnp.int32),
                is_open=is_drafted & (depth + 1 < room),
            )

        start = jax.lax.while_loop(lambda carry: batching.any_row(carry.is_open), extend, start)
    depths = jnp.asarray(chain.depths)
    is_active = (depths > 0) & (depths <= start.num_drafted)
    return Drafted(start.tokens, is_active, start.probs, start.block)


class _Chain(NamedTuple):
    """A chain while it grows."""

    depth: jax.Array  # [] of the newest drafted token
    block: Entries
    tokens: jax.Array  # [G + 1]
    probs: jax.Array | None  # [G, V]
    num_drafted: jax.Array  # []
    is_open: jax.Array  # [] whether the next token may be drafted


def _draft_level(
    draft: Model,
    params: Params,
    state: State,
    propose: Callable[[jax.Array, jax.Array, int], tuple[jax.Array, Any]],
    constants: Constants,
    block: Entries,
    level_tokens: jax.Array,
    level: Level,
    catch_up: jax.Array | None = None,
) -> tuple[Entries, jax.Array, Any]:
    """The block after one draft step, the next level's tokens, and the `[E, V]` distributions they come from.

    Args:
        draft: The draft.
        params: Its parameters.
        state: The state at the beginning of the round.
        propose: Draws a node's children. What it gives besides them is handed on, stacked over the level's nodes.
        constants: The tree's constants.
        block: The draft's block.
        level_tokens: Tokens of the nodes of this depth.
        level: The step's constants.
        catch_up: `[1]`, the token that goes in front of the root; None below it.
    """
    row = state.row
    tokens = level_tokens[level.expanded]
    positions = jnp.full(tokens.shape, row.root_position + level.depth, jnp.int32)
    has_previous = row.num_tokens > 1
    mask = jnp.asarray(level.mask) & (has_previous | jnp.asarray(constants.is_node_slot))[None]
    slot = jnp.asarray(level.slot, jnp.int32)
    if catch_up is not None:
        tokens = jnp.concatenate([catch_up, tokens])
        positions = jnp.concatenate([jnp.maximum(positions - 1, 0), positions])
        mask = jnp.concatenate([jnp.asarray(constants.catch_up_mask), mask])
        slot = slot - 1
    output = draft.apply(params, tokens, positions, state.contexts["draft"], block, slot, mask)
    num_expanded, num_children = level.children_shape.shape
    nodes, logits = jnp.asarray(level.nodes), output.logits[-num_expanded:]
    children, probs = jax.vmap(lambda node, node_logits: propose(node, node_logits, num_children))(nodes, logits)
    return output.block, children[level.parents, level.ranks], probs


def _draft_run(
    step: Callable[..., tuple[Entries, jax.Array, jax.Array | None]],
    block: Entries,
    level_tokens: jax.Array,
    run: tuple[Level, ...],
) -> tuple[Entries, jax.Array, jax.Array | None]:
    """The block after levels of one shape, their `[levels, nodes]` tokens and `[levels, E, V]` distributions.

    Several are one scan, so that the compile time does not grow with a chain's length.
    """
    if len(run) == 1:
        block, tokens, probs = step(block, level_tokens, run[0])
        return block, tokens[None], None if probs is None else probs[None]

    def body(carry: tuple[Entries, jax.Array], level: Level) -> tuple[tuple, tuple]:
        block, tokens, probs = step(*carry, level)
        return (block, tokens), (tokens, probs)

    (block, _), (tokens, probs) = jax.lax.scan(body, (block, level_tokens), _stack(run))
    return block, tokens, probs


def _stack(run: tuple[Level, ...]) -> Level:
    """Levels of one shape as one, with an axis for them in front."""
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *run)
