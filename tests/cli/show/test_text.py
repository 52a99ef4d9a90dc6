"""Streamed text on stdout."""

import io
import sys

from jaxspec.cli.show import text


def test_text_is_written_as_far_as_the_encoding_has_it(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    text._write("é\t€", None)
    assert written.getvalue() == b"\xe9\t?"
