"""Prompts files, and prompts cut to a number of tokens with their chat template whole."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxspec.pairs.loading import Pair

MT_BENCH = "mt_bench"
"""The task that Spec-Bench makes of MT-bench's eight categories."""

_MT_BENCH_CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
_KINDS = (
    '"prompt" (a string), "messages" (a list of {"role": …, "content": …}) or "turns" (a list of strings) is needed'
)
_UNKNOWN_CHARACTER = "\ufffd"


@dataclass(frozen=True)
class Prompt:
    """One prompt of a file.

    Attributes:
        content: A text, or messages `{"role": …, "content": …}`: what `Pair.encode` takes.
        task: What it is grouped by: its category, or `MT_BENCH` for those of MT-bench; empty where the file has none.
        id: Its name in the file; empty where it has none.
    """

    content: str | tuple[Mapping[str, str], ...]
    task: str = ""
    id: str = ""


def read(path: str | os.PathLike[str], limit: int | None = None) -> list[Prompt]:
    """The prompts of a JSON Lines file; blank lines are skipped.

    Each line is an object with `prompt` (a string), `messages` (a chat), or `turns` (the first is taken); where it has
    several of them, the first in this order. `category` and `id` may stand beside it.

    Args:
        path: The file.
        limit: How many prompts to read, from the first on; None for all.

    Raises:
        ValueError: No such file, no prompts in it, or a line that is not one; says which, and what is expected.
    """
    prompts = []
    try:
        for place, line in _lines(Path(path)):
            if limit is not None and len(prompts) == limit:
                break
            prompts.append(_parse(line, place))
    except OSError as error:
        raise ValueError(
            f"the prompts file {path} can't be read: {error.strerror}; give a file of JSON lines: in each {_KINDS}"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"the prompts file {path} is not UTF-8 text: JSON lines are expected ({error})") from error
    if not prompts:
        raise ValueError(f"the prompts file {path} is empty: one JSON object a line is expected; {_KINDS}")
    return prompts


def encode(pair: "Pair", prompt: Prompt, max_tokens: int) -> list[int]:
    """Token ids of a prompt in its chat template, its last text cut from behind until there are at most `max_tokens`.

    Raises:
        ValueError: It has more tokens even without that text.
    """
    content = prompt.content
    while True:
        tokens = pair.encode(content)
        excess = len(tokens) - max_tokens
        if excess <= 0:
            return tokens
        text = content if isinstance(content, str) else content[-1]["content"]
        if not text:
            named = f"prompt {prompt.id!r}" if prompt.id else "a prompt"
            raise ValueError(
                f"{named} can't be cut to {max_tokens} tokens: without its text the chat template alone has "
                f"{len(tokens)}. Allow more prompt tokens"
            )
        text = _cut(pair.tokenizer, text, excess)
        content = text if isinstance(content, str) else (*content[:-1], {**content[-1], "content": text})


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines that are not blank, each with where it stands."""
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield f"{path}, line {number}", line


def _parse(line: str, place: str) -> Prompt:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{place} is not JSON ({error}): one object a line is expected; {_KINDS}") from error
    if not isinstance(entry, dict):
        raise ValueError(f"{place} is {_name(entry)}, but one object a line is expected; {_KINDS}")
    if "prompt" in entry:
        content: Any = _text(entry["prompt"], '"prompt"', place)
    elif "messages" in entry:
        content = _messages(entry["messages"], place)
    elif "turns" in entry:
        turns = entry["turns"]
        if not isinstance(turns, list) or not turns:
            raise ValueError(f'{place}: "turns" is {_name(turns)}, but a list with at least one string is expected')
        content = _text(turns[0], 'the first of "turns"', place)
    else:
        raise ValueError(f"{place} has the keys {list(entry)}, but {_KINDS}")
    category = entry.get("category") or ""
    if not isinstance(category, str):
        raise ValueError(f'{place}: "category" is {_name(category)}, but a string is expected')
    name = entry.get("id")
    task = MT_BENCH if category in _MT_BENCH_CATEGORIES else category
    return Prompt(content, task, "" if name is None else str(name))


def _messages(messages: Any, place: str) -> tuple[Mapping[str, str], ...]:
    if not isinstance(messages, list) or not messages:
        raise ValueError(f'{place}: "messages" is {_name(messages)}, but a list with at least one message is expected')
    for index, message in enumerate(messages):
        kinds = [isinstance(message, dict) and isinstance(message.get(key), str) for key in ("role", "content")]
        if not all(kinds):
            raise ValueError(f'{place}: message {index} must be {{"role": …, "content": …}} with two strings')
    if messages[-1]["role"] == "assistant":
        raise ValueError(f"{place}: the last message is the assistant's, but a prompt ends with what it answers")
    _text(messages[-1]["content"], "the last message's content", place)
    return tuple(messages)


def _text(value: Any, what: str, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{place}: {what} is {_name(value)}, but a string that is not empty is expected")
    return value


def _name(value: Any) -> str:
    """A JSON value in a few words."""
    shown = json.dumps(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}…"


def _cut(tokenizer: Any, text: str, excess: int) -> str:
    """The text without its last `excess` tokens, and without a character that this leaves broken; always shorter."""
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    kept = tokenizer.decode(tokens[: max(0, len(tokens) - excess)], clean_up_tokenization_spaces=False)
    kept = kept.rstrip(_UNKNOWN_CHARACTER)
    return kept if len(kept) < len(text) else text[:-1]
