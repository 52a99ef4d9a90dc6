"""From logits to distributions: the one pipeline that every method uses.

Target logits pass through bias, penalties, bans (words, and stop ids before a length), temperature, top-k, top-p and
min-p, in this order; draft logits through what stands before temperature and the draft's own temperature only
(filtering a draft is lossless too, but can leave its siblings without support). All
functions are written for one row and work in float32 whatever the network's dtype.
"""

from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.sampling import past
from jaxspec.sampling.draws import argmax
from jaxspec.sampling.settings import Options


def adjust(options: Options, logits: jax.Array, ids: np.ndarray | None = None) -> jax.Array:
    """`[V]` float32 logits with what acts on logits before temperature: bias, penalties, bans.

    Args:
        options: The row's options; with the position's `past` where they read it.
        logits: `[V]`, or `[len(ids)]` where they are those of some tokens only.
        ids: The tokens that the logits belong to; None: all, in order.

    Raises:
        AssertionError: Logits or options of more than one row, or of another vocabulary than the bias.
    """
    _check_row(options, logits, ids)
    logits = logits.astype(jnp.float32)
    if options.bias is not None:
        logits = logits + (options.bias if ids is None else options.bias[ids])
    if options.penalties is not None:
        logits = past.penalised(options.penalties, options.past, logits, ids)
    if options.bad_words is not None:
        logits = past.unworded(options.bad_words, options.past, logits, ids)
    if options.min_new_tokens is not None:
        logits = past.unstopped(options.min_new_tokens, options.past, logits, ids)
    return logits


def target_distribution(options: Options, logits: jax.Array) -> jax.Array:
    """`[V]` float32 probabilities of the next token, by the whole pipeline; one-hot at temperature 0.

    Where the largest of the adjusted logits is not finite there is no law: none of the values is then positive.
    """
    logits = adjust(options, logits)
    if options.temperature is None:
        return _one_hot(logits)
    scaled = _temper(logits, options.temperature)
    if options.top_k is not None:
        scaled = jnp.where(_largest(logits, options.top_k), scaled, -jnp.inf)
    probs = jax.nn.softmax(scaled)  # all NaN where the largest logit is not finite: its sum is NaN
    if options.top_p is not None:
        probs = _normalise(jnp.where(_nucleus(probs, options.top_p), probs, 0.0))
    if options.min_p is not None:
        probs = _normalise(jnp.where(probs >= options.min_p * probs.max(), probs, 0.0))
    return probs if options.is_greedy is None else jnp.where(options.is_greedy, _one_hot(logits), probs)


def draft_logits(options: Options, logits: jax.Array, ids: np.ndarray | None = None) -> jax.Array:
    """Float32 logits that the draft proposes from: adjusted, over its temperature where that is not 0.

    Arguments as for `adjust`.
    """
    return temper_draft(options, adjust(options, logits, ids))


def temper_draft(options: Options, logits: jax.Array) -> jax.Array:
    """`[V]` adjusted draft logits over the draft's temperature, where that is not 0."""
    return logits if options.draft_temperature is None else _temper(logits, options.draft_temperature)


def _check_row(options: Options, logits: jax.Array, ids: np.ndarray | None) -> None:
    """Checks shapes and types of one row while a program is traced; the program does not contain it."""
    chex.assert_rank(logits, 1, custom_message="the pipeline reads one row; vmap it over a batch")
    chex.assert_type(logits, float)
    if ids is not None:
        chex.assert_shape(logits, (len(ids),))
    elif options.bias is not None:
        chex.assert_shape(options.bias, logits.shape)
    for value in jax.tree.leaves(options._replace(bias=None, bad_words=None, past=None)):
        chex.assert_rank(value, 0, custom_message="options of one row; vmap over a batch's")


def _temper(logits: jax.Array, temperature: jax.Array) -> jax.Array:
    """Logits over temperature, the largest at 0 so that no temperature overflows; unscaled where it is 0."""
    return (logits - logits.max()) / jnp.where(temperature > 0, temperature, 1.0)


def _one_hot(logits: jax.Array) -> jax.Array:
    return (jnp.arange(logits.shape[0], dtype=jnp.int32) == argmax(logits)).astype(jnp.float32)


def _normalise(weights: jax.Array) -> jax.Array:
    return weights / weights.sum()


def _largest(logits: jax.Array, count: jax.Array) -> jax.Array:
    """`[V]` bool, the `count` largest logits and what ties with the last of them; all where `count` is 0; every NaN."""
    bits = jax.lax.bitcast_convert_type(logits, jnp.int32)
    ordered = jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)  # integers in the order of the floats
    wanted = jnp.where(count > 0, jnp.minimum(count, logits.shape[0]), logits.shape[0])
    lowest, highest = jnp.int32(-(2**31)), jnp.int32(2**31 - 1)
    threshold = _search(lambda level: (ordered >= level).sum(dtype=jnp.int32) >= wanted, lowest, highest)
    return (ordered >= threshold) | jnp.isnan(logits)


def _nucleus(probs: jax.Array, mass: jax.Array) -> jax.Array:
    """`[V]` bool, the largest probabilities whose sum first reaches `mass`, and what ties with the last of them."""
    bits = jax.lax.bitcast_convert_type(probs, jnp.int32)  # of non-negative floats: in their order
    highest = jax.lax.bitcast_convert_type(probs.max(), jnp.int32)
    threshold = _search(lambda level: jnp.where(bits >= level, probs, 0.0).sum() >= mass, jnp.int32(0), highest)
    return (bits >= threshold) | (mass >= 1)


def _search(holds: Any, low: jax.Array, high: jax.Array) -> jax.Array:
    """The largest integer in [low, high] at which a predicate holds that holds below some level only; `low` if none."""

    def halve(_: jax.Array, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low & high) + ((low ^ high) >> 1) + ((low ^ high) & 1)  # their mean, rounded up, without overflow
        found = holds(middle)
        return jnp.where(found, middle, low), jnp.where(found, high, middle - 1)

    return jax.lax.fori_loop(0, 32, halve, (low, high))[0]
