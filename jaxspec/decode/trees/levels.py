"""A tree's draft steps as constants: which nodes each step runs, where they lie in the draft's block, what they see."""

import functools
import itertools
from typing import NamedTuple

import numpy as np

from jaxspec.tree import ROOT, TokenTree


class Level(NamedTuple):
    """One draft step: the nodes of a depth that have children (E of them), and the level below."""

    nodes: np.ndarray  # [E] node ids
    expanded: np.ndarray  # [E] their places among the nodes of their depth
    depth: np.ndarray  # []
    slot: np.ndarray  # [] of the first of them in the draft's block
    mask: np.ndarray  # [E, num_slots]
    parents: np.ndarray  # [nodes of the next depth] places of their parents among the E
    ranks: np.ndarray  # [nodes of the next depth]


class Run(NamedTuple):
    """Neighbouring levels whose arrays have the same shapes: one scan over them drafts them all."""

    levels: tuple[Level, ...]
    num_children: int  # of the node that has the most


class Constants(NamedTuple):
    """A tree's constants for drafting: slot 0 of the draft's block is the catch-up token, then the expanded nodes."""

    runs: tuple[Run, ...]  # the first one is the root's level alone
    num_slots: int
    slots: np.ndarray  # [N] slot of each node, 0 for leaves
    is_node_slot: np.ndarray  # [num_slots] False for the catch-up's
    catch_up_mask: np.ndarray  # [1, num_slots] the catch-up token sees itself


@functools.lru_cache(maxsize=128)
def constants_of(tree: TokenTree) -> Constants:
    slots = np.zeros(tree.size, np.int32)
    slots[list(tree.expanded)] = 1 + np.arange(len(tree.expanded))
    is_node_slot = np.arange(1 + len(tree.expanded)) > 0
    levels = [_level(tree, depth, slots) for depth in range(tree.depth)]
    runs = [Run((levels[0],), len(tree.children[ROOT]))]
    for shape, depths in itertools.groupby(range(1, tree.depth), functools.partial(_shape, tree)):
        _, num_children, num_below = shape
        run = tuple(levels[depth] for depth in depths)
        # A scan hands a level's tokens to the next: all its levels, and the one it starts from, are equally wide.
        is_even = len(tree.level_nodes[int(run[0].depth)]) == num_below
        runs += [Run(part, num_children) for part in ((run,) if is_even else (run[:1], run[1:])) if part]
    return Constants(tuple(runs), len(is_node_slot), slots, is_node_slot, ~is_node_slot[None])


def _shape(tree: TokenTree, depth: int) -> tuple[int, int, int]:
    """Nodes of a depth that have children, the most children of one of them, and nodes of the next depth."""
    counts = [len(tree.children[node]) for node in tree.level_nodes[depth]]
    return sum(count > 0 for count in counts), max(counts), sum(counts)


def _level(tree: TokenTree, depth: int, slots: np.ndarray) -> Level:
    nodes = [node for node in tree.level_nodes[depth] if tree.children[node]]
    below = tree.level_nodes[depth + 1]
    mask = np.ones((len(nodes), 1 + len(tree.expanded)), bool)  # everyone sees the catch-up token
    mask[:, 1:] = tree.mask[np.ix_(nodes, tree.expanded)]
    return Level(
        nodes=np.array(nodes, np.int32),
        expanded=np.array([tree.level_nodes[depth].index(node) for node in nodes], np.int32),
        depth=np.array(depth, np.int32),
        slot=slots[nodes[0]],
        mask=mask,
        parents=np.array([nodes.index(tree.parents[node]) for node in below], np.int32),
        ranks=tree.child_rank[list(below)].astype(np.int32),
    )
