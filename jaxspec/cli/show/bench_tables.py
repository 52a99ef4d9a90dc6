"""A benchmark as tables."""

import math
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from jaxspec.study.bench_results import BASELINE, MEASURES, Measures, Report

_SHOWN_RANKS = 4

_NOT_SHOWN = ("seconds",)


def print_report(console: Console, report: Report, title: str) -> None:
    """A table of all measures by method, and one of the speedups by category where there are several."""
    measures = report.measures()
    table = Table("", title=title, title_justify="left")
    for name in measures:
        table.add_column(name, justify="right")
    for name, measure in MEASURES.items():
        if name not in _NOT_SHOWN:
            table.add_row(measure.label, *(_cell(name, own) for own in measures.values()))
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
            _cell("tokens_per_second", own)
            if name == BASELINE
            else f"{_cell('speedup', own)} {_cell('speedup_spread', own)}"
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


def _cell(name: str, own: Measures) -> str:
    """A measure in words; a dash where there is none."""
    value, digits = own[name], MEASURES[name].digits
    if name == "speedup_spread":
        return f"({value[0]:.{digits}f}-{value[1]:.{digits}f})"
    values = value[:_SHOWN_RANKS] if isinstance(value, list | tuple) else (value,)
    return " ".join("–" if math.isnan(one) else f"{one:.{digits}f}" for one in values) or "–"
