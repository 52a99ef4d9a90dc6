"""What a rule, a pipeline or a decoder must pass. The mutants of the tests must fail these very checks."""

import functools
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import reference

from jaxspec import cache, decode, sampling, verify
from jaxspec.base import Params
from jaxspec.decode import loop
from jaxspec.decode.request import Asked, checked
from jaxspec.decode.state import Decoder, Info, Row

PROMPTS = ([3], [1, 4], [2, 0, 5, 5, 1, 9, 3], [int(token) for token in np.random.default_rng(5).integers(0, 11, 31)])
"""Prompts of 1, 2, 7 and 31 tokens."""

RAGGED = [*PROMPTS, PROMPTS[2][::-1]]
"""Five prompts: what a batch may mix."""

KEY = jax.random.key(7)


def run(decoder: Decoder, params: dict[str, Params], prompts: Sequence[Sequence[int]], count: Any = 20, **options: Any):
    """`decode.generate` with a fixed key."""
    return decode.generate(decoder, params, prompts, **{"key": KEY, "max_new_tokens": count, **options})


def rows(generation: decode.Generation) -> list[list[int]]:
    """The new tokens of each row, without padding."""
    return [row[:length].tolist() for row, length in zip(generation.tokens, generation.lengths, strict=True)]


def logprobs(generation: decode.Generation) -> np.ndarray:
    """Those of a generation that was asked for them."""
    assert generation.logprobs is not None
    return generation.logprobs


def assert_greedy_equals_reference(
    decoder: Decoder,
    params: dict[str, Params],
    prompts: Sequence[Sequence[int]] = RAGGED,
    count: int = 20,
    stop_ids: Sequence[int] = (),
    **options: Any,
) -> decode.Generation:
    """Greedy tokens are those of the uncached loop, in every row."""
    generation = run(decoder, params, prompts, count, stop_ids=stop_ids, **options)
    target = decoder.models["target"][0]
    for prompt, tokens in zip(prompts, rows(generation), strict=True):
        assert tokens == reference.greedy(target, params["target"], prompt, count, stop_ids)
    return generation


def assert_accepts_everything(decoder: Decoder, params: dict[str, Params], prompts=RAGGED, count: int = 24) -> None:
    """A draft that is the target is accepted to the full depth in every round, but for the cut at the limit."""
    counts = run(decoder, params, prompts, count).stats.counts
    np.testing.assert_array_equal(counts.rounds, -(-count // decoder.max_emitted))
    np.testing.assert_array_equal(counts.rejections, 0)


def assert_joint_law(
    decoder: Decoder,
    params: dict[str, Params],
    transitions: np.ndarray,
    count: int,
    limit: float,
    num_keys: int = 2,
    num_rows: int = 2**15,
    **options: Any,
) -> None:
    """The joint law of the `count` tokens after token 0 lies within `limit` in total variation.

    From N samples of K outcomes the distance of the right law is .4 sqrt(K / N): of 3 tokens of 3 .008 from the default
    number, of 4 tokens .014.
    """
    vocab_size = len(transitions)
    seen = np.zeros(vocab_size**count)
    frugal: dict[str, Any] = {"logprobs": False, "prefill_chunk": 1}
    for seed in range(num_keys):
        with mock.patch.object(cache, "MIN_CAPACITY", 1):  # the rows are many and short: less room, fewer bytes moved
            generation = run(
                decoder,
                params,
                [[0]] * num_rows,
                count,
                **{"key": jax.random.key(seed), "sampling": decode.Sampling(1.0), **frugal, **options},
            )
        codes = generation.tokens @ vocab_size ** np.arange(count)[::-1]
        seen += np.bincount(codes, minlength=len(seen))
    law = reference.joint_law(transitions, 0, count).ravel()
    distance = reference.total_variation(seen / seen.sum(), law)
    assert distance < limit, f"total variation {distance:.4f}"


def assert_rule_is_exact(rule: verify.Rule, target: Sequence[float], draft: Sequence[float], count: int) -> None:
    """One position emits the target's law."""
    np.testing.assert_allclose(verify.output_distribution(rule, target, draft, count), target, rtol=0, atol=1e-6)


@functools.partial(jax.jit, static_argnums=(0, 3))
def proposals(rule: verify.Rule, keys: jax.Array, logits: jax.Array, count: int) -> jax.Array:
    """`[keys, count]` children."""
    return jax.vmap(lambda key: rule.propose(key, logits, count))(keys)


def assert_proposes_its_law(rule: verify.Rule, draft: Sequence[float], count: int, num_keys: int = 2**16) -> None:
    """`propose` has the law that `draws` enumerates and the verifier assumes."""
    size = len(draft)
    logits = jnp.log(jnp.asarray(draft, jnp.float32))
    children = np.asarray(proposals(rule, jax.random.split(jax.random.key(3), num_keys), logits, count))
    counts = np.bincount(children @ size ** np.arange(count)[::-1], minlength=size**count)
    law = np.zeros(size**count)
    for tokens, probability in reference.draws(np.asarray(draft), count):
        law[np.array(tokens) @ size ** np.arange(count)[::-1]] += probability
    excess = reference.chi_square_excess(counts, law)
    assert excess < 5, f"chi-square {excess:.1f} standard deviations above its mean"


def assert_pipeline(pipeline: Callable[[sampling.Options, jax.Array], jax.Array]) -> None:
    """The pipeline follows the documented order, on the example of which the wrong orders are known."""
    for temperature in (2.0, 0.5):
        chosen = sampling.options(sampling.Sampling(temperature, top_p=0.8), None, 1, 4)
        law = pipeline(jax.tree.map(lambda leaf: leaf[0], chosen), jnp.array([2.0, 1.0, 0.0, -1.0]))
        wanted = reference.distribution(np.array([2.0, 1.0, 0.0, -1.0]), temperature, top_p=0.8)
        np.testing.assert_allclose(law, wanted, atol=1e-6)


def steps(decoder: Decoder, params: dict[str, Params], prompts, count: Any = 20, change: Any = None, **options: Any):
    """Rounds by the step API: the states, and what each round reports. `change` may alter a state between rounds."""
    key = options.pop("key", KEY)
    request = checked(decoder, params, prompts, key, Asked(max_new_tokens=count, **options))
    state = loop.begin(decoder, params, request)
    reports: list[tuple[Row, Info]] = []
    while not np.asarray(state.row.is_finished).all():
        state = state if change is None else change(state)
        before = jax.tree.map(_on_host, state.row._replace(key=None))
        state, info = loop._round(decoder, params, state)
        reports.append((before, jax.device_get(info)))
    return state, reports


def _on_host(leaf: jax.Array) -> np.ndarray:
    return np.array(leaf)  # a copy: the state that holds it is donated
