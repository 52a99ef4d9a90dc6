"""Text on stdout while it is decoded, and a line about it on stderr."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from rich.text import Text

from jaxspec.cli.show.terminal import results_console
from jaxspec.pairs.fetching import remark

if TYPE_CHECKING:
    from jaxspec.decode import Chunk


ACCEPTED = Style(color="green")


OWN = Style(color="yellow", bold=True)


_BROKEN = "\ufffd"


class Detokeniser:
    """Text that grows with its tokens, and shows a character only when all of its tokens are there.

    Args:
        decode: The text of token ids, from the first one on.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._shown = ""

    def feed(self, tokens: Iterable[int]) -> str:
        """What can be shown anew: a character that may still be completed is held back."""
        self._tokens += tokens
        return self._advance(self._decode(self._tokens).rstrip(_BROKEN))

    def finish(self) -> str:
        """The rest, as no more tokens come."""
        return self._advance(self._decode(self._tokens))

    def _advance(self, text: str) -> str:
        if not text.startswith(self._shown):  # its end was decoded anew, together with bytes that are not complete
            return ""
        new = text[len(self._shown) :]
        self._shown = text
        return new


def stream(chunks: Iterable["Chunk"], decode: Callable[[Sequence[int]], str], show: bool) -> str | None:
    """Writes one row's text to stdout while it is decoded, and a line about it to stderr; says why it ended.

    Args:
        chunks: From `decode.stream`.
        decode: The text of token ids.
        show: Whether accepted draft tokens and the target's own tokens have colours.
    """
    reason = None
    coloured = show and _has_colours()
    if show:
        _legend(coloured)
    text = Detokeniser(decode)
    start = time.perf_counter()
    moments, counts = [], []
    for chunk in chunks:
        moments.append(time.perf_counter() - start)
        tokens, accepted = chunk[0], chunk.num_accepted[0]
        counts.append(len(tokens))
        reason = chunk.finish_reasons[0]
        _write(text.feed(tokens[:accepted]), ACCEPTED if coloured else None)
        _write(text.feed(tokens[accepted:]), OWN if coloured else None)
    _write(text.finish(), None)
    _write("\n", None)
    remark(_summary(moments, counts))
    return reason


def _write(text: str, style: Style | None) -> None:
    """Exactly this text (rich's own printing would fold lines and expand tabs), as far as stdout's encoding has it."""
    encoding = sys.stdout.encoding or "utf-8"
    text = text.encode(encoding, "replace").decode(encoding)
    sys.stdout.write(text if style is None else style.render(text, color_system=ColorSystem.STANDARD))
    sys.stdout.flush()


def _has_colours() -> bool:
    console = results_console()
    return console.is_terminal and console.color_system is not None and not console.no_color


def _legend(coloured: bool) -> None:
    if not coloured:
        remark("--show has no effect here: stdout is not a terminal with colours")
        return
    legend = Text.assemble(("accepted draft tokens", ACCEPTED), "  ", ("the target's own: corrections, bonus", OWN))
    Console(stderr=True).print(legend)


def _summary(moments: Sequence[float], counts: Sequence[int]) -> str:
    """One line: the first round apart, because the compiling and the prompt are in it."""
    total = sum(counts)
    line = f"{total} tokens, {total / len(counts):.2f} tokens/round; first round {moments[0]:.2f} s, with compiling"
    if len(counts) > 1:
        line += f"; then {(total - counts[0]) / max(moments[-1] - moments[0], 1e-9):.1f} tokens/s"
    return line
