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
from jaxspec.pairs.texts import TextStream

if TYPE_CHECKING:
    from jaxspec.decode import Chunk


ACCEPTED = Style(color="green")


OWN = Style(color="yellow", bold=True)


class Sample:
    """One row's text as it comes from `decode.stream`.

    Attributes:
        text: The text and its tokens.
        finish_reason: Why it ended; "stop" too where a stop string did. None as long as it goes on.
        pieces: What was shown anew, each with its style, and not written yet.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str]) -> None:
        self.text = TextStream(decode, stops)
        self.finish_reason: str | None = None
        self.pieces: list[tuple[str, Style | None]] = []

    def take(self, chunk: "Chunk", row: int) -> int:
        """Takes what a round emitted and ends the row at a stop string; how many of the tokens belong to the text."""
        before, accepted = len(self.text.tokens), chunk.num_accepted[row]
        if self.finish_reason is None:
            self.pieces.append((self.text.feed(chunk[row][:accepted]), ACCEPTED))
            self.pieces.append((self.text.feed(chunk[row][accepted:]), OWN))
            self.finish_reason = chunk.finish_reasons[row]
            if self.finish_reason is not None:
                self.pieces.append((self.text.finish(), None))
            if self.text.stop is not None:
                self.finish_reason = "stop"
                chunk.end(row)
        return len(self.text.tokens) - before


def stream(chunks: Iterable["Chunk"], samples: Sequence[Sample], show: bool) -> None:
    """Writes texts to stdout while they are decoded, one after another, and a line about them to stderr.

    Args:
        chunks: From `decode.stream`.
        samples: One for each row; the first that goes on is written as it comes, those behind it when it has ended.
        show: Whether accepted draft tokens and the target's own tokens have colours.
    """
    coloured = show and _has_colours()
    if show:
        _legend(coloured)
    start = time.perf_counter()
    moments, counts, shown = [], [], 0
    _head(0, samples)
    try:
        for chunk in chunks:
            moments.append(time.perf_counter() - start)
            counts.append([sample.take(chunk, row) for row, sample in enumerate(samples)])
            while shown < len(samples) and _show(samples[shown], coloured):
                shown += 1
                _head(shown, samples)
    except KeyboardInterrupt:
        _write("\n", None)
        remark(f"interrupted: {_summary(moments, counts)}")
        raise
    remark(_summary(moments, counts))


def broken(num_tokens: int) -> str:
    """What to say of a row that ended with an error behind so many tokens."""
    return (
        f"the target's logits for new token {num_tokens + 1} hold NaN or +inf, or allow no token: the text ends behind "
        f"{num_tokens} tokens; look at the model's weights and at --dtype"
    )


def _show(sample: Sample, coloured: bool) -> bool:
    """Writes what is new of a text; whether it has ended."""
    for piece, style in sample.pieces:
        _write(piece, style if coloured else None)
    sample.pieces.clear()
    if sample.finish_reason is not None:
        _write("\n", None)
    return sample.finish_reason is not None


def _head(index: int, samples: Sequence[Sample]) -> None:
    if len(samples) > 1 and index < len(samples):
        _write(f"--- {index + 1} of {len(samples)} ---\n", None)


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


def _summary(moments: Sequence[float], counts: Sequence[Sequence[int]]) -> str:
    """One line on the rounds' `counts` of each text: the first apart, as the compiling and the prompt are in it."""
    if not counts:
        return "0 tokens"
    total, num_rounds = sum(map(sum, counts)), sum(count > 0 for taken in counts for count in taken)
    line = f"{total} tokens, {total / max(num_rounds, 1):.2f} tokens/round"
    line += f"; first round {moments[0]:.2f} s, with compiling"
    if len(counts) > 1:
        line += f"; then {(total - sum(counts[0])) / max(moments[-1] - moments[0], 1e-9):.1f} tokens/s"
    return line
