"""Predictions of every method from one profile."""

import dataclasses

import numpy as np
import pytest

from jaxspec import plan, ranking, theory, tree
from jaxspec.plan.theory import renewal
from jaxspec.profiles import Profile

FLAT = dict.fromkeys((1, 2, 4, 8, 16, 32), 10.0)


def profile(acceptance=(0.6, 0.15, 0.05), verify_ms=FLAT, draft_ms=None):
    return Profile(acceptance=acceptance, verify_ms=verify_ms, draft_ms=draft_ms or {1: 1.0, 2: 1.0, 16: 1.0})


def by_method(*args, **kwargs):
    return {one.method: one for one in ranking.rank(*args, **kwargs)}


def test_the_fastest_on_one_device_comes_first_and_is_the_plans_choice():
    found = ranking.rank(profile())
    assert [one.speedup for one in found] == sorted((one.speedup for one in found), reverse=True)
    assert found[0].method == plan.best(profile()).method
    assert found[0].speedup == pytest.approx(plan.best(profile()).expected_speedup)


def test_overlap_follows_the_renewal_model():
    pearl = by_method(profile())["pearl"]
    tokens = theory.overlap_tokens(0.6, pearl.length)
    draft_ms = pearl.length + 1
    assert pearl.expected_tokens == pytest.approx(tokens)
    assert pearl.speedup == pytest.approx(10 * tokens / (draft_ms + 10))
    assert pearl.overlap_speedup == pytest.approx(10 * tokens / max(draft_ms, 10))


def test_the_length_is_the_best_on_two_devices():
    pearl = by_method(profile())["pearl"]
    others = [10 * theory.overlap_tokens(0.6, length) / max(length + 1, 10) for length in range(1, 32)]
    assert pearl.overlap_speedup == pytest.approx(max(others))


def test_branches_raise_the_forks_acceptance():
    found = by_method(profile())
    branch, pearl = found["specbranch"], found["pearl"]
    assert branch.max_branches == 3
    assert branch.expected_tokens == pytest.approx(theory.overlap_tokens(0.6, branch.length, 0.8))
    assert branch.overlap_speedup > pearl.overlap_speedup


def test_branches_that_cost_too_much_are_not_tried_for():
    dear = profile(draft_ms={1: 1.0, 2: 9.0, 16: 9.0})
    assert by_method(dear)["specbranch"].overlap_speedup < by_method(dear)["pearl"].overlap_speedup


def test_a_useless_draft_leaves_plain_decoding_first():
    found = ranking.rank(profile(acceptance=(0.02, 0.01)))
    assert found[0].method == "autoregressive"
    assert found[0].speedup == 1.0
    assert {one.method for one in found} == {"autoregressive", "speculative", "pearl", "specbranch"}


def test_an_acceptance_by_depth_is_averaged_for_overlap():
    rows = profile(acceptance=((0.8, 0.1), (0.4, 0.1)))
    assert by_method(rows)["pearl"].expected_tokens == pytest.approx(
        theory.overlap_tokens(0.6, by_method(rows)["pearl"].length)
    )
    assert by_method(rows)["speculative"].length <= 2


def test_one_rank_has_no_branches():
    assert "specbranch" not in by_method(profile(acceptance=(0.5,)))
    assert "specbranch" not in by_method(profile(), max_branches=1)


def test_a_tree_is_stated():
    steep = profile(acceptance=(0.5, 0.3, 0.1), draft_ms={1: 4.0, 2: 4.0, 16: 4.0})
    sequoia = by_method(steep)["sequoia"]
    assert isinstance(sequoia.tree, tree.TokenTree)
    assert sequoia.expected_tokens == pytest.approx(plan.expected_tokens(sequoia.tree, np.array([0.5, 0.3, 0.1])))


def test_the_best_length_is_the_one_with_the_best_speed_on_one_device():
    """A chain's against `plan.predict` of each; PEARL's against the renewal model, where a longer one suits two."""
    rising = profile(verify_ms={1: 10.0, 4: 11.0, 8: 20.0, 16: 40.0})
    chains = {length: plan.predict(tree.chain(length), rising).expected_speedup for length in range(1, 16)}
    chosen = ranking.best("speculative", rising)
    assert chosen.length == max(chains, key=lambda length: chains[length])
    assert chosen.speedup == chains[chosen.length]
    assert ranking.best("adaedl", rising) == chosen._replace(method="adaedl")

    def one_device(length, beta=None):
        tokens = theory.overlap_tokens(0.6, length, beta)
        return 10 * tokens / (length + 1 + rising.verify_time(length))

    pearls = {length: one_device(length, 0.6) for length in range(1, 16)}
    assert ranking.best("pearl", rising).length == max(pearls, key=lambda length: pearls[length])
    branched = {length: one_device(length, 0.8) for length in range(1, 16)}
    assert ranking.best("specbranch", rising, max_branches=3).length == max(
        branched, key=lambda length: branched[length]
    )
    assert ranking.best("specbranch", rising, max_branches=9) == ranking.best("specbranch", rising, max_branches=3)
    assert ranking.best("pearl", rising).length < by_method(rising)["pearl"].length


CALIBRATION = (((0.7, 0.2), (0.3, 0.6)), ((0.3, 0.3), (0.7, 0.9)))


def test_a_calibration_chooses_epsilon_and_the_branches_too():
    known = dataclasses.replace(profile(), calibration=CALIBRATION)
    branch = by_method(known)["specbranch"]

    def setting(count, epsilon):
        return renewal.forking(np.asarray(CALIBRATION), np.asarray((0.6, 0.15, 0.05)), count, epsilon)

    def predicted(length, count, epsilon):
        return renewal.tokens(setting(count, epsilon), length) * 10 / max(2 * length + 1 - length, 10)

    grid = [(length, count, epsilon) for length in range(1, 32) for count in range(2, 9) for epsilon in (0.0, 0.5)]
    chosen = branch.length, branch.max_branches, branch.epsilon
    assert predicted(*chosen) == pytest.approx(max(predicted(*one) for one in grid))
    assert branch.overlap_speedup == pytest.approx(predicted(*chosen))
    given = ranking.best("specbranch", known, length=8, max_branches=4, epsilon=0.3)
    assert (given.length, given.max_branches, given.epsilon) == (8, 4, 0.3)
    assert given.expected_tokens == pytest.approx(renewal.tokens(setting(4, 0.3), 8))
    assert ranking.best("specbranch", known, length=8).speedup >= given.speedup
    assert by_method(profile())["specbranch"].epsilon is None
    pearl = ranking.best("pearl", known, length=8)
    assert pearl.expected_tokens == pytest.approx(renewal.tokens(setting(1, 0.0), 8))
    assert pearl.epsilon is None


@pytest.mark.parametrize("limits", [{"max_length": 0}, {"max_branches": 0}])
def test_limits_below_one_are_refused(limits):
    with pytest.raises(ValueError, match="at least 1"):
        ranking.rank(profile(), **limits)
