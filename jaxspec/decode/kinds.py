"""Kinds of options: what a program for rows of different requests contains, and the values that change nothing in it.

Which options are in use is static. Rows that come and go would compile a program for each set of them, so the options
go in four groups: a row that uses one of a group gets a program with all of it, in which what it does not use has the
value that changes nothing.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import cache
from jaxspec.base import Params
from jaxspec.decode.request import Request
from jaxspec.decode.state import PAD_STOP, Decoder, Row
from jaxspec.sampling import Options, Penalties
from jaxspec.sampling.past import ANYTHING

MOST_STOP_IDS = 16
MOST_WORDS, LONGEST_WORD = 32, 8
"""Banned words of a row, and tokens of one."""


class Kind(NamedTuple):
    """The groups of options that a program contains.

    Attributes:
        is_sampled: Temperatures, greedy rows among them.
        has_filters: Top-k, top-p and min-p.
        has_adjustments: Bias, penalties, banned words, and a least length.
        has_logprobs: Log-probabilities are kept.
    """

    is_sampled: bool = False
    has_filters: bool = False
    has_adjustments: bool = False
    has_logprobs: bool = False

    def joined(self, other: "Kind") -> "Kind":
        """The kind that has the groups of both."""
        return Kind(*(mine or its for mine, its in zip(self, other, strict=True)))


def kind_of(request: Request) -> Kind:
    """The groups that a request uses."""
    options = request.options
    return Kind(
        is_sampled=options.temperature is not None,
        has_filters=any(value is not None for value in (options.top_k, options.top_p, options.min_p)),
        has_adjustments=any(
            value is not None for value in (options.bias, options.penalties, options.bad_words, options.min_new_tokens)
        ),
        has_logprobs=request.with_logprobs,
    )


def least(decoder: Decoder, params: dict[str, Params]) -> Kind:
    """The kind that every program of a method has: sampled, where it carries something else between rounds then.

    A branch decoder keeps the distributions that its pending tokens were drawn from, so that its greedy rows can't go
    from a program to another.
    """

    def memory(kind: Kind) -> Any:
        options = free(kind, decoder.models["target"][0].vocab_size)
        one = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], options)
        none, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
        tokens, stop_ids = jnp.zeros(cache.MIN_CAPACITY, jnp.int32), jnp.zeros(MOST_STOP_IDS, jnp.int32)
        row = Row(tokens, none, none, none, stop_ids, jax.random.key(0), none, no, no, no, one, None)
        return jax.tree.structure(jax.eval_shape(lambda: decoder.init(params, row).memory))

    return Kind(is_sampled=memory(Kind()) != memory(Kind(is_sampled=True)))


def stop_ids_of(request: Request) -> np.ndarray:
    """`[n, MOST_STOP_IDS]` int32 stop ids of a request's rows.

    Raises:
        ValueError: More than there is room for.
    """
    width = (request.stop_ids != PAD_STOP).sum(axis=1).max()
    if width > MOST_STOP_IDS:
        raise ValueError(f"{width} stop ids; a row has at most {MOST_STOP_IDS} here.")
    width = min(request.stop_ids.shape[1], MOST_STOP_IDS)  # the padding stands behind them
    return _padded(request.stop_ids[:, :width], (MOST_STOP_IDS,), PAD_STOP, behind=True)


def words_of(request: Request) -> np.ndarray:
    """`[n, MOST_WORDS, LONGEST_WORD]` int32 banned words of a request's rows, filled up as in `Options`.

    Raises:
        ValueError: More or longer ones than there is room for.
    """
    size, words = request.size, request.options.bad_words
    if words is None:
        return np.full((size, MOST_WORDS, LONGEST_WORD), ANYTHING, np.int32)
    host = np.asarray(words)
    is_word = (host != ANYTHING).any(axis=2)
    number, length = is_word.sum(axis=1).max(), (host != ANYTHING).sum(axis=2).max()
    if number > MOST_WORDS or length > LONGEST_WORD:
        raise ValueError(
            f"{number} banned words of up to {length} tokens; a row has at most {MOST_WORDS} here, of at most "
            f"{LONGEST_WORD} tokens."
        )
    host = host[:, :MOST_WORDS, max(0, host.shape[2] - LONGEST_WORD) :]
    front = _padded(host, (host.shape[1], LONGEST_WORD), ANYTHING, behind=False)
    return _padded(front, (MOST_WORDS, LONGEST_WORD), ANYTHING, behind=True)


def filled(options: Options, words: np.ndarray, kind: Kind, vocab_size: int) -> Options:
    """The options of n rows with every group of a kind, as numpy arrays with a leading axis of n.

    Args:
        options: Of n rows; all that they use is in the kind's groups.
        words: `[n, MOST_WORDS, LONGEST_WORD]`, from `words_of`.
        kind: The groups.
        vocab_size: V.
    """
    size = len(words)

    def rows(value: Any, neutral: float | bool, dtype: Any = np.float32) -> Any:
        return np.full(size, neutral, dtype) if value is None else np.asarray(value)

    found: dict[str, Any] = {}
    if kind.is_sampled:
        found["temperature"] = rows(options.temperature, 0)
        found["draft_temperature"] = rows(options.draft_temperature, 0)
        found["is_greedy"] = found["temperature"] == 0
        found["is_greedy_draft"] = found["draft_temperature"] == 0
    if kind.has_filters:
        found["top_k"] = rows(options.top_k, 0, np.int32)
        found["top_p"], found["min_p"] = rows(options.top_p, 1), rows(options.min_p, 0)
    if kind.has_adjustments:
        nothing = np.zeros((size, vocab_size), np.float32)
        found["bias"] = nothing if options.bias is None else np.asarray(options.bias)
        frequency, presence, repetition, counts_prompt = options.penalties or (None, None, None, None)
        found["penalties"] = Penalties(
            rows(frequency, 0), rows(presence, 0), rows(repetition, 1), rows(counts_prompt, False, np.bool_)
        )
        found["bad_words"], found["min_new_tokens"] = words, rows(options.min_new_tokens, 0, np.int32)
    unknown = [name for name, value in options._asdict().items() if value is not None and name not in found]
    assert not unknown, f"the option {unknown[0]} is in no group of {kind}"
    return Options(**found)


def free(kind: Kind, vocab_size: int) -> Options:
    """Options of one row that asks for nothing, with every group of a kind."""
    nothing = np.full((1, MOST_WORDS, LONGEST_WORD), ANYTHING, np.int32)
    return filled(Options(), nothing, kind, vocab_size)


def stacked(rows: list[Options]) -> Options:
    """Options of one kind, `[1]` each, as those of a batch, on the device."""
    return jax.device_put(jax.tree.map(lambda *leaves: np.concatenate(leaves), *rows))


def _padded(values: np.ndarray, shape: tuple[int, ...], filler: int, behind: bool) -> np.ndarray:
    """Values with their last axes filled up to a shape, behind them or in front."""
    room = [(0, 0)] * (values.ndim - len(shape))
    for old, new in zip(values.shape[-len(shape) :], shape, strict=True):
        room.append((0, new - old) if behind else (new - old, 0))
    return np.pad(values, room, constant_values=filler)
