"""Draws from a distribution, and the largest of many values: exact, in two levels over the vocabulary, for one row."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.base import BLOCK

NOTHING = -2
"""Stands for a token where none can be told: logits of which one is NaN or +inf, or all are -inf. No stop id has it."""

FLOOR = -256.0
"""Log-probability that stands for zero in a draw without replacement: below every float32 log-probability with noise
(at least -87.4 - 4.5), so such tokens come last, in the order of their noise, which is a uniform order."""


def distribution(logits: jax.Array) -> jax.Array:
    """`[V]` float32 softmax in which anything below the smallest normal float32 is exactly 0.

    Draws and tests read this same array, so that a token which the draw takes for impossible is impossible to the
    test as well. Logits without a softmax (all of them -inf, as where every token of a draft is banned, or a NaN) give
    zeros: an exhausted support, from which draws are uniform.
    """
    _check_row(logits)
    probs = jax.nn.softmax(logits.astype(jnp.float32))
    return jnp.where(probs >= jnp.finfo(jnp.float32).tiny, probs, 0.0)


def draw(key: jax.Array, weights: jax.Array) -> jax.Array:
    """`[]` int32 token drawn in proportion to `[V]` weights, which need not sum to one; the key is consumed.

    `NOTHING` where no weight is positive, or one is NaN.

    An inverse-CDF draw in two levels, a block of the vocabulary and a token within it, each from a uniform of its own
    with 23 bits: exact but for float32 rounding of the sums. A block whose share lies below 2^-23 is drawn with an
    error of that size; inside a block shares of the block down to 2^-23 are told apart. Zero weights are never drawn.
    """
    _check_row(weights)
    uniforms = jax.random.uniform(key, (2,))
    blocks = _blocks(weights, 0.0)
    sums = blocks.sum(axis=1)
    block = _invert(uniforms[0], sums)
    token = block * blocks.shape[1] + _invert(uniforms[1], blocks[block])
    return jnp.where(sums.sum() > 0, token, NOTHING)


def draw_without_replacement(key: jax.Array, logits: jax.Array, count: int) -> jax.Array:
    """`[count]` int32 different tokens in draw order, drawn one after another without replacement; the key is consumed.

    Gumbel-top-k: the order of logit + Gumbel noise is the order of successive draws from the renormalised rest (Kool et
    al. 2019, arXiv 1903.06059). When the support of `distribution(logits)` is exhausted, the rest is drawn uniformly
    from the tokens that remain. With jax's default keys a smaller `count` gives a prefix of a larger one.

    In two levels, so that noise is drawn for few of the tokens: the best noisy score of a block is Gumbel with the log
    of the block's probability as its location, and the k best tokens lie in the k best blocks, in which the scores are
    drawn given their best.
    """
    probs = distribution(logits)
    blocks = _blocks(probs, 0.0)
    num_blocks, size = blocks.shape
    num_tokens = np.minimum(size, probs.shape[0] - size * np.arange(num_blocks))  # of each block
    if num_blocks == 1:
        return jax.lax.top_k(_log_or(probs, FLOOR) + jax.random.gumbel(key, probs.shape), count)[1]
    num_chosen = min(count, num_blocks)
    noise = jax.random.gumbel(key, (num_blocks + num_chosen * size,))  # one call: a call costs more than its numbers
    located = _log_or(blocks.sum(axis=1), FLOOR + np.log(num_tokens))
    best, chosen = jax.lax.top_k(located + noise[:num_blocks], num_chosen)

    def noisy_scores(block: jax.Array, best: jax.Array, noise: jax.Array) -> jax.Array:
        is_token = jnp.arange(size) < jnp.asarray(num_tokens)[block]
        scores = jnp.where(is_token, _log_or(blocks[block], FLOOR), -jnp.inf)
        return _given_best(scores + noise, best)

    noisy = jax.vmap(noisy_scores)(chosen, best, noise[num_blocks:].reshape(num_chosen, size))
    places = jax.lax.top_k(noisy.reshape(-1), count)[1]
    return chosen[places // size] * size + places % size


def top_k(values: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """The `count` largest of `[V]` values and their int32 indices, largest first, lower index first among equals.

    In two levels: the k largest must lie in the k blocks with the largest maxima, lower block first among equals.
    """
    _check_row(values)
    blocks = _blocks(values, -jnp.inf)
    if count >= blocks.shape[0]:
        return jax.lax.top_k(values, count)
    best = jnp.sort(jax.lax.top_k(blocks.max(axis=1), count)[1])
    found, positions = jax.lax.top_k(blocks[best].reshape(-1), count)
    indices = best[positions // blocks.shape[1]] * blocks.shape[1] + positions % blocks.shape[1]
    return found, jnp.minimum(indices, values.shape[0] - 1)  # what fills the last block up is above a negative NaN


def argmax(values: jax.Array) -> jax.Array:
    """`[]` int32 index of the largest of `[V]` values, the lowest among equals; `NOTHING` where it is not finite.

    It is not where a value is NaN (found by sums: XLA's maxima may or may not pass it on) or +inf, or all are -inf.
    """
    largest, places = top_k(values, 1)
    is_nan = jnp.isnan(_blocks(values, -jnp.inf).sum(axis=1)).any()
    return jnp.where(jnp.isfinite(largest[0]) & ~is_nan, places[0], NOTHING)


def _check_row(values: jax.Array) -> None:
    """Logits, weights or probabilities are those of one row; checked while a program is traced."""
    chex.assert_rank(values, 1, custom_message="draws read one row; vmap them over a batch")
    chex.assert_type(values, float)


def _given_best(noisy: jax.Array, best: jax.Array) -> jax.Array:
    """Scores with Gumbel noise, moved so that the best of them is the `[]` one that is given.

    exp(-noisy score) is the arrival time of a Poisson process with the rate exp(score). Such processes have no memory:
    which comes first, and how long after it the others come, does not depend on when it comes.
    """
    log_waits = jnp.log(-jnp.expm1(noisy - noisy.max())) - noisy  # log(exp(-noisy) - exp(-noisy.max()))
    return -jnp.logaddexp(-best, log_waits)


def _log_or(probs: jax.Array, otherwise: np.ndarray | float) -> jax.Array:
    """Logarithms, and another value where there is no probability."""
    return jnp.where(probs > 0, jnp.log(jnp.where(probs > 0, probs, 1.0)), otherwise)


def _blocks(values: jax.Array, fill: float) -> jax.Array:
    """`[V]` values as rows of `BLOCK` (one row where V is small), the last filled up."""
    size = min(BLOCK, values.shape[0])
    return jnp.pad(values, (0, -values.shape[0] % size), constant_values=fill).reshape(-1, size)


def _invert(uniform: jax.Array, weights: jax.Array) -> jax.Array:
    """The first index whose cumulative weight exceeds a uniform share of the total, among positive weights."""
    cumulative = jnp.cumsum(weights)
    found = (cumulative > uniform * cumulative[-1]) & (weights > 0)
    return jnp.where(found.any(), jnp.argmax(found), jnp.argmax(weights)).astype(jnp.int32)
