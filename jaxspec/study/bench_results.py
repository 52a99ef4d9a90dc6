"""What a benchmark gave: its measures by method and by category of prompts, and as entries for JSON."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from jaxspec.decode import Stats
from jaxspec.decode import stats as counted
from jaxspec.decode.stats import Measure

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


class Timed(NamedTuple):
    """What the measures of a method are read from.

    Attributes:
        samples: Its generations.
        stats: Of all of them together; None for a peer, which counts no rounds.
        steps: Its forwards.
        ratio: How many times as fast as `BASELINE` it decodes, prompt by prompt.
        decode_ratio: The median of the same of the rounds behind the first alone.
    """

    samples: Sequence[Sample]
    stats: Stats | None
    steps: Steps
    ratio: Spread
    decode_ratio: float

    @property
    def tokens(self) -> int:
        """Emitted tokens of all generations."""
        return sum(len(sample.output.tokens) for sample in self.samples)

    @property
    def seconds(self) -> float:
        """Of all generations."""
        return sum(sample.seconds for sample in self.samples)

    @property
    def overhead_ms(self) -> float:
        """What is left of a round's milliseconds; it may fall below 0 within the noise."""
        return _median(map(round_ms, self.samples)) - self.steps.draft_ms - self.steps.verify_ms

    @property
    def first_ms(self) -> float:
        """Milliseconds until a prompt is read and the first round done, the median."""
        return statistics.median(sample.first_seconds for sample in self.samples) * 1000


def _of_counts(measure: Measure) -> Callable[[Timed], Any]:
    """A measure that counts rounds, of what was timed."""

    def of(timed: Timed) -> Any:
        return measure.nothing if timed.stats is None else measure.of(timed.stats.counts).tolist()

    return of


MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        "tokens_per_second": Measure(lambda timed: timed.tokens / timed.seconds, "tokens/s", 1),
        # Over `BASELINE`: the median over prompts of the ratio of seconds per token, and its first and third quartile.
        "speedup": Measure(lambda timed: timed.ratio.median, "speedup", 2),
        "speedup_spread": Measure(lambda timed: timed.ratio[1:], "middle half", 2),
        # Without the prompt's reading, which is the same for all: what a plan predicts.
        "decode_speedup": Measure(lambda timed: timed.decode_ratio, "speedup behind the prompt", 2),
        **{name: measure._replace(of=_of_counts(measure)) for name, measure in counted.MEASURES.items()},
        # A round's forwards, each measured alone, and what is left of its time.
        "draft_ms": Measure(lambda timed: timed.steps.draft_ms, "draft, ms a round", 1),
        "verify_ms": Measure(lambda timed: timed.steps.verify_ms, "verify, ms a round", 1),
        "overhead_ms": Measure(lambda timed: timed.overhead_ms, "overhead, ms a round", 1),
        "first_ms": Measure(lambda timed: timed.first_ms, "first round at, ms", 0),
        "tokens": Measure(lambda timed: timed.tokens, "tokens", 0),
        "seconds": Measure(lambda timed: timed.seconds, "seconds", 1),
    }
)
"""The measures of a method by name, each read from `Timed`: those of time, and among them those that count rounds."""

Measures = Mapping[str, Any]
"""The values of `MEASURES` by name, as JSON has them."""


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
        samples = [sample for repeats in self._of(name, category) for sample in repeats]
        timed = Timed(
            samples,
            _total([sample.output.stats for sample in samples]),
            self.steps.get(name, Steps(float("nan"), float("nan"))),
            self.ratio(name, category=category),
            self.decode_ratio(name, category=category),
        )
        return {key: measure.of(timed) for key, measure in MEASURES.items()}


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
        return {name: dict(own) | {"config": configs[name]} for name, own in measures.items()}

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
