"""Rows that come and go: a batch of a fixed number of slots, whose rows belong to different requests.

A prompt is read as a batch of one, chunk by chunk, and its contexts are written into a free slot (or into several, for
samples of it). Then rounds run for all slots together, a few in one program, until a row is finished. A row's tokens
are those that `decode.generate` gives it in a batch of as many rows: its key, its rounds and its own text are all that
they depend on. A free slot is a finished row, which commits and counts nothing.

Programs: one of rounds for each bucket of capacity and each kind of options (`kinds`); one that reads a chunk for each
bucket; small ones that join, leave and resize.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import cache
from jaxspec.base import Context, Params
from jaxspec.decode import kinds, loop, stats
from jaxspec.decode import state as states
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
        slot: Which one. It is free again where the row has ended.
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
    """A slot's row as the host knows it: how many tokens it has, what it asked for, what was handed on."""

    num_tokens: int
    kind: Kind
    options: Options
    words: np.ndarray


class Slots:
    """A batch whose rows come and go. One thread at a time.

    Attributes:
        decoder: The method.
        params: Its parameters.
        context: The most tokens of a row, its prompt among them.
    """

    def __init__(
        self, decoder: Decoder, params: dict[str, Params], num_slots: int, context: int, first_slots: int = FIRST_SLOTS
    ) -> None:
        """All slots are free; nothing is compiled but what makes empty contexts."""
        self.decoder, self.params, self.context = decoder, params, context
        self.vocab_size = decoder.models["target"][0].vocab_size
        self._first = cache.bucket(first_slots)
        self._base = kinds.least(decoder, params)
        self._kind = self._base
        self._seats: list[_Seat | None] = [None] * num_slots
        self._state = _empty(decoder, params, self._unused_row(self._first), num_slots)
        self._counts = loop.zero_counts(decoder, num_slots)
        self._logprobs: jax.Array | None = None
        self._options: Options | None = None  # made anew when rows have come or gone

    @property
    def free(self) -> tuple[int, ...]:
        """The slots without a row."""
        return tuple(slot for slot, seat in enumerate(self._seats) if seat is None)

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
        state = _empty(self.decoder, self.params, self._unused_row(capacity)._replace(**host), 1)
        return Reading(request, kinds.stop_ids_of(request), kinds.words_of(request), state, 0)

    def read(self, reading: Reading) -> Reading:
        """The prompt with one more chunk read; what was handed in is used up."""
        chunk = reading.request.prefill_chunk
        state = _read(self.decoder, self.params, reading.state, np.int32(reading.start), chunk)
        return reading._replace(state=state, start=reading.start + chunk)

    def join(self, reading: Reading, sample: int) -> int:
        """The slot, free before, that one of the prompt's rows is in from now on. The prompt has been read."""
        assert reading.is_done, "a row joins when its prompt has been read"
        slot, request = self.free[0], reading.request
        if self.capacity < reading.state.row.tokens.shape[1]:
            self._resize(reading.state.row.tokens.shape[1])
        its = slice(sample, sample + 1)
        host: dict[str, Any] = {
            "max_new_tokens": request.max_new_tokens[its],
            "stop_ids": reading.stop_ids[its],
            "is_finished": np.zeros(1, bool),
        }
        one = reading.state._replace(row=reading.state.row._replace(key=request.keys[its], **host))
        self._state, self._counts = _join(self._state, self._counts, one, np.int32(slot))
        options = jax.tree.map(lambda leaf: np.asarray(leaf[its]), request.options)
        self._seats[slot] = _Seat(len(request.prompts[0]), kinds.kind_of(request), options, reading.words[its])
        self._options = None
        return slot

    def leave(self, slots: Iterable[int]) -> None:
        """Frees slots, whatever their rows are at."""
        left = np.zeros(len(self._seats), bool)
        for slot in slots:
            left[slot], self._seats[slot] = True, None
        if left.any():
            self._state = _leave(self._state, left)
            self._options = None

    def advance(self, max_rounds: int) -> list[Progress]:
        """Runs up to so many rounds, fewer if a row is finished or its room used up; what each row got, if it is there.

        Finished rows have left when this returns.
        """
        if all(seat is None for seat in self._seats):
            return []
        self._make_room()
        options = self._batch_options()
        self._state, self._counts, self._logprobs = _segment(
            self.decoder, self.params, self._state, self._counts, options, self._logprobs, np.int32(max_rounds)
        )
        row, counts = self._state.row, self._counts
        seen = jax.device_get((row.tokens, row.num_tokens, counts.rounds, counts.drafted, counts.accepted_lengths))
        reasons = loop.finish_reasons(row)
        logprobs = None if self._logprobs is None else np.asarray(self._logprobs)
        found = []
        for slot, seat in enumerate(self._seats):
            if seat is None:
                continue
            tokens, num_tokens, rounds, drafted, lengths = (leaf[slot] for leaf in seen)
            new = slice(seat.num_tokens, int(num_tokens))
            kept = logprobs[slot, new].tolist() if logprobs is not None and seat.kind.has_logprobs else []
            told = tokens[new].tolist(), kept, reasons[slot], int(rounds), int(drafted), lengths
            found.append(Progress(slot, *told))
            seat.num_tokens = int(num_tokens)
        self.leave(one.slot for one in found if one.finish_reason is not None)
        return found

    def _make_room(self) -> None:
        """Room for a round of every row, and not more than four times as much."""
        longest = max(seat.num_tokens for seat in self._seats if seat is not None)
        needed = max(self._first, cache.bucket(longest + self.decoder.max_emitted))
        if needed > self.capacity:
            self._resize(needed)
        elif 4 * needed <= self.capacity:
            self._resize(2 * needed)

    def _resize(self, slots: int) -> None:
        self._state = _resize(self.decoder, self._state, slots)
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


def _bare(state: State) -> State:
    """The state without options and log-probabilities, which are kept beside it: their kind changes."""
    return state._replace(row=state.row._replace(options=Options(), logprobs=None))


@functools.partial(jax.jit, static_argnames=("decoder", "num_slots"))
def _empty(decoder: Decoder, params: dict[str, Params], row: Row, num_slots: int) -> State:
    """States of B rows like one, with a leading axis of 1, before anything is read."""
    rows = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[0], (num_slots, *leaf.shape[1:])), row)
    return _bare(jax.vmap(lambda one: decoder.init(params, one))(rows))


@functools.partial(jax.jit, static_argnames=("decoder", "chunk"), donate_argnames="state")
def _read(decoder: Decoder, params: dict[str, Params], state: State, start: jax.Array, chunk: int) -> State:
    """The states with one more chunk of their prompts in the contexts."""
    return jax.vmap(lambda one: states.prefill(decoder, params, one, start, chunk))(state)


@functools.partial(jax.jit, donate_argnames=("state", "counts"))
def _join(state: State, counts: stats.Counts, one: State, slot: jax.Array) -> tuple[State, stats.Counts]:
    """The states with another row, of a batch of one and at most their capacity, in a slot; its counts are zero."""

    def put(all_rows: jax.Array, row: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice(all_rows, row, (slot, *[jnp.int32(0)] * (all_rows.ndim - 1)))

    return jax.tree.map(put, state, one), jax.tree.map(lambda leaf: leaf.at[slot].set(0), counts)


@functools.partial(jax.jit, donate_argnames="state")
def _leave(state: State, left: jax.Array) -> State:
    """The states in which `[B]` slots are free: finished rows of one token, which need no room."""
    row = state.row
    row = row._replace(
        is_finished=row.is_finished | left,
        num_tokens=jnp.where(left, 1, row.num_tokens),
        prompt_length=jnp.where(left, 1, row.prompt_length),
    )
    contexts = {
        name: Context(context.entries, jnp.where(left, 0, context.length)) for name, context in state.contexts.items()
    }
    return State(row, contexts, state.memory)


@functools.partial(jax.jit, static_argnames=("decoder", "slots"))
def _resize(decoder: Decoder, state: State, slots: int) -> State:
    """The states with room for so many tokens a row; where that is less, all have room in it."""
    if slots >= state.row.tokens.shape[1]:
        return loop.grow(decoder, state, slots)
    contexts = {}
    for name, (entries, length) in state.contexts.items():
        axes = cache.slot_axes(decoder.models[name][0])
        cut = jax.tree.map(lambda leaf, axis: jax.lax.slice_in_dim(leaf, 0, slots, axis=axis + 1), entries, axes)
        contexts[name] = Context(cut, length)
    return State(state.row._replace(tokens=state.row.tokens[:, :slots]), contexts, state.memory)


@functools.partial(jax.jit, static_argnames="decoder", donate_argnames=("state", "counts", "logprobs"))
def _segment(
    decoder: Decoder,
    params: dict[str, Params],
    state: State,
    counts: stats.Counts,
    options: Options,
    logprobs: jax.Array | None,
    max_rounds: jax.Array,
) -> tuple[State, stats.Counts, jax.Array | None]:
    """Rounds until there were so many, a row was finished, or one of them has no room for another."""
    state = state._replace(row=state.row._replace(options=options, logprobs=logprobs))
    was_finished = state.row.is_finished

    def goes_on(carry: tuple[State, stats.Counts, jax.Array]) -> jax.Array:
        row = carry[0].row
        is_same = (row.is_finished == was_finished).all()
        return (carry[2] < max_rounds) & is_same & loop.fits(decoder, row)

    def body(carry: tuple[State, stats.Counts, jax.Array]) -> tuple[State, stats.Counts, jax.Array]:
        state, info = jax.vmap(lambda one: decoder.round(params, one))(carry[0])
        return state, jax.vmap(stats.add)(carry[1], info), carry[2] + 1

    state, counts, _ = jax.lax.while_loop(goes_on, body, (state, counts, jnp.zeros((), jnp.int32)))
    return _bare(state), counts, state.row.logprobs
