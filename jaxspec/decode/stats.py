"""What rounds add up to: counts inside the compiled loop, and the measures that are read from them.

A new measure is a line of `MEASURES`: `Stats`, the summary in JSON and the benchmark's tables read that one table.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.decode.state import Decoder, Info


class Counts(NamedTuple):
    """Sums over the rounds of one row (`[]`, or `[B]` for a batch; further axes as stated), or of a batch.

    Attributes:
        rounds: Rounds that the row took part in.
        emitted: New tokens, the same number as its `lengths`.
        accepted: Of these, the ones that the draft proposed.
        drafted: Tokens proposed.
        path_drafted: Tokens proposed on the verified path, continued through first children.
        path_rolled_back: Of those, the ones that were not committed.
        rejections: Rounds that ended because every child at a position failed.
        accepted_lengths: `[depth + 1]` rounds by the number of draft tokens that they accepted.
        visits: `[depth]` nodes whose children were tested, by depth.
        accept: `[depth, C]` sums of their acceptance probabilities by child rank.
        accept_squares: `[depth, C]` sums of their squares.
        tally: What a method counts beside (`Info.tally`).
    """

    rounds: jax.Array | np.ndarray
    emitted: jax.Array | np.ndarray
    accepted: jax.Array | np.ndarray
    drafted: jax.Array | np.ndarray
    path_drafted: jax.Array | np.ndarray
    path_rolled_back: jax.Array | np.ndarray
    rejections: jax.Array | np.ndarray
    accepted_lengths: jax.Array | np.ndarray
    visits: jax.Array | np.ndarray
    accept: jax.Array | np.ndarray
    accept_squares: jax.Array | np.ndarray
    tally: Any = ()


def zeros(decoder: Decoder) -> Counts:
    """Counts of a row before its first round."""
    none, nothing = jnp.zeros((), jnp.int32), Info.nothing(decoder)
    return Counts(
        rounds=none,
        emitted=none,
        accepted=none,
        drafted=none,
        path_drafted=none,
        path_rolled_back=none,
        rejections=none,
        accepted_lengths=jnp.zeros(decoder.depth + 1, jnp.int32),
        visits=jnp.zeros(decoder.depth, jnp.int32),
        accept=nothing.accept,
        accept_squares=nothing.accept,
        tally=nothing.tally,
    )


def add(counts: Counts, info: Info) -> Counts:
    """Counts with one more round; a round that emitted nothing belongs to a finished row and adds nothing."""
    took_part = (info.num_emitted > 0).astype(jnp.int32)
    accept = jnp.where(info.is_visited[:, None], info.accept, 0.0)
    return Counts(
        rounds=counts.rounds + took_part,
        emitted=counts.emitted + info.num_emitted,
        accepted=counts.accepted + info.num_accepted,
        drafted=counts.drafted + info.num_drafted,
        path_drafted=counts.path_drafted + info.path_drafted,
        path_rolled_back=counts.path_rolled_back + info.path_rolled_back,
        rejections=counts.rejections + info.is_rejected.astype(jnp.int32),
        accepted_lengths=jnp.asarray(counts.accepted_lengths).at[info.num_accepted].add(took_part),
        visits=counts.visits + info.is_visited.astype(jnp.int32),
        accept=counts.accept + accept,
        accept_squares=counts.accept_squares + accept**2,
        tally=jax.tree.map(jnp.add, counts.tally, info.tally),
    )


def of_rounds(decoder: Decoder, reports: Sequence[Info]) -> "Stats":
    """The measures of rounds by what each of them reported, with a leading axis of B; at least one."""
    batch = np.shape(reports[0].num_emitted)
    counts = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*batch, *leaf.shape)), zeros(decoder))
    return Stats(jax.device_get(functools.reduce(_add_rows, reports, counts)))


def cut(info: Info, row: int, num_kept: int) -> Info:
    """A batch's report, of which a row took the first tokens only: the others are rolled back, and reject nothing."""
    lost = int(info.num_accepted[row]) - min(num_kept, int(info.num_accepted[row]))
    if num_kept >= info.num_emitted[row]:
        return info
    is_row = np.arange(len(info.num_emitted)) == row
    return info._replace(
        num_emitted=np.where(is_row, num_kept, info.num_emitted),
        num_accepted=np.where(is_row, info.num_accepted - lost, info.num_accepted),
        path_rolled_back=np.where(is_row, info.path_rolled_back + lost, info.path_rolled_back),
        is_rejected=info.is_rejected & ~is_row,
    )


@jax.jit
def _add_rows(counts: Counts, info: Info) -> Counts:
    return jax.vmap(add)(counts, info)


class Measure(NamedTuple):
    """One measure.

    Attributes:
        of: Its value, from what it is read from.
        label: Of its row in tables.
        digits: Behind the point there.
        nothing: In place of the value where there is nothing to read it from.
    """

    of: Callable[[Any], Any]
    label: str
    digits: int
    nothing: Any = float("nan")


MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        # Emitted tokens a round, the correction or bonus token among them.
        "tokens_per_round": Measure(lambda counts: _ratio(counts.emitted, counts.rounds), "tokens a round", 2),
        "accepted_per_round": Measure(lambda counts: _ratio(counts.accepted, counts.rounds), "accepted a round", 2),
        # Between two rejections (the M of the papers); all accepted tokens where there was none.
        "mean_accepted_run": Measure(
            lambda counts: _ratio(counts.accepted, np.maximum(counts.rejections, 1)), "accepted run", 2
        ),
        # `[…, C]` mean acceptance probability by child rank, over all tested nodes.
        "acceptance": Measure(lambda counts: _by_rank(counts), "acceptance by rank", 2, nothing=()),
        # Share of the draft tokens on the verified path that were not committed.
        "rollback_path": Measure(
            lambda counts: _ratio(counts.path_rolled_back, counts.path_drafted), "rollback, path", 2
        ),
        # Share of all draft tokens that were not committed.
        "rollback_all": Measure(
            lambda counts: _ratio(np.subtract(counts.drafted, counts.accepted), counts.drafted), "rollback, all", 2
        ),
    }
)
"""The measures by name, each read from `Counts`."""


class Stats(NamedTuple):
    """The measures of a generation, each `[B]`, or one for all where taken from `total()`.

    Every name of `MEASURES` is an attribute.

    Attributes:
        counts: The sums that they are read from, as numpy arrays.
    """

    counts: Counts

    def __getattr__(self, name: str) -> np.ndarray:
        if name not in MEASURES:
            raise AttributeError(f"Stats has no {name!r}; the measures are {', '.join(MEASURES)}.")
        return MEASURES[name].of(self.counts)

    @property
    def rounds(self) -> np.ndarray:
        """Rounds, each one forward of the target."""
        return np.asarray(self.counts.rounds)

    @property
    def tally(self) -> dict[str, np.ndarray]:
        """What the method counts beside, by name; empty for most."""
        tally = self.counts.tally
        return {name: np.asarray(value) for name, value in tally._asdict().items()} if tally else {}

    @property
    def conditional_acceptance(self) -> np.ndarray:
        """`[…, depth]` share of the rounds which accepted i draft tokens that accepted one more (NaN: none did)."""
        lengths = np.asarray(self.counts.accepted_lengths)
        at_least = np.flip(np.cumsum(np.flip(lengths, -1), axis=-1), -1).astype(float)
        with np.errstate(invalid="ignore"):
            return at_least[..., 1:] / np.where(at_least[..., :-1] > 0, at_least[..., :-1], np.nan)

    def total(self, num_rows: int | None = None) -> "Stats":
        """The same measures over all rows together, or over the first `num_rows`."""
        return Stats(jax.tree.map(lambda leaf: np.asarray(leaf)[:num_rows].sum(axis=0), self.counts))

    def merged(self, other: "Stats") -> "Stats":
        """The same measures over the rounds of both."""
        return Stats(jax.tree.map(np.add, self.counts, other.counts))

    def summary(self) -> dict[str, object]:
        """The measures of all rows together as plain numbers, for JSON."""
        total = self if np.ndim(self.counts.rounds) == 0 else self.total()
        tally = {name: np.asarray(value).tolist() for name, value in total.tally.items()}
        return {
            "rounds": int(total.rounds),
            "tokens": int(total.counts.emitted),
            "drafted": int(total.counts.drafted),
            **{name: measure.of(total.counts).tolist() for name, measure in MEASURES.items()},
            "accepted_lengths": [int(value) for value in np.asarray(total.counts.accepted_lengths)],
            **({"tally": tally} if tally else {}),
        }


def _by_rank(counts: Counts) -> np.ndarray:
    visits = np.asarray(counts.visits).sum(axis=-1, keepdims=True)
    return _ratio(np.asarray(counts.accept).sum(axis=-2), visits)


def _ratio(part: object, whole: object) -> np.ndarray:
    """Their quotient; 0 where the whole is 0."""
    part, whole = np.asarray(part, np.float64), np.asarray(whole, np.float64)
    return part / np.where(whole > 0, whole, 1.0)
