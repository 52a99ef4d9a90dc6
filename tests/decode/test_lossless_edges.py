"""At temperature 0: the edges of caches, prompts, vocabularies and drafts, and rows beside one another."""

import checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from checks import PROMPTS, RAGGED, assert_greedy_equals_reference, rows, run, steps
from toys import TREES, CtxLM, PosLM, TableLM, decoder_of, noisy, pair

from jaxspec import decode, tree


def test_garbage_behind_the_committed_tokens():
    """Slots that hold no token may hold anything, after every round and in both contexts."""
    target, draft, params = pair("ctx")

    def spoil(state):
        def spoil_context(context):
            stale = jnp.arange(64)[None] >= context.length[:, None]
            return context._replace(entries=jax.tree.map(lambda leaf: jnp.where(stale, 10_000, leaf), context.entries))

        return state._replace(contexts={name: spoil_context(context) for name, context in state.contexts.items()})

    decoder = decode.sequoia(target, draft, TREES["binary"])
    state, _ = steps(decoder, params, RAGGED, 20, change=spoil)
    for row, prompt in enumerate(RAGGED):
        tokens = state.row.tokens[row, len(prompt) : len(prompt) + 20].tolist()
        assert tokens == reference.greedy(target, params["target"], prompt, 20)


@pytest.mark.parametrize("shape", ["chain3", "binary"])
def test_draft_of_limited_length(shape):
    """Behind the draft's last position nothing is drafted, decoding goes on plainly, in the same program."""
    target, params = CtxLM(11, max_length=64), pair("ctx").params
    params = {"target": params["target"], "draft": noisy(params["target"], 0.1)}
    decoder = decode.sequoia(target, CtxLM(11, max_length=16), TREES[shape])
    state, reports = steps(decoder, params, [PROMPTS[0], PROMPTS[2]], 40)
    for row, prompt in enumerate([PROMPTS[0], PROMPTS[2]]):
        tokens = state.row.tokens[row, len(prompt) : len(prompt) + 40].tolist()
        assert tokens == reference.greedy(target, params["target"], prompt, 40)
    for before, info in reports:
        position = before.num_tokens - 1
        depths = TREES[shape].depths[None, 1:]
        possible = (position[:, None] + depths <= 16).sum(axis=1)
        np.testing.assert_array_equal(info.num_drafted, np.where(before.is_finished, 0, possible))
    assert any(info.num_drafted.any() for _, info in reports)
    assert rows(run(decoder, params, [PROMPTS[0]], 40))[0] == reference.greedy(target, params["target"], PROMPTS[0], 40)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_prefill_in_chunks_of_any_size(temperature):
    """Chunks of 1, 3 and 64 tokens give the same tokens and log-probabilities."""
    decoder, params = decoder_of("tiny", "chain3"), pair("tiny").params
    sampling = decode.Sampling(temperature)
    whole, *parts = (run(decoder, params, RAGGED, sampling=sampling, prefill_chunk=size) for size in (64, 1, 3))
    for part in parts:
        np.testing.assert_array_equal(part.tokens, whole.tokens)
        np.testing.assert_allclose(checks.logprobs(part), checks.logprobs(whole), atol=1e-5)


@pytest.mark.parametrize("length", [1, 44, 45, 63, 64, 65])
def test_prompts_at_the_edges_of_buckets(length):
    """One token, and prompts (with what follows) that just fit a bucket or just do not."""
    prompt = np.random.default_rng(length).integers(0, 11, length).tolist()
    assert_greedy_equals_reference(decoder_of("ctx", "chain3"), pair("ctx").params, [prompt], 16)


def test_padding_rows_of_the_draft_are_never_drafted():
    """Three padding ids with high logits behind the target's vocabulary."""
    target, draft = TableLM(61), TableLM(64)
    table = target.init(jax.random.key(2))["table"]
    padded = jnp.full((64, 64), 50.0).at[:61, :61].set(table)
    params = {"target": {"table": table}, "draft": {"table": padded}}
    for temperature in (0.0, 1.0):
        decoder = decode.sequoia(target, draft, TREES["star"])
        state, reports = steps(decoder, params, [[1], [60]], 12, sampling=decode.Sampling(temperature))
        assert (state.row.tokens < 61).all()
        for _, info in reports:
            assert (info.tokens < 61).all()
    assert_greedy_equals_reference(decode.sequoia(target, draft, TREES["star"]), params, [[1], [60]], 12)


def test_vocabularies_that_differ_are_refused():
    """The draft lacks tokens; both sizes are named."""
    with pytest.raises(ValueError, match=r"50.*61"):
        decode.speculative(TableLM(61), TableLM(50), 2)


def test_siblings_share_a_position():
    """With a model of positions, a wide tree whose node indices run ahead of its depths."""
    model = PosLM(11)
    params = model.init(jax.random.key(1))
    decoder = decode.sequoia(model, model, tree.k_ary(3, 2))
    checks.assert_accepts_everything(decoder, {"target": params, "draft": params})
    assert_greedy_equals_reference(decoder, {"target": params, "draft": params}, RAGGED)


def test_temperature_towards_zero_is_greedy():
    """T = 1e-4 and 1e-8 give the tokens of T = 0."""
    decoder, params = decoder_of("ctx", "binary"), pair("ctx").params
    greedy = run(decoder, params, RAGGED)
    for temperature in (1e-4, 1e-8):
        near = run(decoder, params, RAGGED, sampling=decode.Sampling(temperature))
        np.testing.assert_array_equal(near.tokens, greedy.tokens)


def test_greedy_rows_beside_sampled_ones():
    """Rows at T = 0 are those of a greedy batch, and sampled rows are those of a batch of their own."""
    decoder, params = decoder_of("ctx", "binary"), pair("ctx").params
    keys = jax.random.split(jax.random.key(3), 4)
    prompts = [[1], [2, 3], [4], [5, 6]]
    mixed = run(decoder, params, prompts, key=keys, sampling=decode.Sampling([0.0, 1.0, 0.0, 0.7]))
    greedy = run(decoder, params, prompts, key=keys)
    np.testing.assert_array_equal(mixed.tokens[::2], greedy.tokens[::2])
    sampled = run(decoder, params, prompts, key=keys, sampling=decode.Sampling([1.0, 1.0, 0.7, 0.7]))
    np.testing.assert_array_equal(mixed.tokens[1::2], sampled.tokens[1::2])


def test_bias_of_a_greedy_row():
    """A banned token is never emitted, and the others are the arg-max without it; each row has its own bias."""
    decoder, (target, _, params) = decoder_of("table", "star"), pair("table")
    bias = np.zeros((2, 11), np.float32)
    bias[0, 4], bias[1, 7] = -np.inf, 100.0
    first, second = rows(run(decoder, params, [[3], [3]], 12, sampling=decode.Sampling(bias=bias)))
    banned = {"table": params["target"]["table"] + bias[:1]}
    assert first == reference.greedy(target, banned, [3], 12)
    assert 4 not in first
    assert second == [7] * 12
