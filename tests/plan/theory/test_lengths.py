"""The best lengths, and where a chain or overlap wins."""

import itertools

import numpy as np
import pytest

from jaxspec import plan, theory
from jaxspec.profiles import Profile


def test_times_follow_a_table():
    profile = Profile((0.8,), verify_ms={1: 10, 5: 14}, draft_ms={1: 2})
    assert theory.chain_time(0.8, 4, 2, profile.verify_time) == pytest.approx((4 * 2 + 14) / 3.3616)
    assert theory.overlap_time(0.8, 5, 2, profile.verify_time) == pytest.approx(14 / theory.overlap_tokens(0.8, 5))
    assert theory.overlap_time(0.8, 5, 3, profile.verify_time) == pytest.approx(15 / theory.overlap_tokens(0.8, 5))
    chosen = theory.best_chain(0.8, 2, profile.verify_time, max_length=16)
    planned = plan.best(profile, max_size=17)
    assert chosen.length == planned.tree.depth > 1
    assert chosen.time == pytest.approx(planned.expected_ms_per_token)
    assert chosen.speedup == pytest.approx(planned.expected_speedup)


def test_best_lengths():
    def steep(tokens):
        return 10.0 if tokens <= 4 else 40.0

    assert theory.best_chain(0.9, 1, steep).length == 3  # and the root
    assert theory.best_overlap(0.9, 1, steep).length == 4
    assert theory.best_overlap(0.5, 1, steep, 0.9).time == pytest.approx(10 / theory.overlap_tokens(0.5, 4, 0.9))
    assert theory.best_chain(0.05, 1, 10)[:2] == (0, 10)
    assert theory.best_chain(0.05, 1, 10).speedup == 1
    assert theory.best_chain(0.999, 1, 10, max_length=7).length == 7
    for alpha, c in itertools.product((0.7, 0.8, 0.9), (3, 5, 10, 20)):
        assert theory.best_overlap(alpha, 1, c).length == c
    many = theory.best_overlap(np.array([0.7, 0.99]), 1, 7.9)  # the longer one costs .1 of a draft step
    assert [theory.best_overlap(alpha, 1, 7.9).length for alpha in (0.7, 0.99)] == many.length.tolist() == [7, 8]


@pytest.mark.parametrize(
    ("c", "low", "high"), [(10, 0.115, 0.728), (20, 0.053, 0.875), (40, 0.026, 0.939), (5.5, 0.2887, 0.3888)]
)
def test_where_a_chain_beats_overlap(c, low, high):
    """Of the upper ends .73, .875 and .94 were published; the lower end is there as well."""
    region = theory.chain_region(c)
    assert region is not None
    assert region == pytest.approx((low, high), abs=1e-3)
    assert theory.overlap_threshold(c) == region[1]

    def chain_wins(alpha):
        return theory.best_chain(alpha, 1, c).speedup > theory.best_overlap(alpha, 1, c).speedup + 1e-12

    alphas = np.linspace(0.005, 0.995, 199)
    np.testing.assert_array_equal(chain_wins(alphas), (alphas > region[0]) & (alphas < region[1]))
    for end, outside in zip(region, (-1e-6, 1e-6), strict=True):
        assert not chain_wins(end + outside)
        assert chain_wins(end - outside)


def test_overlap_never_loses_up_to_c_of_5():
    for c in (1, 2, 4.9, 5):
        assert theory.chain_region(c) is None
        assert theory.overlap_threshold(c) == 0
    assert theory.chain_region(5.3) is None
    assert theory.chain_region(5.4) is not None
    assert theory.chain_region(0.5) == (0, 1)  # plain decoding, where a draft step takes longer than the target's


def test_forks_shrink_the_chains_region():
    plain, forked = theory.chain_region(10), theory.chain_region(10, lambda alpha: alpha + 0.5 * (1 - alpha))
    assert plain is not None
    assert forked is not None
    (low, high), (forked_low, forked_high) = plain, forked
    assert low < forked_low < forked_high < high
