"""The planner against brute force over all trees and against published and worked numbers."""

import itertools
from typing import Any

import numpy as np
import pytest

from jaxspec import plan, tree
from jaxspec.profiles import Profile
from jaxspec.tree import NO_PARENT

# Llama3-8B drafting for Llama3-70B-Instruct on CNN, 31 children (SEQUOIA, appendix E).
LLAMA3 = [
    *(0.7732, 0.1039, 0.0402, 0.0206, 0.0128, 0.0081, 0.0064, 0.0043, 0.0035, 0.0026, 0.0025, 0.0021, 0.0016, 0.0014),
    *(0.0010, 0.0010, 0.0010, 0.0007, 0.0007, 0.0006, 0.0007, 0.0006, 0.0004, 0.0004, 0.0005, 0.0006, 0.0004, 0.0003),
    *(0.0002, 0.0004, 0.0001),
]


def slow_expected_tokens(parents, acceptance):
    """The sum over nodes of the product of acceptances along the path, or None where the acceptance has no entry."""
    acceptance = np.asarray(acceptance)
    total, scores, depths, seen = 0.0, [], [], [0] * len(parents)
    for parent in parents:
        score, depth = 1.0, 0
        if parent != NO_PARENT:
            rank, depth = seen[parent], depths[parent] + 1
            seen[parent] += 1
            if rank >= acceptance.shape[-1] or (acceptance.ndim == 2 and depth > len(acceptance)):
                return None
            score = scores[parent] * acceptance[(rank,) if acceptance.ndim == 1 else (depth - 1, rank)]
        scores.append(score)
        depths.append(depth)
        total += score
    return total, max(depths)


def brute_force(acceptance, size):
    """The most expected tokens by exact depth, over every tree of the size."""
    most = {}
    for parents in itertools.product(*(range(node) for node in range(1, size))):
        if list(parents) == sorted(parents):
            found = slow_expected_tokens((NO_PARENT, *parents), acceptance)
            if found is not None:
                most[found[1]] = max(most.get(found[1], 0.0), found[0])
    return most


def acceptances():
    random = np.random.default_rng(0)
    yield (0.6, 0.25, 0.1)
    yield (0.0, 0.0, 0.5)
    yield (0.1, 0.0, 0.9)
    yield (1.0,)
    yield random.uniform(size=3)
    yield [(0.8, 0.1), (0.5, 0.2), (0.2, 0.1)]
    yield [(0.1, 0.8, 0.0), (0.0, 0.0, 0.0), (0.2, 0.1, 0.7)]
    yield random.uniform(size=(4, 3)) * random.integers(0, 2, (4, 3))
    yield random.uniform(size=(6, 2))


@pytest.mark.parametrize("acceptance", list(acceptances()))
def test_optimal_trees_equal_brute_force_over_all_trees(acceptance):
    limits = (None, 0, 1, 2, 3, 4, 5, 9)
    solution = plan.solve(acceptance, 7, limits)
    for size, limit in itertools.product(range(1, 8), limits):
        depths = brute_force(acceptance, size)
        within = [value for depth, value in depths.items() if limit is None or depth <= limit]
        if not within:
            with pytest.raises(ValueError, match=f"no tree of {size} nodes"):
                plan.optimal_tree(acceptance, size, limit)
            with pytest.raises(ValueError, match=f"no tree of {size} nodes"):
                solution.value(size, limit)
            continue
        assert solution.value(size, limit) == pytest.approx(max(within), abs=1e-12)
        for best in (plan.optimal_tree(acceptance, size, limit), solution.tree(size, limit)):
            assert best.size == size
            assert limit is None or best.depth <= limit
            assert plan.expected_tokens(best, acceptance) == pytest.approx(max(within), abs=1e-12)


@pytest.mark.parametrize(
    ("acceptance", "values"),
    [
        ((0.6, 0.25), (1, 1.6, 1.96, 2.21, 2.426, 2.576, 2.726, 2.8556)),
        ((0.6, 0.4), (1, 1.6, 2.0, 2.36, 2.6, 2.84, 3.056, 3.216)),
        ((0.5, 0.2, 0.1), (1, 1.5, 1.75, 1.95, 2.075, 2.175, 2.275, 2.375)),
        ((1.0, 0.0), (1, 2, 3, 4, 5, 6, 7, 8)),
        ((0.5, 0.1, 0.0, 0.4), (1, 1.5, 1.75, 1.875, 2.0, 2.25, 2.45, 2.575)),
    ],
)
def test_worked_values_by_size(acceptance, values):
    solution = plan.solve(acceptance, len(values))
    assert [solution.value(size) for size in range(1, len(values) + 1)] == pytest.approx(values, abs=1e-12)


def test_worked_values_under_a_depth_limit():
    solution = plan.solve((0.6, 0.25), 16, (2, 3, 4, 5))
    assert solution.value(8, 3) == pytest.approx(2.816)
    assert solution.value(8, 4) == pytest.approx(2.8556)
    assert solution.value(16, 4) == pytest.approx(3.40410)
    assert solution.value(16, 5) == pytest.approx(3.42786)
    with pytest.raises(ValueError, match=r"no tree of 8 nodes fits: with depth at most 2 .* sizes 1 … 7 do"):
        solution.value(8, 2)
    with pytest.raises(ValueError, match=r"no tree of 16 nodes fits: with depth at most 3 .* sizes 1 … 15 do"):
        plan.optimal_tree((0.6, 0.25), 16, max_depth=3)


def test_a_vector_that_does_not_decrease():
    best = plan.optimal_tree((0.3, 0.05, 0.9), 4)
    assert best == tree.star(3)
    assert plan.expected_tokens(best, (0.3, 0.05, 0.9)) == pytest.approx(2.25)


def test_acceptance_by_depth():
    acceptance = [(0.8, 0.1), (0.5, 0.2), (0.2, 0.1)]
    best = plan.optimal_tree(acceptance, 6)
    assert best.parents == (-1, 0, 0, 1, 1, 3)  # 1 + .8 + .1 + .8 * .5 + .8 * .2 + .8 * .5 * .2
    assert plan.expected_tokens(best, acceptance) == pytest.approx(2.54)
    assert plan.optimal_tree(acceptance, 6, max_depth=100) == best
    with pytest.raises(ValueError, match="no tree of 16 nodes"):
        plan.optimal_tree(acceptance, 16)


@pytest.mark.parametrize(
    ("size", "value", "levels", "root_children"),
    [
        (2, 1.7732, 2, 1),
        (4, 2.8333, 4, 1),
        (8, 3.8459, 8, 1),
        (16, 4.5376, 11, 2),
        (32, 5.2199, 14, 3),
        (64, 5.9166, 17, 4),
        (128, 6.6066, 19, 6),
        (256, 7.2887, 22, 8),
    ],
)
def test_published_vector(size, value, levels, root_children):
    best = plan.optimal_tree(LLAMA3, size)
    assert plan.expected_tokens(best, LLAMA3) == pytest.approx(value, abs=5e-5)
    assert best.depth + 1 == levels
    assert len(best.children[0]) == root_children


def test_published_vector_under_a_depth_limit():
    best = plan.optimal_tree(LLAMA3, 768, max_depth=17)
    assert best.size == 768
    assert best.depth <= 17
    assert plan.expected_tokens(best, LLAMA3) == pytest.approx(8.3374, abs=5e-5)


def test_expected_tokens_of_plain_shapes():
    assert plan.expected_tokens(tree.chain(4), (0.8,)) == pytest.approx(3.3616)
    assert plan.expected_tokens(tree.chain(4), (0.5,)) == pytest.approx(1.9375)
    assert plan.expected_tokens(tree.star(2), (0.6, 0.25)) == pytest.approx(1.85)
    assert plan.node_scores(tree.comb(2, 2), (0.6, 0.25)).tolist() == pytest.approx([1, 0.6, 0.25, 0.36, 0.15])
    by_depth = [(0.6, 0.25), (0.5, 0.1)]
    assert plan.node_scores(tree.comb(2, 2), by_depth).tolist() == pytest.approx([1, 0.6, 0.25, 0.3, 0.06])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plan.expected_tokens(tree.star(3), (0.6, 0.25)), "3 children, but acceptance covers 2"),
        (lambda: plan.expected_tokens(tree.chain(3), [(0.6,), (0.5,)]), "3 deep, but acceptance has 2 rows"),
        (lambda: plan.expected_tokens(tree.chain(1), ()), r"shape \(0,\)"),
        (lambda: plan.optimal_tree((0.5, 1.5), 4), r"acceptance\[1\] is 1\.5"),
        (lambda: plan.optimal_tree((0.5, 0.2), 0), "tree of 0 nodes"),
        (lambda: plan.optimal_tree((0.5, 0.2), 3, max_depth=-1), "depth limit of -1"),
        (lambda: plan.optimal_tree((0.5, 0.2), 2, max_depth=0), r"no tree of 2 nodes .* sizes 1 … 1 do"),
        (lambda: plan.solve((0.5,), 4).value(5), "sizes 1 … 4"),
        (lambda: plan.solve((0.5,), 4).tree(4, 2), "max_depth is 2"),
        (lambda: plan.best(Profile((0.5,), {1: 1}, {1: 1}), max_size=0), "max_size is 0"),
        (lambda: plan.best(Profile((0.5,), {1: 1}, {1: 1}), max_depth=0), "max_depth 0"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_prediction_charges_each_draft_step_by_its_width():
    profile = Profile((0.6, 0.25), verify_ms={1: 10, 7: 14}, draft_ms={1: 1, 2: 3}, overhead_ms=0.5)
    predicted = plan.predict(tree.k_ary(2, 2), profile)
    assert predicted.method == "sequoia"
    assert predicted.expected_tokens == pytest.approx(2.5725)
    assert predicted.round_ms == pytest.approx(1 + 3 + 14 + 0.5)
    assert predicted.expected_ms_per_token == pytest.approx(18.5 / 2.5725)
    assert predicted.expected_speedup == pytest.approx(10 * 2.5725 / 18.5)
    plain = plan.predict(tree.chain(0), profile)
    assert (plain.method, plain.round_ms, plain.expected_tokens, plain.expected_speedup) == ("autoregressive", 10, 1, 1)
    assert plan.predict(tree.chain(2), profile).method == "speculative"
    assert plan.predict(tree.chain(2), profile).round_ms == pytest.approx(2 + 10 + 4 * 2 / 6 + 0.5)


@pytest.mark.parametrize(
    ("draft_ms", "verify_ms", "size", "depth", "tokens"),
    [(1, 10, 15, 3, 3.1866), (1, 2, 7, 2, 2.5725), (1, 50, 16, 4, 3.4041)],
)
def test_best_weighs_time(draft_ms, verify_ms, size, depth, tokens):
    profile = Profile((0.6, 0.25), verify_ms={1: verify_ms}, draft_ms={1: draft_ms})
    chosen = plan.best(profile, max_size=16)
    assert (chosen.tree.size, chosen.tree.depth) == (size, depth)
    assert chosen.expected_tokens == pytest.approx(tokens, abs=5e-5)
    assert chosen.expected_ms_per_token == pytest.approx((depth * draft_ms + verify_ms) / tokens, rel=1e-4)
    assert chosen.method == "sequoia"


@pytest.mark.parametrize(
    ("acceptance", "length", "method"),
    [(0.0, 0, "autoregressive"), (0.5, 2, "speculative"), (0.8, 6, "speculative"), (0.9, 10, "speculative")],
)
def test_best_chain_length_and_plain_decoding(acceptance, length, method):
    chosen = plan.best(Profile((acceptance,), verify_ms={1: 10}, draft_ms={1: 1}))
    assert chosen.tree == tree.chain(length)
    assert chosen.method == method
    tokens = sum(acceptance**i for i in range(length + 1))
    assert chosen.expected_speedup == pytest.approx(10 * tokens / (length + 10))


def test_plain_decoding_wins_where_a_draft_costs_more_than_it_brings():
    profile = Profile((0.8,), verify_ms={1: 10, 2: 10.5, 64: 30}, draft_ms={1: 30})
    chosen = plan.best(profile)
    assert (chosen.method, chosen.expected_speedup, chosen.expected_ms_per_token) == ("autoregressive", 1, 10)
    overhead = Profile((0.8,), verify_ms={1: 10}, draft_ms={1: 0.1}, overhead_ms=100)
    assert plan.best(overhead).method == "autoregressive"


def test_best_stays_where_verifying_is_cheap():
    profile = Profile(
        (0.6, 0.2, 0.1, 0.05), verify_ms={1: 10, 8: 10, 9: 100, 64: 100}, draft_ms={1: 0.01}, overhead_ms=0.0
    )
    assert 1 < plan.best(profile).tree.size <= 8


def test_best_prices_wide_levels():
    narrow = Profile((0.6, 0.25), verify_ms={1: 10}, draft_ms={1: 1, 2: 30, 3: 60})
    assert max(plan.best(narrow, max_size=16).tree.level_widths) == 1
    flat = Profile((0.6, 0.25), verify_ms={1: 10}, draft_ms={1: 1})
    assert max(plan.best(flat, max_size=16).tree.level_widths) > 1


def test_best_equals_an_exhaustive_search():
    random = np.random.default_rng(1)
    for by_depth in (False, True):
        acceptance: Any = random.dirichlet(np.ones(4), size=3 if by_depth else None)[..., :3]
        profile = Profile(acceptance, verify_ms={1: 5, 4: 6, 16: 11}, draft_ms={1: 0.5, 3: 0.8}, overhead_ms=0.2)
        depths = range(1, 4)
        speedups = plan.table(profile, range(1, 17), depths)
        chosen = plan.best(profile, max_depth=3)
        assert chosen.expected_speedup == pytest.approx(np.nanmax(speedups))
        for (row, column), speedup in np.ndenumerate(speedups):
            try:
                candidate = plan.optimal_tree(acceptance, row + 1, depths[column])
            except ValueError:
                assert np.isnan(speedup)
            else:
                assert speedup == pytest.approx(plan.predict(candidate, profile).expected_speedup)


def test_default_limits():
    chains = {"acceptance": (0.999,), "draft_ms": {1: 0.01}}
    assert plan.best(Profile(verify_ms={1: 10, 6: 10}, **chains)).tree.size == 6
    assert plan.best(Profile(verify_ms={1: 10}, **chains)).tree.depth == 16
    assert plan.best(Profile(verify_ms={1: 10, 200: 10}, **chains), max_depth=500).tree.size == 64
    by_depth = Profile(((0.999,),) * 3, verify_ms={1: 10}, draft_ms={1: 0.01})
    assert plan.best(by_depth).tree.depth == 3
