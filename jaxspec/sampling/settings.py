"""How tokens are drawn: what a user says, and the traced values of a row that it becomes.

Which options are in use is static (an unused one is None in `Options`, so the program does not contain it); their
values are traced and belong to a row.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Sampling:
    """How the next token is drawn from the target. Each value is one for all rows, or one a row (`[B]`).

    Attributes:
        temperature: 0 is greedy: the arg-max, lowest id first. So is what is below float32's smallest normal number
            (1.2e-38), which devices take for 0.
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
        raise ValueError("top_p=0 keeps no token; give a value above 1.2e-38, or temperature=0 for greedy decoding.")
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


def _rows(name: str, value: Any, batch: int, dtype: Any, low: float, high: float) -> np.ndarray:
    """`[B]` values of one option, checked as the `dtype` that they get; what float32 holds as a subnormal is 0."""
    array = np.asarray(value)
    if array.ndim > 1 or (array.ndim == 1 and array.shape != (batch,)):
        raise ValueError(f"{name} has shape {array.shape}; give one value, or one for each of the {batch} rows.")
    if array.dtype.kind not in "iuf" or (dtype is np.int32 and array.dtype.kind == "f"):
        raise ValueError(f"{name}={value!r} is not {'an integer' if dtype is np.int32 else 'a number'}.")
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    if dtype is np.float32:
        cast = np.where(np.abs(cast) < np.finfo(np.float32).tiny, np.float32(0.0), cast)
    wrong = ~((array >= low) & (array <= high) & np.isfinite(cast))
    if wrong.any():
        bound = f"at least {low:g}" if math.isinf(high) or high > 1 else f"between {low:g} and {high:g}"
        raise ValueError(f"{name}={array[wrong].flat[0]} is out of range: it must be {bound}, and finite in float32.")
    return np.ascontiguousarray(np.broadcast_to(cast, (batch,)))


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
