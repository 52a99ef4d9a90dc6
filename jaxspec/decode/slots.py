"""Rows that come and go: a batch of slots, whose rows belong to different requests.

A prompt is read as a batch of one, chunk by chunk, and its contexts are written into a free slot (or into several, for
samples of it). Then rounds run for all slots together, a few in one program, until a row is finished. A row's tokens
are those that `decode.generate` gives it in a batch of as many rows: its key, its rounds and its own text are all that
they depend on. A free slot is a finished row, which commits and counts nothing; but it costs time, so that the batch
has one of a few sizes (`sizes`), the least that holds its rows.

Programs: one of rounds for each size, bucket of capacity and kind of options (`kinds`); one that reads a chunk for each
bucket; small ones that join, leave and resize (`joining`).
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import cache
from jaxspec.base import Params
from jaxspec.decode import joining, kinds, loop
from jaxspec.decode.kinds import Kind
from jaxspec.decode.request import Request
from jaxspec.decode.state import PAD_STOP, Decoder, Row, State
from jaxspec.sampling import Options

FIRST_SLOTS = 256
"""The least capacity; it doubles when a row needs more."""


class Reading(NamedTuple):
    """A prompt that is being read.

    Attributes:
        request: Its rows: samples of one prompt.
        stop_ids: `[n, MOST_STOP_IDS]` int32 of these.
        words: `[n, MOST_WORDS, LONGEST_WORD]` int32 of these.
        state: A batch of one, with the tokens in front of `start` in the contexts.
        start: Where the next chunk begins.
    """

    request: Request
    stop_ids: np.ndarray
    words: np.ndarray
    state: State
    start: int

    @property
    def is_done(self) -> bool:
        """Whether all is read that a first round needs."""
        return self.start >= len(self.request.prompts[0]) - 1


class Progress(NamedTuple):
    """What a segment of rounds gave a slot.

    Attributes:
        slot: What `join` gave. It is free again where the row has ended.
        tokens: New token ids.
        logprobs: Of each; empty where the row asked for none.
        finish_reason: As in `Generation`; None for a row that goes on.
        rounds: Of the row so far, like what follows.
        drafted: Tokens proposed.
        accepted_lengths: `[depth + 1]` rounds by the number of draft tokens that they accepted.
    """

    slot: int
    tokens: list[int]
    logprobs: list[float]
    finish_reason: str | None
    rounds: int
    drafted: int
    accepted_lengths: np.ndarray


@dataclasses.dataclass
class _Seat:
    """A slot's row as the host knows it: its name, how many tokens it has, what it asked for."""

    name: int
    num_tokens: int
    kind: Kind
    options: Options
    words: np.ndarray


def sizes(num_slots: int) -> tuple[int, ...]:
    """The sizes that a batch of at most so many rows has: powers of 4, and the whole."""
    return (*(4**power for power in range(16) if 4**power < num_slots), num_slots)


class Slots:
    """A batch whose rows come and go. One thread at a time.

    Attributes:
        decoder: The method.
        params: Its parameters.
        num_slots: The most rows.
        context: The most tokens of a row, its prompt among them.
    """

    def __init__(
        self, decoder: Decoder, params: dict[str, Params], num_slots: int, context: int, first_slots: int = FIRST_SLOTS
    ) -> None:
        """All slots are free; nothing is compiled but what makes empty contexts."""
        self.decoder, self.params, self.num_slots, self.context = decoder, params, num_slots, context
        self.vocab_size = decoder.models["target"][0].vocab_size
        self._first = cache.bucket(first_slots)
        self._base = kinds.least(decoder, params)
        self._kind = self._base
        self._names = itertools.count()
        self._seats: list[_Seat | None] = [None]
        self._state = joining.empty(decoder, params, self._unused_row(self._first), 1)
        self._counts = loop.zero_counts(decoder, 1)
        self._logprobs: jax.Array | None = None
        self._options: Options | None = None  # made anew when rows have come or gone

    @property
    def num_free(self) -> int:
        """How many rows may join."""
        return self.num_slots - len(self._live)

    @property
    def size(self) -> int:
        """B at present."""
        return len(self._seats)

    @property
    def _live(self) -> list[int]:
        """Where the rows are."""
        return [place for place, seat in enumerate(self._seats) if seat is not None]

    @property
    def capacity(self) -> int:
        """Slots of the contexts at present, for each row."""
        return self._state.row.tokens.shape[1]

    def check(self, request: Request) -> None:
        """Looks at what `decode.request.checked` does not know of.

        Raises:
            ValueError: A request that does not fit here.
        """
        longest = int((request.prompt_lengths + request.max_new_tokens).max())
        if longest > self.context:
            raise ValueError(
                f"A prompt and its max_new_tokens come to {longest} tokens, but rows have at most {self.context} here: "
                "shorten the prompt or ask for fewer."
            )
        kinds.stop_ids_of(request)
        kinds.words_of(request)

    def begin(self, request: Request) -> Reading:
        """A prompt before its first chunk.

        Args:
            request: Checked; its rows are samples of one prompt.
        """
        longest = len(request.prompts[0])
        prefilled = -(-(longest - 1) // request.prefill_chunk) * request.prefill_chunk
        capacity = max(self._first, cache.bucket(max(prefilled, longest + self.decoder.max_emitted)))
        tokens, length = np.zeros((1, capacity), np.int32), np.array([longest], np.int32)
        tokens[0, :longest] = request.prompts[0]
        host: dict[str, Any] = {"tokens": tokens, "num_tokens": length, "prompt_length": length}
        state = joining.empty(self.decoder, self.params, self._unused_row(capacity)._replace(**host), 1)
        return Reading(request, kinds.stop_ids_of(request), kinds.words_of(request), state, 0)

    def read(self, reading: Reading) -> Reading:
        """The prompt with one more chunk read; what was handed in is used up."""
        chunk = reading.request.prefill_chunk
        state = joining.read(self.decoder, self.params, reading.state, np.int32(reading.start), chunk)
        return reading._replace(state=state, start=reading.start + chunk)

    def join(self, reading: Reading, sample: int) -> int:
        """The name of the slot that one of the prompt's rows is in from now on; one is free, and the prompt read."""
        assert reading.is_done, "a row joins when its prompt has been read"
        assert self.num_free, "a row joins where a slot is free"
        if None not in self._seats:
            self._rebatch(len(self._seats) + 1)
        place, request = self._seats.index(None), reading.request
        if self.capacity < reading.state.row.tokens.shape[1]:
            self._resize(reading.state.row.tokens.shape[1])
        its = slice(sample, sample + 1)
        host: dict[str, Any] = {
            "max_new_tokens": request.max_new_tokens[its],
            "stop_ids": reading.stop_ids[its],
            "is_finished": np.zeros(1, bool),
        }
        one = reading.state._replace(row=reading.state.row._replace(key=request.keys[its], **host))
        self._state, self._counts = joining.join(self._state, self._counts, one, np.int32(place))
        options = jax.tree.map(lambda leaf: np.asarray(leaf[its]), request.options)
        name = next(self._names)
        self._seats[place] = _Seat(name, len(request.prompts[0]), kinds.kind_of(request), options, reading.words[its])
        self._options = None
        return name

    def leave(self, slots: Iterable[int]) -> None:
        """Frees slots, whatever their rows are at; names of rows that have left already are ignored."""
        names, left = {*slots}, np.zeros(self.size, bool)
        for place in self._live:
            seat = self._seats[place]
            if seat is not None and seat.name in names:
                left[place], self._seats[place] = True, None
        if left.any():
            self._state = joining.leave(self._state, left)
            self._options = None

    def advance(self, max_rounds: int) -> list[Progress]:
        """Runs up to so many rounds, fewer if a row is finished or its room used up; what each row got, if it is there.

        Finished rows have left when this returns.
        """
        if not self._live:
            return []
        self._rebatch(len(self._live))
        self._make_room()
        options = self._batch_options()
        self._state, self._counts, self._logprobs = joining.segment(
            self.decoder, self.params, self._state, self._counts, options, self._logprobs, np.int32(max_rounds)
        )
        row, counts = self._state.row, self._counts
        seen = jax.device_get((row.tokens, row.num_tokens, counts.rounds, counts.drafted, counts.accepted_lengths))
        reasons = loop.finish_reasons(row)
        logprobs = None if self._logprobs is None else np.asarray(self._logprobs)
        found = []
        for place, seat in enumerate(self._seats):
            if seat is None:
                continue
            tokens, num_tokens, rounds, drafted, lengths = (leaf[place] for leaf in seen)
            new = slice(seat.num_tokens, int(num_tokens))
            kept = logprobs[place, new].tolist() if logprobs is not None and seat.kind.has_logprobs else []
            told = tokens[new].tolist(), kept, reasons[place], int(rounds), int(drafted), lengths
            found.append(Progress(seat.name, *told))
            seat.num_tokens = int(num_tokens)
        self.leave(one.slot for one in found if one.finish_reason is not None)
        return found

    def _rebatch(self, num_rows: int) -> None:
        """A batch of the least size that holds so many rows, those that are there first."""
        size, live = next(size for size in sizes(self.num_slots) if size >= num_rows), self._live
        if size == self.size:
            return
        rows = np.array((live + [0] * size)[:size], np.int32)
        self._state, self._counts, self._logprobs = joining.pick(self._state, self._counts, self._logprobs, rows)
        self._state = joining.leave(self._state, np.arange(size) >= len(live))
        self._seats = [self._seats[place] for place in live] + [None] * (size - len(live))
        self._options = None

    def _make_room(self) -> None:
        """Room for a round of every row, and not more than four times as much."""
        longest = max(seat.num_tokens for seat in self._seats if seat is not None)
        needed = max(self._first, cache.bucket(longest + self.decoder.max_emitted))
        if needed > self.capacity:
            self._resize(needed)
        elif 4 * needed <= self.capacity:
            self._resize(2 * needed)

    def _resize(self, slots: int) -> None:
        self._state = joining.resize(self.decoder, self._state, slots)
        if self._logprobs is not None:
            missing = slots - self._logprobs.shape[1]
            self._logprobs = (
                jnp.pad(self._logprobs, ((0, 0), (0, missing))) if missing > 0 else self._logprobs[:, :slots]
            )

    def _batch_options(self) -> Options:
        """The options of all slots, in the kind that the rows need together."""
        if self._options is None:
            seats = [seat for seat in self._seats if seat is not None]
            self._kind = functools.reduce(Kind.joined, (seat.kind for seat in seats), self._base)
            unused = kinds.free(self._kind, self.vocab_size)
            self._options = kinds.stacked(
                [
                    unused if seat is None else kinds.filled(seat.options, seat.words, self._kind, self.vocab_size)
                    for seat in self._seats
                ]
            )
        if not self._kind.has_logprobs:
            self._logprobs = None
        elif self._logprobs is None:
            self._logprobs = jnp.zeros((len(self._seats), self.capacity), jnp.float32)
        return self._options

    def _unused_row(self, capacity: int) -> Row:
        """A finished row of one token, with a leading axis of 1 and options of the base kind."""
        one, no = np.ones(1, np.int32), np.zeros(1, bool)
        host: dict[str, Any] = {  # numpy arrays: the compiled program that takes them puts them on the device
            "tokens": np.zeros((1, capacity), np.int32),
            "num_tokens": one,
            "prompt_length": one,
            "max_new_tokens": one,
            "stop_ids": np.full((1, kinds.MOST_STOP_IDS), PAD_STOP, np.int32),
            "num_rounds": np.zeros(1, np.int32),
            "is_finished": np.ones(1, bool),
            "is_stopped": no,
            "is_failed": no,
            "logprobs": None,
        }
        return Row(key=jax.random.key(0)[None], options=kinds.free(self._base, self.vocab_size), **host)
