"""A tree's structure as arrays: constants of a static tree, or made from the parents that a round chose."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.tree import ROOT, TokenTree


class Structure(NamedTuple):
    """Who is whose child among the N nodes of a round's tree. Node 0 is the root, and a node comes after its parent.

    Attributes:
        parents: `[N]` int32, -1 for the root.
        depths: `[N]` int32 edges from the root.
        mask: `[N, N]` bool, `mask[i, j]`: node j is node i or one of its ancestors.
        children: `[N, C]` int32 node ids in draw order, filled up with 0, which is nobody's child.
        paths: `[N, depth + 1]` int32, row v: the nodes from the root to v, then v again up to the row's end.
        first_child_length: `[N]` int32 edges of the chain of first children below each node.
    """

    parents: jax.Array
    depths: jax.Array
    mask: jax.Array
    children: jax.Array
    paths: jax.Array
    first_child_length: jax.Array


def of_tree(tree: TokenTree) -> Structure:
    """The structure of a static tree: constants of the program that reads them."""
    return jax.tree.map(jnp.asarray, _constants(tree))


def of_parents(parents: jax.Array, depth: int, max_children: int) -> Structure:
    """The structure of a tree that is known in the round only; nothing is checked.

    Args:
        parents: `[N]` int32, -1 for the root; of every other node a smaller number.
        depth: No node is deeper.
        max_children: C; no node has more children.
    """
    nodes = jnp.arange(parents.shape[0], dtype=jnp.int32)
    above = jnp.maximum(parents, ROOT)
    ancestors = [nodes]  # by how many edges they are above each node; above the root is the root
    for _ in range(depth):
        ancestors.append(above[ancestors[-1]])
    lines = jnp.stack(ancestors)
    depths = (lines[:-1] != ROOT).sum(axis=0, dtype=jnp.int32)
    siblings = (parents[:, None] == parents[None]) & (nodes[:, None] > nodes[None])
    ranks = siblings.sum(axis=1, dtype=jnp.int32)
    children = jnp.zeros((parents.shape[0], max_children), jnp.int32).at[above[1:], ranks[1:]].set(nodes[1:])
    lengths = jnp.zeros_like(nodes)
    for _ in range(depth):
        first = children[:, 0]
        lengths = jnp.where(first == ROOT, 0, lengths[first] + 1)
    edges_up = jnp.maximum(depths[:, None] - jnp.arange(depth + 1, dtype=jnp.int32)[None], 0)
    return Structure(
        parents=parents,
        depths=depths,
        mask=(lines[:, :, None] == nodes[None, None]).any(axis=0),
        children=children,
        paths=lines[edges_up, nodes[:, None]],
        first_child_length=lengths,
    )


@functools.lru_cache(maxsize=128)
def _constants(tree: TokenTree) -> tuple:
    children = np.zeros((tree.size, tree.max_children), np.int32)
    for node, node_children in enumerate(tree.children):
        children[node, : len(node_children)] = node_children
    parents = np.array(tree.parents, np.int32)
    return Structure(parents, tree.depths, tree.mask, children, tree.paths, tree.first_child_length)  # pyright: ignore[reportArgumentType]
