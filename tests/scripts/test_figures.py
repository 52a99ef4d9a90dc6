"""The figure of growing trees: its numbers are the planner's."""

import importlib.util
import json

import figures
import numpy as np
import pytest
from commands import PROFILE

from jaxspec import plan, profiles, tree

needs_matplotlib = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="the extra plot")


@needs_matplotlib
def test_the_figure_has_the_planners_numbers(tmp_path):
    PROFILE.save(tmp_path / "profile.json")
    figures.main([str(tmp_path / "profile.json"), "--max-size", "12", "--out", str(tmp_path / "growth.png")])
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    result = json.loads((tmp_path / "growth.json").read_text())
    assert result["sizes"] == list(range(2, 13))
    alpha = PROFILE.acceptance
    shapes = {
        "optimal tree": lambda n: plan.optimal_tree(alpha, n),
        "chain": lambda n: tree.chain(n - 1),
        "2 chains": lambda n: figures.chains(2, n),
        "2-ary tree": lambda n: figures.k_ary(2, n),
    }
    for name, shape in shapes.items():
        wanted = [plan.expected_tokens(shape(n), alpha) for n in result["sizes"]]
        assert result["expected_tokens"][name] == pytest.approx(wanted)
    curves = np.array(list(result["expected_tokens"].values()))
    assert (curves[0] >= curves - 1e-12).all()


def test_shapes_at_any_budget():
    assert figures.chains(3, 7) == tree.chains(3, 2)
    assert figures.chains(3, 6).parents == (-1, 0, 0, 0, 1, 2)
    assert figures.k_ary(2, 7) == tree.k_ary(2, 2)
    assert figures.k_ary(2, 5).parents == (-1, 0, 0, 1, 1)


def test_depths_that_were_hardly_measured_are_like_the_last_that_was():
    rows = (0.6, 0.2), (0.3, 0.1), (0.9, 0.0)
    profile = profiles.Profile(acceptance=rows, verify_ms={1: 1.0}, draft_ms={1: 1.0}, counts=(300, 100, 99))
    np.testing.assert_array_equal(figures.deepened(profile, 4), [rows[0], rows[1], rows[1], rows[1]])
    by_rank = profiles.Profile(acceptance=rows[0], verify_ms={1: 1.0}, draft_ms={1: 1.0})
    np.testing.assert_array_equal(figures.deepened(by_rank, 2), [rows[0], rows[0]])
