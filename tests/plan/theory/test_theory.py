"""The closed forms against worked and published numbers, enumeration, and a simulation of the state machine."""

import importlib.util
import itertools
import json
import math

import numpy as np
import pytest
import theory_figure

from jaxspec import plan, theory, tree
from jaxspec.profiles import Profile

needs_matplotlib = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="the extra plot")

ALPHAS = (0.0, 0.3, 0.65, 0.9, 1.0)


@pytest.mark.parametrize(("alpha", "length"), list(itertools.product(ALPHAS, (1, 2, 5))))
def test_chain_equals_enumeration_over_all_outcomes(alpha, length):
    pmf = np.zeros(length + 1)
    for outcome in itertools.product((0, 1), repeat=length):
        pmf[(*outcome, 0).index(0)] += math.prod(alpha if accepted else 1 - alpha for accepted in outcome)
    mean = float(pmf @ np.arange(length + 1))
    np.testing.assert_allclose(theory.accepted_pmf(alpha, length), pmf, atol=1e-15)
    assert theory.expected_accepted(alpha, length) == pytest.approx(mean, abs=1e-14)
    assert theory.chain_tokens(alpha, length) == pytest.approx(mean + 1)
    assert theory.chain_tokens(alpha, length) == pytest.approx(plan.expected_tokens(tree.chain(length), (alpha,)))
    assert theory.chain_rollback(alpha, length) == pytest.approx(1 - mean / length, abs=1e-14)
    assert theory.theorem_1_tokens(alpha, length) == pytest.approx(mean * (1 + pmf[-1]) / 2)


def test_worked_chains():
    assert [theory.chain_tokens(0.6, length) for length in (0, 1, 2, 3)] == pytest.approx([1, 1.6, 1.96, 2.176])
    assert theory.chain_speedup(0.6, 2, 10) == pytest.approx(1.96 / (2 * 0.1 + 1))
    assert theory.chain_speedup(1.0, 4, 4) == pytest.approx(5 * 4 / 8)
    assert theory.chain_tokens(1 - 1e-13, 50) == pytest.approx(51, abs=1e-9)  # where the closed form cancels


def test_arrays_give_their_shape():
    alpha = np.array([[0.0, 0.5], [0.9, 1.0]])
    assert theory.accepted_pmf(alpha, 3).shape == (2, 2, 4)
    functions = (
        theory.chain_tokens,
        theory.expected_accepted,
        theory.chain_rollback,
        theory.overlap_tokens,
        theory.overlap_rollback,
        theory.theorem_1_tokens,
        lambda alpha, length: theory.overlap_tokens_limit(alpha),
        lambda alpha, length: theory.chain_speedup(alpha, length, 6),
        lambda alpha, length: theory.overlap_speedup(alpha, length, 6, alpha),
        lambda alpha, length: theory.theorem_1_time(alpha, length, 6),
        lambda alpha, length: theory.best_chain(alpha, 1, 6).speedup,
        lambda alpha, length: theory.best_overlap(alpha, 1, 6, alpha).length,
    )
    for function in functions:
        values = function(alpha, 3)
        assert values.shape == alpha.shape
        for index, value in np.ndenumerate(values):
            assert function(float(alpha[index]), 3) == pytest.approx(value)


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
    low, high = theory.chain_region(10)
    forked_low, forked_high = theory.chain_region(10, lambda alpha: alpha + 0.5 * (1 - alpha))
    assert low < forked_low < forked_high < high


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.chain_tokens(1.2, 3), r"alpha is 1\.2"),
        (lambda: theory.chain_tokens(float("nan"), 3), "alpha is nan"),
        (lambda: theory.chain_tokens(np.array([0.5, -0.1]), 3), "alpha is .* a probability lies in"),
        (lambda: theory.overlap_tokens(0.5, 3, 1.5), r"fork_alpha is 1\.5"),
        (lambda: theory.chain_tokens(0.5, -1), "length is -1, but at least 0"),
        (lambda: theory.chain_rollback(0.5, 0), "length is 0, but at least 1"),
        (lambda: theory.overlap_tokens(0.5, 0), "length is 0, but at least 1"),
        (lambda: theory.overlap_rollback(0.5, 0), "length is 0, but at least 1"),
        (lambda: theory.theorem_1_tokens(0.5, 0), "length is 0, but at least 1"),
        (lambda: theory.chain_tokens(0.5, 2.5), r"length is 2\.5, but an integer"),
        (lambda: theory.overlap_rollback_all(0.5, 4, 0.7, 0), "branches is 0"),
        (lambda: theory.chain_time(0.5, 4, -1, 10), "draft_time is -1"),
        (lambda: theory.chain_time(0.5, 4, 1, lambda n: -n), r"verify_time\(5\) is -5"),
        (lambda: theory.overlap_time(0.5, 4, 1, math.inf), "verify_time is inf"),
        (lambda: theory.chain_speedup(0.5, 4, 0), "c is 0, but target step / draft step"),
        (lambda: theory.overlap_speedup(0.5, 4, -2), "c is -2"),
        (lambda: theory.chain_region(math.nan), "c is nan"),
        (lambda: theory.ideal_time(0, 4), "length is 0"),
        (lambda: theory.theorem_1_time(0.5, 4, 0), "c is 0"),
        (lambda: theory.best_chain(0.5, 1, 10, max_length=-1), "max_length is -1"),
        (lambda: theory.best_overlap(0.5, 1, 10, max_length=0), "max_length is 0"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


POINTS = [
    {"alpha": 0.7, "length": 4, "tokens_per_round": 2.7, "method": "speculative"},
    {"alpha": 0.7, "length": 6, "tokens_per_round": 1.8, "method": "pearl"},
    {"alpha": 0.9, "length": 6, "tokens_per_round": 3.6, "method": "specbranch"},
]


@needs_matplotlib
def test_the_figure_has_the_closed_forms_numbers(tmp_path):
    (tmp_path / "points.json").write_text(json.dumps(POINTS))
    out = tmp_path / "theory.png"
    words = ["--c", "4,10", "--lengths", "4", "--siblings", "0.4", "--points", tmp_path / "points.json", "--out", out]
    theory_figure.main([str(word) for word in words])
    assert out.read_bytes().startswith(b"\x89PNG")
    numbers = json.loads(out.with_suffix(".json").read_text())
    index = 69
    alpha = numbers["alpha"][index]
    assert alpha == pytest.approx(0.7)
    assert {c: {name: curve[index] for name, curve in curves.items()} for c, curves in numbers["speedup"].items()} == {
        c: pytest.approx(
            {
                "speculative": theory.best_chain(alpha, 1, float(c)).speedup,
                "pearl": theory.overlap_speedup(alpha, int(c), float(c)),
                "specbranch": theory.overlap_speedup(alpha, int(c), float(c), 0.82),
            }
        )
        for c in ("4", "10")
    }
    assert list(numbers["tokens"]) == ["4", "6"]
    assert numbers["tokens"]["6"]["specbranch"][index] == pytest.approx(theory.overlap_tokens(0.7, 6, 0.82))
    wanted = theory.chain_tokens(0.7, 4), theory.overlap_tokens(0.7, 6), theory.overlap_tokens(0.9, 6, 0.94)
    assert [point["expected"] for point in numbers["points"]] == pytest.approx(wanted)
    assert [{key: point[key] for key in POINTS[0]} for point in numbers["points"]] == POINTS


def test_the_arms_of_an_ablation_are_points(tmp_path):
    arms = [
        {"arm": "SpS", "acceptance": [0.6, 0.1], "tokens_per_round": 2.2},
        {"arm": "SEQUOIA", "acceptance": [0.6, 0.1], "tokens_per_round": 2.7},
        {"arm": "PEARL", "acceptance": [0.7], "tokens_per_round": 1.9},
    ]
    file = tmp_path / "ablation.json"
    file.write_text(json.dumps({"settings": {"length": 8}, "arms": arms}))
    assert theory_figure.read_arms(file) == [
        {"alpha": 0.6, "length": 8, "tokens_per_round": 2.2, "method": "speculative", "source": "ablation.json"},
        {"alpha": 0.7, "length": 8, "tokens_per_round": 1.9, "method": "pearl", "source": "ablation.json"},
    ]
    file.write_text(json.dumps({"settings": {"length": 8}, "arms": arms[1:2]}))
    with pytest.raises(ValueError, match=r"has the arms \['SEQUOIA'\]"):
        theory_figure.read_arms(file)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ({}, "holds a dict"),
        ([POINTS[0], {"alpha": 0.5}], "point 1 of .* needs the keys"),
        ([POINTS[0] | {"method": "magic"}], "point 0 of .* has method 'magic'"),
    ],
)
def test_points_that_are_none_are_refused(points, message, tmp_path):
    (tmp_path / "points.json").write_text(json.dumps(points))
    with pytest.raises(ValueError, match=message):
        theory_figure.read_points(tmp_path / "points.json")


def test_a_missing_matplotlib_names_the_extra(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stopped:
        theory_figure.main(["--out", str(tmp_path / "theory.png")])
    assert stopped.value.code == 1
    assert "jaxspec[plot]" in capsys.readouterr().err
