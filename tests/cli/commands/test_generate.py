"""`jaxspec generate`: its JSON, its stream, and every option in both."""

import io
import json
import sys

import jax
import jax.numpy as jnp
from commands import DEFAULT_TREE, LIMIT, byte_tokenizer, generated

from jaxspec import decode, plan, tree
from jaxspec.catalogue import registry
from jaxspec.cli import entry
from jaxspec.cli.show import text
from jaxspec.networks import Transformer

SAMPLED = ["--max-new-tokens", "40", "--length", "2", "--temperature", "1"]
"""Few programs are compiled for all of these tests."""


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
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "penalise_prompt": False,
        "min_new_tokens": 0,
        "bad_word": [],
        "bad_ids": [],
        "stop": [],
        "num_samples": 1,
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
    result = generated(run, *options.split(), "--max-new-tokens", 9)
    wanted = {"temperature": 0.7, "draft_temperature": 0.9, "top_p": 0.95, "top_k": 40, "min_p": 0.01, "seed": 5}
    wanted |= {"raw": True, "method": "speculative", "length": 3, "tree": None, "max_new_tokens": 9}
    assert {key: result["config"][key] for key in wanted} == wanted
    assert (result["token_ids"], result["finish_reason"]) == ([72, 73], "stop")
    [(decoder, token_ids, used)] = calls
    assert decoder.drafter.tree == tree.chain(3)
    assert token_ids == [byte_tokenizer()("hello")["input_ids"]]
    sampling = used["sampling"]
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (0.7, 40, 0.95, 0.01)
    assert (used["draft_temperature"], used["max_new_tokens"], list(used["stop_ids"])) == (0.9, 9, [256])
    assert jax.random.key_data(used["key"]).tolist() == jax.random.key_data(jax.random.key(5)).tolist()


def test_a_seed_decides_the_text_whether_streamed_or_not(run):
    first, again, other = (generated(run, *SAMPLED, "--seed", seed) for seed in (3, 3, 4))
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


def test_options_that_read_the_text_are_used_and_repeated(run, calls):
    options = "--frequency-penalty 0.5 --presence-penalty -0.25 --repetition-penalty 1.2 --penalise-prompt"
    options += " --min-new-tokens 3 --bad-ids 5,7 --bad-word of"
    result = generated(run, *options.split())
    wanted = {"frequency_penalty": 0.5, "presence_penalty": -0.25, "repetition_penalty": 1.2, "penalise_prompt": True}
    assert {key: result["config"][key] for key in wanted} == wanted
    [(_, _, used)] = calls
    assert {key: getattr(used["sampling"], key) for key in wanted} == wanted
    words = [byte_tokenizer()(word)["input_ids"] for word in ("of", " of")]
    assert used["sampling"].bad_words == [5, 7, *words]
    assert (used["min_new_tokens"], result["config"]["min_new_tokens"]) == (3, 3)
    assert (result["config"]["bad_word"], result["config"]["bad_ids"]) == (["of"], [5, 7])


def test_a_stop_string_ends_a_text_whether_streamed_or_not(run):
    """The text is cut where it begins; tokens and measures end with it."""
    whole = generated(run, *SAMPLED, "--seed", 3)
    stop = whole["text"][5:8]
    stopped = generated(run, *SAMPLED, "--seed", 3, "--stop", stop, "--stop", "none of these")
    assert stopped["text"] == whole["text"][: whole["text"].index(stop)]
    assert stopped["finish_reason"] == "stop"
    assert stopped["token_ids"] == whole["token_ids"][: len(stopped["token_ids"])]
    assert stopped["stats"]["tokens"] == len(stopped["token_ids"]) < len(whole["token_ids"])
    assert stopped["config"]["stop"] == [stop, "none of these"]
    _, out, err = run("generate", "hello", *SAMPLED, "--seed", 3, "--stop", stop)
    assert out == stopped["text"] + "\n"
    assert f"{len(stopped['token_ids'])} tokens, " in err
    status, out, err = run("generate", "hello", "--stop", "")
    assert (status, out) == (2, "")
    assert "at least one character" in err


def test_several_texts_of_one_prompt(run):
    result = generated(run, *SAMPLED, "--num-samples", 2)
    assert len(result["samples"]) == 2
    assert result["samples"][0] == {name: result[name] for name in ("text", "token_ids", "finish_reason")}
    assert result["samples"][0]["token_ids"] != result["samples"][1]["token_ids"]
    _, out, _ = run("generate", "hello", *SAMPLED, "--num-samples", 2)
    texts = [sample["text"] for sample in result["samples"]]
    assert out == f"--- 1 of 2 ---\n{texts[0]}\n--- 2 of 2 ---\n{texts[1]}\n"


def test_a_target_that_breaks_is_said(run, monkeypatch):
    """The tokens in front are written, the exit status is that of an error, and the line names the token."""
    apply = Transformer.apply

    def broken(self, params, tokens, positions, *rest):
        output = apply(self, params, tokens, positions, *rest)
        bad = jnp.where(positions >= 12, jnp.nan, 0.0)[:, None]
        return output._replace(logits=output.logits + bad)

    monkeypatch.setattr(Transformer, "apply", broken)
    words = ("generate", "hello", "--method", "autoregressive", "--dtype", "float32", "--max-new-tokens", "33")
    status, out, err = run(*words, "--json")
    result = json.loads(out)
    number = len(result["token_ids"])
    assert (status, result["finish_reason"], result["stats"]["tokens"]) == (2, "error", number)
    assert 0 < number < 13
    assert f"for new token {number + 1} hold NaN" in err
    status, out, err = run(*words)
    assert (status, out) == (2, result["text"] + "\n")
    assert f"for new token {number + 1} hold NaN" in err


def test_ctrl_c_says_what_there_is(run, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(decode, "stream", interrupted)
    status, out, err = run("generate", "hello")
    assert (status, out) == (130, "\n")
    assert "interrupted: 0 tokens" in err
