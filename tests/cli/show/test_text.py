"""Streamed text: a character is shown when it is whole, and once."""

import io
import sys

from jaxspec.cli.show import text


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
