"""`jaxspec train-hrad` on a tiny pair, and the trained head in that pair: by name, in a folder, in every command."""

import contextlib
import io
import json
import re

import jax
import numpy as np
import pytest
import tiny_pair
from compiled import for_users, text_of

from jaxspec import decode, hrad, networks, pairs
from jaxspec.base import Model
from jaxspec.catalogue.registry import METHODS
from jaxspec.cli import entry
from jaxspec.decode import loop, stats
from jaxspec.decode.branches import widths
from jaxspec.decode.request import Asked, checked
from jaxspec.measure import timing
from jaxspec.networks import MLP, Transformer
from jaxspec.pairs import Pair, heads
from jaxspec.pairs.heads import Head
from jaxspec.profiles import Profile
from jaxspec.study import bench, bench_results
from jaxspec.study.bench_results import Report

LIMIT = 12
PROMPTS = ["tell me more", "and then?", "why", "no", "which one was it", "go on", "so what", "who"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny pair, and two files of prompts."""
    files = {"prompts": PROMPTS, "others": PROMPTS[::-1][:4]}
    return tiny_pair.save(tmp_path_factory.mktemp("pair"), files, num_layers=2)


@pytest.fixture
def run(capsys):
    def run(*argv: object) -> tuple[int, str, str]:
        status = entry.main([str(word) for word in argv])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture(scope="module")
def trained(folder):
    """The head's folder and what was printed, once as JSON and once as tables."""
    words = ["train-hrad", "--pair", folder, "--prompts", folder / "prompts.jsonl", "--num-prompts", 8, "--length", 4]
    words += ["--features", 2, "--max-new-tokens", 30, "--epochs", 2, "--seed", 3, "--prompt-tokens", 40]
    words += ["--held-out-prompts", folder / "others.jsonl", "--out", folder / "head"]
    words += ["--rounds", folder / "rounds.npz"]  # the second run reads what the first one logged
    printed = []
    with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("standard"):  # optax needs it
        patch.setattr(timing, "round_time", lambda *_, **__: 5.0)
        for more in (["--json"], []):
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                assert entry.main([str(word) for word in [*words, *more]]) == 0, err.getvalue()
            printed.append((out.getvalue(), err.getvalue()))
    return folder / "head", printed


def test_the_folder_has_the_head_its_record_and_its_card(trained, folder):
    head_folder, [(out, err), (tables, _)] = trained
    assert {file.name for file in head_folder.iterdir()} == {"hrad.safetensors", "hrad.json", "README.md"}
    record = json.loads((head_folder / "hrad.json").read_text())
    today = json.loads(out)
    for timed in (record, today):
        timed["metrics"].pop("cost")
    assert today == record  # the same seed, twice
    wanted = {"pair": folder.name, "temperature": 0.0, "length": 4, "features": 2}
    assert {key: record[key] for key in wanted} == wanted
    assert record["config"] == {"num_features": 2, "width": 16, "hidden_sizes": [256, 64], "num_classes": 3}
    settings = {"prompts": "prompts.jsonl", "held_out_prompts": "others.jsonl", "num_prompts": 8, "prompt_tokens": 40}
    settings |= {"max_new_tokens": 30, "seed": 3, "epochs": 2, "dtype": "float32", "draft_temperature": None}
    assert {key: record["trained"][key] for key in settings} == settings
    assert sum(record["trained"]["rounds"].values()) > 10
    assert record["metrics"]["other_task"]["rounds"] > 0
    assert record["epsilon"] == record["metrics"]["settings"]["head"]["epsilon"]
    assert "rounds" in err
    assert "rounds of the other task" in err
    assert f"Written to {head_folder}" in tables
    assert "Confusion of H-RAD" in tables


def test_the_card_says_how_to_make_the_head_again_and_no_place_of_this_machine(trained, folder):
    text = "".join((trained[0] / name).read_text() for name in ("README.md", "hrad.json"))
    assert str(folder) not in text
    command = re.search(r"```\n(jaxspec train-hrad .*)\n```", text)
    assert command is not None
    args = entry._parser().parse_args(command[1].split()[1:])
    assert (args.prompts, args.held_out_prompts, args.out) == ("prompts.jsonl", "others.jsonl", "head")
    assert (args.length, args.features, args.max_new_tokens, args.seed, args.epochs) == (4, 2, 30, 3, 2)
    assert (args.pair, args.temperature, args.num_prompts, args.prompt_tokens) == (folder.name, 0.0, 8, 40)


@pytest.fixture(scope="module")
def headed(trained, folder):
    """The pair with two heads: the trained one, and another one for temperature 1."""
    head = heads.load(trained[0])
    heads.save(
        folder / "warm", head.network, head.network.init(jax.random.key(9)), {**head.record, "temperature": 1}, ""
    )
    inside = folder / "headed"
    inside.mkdir()
    entries = {name: str(folder / name) for name in ("target", "draft")}
    with_heads = {**entries, "hrad": [str(folder / "head"), str(folder / "warm")]}
    (inside / "pair.json").write_text(json.dumps(with_heads))
    return inside


def head_at(pair: Pair, temperature: float) -> Head:
    found = pair.hrad_at(temperature)
    assert found is not None
    return found


def num_features(model: Model) -> int:
    assert isinstance(model, Transformer)
    return model.num_features


def test_a_pair_gives_the_head_of_the_nearest_temperature(headed, folder):
    pair = pairs.load(headed)
    assert pair.hrad == MLP(2, 16)
    assert [head_at(pair, temperature).folder.name for temperature in (0.0, 0.4, 0.6, 2.0)] == [
        "head",
        "head",
        "warm",
        "warm",
    ]
    np.testing.assert_array_equal(pair.params["hrad"]["mean"], head_at(pair, 0).params["mean"])
    warm = pair.params_at(1.0)
    assert pair.hrad is not None
    jax.tree.map(np.testing.assert_array_equal, warm["hrad"], pair.hrad.init(jax.random.key(9)))
    assert warm["target"] is pair.params["target"]
    assert (num_features(pair.target), num_features(pair.draft)) == (2, 0)
    plain = pairs.load(folder)
    assert (plain.hrad, plain.hrad_at(0), num_features(plain.target)) == (None, None, 0)
    assert plain.params_at(0) is plain.params
    trimmed = pairs.load(headed, draft_layers=1)
    assert (trimmed.hrad, num_features(trimmed.target)) == (None, 0)
    assert num_features(pairs.load(headed, num_features=3).target) == 3


def test_features_cost_plain_decoding_nothing(headed):
    with_heads = pairs.load(headed)
    programs = []
    for target in (with_heads.target, networks.with_features(with_heads.target, 0)):
        decoder = decode.autoregressive(target)
        asked = Asked(max_new_tokens=8, logprobs=False)
        state = loop.begin(
            decoder, with_heads.params, checked(decoder, with_heads.params, [[1]], jax.random.key(0), asked)
        )
        round_ = jax.jit(jax.vmap(lambda one, decoder=decoder: decoder.round(with_heads.params, one)))
        text = text_of(for_users(round_.lower(state)))
        programs.append(re.sub(r", metadata=\{[^}]*\}|, source_\w+=\S+", "", text))
    kinds = [sorted(re.findall(r"= (\S+) (\w[\w-]*)\(", program)) for program in programs]
    assert kinds[0] == kinds[1]


def test_every_method_decodes_by_name_and_states_its_settings(run, headed):
    words = ["check", "--prompts", headed.parent / "prompts.jsonl", "--num-prompts", 2, "--max-new-tokens", LIMIT]
    status, out, err = run(*words, "--pair", headed, "--methods", "pearl,adaedl,specbranch", "--length", 4, "--json")
    assert status == 0, err
    result = json.loads(out)
    assert (result["forks"], result["prompts"]) == (0, 2)
    configs = result["config"]["methods"]
    assert configs["pearl"] == {"method": "pearl", "tree": None, "length": 4, "profile": None}
    specbranch = {"method": "specbranch", "tree": None, "length": 4, "profile": None, "hrad": "head"}
    specbranch |= {
        "max_branches": 8,
        "epsilon": 0.4,
        "width": "all",
        "fork": "sequoia",
        "has_draft_stage": False,
    }
    assert configs["specbranch"] == specbranch
    assert configs["adaedl"].items() >= {"length": 4, "threshold": 0.5, "entropy_factor": 0.2, "step": 0.01}.items()
    assert "head is for" not in err


def test_specbranch_takes_the_head_of_its_temperature_or_its_defaults(run, headed, monkeypatch):
    calls = []

    def generate(decoder, params, token_ids, **options):
        calls.append((decoder, params))
        counts = jax.tree.map(lambda leaf: np.asarray(leaf)[None], stats.zeros(decoder))
        return decode.Generation(np.array([[72]], np.int32), np.array([1]), ("stop",), None, decode.Stats(counts))

    monkeypatch.setattr(decode, "generate", generate)
    words = ["generate", "hello", "--json", "--pair", headed, "--max-branches", 2]
    status, out, err = run(*words, "--epsilon", 0.25, "--temperature", 0.9, "--length", 5, "--width", "all")
    assert status == 0, err
    assert "the head is for temperature 1, not 0.9" in err
    assert "the head is for the length 4, not 5" in err
    config = json.loads(out)["config"]
    wanted = {"method": "specbranch", "length": 5, "max_branches": 2, "epsilon": 0.25, "width": "all", "hrad": "warm"}
    assert {key: config[key] for key in wanted} == wanted
    [(decoder, params)] = calls
    assert decoder.drafter.width == widths.ALL
    assert (decoder.length, decoder.drafter.max_branches, decoder.drafter.cut) == (5, 2, hrad.HRad(MLP(2, 16), 0.25))
    np.testing.assert_array_equal(
        params["hrad"]["layers"]["0"]["weight"], MLP(2, 16).init(jax.random.key(9))["layers"]["0"]["weight"]
    )
    status, out, err = run(*words[:4], headed.parent, "--method", "specbranch")  # a pair without a head
    assert status == 0
    assert "has no H-RAD head" in err
    defaults = METHODS["specbranch"].defaults
    assert calls[1][0].drafter.width == widths.WIDTHS[defaults["width"]]
    assert calls[1][0].drafter.cut == hrad.Confidence(defaults["epsilon"])
    assert json.loads(out)["config"]["hrad"] is None
    assert (calls[1][0].length, calls[1][0].drafter.max_branches) == (defaults["length"], defaults["max_branches"])
    status, out, err = run(*words[:4], headed, "--method", "specbranch")  # the head's length is kept
    assert status == 0, err
    assert (calls[2][0].length, calls[2][0].drafter.max_branches) == (4, defaults["max_branches"])
    assert calls[2][0].drafter.cut == hrad.HRad(MLP(2, 16), defaults["epsilon"])


def test_no_profile_plans_or_predicts_specbranch(run, headed, monkeypatch):
    calibration = (((0.7, 0.2), (0.3, 0.6)), ((0.3, 0.3), (0.7, 0.9)))
    profile = Profile((0.6, 0.2, 0.1), {1: 10.0, 16: 10.0}, {1: 0.1, 16: 0.1}, calibration=calibration)
    entries = json.loads((headed / "pair.json").read_text())
    profile.save(headed / "own.json")
    (headed / "pair.json").write_text(json.dumps(entries | {"profiles": ["own.json"]}))
    words = ["bench", "--prompts", headed.parent / "prompts.jsonl", "--pair", headed, "--methods", "pearl,specbranch"]
    monkeypatch.setattr(bench, "run", lambda *_, **__: Report({}, [], {}))
    monkeypatch.setattr(bench_results, "entries", lambda report, configs: {"methods": configs})
    status, out, err = run(*words, "--json")
    (headed / "pair.json").write_text(json.dumps(entries))
    assert status == 0, err
    configs = json.loads(out)["methods"]
    assert {"expected_tokens", "expected_speedup"} <= configs["pearl"].keys()
    assert not {"expected_tokens", "expected_speedup"} & configs["specbranch"].keys()
    assert configs["specbranch"]["profile"] is None


def test_bench_times_them(run, headed, monkeypatch):
    monkeypatch.setattr(timing, "step_times", lambda model, params, sizes, **_: {size: 10.0 * size for size in sizes})
    words = ["bench", "--prompts", headed.parent / "prompts.jsonl", "--num-prompts", 1, "--max-new-tokens", LIMIT]
    status, out, err = run(*words, "--pair", headed, "--methods", "pearl,specbranch", "--length", 4, "--json")
    assert status == 0, err
    found = json.loads(out)["methods"]
    assert list(found) == ["autoregressive", "pearl", "specbranch"]
    assert [found[name]["verify_ms"] for name in found] == [10.0, 40.0, 40.0]
    assert [found[name]["draft_ms"] for name in found] == [0.0, 10.0 + 4 * 10, 10.0 + 4 * 80]  # 8 candidates
    assert found["specbranch"]["config"]["max_branches"] == 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train-hrad --out {}/new", "required: --prompts"),
        ("train-hrad --prompts {}/prompts.jsonl", "required: --out"),
        ("train-hrad --prompts {}/prompts.jsonl --out {}/none/new", "can't be written"),
        ("train-hrad --prompts {}/prompts.jsonl --out {}/pair.json", "can't be written"),
        ("train-hrad --prompts {}/prompts.jsonl --out {}/new --length 2", "--length: '2' is not in range"),
        ("train-hrad --prompts {}/prompts.jsonl --out {}/new --features 0", "--features"),
        ("train-hrad --prompts {}/prompts.jsonl --out {}/new --features 9 --pair {}", "num_features=9"),
        ("train-hrad --prompts {}/prompts.jsonl --out {}/new --top-k 4", "--top-k can't be measured"),
        ("train-hrad --prompts {}/prompts.jsonl --held-out-prompts {}/no.jsonl --out {}/new", "no.jsonl can't be read"),
        ("train-hrad --prompts {}/prompts.jsonl --out {}/new --rounds {}/none/new.npz", "can't be kept"),
        ("generate x --method pearl --epsilon 0.3", "--epsilon is for the method specbranch, but pearl"),
        ("generate x --method speculative --max-branches 3", "--max-branches is for the method specbranch"),
        ("generate x --width some", "--width: 'some' is none of adaptive, all"),
        ("generate x --method pearl --width all", "--width is for the method specbranch, but pearl"),
        ("generate x --epsilon 1.5", "--epsilon: '1.5' is not in range"),
        ("generate x --max-branches 0", "--max-branches"),
    ],
)
def test_bad_input_is_one_line(run, folder, words, message):
    status, out, err = run(*words.replace("{}", str(folder)).split())
    assert (status, out) == (entry.FAILED, "")
    assert message in err.splitlines()[-1]
    assert not (folder / "new").exists()


def test_heads_of_another_target_or_network_are_refused(headed, folder, tmp_path):
    record = {"temperature": 0.0, "length": 4, "epsilon": 0.3}
    entries = {"target": str(folder / "target"), "draft": str(folder / "draft"), "hrad": ["head"]}
    (tmp_path / "pair.json").write_text(json.dumps(entries))
    other = MLP(2, 20)
    heads.save(tmp_path / "head", other, other.init(jax.random.key(0)), record, "")
    with pytest.raises(ValueError, match="width 20; this one has 16"):
        pairs.load(tmp_path)
    (tmp_path / "pair.json").write_text(json.dumps({**entries, "hrad": ["head", str(folder / "head")]}))
    with pytest.raises(ValueError, match="one pair has one network"):
        pairs.load(tmp_path)
    (tmp_path / "pair.json").write_text(json.dumps({**entries, "hrad": "head"}))
    with pytest.raises(ValueError, match="hrad is 'head', but a list of strings"):
        pairs.load(tmp_path)


def test_help_names_the_options(run):
    status, out, _ = run("train-hrad", "--help")
    assert status == 0
    options = (
        "--prompts --num-prompts --held-out-prompts --out --length --features --epochs --temperature --seed --json"
    )
    assert [option for option in options.split() if option not in out] == []
    assert "example: jaxspec train-hrad " in out
