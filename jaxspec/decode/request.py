"""What is asked of a generation, and a batch of prompts with it: checked on the host and laid out as rows."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxspec import cache, sampling
from jaxspec.base import Params
from jaxspec.decode.state import PAD_STOP, Decoder, Row
from jaxspec.sampling import GREEDY, Sampling

PREFILL_CHUNK = 64
"""Prompt tokens of one forward."""

FIRST_CAPACITY = 2048
"""Slots up to which a generation gets all its room at once; beyond it the room doubles when it is used up."""

MIN_STOP_IDS = 4

_INTEGER = (int, np.integer)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Asked:
    """What is asked of a generation, whatever decodes it: the keywords of `decode.generate`, with their defaults.

    Attributes:
        max_new_tokens: One limit, or one for each row; at least 1. What a row does not emit costs nothing.
        min_new_tokens: New tokens before a stop id may be one: until then stop ids are banned. One, or one a row.
        sampling: How tokens are drawn from the target; values for all rows or for each.
        stop_ids: Token ids that end a row, for all rows or a list for each row. The stop token is kept. None, or -1
            among them, stops nothing.
        draft_temperature: The draft's own temperature; None: the target's. It changes speed only.
        logprobs: Whether to keep the tokens' log-probabilities (vocabulary-size work for each emitted token).
        prefill_chunk: Prompt tokens of one forward.
        first_capacity: Slots to begin with, rounded up to a bucket; None: all that is needed, up to `FIRST_CAPACITY`.
            The room doubles when it is used up.
        num_samples: Rows for each prompt, which is read once; they lie side by side, and have its values.
    """

    max_new_tokens: int | Sequence[int]
    sampling: Sampling = GREEDY
    stop_ids: Iterable[int] | Sequence[Iterable[int]] | None = ()
    draft_temperature: float | Sequence[float] | None = None
    min_new_tokens: int | Sequence[int] = 0
    logprobs: bool = True
    prefill_chunk: int = PREFILL_CHUNK
    first_capacity: int | None = None
    num_samples: int = 1


class Request(NamedTuple):
    """Prompts and what was asked for them, checked.

    Attributes:
        prompts: B arrays of int32 token ids, of which `num_samples` neighbours are equal.
        max_new_tokens: `[B]` int32.
        stop_ids: `[B, K]` int32.
        keys: `[B]` keys.
        options: Sampling options with a leading axis of B.
        with_logprobs: Whether log-probabilities are kept.
        prefill_chunk: Prompt tokens of one forward.
        first_capacity: The fewest slots to begin with; None: see `Asked`.
        num_samples: Rows for each prompt.
    """

    prompts: list[np.ndarray]
    max_new_tokens: np.ndarray
    stop_ids: np.ndarray
    keys: jax.Array
    options: sampling.Options
    with_logprobs: bool
    prefill_chunk: int
    first_capacity: int | None
    num_samples: int

    @property
    def size(self) -> int:
        """B."""
        return len(self.prompts)

    @property
    def prompt_lengths(self) -> np.ndarray:
        """`[B]` int32."""
        return np.array([len(prompt) for prompt in self.prompts], np.int32)

    def capacity(self, decoder: Decoder) -> int:
        """Slots to begin with: as many as asked for, and at least so many that the prompt and a round fit."""
        longest = int(self.prompt_lengths.max())
        prefilled = -(-(longest - 1) // self.prefill_chunk) * self.prefill_chunk
        wanted = self.first_capacity
        if wanted is None:
            wanted = min(self.last_capacity(decoder), FIRST_CAPACITY)
        return cache.bucket(max(prefilled, longest + decoder.max_emitted, wanted))

    def last_capacity(self, decoder: Decoder) -> int:
        """Slots that suffice for the longest row, with a round's tokens behind it."""
        return cache.bucket(int((self.prompt_lengths + self.max_new_tokens).max()) + decoder.max_emitted)

    def rows(self, capacity: int) -> Row:
        """The rows before the first round, each leaf with a leading axis of B."""
        tokens = np.zeros((self.size, capacity), np.int32)
        for row, prompt in enumerate(self.prompts):
            tokens[row, : len(prompt)] = prompt
        lengths = self.prompt_lengths
        host: dict[str, Any] = {  # numpy arrays: the compiled program that takes them puts them on the device
            "tokens": tokens,
            "num_tokens": lengths,
            "prompt_length": lengths,
            "max_new_tokens": self.max_new_tokens,
            "stop_ids": self.stop_ids,
            "num_rounds": np.zeros(self.size, np.int32),
            "is_finished": np.zeros(self.size, bool),
            "is_stopped": np.zeros(self.size, bool),
            "is_failed": np.zeros(self.size, bool),
            "logprobs": np.zeros((self.size, capacity), np.float32) if self.with_logprobs else None,
        }
        return Row(key=self.keys, options=self.options, **host)


def checked(
    decoder: Decoder, params: dict[str, Params], prompts: Sequence[Sequence[int]], key: jax.Array, asked: Asked
) -> Request:
    """The request for these prompts, checked; arguments as for `generate`.

    Raises:
        ValueError: Anything that can't be decoded, with its value, the rule and the way out.
    """
    _check_not_traced(params, prompts, key)
    needed = [*decoder.models, *getattr(decoder, "extra_params", ())]
    missing = [name for name in needed if name not in params]
    if missing:
        raise ValueError(f"params has no {missing[0]!r}; this decoder needs parameters for {sorted(needed)}.")
    target, _ = decoder.models["target"]
    texts = _prompts(prompts, target.vocab_size)
    limits = _limits(asked.max_new_tokens, len(texts))
    longest = max(len(text) + int(limit) for text, limit in zip(texts, limits, strict=True))
    max_length = getattr(target, "max_length", None)
    if max_length is not None and longest > max_length:
        raise ValueError(
            f"A prompt and its max_new_tokens come to {longest} tokens, but the target was made for {max_length}: "
            "shorten the prompt or ask for fewer."
        )
    if asked.prefill_chunk < 1:
        raise ValueError(f"prefill_chunk={asked.prefill_chunk}; a chunk has at least 1 token.")
    stop_ids = _stop_ids(asked.stop_ids, len(texts), target.vocab_size)
    options = sampling.options(
        asked.sampling, asked.draft_temperature, len(texts), target.vocab_size, asked.min_new_tokens
    )
    _check_end(options, limits, stop_ids, target.vocab_size)
    count = _num_samples(asked.num_samples)
    return Request(
        prompts=[text for text in texts for _ in range(count)],
        max_new_tokens=np.repeat(limits, count),
        stop_ids=np.repeat(stop_ids, count, axis=0),
        keys=_keys(key, len(texts) * count),
        options=options if count == 1 else jax.tree.map(lambda leaf: jnp.repeat(leaf, count, axis=0), options),
        with_logprobs=asked.logprobs,
        prefill_chunk=asked.prefill_chunk,
        first_capacity=asked.first_capacity,
        num_samples=count,
    )


def _check_not_traced(params: dict[str, Params], prompts: Any, key: Any) -> None:
    """Raises inside of a program that is being traced: what follows looks at values."""
    listed = prompts if isinstance(prompts, list | tuple) else [prompts]
    # An array that is made here is traced, too, where a `jit` is around.
    if any(isinstance(leaf, Tracer) for leaf in (key, *listed, *jax.tree.leaves(params), jnp.zeros(()))):
        raise ValueError(
            "This is called inside of jit, vmap or another transformation, but runs programs of its own and looks at "
            "what they give: call it outside, or trace decoder.round on a state of decode.first_state instead."
        )


def _num_samples(count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, _INTEGER) or count < 1:
        raise ValueError(f"num_samples={count!r}; give a whole number, 1 or more.")
    return int(count)


def _prompts(prompts: Sequence[Sequence[int]], vocab_size: int) -> list[np.ndarray]:
    if not len(prompts):
        raise ValueError("prompts is empty: give at least one list of token ids.")
    listed = list(prompts)
    known: dict[int, np.ndarray] = {}  # by identity: a prompt that stands in many rows is looked at once
    for row, prompt in enumerate(listed):
        if id(prompt) not in known:
            known[id(prompt)] = _prompt(row, prompt, vocab_size)
    return [known[id(prompt)] for prompt in listed]


def _prompt(row: int, prompt: Sequence[int], vocab_size: int) -> np.ndarray:
    tokens = np.asarray(prompt)
    if tokens.ndim != 1:
        raise ValueError(f"prompts[{row}] is {prompt!r}; prompts is a list of lists of token ids.")
    if not tokens.size:
        raise ValueError(f"prompts[{row}] is empty: a prompt needs at least one token, such as the model's BOS.")
    if tokens.dtype.kind not in "iu":
        raise ValueError(f"prompts[{row}] holds {tokens.dtype} values; token ids are integers.")
    wrong = tokens[(tokens < 0) | (tokens >= vocab_size)]
    if wrong.size:
        raise ValueError(f"prompts[{row}] holds token {wrong[0]}; the target has the ids 0 to {vocab_size - 1}.")
    return tokens.astype(np.int32)


def _limits(max_new_tokens: int | Sequence[int], batch: int) -> np.ndarray:
    limits = np.asarray(max_new_tokens)
    if limits.dtype.kind not in "iu" or limits.shape not in ((), (batch,)):
        raise ValueError(f"max_new_tokens={max_new_tokens!r}; give one integer, or one for each of the {batch} rows.")
    if (limits < 1).any():
        raise ValueError(f"max_new_tokens={limits.min()}; at least 1 token is generated.")
    if (limits >= 2**30).any():
        raise ValueError(f"max_new_tokens={limits.max()}; less than 2**30 is needed.")
    return np.broadcast_to(limits.astype(np.int32), (batch,))


def _check_end(options: sampling.Options, limits: np.ndarray, stop_ids: np.ndarray, vocab_size: int) -> None:
    """Raises where a row must be longer than it may be, or has nothing to emit before it may stop."""
    if options.min_new_tokens is None:
        return
    least = np.asarray(options.min_new_tokens)
    if (least > limits).any():
        row = int(np.argmax(least > limits))
        raise ValueError(f"min_new_tokens={least[row]} is more than max_new_tokens={limits[row]}; ask for fewer.")
    banned = np.zeros((len(limits), vocab_size), bool) if options.bias is None else np.isneginf(options.bias)
    for row in np.flatnonzero(least > 0):
        if len({*np.flatnonzero(banned[row]).tolist(), *stop_ids[row][stop_ids[row] >= 0].tolist()}) == vocab_size:
            raise ValueError(
                f"min_new_tokens={least[row]} bans the stop ids, and the bias all others; leave one token."
            )


def _stop_ids(stop_ids: Any, batch: int, vocab_size: int) -> np.ndarray:
    """`[B, K]` stop ids; K is a power of two, so that their number seldom compiles anything."""
    if stop_ids is not None and not isinstance(stop_ids, Iterable | int | np.integer):
        raise ValueError(f"stop_ids={stop_ids!r}; give token ids, or a list of them for each row.")
    listed = [] if stop_ids is None else [stop_ids] if isinstance(stop_ids, _INTEGER) else list(stop_ids)
    is_shared = all(isinstance(stop, _INTEGER) for stop in listed)
    rows = [listed] if is_shared else [list(stop) if isinstance(stop, Iterable) else [stop] for stop in listed]
    if not is_shared and len(rows) != batch:
        raise ValueError(f"stop_ids has {len(rows)} lists for {batch} rows; give one list of ids, or one for each row.")
    for stop in (stop for row in rows for stop in row):
        if not isinstance(stop, _INTEGER) or not PAD_STOP <= stop < vocab_size:
            raise ValueError(f"stop_ids holds {stop!r}; ids lie between 0 and {vocab_size - 1} (-1 or None: no stop).")
    longest = max(map(len, rows))
    width = MIN_STOP_IDS if longest <= MIN_STOP_IDS else 1 << (longest - 1).bit_length()
    filled = np.array([[*row, *[PAD_STOP] * (width - len(row))] for row in rows], np.int32)
    return np.ascontiguousarray(np.broadcast_to(filled, (batch, width)))


def _keys(key: Any, batch: int) -> jax.Array:
    if not isinstance(key, jax.Array) or not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        raise ValueError(f"key is {type(key).__name__}; give jax.random.key(seed), or one such key for each row.")
    if key.shape == ():
        return _row_keys(key, np.arange(batch, dtype=np.uint32))
    if key.shape != (batch,):
        raise ValueError(f"key has shape {key.shape}; give one key, or one for each of the {batch} rows.")
    return jnp.array(key, copy=True)  # the state that holds it is donated


@jax.jit
def _row_keys(key: jax.Array, rows: jax.Array) -> jax.Array:
    """`[B]` keys, each of which depends on its row's number alone."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, rows)
