"""Where results and progress go: stdout and stderr."""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from jaxspec import records

_FILE_WIDTH = 200
"""Columns of what is written to a file or a pipe, which no window limits."""


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


def results_console() -> Console:
    """Results' console, without a window's limit where there is no window."""
    console = Console()
    return console if console.is_terminal else Console(width=_FILE_WIDTH)


def print_json(value: Mapping[str, Any]) -> None:
    """Writes one JSON object to stdout; numbers that are not finite become null."""
    print(json.dumps(records.finite(value), allow_nan=False))
