"""A tiny pair in a folder, and commands that are run on it."""

import json

import jax
import numpy as np
import pytest
from commands import PLAIN_PROFILE, PROFILE, byte_tokenizer, save_model

from jaxspec import decode
from jaxspec.cli import entry
from jaxspec.decode import stats


@pytest.fixture(scope="session")
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
