"""What a user gives for an option, checked and laid out for a batch, on the host."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.sampling.past import ANYTHING

MIN_WORDS = 4

_INTEGER = (int, np.integer)
_KINDS = {np.float32: ("iuf", "a number"), np.int32: ("iu", "an integer"), np.bool_: ("b", "True or False")}


def rows(name: str, value: Any, batch: int, dtype: Any, low: float, high: float) -> np.ndarray:
    """`[B]` values of one option, checked as the `dtype` that they get; what float32 holds as a subnormal is 0.

    Raises:
        ValueError: A value of another type, out of range, or another number of them than B.
    """
    kinds, kind = _KINDS[dtype]
    try:
        array = np.asarray(value)
    except ValueError:  # lists of several lengths
        raise ValueError(f"{name}={value!r}; give one value, or one for each of the {batch} rows.") from None
    if array.dtype.kind not in kinds:
        raise ValueError(f"{name}={value!r} is not {kind}.")
    if array.ndim > 1 or (array.ndim == 1 and array.shape != (batch,)):
        raise ValueError(f"{name} has shape {array.shape}; give one value, or one for each of the {batch} rows.")
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    if dtype is np.float32:
        cast = np.where(np.abs(cast) < np.finfo(np.float32).tiny, np.float32(0.0), cast)
    wrong = ~((array >= low) & (array <= high) & np.isfinite(cast))
    if wrong.any():
        raise ValueError(f"{name}={array[wrong].flat[0]} is out of range: it must be {_bound(low, high)}.")
    return np.ascontiguousarray(np.broadcast_to(cast, (batch,)))


def bias_of(bias: Any, batch: int, vocab_size: int) -> jax.Array | None:
    """`[B, V]` logit bias, checked; None where there is none.

    Raises:
        ValueError: Another type or shape, a token that is none, NaN or +inf, or a row of which nothing is left.
    """
    if bias is None or (isinstance(bias, Mapping) and not bias):
        return None
    with np.errstate(over="ignore"):  # what is too low for float32 is -inf, and what is too high is refused
        if isinstance(bias, Mapping):
            dense = np.zeros(vocab_size, np.float32)
            for token, value in bias.items():
                _check_token("bias", token, vocab_size)
                if isinstance(value, bool) or not isinstance(value, int | float | np.number):
                    raise ValueError(f"bias has {value!r} for token {token}; give a number.")
                dense[token] = value
        else:
            dense = _floats(bias)
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


def words_of(words: Any, batch: int, vocab_size: int) -> jax.Array | None:
    """`[B, K, L]` banned words, checked; None where there is none. K and L are powers of two, so that they seldom
    compile anything.

    Raises:
        ValueError: Something else than words, a token that is none, or another number of lists than B.
    """
    if not _is_list(words):
        raise ValueError(f"bad_words={words!r}; give a list of token ids, and of lists of them.")
    if not any(not _is_list(word) or len(word) for word in words):  # none, or none for each row
        return None
    per_row = _of_rows(words)
    listed = [_words(row, vocab_size) for row in (words if per_row else [words])]
    if per_row and len(listed) != batch:
        raise ValueError(f"bad_words has {len(listed)} lists of words for {batch} rows; give one for each row.")
    if not any(listed):
        return None
    count = _bucket(max(MIN_WORDS, *map(len, listed)))
    length = _bucket(max(len(word) for row in listed for word in row))
    dense = np.full((len(listed), count, length), ANYTHING, np.int32)
    for row, its_words in enumerate(listed):
        for place, word in enumerate(its_words):
            dense[row, place, length - len(word) :] = word
        if len({word[0] for word in its_words if len(word) == 1}) == vocab_size:
            raise ValueError("bad_words bans every token of a row; leave at least one.")
    return jnp.asarray(np.broadcast_to(dense, (batch, count, length)))


def _of_rows(words: Any) -> bool:
    """Whether there is a list of words for each row: some word in them is a list."""
    return any(_is_list(row) and any(_is_list(word) for word in row) for row in words)


def _is_list(given: Any) -> bool:
    return isinstance(given, Sequence | np.ndarray) and not isinstance(given, str)


def _words(words: Any, vocab_size: int) -> list[list[int]]:
    listed = [list(word) if _is_list(word) else [word] for word in words]
    for word in listed:
        if not word:
            raise ValueError("bad_words holds an empty word; a word has at least one token.")
        for token in word:
            _check_token("bad_words", token, vocab_size)
    return listed


def _check_token(name: str, token: Any, vocab_size: int) -> None:
    if isinstance(token, bool) or not isinstance(token, _INTEGER) or not 0 <= token < vocab_size:
        raise ValueError(f"{name} names token {token!r}; the target's vocabulary has the ids 0 to {vocab_size - 1}.")


def _floats(bias: Any) -> np.ndarray:
    try:
        return np.asarray(bias, np.float32)
    except (TypeError, ValueError):
        raise ValueError(f"bias is {type(bias).__name__}; give {{token: value}}, or an array of numbers.") from None


def _bucket(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _bound(low: float, high: float) -> str:
    if high == 1:
        return f"between {low:g} and {high:g}"
    return "finite in float32" if math.isinf(low) else f"at least {low:g}, and finite in float32"
