"""A trained head's record as tables; the record is what `hrad.json` holds."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from jaxspec.train.hrad import cards


def print_head(console: Console, record: Mapping[str, Any]) -> None:
    """The tables of a head's record, as it stands in its JSON file."""
    for title, evaluation in cards.evaluations(record):
        lengths = evaluation["lengths"]
        console.print(f"[bold]{title}[/bold]: {evaluation['rounds']} rounds", highlight=False)
        console.print(_scores_table(evaluation["scores"]))
        confusion = Table("true class", *(f"says {name}" for name in cards.CLASSES), title="Confusion of H-RAD")
        for name, row in zip(cards.CLASSES, evaluation["scores"]["hrad"]["confusion"], strict=True):
            confusion.add_row(name, *map(str, row))
        console.print(confusion)
        cuts = Table("cut", "tokens a round", "rollback", title="Estimates, with one candidate at a fork")
        for row in cards.cut_rows(evaluation["cuts"]):
            cuts.add_row(*row)
        console.print(cuts)
        histogram = Table("accepted", *map(str, range(len(lengths["counts"]))), title="Rounds by accepted length")
        histogram.add_row("found", *map(str, lengths["counts"]))
        histogram.add_row(f"geometric, α={lengths['alpha']:.3f}", *(f"{one:.0f}" for one in lengths["geometric"]))
        console.print(histogram)
    for line in cards.facts(record):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _scores_table(scores: Mapping[str, Any]) -> Table:
    table = Table("predictor", title="Accuracy, and by true class")
    for name in ("accuracy", "balanced", *cards.CLASSES):
        table.add_column(name, justify="right")
    for row in cards.score_rows(scores):
        table.add_row(*row)
    return table
