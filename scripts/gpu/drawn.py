"""Rounds whose accepted path is drawn from a published acceptance.

Random weights accept next to nothing that means anything. Here all the work of a round is done, and the published
vector alone says which child is the accepted one.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import tree as trees
from jaxspec import verify
from jaxspec.base import Model
from jaxspec.decode.state import Row
from jaxspec.decode.trees.decoder import Resolved, TreeDecoder
from jaxspec.decode.trees.drafter import Drafted
from jaxspec.decode.trees.static import StaticTree
from jaxspec.tree import TokenTree


@dataclasses.dataclass(frozen=True)
class DrawnRule(verify.Sequoia):
    """SEQUOIA's rule with its arithmetic done and its acceptance replaced by a published one.

    Attributes:
        acceptance: Probability by child rank; as many as a node has children, or more.
    """

    acceptance: tuple[float, ...] = ()

    def outcome(
        self,
        target_probs: jax.Array,
        draft_probs: jax.Array,
        children: jax.Array,
        active: jax.Array,
        support: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        accept, rest = super().outcome(target_probs, draft_probs, children, active, support)
        published = jnp.asarray(self.acceptance[: children.shape[0]], jnp.float32)
        # Probabilities never sum to 2. The compiler doesn't know that, so it may not drop their computation.
        return jnp.where(accept.sum() > 2.0, accept, jnp.where(active, published, 0.0)), rest


@dataclasses.dataclass(frozen=True)
class DrawnTree(TreeDecoder):
    """A tree decoder whose accepted path is drawn from a published acceptance, with the work of a real round.

    With a temperature the library's own walk runs, with `DrawnRule` at its nodes: it visits as many as a trained pair
    would let it. At T=0 there is no walk; the comparison of arg-maxima is made, gives the emitted token, and the path
    is drawn beside it. `Info.accept` then tells what the random weights did, not what was drawn.

    Attributes:
        acceptance: Of the drafter's `DrawnRule`.
    """

    drafter: StaticTree
    acceptance: tuple[float, ...]

    def resolve(self, row: Row, drafted: Drafted, logits: jax.Array, key: jax.Array) -> Resolved:
        """The real outcome's cost and token, with a drawn path; the key is consumed."""
        resolved = super().resolve(row, drafted, logits, key)
        if row.options.temperature is not None:
            return resolved
        tree = self.drafter.tree
        bounds = np.cumsum((0.0, *self.acceptance)).astype(np.float32)
        lower, upper = bounds[tree.child_rank], bounds[tree.child_rank + 1]
        # One uniform a node says which of its children is accepted. No node has the number N, so the key is fresh.
        uniforms = jax.random.uniform(jax.random.fold_in(key, tree.size), (tree.size,))
        at_parent = uniforms[np.maximum(tree.parents, trees.ROOT)]
        is_accepted = (at_parent >= lower) & (at_parent < upper) & drafted.is_active
        is_accepted = is_accepted.at[trees.ROOT].set(True)
        is_reached = (is_accepted[None] | ~jnp.asarray(tree.mask)).all(axis=1)
        node = jnp.argmax(jnp.where(is_reached, jnp.asarray(tree.depths), -1)).astype(jnp.int32)
        num_visited = jnp.asarray(tree.depths + ~tree.is_leaf, jnp.int32)[node]
        return resolved._replace(node=node, num_visited=num_visited)


def drawn_tree(target: Model, draft: Model, tree: TokenTree, acceptance: tuple[float, ...]) -> DrawnTree:
    """The decoder of a tree whose accepted path is drawn.

    Raises:
        ValueError: A child rank without an acceptance.
    """
    if len(acceptance) < tree.max_children:
        raise ValueError(
            f"The tree has {tree.max_children} siblings, but the acceptance covers {len(acceptance)}: give one for "
            "each child rank."
        )
    return DrawnTree(target, StaticTree(target, draft, tree, DrawnRule(acceptance)), acceptance)
