"""Files that people write: every encoding, every complaint in one line with its place."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxspec import documents


@dataclasses.dataclass(frozen=True)
class Numbers:
    whole: int
    parts: dict[str, tuple[float, ...]]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_text_is_read_in_every_encoding(tmp_path, encoding):
    (tmp_path / "a").write_bytes('{"é": "😀"}'.encode(encoding))
    assert documents.read(tmp_path / "a") == {"é": "😀"}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("{", "a.json is not JSON: Expecting property name"),
        ("[" * 100_000, "a.json: its JSON is nested more than 100 deep"),
        ("[" * 101 + "]" * 101, "a.json: its JSON is nested more than 100 deep"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' stands twice"),
        (r'{"a": "\ud83d"}', r"the lone surrogate U\+D83D"),
        ("9" * 5000, "a.json is not JSON"),
    ],
)
def test_bad_json_is_named(words, named):
    with pytest.raises(ValueError, match=named):
        documents.parse(words, "a.json")


def test_bytes_that_are_no_text_are_named(tmp_path):
    (tmp_path / "a").write_bytes(b"one\ncaf\xe9\n")
    with pytest.raises(ValueError, match=r"is not text in UTF-8: byte 7 \(0xe9, in line 2\)"):
        documents.text(tmp_path / "a")
    assert documents.parse(r'"\ud83d\ude00"', "a") == "😀"


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"whole": True, "parts": {}}, "whole is True, but input should be a valid integer"),
        ({"whole": 1, "parts": {"x": [1.0, "2"]}}, r"parts\.x\.1 is '2'"),
        ({"parts": {}}, "whole: "),
        ([1], r"it is \[1\]"),
    ],
)
def test_a_schema_names_the_entry(value, named):
    with pytest.raises(ValueError, match=f"^f: {named}"):
        documents.checked(Numbers, value, "f")
    assert documents.checked(Numbers, {"whole": 1, "parts": {"x": [1, 2.5]}}, "f") == Numbers(1, {"x": (1.0, 2.5)})


def test_a_home_that_nobody_has():
    with pytest.raises(ValueError, match="~nobody-of-that-name/x: the home folder"):
        documents.path("~nobody-of-that-name/x")


@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_whatever_bytes_are_a_value_or_a_clear_error(data):
    complaint = "the file"
    try:
        documents.parse(documents.decoded(data, "the file"), "the file")
    except ValueError as error:
        complaint = str(error)
    assert complaint.startswith("the file")
