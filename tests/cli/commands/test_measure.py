"""`jaxspec measure`: its defaults are the protocol, and what it writes."""

import numpy as np

from jaxspec import measure
from jaxspec.cli import entry
from jaxspec.measure import timing
from jaxspec.profiles import Profile


def test_the_defaults_of_measure_are_the_protocol():
    args = entry._parser().parse_args(["measure", "--prompts", "p", "--out", "o"])
    assert (args.num_prompts, args.prompt_tokens) == (measure.NUM_PROMPTS, measure.PROMPT_TOKENS)
    assert (args.max_new_tokens, args.width, args.depth) == (measure.NEW_TOKENS, 8, 5)


def test_measure(run, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "step_times", lambda model, params, sizes: {size: 1.0 + size for size in sizes})
    out_file = tmp_path / "measured.json"
    words = ["measure", "--prompts", folder / "prompts.jsonl", "--prompt-tokens", 9, "--max-new-tokens", 8]
    words += ["--width", 3, "--depth", 2, "--out", out_file]
    status, out, err = run(*words, "--json")
    assert status == 0
    assert out == out_file.read_text()
    profile = Profile.load(out_file)
    assert np.shape(profile.acceptance)[-1] == 3
    assert profile.calibration is None or np.shape(profile.calibration) == (2, 20, 2)
    wanted = {"num_prompts": 2, "longest_prompt": 9, "prompt_tokens": 9, "max_new_tokens": 8, "seed": 0}
    wanted |= {"prompts": str(folder / "prompts.jsonl"), "pair": folder.name, "dtype": "float32"}
    assert {key: profile.protocol[key] for key in wanted} == wanted
    assert profile.target == str(folder / "target")
    assert "has 2 prompts, not 200" in err
    assert "acceptance" in err
    assert "times" in err
    status, out, err = run(*words, "--num-prompts", 1)
    assert status == 0
    assert f"Written to {out_file}" in out
    assert [word for word in ("Acceptance", "rank 2", "±", "Milliseconds", "target") if word not in out] == []
    assert "prompts, not" not in err
