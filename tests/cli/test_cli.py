import io
import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from jaxspec import decode, measure, networks, parity, plan, ranking, tree
from jaxspec.catalogue import choosing, registry
from jaxspec.cli import entry, options, values
from jaxspec.cli.commands import check
from jaxspec.cli.show import terminal, text
from jaxspec.decode import stats
from jaxspec.measure import timing
from jaxspec.networks import Transformer, TransformerConfig
from jaxspec.pairs import fetching
from jaxspec.profiles import Profile

MESSAGES = "{% for message in messages %}<{{ message['role'][0] }}>{{ message['content'] }}{% endfor %}"
TEMPLATE = MESSAGES + "{% if add_generation_prompt %}>{% endif %}"
LIMIT = 12
PROFILE = Profile(
    acceptance=(0.6, 0.2, 0.1), verify_ms={1: 10.0, 8: 11.0, 16: 13.0}, draft_ms={1: 1.0, 8: 1.2}, temperature=0.0
)
PLAIN_PROFILE = Profile(acceptance=(0.1, 0.0), verify_ms={1: 10.0, 8: 40.0}, draft_ms={1: 8.0})
DEFAULT_TREE = [-1, 0, 0, 1, 1, 2, 3, 6]


def byte_tokenizer(swapped: bool = False) -> PreTrainedTokenizerFast:
    """A token a byte, so that most characters outside ASCII are several; and an end-of-text token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if swapped:
        alphabet[3], alphabet[5] = alphabet[5], alphabet[3]
    backend = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", chat_template=TEMPLATE)


def save_model(folder, seed: int, tokenizer: PreTrainedTokenizerFast) -> None:
    model = Transformer(TransformerConfig(257, 16, 32, 2, 2, 1, 8, max_length=256, initializer_range=0.5))
    networks.save(folder, model, model.init(jax.random.key(seed)))
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A pair whose draft is its target's first layer; beside it `other`, a model with another vocabulary."""
    folder = tmp_path_factory.mktemp("pair")
    save_model(folder / "target", 0, byte_tokenizer())
    save_model(folder / "other", 1, byte_tokenizer(swapped=True))
    (folder / "pair.json").write_text(json.dumps({"target": "target", "draft": {"early_exit": 1}}))
    PROFILE.save(folder / "profile.json")
    PLAIN_PROFILE.save(folder / "plain.json")
    lines = [{"prompt": "tell me more", "id": "first"}, {"turns": ["and then?"], "category": "qa"}]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def run(folder, capsys, monkeypatch):
    """Runs a command, with the tiny pair where it takes one; returns status, stdout and stderr."""
    monkeypatch.delenv(entry.DEBUG_VARIABLE, raising=False)

    def run(*argv: object, pair: bool = True) -> tuple[int, str, str]:
        words = [str(word) for word in argv]
        if pair and words[0] != "plan":
            words += ["--pair", str(folder)]
        status = entry.main(words)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


SAMPLED = (
    "--max-new-tokens",
    40,
    "--length",
    2,
    "--temperature",
    1,
)  # few programs are compiled for all of these tests


def generate(run, *argv) -> dict:
    status, out, _ = run("generate", "hello", "--json", *argv)
    assert status == 0
    return json.loads(out)


@pytest.fixture
def calls(monkeypatch):
    """What `decode.generate` is called with, which then decodes nothing."""
    calls = []

    def generate(decoder, params, token_ids, **options):
        calls.append((decoder, token_ids, options))
        counts = jax.tree.map(lambda leaf: np.asarray(leaf)[None], stats.zeros(decoder))
        tokens = np.array([[72, 73, decode.PADDING]], np.int32)
        return decode.Generation(tokens, np.array([2]), ("stop",), None, decode.Stats(counts))

    monkeypatch.setattr(decode, "generate", generate)
    return calls


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("generate", "--raw --show --method --length --tree --profile --top-p --top-k --min-p --seed --dtype --json"),
        ("measure", "--prompts --num-prompts --prompt-tokens --max-new-tokens --width --depth --out --pair --json"),
        ("plan", "--max-size --max-depth --json"),
        ("check", "--prompts --num-prompts --max-new-tokens --methods --method --tree --target --draft --json"),
    ],
)
def test_help_names_the_options_and_shows_an_example(run, command, options):
    status, out, err = run(command, "--help", pair=False)
    assert (status, err) == (0, "")
    assert f"example: jaxspec {command} " in out
    assert [option for option in options.split() if option not in out] == []


def test_help_needs_no_jax():
    program = (
        "import sys; from jaxspec import cli; assert cli.main(['--help']) == 0; "
        "assert not {'jax', 'transformers'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [name for name in ("generate", "measure", "plan", "check") if name not in done.stdout] == []


def test_the_defaults_of_measure_are_the_protocol():
    args = entry._parser().parse_args(["measure", "--prompts", "p", "--out", "o"])
    assert (args.num_prompts, args.prompt_tokens) == (measure.NUM_PROMPTS, measure.PROMPT_TOKENS)
    assert (args.max_new_tokens, args.width, args.depth) == (measure.NEW_TOKENS, 8, 5)


def test_the_defaults_of_generate():
    args = vars(entry._parser().parse_args(["generate", "p"]))
    wanted = {"temperature": 0.0, "draft_temperature": None, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": 0}
    wanted |= {"max_new_tokens": 128, "dtype": "float32", "method": None, "length": None, "tree": None, "profile": None}
    assert {key: args[key] for key in wanted} == wanted


def test_generate_json(run, folder):
    status, out, err = run("generate", "hello", "--max-new-tokens", LIMIT, "--json")
    assert status == 0
    assert out.count("\n") == 1
    result = json.loads(out)
    assert list(result) == ["text", "token_ids", "finish_reason", "config", "stats"]
    assert len(result["token_ids"]) == LIMIT
    assert result["finish_reason"] == "length"
    assert result["text"] == byte_tokenizer().decode(result["token_ids"], skip_special_tokens=True)
    assert result["config"] == {
        "pair": folder.name,
        "sources": {
            "target": str(folder / "target"),
            "draft": f"the first 1 layers of {folder / 'target'}",
        },
        "method": "sequoia",
        "tree": DEFAULT_TREE,
        "length": None,
        "profile": None,
        "temperature": 0.0,
        "draft_temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "max_new_tokens": LIMIT,
        "seed": 0,
        "stop_ids": [256],
        "dtype": "float32",
        "raw": False,
    }
    assert result["stats"]["tokens"] == LIMIT
    assert result["stats"]["seconds"] > 0
    names = {"rounds", "tokens_per_round", "accepted_per_round", "mean_accepted_run", "rollback_path", "rollback_all"}
    assert names <= result["stats"].keys()
    assert "no profile to plan by" in err


def test_the_default_tree_is_optimal_for_its_stated_acceptance():
    assert list(plan.optimal_tree(registry.DEFAULT_ACCEPTANCE, registry.DEFAULT_SIZE).parents) == DEFAULT_TREE


def test_every_option_is_used_and_repeated(run, calls):
    options = "--temperature 0.7 --draft-temperature 0.9 --top-p 0.95 --top-k 40 --min-p 0.01 --seed 5 --raw --length 3"
    result = generate(run, *options.split(), "--max-new-tokens", 9)
    wanted = {"temperature": 0.7, "draft_temperature": 0.9, "top_p": 0.95, "top_k": 40, "min_p": 0.01, "seed": 5}
    wanted |= {"raw": True, "method": "speculative", "length": 3, "tree": None, "max_new_tokens": 9}
    assert {key: result["config"][key] for key in wanted} == wanted
    assert (result["token_ids"], result["finish_reason"]) == ([72, 73], "stop")
    [(decoder, token_ids, used)] = calls
    assert decoder.tree == tree.chain(3)
    assert token_ids == [byte_tokenizer()("hello")["input_ids"]]
    sampling = used["sampling"]
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.7, 40, 0.95, 0.01)
    assert (used["draft_temperature"], used["max_new_tokens"], list(used["stop_ids"])) == (0.9, 9, [256])
    assert jax.random.key_data(used["key"]).tolist() == jax.random.key_data(jax.random.key(5)).tolist()


def test_a_seed_decides_the_text_whether_streamed_or_not(run):
    first, again, other = (generate(run, *SAMPLED, "--seed", seed) for seed in (3, 3, 4))
    assert first["token_ids"] == again["token_ids"] != other["token_ids"]
    for seed, result in ((3, first), (4, other)):
        status, out, err = run("generate", "hello", *SAMPLED, "--seed", seed)
        assert (status, out) == (0, result["text"] + "\n")
        assert f"{result['stats']['tokens']} tokens, {result['stats']['tokens_per_round']:.2f} tokens/round" in err
        assert "tokens/s" in err


def test_show_colours_in_a_terminal(run, monkeypatch):
    _, plain, err = run("generate", "hello", *SAMPLED, "--show")
    assert "\x1b" not in plain
    assert "not a terminal" in err
    monkeypatch.setattr(text, "_has_colours", lambda: True)
    _, coloured, err = run("generate", "hello", *SAMPLED, "--show")
    assert "\x1b[1;33m" in coloured
    assert "accepted draft tokens" in err
    for code in ("\x1b[32m", "\x1b[1;33m", "\x1b[0m"):
        coloured = coloured.replace(code, "")
    assert coloured == plain


def test_the_prompt_comes_from_stdin_and_goes_through_the_template_unless_raw(run, calls, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n\n"))
    run("generate", "-", "--json", "--raw")
    run("generate", "hello", "--json")
    texts = [byte_tokenizer().decode(token_ids[0]) for _, token_ids, _ in calls]
    assert texts == ["hello\n", "<u>hello>"]


@pytest.mark.parametrize(
    ("options", "method", "parents", "length"),
    [
        ("--method autoregressive", "autoregressive", None, None),
        ("--method speculative", "speculative", None, registry.METHODS["speculative"].defaults["length"]),
        ("--method topk", "topk", DEFAULT_TREE, None),
        ("--method topk --tree star:2", "topk", [-1, 0, 0], None),
        ("--method sequoia", "sequoia", DEFAULT_TREE, None),
        ("--tree -1,0,0,1", "sequoia", [-1, 0, 0, 1], None),
        ("--tree=-1,0,0,1", "sequoia", [-1, 0, 0, 1], None),
        ("--tree k-ary:2x2", "sequoia", [-1, 0, 0, 1, 1, 2, 2], None),
        ("--profile {}/plain.json", "autoregressive", None, None),
        ("--tree optimal:5 --profile {}/profile.json", "sequoia", "optimal:5", None),
        ("--tree optimal --profile {}/profile.json", "sequoia", "best", None),
        ("--method sequoia --profile {}/profile.json", "sequoia", "best", None),
        ("--method speculative --profile {}/profile.json", "speculative", None, "best"),
        ("--method adaedl --profile {}/profile.json", "adaedl", None, "best"),
        ("--method pearl --profile {}/profile.json", "pearl", None, "best"),
        ("--method topk --profile {}/profile.json", "topk", "best", None),
        ("--method topk --tree optimal:5 --profile {}/profile.json", "topk", "optimal:5", None),
        ("--length 3", "speculative", None, 3),
        ("--max-branches 2", "specbranch", None, registry.METHODS["specbranch"].defaults["length"]),
        ("--epsilon 0.2 --length 3", "specbranch", None, 3),
    ],
)
def test_the_method_that_is_taken(run, folder, calls, options, method, parents, length):
    if parents == "best":
        parents = list(plan.best(PROFILE).tree.parents)
    elif parents == "optimal:5":
        parents = list(plan.optimal_tree(PROFILE.acceptance, 5).parents)
    if length == "best":
        length = ranking.fastest(method, PROFILE).length
    config = generate(run, *options.format(folder).split())["config"]
    assert (config["method"], config["tree"], config["length"]) == (method, parents, length)
    assert config["profile"] == next((word for word in options.format(folder).split() if "json" in word), None)
    is_predicted = method not in ("autoregressive", "adaedl") and config["profile"] is not None
    assert ("expected_speedup" in config) == is_predicted
    assert ("expected_tokens" in config) == is_predicted
    decoder = calls[0][0]
    assert decoder.depth == (0 if method == "autoregressive" else length or tree.TokenTree(parents).depth)


def test_a_pairs_own_profile_plans_unless_it_is_of_another_draft(run, folder, tmp_path, calls):
    entries = {"target": str(folder / "target"), "draft": {"early_exit": 1}, "profiles": ["profile.json"]}
    (tmp_path / "pair.json").write_text(json.dumps(entries))
    PROFILE.save(tmp_path / "profile.json")
    words = ["generate", "hello", "--json", "--pair", tmp_path, "--temperature", 1]
    _, out, err = run(*words, pair=False)
    assert json.loads(out)["config"]["tree"] == list(plan.best(PROFILE).tree.parents)
    assert f"the profile of {tmp_path.name} was measured at temperature 0, not 1" in err
    _, out, err = run(*words, "--draft-layers", 1, pair=False)
    assert json.loads(out)["config"]["tree"] == DEFAULT_TREE
    assert "no profile to plan by" in err


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("chain:4", tree.chain(4)),
        ("star:3", tree.star(3)),
        ("chains:2x3", tree.chains(2, 3)),
        ("comb:3x4", tree.comb(3, 4)),
        ("k-ary:2x3", tree.k_ary(2, 3)),
        ("-1, 0, 0", tree.star(2)),
        ("optimal", choosing.Optimal()),
        ("optimal:16", choosing.Optimal(16)),
    ],
)
def test_trees_by_their_words(text, wanted):
    assert values.shape(text) == wanted


def feed(data: bytes, *, ends: bool = True) -> list[str]:
    shown = text.Detokeniser(lambda tokens: bytes(tokens).decode("utf-8", "replace"))
    return [shown.feed([byte]) for byte in data] + ([shown.finish()] if ends else [])


def test_a_character_is_shown_when_it_is_whole():
    assert feed("a€🙂".encode()) == ["a", "", "", "€", "", "", "", "🙂", ""]


def test_broken_bytes_are_shown_when_nothing_can_complete_them():
    assert feed(b"a\xe2\x82") == ["a", "", "", "\ufffd"]
    assert feed(b"\xe2b") == ["", "\ufffdb", ""]
    assert "".join(feed(bytes(range(120, 256)))) == bytes(range(120, 256)).decode("utf-8", "replace")


def test_text_that_is_decoded_anew_is_not_shown_twice():
    # Byte-fallback decoders turn a whole run of byte tokens into replacement characters until it is complete.
    texts = iter(["€", "\ufffd\ufffd\ufffd\ufffd", "€é", "€é"])
    shown = text.Detokeniser(lambda tokens: next(texts))
    assert [shown.feed([1]), shown.feed([2]), shown.feed([3]), shown.finish()] == ["€", "", "é", ""]


def test_text_is_written_as_far_as_the_encoding_has_it(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    text._write("é\t€", None)
    assert written.getvalue() == b"\xe9\t?"


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


BAD = [
    ("generate x --max-new-tokens 0", "--max-new-tokens: '0' is not in range: a whole number, 1 or more"),
    ("generate x --max-new-tokens 1.5", "'1.5' is not in range"),
    ("generate x --temperature -1", "--temperature: '-1' is not in range: a number of at least 0"),
    ("generate x --temperature nan", "--temperature: 'nan'"),
    ("generate x --temperature inf", "--temperature: 'inf'"),
    ("generate x --top-p 0", "--top-p: '0' is not in range: a number above 0, at most 1"),
    ("generate x --top-p 1.1", "--top-p"),
    ("generate x --min-p 2", "--min-p"),
    ("generate x --top-k -1", "--top-k"),
    ("generate x --seed 4294967296", "--seed"),
    ("generate x --method magic", "invalid choice: 'magic' (choose from"),
    ("generate x --dtype float16", "--dtype"),
    ("generate x --tree -1,1,0", "'-1,1,0' is no tree: parents[1] is 1"),
    ("generate x --tree 0,0", "is no tree: parents[0] is 0"),
    ("generate x --tree -1,0,,1", "is no tree"),
    ("generate x --tree -1", "drafts nothing"),
    ("generate x --tree chain:0", "drafts nothing"),
    ("generate x --tree comb:3", "comb takes 2 numbers, not 1"),
    ("generate x --tree k-ary:9x99", "at most 4096 nodes"),
    ("generate x --tree bush:3", "a shape of chain, star"),
    ("generate x --tree star:300", "The tree has 300 siblings"),
    (
        "generate x --tree star:2 --length 3",
        "--length is for the method speculative or pearl or adaedl or specbranch, but sequoia",
    ),
    ("generate x --method auto --tree star:2", "--tree is for the method sequoia or topk, but auto"),
    ("generate x --tree optimal", "needs a profile"),
    ("generate x --tree optimal --profile {}/plain.json", "makes plain decoding the fastest"),
    ("generate x --profile {}/none.json", "none.json: No such file. jaxspec measure makes one"),
    ("generate x --length 3 --profile {}/profile.json", "--profile has nothing to plan here"),
    ("generate x --tree star:2 --profile {}/profile.json", "--profile has nothing to plan here"),
    ("generate x --method specbranch --profile {}/profile.json", "--profile has nothing to plan here"),
    ("generate x --show --json", "--show colours the streamed text"),
    ("generate x --max-new-tokens 300", "the target was made for 256"),
    ("generate x --draft-layers 2", "keeps 1 to 1"),
    ("generate x --target a", "--target and --draft go together"),
    ("generate x --target a --draft b", "--pair and --draft-layers can't"),
    ("generate", "required: PROMPT"),
    ("check --prompts {}/none.jsonl", "none.jsonl can't be read: No such file"),
    ("check --prompts {}/bad.jsonl", "bad.jsonl, line 2 is not JSON"),
    ("check --prompts {}/prompts.jsonl --methods sequoia,magic", "'magic' is no method"),
    ("check --prompts {}/prompts.jsonl --temperature 1", "check compares greedy texts"),
    (
        "check --prompts {}/prompts.jsonl --methods speculative --tree star:2",
        "--tree is for the method sequoia or topk",
    ),
    ("measure --prompts {}/prompts.jsonl", "required: --out"),
    ("measure --prompts {}/prompts.jsonl --out {}/none/p.json", "can't be written"),
    ("measure --prompts {}/prompts.jsonl --out {}", "can't be written"),
    ("measure --prompts {}/prompts.jsonl --out {}/new.json --top-k 3", "--top-k can't be measured"),
    ("measure --prompts {}/prompts.jsonl --out {}/new.json --prompt-tokens 3", "'first' can't be cut to 3 tokens"),
    ("plan {}/none.json", "none.json: No such file. jaxspec measure makes one"),
    ("plan {}/prompts.jsonl", "is not a profile"),
    ("plan {}/profile.json --max-size 0", "--max-size"),
    ("plan {}/profile.json --max 3", "unrecognized arguments: --max 3"),
    ("fly", "invalid choice: 'fly'"),
]


@pytest.mark.parametrize(("words", "message"), BAD)
def test_bad_input_is_one_line_and_status_2(run, folder, words, message):
    (folder / "bad.jsonl").write_text('{"prompt": "x"}\n{nonsense\n')
    words = words.replace("{}", str(folder)).split()
    status, out, err = run(*words, pair="plan" not in words and "fly" not in words)
    assert (status, out) == (entry.FAILED, "")
    last = err.splitlines()[-1]
    assert last.startswith("jaxspec: error: ")
    assert message in last
    assert "Traceback" not in err
    assert not (folder / "new.json").exists()


def test_a_draft_with_another_vocabulary_is_refused(run, folder):
    models = ["--target", folder / "target", "--draft", folder / "other"]
    status, out, err = run("generate", "hello", *models, pair=False)
    assert (status, out) == (entry.FAILED, "")
    assert "The vocabularies of the target" in err


def test_an_unknown_pair_and_a_pair_that_is_not_to_be_had(run, monkeypatch):
    status, _, err = run("generate", "hello", "--pair", "none", pair=False)
    assert status == entry.FAILED
    assert "'none' is neither the name of a pair nor a folder" in err

    def unavailable(*_, **__):
        raise fetching.Unavailable("no network.\nWays out: …")

    monkeypatch.setattr(options, "load_pair", unavailable)
    status, _, err = run("generate", "hello")
    assert (status, err) == (entry.FAILED, "jaxspec: error: no network. Ways out: …\n")


def test_the_debug_variable_shows_the_traceback(run, monkeypatch):
    monkeypatch.setenv(entry.DEBUG_VARIABLE, "1")
    with pytest.raises(ValueError, match=r"none\.json: No such file"):
        run("plan", "none.json")


def test_an_interrupt_has_its_status(run, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(options, "load_pair", interrupt)
    status, out, err = run("generate", "hello")
    assert (status, out) == (130, "")
    assert "Traceback" not in err


def test_json_has_no_numbers_that_json_lacks(capsys):
    terminal.print_json({"a": float("nan"), "b": (1.0, np.float32("inf")), "c": {"d": np.int32(3), 4: "é"}})
    assert capsys.readouterr().out == '{"a": null, "b": [1.0, null], "c": {"d": 3, "4": "\\u00e9"}}\n'
