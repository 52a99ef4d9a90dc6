"""Text that grows with its tokens: shown when it is whole, and cut where a stop string begins; words as tokens."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

_BROKEN = "\ufffd"


class TextStream:
    """A text while its tokens come: a character is shown when all of its tokens are there, and once.

    Where there are stop strings, what may still become one is held back, and the text ends in front of the first that
    is complete. They are looked for at every token, across the borders of what is fed.

    Attributes:
        tokens: Those of the text so far; the last one completed the stop string, if one was found.
        stop: The stop string that was found; None as long as none was.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        """Begins empty.

        Args:
            decode: The text of token ids, from the first one on.
            stops: Strings that end the text.

        Raises:
            ValueError: A stop string that is empty, or none.
        """
        if isinstance(stops, str) or not all(isinstance(stop, str) and stop for stop in stops):
            raise ValueError(f"stop strings {stops!r}: give a list of texts, each of at least one character.")
        self.tokens: list[int] = []
        self.stop: str | None = None
        self._decode, self._stops, self._shown = decode, tuple(stops), ""

    def feed(self, tokens: Iterable[int]) -> str:
        """What can be shown anew; nothing behind a stop string."""
        if not self._stops:
            self.tokens += tokens
            return self._advance(self._settled())
        shown = ""
        for token in tokens if self.stop is None else ():
            self.tokens.append(token)
            shown += self._advance(self._unstopped(self._settled()))
            if self.stop is not None:
                break
        return shown

    def finish(self) -> str:
        """The rest, as no more tokens come: what was held back too, unless a stop string was found."""
        if self.stop is not None:
            return ""
        text = self._decode(self.tokens)
        self._find(text)
        return self._advance(text if self.stop is None else text[: text.index(self.stop)])

    @property
    def text(self) -> str:
        """What has been shown so far."""
        return self._shown

    def _settled(self) -> str:
        """The text without a character at its end that further tokens may complete."""
        return self._decode(self.tokens).rstrip(_BROKEN)

    def _unstopped(self, text: str) -> str:
        """The text up to a stop string, or to what may become one."""
        self._find(text)
        if self.stop is not None:
            return text[: text.index(self.stop)]
        held = (size for stop in self._stops for size in range(1, len(stop)) if text.endswith(stop[:size]))
        return text[: len(text) - max(held, default=0)]

    def _find(self, text: str) -> None:
        """Keeps the stop string that begins first, the longest among those that begin at one place."""
        found = [(text.index(stop), -len(stop), stop) for stop in self._stops if stop in text]
        if found:
            self.stop = min(found)[2]

    def _advance(self, text: str) -> str:
        """What is new in a text. Where a decoder changes what was shown already, that stays, and the rest follows."""
        if self._shown.startswith(text):  # its end was decoded anew, together with bytes that are not complete
            return ""
        same = next((i for i, (old, new) in enumerate(zip(self._shown, text, strict=False)) if old != new), None)
        new = text[len(self._shown) if same is None else same :]
        self._shown = text
        return new


def word_ids(tokenizer: Any, word: str) -> list[list[int]]:
    """The token ids of a word as its tokenizer splits it, alone and behind a space.

    Other ways to split the same letters are not among them.

    Raises:
        ValueError: A word without tokens.
    """
    both = [list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in (word, f" {word}")]
    if not both[0]:
        raise ValueError(f"the word {word!r} has no tokens; give at least one character")
    return both if both[0] != both[1] else both[:1]
