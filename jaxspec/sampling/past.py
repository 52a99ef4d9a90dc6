"""What options read of the text in front of a position: penalties on its tokens, banned words, no stop before a length.

A row's text is its committed tokens, and behind them what is in flight: at a node of a drafted tree, the node and its
ancestors. So a position's counts are those of the row and one more for each drafted token on its path; draft and target
read the same ones.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Penalties(NamedTuple):
    """By how much tokens that the text holds are less likely: `[]` each.

    Attributes:
        frequency: float32, subtracted from a token's logit for each time that it occurs.
        presence: float32, subtracted once if it occurs.
        repetition: float32 above 0: a logit above 0 is divided by it if the token occurs, another one multiplied.
        counts_prompt: bool, whether the prompt's tokens count, beside the new ones.
    """

    frequency: jax.Array
    presence: jax.Array
    repetition: jax.Array
    counts_prompt: jax.Array


class Past(NamedTuple):
    """The text in front of a position, as far as a row's options read it; None for what they do not.

    Attributes:
        counts: `[V]` int32, how often each token occurs in what the penalties count.
        num_new: `[]` int32, tokens behind the prompt.
        stop_ids: `[K]` int32, below 0: none.
        newest: `[L - 1]` int32, the last tokens, of as many as a banned word has in front of its last; `BEFORE` where
            the text is shorter.
    """

    counts: jax.Array | None = None
    num_new: jax.Array | None = None
    stop_ids: jax.Array | None = None
    newest: jax.Array | None = None


BEFORE = -3
"""Stands in front of a text, and is no token of a word."""

ANYTHING = -1
"""Stands in front of a banned word that is shorter than the longest: whatever the text has there."""


def past_of(
    penalties: Penalties | None,
    min_new_tokens: jax.Array | None,
    bad_words: jax.Array | None,
    text: jax.Array,
    num_tokens: jax.Array,
    prompt_length: jax.Array,
    stop_ids: jax.Array,
    vocab_size: int,
) -> Past | None:
    """The past of a text, from the options that read it; None where none does.

    Args:
        penalties: Of `Options`, like the next one.
        min_new_tokens: Of `Options`.
        bad_words: Of `Options`.
        text: `[S]` int32, the prompt and the new tokens, then anything.
        num_tokens: `[]` int32 of them.
        prompt_length: `[]` int32.
        stop_ids: `[K]` int32.
        vocab_size: V.
    """
    if penalties is None and min_new_tokens is None and bad_words is None:
        return None
    counts = num_new = newest = None
    if penalties is not None:
        places = jnp.arange(text.shape[0], dtype=jnp.int32)
        is_counted = (places < num_tokens) & (penalties.counts_prompt | (places >= prompt_length))
        counts = jnp.zeros(vocab_size, jnp.int32).at[text].add(is_counted.astype(jnp.int32))
    if min_new_tokens is not None:
        num_new = num_tokens - prompt_length
    if bad_words is not None:
        places = num_tokens - jnp.arange(bad_words.shape[1] - 1, 0, -1, dtype=jnp.int32)
        newest = jnp.where(places >= 0, text[places], BEFORE)
    return Past(counts, num_new, None if min_new_tokens is None else stop_ids, newest)


def behind(past: Past, tokens: jax.Array, count: jax.Array) -> Past:
    """The past of a position further on: behind the first `[]` count of `[n]` tokens."""
    counts, num_new, _, newest = past
    if counts is not None:
        is_there = jnp.arange(tokens.shape[0], dtype=jnp.int32) < count
        counts = counts.at[tokens].add(is_there.astype(jnp.int32))
    if num_new is not None:
        num_new = num_new + count
    if newest is not None:
        newest = jax.lax.dynamic_slice_in_dim(jnp.concatenate([newest, tokens]), count, newest.shape[0])
    return past._replace(counts=counts, num_new=num_new, newest=newest)


def behind_each(pasts: Past | None, tokens: jax.Array) -> Past | None:
    """Pasts with an axis of n in front, each behind one more of `[n]` tokens; None of None."""
    if pasts is None:
        return None
    return jax.vmap(lambda past, token: behind(past, token[None], jnp.int32(1)))(pasts, tokens)


def penalised(penalties: Penalties, past: Past | None, logits: jax.Array, ids: np.ndarray | None) -> jax.Array:
    """Float32 logits under penalties: repetition first, then frequency and presence. Arguments as for `adjust`."""
    assert past is not None, _FORGOTTEN
    assert past.counts is not None
    counts = past.counts if ids is None else past.counts[ids]
    occurs = counts > 0
    repeated = jnp.where(logits > 0, logits / penalties.repetition, logits * penalties.repetition)
    logits = jnp.where(occurs, repeated - penalties.presence, logits)
    return logits - penalties.frequency * counts.astype(jnp.float32)


def unstopped(min_new_tokens: jax.Array, past: Past | None, logits: jax.Array, ids: np.ndarray | None) -> jax.Array:
    """Logits in which stop ids are -inf while the text is shorter than it must be. Arguments as for `adjust`."""
    assert past is not None, _FORGOTTEN
    assert past.num_new is not None
    assert past.stop_ids is not None
    return _without(logits, ids, past.stop_ids, jnp.broadcast_to(past.num_new < min_new_tokens, past.stop_ids.shape))


def unworded(bad_words: jax.Array, past: Past | None, logits: jax.Array, ids: np.ndarray | None) -> jax.Array:
    """Logits in which the last token of a banned word is -inf where the text ends with the others.

    Arguments as for `adjust`; the words are `[K, L]` int32.
    """
    assert past is not None, _FORGOTTEN
    assert past.newest is not None
    others = bad_words[:, :-1]
    is_next = ((others == past.newest[None]) | (others == ANYTHING)).all(axis=1)
    return _without(logits, ids, bad_words[:, -1], is_next)


def _without(logits: jax.Array, ids: np.ndarray | None, tokens: jax.Array, is_banned: jax.Array) -> jax.Array:
    """Logits with -inf at those of `[K]` tokens that are banned; below 0 is none."""
    size, places, is_there = logits.shape[0], tokens, tokens >= 0
    if ids is not None:
        known = jnp.asarray(ids)  # ascending
        places = jnp.minimum(jnp.searchsorted(known, tokens), size - 1).astype(jnp.int32)
        is_there = known[places] == tokens
    return logits.at[jnp.where(is_there & is_banned, places, size)].set(-jnp.inf, mode="drop")


_FORGOTTEN = "these options read the text in front of a position: hand in a row from decode.state.reading or behind"
