"""Speculative decoding with a token tree, whatever drafts it (`drafter.Drafter`).

A round, here of the tree [-1, 0, 0, 1, 1]:

    drafter.draft_tree            target, one forward       resolve                  emit, commit, resume

    root ── the ┬── cat ┬── sat   root the cat dog sat      the accepted path from   row     … root the cat ran
                │       └── is    each sees what is         the root: the, cat;      target  … root the cat
                └── dog           committed and its own     a token behind it: ran   draft   … root the
                                  ancestors

The newest token is the root: emitted, and in no context yet. The target's context gets the root and the accepted nodes,
whose entries are gathered from the block of its forward; the drafter resumes from what was accepted in its own way.
"""

import dataclasses
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxspec import base, cache, sampling
from jaxspec.base import Context, Model, Output, Params
from jaxspec.decode import state as states
from jaxspec.decode.state import Info, Row, State
from jaxspec.decode.trees.drafter import Accepted, Drafted, Drafter
from jaxspec.decode.walk import walk
from jaxspec.tree import ROOT


class Resolved(NamedTuple):
    """What verification made of a tree.

    Attributes:
        node: `[]` int32, the last accepted node.
        token: `[]` int32, the correction behind it, or the bonus token of a leaf; `sampling.NOTHING` where the target's
            logits give none.
        accept: `[depth, C]` float32, see `Info`.
        num_visited: `[]` int32, how many nodes had their children tested; the first is the root.
    """

    node: jax.Array
    token: jax.Array
    accept: jax.Array
    num_visited: jax.Array


@dataclasses.dataclass(frozen=True)
class TreeDecoder:
    """A decoder that verifies a drafted token tree in one forward of the target.

    Attributes:
        target: The model whose distribution is sampled.
        drafter: What proposes the tree.
    """

    target: Model
    drafter: Drafter

    @property
    def models(self) -> dict[str, tuple[Model, int]]:
        return {"target": (self.target, 1), **self.drafter.models}

    @property
    def extra_params(self) -> tuple[str, ...]:
        return getattr(self.drafter, "extra_params", ())

    @property
    def forwards(self) -> dict[str, tuple[int, ...]]:
        sizes = self.drafter.sizes
        return {"target": (sizes.num_nodes,), **sizes.forwards}

    @property
    def max_emitted(self) -> int:
        return self.drafter.sizes.depth + 1

    @property
    def depth(self) -> int:
        return self.drafter.sizes.depth

    @property
    def max_children(self) -> int:
        return self.drafter.sizes.max_children

    def init(self, params: dict[str, Params], row: Row) -> State:
        """The state before the prompt is read."""
        return states.init(self, row, self.drafter.init(params, row))

    def round(self, params: dict[str, Params], state: State) -> tuple[State, Info]:
        """Draft the tree, verify it in one forward, emit and commit the accepted path."""
        key, read = states.round_key(state.row), states.reading(state.row, self.target.vocab_size)
        drafted = self.drafter.draft_tree(params, state._replace(row=read), key)
        _check(self.drafter, drafted)
        output = self.verify(params, state, drafted)
        resolved = self.resolve(read, drafted, output.logits, key)
        accepted = self.emit(state.row, drafted, output.logits, resolved)
        target = self.commit_target(state, output, accepted)
        contexts, memory = self.drafter.resume(params, state, drafted, output, accepted)
        info = self.report(state.row, drafted, resolved, accepted)
        return State(accepted.row, {"target": target, **contexts}, memory), info

    def verify(self, params: dict[str, Params], state: State, drafted: Drafted) -> Output:
        """The target's forward over the N nodes, each of which sees its ancestors."""
        return base.forward(
            self.target,
            params["target"],
            drafted.tokens,
            state.row.root_position + drafted.structure.depths,
            state.contexts["target"],
            self.target.empty(drafted.tokens.shape[0]),
            0,
            drafted.structure.mask,
        )

    def resolve(self, row: Row, drafted: Drafted, logits: jax.Array, key: jax.Array) -> Resolved:
        """What the target's `[N, V]` logits make of the drafted tree."""
        row = states.reading(row, self.target.vocab_size)
        if row.options.temperature is None:
            return self._resolve_greedy(row, drafted, logits)
        return self._resolve_sampled(row, drafted, logits, key)

    def emit(self, row: Row, drafted: Drafted, logits: jax.Array, resolved: Resolved) -> Accepted:
        """The accepted path's tokens and the one behind it, as far as the row takes them."""
        path, num_accepted = drafted.structure.paths[resolved.node], drafted.structure.depths[resolved.node]
        tokens = drafted.tokens[jnp.append(path[1:], path[-1:])]
        tokens = jnp.where(jnp.arange(self.max_emitted) == num_accepted, resolved.token, tokens)
        logprobs = None if row.logprobs is None else states.token_logprobs(logits[path], tokens)
        row, num_emitted = states.emit(row, tokens, num_accepted + 1, logprobs)
        return Accepted(row, tokens, num_emitted, path, num_accepted, resolved.token)

    def commit_target(self, state: State, output: Output, accepted: Accepted) -> Context:
        """The target's context with the root and what was emitted, but for its last token: that is the new root."""
        path = None if self.max_children == 1 else accepted.path  # a chain's block is its path
        context = state.contexts["target"]
        return cache.commit(self.target, context, output.block, accepted.num_emitted, path, accepted.num_emitted)

    def report(self, row: Row, drafted: Drafted, resolved: Resolved, accepted: Accepted) -> Info:
        """What the round reports.

        The verified path is the accepted one, continued through first children as far as they were drafted. Where a
        stop id or the limit cut it, or the target gave none, the row took no correction, and nobody knows what would
        have followed.

        Args:
            row: Before the round.
            drafted: The tree.
            resolved: What verification made of it.
            accepted: What the row took.
        """
        structure, is_live = drafted.structure, accepted.num_emitted > 0
        deepest = jnp.where(drafted.is_active, structure.depths, 0).max()
        below = structure.first_child_length[resolved.node]
        continuation = jnp.minimum(below, deepest - accepted.num_accepted)
        path_drafted = accepted.num_accepted + continuation
        num_accepted = jnp.minimum(accepted.num_emitted, accepted.num_accepted)
        was_cut = accepted.num_emitted <= accepted.num_accepted
        return Info(
            tokens=accepted.tokens,
            num_emitted=accepted.num_emitted,
            num_accepted=num_accepted,
            num_drafted=jnp.where(is_live, drafted.is_active.sum(dtype=jnp.int32), 0),
            path_drafted=jnp.where(is_live, path_drafted, 0),
            path_rolled_back=jnp.where(is_live, path_drafted - num_accepted, 0),
            is_rejected=is_live & ~was_cut & (continuation > 0),
            accept=resolved.accept,
            is_visited=jnp.arange(self.depth) < jnp.minimum(resolved.num_visited, accepted.num_emitted),
        )

    def _resolve_greedy(self, row: Row, drafted: Drafted, logits: jax.Array) -> Resolved:
        """The longest path on which every token is the arg-max at its parent: no vocabulary-size work but that."""
        structure = drafted.structure
        best = states.best(lambda node: self._at_node(row, drafted, node), logits)
        matches = (drafted.tokens == best[jnp.maximum(structure.parents, ROOT)]) & drafted.is_active
        matches = matches.at[ROOT].set(True)
        is_reached = (matches[None] | ~structure.mask).all(axis=1)
        node = jnp.argmax(jnp.where(is_reached, structure.depths, -1)).astype(jnp.int32)
        children = structure.children[structure.paths[node, :-1]]
        accept = (matches[children] & (children > 0)).astype(jnp.float32)
        is_parent = (drafted.is_active[children] & (children > 0)).any(axis=1)
        visited = is_parent & (jnp.arange(self.depth) <= structure.depths[node])
        return Resolved(node, best[node], accept, visited.sum(dtype=jnp.int32))

    def _resolve_sampled(self, row: Row, drafted: Drafted, logits: jax.Array, key: jax.Array) -> Resolved:
        """A walk from the root: at each node one draw says which child is accepted, until none is."""

        def children_of(node: jax.Array) -> tuple[jax.Array, jax.Array]:
            children = drafted.structure.children[node]
            return children, (children > 0) & drafted.is_active[children]

        def outcome(node: jax.Array) -> tuple[jax.Array, jax.Array]:
            children, active = children_of(node)
            at_node = self._at_node(row, drafted, node)
            return self.drafter.test(at_node, drafted, node, logits[node], drafted.tokens[children], active)

        def onward(node: jax.Array, child: jax.Array) -> tuple[jax.Array, jax.Array]:
            return drafted.structure.children[node, child], jnp.ones((), bool)

        end, token = walk(outcome, onward, key, self.depth, self.max_children, logits.shape[1])
        _, active = children_of(end.place)
        return Resolved(end.place, token, end.accept, end.steps + active.any().astype(jnp.int32))

    def _at_node(self, row: Row, drafted: Drafted, node: jax.Array) -> Row:
        """The row as its options read it at a `[]` node: the node and its ancestors are in the text."""
        if row.options.past is None:
            return row
        path = drafted.tokens[drafted.structure.paths[node]]
        return states.with_past(row, sampling.behind(row.options.past, path[1:], drafted.structure.depths[node]))


def _check(drafter: Drafter, drafted: Drafted) -> None:
    """Raises where a drafter gives something else than it says; its structure's numbers are not looked at."""
    size, depth, max_children, _ = drafter.sizes
    structure = drafted.structure
    chex.assert_shape([drafted.tokens, drafted.is_active, structure.parents, structure.depths], (size,))
    chex.assert_shape(structure.first_child_length, (size,))
    chex.assert_shape(structure.mask, (size, size))
    chex.assert_shape(structure.children, (size, max_children))
    chex.assert_shape(structure.paths, (size, depth + 1))
    chex.assert_type([drafted.tokens, structure.parents, structure.depths, structure.children, structure.paths], int)
    chex.assert_type([drafted.is_active, structure.mask], bool)
