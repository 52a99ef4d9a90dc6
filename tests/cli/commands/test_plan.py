"""`jaxspec plan`: the choice, the table and the ranking, as JSON and in words."""

import json

import numpy as np
import pytest
from commands import PROFILE

from jaxspec import plan, ranking
from jaxspec.profiles import Profile


def test_plan(run, folder):
    chosen = plan.best(PROFILE)
    status, out, err = run("plan", folder / "profile.json", "--json")
    assert (status, err) == (0, "")
    result = json.loads(out)
    assert list(result) == ["method", "tree", "expected_tokens", "expected_speedup", "table", "methods"]
    assert [one["method"] for one in result["methods"]] == [one.method for one in ranking.rank(PROFILE)]
    assert result["method"] == "sequoia"
    assert result["tree"] == list(chosen.tree.parents)
    assert result["expected_tokens"] == pytest.approx(chosen.expected_tokens)
    assert result["expected_speedup"] == pytest.approx(chosen.expected_speedup)
    assert result["table"]["sizes"] == [2, 4, 8, 16]
    assert result["table"]["depths"] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert result["table"]["speedups"][2][0] is None  # 3 children at depth 1 make no 8 nodes
    speedups = plan.table(PROFILE, [2, 4, 8, 16], range(1, 9))
    assert np.array(result["table"]["speedups"], float) == pytest.approx(speedups, nan_ok=True)

    status, out, err = run("plan", folder / "profile.json")
    assert (status, err) == (0, "")
    assert f"{np.nanmax(speedups):.3f}*" in out
    assert f"{chosen.expected_speedup:.3f}" in out
    assert "rank 1" in out
    assert all(one.method in out for one in ranking.rank(PROFILE))
    by_method = {one["method"]: one for one in result["methods"]}
    assert by_method["specbranch"]["expected_tokens"] is None
    assert by_method["topk"]["tree"] == by_method["sequoia"]["tree"]
    [row] = [line for line in out.splitlines() if "specbranch" in line]
    assert row.count("–") == 3


def test_the_table_is_as_deep_as_was_measured(run, tmp_path):
    Profile(acceptance=((0.5, 0.2), (0.4, 0.1)), verify_ms={1: 9.0}, draft_ms={1: 1.0}).save(tmp_path / "p.json")
    table = json.loads(run("plan", tmp_path / "p.json", "--json")[1])["table"]
    assert (table["sizes"], table["depths"]) == ([2, 4, 8, 16, 32, 64], [1, 2])
    assert table["speedups"][-1] == [None, None]


def test_plan_limits(run, folder):
    result = json.loads(run("plan", folder / "profile.json", "--max-size", 4, "--max-depth", 2, "--json")[1])
    assert result["tree"] == list(plan.best(PROFILE, 4, 2).tree.parents)
    assert (result["table"]["sizes"], result["table"]["depths"]) == ([2, 4], [1, 2])
    status, out, _ = run("plan", folder / "profile.json", "--max-size", 1)
    assert status == 0
    assert "autoregressive" in out
    result = json.loads(run("plan", folder / "profile.json", "--max-size", 1, "--json")[1])
    assert (result["tree"], result["table"]["speedups"]) == ([-1], [])
