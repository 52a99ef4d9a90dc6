"""Times of a model's steps and of a decoder's rounds on this machine, in milliseconds."""

import functools
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from jaxspec import base, cache, decode, sampling
from jaxspec.base import Context, Entries, Model, Params
from jaxspec.decode import Decoder

CAPACITY = 512
"""Slots of the context at which steps and rounds are timed."""

ROUND_TOKENS = (16, 96)
"""New tokens of the short and of the long generation that a round is timed by."""


Timed = Callable[[], float]
"""One measurement: does what it is of once, and gives its milliseconds."""

Name = TypeVar("Name", bound=Hashable)


def in_turns(timed: Mapping[Name, Timed], repeats: int) -> dict[Name, list[float]]:
    """`repeats` measurements of each, after one that is thrown away.

    They take turns, so that what one repeat has of them is of one moment of the machine.
    """
    times: dict[Name, list[float]] = {name: [] for name in timed}
    for repeat in range(repeats + 1):
        for name, once in timed.items():
            found = once()
            if repeat:
                times[name].append(found)
    return times


def step_times(
    model: Model, params: Params, sizes: Sequence[int], *, capacity: int = CAPACITY, repeats: int = 7, steps: int = 8
) -> dict[int, float]:
    """Milliseconds of one forward over n tokens, for each n of `sizes`: medians of `timed_step`, in turns.

    Args:
        model: Target or draft.
        params: Its parameters.
        sizes: Numbers of tokens in flight.
        capacity: Slots of the context, half of them filled.
        repeats: Measurements of each size, after one that is thrown away.
        steps: Forwards of one measurement.
    """
    timed = {size: timed_step(model, params, size, capacity=capacity, steps=steps) for size in sizes}
    return {size: statistics.median(times) for size, times in in_turns(timed, repeats).items()}


def timed_step(model: Model, params: Params, size: int, *, capacity: int = CAPACITY, steps: int = 8) -> Timed:
    """One forward over `size` tokens, with the arg-max of each: a compiled loop of forwards that wait for one another.

    Arguments are those of `step_times`.
    """

    def once() -> float:
        entries = jax.tree.map(jnp.copy, model.empty(capacity))  # arrays of their own, to be donated
        entries, length = jax.block_until_ready((entries, jnp.int32(capacity // 2)))
        start = time.perf_counter()
        jax.block_until_ready(_steps(model, params, entries, length, size, steps))
        return (time.perf_counter() - start) / steps * 1000

    return once


def round_time(
    decoder: Decoder, params: dict[str, Params], prompt: Sequence[int], *, repeats: int = 5, **options: Any
) -> float:
    """Milliseconds of one whole round, the median of `repeats` times `timed_round`, whose other arguments it has."""
    [times] = in_turns({0: timed_round(decoder, params, prompt, **options)}, repeats).values()
    return statistics.median(times)


def timed_round(
    decoder: Decoder,
    params: dict[str, Params],
    prompt: Sequence[int],
    *,
    key: jax.Array,
    num_tokens: tuple[int, int] = ROUND_TOKENS,
    capacity: int = CAPACITY,
    **asked: Any,
) -> Timed:
    """One whole round, by the difference of two generations.

    What a long and a short one have in common, the reading of the prompt and the call itself, cancels out.

    Args:
        decoder: The method.
        params: Parameters by model name.
        prompt: Token ids.
        key: The key is consumed.
        num_tokens: New tokens of the short and of the long generation.
        capacity: Slots of both, which the long one must fit into.
        **asked: As for `decode.generate`, such as `sampling` and `draft_temperature`.
    """

    def generation(limit: int) -> tuple[float, int]:
        start = time.perf_counter()
        found = decode.generate(
            decoder,
            params,
            [prompt],
            key=key,
            max_new_tokens=limit,
            logprobs=False,
            first_capacity=capacity,
            **asked,
        )
        return time.perf_counter() - start, int(found.stats.rounds[0])

    def once() -> float:
        (short, few), (long, many) = map(generation, num_tokens)
        return (long - short) / (many - few) * 1000

    return once


@functools.partial(jax.jit, static_argnames=("model", "size"), donate_argnames="entries")
def _steps(
    model: Model, params: Params, entries: Entries, length: jax.Array, size: int, steps: int
) -> tuple[Entries, jax.Array]:
    """The context's entries and `[size]` tokens after some forwards over `size` tokens.

    Vmapped over one row as the loop runs them, and donated as there: a copy of the context would be timed as well.
    """
    mask = jnp.tril(jnp.ones((size, size), bool))
    positions = length + jnp.arange(size, dtype=jnp.int32)

    def step(_: jax.Array, carry: tuple[Context, jax.Array]) -> tuple[Context, jax.Array]:
        context, tokens = carry
        output = base.forward(model, params, tokens, positions, context, model.empty(size), 0, mask)
        tokens = jax.vmap(lambda logits: sampling.argmax(logits.astype(jnp.float32)))(output.logits)
        nothing = jnp.zeros((), jnp.int32)
        return cache.commit(model, context, output.block, nothing, anchor=tokens[0]), tokens

    def one_row(entries: Entries) -> tuple[Context, jax.Array]:
        return jax.lax.fori_loop(0, steps, step, (Context(entries, length), jnp.zeros(size, jnp.int32)))

    context, tokens = jax.vmap(one_row)(jax.tree.map(lambda leaf: leaf[None], entries))
    return jax.tree.map(lambda leaf: leaf[0], context.entries), tokens[0]
