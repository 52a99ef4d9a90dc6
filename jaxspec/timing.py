"""Times of a model's steps and of a decoder's rounds on this machine, in milliseconds."""

import functools
import statistics
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxspec import cache, decode, sampling
from jaxspec.base import Context, Entries, Model, Params
from jaxspec.decode import Decoder, Sampling
from jaxspec.sampling import GREEDY

CAPACITY = 512
"""Slots of the context at which steps and rounds are timed."""

ROUND_TOKENS = (16, 96)
"""New tokens of the short and of the long generation that a round is timed by."""


def step_times(
    model: Model, params: Params, sizes: Sequence[int], *, capacity: int = CAPACITY, repeats: int = 7, steps: int = 8
) -> dict[int, float]:
    """Milliseconds of one forward over n tokens, with the arg-max of each, for each n of `sizes`.

    Each time is the median over `repeats` of a compiled loop of `steps` forwards, each waiting for the one before; the
    sizes take turns, so that a slow moment of the machine meets all of them.

    Args:
        model: Target or draft.
        params: Its parameters.
        sizes: Numbers of tokens in flight.
        capacity: Slots of the context, half of them filled.
        repeats: Measurements of each size, after one that is thrown away.
        steps: Forwards of one measurement.
    """
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for repeat in range(repeats + 1):
        for size in sizes:
            entries = jax.tree.map(jnp.copy, model.empty(capacity))  # arrays of their own, to be donated
            entries, length = jax.block_until_ready((entries, jnp.int32(capacity // 2)))
            start = time.perf_counter()
            jax.block_until_ready(_steps(model, params, entries, length, size, steps))
            if repeat:
                times[size].append((time.perf_counter() - start) / steps * 1000)
    return {size: statistics.median(values) for size, values in times.items()}


def round_time(
    decoder: Decoder,
    params: dict[str, Params],
    prompt: Sequence[int],
    *,
    key: jax.Array,
    num_tokens: tuple[int, int] = ROUND_TOKENS,
    capacity: int = CAPACITY,
    sampling: Sampling = GREEDY,
    draft_temperature: float | None = None,
    repeats: int = 5,
) -> float:
    """Milliseconds of one whole round, by the difference of a long and a short generation.

    What both have in common, the reading of the prompt and the call itself, cancels out.

    Args:
        decoder: The method.
        params: Parameters by model name.
        prompt: Token ids.
        key: The key is consumed.
        num_tokens: New tokens of the short and of the long generation.
        capacity: Slots of both, which the long one must fit into.
        sampling: As for `decode.generate`.
        draft_temperature: As for `decode.generate`.
        repeats: Pairs of generations, after one that is thrown away; the median is returned.
    """
    seconds: list[dict[int, float]] = []
    rounds: dict[int, int] = {}
    for _ in range(repeats + 1):
        seconds.append({})
        for limit in num_tokens:
            start = time.perf_counter()
            generation = decode.generate(
                decoder,
                params,
                [prompt],
                key=key,
                max_new_tokens=limit,
                sampling=sampling,
                draft_temperature=draft_temperature,
                logprobs=False,
                first_capacity=capacity,
            )
            seconds[-1][limit] = time.perf_counter() - start
            rounds[limit] = int(generation.stats.rounds[0])
    short, long = num_tokens
    differences = [times[long] - times[short] for times in seconds[1:]]
    return statistics.median(differences) / (rounds[long] - rounds[short]) * 1000


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
        output = model.apply(params, tokens, positions, context, model.empty(size), 0, mask)
        tokens = jax.vmap(lambda logits: sampling.argmax(logits.astype(jnp.float32)))(output.logits)
        nothing = jnp.zeros((), jnp.int32)
        return cache.commit(model, context, output.block, nothing, anchor=tokens[0]), tokens

    def one_row(entries: Entries) -> tuple[Context, jax.Array]:
        return jax.lax.fori_loop(0, steps, step, (Context(entries, length), jnp.zeros(size, jnp.int32)))

    context, tokens = jax.vmap(one_row)(jax.tree.map(lambda leaf: leaf[None], entries))
    return jax.tree.map(lambda leaf: leaf[0], context.entries), tokens[0]
