"""What a benchmark gave: its measures by method and by category of prompts, as a table, a figure and JSON."""

import importlib.util
import math
import statistics
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from jaxspec.decode import Stats

BASELINE = "autoregressive"
"""The method that every speedup is over: this library's own plain decoding."""

_SHOWN_RANKS = 4


class Output(NamedTuple):
    """What an arm makes of a prompt.

    Attributes:
        tokens: `[T]` new tokens.
        stats: The measures of their generation; None for a peer, which counts no rounds.
    """

    tokens: np.ndarray
    stats: Stats | None = None


class Sample(NamedTuple):
    """One timed generation.

    Attributes:
        output: What came out.
        seconds: Of all of it, the reading of the prompt included.
        first_seconds: Of the same up to its first round, measured on its own behind it; NaN for a peer.
    """

    output: Output
    seconds: float
    first_seconds: float = float("nan")

    @property
    def seconds_per_token(self) -> float:
        """Seconds of an emitted token."""
        return self.seconds / len(self.output.tokens)

    @property
    def decode_seconds_per_token(self) -> float:
        """The same of the rounds behind the first; NaN where there are none, and for a peer."""
        stats = self.output.stats
        return float("nan") if stats is None else round_ms(self) / 1000 / float(stats.total().tokens_per_round)


class Steps(NamedTuple):
    """Milliseconds of the forwards of one round, each measured alone at its width: all the draft's, the target's."""

    draft_ms: float
    verify_ms: float


class Spread(NamedTuple):
    """A median over prompts, and the quartiles between which the middle half lies."""

    median: float
    first_quartile: float
    third_quartile: float


class Measures(NamedTuple):
    """The measures of a method; those that count rounds are NaN (`acceptance` empty) for a peer.

    Attributes:
        tokens_per_second: Emitted tokens over seconds, of all generations.
        speedup: Over `BASELINE`: the median over prompts of the ratio of seconds per token.
        speedup_spread: Its first and third quartile.
        decode_speedup: The same of the rounds behind the first alone, without the prompt's reading, which is the same
            for all: what a plan predicts.
        tokens_per_round: As `decode.Stats`, like the next five.
        accepted_per_round: Draft tokens accepted a round.
        mean_accepted_run: Draft tokens accepted between two rejections.
        acceptance: By child rank.
        rollback_path: Share of the draft tokens on the verified path that were not committed.
        rollback_all: Share of all draft tokens that were not committed.
        draft_ms: Milliseconds of a round's draft forwards, measured alone.
        verify_ms: Milliseconds of its target forward, measured alone.
        overhead_ms: What is left of a round's milliseconds (see `round_ms`); it may fall below 0 within the noise.
        first_ms: Milliseconds until a prompt is read and the first round done, the median.
        tokens: Emitted tokens of all generations.
        seconds: Of all generations.
    """

    tokens_per_second: float
    speedup: float
    speedup_spread: tuple[float, float]
    decode_speedup: float
    tokens_per_round: float
    accepted_per_round: float
    mean_accepted_run: float
    acceptance: tuple[float, ...]
    rollback_path: float
    rollback_all: float
    draft_ms: float
    verify_ms: float
    overhead_ms: float
    first_ms: float
    tokens: int
    seconds: float


@dataclass(frozen=True, eq=False)
class Report:
    """What was timed.

    Attributes:
        samples: By method, for each prompt its repeats.
        categories: Of the prompts.
        steps: By method; a peer has none.
    """

    samples: Mapping[str, Sequence[Sequence[Sample]]]
    categories: Sequence[str]
    steps: Mapping[str, Steps]

    def measures(self, category: str | None = None) -> dict[str, Measures]:
        """By method the measures over all prompts, or over those of a category."""
        return {name: self._measures(name, category) for name in self.samples}

    def by_category(self) -> dict[str, dict[str, Measures]]:
        """The same for each category, in the order in which they come."""
        return {category: self.measures(category) for category in dict.fromkeys(self.categories)}

    def ratio(self, name: str, over: str = BASELINE, category: str | None = None) -> Spread:
        """How many times as fast as another a method decodes, prompt by prompt."""
        own, other = (_numbers(self._of(one, category), "seconds_per_token") for one in (name, over))
        return spread(pairwise_ratios(own, other))

    def decode_ratio(self, name: str, over: str = BASELINE, category: str | None = None) -> float:
        """As the median of `ratio`, of the rounds behind the first alone; NaN for a peer and where there are none."""
        own, other = (_numbers(self._of(one, category), "decode_seconds_per_token") for one in (name, over))
        return _median(pairwise_ratios(own, other))

    def same_texts(self, name: str, other: str = BASELINE) -> int:
        """For how many prompts both gave the very same tokens."""
        pairs = zip(self.samples[name], self.samples[other], strict=True)
        return sum(np.array_equal(mine[0].output.tokens, theirs[0].output.tokens) for mine, theirs in pairs)

    def _of(self, name: str, category: str | None) -> list[Sequence[Sample]]:
        rows = zip(self.samples[name], self.categories, strict=True)
        return [repeats for repeats, own in rows if category in (None, own)]

    def _measures(self, name: str, category: str | None) -> Measures:
        rows = self._of(name, category)
        samples = [sample for repeats in rows for sample in repeats]
        stats = _total([sample.output.stats for sample in samples])
        tokens = sum(len(sample.output.tokens) for sample in samples)
        seconds = sum(sample.seconds for sample in samples)
        steps = self.steps.get(name, Steps(float("nan"), float("nan")))
        speedup = self.ratio(name, category=category)
        nothing = float("nan")
        return Measures(
            tokens_per_second=tokens / seconds,
            speedup=speedup.median,
            speedup_spread=speedup[1:],
            decode_speedup=self.decode_ratio(name, category=category),
            tokens_per_round=float(stats.tokens_per_round) if stats else nothing,
            accepted_per_round=float(stats.accepted_per_round) if stats else nothing,
            mean_accepted_run=float(stats.mean_accepted_run) if stats else nothing,
            acceptance=tuple(stats.acceptance.tolist()) if stats else (),
            rollback_path=float(stats.rollback_path) if stats else nothing,
            rollback_all=float(stats.rollback_all) if stats else nothing,
            draft_ms=steps.draft_ms,
            verify_ms=steps.verify_ms,
            overhead_ms=_median(map(round_ms, samples)) - steps.draft_ms - steps.verify_ms,
            first_ms=statistics.median(sample.first_seconds for sample in samples) * 1000,
            tokens=tokens,
            seconds=seconds,
        )


def pairwise_ratios(own: np.ndarray, other: np.ndarray) -> np.ndarray:
    """`[P]` how many times as fast as the other each prompt was decoded: the median over its repeats.

    Args:
        own: `[P, R]` seconds per token by prompt and repeat.
        other: `[P, R]` the other's, each measured beside its own.
    """
    return np.median(other / own, axis=1)


def spread(values: np.ndarray) -> Spread:
    """The median and the quartiles of some values, interpolated linearly."""
    first, median, third = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return Spread(median, first, third)


def round_ms(sample: Sample) -> float:
    """Milliseconds of a round, from the rounds behind the first; NaN where there are none, and for a peer."""
    rounds = 1 if sample.output.stats is None else int(sample.output.stats.total().rounds)
    return (sample.seconds - sample.first_seconds) / (rounds - 1) * 1000 if rounds > 1 else float("nan")


def entries(report: Report, configs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`methods` and `by_category`, as entries for JSON: the measures of each method, with its `config`."""

    def of(measures: Mapping[str, Measures]) -> dict[str, Any]:
        return {name: own._asdict() | {"config": configs[name]} for name, own in measures.items()}

    by_category = {category: of(measures) for category, measures in report.by_category().items()}
    return {"methods": of(report.measures()), "by_category": by_category}


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


def check_plot(path: Path) -> None:
    """Whether a figure can be drawn there; asked before anything is timed.

    Raises:
        ValueError: matplotlib is missing, or it is no PNG file's path.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: install the extra by pip install 'jaxspec[plot]', or leave it out")
    if path.suffix.lower() != ".png":
        raise ValueError(f"--plot {path} is no PNG file: give a name that ends in .png")


def plot(report: Report, path: str, title: str) -> None:
    """Draws the speedups by category as bars, with the middle half of the prompts, into a PNG file."""
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports] (the extra `plot`)

    groups = report.by_category()
    if len(groups) > 1:
        groups["all"] = report.measures()
    names = [name for name in report.samples if name != BASELINE] or [BASELINE]
    figure = Figure(figsize=(max(6.4, 1.2 + 0.35 * len(groups) * (len(names) + 1)), 4.2), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        medians = np.array([measures[name].speedup for measures in groups.values()])
        quartiles = np.array([measures[name].speedup_spread for measures in groups.values()])
        centres = np.arange(len(groups)) + (place - (len(names) - 1) / 2) * width
        lines = np.abs(quartiles.T - medians)
        axes.bar(centres, medians, width, yerr=lines, capsize=2, error_kw={"linewidth": 0.8}, label=name)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(groups)), list(groups), rotation=30, ha="right")
    axes.set_ylabel(f"speedup over {BASELINE}")
    axes.set_title("\n".join(textwrap.wrap(title, 90)), fontsize="small")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)


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


def _numbers(rows: Sequence[Sequence[Sample]], name: str) -> np.ndarray:
    """`[P, R]` of a sample's number by prompt and repeat."""
    return np.array([[getattr(sample, name) for sample in repeats] for repeats in rows])


def _median(values: Iterable[float]) -> float:
    """The median of those that are numbers; NaN where none is."""
    return statistics.median([value for value in values if not math.isnan(value)] or [float("nan")])


def _total(stats: Sequence[Stats | None]) -> Stats | None:
    """The measures of all rounds together; None where there are none."""
    total = None
    for one in stats:
        if one is not None:
            total = one if total is None else total.merged(one)
    return None if total is None else total.total()
