"""Predictions of every method from one profile."""

import dataclasses

import numpy as np
import pytest

from jaxspec import plan, ranking, theory, tree
from jaxspec.catalogue.registry import METHODS
from jaxspec.plan.predictions import Prediction
from jaxspec.plan.theory import renewal
from jaxspec.profiles import Profile

CALIBRATION = (((0.7, 0.2), (0.3, 0.6)), ((0.3, 0.3), (0.7, 0.9)))
FLAT = dict.fromkeys((1, 2, 4, 8, 16, 32), 10.0)


def profile(acceptance=(0.6, 0.15, 0.05), verify_ms=FLAT, draft_ms=None):
    return Profile(acceptance=acceptance, verify_ms=verify_ms, draft_ms=draft_ms or {1: 1.0, 2: 1.0, 16: 1.0})


def by_method(known):
    return {one.method: one for one in ranking.rank(known)}


def fastest(method, known, size=None) -> Prediction:
    """The fastest setting of a method that has one."""
    found = ranking.fastest(method, known, size)
    assert found is not None
    return found


def length_of(prediction: Prediction) -> int:
    assert prediction.length is not None
    return prediction.length


def test_the_fastest_on_one_device_comes_first_and_is_the_plans_choice():
    found = ranking.rank(profile())
    predicted = [one.speedup for one in found if one.speedup is not None]
    assert predicted == sorted(predicted, reverse=True)
    assert found[0].method == plan.best(profile()).method
    assert found[0].speedup == pytest.approx(plan.best(profile()).expected_speedup)


def test_overlap_follows_the_renewal_model():
    pearl = by_method(profile())["pearl"]
    tokens = theory.overlap_tokens(0.6, length_of(pearl))
    draft_ms = length_of(pearl) + 1
    assert pearl.expected_tokens == pytest.approx(tokens)
    assert pearl.speedup == pytest.approx(10 * tokens / (draft_ms + 10))
    assert pearl.overlap_speedup == pytest.approx(10 * tokens / max(draft_ms, 10))


def test_the_length_is_the_best_on_two_devices():
    pearl = by_method(profile())["pearl"]
    others = [10 * theory.overlap_tokens(0.6, length) / max(length + 1, 10) for length in range(1, 32)]
    assert pearl.overlap_speedup == pytest.approx(max(others))


def test_what_is_not_predicted_has_no_numbers_and_comes_last():
    found = ranking.rank(dataclasses.replace(profile(), calibration=CALIBRATION, temperature=1.0))
    unknown = {one.method: one for one in found if one.speedup is None}
    assert list(unknown) == [one.method for one in found[-3:]] == ["topk", "adaedl", "specbranch"]
    assert all(one.expected_tokens is None and one.overlap_speedup is None for one in unknown.values())
    defaults = METHODS["specbranch"].defaults
    for name in ("length", "max_branches", "epsilon"):
        assert getattr(unknown["specbranch"], name) == defaults[name]
    assert unknown["topk"].tree == by_method(profile())["sequoia"].tree
    assert ranking.fastest("specbranch", profile()) is None


def test_the_most_probable_tokens_are_predicted_where_the_draft_is_greedy():
    steep = profile(acceptance=(0.5, 0.3, 0.1), draft_ms={1: 4.0, 2: 4.0, 16: 4.0})
    found = by_method(steep)
    assert found["topk"] == found["sequoia"]._replace(method="topk")
    warm = by_method(dataclasses.replace(steep, draft_temperature=0.5))
    assert (warm["topk"].tree, warm["topk"].speedup) == (found["topk"].tree, None)
    five = fastest("topk", steep, 5)
    assert five == fastest("sequoia", steep, 5)._replace(method="topk")
    assert five.tree == plan.optimal_tree((0.5, 0.3, 0.1), 5)


def test_a_tree_that_is_a_chain_is_left_to_speculative():
    steady = profile(acceptance=(0.8, 0.0), draft_ms={1: 1.0})
    assert plan.best(steady).tree.is_chain
    assert "sequoia" not in by_method(steady)
    assert fastest("sequoia", steady).tree == plan.best(steady).tree


def test_a_useless_draft_leaves_plain_decoding_first():
    found = ranking.rank(profile(acceptance=(0.02, 0.01)))
    assert found[0].method == "autoregressive"
    assert found[0].speedup == 1.0
    assert {one.method for one in found} == {"autoregressive", "speculative", "pearl", "adaedl", "specbranch"}
    assert ranking.fastest("sequoia", profile(acceptance=(0.02, 0.01))) is None


def test_an_acceptance_by_depth_is_averaged_for_overlap():
    rows = profile(acceptance=((0.8, 0.1), (0.4, 0.1)))
    assert by_method(rows)["pearl"].expected_tokens == pytest.approx(
        theory.overlap_tokens(0.6, length_of(by_method(rows)["pearl"]))
    )
    assert length_of(by_method(rows)["speculative"]) <= 2


def test_a_tree_is_stated():
    steep = profile(acceptance=(0.5, 0.3, 0.1), draft_ms={1: 4.0, 2: 4.0, 16: 4.0})
    sequoia = by_method(steep)["sequoia"]
    assert isinstance(sequoia.tree, tree.TokenTree)
    assert sequoia.expected_tokens == pytest.approx(plan.expected_tokens(sequoia.tree, np.array([0.5, 0.3, 0.1])))


def test_the_best_length_is_the_one_with_the_best_speed_on_one_device():
    """A chain's against `plan.predict` of each; PEARL's against the renewal model, where a longer one suits two."""
    rising = profile(verify_ms={1: 10.0, 4: 11.0, 8: 20.0, 16: 40.0})
    chains = {length: plan.predict(tree.chain(length), rising).expected_speedup for length in range(1, 16)}
    chosen = fastest("speculative", rising)
    assert chosen.length == max(chains, key=lambda length: chains[length])
    assert chosen.speedup == chains[length_of(chosen)]
    assert ranking.fastest("adaedl", rising) == Prediction("adaedl", length=chosen.length)

    def one_device(length):
        return 10 * theory.overlap_tokens(0.6, length) / (length + 1 + rising.verify_time(length))

    pearls = {length: one_device(length) for length in range(1, 16)}
    pearl = fastest("pearl", rising)
    assert pearl.length == max(pearls, key=lambda length: pearls[length])
    assert length_of(pearl) < length_of(by_method(rising)["pearl"])


def test_a_calibration_predicts_pearl():
    known = dataclasses.replace(profile(), calibration=CALIBRATION)
    setting = renewal.forking(np.asarray(CALIBRATION), np.asarray((0.6, 0.15, 0.05)), 1, 0.0)
    for pearl in (by_method(known)["pearl"], fastest("pearl", known)):
        assert pearl.expected_tokens == pytest.approx(renewal.tokens(setting, length_of(pearl)))
    speeds = {length: renewal.tokens(setting, length) * 10 / max(length + 1, 10) for length in range(1, 32)}
    assert by_method(known)["pearl"].overlap_speedup == pytest.approx(max(speeds.values()))
