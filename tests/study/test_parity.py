"""Parity: first forks are found where they are, with the gap of the target's logits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checks import PROMPTS
from toys import TableLM, pair

from jaxspec import decode, parity, tree
from jaxspec.networks import Transformer

CYCLE = 4.0 * np.roll(np.eye(5), 1, axis=1)
"""Token i is followed by i + 1."""


def params_of(table):
    return {"target": {"table": jnp.asarray(table, jnp.float32)}}


def test_equal_texts_have_no_fork():
    toy = pair("ctx")
    result = parity.greedy(
        decode.sequoia(toy.target, toy.draft, tree.k_ary(2, 2)), toy.params, PROMPTS[:3], max_new_tokens=12
    )
    assert (result.forks, result.prompts, result.tokens, result.first_forks) == (0, 3, 36, ())


def test_a_planted_tie_is_reported_with_its_place_and_gap():
    """The runner-up lies one float32 step below the arg-max, and the method took it."""
    table = CYCLE.astype(np.float32)
    table[3, 1] = np.nextafter(np.float32(4.0), np.float32(0.0))  # after 3: 4, or 1 by a hair
    params, model = params_of(table), TableLM(5)
    plain = parity.texts(decode.autoregressive(model), params, [[0], [2]], max_new_tokens=5)
    np.testing.assert_array_equal(plain[0], [1, 2, 3, 4, 0])
    own = [np.array([1, 2, 3, 1, 2]), plain[1]]
    result = parity.compare(model, params["target"], [[0], [2]], plain, own)
    assert result.forks == 1
    fork = result.first_forks[0]
    assert (fork.prompt, fork.position, fork.plain, fork.token) == (0, 3, 4, 1)
    assert fork.gap == pytest.approx(4.0 - float(table[3, 1]), rel=1e-6)
    assert 0 < fork.gap < 1e-6


def test_a_text_that_ends_early_is_a_fork_without_a_gap():
    params, model = params_of(CYCLE), TableLM(5)
    plain = parity.texts(decode.autoregressive(model), params, [[0]], max_new_tokens=4)
    result = parity.compare(model, params["target"], [[0]], plain, [np.array([1, 2, decode.PADDING, decode.PADDING])])
    assert result.first_forks[0][:4] == (0, 2, 3, decode.PADDING)
    assert np.isnan(result.first_forks[0].gap)


def test_bfloat16_forks_only_at_near_ties():
    """In bfloat16 a fork is legitimate where float32 has the two tokens within 2^-6 of the largest logit."""
    toy = pair("tiny")
    model = toy.target
    assert isinstance(model, Transformer)
    low = dataclasses.replace(model, dtype="bfloat16")
    params = {name: jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), toy.params[name]) for name in toy.params}
    prompts = [np.random.default_rng(seed).integers(0, 61, 5).tolist() for seed in range(16)]
    result = parity.greedy(decode.sequoia(low, low, tree.k_ary(2, 2)), params, prompts, max_new_tokens=16)
    plain = parity.texts(decode.autoregressive(low), params, prompts, max_new_tokens=16)
    for fork in result.first_forks:
        text = [*prompts[fork.prompt], *plain[fork.prompt][: fork.position].tolist()]
        wide = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params["target"])
        logits = parity.next_logits(model, wide, text)
        assert abs(logits[fork.plain] - logits[fork.token]) < 2.0**-6 * np.abs(logits).max()
    assert result.tokens == 16 * 16


def test_a_gap_has_what_acts_on_logits():
    """Behind 0 1 2 both 2 and 3 are held back, 2 for having been there twice."""
    table = np.zeros((5, 5))
    table[2, 2], table[2, 3] = 4.0, 1.5
    asked = {"max_new_tokens": 3, "sampling": decode.Sampling(frequency_penalty=1.0, bias={3: 0.75})}
    plain, own = [np.array([2, 2, 3])], [np.array([2, 2, 2])]
    result = parity.compare(TableLM(5), params_of(table)["target"], [[0, 2]], plain, own, **asked)
    assert result.first_forks == (parity.Fork(0, 2, 3, 2, 2.25 - 2.0),)
