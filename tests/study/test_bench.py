"""The benchmark: its arithmetic on made-up times, what it prints on a tiny pair, and the figure's numbers."""

import importlib.util
import json
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

import figures
import gguf
import jax
import numpy as np
import peers
import pytest
from test_cli import PROFILE, byte_tokenizer, save_model
from toys import pair

from jaxspec import decode, pairs, plan, profiles, tree
from jaxspec.cli import entry
from jaxspec.decode import loop
from jaxspec.measure import timing
from jaxspec.study import bench, bench_results
from jaxspec.study.bench_results import BASELINE, Output, Report, Sample, Spread, Steps

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


def samples(rows, num_tokens=10, stats=None, first=0.5):
    """Samples of these seconds by prompt and repeat."""
    output = Output(np.arange(num_tokens), stats)
    return [[Sample(output, seconds, first) for seconds in repeats] for repeats in rows]


@pytest.fixture(scope="module")
def generation():
    """Six tokens by a chain whose draft is the target: two rounds of three."""
    target, _, params = pair("table")
    params = {"target": params["target"], "draft": params["target"]}
    decoder = decode.speculative(target, target, 2)
    return decode.generate(decoder, params, [[1]], key=jax.random.key(0), max_new_tokens=6)


def test_ratios_pair_repeats_and_prompts():
    own, other = np.array([[1.0, 2.0, 4.0], [1.0, 1.0, 1.0]]), np.array([[2.0, 2.0, 2.0], [3.0, 1.0, 5.0]])
    assert bench_results.pairwise_ratios(own, other).tolist() == [1.0, 3.0]


def test_spread_is_the_median_and_the_quartiles():
    assert bench_results.spread(np.array([4.0, 1.0, 3.0, 2.0, 5.0])) == Spread(3.0, 2.0, 4.0)
    assert bench_results.spread(np.array([2.5])) == Spread(2.5, 2.5, 2.5)


def test_rotation_gives_every_arm_every_place():
    names = ["a", "b", "c"]
    orders = [bench.rotated(names, turn) for turn in range(3)]
    assert orders == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    assert bench.rotated(names, 3) == names


def test_first_of_each():
    assert bench.first_of_each("abaab") == [0, 1]
    assert bench.first_of_each("abaab", 2) == [0, 1, 2, 4]


def test_arms_take_turns_and_their_warm_up_is_not_counted():
    order, told = [], []

    def arm(name):
        def generate(index, prompt):
            order.append((name, index))
            return Output(np.zeros(2, np.int32))

        return bench.Arm(generate, lambda prompt: (len(prompt),))

    done = bench.interleaved(
        {"a": arm("a"), "b": arm("b")},
        [[1], [2], [3, 4]],
        repeats=2,
        progress=lambda *progress: told.append(progress),
    )
    assert order[:4] == [("a", 0), ("a", 2), ("b", 0), ("b", 2)]  # one prompt of each shape
    turns = [order[start : start + 2] for start in range(4, len(order), 2)]
    assert [[index for _, index in turn] for turn in turns] == [[0, 0], [1, 1], [2, 2]] * 2
    assert ["".join(name for name, _ in turn) for turn in turns] == ["ab", "ba", "ab", "ba", "ab", "ba"]
    assert [[len(repeats) for repeats in rows] for rows in done.values()] == [[2, 2, 2]] * 2
    assert all(np.isnan(sample.first_seconds) for rows in done.values() for repeats in rows for sample in repeats)
    assert told[0] == ("warm-up", 0, 4)
    assert told[-1] == ("bench", 6, 6)


def test_measures_of_made_up_times(generation):
    timed = {
        BASELINE: samples([[2.0], [2.0], [2.0]], stats=generation.stats),
        "fast": samples([[1.0], [2.0], [0.75]], stats=generation.stats),
        "peer": samples([[4.0], [4.0], [8.0]], first=float("nan")),
    }
    report = Report(timed, ["qa", "qa", "code"], {BASELINE: Steps(0.0, 500.0), "fast": Steps(100.0, 50.0)})
    measures = report.measures()
    fast = measures["fast"]
    assert measures[BASELINE]["speedup"] == 1.0
    assert measures[BASELINE]["speedup_spread"] == (1.0, 1.0)
    assert (fast["speedup"], fast["speedup_spread"]) == (2.0, (1.5, pytest.approx(7 / 3)))
    assert fast["tokens_per_second"] == pytest.approx(30 / 3.75)
    assert (fast["tokens"], fast["seconds"], fast["first_ms"]) == (30, 3.75, 500.0)
    assert (fast["tokens_per_round"], fast["accepted_per_round"], fast["acceptance"]) == (3.0, 2.0, [1.0])
    assert fast["overhead_ms"] == pytest.approx(500.0 - 150.0)  # two rounds in a second, of which half up to the first
    assert measures[BASELINE]["decode_speedup"] == 1.0
    assert fast["decode_speedup"] == pytest.approx(3.0)  # 1.5 seconds to .5, 1.5 and .25: half a second is the prompt's
    assert measures["peer"]["speedup"] == 0.5
    assert np.isnan(measures["peer"]["decode_speedup"])
    assert np.isnan(measures["peer"]["tokens_per_round"])
    by_category = report.by_category()
    assert list(by_category) == ["qa", "code"]
    assert [by_category[name]["fast"]["speedup"] for name in by_category] == [1.5, pytest.approx(8 / 3)]
    assert report.ratio("fast", "peer").median == 4.0
    assert report.same_texts("fast") == 3


def test_nothing_is_compiled_while_it_is_timed():
    target, draft, params = pair("table")
    arm = bench.decoder_arm(decode.speculative(target, draft, 2), params, jax.random.key(0), 40)
    short, long = [1, 2], [3] * 60
    assert arm.shape(short) == arm.shape([5] * 9) != arm.shape(long)

    def compiled():
        return loop._start._cache_size(), loop._rounds._cache_size()

    begun = compiled()
    arm.generate(0, short)
    warm = compiled()
    assert warm == (begun[0] + 1, begun[1] + 1)
    arm.first(0, short)
    arm.generate(1, [5] * 9)
    assert compiled() == warm
    arm.generate(2, long)
    assert compiled() != warm


def test_unequal_counts_are_an_error():
    with pytest.raises(ValueError, match="b emitted another number"):
        bench.check_equal_counts({"a": samples([[1.0]]), "b": samples([[1.0]], 9)})


def test_a_round_has_its_forwards(monkeypatch):
    monkeypatch.setattr(timing, "step_times", lambda model, params, sizes, **_: {size: 10.0**size for size in sizes})
    target, draft, params = pair("pos")
    shape = tree.TokenTree((-1, 0, 0, 1, 2, 2))
    decoders = {"plain": decode.autoregressive(target), "tree": decode.sequoia(target, draft, shape)}
    steps = bench.round_steps(decoders, params, 128)
    assert steps == {"plain": Steps(0.0, 10.0), "tree": Steps(100.0 + 100.0, 1e6)}  # the root's step has two tokens


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoders": {}}, "is not among"),
        ({"prompts": []}, "at least one"),
        ({"repeats": 0}, "at least one"),
        ({"categories": ["a", "b"]}, "2 categories for 1 prompts"),
    ],
)
def test_bad_input(changes, message):
    target, _, params = pair("table")
    arguments = {"decoders": {BASELINE: decode.autoregressive(target)}, "params": params, "prompts": [[1]]}
    with pytest.raises(ValueError, match=message):
        bench.run(**arguments | changes, key=jax.random.key(0), max_new_tokens=2)


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
        assert len({entry["tokens"] for entry in methods.values()}) == 1  # K7: one ruler
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


def test_ours_is_compared_with_its_counterpart():
    timed = {BASELINE: samples([[2.0]]), "sequoia": samples([[1.0]])}
    theirs = {"torch": samples([[4.0]]), "torch assisted 5": samples([[3.0]]), "llama.cpp float32": samples([[1.0]])}
    report = Report(timed | theirs, ["qa"], {})
    wanted = {f"{BASELINE} / torch": 2, f"{BASELINE} / llama.cpp float32": 0.5, "sequoia / torch assisted 5": 3}
    found = {name: one.median for name, one in peers.ratios(report, list(timed)).items()}
    assert found == pytest.approx(wanted)


@pytest.fixture
def peer_arguments(folder):
    words = ["--prompts", folder / "prompts.jsonl", "--assistant-tokens", "3", "--max-new-tokens", LIMIT]
    return peers.parse([str(word) for word in words])


@pytest.mark.filterwarnings("ignore")
def test_torch_peers_give_our_texts(folder, peer_arguments, tmp_path):
    pytest.importorskip("torch")
    loaded = pairs.load(folder)
    prompt = loaded.encode("abcabc")
    plain = decode.autoregressive(loaded.target)
    wanted = bench.decoder_arm(plain, loaded.params, jax.random.key(0), LIMIT).generate(0, prompt).tokens.tolist()
    found = dict(peers.torch_peers(loaded, peer_arguments, tmp_path))
    assert list(found) == ["torch", "torch lookup", "torch assisted 3"]
    assert {name: peer.arm.generate(0, prompt).tokens.tolist() for name, peer in found.items()} == dict.fromkeys(
        found, wanted
    )
    assert found["torch assisted 3"].config.items() >= peers.assistant_settings("3").items()
    assert found["torch lookup"].config["prompt_lookup_num_tokens"] == 10


def write_gguf(path):
    """A GGUF file with a quantised tensor, a text and a list; returns the tensor as it is read."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_token_list(["a", "b"])
    packed = gguf.quants.quantize(np.arange(64, dtype=np.float32).reshape(2, 32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0)


def test_a_gguf_file_in_float32(tmp_path):
    wanted = write_gguf(tmp_path / "source.gguf")
    peers.float32_gguf(tmp_path / "source.gguf", tmp_path / "wide.gguf")
    wide = gguf.GGUFReader(tmp_path / "wide.gguf")
    assert [(tensor.name, tensor.tensor_type.name) for tensor in wide.tensors] == [("token_embd.weight", "F32")]
    assert np.array_equal(wide.tensors[0].data, wanted)
    assert wide.fields["general.name"].contents() == "tiny"
    assert wide.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]


def test_llama_starts_each_prompt_anew(peer_arguments, tmp_path, monkeypatch):
    """On a stand-in: llama-cpp-python itself is seldom installed."""
    made = []

    class Llama:
        def __init__(self, path, **settings):
            self.calls = []
            made.append((Path(path).name, settings))

        def reset(self):
            self.calls.append("reset")

        def generate(self, tokens, **options):
            assert self.calls.pop() == "reset"
            assert options == {"temp": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
            while True:
                yield tokens[0]

    module = types.ModuleType("llama_cpp")
    module.__spec__ = ModuleSpec("llama_cpp", None)
    vars(module).update(Llama=Llama, GGML_TYPE_F32=0)
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    write_gguf(tmp_path / "source.gguf")
    loaded = types.SimpleNamespace(sources={"target": str(tmp_path / "source.gguf")})
    found = dict(peers.llama_peers(loaded, peer_arguments, tmp_path))
    assert list(found) == ["llama.cpp as quantised", "llama.cpp float32"]
    assert [name for name, _ in made] == ["source.gguf", "source.float32.gguf"]
    assert [settings.get("type_k") for _, settings in made] == [None, 0]
    for peer in found.values():
        for _ in range(2):
            assert peer.arm.generate(0, [7, 8]).tokens.tolist() == [7] * LIMIT


def test_a_peer_that_is_not_installed_is_named(folder, peer_arguments, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    wanted = {"transformers": "torch is not installed", "llama.cpp": "llama-cpp-python is not installed"}
    assert peers.available(pairs.load(folder), peer_arguments, tmp_path) == ({}, wanted)
