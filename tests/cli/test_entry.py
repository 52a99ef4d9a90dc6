"""The command line as a whole: help, errors in one line, interrupts, JSON."""

import subprocess
import sys

import numpy as np
import pytest

from jaxspec.cli import entry, options
from jaxspec.cli.show import terminal
from jaxspec.pairs import fetching


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
