"""`jaxspec check`: no forks, and forks as they are reported."""

import json

import numpy as np
from commands import DEFAULT_TREE, LIMIT

from jaxspec import parity
from jaxspec.cli.commands import check


def test_check(run, folder):
    status, out, err = run("check", "--prompts", folder / "prompts.jsonl", "--max-new-tokens", LIMIT, "--json")
    result = json.loads(out)
    assert status == 0
    assert {key: result[key] for key in ("forks", "prompts", "first_forks")} == {
        "forks": 0,
        "prompts": 2,
        "first_forks": [],
    }
    assert 0 < result["tokens"] <= 2 * LIMIT
    assert list(result["by_method"]) == list(result["config"]["methods"]) == ["speculative", "sequoia"]
    assert result["config"]["methods"]["sequoia"]["tree"] == DEFAULT_TREE
    assert "speculative" in err  # the progress bars
    words = ["check", "--prompts", folder / "prompts.jsonl", "--num-prompts", 1, "--max-new-tokens", LIMIT]
    status, out, _ = run(*words, "--method", "sequoia")
    assert (status, out.strip()) == (0, f"sequoia: no forks on 1 prompts, {LIMIT} tokens")


def test_penalties_and_bans_hold_for_both(run, folder, monkeypatch):
    seen = []

    def texts(decoder, params, prompts, **asked):
        seen.append(asked)
        return [np.array([1, 2])] * len(prompts)

    monkeypatch.setattr(parity, "texts", texts)
    options = ["--frequency-penalty", 0.5, "--penalise-prompt", "--bad-ids", "7", "--min-new-tokens", 3]
    status, out, _ = run("check", "--prompts", folder / "prompts.jsonl", "--method", "sequoia", *options)
    assert (status, out.strip()) == (0, "sequoia: no forks on 2 prompts, 4 tokens")
    assert len(seen) == 2
    for asked in seen:
        sampling = asked["sampling"]
        assert (sampling.temperature, sampling.frequency_penalty, sampling.penalise_prompt) == (0.0, 0.5, True)
        assert (sampling.bad_words, asked["min_new_tokens"], asked["stop_ids"]) == ([7], 3, (256,))


def test_check_reports_forks(run, folder, monkeypatch):
    forks = (parity.Fork(0, 3, 65, 66, 0.25), parity.Fork(1, 5, -1, 66, float("nan")))
    monkeypatch.setattr(parity, "compare", lambda *_, **__: parity.Parity(2, 20, forks))
    words = ["check", "--prompts", folder / "prompts.jsonl", "--methods", "speculative,sequoia"]
    status, out, _ = run(*words, "--json")
    assert status == check.FORKED
    result = json.loads(out)
    assert (result["forks"], result["prompts"], result["tokens"]) == (4, 2, 20)
    assert result["by_method"]["sequoia"]["forks"] == 2
    first = {"method": "speculative", "prompt": 0, "position": 3, "plain": 65, "token": 66, "gap": 0.25, "id": "first"}
    assert result["first_forks"][0] == first
    assert result["first_forks"][1]["gap"] is None
    status, out, _ = run(*words)
    assert status == check.FORKED
    assert "sequoia: 2 forks on 2 prompts" in out
    assert "0.250000" in out
