"""Prompts of files, and how they are cut to a number of tokens with their chat template whole."""

from typing import TYPE_CHECKING, Any

from jaxspec.catalogue.prompt_files import MT_BENCH, Prompt, read

if TYPE_CHECKING:
    from jaxspec.pairs.loading import Pair

__all__ = ["MT_BENCH", "Prompt", "encode", "read"]

_UNKNOWN_CHARACTER = "\ufffd"


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


def _cut(tokenizer: Any, text: str, excess: int) -> str:
    """The text without its last `excess` tokens, and without a character that this leaves broken; always shorter."""
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    kept = tokenizer.decode(tokens[: max(0, len(tokens) - excess)], clean_up_tokenization_spaces=False)
    kept = kept.rstrip(_UNKNOWN_CHARACTER)
    return kept if len(kept) < len(text) else text[:-1]
