"""A folder's tokenizer, and the tokens that end a text; nothing that lies beside them is ever run.

A folder may name code of its own under `auto_map`, which transformers would offer to run. Such a folder is refused, and
transformers is told not to trust it, nor to fetch anything.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxspec import documents

_CODE = "auto_map"

_VOCABULARIES = ("tokenizer.json", "vocab.json", "added_tokens.json")
"""Files whose keys are tokens."""

_ENDS = ("config.json", "generation_config.json")
"""Files that list ids under `eos_token_id`, in a model's folder."""


def refuse_code(folder: Path) -> None:
    """Raises where a file of a folder asks for code of its own.

    Raises:
        ValueError: Names the file and the code.
    """
    for file in sorted(folder.glob("*.json")):
        if file.name in _VOCABULARIES or file.name.endswith(".index.json"):
            continue
        if _CODE not in (words := documents.text(file)):
            continue
        for code in _entries(documents.parse(words, str(file))):
            raise ValueError(
                f"{file}: {_CODE}={documents.shown(code, 200)} asks to run code that comes with the model, which "
                f"jaxspec never does. Remove the key where the files can be read without that code."
            )


def _entries(value: Any) -> Iterator[Any]:
    """What stands under `auto_map`, at whatever depth."""
    if isinstance(value, dict):
        if value.get(_CODE):
            yield value[_CODE]
        value = list(value.values())
    for one in value if isinstance(value, list) else ():
        yield from _entries(one)


def read_tokenizer(folder: Path) -> Any:
    """A transformers tokenizer from a folder's files.

    Raises:
        ValueError: There is none, or one that can't be read or asks for code of its own.
    """
    refuse_code(folder)
    from transformers import AutoTokenizer

    return understood(
        lambda: AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True), str(folder)
    )


def understood(make: Any, place: str) -> Any:
    """A tokenizer that somebody else's code makes, of which a vocabulary and an end can be had.

    Raises:
        ValueError: It can't be made. A damaged file gives errors of every kind.
    """
    try:
        tokenizer = make()
        tokens, end = tokenizer.get_vocab(), tokenizer.eos_token_id
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # Rust's panics are no Exception.
        said = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{place}: its tokenizer can't be read: {said[:300]}") from error
    if not tokens or not (end is None or isinstance(end, int)):
        raise ValueError(f"{place}: its tokenizer has {len(tokens)} tokens and ends with {end!r}: it is damaged.")
    return tokenizer


def listed_ends(folder: Path) -> tuple[int, ...]:
    """Ids that end a text by a model's configs, in a folder; what they list may be no token.

    Raises:
        ValueError: A config is no JSON object, or lists what is no id.
    """
    found: list[int] = []
    for file in (folder / name for name in _ENDS):
        if not file.is_file():
            continue
        config = documents.read(file)
        if not isinstance(config, dict):
            raise ValueError(f"{file} is {documents.shown(config)}, but a JSON object is needed.")
        entry = config.get("eos_token_id")
        for token in entry if isinstance(entry, list) else [entry]:
            if token is not None and type(token) is not int:
                raise ValueError(
                    f"{file}: eos_token_id is {documents.shown(entry)}, but a token's id or a list is needed."
                )
            found += [] if token is None else [token]
    return tuple(dict.fromkeys(found))
