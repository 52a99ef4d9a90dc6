"""Speculative decoding with a static token tree: SEQUOIA, and the plain chain (SpS) as its narrowest tree.

A round drafts the tree level by level, runs the target once over all its nodes, walks down from the root by the
verification rule, and commits the accepted path.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import cache, sampling, verify
from jaxspec import tree as trees
from jaxspec.base import Entries, Model, Params
from jaxspec.decode import proposals
from jaxspec.decode import state as states
from jaxspec.decode.proposals import PROPOSAL
from jaxspec.decode.state import Info, Row, State
from jaxspec.decode.trees.drafting import Drafted, draft_tree
from jaxspec.decode.trees.levels import constants_of
from jaxspec.decode.walk import walk
from jaxspec.tree import TokenTree


class Resolved(NamedTuple):
    """What verification made of a tree.

    Attributes:
        node: `[]` int32, the last accepted node.
        token: `[]` int32, the correction behind it, or the bonus token of a leaf.
        accept: `[depth, C]` float32, see `Info`.
        num_visited: `[]` int32, how many nodes had their children tested; the first is the root.
    """

    node: jax.Array
    token: jax.Array
    accept: jax.Array
    num_visited: jax.Array


@dataclasses.dataclass(frozen=True)
class TreeDecoder:
    """A decoder that drafts a token tree and verifies it in one forward of the target.

    Attributes:
        target: The model whose distribution is sampled.
        draft: The model that proposes; its vocabulary may have padding rows behind the target's.
        tree: The tree; its constants become constants of the compiled round.
        rule: The verification rule. Where a draft is greedy the children are its top-k and the exact-match rule holds.
    """

    target: Model
    draft: Model
    tree: TokenTree
    rule: verify.Rule = verify.SEQUOIA

    def __post_init__(self) -> None:
        if self.tree.depth < 1:
            raise ValueError(
                f"The tree {self.tree.parents} drafts nothing: it needs a node below its root; "
                "decode.autoregressive decodes without a draft."
            )
        proposals.check(self.target, self.draft, self.tree.max_children, "The tree")

    @property
    def models(self) -> dict[str, tuple[Model, int]]:
        return {"target": (self.target, 1), "draft": (self.draft, 2)}

    @property
    def max_emitted(self) -> int:
        return self.tree.depth + 1

    @property
    def depth(self) -> int:
        return self.tree.depth

    @property
    def max_children(self) -> int:
        return self.tree.max_children

    @property
    def forwards(self) -> dict[str, tuple[int, ...]]:
        """The root's draft step carries the token in front of it; AdaEDL's chain may stop before its last one."""
        return {"target": (self.tree.size,), "draft": (2, *self.tree.level_widths[1:])}

    def init(self, params: dict[str, Params], row: Row) -> State:
        """The state before the prompt is read."""
        return states.init(self, row)

    def round(self, params: dict[str, Params], state: State) -> tuple[State, Info]:
        """Draft the tree, verify it in one forward, commit the accepted path."""
        row, tree = state.row, self.tree
        key = states.round_key(row)
        drafted = self.draft_tree(params, state, key)
        output = self.target.apply(
            params["target"],
            drafted.tokens,
            row.root_position + tree.depths,
            state.contexts["target"],
            self.target.empty(tree.size),
            0,
            jnp.asarray(tree.mask),
        )
        resolved = self.resolve(row, drafted, output.logits, key)
        return self.commit(state, drafted, output.logits, output.block, resolved)

    def draft_tree(self, params: dict[str, Params], state: State, key: jax.Array) -> Drafted:
        """The round's draws from the draft."""
        return draft_tree(
            self.draft, self.tree, params["draft"], state, functools.partial(self._propose, state.row, key)
        )

    def resolve(self, row: Row, drafted: Drafted, logits: jax.Array, key: jax.Array) -> Resolved:
        """What the target's `[N, V]` logits make of the drafted tree."""
        if row.options.temperature is None:
            return self._resolve_greedy(row, drafted, logits)
        return self._resolve_sampled(row, drafted, logits, key)

    def commit(
        self, state: State, drafted: Drafted, logits: jax.Array, block: Entries, resolved: Resolved
    ) -> tuple[State, Info]:
        """Emits the accepted path and the token behind it, and appends what was emitted to both contexts."""
        tree, constants = self.tree, constants_of(self.tree)
        path = jnp.asarray(tree.paths)[resolved.node]
        num_accepted = jnp.asarray(tree.depths)[resolved.node]
        places = jnp.arange(self.max_emitted, dtype=jnp.int32)
        emitted = drafted.tokens[jnp.append(path[1:], path[-1:])]
        emitted = jnp.where(places == num_accepted, resolved.token, emitted)
        logprobs = None if state.row.logprobs is None else states.token_logprobs(logits[path], emitted)
        row, kept = states.emit(state.row, emitted, num_accepted + 1, logprobs)

        target = cache.commit(
            self.target, state.contexts["target"], block, kept, None if tree.is_chain else path, resolved.token
        )
        # The draft's context ends before the token in front of the new root: that one is the next catch-up.
        has_previous = state.row.num_tokens > 1
        slots = jnp.asarray(constants.slots)[path]
        slots = jnp.where(has_previous, jnp.append(jnp.zeros(1, jnp.int32), slots[:-1]), slots)
        draft = state.contexts["draft"]
        missing = jnp.maximum(row.num_tokens - 2, 0) - draft.length
        draft = cache.commit(self.draft, draft, drafted.block, missing, slots, resolved.token)

        is_live = ~state.row.is_finished
        zero = jnp.zeros((), jnp.int32)
        num_drafted = drafted.is_active.sum(dtype=jnp.int32)
        deepest = jnp.where(drafted.is_active, tree.depths, 0).max()
        continuation = jnp.minimum(jnp.asarray(tree.first_child_length)[resolved.node], deepest - num_accepted)
        was_cut = kept <= num_accepted  # by a stop id or the limit, before the last verified position
        info = Info(
            tokens=emitted,
            num_emitted=kept,
            num_accepted=jnp.minimum(kept, num_accepted),
            num_drafted=jnp.where(is_live, num_drafted, zero),
            path_drafted=jnp.where(is_live, num_accepted + continuation, zero),
            path_rolled_back=jnp.where(is_live, jnp.where(was_cut, num_accepted - kept, 0) + continuation, zero),
            is_rejected=is_live & ~was_cut & (continuation > 0),
            accept=resolved.accept,
            is_visited=places[:-1] < jnp.minimum(resolved.num_visited, kept),
        )
        return State(row, {"target": target, "draft": draft}), info

    def _propose(
        self, row: Row, key: jax.Array, node: jax.Array, logits: jax.Array, count: int
    ) -> tuple[jax.Array, jax.Array | None]:
        """`[C]` children of a node from the draft's logits, and the distribution that they were drawn from."""
        logits = proposals.adjusted(self.target, self.draft, row, logits)
        places, probs = proposals.draw(self.rule, row, proposals.key_of(key, node, PROPOSAL), logits, count)
        return proposals.token_ids(self.draft, places), probs

    def _resolve_greedy(self, row: Row, drafted: Drafted, logits: jax.Array) -> Resolved:
        """The longest path on which every token is the arg-max at its parent: no vocabulary-size work but that."""
        tree = self.tree
        best = jax.vmap(lambda node_logits: sampling.argmax(sampling.adjust(row.options, node_logits)))(logits)
        matches = (drafted.tokens == best[np.maximum(tree.parents, 0)]) & drafted.is_active
        matches = matches.at[trees.ROOT].set(True)
        is_reached = (matches[None] | ~jnp.asarray(tree.mask)).all(axis=1)
        node = jnp.argmax(jnp.where(is_reached, jnp.asarray(tree.depths), -1)).astype(jnp.int32)
        path = jnp.asarray(tree.paths)[node, :-1]
        children = jnp.asarray(constants_of(tree).children)[path]
        accept = (matches[children] & (children > 0)).astype(jnp.float32)
        is_parent = (drafted.is_active[children] & (children > 0)).any(axis=1)
        visited = is_parent & (jnp.arange(tree.depth) <= jnp.asarray(tree.depths)[node])
        return Resolved(node, best[node], accept, visited.sum(dtype=jnp.int32))

    def _resolve_sampled(self, row: Row, drafted: Drafted, logits: jax.Array, key: jax.Array) -> Resolved:
        """A walk from the root: at each node one draw says which child is accepted, until none is."""
        constants, probs = constants_of(self.tree), drafted.probs
        assert probs is not None  # kept whenever a row may sample

        def children_of(node: jax.Array) -> tuple[jax.Array, jax.Array]:
            children = jnp.asarray(constants.children)[node]
            return children, (children > 0) & drafted.is_active[children]

        def outcome(node: jax.Array) -> tuple[jax.Array, jax.Array]:
            children, active = children_of(node)
            node_probs = probs[jnp.maximum(jnp.asarray(constants.slots)[node] - 1, 0)]
            return proposals.outcome(
                self.rule, self.target, self.draft, row, logits[node], node_probs, drafted.tokens[children], active
            )

        def onward(node: jax.Array, child: jax.Array) -> tuple[jax.Array, jax.Array]:
            return jnp.asarray(constants.children)[node, child], jnp.ones((), bool)

        end, token = walk(outcome, onward, key, self.depth, self.max_children, logits.shape[1])
        _, active = children_of(end.place)
        return Resolved(end.place, token, end.accept, end.steps + active.any().astype(jnp.int32))


def sequoia(target: Model, draft: Model, tree: TokenTree) -> TreeDecoder:
    """SEQUOIA: a static tree whose siblings are drawn without replacement.

    Raises:
        ValueError: A tree without drafted nodes, or a draft with fewer tokens than the target.
    """
    return TreeDecoder(target, draft, tree)


def topk(target: Model, draft: Model, tree: TokenTree) -> TreeDecoder:
    """A static tree of the draft's most probable tokens, verified by matching the target's own draw.

    Raises:
        ValueError: As `sequoia`.
    """
    return TreeDecoder(target, draft, tree, verify.TOP_K)


def speculative(target: Model, draft: Model, length: int) -> TreeDecoder:
    """Speculative sampling (Leviathan et al., Chen et al.): a chain of `length` drafted tokens.

    Raises:
        ValueError: A length below 1, or a draft with fewer tokens than the target.
    """
    if length < 1:
        raise ValueError(f"length={length}: a draft has at least 1 token; decode.autoregressive decodes without one.")
    return TreeDecoder(target, draft, trees.chain(length))
