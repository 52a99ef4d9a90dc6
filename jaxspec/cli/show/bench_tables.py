"""A benchmark as tables."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from jaxspec.study.bench_results import BASELINE, Measures, Report

_SHOWN_RANKS = 4


def print_report(console: Console, report: Report, title: str) -> None:
    """A table of all measures by method, and one of the speedups by category where there are several."""
    measures = report.measures()
    table = Table("", title=title, title_justify="left")
    for name in measures:
        table.add_column(name, justify="right")
    for label, cell in _ROWS.items():
        table.add_row(label, *(cell(own) for own in measures.values()))
    console.print(table)
    by_category = report.by_category()
    if len(by_category) == 1:
        return
    table = Table("category", title="Speedup by category (middle half of the prompts)", title_justify="left")
    table.add_column("prompts", justify="right")
    for name in measures:
        table.add_column(f"{name}, tokens/s" if name == BASELINE else name, justify="right")
    for category, of_category in (by_category | {"all": measures}).items():
        count = sum(category in ("all", own) for own in report.categories)
        cells = (
            f"{own.tokens_per_second:.1f}" if name == BASELINE else f"{own.speedup:.2f} {_range(own)}"
            for name, own in of_category.items()
        )
        table.add_row(category, str(count), *cells, end_section=category == [*by_category][-1])
    console.print(table)


def heading(config: Mapping[str, Any]) -> str:
    """What was timed, in a line, from the settings as the JSON states them."""
    stops = "stop ids end a text" if config["stop_ids"] else "stop ids off"
    count = sum(config["categories"].values())
    return (
        f"{count} prompts × {config['repeats']}, {config['max_new_tokens']} new tokens ({stops}), {config['dtype']}, "
        f"temperature {config['temperature']:g}; the time has the prompt's reading in it, but no compiling"
    )


def _range(own: Measures) -> str:
    return "({:.2f}-{:.2f})".format(*own.speedup_spread)


def _number(name: str, digits: int) -> Callable[[Measures], str]:
    """A cell with one of the measures; a dash where there is none."""

    def cell(own: Measures) -> str:
        value = getattr(own, name)
        return "–" if math.isnan(value) else f"{value:.{digits}f}"

    return cell


_ROWS: dict[str, Callable[[Measures], str]] = {
    "tokens/s": _number("tokens_per_second", 1),
    "speedup": _number("speedup", 2),
    "middle half": _range,
    "speedup behind the prompt": _number("decode_speedup", 2),
    "tokens a round": _number("tokens_per_round", 2),
    "accepted a round": _number("accepted_per_round", 2),
    "accepted run": _number("mean_accepted_run", 2),
    "acceptance by rank": lambda own: " ".join(f"{value:.2f}" for value in own.acceptance[:_SHOWN_RANKS]) or "–",
    "rollback, path": _number("rollback_path", 2),
    "rollback, all": _number("rollback_all", 2),
    "draft, ms a round": _number("draft_ms", 1),
    "verify, ms a round": _number("verify_ms", 1),
    "overhead, ms a round": _number("overhead_ms", 1),
    "first round at, ms": _number("first_ms", 0),
    "tokens": _number("tokens", 0),
}
