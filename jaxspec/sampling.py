"""From logits to distributions, and draws from them: the one pipeline that every method uses.

Target logits pass through bias, temperature, top-k, top-p and min-p, in this order; draft logits through bias and the
draft's own temperature only (filtering a draft is lossless too, but can leave its siblings without support). Which
options are in use is static (an unused one is None in `Options`, so the program does not contain it); their values are
traced and belong to a row. All functions are written for one row and work in float32 whatever the network's dtype.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

BLOCK = 64
"""Tokens of one block in the two-level searches over the vocabulary; on a CPU logits come in such blocks, too
(`networks.products`), and are searched as they lie."""

FLOOR = -256.0
"""Log-probability that stands for zero in a draw without replacement: below every float32 log-probability with noise
(at least -87.4 - 4.5), so such tokens come last, in the order of their noise, which is a uniform order."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sampling:
    """How the next token is drawn from the target. Each value is one for all rows, or one a row (`[B]`).

    Attributes:
        temperature: 0 is greedy: the arg-max, lowest id first.
        top_k: Keeps the k largest logits (all that tie with the k-th); 0 keeps all.
        top_p: Keeps the smallest set of largest probabilities whose sum reaches p (all that tie with its last); 1 keeps
            all. It reads the distribution that temperature and top-k leave.
        min_p: Drops tokens below `min_p` times the largest probability; 0 drops none.
        bias: Added to the logits before everything else: `{token: value}`, `[V]` or `[B, V]`; -inf bans a token.
    """

    temperature: float | Sequence[float] | np.ndarray = 0.0
    top_k: int | Sequence[int] | np.ndarray = 0
    top_p: float | Sequence[float] | np.ndarray = 1.0
    min_p: float | Sequence[float] | np.ndarray = 0.0
    bias: Mapping[int, float] | np.ndarray | jax.Array | None = None


GREEDY = Sampling()


class Options(NamedTuple):
    """`Sampling` as traced values; None for an option that no row uses.

    Attributes:
        temperature: `[]` float32, or None where every row and its draft are greedy.
        draft_temperature: `[]` float32; None exactly where `temperature` is.
        is_greedy: `[]` bool, `temperature` is 0; None where no row's is.
        is_greedy_draft: `[]` bool, `draft_temperature` is 0; None where no row's is.
        top_k: `[]` int32.
        top_p: `[]` float32.
        min_p: `[]` float32.
        bias: `[V]` float32.
    """

    temperature: jax.Array | None = None
    draft_temperature: jax.Array | None = None
    is_greedy: jax.Array | None = None
    is_greedy_draft: jax.Array | None = None
    top_k: jax.Array | None = None
    top_p: jax.Array | None = None
    min_p: jax.Array | None = None
    bias: jax.Array | None = None


def options(sampling: Sampling, draft_temperature: Any, batch: int, vocab_size: int) -> Options:
    """The options of a batch, checked, each with a leading axis of B rows.

    Args:
        sampling: The user's values.
        draft_temperature: Like `Sampling.temperature`, for the draft; None: the target's.
        batch: B.
        vocab_size: V of the target.

    Raises:
        ValueError: A value out of range or of another length than B.
    """
    temperature = _rows("temperature", sampling.temperature, batch, np.float32, 0.0, math.inf)
    draft = temperature
    if draft_temperature is not None:
        draft = _rows("draft_temperature", draft_temperature, batch, np.float32, 0.0, math.inf)
    top_k = _rows("top_k", sampling.top_k, batch, np.int32, 0, 2**31 - 1)
    top_p = _rows("top_p", sampling.top_p, batch, np.float32, 0.0, 1.0)
    if (top_p == 0).any():
        raise ValueError("top_p=0 keeps no token; give a value in (0, 1], or temperature=0 for greedy decoding.")
    min_p = _rows("min_p", sampling.min_p, batch, np.float32, 0.0, 1.0)
    bias = _bias(sampling.bias, batch, vocab_size)
    if not temperature.any() and not draft.any():  # filters never remove the arg-max
        return Options(bias=bias)
    return Options(
        temperature=jnp.asarray(temperature),
        draft_temperature=jnp.asarray(draft),
        is_greedy=None if temperature.all() else jnp.asarray(temperature == 0),
        is_greedy_draft=None if draft.all() else jnp.asarray(draft == 0),
        top_k=jnp.asarray(top_k) if top_k.any() else None,
        top_p=jnp.asarray(top_p) if (top_p < 1).any() else None,
        min_p=jnp.asarray(min_p) if min_p.any() else None,
        bias=bias,
    )


def adjust(options: Options, logits: jax.Array, ids: np.ndarray | None = None) -> jax.Array:
    """`[V]` float32 logits with what acts on logits before temperature: the bias.

    Args:
        options: The row's options.
        logits: `[V]`, or `[len(ids)]` where they are those of some tokens only.
        ids: The tokens that the logits belong to; None: all, in order.
    """
    logits = logits.astype(jnp.float32)
    if options.bias is None:
        return logits
    return logits + (options.bias if ids is None else options.bias[ids])


def target_distribution(options: Options, logits: jax.Array) -> jax.Array:
    """`[V]` float32 probabilities of the next token, by the whole pipeline; one-hot at temperature 0."""
    logits = adjust(options, logits)
    if options.temperature is None:
        return _one_hot(logits)
    scaled = _temper(logits, options.temperature)
    if options.top_k is not None:
        scaled = jnp.where(_largest(logits, options.top_k), scaled, -jnp.inf)
    probs = jax.nn.softmax(scaled)
    if options.top_p is not None:
        probs = _normalise(jnp.where(_nucleus(probs, options.top_p), probs, 0.0))
    if options.min_p is not None:
        probs = _normalise(jnp.where(probs >= options.min_p * probs.max(), probs, 0.0))
    return probs if options.is_greedy is None else jnp.where(options.is_greedy, _one_hot(logits), probs)


def draft_logits(options: Options, logits: jax.Array, ids: np.ndarray | None = None) -> jax.Array:
    """Float32 logits that the draft proposes from: with bias, over its temperature where that is not 0.

    Arguments as for `adjust`.
    """
    return temper_draft(options, adjust(options, logits, ids))


def temper_draft(options: Options, logits: jax.Array) -> jax.Array:
    """`[V]` adjusted draft logits over the draft's temperature, where that is not 0."""
    return logits if options.draft_temperature is None else _temper(logits, options.draft_temperature)


def distribution(logits: jax.Array) -> jax.Array:
    """`[V]` float32 softmax in which anything below the smallest normal float32 is exactly 0.

    Draws and tests read this same array, so that a token which the draw takes for impossible is impossible to the
    test as well.
    """
    probs = jax.nn.softmax(logits.astype(jnp.float32))
    return jnp.where(probs < jnp.finfo(jnp.float32).tiny, 0.0, probs)


def draw(key: jax.Array, weights: jax.Array) -> jax.Array:
    """`[]` int32 token drawn in proportion to `[V]` weights, which need not sum to one; the key is consumed.

    An inverse-CDF draw in two levels, a block of the vocabulary and a token within it, each from a uniform of its own
    with 23 bits: exact but for float32 rounding of the sums. A block whose share lies below 2^-23 is drawn with an
    error of that size; inside a block shares of the block down to 2^-23 are told apart. Zero weights are never drawn.
    """
    uniforms = jax.random.uniform(key, (2,))
    blocks = _blocks(weights, 0.0)
    block = _invert(uniforms[0], blocks.sum(axis=1))
    return block * blocks.shape[1] + _invert(uniforms[1], blocks[block])


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
    blocks = _blocks(values, -jnp.inf)
    if count >= blocks.shape[0]:
        return jax.lax.top_k(values, count)
    best = jnp.sort(jax.lax.top_k(blocks.max(axis=1), count)[1])
    found, positions = jax.lax.top_k(blocks[best].reshape(-1), count)
    return found, best[positions // blocks.shape[1]] * blocks.shape[1] + positions % blocks.shape[1]


def argmax(values: jax.Array) -> jax.Array:
    """`[]` int32 index of the largest of `[V]` values, the lowest among equals."""
    return top_k(values, 1)[1][0]


def _temper(logits: jax.Array, temperature: jax.Array) -> jax.Array:
    """Logits over temperature, the largest at 0 so that no temperature overflows; unscaled where it is 0."""
    return (logits - logits.max()) / jnp.where(temperature > 0, temperature, 1.0)


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


def _one_hot(logits: jax.Array) -> jax.Array:
    return (jnp.arange(logits.shape[0], dtype=jnp.int32) == argmax(logits)).astype(jnp.float32)


def _normalise(weights: jax.Array) -> jax.Array:
    return weights / weights.sum()


def _largest(logits: jax.Array, count: jax.Array) -> jax.Array:
    """`[V]` bool, the `count` largest logits and what ties with the last of them; all where `count` is 0."""
    bits = jax.lax.bitcast_convert_type(logits, jnp.int32)
    ordered = jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)  # integers in the order of the floats
    wanted = jnp.where(count > 0, jnp.minimum(count, logits.shape[0]), logits.shape[0])
    lowest, highest = jnp.int32(-(2**31)), jnp.int32(2**31 - 1)
    threshold = _search(lambda level: (ordered >= level).sum(dtype=jnp.int32) >= wanted, lowest, highest)
    return ordered >= threshold


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


def _blocks(values: jax.Array, fill: float) -> jax.Array:
    """`[V]` values as rows of `BLOCK` (one row where V is small), the last filled up."""
    size = min(BLOCK, values.shape[0])
    return jnp.pad(values, (0, -values.shape[0] % size), constant_values=fill).reshape(-1, size)


def _invert(uniform: jax.Array, weights: jax.Array) -> jax.Array:
    """The first index whose cumulative weight exceeds a uniform share of the total, among positive weights."""
    cumulative = jnp.cumsum(weights)
    found = (cumulative > uniform * cumulative[-1]) & (weights > 0)
    return jnp.where(found.any(), jnp.argmax(found), jnp.argmax(weights)).astype(jnp.int32)


def _rows(name: str, value: Any, batch: int, dtype: Any, low: float, high: float) -> np.ndarray:
    """`[B]` values of one option, checked."""
    array = np.asarray(value)
    if array.ndim > 1 or (array.ndim == 1 and array.shape != (batch,)):
        raise ValueError(f"{name} has shape {array.shape}; give one value, or one for each of the {batch} rows.")
    if array.dtype.kind not in "iuf" or (dtype is np.int32 and array.dtype.kind == "f"):
        raise ValueError(f"{name}={value!r} is not {'an integer' if dtype is np.int32 else 'a number'}.")
    wrong = ~((array >= low) & (array <= high) & np.isfinite(array))
    if wrong.any():
        bound = f"at least {low:g}" if math.isinf(high) or high > 1 else f"between {low:g} and {high:g}"
        raise ValueError(f"{name}={array[wrong].flat[0]} is out of range: it must be finite and {bound}.")
    return np.ascontiguousarray(np.broadcast_to(array.astype(dtype), (batch,)))


def _bias(bias: Any, batch: int, vocab_size: int) -> jax.Array | None:
    """`[B, V]` logit bias, checked; None where there is none."""
    if bias is None or (isinstance(bias, Mapping) and not bias):
        return None
    if isinstance(bias, Mapping):
        dense = np.zeros(vocab_size, np.float32)
        for token, value in bias.items():
            if not 0 <= token < vocab_size:
                raise ValueError(
                    f"bias names token {token}; the target's vocabulary has the ids 0 to {vocab_size - 1}."
                )
            dense[token] = value
    else:
        dense = np.asarray(bias, np.float32)
    if dense.shape not in ((vocab_size,), (batch, vocab_size)):
        raise ValueError(
            f"bias has shape {dense.shape}; give {{token: value}}, [{vocab_size}] or [{batch}, {vocab_size}]."
        )
    if np.isnan(dense).any() or np.isposinf(dense).any():
        raise ValueError("bias holds NaN or +inf; give finite values, or -inf to ban a token.")
    dense = np.broadcast_to(dense, (batch, vocab_size))
    if np.isneginf(dense).all(axis=1).any():
        raise ValueError("bias bans every token of a row; leave at least one.")
    return jnp.asarray(dense)
