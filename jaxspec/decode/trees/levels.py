"""A tree's draft steps as constants: which nodes each step runs, where they lie in the draft's block, what they see."""

import functools
import itertools
from typing import NamedTuple

import numpy as np

from jaxspec.tree import TokenTree


class Level(NamedTuple):
    """One draft step: the nodes of a depth that have children (E of them), and the level below."""

    nodes: np.ndarray  # [E] node ids
    expanded: np.ndarray  # [E] their places among the nodes of their depth
    depth: np.ndarray  # []
    slot: np.ndarray  # [] of the first of them in the draft's block
    mask: np.ndarray  # [E, num_slots]
    parents: np.ndarray  # [nodes of the next depth] places of their parents among the E
    ranks: np.ndarray  # [nodes of the next depth]
    children_shape: np.ndarray  # [E, C of this level], only its shape counts


class Constants(NamedTuple):
    """A tree's constants for drafting: slot 0 of the draft's block is the catch-up token, then the expanded nodes."""

    levels: tuple[Level, ...]
    runs: tuple[tuple[Level, ...], ...]  # the levels below the root's, adjacent ones of one shape together
    num_slots: int
    slots: np.ndarray  # [N] slot of each node, 0 for leaves
    children: np.ndarray  # [N, C] child ids, filled up with 0, which is nobody's child
    is_node_slot: np.ndarray  # [num_slots] False for the catch-up's
    catch_up_mask: np.ndarray  # [1, num_slots] the catch-up token sees itself


@functools.lru_cache(maxsize=128)
def constants_of(tree: TokenTree) -> Constants:
    slots = np.zeros(tree.size, np.int32)
    slots[list(tree.expanded)] = 1 + np.arange(len(tree.expanded))
    num_slots = 1 + len(tree.expanded)
    children = np.zeros((tree.size, tree.max_children), np.int32)
    for node, node_children in enumerate(tree.children):
        children[node, : len(node_children)] = node_children
    levels = []
    for depth in range(tree.depth):
        nodes = [node for node in tree.level_nodes[depth] if tree.children[node]]
        below = tree.level_nodes[depth + 1]
        mask = np.zeros((len(nodes), num_slots), bool)
        mask[:, 0] = True
        mask[:, 1:] = tree.mask[np.ix_(nodes, tree.expanded)]
        levels.append(
            Level(
                nodes=np.array(nodes, np.int32),
                expanded=np.array([tree.level_nodes[depth].index(node) for node in nodes], np.int32),
                depth=np.array(depth, np.int32),
                slot=slots[nodes[0]],
                mask=mask,
                parents=np.array([nodes.index(tree.parents[node]) for node in below], np.int32),
                ranks=tree.child_rank[list(below)].astype(np.int32),
                children_shape=np.zeros((len(nodes), max(len(tree.children[node]) for node in nodes)), bool),
            )
        )

    def shape(level: Level) -> tuple:
        return level.children_shape.shape, len(level.parents)

    runs = []
    for _, group in itertools.groupby(levels[1:], key=shape):
        run = tuple(group)
        # A scan hands a level's tokens to the next: all its levels, and the one it starts from, are equally wide.
        width = len(run[0].parents)
        before = len(tree.level_nodes[int(run[0].depth)])
        runs.extend([run] if before == width else [run[:1], run[1:]])
    is_node_slot = np.arange(num_slots) > 0
    runs = tuple(run for run in runs if run)
    return Constants(tuple(levels), runs, num_slots, slots, children, is_node_slot, ~is_node_slot[None])
