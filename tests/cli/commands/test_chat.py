"""`jaxspec chat`: what is said before is known, until it is reset; Ctrl-C stops an answer only."""

import io

import jax
import pytest

from jaxspec import decode
from jaxspec.cli.show import text
from jaxspec.pairs import loading

WORDS = ("--method", "autoregressive", "--max-new-tokens", 12)


@pytest.fixture
def talk(run, monkeypatch):
    """Says lines; gives what was answered to each, and stderr."""

    def talk(*lines, words=WORDS):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        status, out, err = run("chat", *words)
        assert status == 0
        return out, err

    return talk


@pytest.fixture
def prompts(monkeypatch):
    """The token ids that answers were asked for with."""
    seen, stream = [], decode.stream
    monkeypatch.setattr(decode, "stream", lambda *given, **more: seen.append(given[2][0]) or stream(*given, **more))
    return seen


def test_answers_know_what_was_said(talk, folder, prompts):
    """Each is that of `generate` for the whole conversation; an empty line says nothing."""
    out, _ = talk("hello", "", "and then", "/reset", "hello", "/quit", "never said", words=("--system", "be", *WORDS))
    pair = loading.load(folder)
    messages, answers = [{"role": "system", "content": "be"}], []
    for turn, said in enumerate(("hello", "and then")):
        messages.append({"role": "user", "content": said})
        assert prompts[turn] == pair.encode(messages)
        key = jax.random.fold_in(jax.random.key(0), turn)
        decoder, options = decode.autoregressive(pair.target), {"max_new_tokens": 12, "stop_ids": pair.stop_ids}
        found = decode.generate(decoder, pair.params, [prompts[turn]], key=key, logprobs=False, **options)
        answers.append(pair.decode(found.tokens[0]))
        messages.append({"role": "assistant", "content": answers[-1]})
    assert prompts[2:] == prompts[:1]
    assert out == "".join(f"{answer}\n" for answer in (*answers, answers[0]))


def test_an_interrupt_stops_the_answer_only(talk, folder, monkeypatch, prompts):
    """What was written of it belongs to the conversation."""
    whole, written = text._write, []

    def write(piece, style):
        whole(piece, style)
        written.append(piece)
        if len(written) == 8:
            raise KeyboardInterrupt

    monkeypatch.setattr(text, "_write", write)
    out, err = talk("hello", "more")
    assert "interrupted" in err
    assert len(prompts) == 2
    first = "".join(written[:8])
    assert first
    assert out.startswith(f"{first}\n")
    answered = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": first}]
    assert prompts[1] == loading.load(folder).encode([*answered, {"role": "user", "content": "more"}])


def test_a_chat_that_is_too_long_says_so(talk, prompts):
    _, err = talk("x" * 300, "hello")
    assert "tokens, of at most 256: /reset begins anew" in err
    assert len(prompts) == 1


def test_json_is_refused(run):
    status, out, err = run("chat", "--json")
    assert (status, out) == (2, "")
    assert "--json is not for a chat" in err
