"""`jaxspec bench` on a tiny pair: JSON, tables, the figure, and what it refuses."""

import importlib.util
import json

import pytest
from commands import byte_tokenizer, save_model

from jaxspec.cli import entry
from jaxspec.study.bench_results import BASELINE

LIMIT = 10


TREE = ("--method", "sequoia", "--tree", "star:2")


MEASURES = {
    "tokens_per_second",
    "speedup",
    "speedup_spread",
    "decode_speedup",
    "tokens_per_round",
    "accepted_per_round",
    "mean_accepted_run",
    "acceptance",
    "rollback_path",
    "rollback_all",
    "draft_ms",
    "verify_ms",
    "overhead_ms",
    "config",
}


needs_matplotlib = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="the extra plot")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    save_model(folder / "target", 0, byte_tokenizer())
    (folder / "pair.json").write_text(json.dumps({"target": "target", "draft": {"early_exit": 1}}))
    lines = [("a", "writing"), ("b", "qa"), ("c", "qa"), ("d", "math")]
    text = "".join(json.dumps({"prompt": prompt, "category": category}) + "\n" for prompt, category in lines)
    (folder / "prompts.jsonl").write_text(text)
    return folder


@pytest.fixture
def run(folder, capsys):
    """Runs `jaxspec bench` on the tiny pair; returns status, stdout and stderr."""

    def run(*argv: object) -> tuple[int, str, str]:
        words = ["bench", "--prompts", folder / "prompts.jsonl", "--pair", folder, "--max-new-tokens", LIMIT, *argv]
        status = entry.main([str(word) for word in words])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_json(run, folder):
    status, out, err = run(*TREE, "--per-category", 1, "--repeats", 2, "--json")
    assert status == 0, err
    assert out.count("\n") == 1
    assert "autoregressive is timed too" in err
    result = json.loads(out)
    assert list(result) == ["methods", "by_category", "environment", "config"]
    assert list(result["methods"]) == [BASELINE, "sequoia"]
    assert list(result["by_category"]) == ["mt_bench", "qa"]
    for methods in (result["methods"], *result["by_category"].values()):
        assert list(methods) == list(result["methods"])
        assert [name for name, entry in methods.items() if not entry.keys() >= MEASURES] == []
        assert (methods[BASELINE]["speedup"], methods[BASELINE]["speedup_spread"]) == (1, [1, 1])
        assert (methods[BASELINE]["tokens_per_round"], methods[BASELINE]["acceptance"]) == (1, [])
        assert len({entry["tokens"] for entry in methods.values()}) == 1  # one ruler for all methods
    methods = result["methods"]
    assert methods[BASELINE]["tokens"] == 2 * 2 * LIMIT
    assert methods["sequoia"]["config"]["tree"] == [-1, 0, 0]
    assert len(methods["sequoia"]["acceptance"]) == 2
    assert methods[BASELINE]["draft_ms"] == 0 < methods["sequoia"]["draft_ms"]
    assert result["environment"].keys() == {"machine", "versions", "devices", "precision", "date", "command"}
    assert result["environment"]["command"].startswith("jaxspec bench --prompts")
    wanted = {"prompts": str(folder / "prompts.jsonl"), "prompt_tokens": 128, "repeats": 2, "stop_ids": [], "seed": 0}
    wanted |= {"categories": {"mt_bench": 1, "qa": 1}, "max_new_tokens": LIMIT, "temperature": 0.0}
    assert {key: result["config"][key] for key in wanted} == wanted


@needs_matplotlib
def test_tables_and_plot(run, tmp_path):
    path = tmp_path / "bench.png"
    status, out, err = run(*TREE, "--stop", "--plot", path)
    assert status == 0, err
    wanted = ("4 prompts × 1, 10 new tokens (stop ids end a text)", "tokens/s", "middle half", "overhead", "mt_bench")
    assert [word for word in wanted if word not in out] == []
    assert "warm-up" not in out
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--num-prompts 1 --per-category 1", "leave one of them out"),
        ("--plot {}/none/bench.png", "can't be written"),
        ("--plot {}/bench.xyz", "ends in .png"),
        ("--methods speculative --tree star:2", "--tree is for the method sequoia or topk"),
        ("--repeats 0", "'0' is not in range"),
    ],
)
@needs_matplotlib
def test_bad_options(run, folder, words, message):
    status, out, err = run(*words.replace("{}", str(folder)).split())
    assert (status, out) == (entry.FAILED, "")
    assert message in err.splitlines()[-1]


def test_a_missing_matplotlib_names_the_extra(run, monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    status, _, err = run("--plot", tmp_path / "bench.png")
    assert status == entry.FAILED
    assert "jaxspec[plot]" in err


def test_help(run):
    status, out, _ = run("--help")
    assert status == 0
    assert "example: jaxspec bench " in out
    wanted = "--prompts --num-prompts --per-category --methods --repeats --prompt-tokens --stop --plot --json --pair"
    assert [option for option in wanted.split() if option not in out] == []
