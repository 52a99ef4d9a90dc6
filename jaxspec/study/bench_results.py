"""What a benchmark gave: its measures by method and by category of prompts, and as entries for JSON."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxspec.decode import Stats

BASELINE = "autoregressive"
"""The method that every speedup is over: this library's own plain decoding."""


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
