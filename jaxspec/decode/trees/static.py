"""A static token tree, drafted by a model: SEQUOIA's trees, and the plain chain (SpS) as the narrowest of them."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec import tree as trees
from jaxspec import verify
from jaxspec.base import Context, Model, Output, Params
from jaxspec.decode import proposals
from jaxspec.decode.proposals import PROPOSAL
from jaxspec.decode.state import Row, State
from jaxspec.decode.trees import drafting
from jaxspec.decode.trees.decoder import TreeDecoder
from jaxspec.decode.trees.drafter import Accepted, Drafted, Sizes
from jaxspec.decode.trees.levels import constants_of
from jaxspec.tree import TokenTree


@dataclasses.dataclass(frozen=True)
class StaticTree:
    """A drafter of one tree, whatever the text.

    Attributes:
        target: The model whose tokens are proposed.
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
        return {"draft": (self.draft, 2)}

    @property
    def sizes(self) -> Sizes:
        """The root's draft step carries the token in front of it."""
        tree = self.tree
        return Sizes(tree.size, tree.depth, tree.max_children, {"draft": (2, *tree.level_widths[1:])})

    def init(self, params: dict[str, Params], row: Row) -> Any:
        del params, row
        return ()

    def draft_tree(self, params: dict[str, Params], state: State, key: jax.Array) -> Drafted:
        """The round's tree, level by level."""
        return drafting.draft_tree(self.draft, self.tree, params["draft"], state, self.proposing(key))

    def proposing(self, key: jax.Array) -> drafting.Propose:
        """`propose`, with the round's key."""
        return lambda row, node, logits, count: self.propose(row, key, node, logits, count)

    def propose(
        self, row: Row, key: jax.Array, node: jax.Array, logits: jax.Array, count: int
    ) -> tuple[jax.Array, jax.Array | None]:
        """`[C]` children of a node from the draft's logits, and the distribution that they were drawn from.

        The row's options have the node's past.
        """
        logits = proposals.adjusted(self.target, self.draft, row, logits)
        places, probs = proposals.draw(self.rule, row, proposals.key_of(key, node, PROPOSAL), logits, count)
        return proposals.token_ids(self.draft, places), probs

    def test(
        self, row: Row, drafted: Drafted, node: jax.Array, logits: jax.Array, children: jax.Array, active: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The rule's outcome at a node; `Drafted.probs` are those of the nodes that have children, in order."""
        expanded = jnp.maximum(jnp.asarray(constants_of(self.tree).slots)[node] - 1, 0)
        probs = drafted.probs[expanded]
        return proposals.outcome(self.rule, self.target, self.draft, row, logits, probs, children, active)

    def resume(
        self, params: dict[str, Params], state: State, drafted: Drafted, output: Output, accepted: Accepted
    ) -> tuple[dict[str, Context], Any]:
        """The draft's context up to the token in front of the new root, which the next round reads again."""
        del params, output
        context = drafting.commit(self.draft, self.tree, state, drafted.block, accepted)
        return {"draft": context}, state.memory


def sequoia(target: Model, draft: Model, tree: TokenTree) -> TreeDecoder:
    """SEQUOIA: a static tree whose siblings are drawn without replacement.

    Raises:
        ValueError: A tree without drafted nodes, or a draft with fewer tokens than the target.
    """
    return TreeDecoder(target, StaticTree(target, draft, tree))


def topk(target: Model, draft: Model, tree: TokenTree) -> TreeDecoder:
    """A static tree of the draft's most probable tokens, verified by matching the target's own draw.

    Raises:
        ValueError: As `sequoia`.
    """
    return TreeDecoder(target, StaticTree(target, draft, tree, verify.TOP_K))


def speculative(target: Model, draft: Model, length: int) -> TreeDecoder:
    """Speculative sampling (Leviathan et al., Chen et al.): a chain of `length` drafted tokens.

    Raises:
        ValueError: A length below 1, or a draft with fewer tokens than the target.
    """
    if length < 1:
        raise ValueError(f"length={length}: a draft has at least 1 token; decode.autoregressive decodes without one.")
    return TreeDecoder(target, StaticTree(target, draft, trees.chain(length)))
