"""Drafting a static tree with a model: one draft forward for each of its levels, and what its context gets of them."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxspec import base, cache, sampling
from jaxspec.base import Context, Entries, Model, Params
from jaxspec.decode import state as states
from jaxspec.decode.state import Row, State
from jaxspec.decode.trees import structure
from jaxspec.decode.trees.drafter import Accepted, Drafted
from jaxspec.decode.trees.levels import Constants, Level, Run, constants_of
from jaxspec.tree import TokenTree

Propose = Callable[[Row, jax.Array, jax.Array, int], tuple[jax.Array, Any]]
"""From the row as its options read it at a node, the node's id, its `[V]` draft logits and a count C to `[C]` children
and what else is to be known of them, such as the distribution that they come from."""


class Nodes(NamedTuple):
    """The n nodes of a depth.

    Attributes:
        tokens: `[n]` int32.
        pasts: What the options read behind each of them, with a leading axis of n; None where they read nothing.
    """

    tokens: jax.Array
    pasts: sampling.Past | None


Step = Callable[..., tuple[Entries, Nodes, Any]]
"""One draft step: `draft_level` with everything that is the same for all of a round's steps."""


def draft_tree(draft: Model, tree: TokenTree, params: Params, state: State, propose: Propose) -> Drafted:
    """The tree's tokens, drawn level by level; one draft forward for each level that has children.

    Its `probs` are the `[I, V]` float32 distributions of the I nodes that have children, over the tokens that the draft
    can propose, None where all rows are greedy; its `block` holds the draft's entries, as `levels.Constants` says.

    Args:
        draft: The draft.
        tree: The tree.
        params: The draft's parameters.
        state: The state at the beginning of the round; its row's options have their past (`decode.state.reading`).
        propose: Draws a node's children.
    """
    step, runs = step_of(draft, tree, params, state, propose), constants_of(tree).runs
    block, nodes, probs = first_step(draft, tree, state, step)
    tokens, distributions = [state.row.root[None], nodes.tokens], [probs]
    for run in runs[1:]:
        block, nodes, run_tokens, run_probs = _draft_run(step, block, nodes, run)
        tokens.append(run_tokens.reshape(-1))
        distributions.append(None if run_probs is None else run_probs.reshape(-1, run_probs.shape[-1]))
    shape = structure.of_tree(tree)
    is_active = shape.depths > 0
    limit = getattr(draft, "max_length", None)
    if limit is not None:  # a node was proposed by its parent's forward, whose position must lie below the limit
        is_active &= state.row.root_position + shape.depths <= limit
    kept = [probs for probs in distributions if probs is not None]
    return Drafted(jnp.concatenate(tokens), is_active, shape, jnp.concatenate(kept) if kept else None, block)


def commit(draft: Model, tree: TokenTree, state: State, block: Entries, accepted: Accepted) -> Context:
    """The draft's context behind a round: it ends in front of the token before the new root, the next catch-up.

    Args:
        draft: The draft.
        tree: The tree.
        state: At the beginning of the round.
        block: What the draft wrote in it.
        accepted: What became of the tree.
    """
    context = state.contexts["draft"]
    slots = jnp.asarray(constants_of(tree).slots)[accepted.path]
    # The catch-up token is the first to join; a text of one token has none.
    slots = jnp.where(state.row.num_tokens > 1, jnp.append(jnp.zeros(1, jnp.int32), slots[:-1]), slots)
    missing = jnp.maximum(accepted.row.num_tokens - 2, 0) - context.length
    return cache.commit(draft, context, block, missing, slots, accepted.num_emitted)


def step_of(draft: Model, tree: TokenTree, params: Params, state: State, propose: Propose) -> Step:
    """The round's draft step; arguments as for `draft_tree`."""
    return functools.partial(_draft_level, draft, params, state, propose, constants_of(tree))


def first_step(draft: Model, tree: TokenTree, state: State, step: Step) -> tuple[Entries, Nodes, Any]:
    """The root's step, as `_draft_level` gives it.

    The draft's context lacks the token before the root (it was a leaf, or the rule's own), so this step carries that
    token in front: the catch-up token.
    """
    row, constants = state.row, constants_of(tree)
    previous = row.tokens[jnp.maximum(row.num_tokens - 2, 0)][None]
    [root], num_children = constants.runs[0]
    nodes = Nodes(row.root[None], jax.tree.map(lambda leaf: leaf[None], row.options.past))
    return step(num_children, draft.empty(constants.num_slots), nodes, root, previous)


def stacked(run: Run) -> Level:
    """A run's levels as one, with an axis for them in front."""
    return jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *run.levels)


def _draft_run(step: Step, block: Entries, nodes: Nodes, run: Run) -> tuple[Entries, Nodes, jax.Array, Any]:
    """The block after a run, its last nodes, all its `[levels, nodes]` tokens, and `[levels, E, V]` distributions.

    Several levels are one scan, so that the compile time does not grow with a chain's length.
    """
    if len(run.levels) == 1:
        block, nodes, probs = step(run.num_children, block, nodes, run.levels[0])
        return block, nodes, nodes.tokens[None], None if probs is None else probs[None]

    def body(carry: tuple[Entries, Nodes], level: Level) -> tuple[tuple, tuple]:
        block, nodes, probs = step(run.num_children, *carry, level)
        return (block, nodes), (nodes.tokens, probs)

    (block, nodes), (tokens, probs) = jax.lax.scan(body, (block, nodes), stacked(run))
    return block, nodes, tokens, probs


def _draft_level(
    draft: Model,
    params: Params,
    state: State,
    propose: Propose,
    constants: Constants,
    num_children: int,
    block: Entries,
    level_nodes: Nodes,
    level: Level,
    catch_up: jax.Array | None = None,
) -> tuple[Entries, Nodes, Any]:
    """The block after one draft step, the next level's nodes, and what was said of them beside, `[E, …]`.

    Args:
        draft: The draft.
        params: Its parameters.
        state: The state at the beginning of the round.
        propose: Draws a node's children.
        constants: The tree's constants.
        num_children: Drawn at each node.
        block: The draft's block.
        level_nodes: The nodes of this depth.
        level: The step's constants.
        catch_up: `[1]`, the token that goes in front of the root; None below it.
    """
    row = state.row
    tokens, pasts = jax.tree.map(lambda leaf: leaf[level.expanded], level_nodes)
    positions = jnp.full(tokens.shape, row.root_position + level.depth, jnp.int32)
    has_previous = row.num_tokens > 1
    mask = jnp.asarray(level.mask) & (has_previous | jnp.asarray(constants.is_node_slot))[None]
    slot = jnp.asarray(level.slot, jnp.int32)
    if catch_up is not None:
        tokens = jnp.concatenate([catch_up, tokens])
        positions = jnp.concatenate([jnp.maximum(positions - 1, 0), positions])
        mask = jnp.concatenate([jnp.asarray(constants.catch_up_mask), mask])
        slot = slot - 1
    output = base.forward(draft, params, tokens, positions, state.contexts["draft"], block, slot, mask)
    nodes = jnp.asarray(level.nodes)
    logits = output.logits[-nodes.shape[0] :]
    children, beside = jax.vmap(
        lambda past, node, node_logits: propose(states.with_past(row, past), node, node_logits, num_children)
    )(pasts, nodes, logits)
    tokens = children[level.parents, level.ranks]
    pasts = sampling.behind_each(jax.tree.map(lambda leaf: leaf[level.parents], pasts), tokens)
    return output.block, Nodes(tokens, pasts), beside
