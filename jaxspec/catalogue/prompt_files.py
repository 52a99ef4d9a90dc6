"""Prompts files, in the forms that people have them: a JSON value a line, or one JSON list of them.

An entry is an object with one of these keys, the first in this order:

"prompt" "turns" "question" "text"    a text; of "turns" the first
"messages"                            a chat: {"role": …, "content": …} each; a content may be in parts of type text
"conversations"                       ShareGPT's chats: {"from": …, "value": …} each

or a bare list of messages. A chat that ends with the assistant is one whose last message is continued.
"""

import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxspec import documents

MT_BENCH = "mt_bench"
"""The task that Spec-Bench makes of MT-bench's eight categories."""

_MT_BENCH_CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
_KINDS = (
    '"prompt" (a string), "messages" (a list of {"role": …, "content": …}), "turns" (a list of strings), '
    '"conversations" (a list of {"from": …, "value": …}), "question" or "text" (a string) is needed'
)
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
"""ShareGPT's names, and templates'."""


@dataclass(frozen=True)
class Prompt:
    """One prompt of a file.

    Attributes:
        content: A text, or messages `{"role": …, "content": …}`: what `Pair.encode` takes.
        task: What it is grouped by: its category, or `MT_BENCH` for those of MT-bench; empty where the file has none.
        id: Its name in the file; empty where it has none.
    """

    content: str | tuple[Mapping[str, Any], ...]
    task: str = ""
    id: str = ""


def read(path: str | os.PathLike[str], limit: int | None = None) -> list[Prompt]:
    """The prompts of a file; blank lines are skipped. `category` and `id` may stand beside a prompt.

    Args:
        path: The file, in UTF-8, or with a byte order mark in UTF-16 or UTF-32.
        limit: How many prompts to read, from the first on; None for all.

    Raises:
        ValueError: No such file, no prompts in it, or an entry that is not one; says which, and what is expected.
    """
    prompts = []
    try:
        for place, entry in itertools.islice(_entries(documents.text(path), str(path)), limit):
            prompts.append(_parse(entry, place))
    except OSError as error:
        raise ValueError(
            f"the prompts file {path} can't be read: {error.strerror}; give a file of JSON lines: in each {_KINDS}"
        ) from error
    if not prompts:
        raise ValueError(f"the prompts file {path} is empty: one JSON object a line is expected; {_KINDS}")
    return prompts


def _entries(text: str, path: str) -> Iterator[tuple[str, Any]]:
    """The file's entries, each with where it stands."""
    listed = _listed(text, path)
    if listed is not None:
        yield from ((f"{path}, entry {number}", entry) for number, entry in enumerate(listed, start=1))
        return
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text), start=1):
        if line.strip():
            place = f"{path}, line {number}"
            try:
                yield place, documents.parse(line, place)
            except ValueError as error:
                raise ValueError(f"{error}; one object a line is expected; {_KINDS}") from error


def _listed(text: str, path: str) -> list[Any] | None:
    """The entries of a file that is one JSON list; None where it is lines. A chat alone is one entry."""
    if not text.lstrip().startswith("["):
        return None
    first = text.lstrip().splitlines()[0]
    try:
        value = documents.parse(text, path)
    except ValueError as damage:
        try:
            documents.parse(first, path)
        except ValueError:  # its first line is no entry either: it is a list that is damaged
            raise damage from None
        return None
    is_chat = all(isinstance(one, dict) and one.keys() & {"role", "from"} for one in value)
    return [value] if value and is_chat else value


def _parse(entry: Any, place: str) -> Prompt:
    if isinstance(entry, list) and entry and isinstance(entry[0], dict):
        return Prompt(_messages(entry, "the list", place))
    if not isinstance(entry, dict):
        raise ValueError(f"{place} is {_name(entry)}, but one object a line is expected; {_KINDS}")
    category = entry.get("category") or ""
    if not isinstance(category, str):
        raise ValueError(f'{place}: "category" is {_name(category)}, but a string is expected')
    name = entry.get("id")
    task = MT_BENCH if category in _MT_BENCH_CATEGORIES else category
    return Prompt(_content(entry, place), task, "" if name is None else str(name))


def _content(entry: Mapping[str, Any], place: str) -> str | tuple[Mapping[str, Any], ...]:
    for key in ("prompt", "messages", "turns", "conversations", "question", "text"):
        if key not in entry:
            continue
        value = entry[key]
        if key in ("messages", "conversations"):
            return _messages(value, f'"{key}"', place)
        if key != "turns":
            return _text(value, f'"{key}"', place)
        if not isinstance(value, list) or not value:
            raise ValueError(f'{place}: "turns" is {_name(value)}, but a list with at least one string is expected')
        return _text(value[0], 'the first of "turns"', place)
    raise ValueError(f"{place} has the keys {_name(list(entry))}, but {_KINDS}")


def _messages(messages: Any, what: str, place: str) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"{place}: {what} is {_name(messages)}, but a list with at least one message is expected")
    chat = tuple(_message(message, f"{place}: message {index}") for index, message in enumerate(messages))
    _text(chat[-1]["content"], "the last message's content", place)
    return chat


def _message(message: Any, place: str) -> dict[str, Any]:
    """A message as templates take it, from this form or ShareGPT's."""
    if isinstance(message, dict) and "from" in message and "role" not in message:
        role = _ROLES.get(str(message["from"]))
        if role is None:
            raise ValueError(f'{place}: "from" is {_name(message["from"])}, but one of {", ".join(_ROLES)} is needed')
        message = {"role": role, "content": message.get("value")}
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        content = _joined(content, place)
    if not isinstance(message, dict) or not isinstance(message.get("role"), str) or not isinstance(content, str):
        raise ValueError(
            f'{place} must be {{"role": …, "content": …}} with two strings, or "content" in parts of type text, not '
            f"{_name(message)}"
        )
    return {**message, "content": content}


def _joined(parts: list[Any], place: str) -> str:
    """The text of a content's parts."""
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError(
                f'{place}: a part of its content is {_name(part)}, but {{"type": "text", "text": …}} is needed'
            )
    return "".join(part["text"] for part in parts)


def _text(value: Any, what: str, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{place}: {what} is {_name(value)}, but a string that is not empty is expected")
    return value


def _name(value: Any) -> str:
    """A JSON value in a few words."""
    shown = json.dumps(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}…"
