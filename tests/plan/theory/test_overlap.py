"""What overlap gives, against worked and published numbers, and a simulation of the state machine."""

import math

import numpy as np
import pytest

from jaxspec import theory


@pytest.mark.parametrize(
    ("alpha", "length", "tokens", "rollback"),
    [(0.5, 4, 1.3043, 0.8370), (0.65, 8, 1.7094, 0.8611), (0.9, 5, 3.1272, 0.4371)],
)
def test_worked_overlap(alpha, length, tokens, rollback):
    assert theory.overlap_tokens(alpha, length) == pytest.approx(tokens, abs=5e-5)
    assert theory.overlap_rollback(alpha, length) == pytest.approx(rollback, abs=5e-5)
    assert theory.overlap_rollback_all(alpha, length, alpha, 1) == pytest.approx(rollback, abs=5e-5)


def test_worked_forks():
    assert theory.overlap_tokens(0.5, 8) == pytest.approx(1.332, abs=5e-4)
    assert theory.overlap_tokens(0.5, 8, 0.75) == pytest.approx(1.427, abs=5e-4)
    assert theory.overlap_tokens(0.9, 5, 0.97) == pytest.approx(3.251, abs=5e-4)
    assert theory.overlap_tokens(0.5, 8, 0.0) == 1  # every fork fails: a correction a step
    assert theory.overlap_rollback(0.5, 8, 0.0) == 1


def test_published_rollback():
    """HumanEval with Vicuna, alpha = .66: 76.6% of a chain's and 90.3% of PEARL's drafted tokens."""
    assert theory.chain_rollback(0.66, 8) == pytest.approx(0.766, abs=5e-4)
    assert theory.overlap_rollback(0.66, 12) == pytest.approx(0.903, abs=5e-4)


def test_overlap_of_perfect_and_useless_drafts():
    for length in (1, 4, 9):
        assert theory.overlap_tokens(1.0, length) == length
        assert theory.overlap_tokens(0.0, length) == 1
        assert (theory.overlap_rollback(1.0, length), theory.overlap_rollback(0.0, length)) == (0, 1)
    assert theory.overlap_speedup(1.0, 6, 6) == pytest.approx(6)
    assert theory.overlap_tokens(0.7, 1) == pytest.approx(1)


def simulate(alpha, fork_acceptance, length, rows=4000, steps=250, warm_up=50):
    """Per row: tokens a step, rolled-back share of the path's tokens, and of all tokens; by counting what is dropped.

    Args:
        fork_acceptance: `[k]` acceptance of each candidate of a fork.
    """
    random = np.random.default_rng(0)
    branches = len(fork_acceptance)
    pending = np.zeros(rows, int)  # drafted before this step, not verified yet
    emitted, dropped_path, dropped_all = np.zeros((3, rows))
    for step in range(steps + warm_up):
        if step == warm_up:
            emitted[:] = dropped_path[:] = dropped_all[:] = 0
        alive = np.ones(rows, bool)
        verified = np.zeros(rows, int)
        for index in range(length - 1):  # the target goes through what was pending, token by token
            tested = alive & (index < pending)
            alive &= ~tested | (random.random(rows) < alpha)
            verified += tested & alive
        survivor = np.searchsorted(np.cumsum(fork_acceptance), random.random(rows), side="right")
        forked = alive & (survivor < branches)
        emitted += verified + 1  # the fork's token, or a correction
        dropped = np.where(forked, 0, pending - verified + length)
        dropped_path += dropped
        dropped_all += dropped + (branches - 1) * length
        pending = np.where(forked, length - 1, 0)
    return emitted / steps, dropped_path / steps / length, dropped_all / steps / length / branches


@pytest.mark.parametrize(
    ("alpha", "fork_acceptance", "length"),
    [(0.5, (0.5,), 4), (0.9, (0.9,), 5), (0.5, (0.5, 0.15, 0.1), 8), (0.9, (0.9, 0.07), 5), (0.7, (0.4, 0.1), 3)],
)
def test_overlap_equals_its_simulation(alpha, fork_acceptance, length):
    fork_alpha = sum(fork_acceptance)
    wanted = (
        theory.overlap_tokens(alpha, length, fork_alpha),
        theory.overlap_rollback(alpha, length, fork_alpha),
        theory.overlap_rollback_all(alpha, length, fork_alpha, len(fork_acceptance)),
    )
    for values, expected in zip(simulate(alpha, fork_acceptance, length), wanted, strict=True):
        error = values.std(ddof=1) / math.sqrt(len(values))
        assert error < 4e-3
        assert abs(values.mean() - expected) < 4 * error


def test_overlap_tends_to_its_limit():
    assert theory.overlap_tokens_limit(0.5) == pytest.approx(4 / 3)
    for alpha, fork_alpha in ((0.5, None), (0.8, 0.9), (0.3, 0.0)):
        limit = theory.overlap_tokens_limit(alpha, fork_alpha)
        values = [theory.overlap_tokens(alpha, length, fork_alpha) for length in range(1, 12)]
        assert (np.diff([*values, limit]) >= 0).all()
        assert theory.overlap_tokens(alpha, 400, fork_alpha) == pytest.approx(limit, rel=1e-12)
    assert theory.overlap_tokens_limit(1.0) == math.inf
    assert theory.overlap_tokens_limit(1.0, 0.0) == 1  # never a whole chunk
    assert theory.best_chain(0.5, 1, 20).speedup == pytest.approx(1.63, abs=5e-3)  # which overlap can't reach


def test_theorem_1_is_not_the_renewal_rate():
    assert theory.theorem_1_tokens(0.5, 8) == pytest.approx(0.500, abs=5e-4)
    assert theory.theorem_1_tokens(0.95, 10) == pytest.approx(6.09, abs=5e-3)
    assert theory.overlap_tokens(0.95, 10) == pytest.approx(5.94, abs=5e-3)
    accepted = 0.5 * (1 - 0.5**8) / 0.5
    assert theory.theorem_1_time(0.5, 8, 5) == pytest.approx(2 * 8 / ((1 + 0.5**8) * accepted))
    assert theory.theorem_1_time(0.5, 8, 12) == pytest.approx(2 * 12 / ((1 + 0.5**8) * accepted))
    assert theory.theorem_1_time(0.0, 8, 12) == math.inf
    assert theory.overlap_time(0.0, 8, 1, 12) == 12


def test_ideal_time():
    for length, c in ((4, 4), (4, 10), (10, 4)):
        assert theory.ideal_time(length, c) == pytest.approx(theory.overlap_time(1.0, length, 1, c))
        assert theory.ideal_time(length, c) == pytest.approx(theory.theorem_1_time(1.0, length, c))
    assert (theory.ideal_time(4, 10), theory.ideal_time(10, 4)) == (2.5, 1)
