"""`scripts/documents/theory_figure.py`: the figure of the closed forms, and measured points beside them."""

import importlib.util
import json

import pytest
import theory_figure

from jaxspec import theory

needs_matplotlib = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="the extra plot")

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
