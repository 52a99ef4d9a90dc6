"""What every method carries between rounds, and the parts of a round that are the same for all of them."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from jaxspec import cache, sampling
from jaxspec.base import Context, Model, Params
from jaxspec.sampling import NOTHING, Options, Past

PAD_STOP = -1
"""Fills up a row's stop ids; no token has it."""


class Row(NamedTuple):
    """One sequence: its text so far and what governs it.

    Attributes:
        tokens: `[S]` int32, the prompt and behind it every emitted token.
        num_tokens: `[]` int32, how many there are. The last one is the root of the next round: emitted, not committed.
        prompt_length: `[]` int32.
        max_new_tokens: `[]` int32.
        stop_ids: `[K]` int32, filled up with `PAD_STOP`.
        key: The row's random key. It never changes; each round folds its own number in.
        num_rounds: `[]` int32, rounds that this row took part in.
        is_finished: `[]` bool. A finished row commits and counts nothing.
        is_stopped: `[]` bool, finished by a stop id.
        is_failed: `[]` bool, finished because the target's logits gave no next token (`sampling.NOTHING`).
        options: The sampling options of the row.
        logprobs: `[S]` float32 log-probabilities of the emitted tokens, at their places; None where not asked for.
    """

    tokens: jax.Array
    num_tokens: jax.Array
    prompt_length: jax.Array
    max_new_tokens: jax.Array
    stop_ids: jax.Array
    key: jax.Array
    num_rounds: jax.Array
    is_finished: jax.Array
    is_stopped: jax.Array
    is_failed: jax.Array
    options: Options
    logprobs: jax.Array | None

    @property
    def root(self) -> jax.Array:
        """`[]` int32, the newest token."""
        return self.tokens[self.num_tokens - 1]

    @property
    def root_position(self) -> jax.Array:
        """`[]` int32, its absolute position: also the number of tokens before it."""
        return self.num_tokens - 1


class State(NamedTuple):
    """What a round takes and gives, for one row.

    Attributes:
        row: The sequence.
        contexts: Committed tokens by model name.
        memory: What else a method carries between rounds.
    """

    row: Row
    contexts: dict[str, Context]
    memory: Any = ()


class Info(NamedTuple):
    """What a round reports. A finished row reports zeros.

    Attributes:
        tokens: `[M]` int32, of which the first `num_emitted` are new, the correction or bonus token last.
        num_emitted: `[]` int32.
        num_accepted: `[]` int32, how many of them the draft proposed.
        num_drafted: `[]` int32 tokens proposed.
        path_drafted: `[]` int32 tokens proposed on the verified path, continued through first children.
        path_rolled_back: `[]` int32 of those, the ones that were not accepted.
        is_rejected: `[]` bool, children were tested at the last position and all failed.
        accept: `[depth, C]` float32, the rule's acceptance probabilities at the visited nodes (their outcomes at
            temperature 0).
        is_visited: `[depth]` bool, whether a node of that depth had its children tested.
        tally: Further counts of a method, a named tuple of int32.
    """

    tokens: jax.Array
    num_emitted: jax.Array
    num_accepted: jax.Array
    num_drafted: jax.Array
    path_drafted: jax.Array
    path_rolled_back: jax.Array
    is_rejected: jax.Array
    accept: jax.Array
    is_visited: jax.Array
    tally: Any = ()

    @classmethod
    def nothing(cls, decoder: "Decoder") -> "Info":
        """A round of the method in which nothing happened."""
        none, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
        return cls(
            tokens=jnp.zeros(decoder.max_emitted, jnp.int32),
            num_emitted=none,
            num_accepted=none,
            num_drafted=none,
            path_drafted=none,
            path_rolled_back=none,
            is_rejected=no,
            accept=jnp.zeros((decoder.depth, decoder.max_children), jnp.float32),
            is_visited=jnp.zeros(decoder.depth, bool),
            tally=getattr(decoder, "zero_tally", ()),
        )


class Decoder(Protocol):
    """A method: a frozen, hashable dataclass with two pure functions, written for one row.

    Attributes:
        models: The models that it runs, by their names in `params`, each with its lag: how many of the newest tokens
            are not in its context when a round begins (the target has not seen the root: 1).
        max_emitted: M, the most tokens that a round can emit.
        depth: The most draft tokens that a round can accept.
        max_children: C, the most siblings at one position.
        forwards: The forwards of a full round by model, each by its number of tokens: what a round takes at the most.

    A method with counts of its own has `zero_tally`, which its `Info.tally` is added to; one that needs parameters of
    something that is no model has their names in `extra_params`.
    """

    @property
    def models(self) -> dict[str, tuple[Model, int]]: ...
    @property
    def max_emitted(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def max_children(self) -> int: ...
    @property
    def forwards(self) -> dict[str, tuple[int, ...]]: ...

    def init(self, params: dict[str, Params], row: Row) -> State:
        """The state before the prompt is read: contexts with as many slots as `row.tokens` has."""
        ...

    def round(self, params: dict[str, Params], state: State) -> tuple[State, Info]:
        """One round: draws, one forward of the target, a pure `resolve`, commit."""
        ...


def init(decoder: Decoder, row: Row, memory: Any = ()) -> State:
    """A state with empty contexts."""
    slots = row.tokens.shape[0]
    contexts = {name: cache.empty(model, slots) for name, (model, _) in decoder.models.items()}
    return State(row, contexts, memory)


def prefill(decoder: Decoder, params: dict[str, Params], state: State, start: jax.Array, chunk: int) -> State:
    """The state after one chunk of the prompt has entered the contexts (see `cache.prefill`)."""
    contexts = {
        name: cache.prefill(
            model, params[name], state.contexts[name], state.row.tokens, start, state.row.num_tokens - lag, chunk
        )
        for name, (model, lag) in decoder.models.items()
    }
    return state._replace(contexts=contexts)


def grow(decoder: Decoder, state: State, slots: int) -> State:
    """The same state with room for `slots` tokens."""
    room = slots - state.row.tokens.shape[0]
    row = state.row._replace(
        tokens=jnp.pad(state.row.tokens, (0, room)),
        logprobs=None if state.row.logprobs is None else jnp.pad(state.row.logprobs, (0, room)),
    )
    contexts = {name: cache.grow(model, state.contexts[name], slots) for name, (model, _) in decoder.models.items()}
    return State(row, contexts, state.memory)


def round_key(row: Row) -> jax.Array:
    """The random key of this round: never the same for two rounds of a row, nor for two rows."""
    return jax.random.fold_in(row.key, row.num_rounds)


def reading(row: Row, vocab_size: int) -> Row:
    """The row with what its options read of its text, up to its newest token: itself where they read nothing.

    A row is carried without it; it belongs to a position in a round, and `behind` gives that of a later one.
    """
    options = row.options
    if options.past is not None:
        return row
    return with_past(
        row,
        sampling.past_of(
            options.penalties,
            options.min_new_tokens,
            options.bad_words,
            row.tokens,
            row.num_tokens,
            row.prompt_length,
            row.stop_ids,
            vocab_size,
        ),
    )


def with_past(row: Row, past: Past | None) -> Row:
    """The row whose options read another position's past."""
    return row if past is None else row._replace(options=row.options._replace(past=past))


def best(row_at: Callable[[jax.Array], Row], logits: jax.Array) -> jax.Array:
    """`[n]` int32 arg-max of `[n, V]` logits, under the options of the row as they read it at each `[]` place."""
    places = jnp.arange(logits.shape[0], dtype=jnp.int32)
    return jax.vmap(lambda place, one: sampling.argmax(sampling.adjust(row_at(place).options, one)))(places, logits)


def emit(row: Row, tokens: jax.Array, count: jax.Array, logprobs: jax.Array | None) -> tuple[Row, jax.Array]:
    """The row with a round's tokens, cut at a stop id, at the row's limit and in front of `NOTHING`, which ends it.

    Args:
        row: With room for all M tokens behind its own.
        tokens: `[M]` int32.
        count: `[]` int32 of them, at least 1, that verification let through; only the last may be `NOTHING`.
        logprobs: `[M]` float32, or None.

    Returns:
        The row, and how many tokens it kept: 0 where it was finished.
    """
    is_missing = tokens[count - 1] == NOTHING
    count = count - is_missing.astype(jnp.int32)
    places = jnp.arange(tokens.shape[0], dtype=jnp.int32)
    is_stop = (tokens[:, None] == row.stop_ids[None, :]).any(axis=1) & (places < count)
    first_stop = jnp.where(is_stop.any(), jnp.argmax(is_stop).astype(jnp.int32), count)
    budget = row.prompt_length + row.max_new_tokens - row.num_tokens
    kept = jnp.where(row.is_finished, 0, jnp.minimum(jnp.minimum(count, first_stop + 1), budget))
    is_stopped = row.is_stopped | (first_stop < kept)
    is_failed = row.is_failed | (is_missing & ~row.is_finished & ~is_stopped & (kept < budget))
    updated = row._replace(
        tokens=jax.lax.dynamic_update_slice(row.tokens, tokens, (row.num_tokens,)),
        num_tokens=row.num_tokens + kept,
        num_rounds=row.num_rounds + (~row.is_finished).astype(jnp.int32),
        is_finished=row.is_finished | is_stopped | is_failed | (kept >= budget),
        is_stopped=is_stopped,
        is_failed=is_failed,
    )
    if logprobs is not None and row.logprobs is not None:
        updated = updated._replace(logprobs=jax.lax.dynamic_update_slice(row.logprobs, logprobs, (row.num_tokens,)))
    return updated, kept


def token_logprobs(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """`[n]` float32 log-probability of each token under `[n, V]` raw logits: temperature 1, nothing applied."""
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, tokens[:, None], axis=1)[:, 0]
    return chosen - jax.nn.logsumexp(logits, axis=1)
