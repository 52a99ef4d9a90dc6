"""The loop that serves every method: batches, buckets, one compiled program of rounds, and a stream of them."""

import contextlib
import dataclasses
import functools
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.base import Params
from jaxspec.decode import state as states
from jaxspec.decode import stats
from jaxspec.decode.request import Asked, Request, checked
from jaxspec.decode.state import Decoder, Info, Row, State
from jaxspec.sampling import Sampling

PADDING = -1
"""Stands behind a row's tokens in `Generation.tokens`."""


@dataclasses.dataclass(frozen=True)
class Generation:
    """What `generate` returns, on the host.

    Attributes:
        tokens: `[B, T]` int32 new tokens, a stop token included, then `PADDING`. T is the longest row's.
        lengths: `[B]` int32 new tokens of each row.
        finish_reason: `[B]` "stop", "length", or "error": behind the row's tokens the target's logits hold NaN or +inf,
            or allow no token at all.
        logprobs: `[B, T]` float32 natural log-probability of each token under the target's raw logits (temperature 1,
            no filter, no bias), then NaN; None where not asked for.
        stats: The measures, by row.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    finish_reason: tuple[str, ...]
    logprobs: np.ndarray | None
    stats: stats.Stats


class Chunk(list[list[int]]):
    """For each row, the token ids that one round emitted, in order; empty for a finished row.

    Attributes:
        num_accepted: For each row, how many of them (the first ones) the draft proposed.
        finish_reasons: For each row, why it has ended, as in `Generation`; None for one that goes on.
        info: What the round reports, on the host, with a leading axis of B.
    """

    num_accepted: list[int]
    finish_reasons: tuple[str | None, ...]
    info: Info
    _ended: np.ndarray | None = None

    def end(self, row: int) -> None:
        """Ends a row from outside, as by a stop id: from the next round on it emits nothing."""
        if self._ended is None:
            self._ended = np.zeros(len(self), bool)
        self._ended[row] = True


def generate(
    decoder: Decoder,
    params: dict[str, Params],
    prompts: Sequence[Sequence[int]],
    *,
    key: jax.Array,
    max_new_tokens: int | Sequence[int],
    sampling: Sampling = Asked.sampling,
    stop_ids: Iterable[int] | Sequence[Iterable[int]] | None = Asked.stop_ids,
    draft_temperature: float | Sequence[float] | None = Asked.draft_temperature,
    min_new_tokens: int | Sequence[int] = Asked.min_new_tokens,
    logprobs: bool = Asked.logprobs,
    prefill_chunk: int = Asked.prefill_chunk,
    first_capacity: int | None = Asked.first_capacity,
    num_samples: int = Asked.num_samples,
) -> Generation:
    """New tokens for a batch of prompts, with the law of the target whatever the method.

    One compiled program for each batch size, bucket of capacity and kind of options: seeds, values, prompt lengths and
    limits compile nothing new. A row's tokens depend on its own key and prompt alone.

    Args:
        decoder: The method, from one of the constructors of `jaxspec.decode`.
        params: Parameters by model name: `{"target": …, "draft": …}`.
        prompts: B non-empty lists of token ids, of any lengths.
        key: One `jax.random.key`, from which each row's is folded by its number, or `[B]` keys.
        max_new_tokens: See `Asked`, like all that follow.
        sampling: How tokens are drawn from the target.
        stop_ids: Token ids that end a row.
        draft_temperature: The draft's own temperature.
        min_new_tokens: New tokens before a row may stop.
        logprobs: Whether to keep the tokens' log-probabilities.
        prefill_chunk: Prompt tokens of one forward.
        first_capacity: Slots to begin with.
        num_samples: Rows for each prompt. Those of prompt b are the rows b · num_samples and on; then B, of the result
            and of `[B]` keys, counts all of them.

    Raises:
        ValueError: Input that can't be decoded; raised before anything is compiled.
    """
    asked = Asked(
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        stop_ids=stop_ids,
        draft_temperature=draft_temperature,
        min_new_tokens=min_new_tokens,
        logprobs=logprobs,
        prefill_chunk=prefill_chunk,
        first_capacity=first_capacity,
        num_samples=num_samples,
    )
    return run(decoder, params, checked(decoder, params, prompts, key, asked))


def run(decoder: Decoder, params: dict[str, Params], request: Request) -> Generation:
    """What `generate` returns, for a checked request."""
    state = begin(decoder, params, request)
    counts = zero_counts(decoder, request.size)
    while True:
        state, counts = _rounds(decoder, params, state, counts)
        if np.asarray(state.row.is_finished).all():
            return generation(request, state.row, counts)
        state = grow(decoder, state, 2 * state.row.tokens.shape[1])


def stream(
    decoder: Decoder,
    params: dict[str, Params],
    prompts: Sequence[Sequence[int]],
    *,
    key: jax.Array,
    **asked: Any,
) -> Iterator[Chunk]:
    """Each round's newly emitted tokens, row by row, as soon as the round is done.

    The rounds are those of `generate`, one call each: a row's chunks put together are its tokens there. Arguments and
    errors are those of `generate`, without `logprobs`; the errors are raised here, not at the first chunk.
    """
    return _chunks(decoder, params, checked(decoder, params, prompts, key, Asked(**asked, logprobs=False)))


def rounds(
    decoder: Decoder, params: dict[str, Params], request: Request
) -> Generator[tuple[State, Info], np.ndarray | None, None]:
    """The state after each round of a checked request and what the round reports, until every row is finished.

    The next round takes the state's buffers over: what is needed of it must be read before. Rows are ended from outside
    by sending `[B]` bool.
    """
    state = begin(decoder, params, request)
    while not np.asarray(state.row.is_finished).all():
        if not fits(decoder, state.row):
            state = grow(decoder, state, 2 * state.row.tokens.shape[1])
        state, info = _round(decoder, params, state)
        ended = yield state, info
        if ended is not None:
            state = _end(state, ended)


def _chunks(decoder: Decoder, params: dict[str, Params], request: Request) -> Iterator[Chunk]:
    steps, ended = rounds(decoder, params, request), None
    with contextlib.suppress(StopIteration):
        while True:
            state, info = steps.send(ended)
            info = jax.device_get(info)
            chunk = Chunk(row[:count].tolist() for row, count in zip(info.tokens, info.num_emitted, strict=True))
            chunk.num_accepted, chunk.info = info.num_accepted.tolist(), info
            chunk.finish_reasons = finish_reasons(state.row)
            del state
            yield chunk
            ended = chunk._ended


def begin(decoder: Decoder, params: dict[str, Params], request: Request) -> State:
    """The state before the first round, with the prompts in the contexts."""
    rows, count = request.rows(request.capacity(decoder)), request.num_samples
    if count == 1:
        return _start(decoder, params, rows, request.prefill_chunk)
    once = _start(decoder, params, jax.tree.map(lambda leaf: leaf[::count], rows), request.prefill_chunk)
    return _copied(once, rows, count)


def first_state(
    decoder: Decoder, params: dict[str, Params], prompts: Sequence[Sequence[int]], *, key: jax.Array, **asked: Any
) -> State:
    """The state before the first round, with a leading axis of B, for who runs the rounds in a program of his own.

    It has room for all of `max_new_tokens`, so that `jax.vmap(decoder.round, in_axes=(None, 0))` may be repeated until
    `state.row.is_finished` holds everywhere; finished rows stay as they are. Arguments and errors are those of
    `generate`. A row's new tokens are `row.tokens[row.prompt_length : row.num_tokens]`.
    """
    request = checked(decoder, params, prompts, key, Asked(**asked))
    return begin(decoder, params, request._replace(first_capacity=request.last_capacity(decoder)))


def generation(request: Request, row: Row, counts: stats.Counts) -> Generation:
    """The new tokens, cut out of the rows."""
    tokens, lengths = jax.device_get((row.tokens, row.num_tokens - row.prompt_length))
    places = np.arange(lengths.max())
    is_new = places < lengths[:, None]
    sources = np.minimum(request.prompt_lengths[:, None] + places, tokens.shape[1] - 1)

    def new(values: np.ndarray, filler: float) -> np.ndarray:
        return np.where(is_new, np.take_along_axis(values, sources, axis=1), values.dtype.type(filler))

    logprobs = None if row.logprobs is None else new(np.asarray(row.logprobs), np.nan)
    reasons = tuple(reason or "length" for reason in finish_reasons(row))
    return Generation(new(tokens, PADDING), lengths, reasons, logprobs, stats.Stats(jax.device_get(counts)))


def finish_reasons(row: Row) -> tuple[str | None, ...]:
    """`[B]` why each row ended; None for one that goes on."""
    stopped, failed, finished = jax.device_get((row.is_stopped, row.is_failed, row.is_finished))
    ends = zip(stopped, failed, finished, strict=True)
    return tuple("stop" if stop else "error" if fail else "length" if end else None for stop, fail, end in ends)


@functools.partial(jax.jit, static_argnames=("decoder", "chunk"))
def _start(decoder: Decoder, params: dict[str, Params], rows: Row, chunk: int) -> State:
    """The rows' states with their prompts in the contexts, chunk by chunk."""
    state = jax.vmap(lambda row: decoder.init(params, row))(rows)
    longest = rows.num_tokens.max() - 1

    def body(carry: tuple[State, jax.Array]) -> tuple[State, jax.Array]:
        state, start = carry
        state = jax.vmap(lambda one: states.prefill(decoder, params, one, start, chunk))(state)
        return state, start + chunk

    return jax.lax.while_loop(lambda carry: carry[1] < longest, body, (state, jnp.zeros((), jnp.int32)))[0]


@functools.partial(jax.jit, static_argnames="count")
def _copied(once: State, rows: Row, count: int) -> State:
    """States for all rows, from those of each prompt, which `count` neighbours share."""
    contexts, memory = jax.tree.map(lambda leaf: jnp.repeat(leaf, count, axis=0), (once.contexts, once.memory))
    return State(rows, contexts, memory)


@functools.partial(jax.jit, donate_argnames="state")
def _end(state: State, ended: jax.Array) -> State:
    """The states in which `[B]` rows are finished."""
    row, is_new = state.row, ended & ~state.row.is_finished
    return state._replace(row=row._replace(is_finished=row.is_finished | ended, is_stopped=row.is_stopped | is_new))


@functools.partial(jax.jit, static_argnames=("decoder", "batch_size"))
def zero_counts(decoder: Decoder, batch_size: int) -> stats.Counts:
    """Counts of B rows before their first round."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (batch_size, *leaf.shape)), stats.zeros(decoder))


@functools.partial(jax.jit, static_argnames="decoder", donate_argnames=("state", "counts"))
def _rounds(
    decoder: Decoder, params: dict[str, Params], state: State, counts: stats.Counts
) -> tuple[State, stats.Counts]:
    """Rounds until every row is finished or the room is used up."""

    def goes_on(carry: tuple[State, stats.Counts]) -> jax.Array:
        row = carry[0].row
        return (~row.is_finished).any() & fits(decoder, row)

    def body(carry: tuple[State, stats.Counts]) -> tuple[State, stats.Counts]:
        state, info = jax.vmap(lambda one: decoder.round(params, one))(carry[0])
        return state, jax.vmap(stats.add)(carry[1], info)

    return jax.lax.while_loop(goes_on, body, (state, counts))


@functools.partial(jax.jit, static_argnames="decoder", donate_argnames="state")
def _round(decoder: Decoder, params: dict[str, Params], state: State) -> tuple[State, Info]:
    """One round of every row."""
    return jax.vmap(lambda one: decoder.round(params, one))(state)


@functools.partial(jax.jit, static_argnames=("decoder", "slots"))
def grow(decoder: Decoder, state: State, slots: int) -> State:
    """The states with room for `slots` tokens a row."""
    return jax.vmap(lambda one: states.grow(decoder, one, slots))(state)


def fits(decoder: Decoder, row: Row) -> jax.Array:
    """`[]` bool, whether a round's tokens have room in every row, finished ones too: they write, but do not count."""
    return (row.num_tokens + decoder.max_emitted <= row.tokens.shape[1]).all()
