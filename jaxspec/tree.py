"""Token trees: what one round drafts and verifies, as constants known before anything is compiled.

A tree has N nodes with its root. Node 0 is the root, the last token that was emitted; every other node is a drafted
token that follows its parent. Nodes stand in breadth-first order and siblings in the order in which they were drawn.
Depth counts edges from the root (SEQUOIA's tables count levels: depth + 1).
"""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from rich.text import Text
from rich.tree import Tree

ROOT = 0
NO_PARENT = -1


@dataclass(frozen=True)
class TokenTree:
    """A token tree, equal and hashed by its parents alone. Arrays derived from them are computed once and read-only.

    Attributes:
        parents: The parent of each of the N nodes, -1 for the root. Any sequence of integers may be handed in.

    Raises:
        ValueError: The parents are not integers, or not a tree in breadth-first order with node 0 as its root.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        parents = _integers(self.parents, "parents")
        object.__setattr__(self, "parents", parents)
        if not parents:
            raise ValueError("parents is empty: a tree has at least its root. Use TokenTree((-1,)) for the root alone")
        if parents[ROOT] != NO_PARENT:
            raise ValueError(f"parents[0] is {parents[ROOT]}, but node 0 is the root: its parent must be {NO_PARENT}")
        for node, parent in enumerate(parents[1:], start=1):
            if not 0 <= parent < node:
                raise ValueError(
                    f"parents[{node}] is {parent}, but a node comes after its parent: 0 <= parent < {node} is needed, "
                    "which also rules out cycles. tree.from_parents numbers the nodes of any tree in this order"
                )
            if parent < parents[node - 1]:
                raise ValueError(
                    f"parents[{node}] is {parent} after parents[{node - 1}] = {parents[node - 1]}, but nodes stand in "
                    "breadth-first order: parents must not decrease. tree.from_parents or tree.from_paths reorders"
                )

    @property
    def size(self) -> int:
        """N, the number of nodes with the root."""
        return len(self.parents)

    @cached_property
    def depth(self) -> int:
        """Edges from the root to the deepest node, which is the number of draft steps of a round."""
        return int(self.depths[-1])

    @cached_property
    def depths(self) -> np.ndarray:
        """`[N]` int32 edges from the root to each node."""
        depths = np.zeros(self.size, np.int32)
        for node in range(1, self.size):
            depths[node] = depths[self.parents[node]] + 1
        return _read_only(depths)

    @cached_property
    def mask(self) -> np.ndarray:
        """`[N, N]` bool, `mask[i, j]`: node j is node i or one of its ancestors."""
        mask = np.eye(self.size, dtype=bool)
        for node in range(1, self.size):
            mask[node] |= mask[self.parents[node]]
        return _read_only(mask)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Each node's children in draw order."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node in range(1, self.size):
            children[self.parents[node]].append(node)
        return tuple(map(tuple, children))

    @cached_property
    def child_rank(self) -> np.ndarray:
        """`[N]` int32 place of each node among its siblings: 0 for a first child, -1 for the root."""
        ranks = np.full(self.size, -1, np.int32)
        for siblings in self.children:
            ranks[list(siblings)] = np.arange(len(siblings))
        return _read_only(ranks)

    @cached_property
    def max_children(self) -> int:
        """C, the largest number of children of a node; 0 for the root alone."""
        return max(map(len, self.children))

    @cached_property
    def paths(self) -> np.ndarray:
        """`[N, depth + 1]` int32, row v: the nodes from the root to v, then v again up to the row's end."""
        paths = np.zeros((self.size, self.depth + 1), np.int32)
        for node in range(1, self.size):
            level = self.depths[node]
            paths[node, :level] = paths[self.parents[node], :level]
            paths[node, level:] = node
        return _read_only(paths)

    @cached_property
    def first_child_length(self) -> np.ndarray:
        """`[N]` int32 edges of the chain of first children below each node; 0 at a leaf."""
        lengths = np.zeros(self.size, np.int32)
        for node in reversed(self.expanded):
            lengths[node] = lengths[self.children[node][0]] + 1
        return _read_only(lengths)

    @cached_property
    def is_leaf(self) -> np.ndarray:
        """`[N]` bool, whether a node has no children."""
        return _read_only(np.array([not children for children in self.children]))

    @cached_property
    def level_nodes(self) -> tuple[tuple[int, ...], ...]:
        """The nodes at each depth 0 … depth, in order."""
        levels: list[list[int]] = [[] for _ in range(self.depth + 1)]
        for node, depth in enumerate(self.depths):
            levels[depth].append(node)
        return tuple(map(tuple, levels))

    @cached_property
    def expanded(self) -> tuple[int, ...]:
        """The nodes that have children, in breadth-first order."""
        return tuple(node for node, children in enumerate(self.children) if children)

    @cached_property
    def level_widths(self) -> tuple[int, ...]:
        """How many nodes have children at each depth 0 … depth - 1: the width of each draft step."""
        return tuple(sum(bool(self.children[node]) for node in nodes) for nodes in self.level_nodes[:-1])

    @property
    def is_chain(self) -> bool:
        """Whether no node has more than one child; the root alone counts as a chain."""
        return self.max_children <= 1


def chain(length: int) -> TokenTree:
    """A chain of `length >= 0` drafted tokens: `length + 1` nodes. `chain(0)` is the root alone."""
    return chains(1, length)


def chains(count: int, length: int) -> TokenTree:
    """`count >= 1` independent chains of `length >= 0` tokens below the root: `count * length + 1` nodes."""
    _at_least("count", count, 1)
    _at_least("length", length, 0)
    return TokenTree((NO_PARENT, *(max(ROOT, node - count) for node in range(1, count * length + 1))))


def star(width: int) -> TokenTree:
    """`width >= 1` children of the root: `width + 1` nodes."""
    return comb(width, 1)


def comb(width: int, depth: int) -> TokenTree:
    """`width >= 1` children at each node of the first-child chain, `depth >= 0` levels: `width * depth + 1` nodes."""
    _at_least("width", width, 1)
    _at_least("depth", depth, 0)
    first_nodes = (ROOT, *(1 + level * width for level in range(depth - 1)))[:depth]
    return TokenTree((NO_PARENT, *(node for node in first_nodes for _ in range(width))))


def k_ary(branching: int, depth: int) -> TokenTree:
    """`branching >= 1` children at every node down to `depth >= 0` edges: `sum(branching**l)` nodes, l = 0 … depth."""
    _at_least("branching", branching, 1)
    _at_least("depth", depth, 0)
    size = sum(branching**level for level in range(depth + 1))
    return TokenTree((NO_PARENT, *((node - 1) // branching for node in range(1, size))))


def from_paths(paths: Iterable[Sequence[int]]) -> TokenTree:
    """The tree whose nodes are given as child ranks from the root: `(0,)` its first child, `(0, 1)` that one's second.

    Args:
        paths: One path a node, in any order. The root, `()`, may be left out.

    Raises:
        ValueError: A path twice, a path whose parent or previous sibling is missing, or ranks that are not integers.
    """
    given = [_integers(path, "a path") for path in paths]
    nodes: dict[tuple[int, ...], int] = {(): ROOT}
    parents = [NO_PARENT]
    for path in sorted((path for path in given if path), key=lambda path: (len(path), path)):
        if path in nodes:
            raise ValueError(f"path {path} is given twice: a node has one path. Drop one, or give it its own rank")
        if path[:-1] not in nodes:
            raise ValueError(f"path {path} has no parent: add the path {path[:-1]}")
        if path[-1] < 0:
            raise ValueError(f"path {path} has a negative rank, but ranks count from 0")
        previous = (*path[:-1], path[-1] - 1)
        if path[-1] > 0 and previous not in nodes:
            raise ValueError(f"path {path} skips a rank, but siblings count 0, 1, 2 … without gaps: add {previous}")
        nodes[path] = len(parents)
        parents.append(nodes[path[:-1]])
    return TokenTree(tuple(parents))


def from_parents(parents: Sequence[int]) -> TokenTree:
    """The tree of any list of parents with node 0 as its root, its nodes renumbered in breadth-first order.

    Siblings keep their order.

    Raises:
        ValueError: Not integers, a wrong root, or nodes that the root does not reach (a cycle, a parent out of range).
    """
    given = _integers(parents, "parents")
    if not given or given[ROOT] != NO_PARENT:
        raise ValueError(f"parents must begin with {NO_PARENT}, the root, but they are {given}")
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(given[1:], start=1):
        children.setdefault(parent, []).append(node)
    order, renumbered = [ROOT], [NO_PARENT]
    for place, node in enumerate(order):  # grows while it is read: a queue
        below = children.get(node, [])
        order += below
        renumbered += [place] * len(below)
    if len(order) < len(given):
        lost = sorted(set(range(len(given))) - set(order))
        raise ValueError(f"nodes {lost} are not below the root: their parents form a cycle or do not exist")
    return TokenTree(tuple(renumbered))


def draw(tree: TokenTree, scores: Sequence[float] | np.ndarray | None = None) -> Tree:
    """A picture of the tree for `rich.print`: every node's index, rank and, where given, score.

    Args:
        tree: The tree.
        scores: `[N]`, for instance `plan.node_scores`: the probability that each node is on the accepted path.

    Raises:
        ValueError: As many scores as nodes are needed.
    """
    if scores is not None and len(scores) != tree.size:
        raise ValueError(f"there are {len(scores)} scores for {tree.size} nodes: one a node is needed")

    def label(node: int) -> Text:
        rank = "root" if node == ROOT else f"rank {tree.child_rank[node]}"
        score = "" if scores is None else f"  {float(scores[node]):.4f}"
        return Text.assemble((str(node), "bold"), f"  {rank}", (score, "cyan"))

    branches = [Tree(label(ROOT))]
    for node in range(1, tree.size):
        branches.append(branches[tree.parents[node]].add(label(node)))
    return branches[ROOT]


def _integers(values: Iterable[int], name: str) -> tuple[int, ...]:
    """The values as a tuple of Python integers."""
    try:
        return tuple(operator.index(value) for value in values)
    except TypeError as error:
        raise ValueError(f"{name} must be a sequence of integers, but is {values!r}") from error


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}, but must be at least {least}")


def _read_only(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array
