"""SEQUOIA's bounds against worked and published numbers, and against what the planner finds."""

import math

import numpy as np
import pytest

from jaxspec import plan, theory, tree
from jaxspec.plan.theory import trees

# Llama3-8B drafting for Llama3-70B-Instruct on CNN, 31 children (SEQUOIA, appendix E).
LLAMA3 = [
    *(0.7732, 0.1039, 0.0402, 0.0206, 0.0128, 0.0081, 0.0064, 0.0043, 0.0035, 0.0026, 0.0025, 0.0021, 0.0016, 0.0014),
    *(0.0010, 0.0010, 0.0010, 0.0007, 0.0007, 0.0006, 0.0007, 0.0006, 0.0004, 0.0004, 0.0005, 0.0006, 0.0004, 0.0003),
    *(0.0002, 0.0004, 0.0001),
]


def test_power_law_exponent():
    exact = -np.diff(np.arange(1, 9.0) ** -0.7)
    assert trees.power_law_exponent([0.0, *exact]) == pytest.approx(0.7)  # r_1 = 1, r_k = k^-.7
    assert trees.power_law_exponent((0.5, 0.25)) == pytest.approx(2)  # r_2 = 2^-2
    assert trees.power_law_exponent((0.0, 0.0)) == 0
    assert trees.power_law_exponent((0.6, 0.4)) == math.inf

    exponent = trees.power_law_exponent(LLAMA3)
    assert exponent == pytest.approx(1.4367, abs=5e-5)
    slack = np.arange(1, 32) ** -exponent - (1 - np.cumsum(LLAMA3))
    assert (slack > -1e-12).all()
    assert slack.argmin() == 30  # the last measured child binds
    assert slack.min() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("exponent", [0.25, 0.5, 1.0, 1.4367])
def test_theorem_3_6_holds_from_its_start_on(exponent):
    """Its proof's tree, every node with k = (log n)^(1/b) children, has at least the bound if r_k = k^-b."""
    start = trees.tree_lower_bound_start(exponent)
    for log_size in start * np.array([1, 1.5, 10, 1000]):
        children = int(log_size ** (1 / exponent))
        levels = int((log_size + math.log(children - 1)) / math.log(children))  # (k^levels - 1) / (k - 1) <= n
        rejection = children**-exponent
        tokens = -math.expm1(levels * math.log1p(-rejection)) / rejection
        assert tokens >= trees.tree_lower_bound(exponent, log_size)


def test_theorem_3_6_worked():
    assert trees.tree_lower_bound_start(1) == pytest.approx(509.75, abs=5e-3)
    assert trees.tree_lower_bound_start(0) == 1
    assert trees.tree_lower_bound_start(20) == math.inf
    assert trees.tree_lower_bound(1, 509.75) == pytest.approx(509.75 / (10 * math.log(509.75)))


def test_upper_bounds_are_reached_by_their_shapes():
    acceptance = (0.6, 0.25, 0.1)
    assert trees.k_ary_limit(acceptance, 1) == pytest.approx(theory.chain_tokens(0.6, 400)) == pytest.approx(2.5)
    assert trees.k_ary_limit(acceptance, 2) == pytest.approx(1 / 0.15)
    values = [plan.expected_tokens(tree.k_ary(2, depth), acceptance) for depth in range(8)]
    assert values == pytest.approx([trees.k_ary_limit(acceptance, 2) * (1 - 0.85 ** (d + 1)) for d in range(8)])
    for count in (1, 2, 3):
        value = plan.expected_tokens(tree.chains(count, 60), acceptance)
        assert trees.chains_limit(acceptance, count) == pytest.approx(value)
        assert trees.chains_limit(acceptance, count) <= trees.k_ary_limit(acceptance, 1) + 1
    assert trees.k_ary_limit((0.6, 0.4), 2) == trees.chains_limit((1.0,), 1) == math.inf


def test_the_planners_trees_lie_between_the_bounds():
    exponent = trees.power_law_exponent(LLAMA3)
    for branching in (1, 2, 4, 31):
        acceptance = LLAMA3[:branching]
        solution = plan.solve(acceptance, 128)
        for size in (2, 8, 32, 128):
            best = plan.optimal_tree(acceptance, size)
            value = plan.expected_tokens(best, acceptance)
            assert value == pytest.approx(solution.value(size))
            assert theory.chain_tokens(LLAMA3[0], size - 1) <= value + 1e-12
            assert value < trees.k_ary_limit(acceptance, branching)
    for size in (4, 8, 32, 128):  # n too small for the theorem by far, but its bound holds
        value = plan.expected_tokens(plan.optimal_tree(LLAMA3, size), LLAMA3)
        assert value >= trees.tree_lower_bound(exponent, math.log(size))
    assert value == pytest.approx(6.6066, abs=5e-5)
    assert trees.k_ary_limit(LLAMA3, 1) == pytest.approx(4.409, abs=5e-4)
    assert trees.k_ary_limit(LLAMA3, 1) + 1 < value < trees.k_ary_limit(LLAMA3, 2) == pytest.approx(8.137, abs=5e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: trees.power_law_exponent((0.5,)), "acceptance has 1 entry"),
        (lambda: trees.power_law_exponent([(0.5, 0.1)]), r"shape \(1, 2\).* pool it"),
        (lambda: trees.power_law_exponent((0.8, 0.4)), "acceptance sums to 1.2"),
        (lambda: trees.tree_lower_bound(-1, 10), "exponent b is -1"),
        (lambda: trees.tree_lower_bound(1, 1), "log_size is 1"),
        (lambda: trees.tree_lower_bound_start(math.inf), "exponent b is inf"),
        (lambda: trees.k_ary_limit((0.5, 0.1), 3), r"3 children were asked for, but acceptance covers 1 … 2"),
        (lambda: trees.chains_limit((0.5, 0.1), 0), "0 children"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
