"""The pipeline against its float64 twin, and the laws of the draws."""

import functools

import checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxspec import base, sampling, verify
from jaxspec.sampling import Options, Sampling, draws


def row_options(vocab_size, draft_temperature=None, **values):
    """The options of a batch of one, for its row."""
    chosen = sampling.options(Sampling(**values), draft_temperature, 1, vocab_size)
    return jax.tree.map(lambda leaf: leaf[0], chosen)


target_distribution = jax.jit(sampling.target_distribution)


@pytest.mark.parametrize(
    "values",
    [{}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.2}, {"bias": {3: -np.inf, 1: 2.0}}, {"top_k": 5, "min_p": 0.1}],
    ids=str,
)
def test_kinds_of_options(values):
    """Programs with some of the options only."""
    logits = 2 * np.random.default_rng(0).standard_normal(8).astype(np.float32)
    law = sampling.target_distribution(row_options(8, temperature=0.8, **values), jnp.asarray(logits))
    bias = np.array([values.get("bias", {}).get(token, 0.0) for token in range(8)])
    np.testing.assert_allclose(law, reference.distribution(logits, 0.8, **{**values, "bias": bias}), atol=1e-6)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    seed=st.integers(0, 2**31 - 1),
    temperature=st.sampled_from((0.0, 0.3, 0.7, 1.0, 2.0)),
    top_k=st.sampled_from((0, 1, 3, 300, 5000)),
    top_p=st.sampled_from((1.0, 0.9, 0.37, 0.01)),
    min_p=st.sampled_from((0.0, 0.02, 0.3, 1.0)),
    banned=st.sampled_from((0.0, 0.2, 0.9)),
)
def test_pipeline_equals_its_twin(seed, temperature, top_k, top_p, min_p, banned):
    """All options as traced values, neutral ones among them, as in a batch of different rows."""
    generator = np.random.default_rng(seed)
    logits = 3 * generator.standard_normal(300).astype(np.float32)
    bias = np.where(generator.random(300) < banned, -np.inf, generator.random(300)).astype(np.float32)
    values = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    traced = Options(
        bias=jnp.asarray(bias),
        draft_temperature=jnp.float32(1),
        is_greedy=jnp.array(temperature == 0),
        temperature=jnp.float32(temperature),
        top_k=jnp.int32(top_k),
        top_p=jnp.float32(top_p),
        min_p=jnp.float32(min_p),
    )
    law = np.asarray(target_distribution(traced, logits))
    np.testing.assert_allclose(law, reference.distribution(logits, bias=bias, **values), atol=2e-6)


def test_order_of_the_pipeline():
    """Top-p reads what temperature leaves; T=2 keeps three tokens, T=.5 one."""
    checks.assert_pipeline(sampling.target_distribution)
    logits = jnp.array([2.0, 1.0, 0.0, -1.0])
    law = sampling.target_distribution(row_options(4, temperature=2.0, top_p=0.8), logits)
    np.testing.assert_allclose(law, [0.5065, 0.3072, 0.1863, 0], atol=5e-5)
    law = sampling.target_distribution(row_options(4, temperature=0.5, top_p=0.8), logits)
    assert law.tolist() == [1, 0, 0, 0]


def test_top_p_of_the_paper():
    """Top-p .5 keeps two tokens of (.4, .3, .2, .1)."""
    law = sampling.target_distribution(row_options(4, temperature=1.0, top_p=0.5), jnp.log(jnp.array([4.0, 3, 2, 1])))
    np.testing.assert_allclose(law, [4 / 7, 3 / 7, 0, 0], atol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-4, 1e30], ids=str)
def test_extreme_temperatures_are_finite(temperature):
    """Towards 0 the law is one-hot without dividing by zero or overflowing."""
    logits = jnp.array([50.0, 80.0, -jnp.inf, 79.0])
    chosen = row_options(4, temperature=temperature, draft_temperature=1.0)
    law = np.asarray(sampling.target_distribution(chosen, logits))
    assert np.isfinite(law).all()
    assert law.sum() == pytest.approx(1)
    if temperature < 1:
        assert law.tolist() == [0, 1, 0, 0]
    chosen = row_options(4, temperature=1.0, draft_temperature=temperature)
    assert not np.isnan(sampling.draft_logits(chosen, logits)).any()


def test_greedy_takes_the_lowest_of_tied_tokens():
    logits = jnp.array([0.0, 3.0, 3.0, 1.0])
    assert sampling.target_distribution(Options(), logits).tolist() == [0, 1, 0, 0]
    assert int(sampling.argmax(logits)) == 1


def test_filters_keep_ties():
    logits = jnp.array([1.0, 2.0, 1.0, 0.0])
    for values in ({"top_k": 2}, {"top_p": 0.6}):
        law = sampling.target_distribution(row_options(4, temperature=1.0, **values), logits)
        assert (np.asarray(law) > 0).tolist() == [True, True, True, False]


def test_draft_pipeline_is_bias_and_its_own_temperature():
    logits = jnp.array([1.0, 2.0, 3.0])
    values = {"temperature": 1.0, "top_k": 1, "top_p": 0.1, "min_p": 0.9, "bias": {2: -np.inf}}
    law = sampling.distribution(sampling.draft_logits(row_options(3, draft_temperature=0.5, **values), logits))
    wanted = reference.distribution(np.asarray(logits), 0.5, bias=np.array([0, 0, -np.inf]))
    np.testing.assert_allclose(law, wanted, atol=1e-6)


def test_unused_options_are_absent():
    """An unused kind of option is None, so that no program contains it; greedy rows need no filter."""
    assert sampling.options(Sampling(0.0, top_k=3, top_p=0.5), None, 2, 8) == Options()
    chosen = sampling.options(Sampling(1.0), None, 2, 8)
    assert (chosen.top_k, chosen.top_p, chosen.min_p, chosen.bias) == (None, None, None, None)
    assert (chosen.is_greedy, chosen.is_greedy_draft) == (None, None)
    mixed = sampling.options(Sampling([0.0, 1.0]), 1.0, 2, 8)
    assert mixed.is_greedy is not None
    assert mixed.is_greedy.tolist() == [True, False]
    assert mixed.is_greedy_draft is None
    some = sampling.options(Sampling([0.0, 1.0], top_k=[0, 3]), None, 2, 8).top_k
    assert some is not None
    assert some.tolist() == [0, 3]
    assert sampling.options(Sampling(0.0), 1.0, 2, 8).temperature is not None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -1.0}, "temperature=-1"),
        ({"temperature": np.nan}, "temperature=nan"),
        ({"temperature": np.inf}, "temperature=inf"),
        ({"temperature": [1.0, 1.0, 1.0]}, r"shape \(3,\).*2 rows"),
        ({"temperature": "hot"}, "not a number"),
        ({"top_k": -1}, "top_k=-1"),
        ({"top_k": 1.5}, "not an integer"),
        ({"top_p": 0.0}, "top_p=0 keeps no token"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"min_p": -0.1}, "min_p=-0.1"),
        ({"bias": {8: 1.0}}, "token 8.*0 to 7"),
        ({"bias": np.zeros(7)}, r"shape \(7,\)"),
        ({"bias": np.full(8, np.nan)}, "NaN"),
        ({"bias": np.full(8, -np.inf)}, "every token"),
    ],
    ids=str,
)
def test_options_out_of_range(values, message):
    with pytest.raises(ValueError, match=message):
        sampling.options(Sampling(**values), None, 2, 8)


def _counts(weights, num_keys):
    drawn = jax.jit(jax.vmap(sampling.draw, in_axes=(0, None)))(jax.random.split(jax.random.key(9), num_keys), weights)
    return np.bincount(drawn, minlength=len(weights))


@pytest.mark.parametrize("size", [5, 1000, 49152])
def test_draw_follows_the_weights(size):
    """Most weights zero, the others in distant blocks and not normalised; a zero weight is never drawn."""
    weights = np.zeros(size, np.float32)
    weights[np.linspace(1, size - 1, 4).astype(int)] = 1.0, 2.0, 0.5, 4.0
    counts = _counts(jnp.asarray(weights), 2**13 if size > 1000 else 2**16)
    assert reference.chi_square_excess(counts, weights) < 5


def test_draw_from_low_precision_logits():
    """The law is the float32 softmax of the bfloat16 logits, over 2^18 draws of 64 classes."""
    logits = jax.random.normal(jax.random.key(6), (64,)).astype(jnp.bfloat16)
    probs = sampling.target_distribution(row_options(64, temperature=1.0), logits)
    np.testing.assert_allclose(probs, reference.distribution(np.asarray(logits, np.float64)), atol=1e-6)
    assert reference.chi_square_excess(_counts(probs, 2**18), np.asarray(probs)) < 5


def test_rare_tokens_are_drawn_as_often_as_they_should_be():
    """A sweep of all 2^23 uniforms finds a token of probability 2^-20 exactly eight times, at either end."""
    uniforms = jnp.arange(2**23, dtype=jnp.float32) / 2**23
    invert = jax.jit(jax.vmap(draws._invert, in_axes=(0, None)))
    for weights in ((1 - 2.0**-20, 2.0**-20), (2.0**-20, 1 - 2.0**-20)):
        drawn = np.asarray(invert(uniforms, jnp.array(weights, jnp.float32)))
        assert (drawn == np.argmin(weights)).sum() == 8
    assert (invert(uniforms[:: 2**10], jnp.array([0.0, 1.0, 0.0])) == 1).all()


def test_gumbel_noise_is_finite(monkeypatch):
    """No uniform of the 2^23 leads to a logarithm of 0; the draw without replacement orders real numbers."""
    smallest = jnp.finfo(jnp.float32).tiny
    uniforms = jnp.maximum(jnp.arange(0, 2**23, 2**7, dtype=jnp.float32) / 2**23, smallest)
    noise = -jnp.log(-jnp.log(uniforms))
    assert jnp.isfinite(noise).all()
    worst = jnp.array([noise.max(), noise.min()])
    monkeypatch.setattr(jax.random, "gumbel", lambda key, shape: jnp.resize(worst, shape))
    logits = jnp.array([-jnp.inf, -80.0, -jnp.inf, 0.0])  # token 0 has the best noise, token 1 the worst
    assert sampling.draw_without_replacement(jax.random.key(0), logits, 4).tolist() == [3, 1, 0, 2]


def test_impossible_tokens_come_last_and_uniformly():
    """The uniform fallback: behind the support, every order of the others is as frequent."""
    logits = jnp.array([-jnp.inf, 4.0, -jnp.inf, -300.0])
    assert sampling.distribution(logits).tolist() == [0, 1, 0, 0]
    order = checks.proposals(verify.SEQUOIA, jax.random.split(jax.random.key(5), 2**14), logits, 4)
    assert (order[:, 0] == 1).all()
    counts = np.bincount(np.asarray(order[:, 1:]) @ [16, 4, 1], minlength=64)
    assert (counts > 0).sum() == 6
    assert reference.chi_square_excess(counts[counts > 0], np.ones(6)) < 5


SPREAD = np.full(5 * base.BLOCK - 7, -np.inf, np.float32)
SPREAD[[3, 5, 70, 200, 310]] = np.log([0.4, 0.25, 0.2, 0.1, 0.05])
"""Logits of tokens in several blocks, two of them in one."""


def test_draws_from_several_blocks_follow_the_law_of_their_order():
    """Every ordered triple as often as three draws from the renormalised rest give it."""
    order = np.asarray(checks.proposals(verify.SEQUOIA, jax.random.split(jax.random.key(8), 2**16), SPREAD, 3))
    law = dict(verify.SEQUOIA.draws(np.exp(SPREAD), 3))
    triples, counts = np.unique(order, axis=0, return_counts=True)
    drawn = dict(zip(map(tuple, triples.tolist()), counts, strict=True))
    assert set(drawn) == set(law)
    assert reference.chi_square_excess(np.array([drawn[triple] for triple in law]), np.array(list(law.values()))) < 5


def test_tokens_behind_the_support_are_uniform_over_all_blocks():
    """The uniform fallback: each block has its share of the sixth draw."""
    order = np.asarray(checks.proposals(verify.SEQUOIA, jax.random.split(jax.random.key(7), 2**14), SPREAD, 6))
    assert (np.sort(order[:, :5], axis=1) == np.flatnonzero(np.isfinite(SPREAD))).all()
    counts = np.bincount(order[:, 5] // base.BLOCK, minlength=5)
    sizes = np.bincount(np.flatnonzero(~np.isfinite(SPREAD)) // base.BLOCK)
    assert reference.chi_square_excess(counts, sizes) < 5


@pytest.mark.parametrize("size", [7, 100, 313, 5000])
def test_fewer_draws_are_a_prefix_of_more(size):
    """Below, at and beyond the number of blocks, and without replacement."""
    logits = 3 * jax.random.normal(jax.random.key(size), (size,))
    most = sampling.draw_without_replacement(jax.random.key(1), logits, min(size, 90)).tolist()
    assert len(set(most)) == len(most)
    for count in (1, 2, 4, 5, 6, 79, 80):
        if count < len(most):
            assert sampling.draw_without_replacement(jax.random.key(1), logits, count).tolist() == most[:count]


@pytest.mark.parametrize(
    ("size", "count"), [(1, 1), (7, 2), (256, 7), (257, 1), (1000, 1), (1000, 2), (1000, 100), (50000, 7), (50000, 100)]
)
def test_top_k_equals_the_plain_one(size, count):
    """Values, indices and the order of ties, of which there are many."""
    values = jnp.asarray(np.random.default_rng(size).integers(0, 50, size), jnp.float32)
    for case in (values, jnp.where(values > 47, -jnp.inf, values), jnp.full(size, -jnp.inf), -values):
        for got, wanted in zip(_top_k(case, count), jax.lax.top_k(case, count), strict=True):
            np.testing.assert_array_equal(got, wanted)


_top_k = functools.partial(jax.jit, static_argnums=1)(sampling.top_k)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: sampling.target_distribution(row_options(4), jnp.zeros((2, 4))), "one row"),
        (lambda: sampling.target_distribution(row_options(4), jnp.zeros(4, jnp.int32)), "assert_type"),
        (lambda: sampling.target_distribution(row_options(5, bias={1: 2.0}), jnp.zeros(4)), "assert_shape"),
        (lambda: sampling.adjust(Options(), jnp.zeros(4), np.array([0, 2])), "assert_shape"),
        (
            lambda: sampling.target_distribution(sampling.options(Sampling(1.0), None, 2, 4), jnp.zeros(4)),
            "one row",  # a batch's options, not a row's
        ),
        (lambda: sampling.distribution(jnp.zeros((2, 4))), "one row"),
        (lambda: sampling.draw(jax.random.key(0), jnp.ones((2, 4))), "one row"),
        (lambda: sampling.draw_without_replacement(jax.random.key(0), jnp.ones((2, 4)), 1), "one row"),
        (lambda: sampling.top_k(jnp.ones((2, 4)), 1), "one row"),
        (lambda: sampling.argmax(jnp.array([1, 2])), "assert_type"),
    ],
)
def test_shapes_and_types_are_those_of_one_row(function, message):
    with pytest.raises(AssertionError, match=message):
        jax.eval_shape(function)
