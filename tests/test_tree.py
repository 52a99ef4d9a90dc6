"""Token trees: their derived constants against slow definitions, their constructors, their errors."""

import io
import itertools

import numpy as np
import pytest
from rich.console import Console

from jaxspec import tree
from jaxspec.tree import NO_PARENT, ROOT, TokenTree

EXAMPLE = TokenTree(parents=(-1, 0, 0, 1, 1, 2, 4))


def all_trees(size):
    """Every tree of a size in breadth-first order: parents that never decrease."""
    for parents in itertools.product(*(range(node) for node in range(1, size))):
        if list(parents) == sorted(parents):
            yield TokenTree((NO_PARENT, *parents))


def ancestors(parents, node):
    """The nodes from the root to a node."""
    path = [node]
    while path[0] != ROOT:
        path.insert(0, parents[path[0]])
    return path


def test_constants_of_an_example():
    assert EXAMPLE.size == 7
    assert EXAMPLE.depth == 3
    assert EXAMPLE.depths.tolist() == [0, 1, 1, 2, 2, 2, 3]
    assert EXAMPLE.children == ((1, 2), (3, 4), (5,), (), (6,), (), ())
    assert EXAMPLE.child_rank.tolist() == [-1, 0, 1, 0, 1, 0, 0]
    assert EXAMPLE.max_children == 2
    assert EXAMPLE.first_child_length.tolist() == [2, 1, 1, 0, 1, 0, 0]
    assert EXAMPLE.is_leaf.tolist() == [False, False, False, True, False, True, True]
    assert EXAMPLE.level_nodes == ((0,), (1, 2), (3, 4, 5), (6,))
    assert EXAMPLE.expanded == (0, 1, 2, 4)
    assert EXAMPLE.level_widths == (1, 2, 1)
    assert not EXAMPLE.is_chain
    assert EXAMPLE.paths.tolist() == [
        [0, 0, 0, 0],
        [0, 1, 1, 1],
        [0, 2, 2, 2],
        [0, 1, 3, 3],
        [0, 1, 4, 4],
        [0, 2, 5, 5],
        [0, 1, 4, 6],
    ]
    assert EXAMPLE.mask[6].tolist() == [True, True, False, False, True, False, True]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6])
def test_constants_equal_their_definitions_on_every_tree(size):
    for each in all_trees(size):
        paths = [ancestors(each.parents, node) for node in range(size)]
        assert each.depths.tolist() == [len(path) - 1 for path in paths]
        assert each.depth == max(each.depths)
        assert each.mask.tolist() == [[node in path for node in range(size)] for path in paths]
        assert each.paths.tolist() == [path + path[-1:] * (each.depth + 1 - len(path)) for path in paths]
        assert each.is_chain == (each.depth == size - 1)
        assert [each.parents[child] for siblings in each.children for child in siblings] == list(each.parents[1:])
        assert sum(each.level_widths) == len(each.expanded) == size - each.is_leaf.sum()
        assert sum(each.level_nodes, ()) == tuple(range(size))
        ranks = [tuple(int(each.child_rank[node]) for node in path[1:]) for path in paths]
        assert tree.from_paths(ranks[::-1]) == each
        chains = [[(*rank, *(0,) * more) in ranks for more in range(1, size + 1)].index(False) for rank in ranks]
        assert each.first_child_length.tolist() == chains


def test_a_tree_hashes_by_its_parents_whatever_was_computed():
    other = TokenTree(np.array(EXAMPLE.parents))  # type: ignore[arg-type]
    assert other == EXAMPLE
    assert hash(other) == hash(EXAMPLE)
    assert other.parents == EXAMPLE.parents
    assert all(type(parent) is int for parent in other.parents)
    assert EXAMPLE.mask is EXAMPLE.mask
    assert hash(other) == hash(EXAMPLE)
    assert other != TokenTree((-1, 0))
    assert len({other, EXAMPLE, TokenTree((-1, 0))}) == 2


@pytest.mark.parametrize("name", ["depths", "mask", "child_rank", "paths", "first_child_length", "is_leaf"])
def test_arrays_are_read_only(name):
    with pytest.raises(ValueError, match="read-only"):
        getattr(EXAMPLE, name)[0] = 0


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ((), "empty"),
        ((0,), r"parents\[0\] is 0"),
        ((0, 0), r"parents\[0\] is 0"),
        ((1, -1), r"parents\[0\] is 1"),
        ((-1, -1), r"parents\[1\] is -1"),
        ((-1, 2, 0), r"parents\[1\] is 2"),
        ((-1, 0, 2), r"parents\[2\] is 2.*cycles"),
        ((-1, 2, 1), r"parents\[1\] is 2.*cycles.*from_parents"),
        ((-1, 0, 1, 0), r"parents\[3\] is 0 .*breadth-first.*from_parents or tree\.from_paths"),
        ((-1, 0.0), "integers"),
        ((-1, "0"), "integers"),
        (3, "integers"),
    ],
)
def test_bad_parents_are_refused(parents, message):
    with pytest.raises(ValueError, match=message):
        TokenTree(parents)


def test_plain_shapes():
    assert tree.chain(0).parents == (-1,)
    assert tree.chain(3).parents == (-1, 0, 1, 2)
    assert tree.chains(2, 3).parents == (-1, 0, 0, 1, 2, 3, 4)
    assert tree.chains(2, 0).parents == (-1,)
    assert tree.star(3).parents == (-1, 0, 0, 0)
    assert tree.comb(3, 1) == tree.star(3)
    assert tree.comb(2, 3).parents == (-1, 0, 0, 1, 1, 3, 3)
    assert tree.comb(1, 4) == tree.chain(4)
    assert tree.comb(2, 0).parents == (-1,)
    assert tree.k_ary(2, 2).parents == (-1, 0, 0, 1, 1, 2, 2)
    assert tree.k_ary(3, 3).size == 1 + 3 + 9 + 27
    assert tree.k_ary(1, 4) == tree.chain(4)
    assert tree.k_ary(3, 0).parents == (-1,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tree.chain(-1), "length is -1"),
        (lambda: tree.chains(0, 2), "count is 0"),
        (lambda: tree.chains(2, -1), "length is -1"),
        (lambda: tree.star(0), "width is 0"),
        (lambda: tree.comb(0, 2), "width is 0"),
        (lambda: tree.comb(2, -1), "depth is -1"),
        (lambda: tree.k_ary(0, 2), "branching is 0"),
        (lambda: tree.k_ary(2, -2), "depth is -2"),
    ],
)
def test_shapes_check_their_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_from_paths():
    assert tree.from_paths([]).parents == (-1,)
    assert tree.from_paths([(0, 1), (1,), [0], (0, 0)]).parents == (-1, 0, 0, 1, 1)
    assert tree.from_paths([(), (0,)]).parents == (-1, 0)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([(0,), (1, 0)], r"path \(1, 0\) has no parent"),
        ([(0,), (2,)], r"path \(2,\) skips a rank.*add \(1,\)"),
        ([(0,), (0, 1)], r"path \(0, 1\) skips a rank.*add \(0, 0\)"),
        ([(-1,)], r"path \(-1,\) has a negative rank"),
        ([(0,), (0,)], r"path \(0,\) is given twice"),
        ([(0.5,)], "integers"),
    ],
)
def test_bad_paths_are_refused(paths, message):
    with pytest.raises(ValueError, match=message):
        tree.from_paths(paths)


def test_from_parents_renumbers():
    assert tree.from_parents((-1, 0, 1, 0)).parents == (-1, 0, 0, 1)
    assert tree.from_parents((-1, 2, 0, 2, 0)).parents == (-1, 0, 0, 1, 1)
    assert tree.from_parents(EXAMPLE.parents) == EXAMPLE


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ((-1, 2, 1), r"nodes \[1, 2\]"),
        ((-1, 5), r"nodes \[1\]"),
        ((-1, -1), r"nodes \[1\]"),
        ((0, -1), "begin with -1"),
    ],
)
def test_from_parents_refuses_what_is_no_tree(parents, message):
    with pytest.raises(ValueError, match=message):
        tree.from_parents(parents)


def test_draw_shows_every_node_with_its_score():
    console = Console(file=io.StringIO(), width=80)
    console.print(tree.draw(tree.comb(2, 2), scores=[1.0, 0.6, 0.25, 0.36, 0.15]))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.split()[-3:] for line in lines[1:]] == [
        ["rank", "0", "0.6000"],
        ["rank", "0", "0.3600"],
        ["rank", "1", "0.1500"],
        ["rank", "1", "0.2500"],
    ]
    assert lines[0].split() == ["0", "root", "1.0000"]
    assert [line.index(node) for line, node in zip(lines, "01342", strict=True)] == [0, 4, 8, 8, 4]
    with pytest.raises(ValueError, match="2 scores for 5 nodes"):
        tree.draw(tree.comb(2, 2), scores=[1.0, 0.5])
