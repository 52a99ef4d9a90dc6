"""What the command line shows: streamed text, tables, trees and JSON on stdout, progress and remarks on stderr."""

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.color import ColorSystem
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.style import Style
from rich.table import Table
from rich.text import Text

from jaxspec import plan, tree
from jaxspec.fetching import report as remark
from jaxspec.profiles import Profile, library_versions, machine_description

if TYPE_CHECKING:
    from jaxspec.decode import Chunk
    from jaxspec.parity import Parity
    from jaxspec.ranking import Prediction

ACCEPTED = Style(color="green")
OWN = Style(color="yellow", bold=True)
BEST = "bold green"

_FILE_WIDTH = 200
"""Columns of what is written to a file or a pipe, which no window limits."""

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


def stream(chunks: Iterable["Chunk"], decode: Callable[[Sequence[int]], str], show: bool) -> None:
    """Writes one row's text to stdout while it is decoded, and a line about it to stderr.

    Args:
        chunks: From `decode.stream`.
        decode: The text of token ids.
        show: Whether accepted draft tokens and the target's own tokens have colours.
    """
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
        _write(text.feed(tokens[:accepted]), ACCEPTED if coloured else None)
        _write(text.feed(tokens[accepted:]), OWN if coloured else None)
    _write(text.finish(), None)
    _write("\n", None)
    remark(_summary(moments, counts))


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


def print_json(value: Mapping[str, Any]) -> None:
    """Writes one JSON object to stdout; numbers that are not finite become null."""
    print(json.dumps(finite(value), allow_nan=False))


def finite(value: Any) -> Any:
    """A value as JSON can state it: numbers that are not finite are None, numpy's are Python's, tuples are lists."""
    if isinstance(value, Mapping):
        return {str(key): finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def save_result(file: str | os.PathLike[str], settings: Mapping[str, Any], **found: Any) -> None:
    """Writes what a script found as JSON, with its settings, the machine and the versions."""
    stated = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    result = {"settings": stated, **found, "machine": machine_description(), "versions": library_versions()}
    Path(file).write_text(json.dumps(finite(result), indent=1) + "\n", encoding="utf-8")


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar for each thing that is being done, on stderr; gives a `base.Progress`."""
    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(TextColumn("{task.description}"), *columns, console=Console(stderr=True)) as bars:
        tasks = {}

        def advance(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield advance


def print_profile(profile: Profile, path: str) -> None:
    """The acceptance by rank and depth with its standard errors, the confidence's in one line, and the step times."""
    console = results_console()
    values = np.atleast_2d(profile.acceptance)
    errors = np.atleast_2d(profile.standard_errors if profile.standard_errors is not None else np.zeros_like(values))
    by_depth = np.ndim(profile.acceptance) == 2
    table = Table(title=f"Acceptance at temperature {profile.temperature:g}, ± standard error")
    table.add_column("child", justify="right")
    for depth in range(len(values)):
        table.add_column(f"depth {depth + 1}" if by_depth else "all depths", justify="right")
    for rank in range(values.shape[1]):
        cells = (f"{values[row, rank]:.3f} ±{errors[row, rank]:.3f}" for row in range(len(values)))
        table.add_row(f"rank {rank}", *cells)
    for name, numbers, digits in (("none", profile.rejection, 3), ("positions", profile.counts, 0)):
        if numbers is not None:
            table.add_row(name, *(f"{number:.{digits}f}" for number in np.atleast_1d(numbers)), style="dim")
    console.print(table)
    if profile.calibration is not None:
        shares, accepted = np.moveaxis(np.asarray(profile.calibration), -1, 0)
        fresh, other = (shares * accepted).sum(1)
        console.print(
            f"accepted of a chain: {fresh:.3f} right behind a rejection, {other:.3f} elsewhere", highlight=False
        )
    times = Table(title="Milliseconds of one forward")
    times.add_column("tokens", justify="right")
    sizes = sorted({*profile.verify_ms, *profile.draft_ms})
    for size in sizes:
        times.add_column(str(size), justify="right")
    for name, entries in (("target", profile.verify_ms), ("draft", profile.draft_ms)):
        times.add_row(name, *(f"{entries[size]:.1f}" if size in entries else "" for size in sizes))
    console.print(times)
    console.print(f"Written to {path}", soft_wrap=True, highlight=False, markup=False)


def print_plan(chosen: plan.Plan, profile: Profile, sizes: Sequence[int], depths: Sequence[int], speedups: Any) -> None:
    """The chosen tree, what is expected of it, and the speedups by size and depth, the best of them marked."""
    console = results_console()
    console.print(tree.draw(chosen.tree, plan.node_scores(chosen.tree, profile.acceptance)))
    shape = f"{chosen.tree.size} nodes, depth {chosen.tree.depth}" if chosen.tree.size > 1 else "no draft is worth it"
    console.print(f"method           {chosen.method} ({shape})", highlight=False)
    console.print(f"expected tokens  {chosen.expected_tokens:.3f} a round of {chosen.round_ms:.1f} ms", highlight=False)
    console.print(f"expected speedup {chosen.expected_speedup:.3f} over plain decoding", highlight=False)
    if not sizes:
        return
    table = Table(title="Predicted speedup by size (nodes with the root) and largest depth (edges)")
    table.add_column("size", justify="right")
    for depth in depths:
        table.add_column(f"≤ {depth}", justify="right")
    best = np.unravel_index(np.nanargmax(speedups), speedups.shape) if np.isfinite(speedups).any() else None
    for row, size in enumerate(sizes):
        cells = [Text(f"{value:.3f} " if math.isfinite(value) else "– ") for value in speedups[row]]
        if best is not None and row == best[0]:
            cells[best[1]] = Text(f"{speedups[best]:.3f}*", BEST)
        table.add_row(str(size), *cells)
    console.print(table)


def print_ranking(ranked: Sequence["Prediction"]) -> None:
    """Every method's predicted speed at its best setting."""
    table = Table("method", "setting", title="Predicted speedup of every method at its best setting")
    for heading in ("tokens a round", "one device", "two devices"):
        table.add_column(heading, justify="right")
    for one in ranked:
        setting = f"{one.tree.size} nodes" if one.tree else f"length {one.length}" if one.length else ""
        setting += f", {one.max_branches} branches" if one.max_branches else ""
        setting += f", epsilon {one.epsilon:g}" if one.epsilon is not None else ""
        overlap = f"{one.overlap_speedup:.3f}" if one.overlap_speedup else "–"
        table.add_row(one.method, setting, f"{one.expected_tokens:.3f}", f"{one.speedup:.3f}", overlap)
    results_console().print(table)


def parity_entries(results: Mapping[str, "Parity"], names: Sequence[str]) -> dict[str, Any]:
    """The results of `check` as entries for JSON: those of all methods, then each one's.

    Args:
        results: By method.
        names: Of the prompts, as their file has them.
    """

    def entries(parity: "Parity") -> dict[str, Any]:
        forks = [fork._asdict() | {"id": names[fork.prompt]} for fork in parity.first_forks]
        return {"forks": parity.forks, "prompts": parity.prompts, "tokens": parity.tokens, "first_forks": forks}

    by_method = {method: entries(parity) for method, parity in results.items()}
    first_forks = [{"method": method} | fork for method, entry in by_method.items() for fork in entry["first_forks"]]
    any_method = next(iter(by_method.values()))
    return any_method | {"forks": len(first_forks), "first_forks": first_forks, "by_method": by_method}


def print_parity(results: Mapping[str, "Parity"], names: Sequence[str], text: Callable[[Sequence[int]], str]) -> None:
    """For each method how many prompts fork, and where.

    Args:
        results: By method.
        names: Of the prompts.
        text: The text of token ids.
    """
    console = results_console()
    for method, parity in results.items():
        verdict = "no forks" if not parity.forks else f"{parity.forks} forks"
        style = "green" if not parity.forks else "bold red"
        counts = f" on {parity.prompts} prompts, {parity.tokens} tokens"
        console.print(Text.assemble((method, "bold"), ": ", (verdict, style), counts))
        if not parity.forks:
            continue
        table = Table("prompt", "id", "position", "plain", "method", "gap of logits")
        for fork in parity.first_forks:
            plain, token = (repr(text([one])) if one >= 0 else "(ended)" for one in (fork.plain, fork.token))
            gap = f"{fork.gap:.6f}" if math.isfinite(fork.gap) else "–"
            table.add_row(str(fork.prompt), Text(names[fork.prompt]), str(fork.position), Text(plain), Text(token), gap)
        console.print(table)


def results_console() -> Console:
    """Results' console, without a window's limit where there is no window."""
    console = Console()
    return console if console.is_terminal else Console(width=_FILE_WIDTH)
