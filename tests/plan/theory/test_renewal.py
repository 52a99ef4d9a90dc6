"""The renewal model of cut and forked overlap, against simulated rounds, and `theory` where it cuts nothing."""

import numpy as np
import pytest

from jaxspec import theory
from jaxspec.plan.theory import renewal

CALIBRATION = np.array(
    [
        [[0.4, 0.1], [0.2, 0.3], [0.3, 0.5], [0.1, 0.6]],
        [[0.3, 0.2], [0.2, 0.4], [0.1, 0.6], [0.4, 0.9]],
    ]
)
ACCEPTANCE = np.array([0.56, 0.15, 0.08])
CONFIDENCE = (0.125, 0.375, 0.625, 0.875)
ROUNDS = 40_000


def simulate(length, max_branches, epsilon):
    """Tokens a round and rollback of the path, round by round."""
    rng = np.random.default_rng(7)
    counts = [min(max(1, int(max_branches * (1 - one))), 3) for one in CONFIDENCE]
    siblings = np.array([0.0, 0.15, 0.23]) / (1 - 0.56)
    is_fresh, tokens, path, lost = True, 0, 0, 0
    for _ in range(ROUNDS):
        kind, num_pending, accepted = (0, 0, 0) if is_fresh else (1, length - 1, 0)
        steps = rng.choice(4, size=length, p=CALIBRATION[kind, :, 0])
        unsure = [place for place in range(num_pending) if CONFIDENCE[steps[place]] < epsilon]
        num_pending = min(unsure, default=num_pending)
        while accepted < num_pending and rng.random() < CALIBRATION[1, steps[accepted], 1]:
            accepted += 1
        fork = steps[num_pending]
        first, second = rng.random() < CALIBRATION[kind, fork, 1], rng.random() < siblings[counts[fork] - 1]
        survives = accepted == num_pending and (first or second)
        tokens += accepted + 1
        path += length - (not is_fresh and num_pending < length - 1)
        lost += 0 if survives else num_pending + length - accepted
        is_fresh = not survives
    return tokens / ROUNDS, lost / path


@pytest.mark.parametrize(
    ("length", "max_branches", "epsilon"),
    [(8, 1, 0.0), (8, 3, 0.3), (4, 6, 0.55), (8, 4, 0.8), (1, 3, 0.5), (8, 4, 1.0)],
)
def test_rounds_give_what_the_model_says(length, max_branches, epsilon):
    setting = renewal.forking(CALIBRATION, ACCEPTANCE, max_branches, epsilon)
    tokens, rollback = simulate(length, max_branches, epsilon)
    assert renewal.tokens(setting, length) == pytest.approx(tokens, abs=0.015)
    assert renewal.rollback(setting, length) == pytest.approx(rollback, abs=0.01)


@pytest.mark.parametrize("length", [1, 2, 8])
def test_without_a_cut_and_with_one_kind_of_token_it_is_the_plain_model(length):
    alike = np.stack([CALIBRATION[1], CALIBRATION[1]])
    alpha = float(CALIBRATION[1, :, 0] @ CALIBRATION[1, :, 1])
    setting = renewal.forking(alike, ACCEPTANCE, 1, 0.0)
    assert renewal.tokens(setting, length) == pytest.approx(theory.overlap_tokens(alpha, length))
    assert renewal.rollback(setting, length) == pytest.approx(theory.overlap_rollback(alpha, length))


def test_a_cut_of_everything_leaves_forks_alone():
    setting = renewal.forking(CALIBRATION, ACCEPTANCE, 4, 1.0)
    assert (setting.kept, setting.stands, setting.cut_fork) == (0.0, 0.0, pytest.approx(setting.any_fork))
    assert renewal.tokens(setting, 8) == 1.0


def test_more_branches_and_ranks_help_and_unmeasured_ranks_do_not():
    forks = [renewal.forking(CALIBRATION, ACCEPTANCE, count, 0.3).any_fork for count in (1, 2, 4, 8, 40)]
    assert forks == sorted(forks)
    assert forks[0] == pytest.approx(float(CALIBRATION[1, :, 0] @ CALIBRATION[1, :, 1]))
    lone = renewal.forking(CALIBRATION, ACCEPTANCE[:1], 8, 0.3)
    assert lone.any_fork == pytest.approx(forks[0])


@pytest.mark.parametrize(("max_branches", "epsilon"), [(0, 0.5), (2, -0.1), (2, 1.5)])
def test_what_is_no_setting_is_refused(max_branches, epsilon):
    with pytest.raises(ValueError, match=f"max_branches={max_branches}, epsilon={epsilon}"):
        renewal.forking(CALIBRATION, ACCEPTANCE, max_branches, epsilon)
