"""Files that people write, read: text in whatever Unicode encoding, JSON of it, and what a schema says it must be.

Whatever is wrong is a `ValueError` in one line that names the file, the place in it and what is expected. Schemas are
dataclasses; pydantic checks them, and is imported when the first file is read, so that `--help` is quick.
"""

import functools
import json
import os
from pathlib import Path
from typing import Any, TypeVar

Schema = TypeVar("Schema")

LARGEST = 256 << 20
"""Bytes up to which a file is read as a document."""

DEEPEST = 100
"""How deep the lists and objects of a document may stand in one another."""

_MARKS = (("utf-8-sig", b"\xef\xbb\xbf"), ("utf-32", b"\xff\xfe\0\0"), ("utf-32", b"\0\0\xfe\xff"))
_MARKS += (("utf-16", b"\xff\xfe"), ("utf-16", b"\xfe\xff"))
"""Encodings by the byte order mark that a text begins with. UTF-32's little-endian one begins with UTF-16's."""


def path(words: str | os.PathLike[str]) -> Path:
    """The path with its `~` expanded.

    Raises:
        ValueError: Nobody has that home, or a path can't have these characters.
    """
    try:
        expanded = Path(words).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{words}: the home folder of that user is not known; write the path out.") from error
    if "\0" in str(expanded):
        raise ValueError(f"{words!r} has the character 0, which no path can have.")
    return expanded


def text(file: str | os.PathLike[str]) -> str:
    """The text of a file in UTF-8, or in what its byte order mark says.

    Raises:
        OSError: It can't be read.
        ValueError: It is no such text, or too large.
    """
    file = Path(file)
    if (size := file.stat().st_size) > LARGEST:
        raise ValueError(f"{file} has {size} bytes; as a text at most {LARGEST} are read.")
    return decoded(file.read_bytes(), str(file))


def decoded(data: bytes, place: str) -> str:
    """The text that bytes are in UTF-8, or in what their byte order mark says.

    Raises:
        ValueError: They are none; says which byte is the first wrong one.
    """
    encoding = next((name for name, mark in _MARKS if data.startswith(mark)), "utf-8")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        where = f"byte {error.start} (0x{data[error.start]:02x}, in line {line})"
        raise ValueError(
            f"{place} is not text in {encoding.upper()}: {where} is wrong ({error.reason}); UTF-8 is expected, or "
            "UTF-16 or UTF-32 with a byte order mark."
        ) from error


def unicode(value: str, place: str) -> str:
    """The text itself.

    Raises:
        ValueError: It has half of a surrogate pair, which is no character: no tokenizer takes it.
    """
    wrong = next((index for index, character in enumerate(value) if "\ud800" <= character <= "\udfff"), None)
    if wrong is not None:
        raise ValueError(
            f"{place} is not Unicode text: character {wrong} is the lone surrogate U+{ord(value[wrong]):04X} (bytes "
            "that are not UTF-8, or half of a pair of escapes)."
        )
    return value


def read(file: str | os.PathLike[str]) -> Any:
    """The value of a JSON file.

    Raises:
        OSError: It can't be read.
        ValueError: It is no JSON; see `parse`.
    """
    return parse(text(file), str(file))


def parse(words: str, place: str) -> Any:
    """The value of a JSON text.

    Args:
        words: The text.
        place: What it is called in errors.

    Raises:
        ValueError: It is no JSON, stands deeper than `DEEPEST` in itself, says a key twice, or has lone surrogates.
    """
    try:
        value = json.loads(words, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError(f"{place}: its JSON is nested more than {DEEPEST} deep.") from None
    except ValueError as error:
        raise ValueError(f"{place} is not JSON: {error}") from error
    _check_depth(value, place)
    if "\\u" in words:  # json turns half of a pair of escapes into half of a character
        unicode(json.dumps(value, ensure_ascii=False), place)
    return value


def checked(schema: type[Schema], value: Any, place: str) -> Schema:
    """The value as a schema's dataclass; types are not converted: `"1"` and `true` are no numbers.

    Raises:
        ValueError: It is not what the schema says; names the entry, what it is and what it must be.
    """
    from pydantic import ValidationError

    try:
        # By way of JSON, where a strict schema still makes a dataclass of an object and a tuple of a list.
        return _adapter(schema).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False)
        raise ValueError(f"{place}: {'; '.join(_complaint(one) for one in wrong[:3])}") from None


def shown(value: Any, length: int = 60) -> str:
    """A value in a few characters, for a message."""
    words = repr(value)
    return words if len(words) <= length else f"{words[: length - 1]}…"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; what says a key twice means nobody knows what."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in found if names.count(name) > 1)!r} stands twice in an object")
    return found


def _check_depth(value: Any, place: str) -> None:
    level = [value]
    for _ in range(DEEPEST):
        inside = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [entry for one in inside for entry in one]
        if not level:
            return
    raise ValueError(f"{place}: its JSON is nested more than {DEEPEST} deep.")


@functools.cache
def _adapter(schema: type[Any]) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(schema)


def _complaint(error: Any) -> str:
    """One of pydantic's errors in this project's words."""
    where = ".".join(map(str, error["loc"])) or "it"
    said = error["msg"][:1].lower() + error["msg"][1:]
    return f"{where}: {said}" if error["type"] == "missing" else f"{where} is {shown(error['input'])}, but {said}"
