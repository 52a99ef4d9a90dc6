"""Scripts that decode, on a tiny pair: what they write is what the library says of the same runs."""

import argparse
import json
import sys

import ablation
import jax
import noisy_pair
import numpy as np
import product_forms
import profile_shift
import pytest
import tiny_pair

from jaxspec import decode, pairs, plan, tree
from jaxspec.catalogue import prompts

PROMPTS = ["tell me more", "and then?", "why", "no"]
LIMIT = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny pair, and two files of prompts."""
    return tiny_pair.save(tmp_path_factory.mktemp("pair"), {"first": PROMPTS, "second": PROMPTS[::-1]}, num_layers=1)


def test_profile_shift_uses_every_tree_everywhere(folder, capsys):
    out = folder / "shift.json"
    files = [str(folder / f"{name}.jsonl") for name in ("first", "second")]
    words = ["--prompts", *files, "--temperatures", "0", "--sizes", "3", "--width", "2", "--depth", "2"]
    words += ["--max-new-tokens", str(LIMIT), "--batch-size", "2", "--pair", str(folder), "--out", str(out)]
    profile_shift.main(words)
    assert "tokens a round, 3 nodes" in capsys.readouterr().out
    records = json.loads(out.read_text())["trees"]
    names = ["first, T=0", "second, T=0"]
    assert [(one["used_on"], one["planned_on"]) for one in records] == [(u, p) for u in names for p in names]
    pair = pairs.load(folder)
    halves = {names[0]: PROMPTS[2:], names[1]: PROMPTS[::-1][2:]}  # the others are measured
    own = {one["planned_on"]: one["acceptance"] for one in records}
    for one in records:
        shape = tree.TokenTree(tuple(one["tree"]))
        assert shape == plan.optimal_tree(one["acceptance"], 3)
        assert one["expected"] == pytest.approx(plan.expected_tokens(shape, own[one["used_on"]]))
        encoded = [prompts.encode(pair, prompts.Prompt(text), 512) for text in halves[one["used_on"]]]
        decoder = decode.sequoia(pair.target, pair.draft, shape)
        stats = decode.generate(decoder, pair.params, encoded, key=jax.random.key(0), max_new_tokens=LIMIT).stats
        assert one["tokens_per_round"] == pytest.approx(float(stats.total().tokens_per_round))


def test_ablation_measures_each_arm(folder, monkeypatch, capsys):
    out = folder / "ablation.json"
    words = ["--arms", "branches", "--prompts", str(folder / "first.jsonl"), "--num-prompts", "2", "--length", "3"]
    words += ["--max-new-tokens", str(LIMIT), "--pair", str(folder), "--epsilon", "0.4", "--c", "4", "--out", str(out)]
    words += ["--width", "adaptive", "--overhead-ms", "1.5"]
    monkeypatch.setattr(ablation, "BRANCHES", (1, 3))
    monkeypatch.setattr(sys, "argv", ["ablation.py", *words])
    ablation.main()
    assert "k_max = 3" in capsys.readouterr().out
    arms = json.loads(out.read_text())["arms"]
    assert [arm["arm"] for arm in arms] == ["k_max = 1", "k_max = 3"]
    pair = pairs.load(folder)
    encoded = [prompts.encode(pair, prompts.Prompt(text), 512) for text in PROMPTS[:2]]
    decoder = decode.specbranch(pair.target, pair.draft, None, 3, 3, 0.4)
    stats = decode.generate(decoder, pair.params, encoded, key=jax.random.key(0), max_new_tokens=LIMIT).stats
    assert arms[1]["tokens_per_round"] == pytest.approx(float(stats.total().tokens_per_round))
    assert arms[1]["rollback_path"] == pytest.approx(float(stats.total().rollback_path))
    assert [(arm["max_branches"], arm["epsilon"]) for arm in arms] == [(1, 0.4), (3, 0.4)]
    assert arms[0]["simulated_flat_c4_1"] <= arms[0]["simulated_flat_c4_2"]  # a second device only helps


def test_a_noisy_pair_agrees_with_its_target_the_less_the_more_noise_it_has(folder, tmp_path, monkeypatch):
    def tokens_per_round(noise):
        out = tmp_path / f"noisy-{noise}"
        words = ["--target", str(folder / "target"), "--noise", str(noise), "--out", str(out)]
        monkeypatch.setattr(sys, "argv", ["noisy_pair.py", *words])
        noisy_pair.main()
        with pytest.raises(SystemExit, match="exists: name a new folder"):
            noisy_pair.main()
        copy = pairs.load(out)
        decoder = decode.speculative(copy.target, copy.draft, 2)
        stats = decode.generate(decoder, copy.params, [[1, 2]], key=jax.random.key(0), max_new_tokens=24).stats
        return float(stats.tokens_per_round[0])

    assert tokens_per_round(0.0) == 3.0
    assert tokens_per_round(2.0) < 2.5


def test_predictions_need_the_acceptance_by_rank(folder):
    options = argparse.Namespace(temperature=0.0)
    with pytest.raises(SystemExit, match="has no profile"):
        ablation.predict([], pairs.load(folder), [[1, 2]], options)


@pytest.mark.parametrize("name", product_forms.FORMS)
@pytest.mark.parametrize("n", [1, 3])
def test_every_form_of_a_product_gives_it(name, n):
    form = product_forms.FORMS[name]
    weight = jax.random.normal(jax.random.key(0), (2 * product_forms.BLOCK, 5))
    x = jax.random.normal(jax.random.key(1), (n, 5))
    found = form.multiply(form.store(weight), x if form.features else x.T)
    np.testing.assert_allclose(found if form.features else found.T, x @ weight.T, rtol=1e-5, atol=1e-5)
