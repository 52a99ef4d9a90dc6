"""SEQUOIA's optimal tree, by dynamic programming.

Under positional acceptance a node's score is the product of the acceptances along its path, and a tree's expected
tokens a round are the sum of its nodes' scores, the root's 1 being the correction or bonus token (SEQUOIA, section 3.1,
proposition 3.4). Depth counts edges; the paper's tables count levels, one more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxspec.profiles import check_acceptance
from jaxspec.tree import NO_PARENT, ROOT, TokenTree

INFEASIBLE = -np.inf


_NO_STATE = -1


def node_scores(tree: TokenTree, acceptance: Any) -> np.ndarray:
    """`[N]` probability that each node is on the accepted path; 1 for the root.

    Args:
        tree: The tree.
        acceptance: `[B]` by child rank, or `[D, B]` by the parent's depth and the child's rank.

    Raises:
        ValueError: The tree has a node with more children than B, or is deeper than D rows reach.
    """
    alpha = check_acceptance(acceptance)
    if tree.max_children > alpha.shape[-1]:
        raise ValueError(
            f"a node has {tree.max_children} children, but acceptance covers {alpha.shape[-1]}: "
            "measure more children, or write 0 for those that are never accepted"
        )
    if alpha.ndim == 2 and tree.depth > len(alpha):
        raise ValueError(
            f"the tree is {tree.depth} deep, but acceptance has {len(alpha)} rows: add rows, "
            "or give one row [B] for every depth"
        )
    scores = np.ones(tree.size)
    for node in range(1, tree.size):
        parent, rank = tree.parents[node], tree.child_rank[node]
        row = alpha if alpha.ndim == 1 else alpha[tree.depths[parent]]
        scores[node] = scores[parent] * row[rank]
    return scores


def expected_tokens(tree: TokenTree, acceptance: Any) -> float:
    """Expected tokens of a round, the correction or bonus token included: the sum of `node_scores`."""
    return float(node_scores(tree, acceptance).sum())


def optimal_tree(acceptance: Any, size: int, max_depth: int | None = None) -> TokenTree:
    """The tree of exactly `size` nodes, the root counted, and at most `max_depth` edges with the most expected tokens.

    Args:
        acceptance: `[B]` by child rank, or `[D, B]` by depth (row 0: the root's children). It need not decrease.
        size: Number of nodes, 1 or more.
        max_depth: Depth limit in edges; None for no limit. A `[D, B]` acceptance always limits it to D.

    Raises:
        ValueError: No tree of this size fits the limit.
    """
    return solve(acceptance, size, (max_depth,)).tree(size, max_depth)


@dataclass(frozen=True, eq=False)
class Solution:
    """The dynamic programme's table: for every size, depth limit and number of children, the most expected tokens.

    A state is a node's situation: which row of the acceptance its children have, and in which state they are (one less
    depth remaining). One state that is its own children's means no limit.

    Attributes:
        totals: `[S, C + 1, max_size + 1]` most expected tokens of a subtree by state, children of its top node, and
            size; minus infinity where there is no such subtree.
        last_sizes: `[S, C, max_size + 1]` size of the last child's subtree in it.
        below: `[S]` state of the children, -1 where none are allowed.
        roots: State of the root for every depth limit.
    """

    totals: np.ndarray
    last_sizes: np.ndarray
    below: np.ndarray
    roots: dict[int | None, int]

    def value(self, size: int, max_depth: int | None = None) -> float:
        """G(n, d): expected tokens of the best tree with exactly `size` nodes and at most `max_depth` edges.

        Raises:
            ValueError: The size or the limit was not solved for, or no tree of this size fits the limit.
        """
        if not 1 <= size < self.totals.shape[-1]:
            raise ValueError(f"size is {size}, but sizes 1 … {self.totals.shape[-1] - 1} were solved for")
        if max_depth not in self.roots:
            raise ValueError(f"max_depth is {max_depth}, but the limits {list(self.roots)} were solved for")
        values = self.totals[self.roots[max_depth]].max(0)
        if np.isneginf(values[size]):
            largest = np.flatnonzero(np.isfinite(values)).max()
            raise ValueError(
                f"no tree of {size} nodes fits: with depth at most {max_depth} and at most "
                f"{self.totals.shape[1] - 1} children a node, sizes 1 … {largest} do. Allow more depth or children"
            )
        return float(values[size])

    def tree(self, size: int, max_depth: int | None = None) -> TokenTree:
        """The tree that has `value(size, max_depth)`, which raises the same errors."""
        self.value(size, max_depth)
        parents = [NO_PARENT]
        subtrees = [(self.roots[max_depth], size)]
        for node, (state, nodes) in enumerate(subtrees):  # grows while it is read: breadth first
            sizes = []
            for count in range(int(self.totals[state, :, nodes].argmax()), 0, -1):  # peel children off from the last
                sizes.append(int(self.last_sizes[state, count - 1, nodes]))
                nodes -= sizes[-1]
            subtrees += [(int(self.below[state]), child_size) for child_size in reversed(sizes)]
            parents += [node] * len(sizes)
        return TokenTree(tuple(parents))


def solve(acceptance: Any, max_size: int, max_depths: Iterable[int | None] = (None,)) -> Solution:
    """The best trees of every size up to `max_size` under each of the depth limits.

    SEQUOIA's algorithms 1 and 4: a subtree of n nodes whose top node has b children is one of n - m nodes and b - 1
    children, and a last child with a subtree of m nodes,

        T(n, d, b) = max over m of T(n - m, d, b - 1) + acceptance[b] * G(m, d - 1)
        G(n, d)    = max over b of T(n, d, b)

    With a vector the states of all limits are shared. With a matrix each limit has its own, since its rows are bound to
    the depth from the root.

    Args:
        acceptance: `[B]` or `[D, B]`, as in `optimal_tree`.
        max_size: The largest size, 1 or more.
        max_depths: Depth limits in edges; None for no limit.

    Raises:
        ValueError: `max_size` is below 1, or a limit below 0.
    """
    alpha = check_acceptance(acceptance)[..., : max(1, max_size - 1)]
    if max_size < 1:
        raise ValueError(f"a tree of {max_size} nodes was asked for, but it has at least its root: 1 or more is needed")
    states = _states(alpha, max_size, tuple(max_depths))
    alpha = np.atleast_2d(alpha)[states.rows]

    count, children = alpha.shape
    totals = np.full((count, children + 1, max_size + 1), INFEASIBLE)
    gains = np.full((count, children, max_size + 1), INFEASIBLE)  # acceptance[b] * G(m, children's state)
    last_sizes = np.zeros((count, children, max_size + 1), np.int32)
    totals[:, 0, 1] = 1.0
    for size in range(1, max_size + 1):
        if size > 1:
            sums = totals[:, :-1, size - 1 : 0 : -1] + gains[:, :, 1:size]
            best = sums.argmax(-1)
            totals[:, 1:, size] = np.take_along_axis(sums, best[..., None], -1)[..., 0]
            last_sizes[:, :, size] = best + 1
        values = totals[:, :, size].max(1)[states.below]
        feasible = np.isfinite(values) & (states.below != _NO_STATE)
        gains[feasible, :, size] = alpha[feasible] * values[feasible, None]  # never 0 * -inf
    return Solution(totals, last_sizes, states.below, states.roots)


class _States(NamedTuple):
    """Each state's row of the acceptance `[S]` and children's state `[S]`; the root's state by depth limit."""

    rows: np.ndarray
    below: np.ndarray
    roots: dict[int | None, int]


def _states(alpha: np.ndarray, max_size: int, limits: Sequence[int | None]) -> _States:
    """The states that the limits need, each (row, remaining depth)."""
    by_depth = alpha.ndim == 2
    states: dict[tuple[int, int | None], int] = {}
    roots: dict[int | None, int] = {}
    for limit in limits:
        if limit is not None and limit < 0:
            raise ValueError(f"a depth limit of {limit} was asked for, but depth counts edges: 0 or more is needed")
        deepest = max_size - 1 if limit is None else min(limit, max_size - 1)
        if by_depth:
            deepest = min(deepest, len(alpha))
        elif deepest == max_size - 1:  # it binds no tree of these sizes
            roots[limit] = states.setdefault((ROOT, None), len(states))
            continue
        for remaining in range(deepest + 1):
            row = deepest - remaining if by_depth else 0
            roots[limit] = states.setdefault((row, remaining), len(states))
    below = [
        states[row, None] if remaining is None else states.get((row + by_depth, remaining - 1), _NO_STATE)
        for row, remaining in states
    ]
    rows = [min(row, len(alpha) - 1) if by_depth else 0 for row, _ in states]  # a leaf's row is not read
    return _States(np.array(rows, int), np.array(below, int), roots)
