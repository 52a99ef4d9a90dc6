"""A draft that copies: the follower of the longest earlier agreement, mixed in exactly."""

import checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from laws import MODEL, PARAMS, law
from toys import KeptTableLM

from jaxspec import cache, decode, tree
from jaxspec.networks import Copying

V = 7
SHARES = (0.1, 0.3, 0.6)


def table(key=0):
    model = toys.TableLM(V)
    return model, model.init(jax.random.key(key))


def literal(committed, text, probs):
    """The mixture after a text of which the first tokens are committed, in plain Python."""
    best = (0, None)
    for place in range(len(committed) - 1):
        length = 0
        while length < len(SHARES) and place >= length and committed[place - length] == text[len(text) - 1 - length]:
            length += 1
        if length and length >= best[0]:
            best = (length, committed[place + 1])
    length, follower = best
    if not length:
        return probs
    mixed = (1 - SHARES[length - 1]) * probs
    mixed[follower] += SHARES[length - 1]
    return mixed


def read(model, params, text, committed):
    """`[n, V]` probabilities after each token in flight, with the first tokens of a text committed."""
    context = cache.empty(model, 64)
    tokens = jnp.zeros(64, jnp.int32).at[: len(text)].set(jnp.asarray(text))
    context = cache.prefill(model, params, context, tokens, jnp.int32(0), jnp.int32(committed), 32)
    n = len(text) - committed
    positions = committed + jnp.arange(n, dtype=jnp.int32)
    output = model.apply(
        params, jnp.asarray(text[committed:], jnp.int32), positions, context, model.empty(n), 0, jnp.tri(n, dtype=bool)
    )
    return np.asarray(jax.nn.softmax(output.logits))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("num_in_flight", [1, 2, 3])
def test_equals_a_literal_lookup(seed, num_in_flight):
    inner, params = table()
    text = np.random.default_rng(seed).integers(0, 3, 20).tolist()
    committed = len(text) - num_in_flight
    found = read(Copying(inner, SHARES), params, text, committed)[-1]
    plain = np.asarray(jax.nn.softmax(params["table"][text[-1]]), np.float64)
    np.testing.assert_allclose(found, literal(text[:committed], text, plain), atol=1e-6)


def test_the_latest_of_equal_agreements_is_taken():
    inner, params = table()
    text = [1, 2, 0, 1, 3, 0, 1]
    found = read(Copying(inner, SHARES), params, text, len(text) - 1)[-1]
    plain = np.asarray(jax.nn.softmax(params["table"][1]))
    assert found[3] == pytest.approx(0.7 * plain[3] + 0.3, abs=1e-6)
    assert found[2] == pytest.approx(0.7 * plain[2], abs=1e-6)


def test_a_branch_reads_its_own_ancestors_only():
    inner, params = table()
    model = Copying(inner, SHARES)
    text = [4, 5, 1, 0, 2, 5, 3, 0]
    context = cache.empty(model, 64)
    tokens = jnp.zeros(64, jnp.int32).at[: len(text)].set(jnp.asarray(text))
    context = cache.prefill(model, params, context, tokens, jnp.int32(0), jnp.int32(len(text)), 32)
    # Two siblings 4 and 2, each followed by 5: "4 5" was followed by 1, "0 2 5" by 3.
    block_tokens = jnp.asarray([4, 2, 5, 5], jnp.int32)
    positions = jnp.asarray([8, 8, 9, 9], jnp.int32)
    mask = jnp.asarray([[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]], bool)
    output = model.apply(params, block_tokens, positions, context, model.empty(4), 0, mask)
    probs = np.asarray(jax.nn.softmax(output.logits))
    plain = np.asarray(jax.nn.softmax(params["table"][5]))
    assert probs[2, 1] == pytest.approx(0.7 * plain[1] + 0.3, abs=1e-6)
    assert probs[3, 3] == pytest.approx(0.4 * plain[3] + 0.6, abs=1e-6)


def test_without_agreement_the_draft_stands():
    inner, params = table()
    text = [0, 1, 2, 3]
    found = read(Copying(inner, SHARES), params, text, 3)[-1]
    np.testing.assert_allclose(found, jax.nn.softmax(params["table"][3]), atol=1e-6)


def test_a_token_outside_the_reduced_vocabulary_can_be_copied():
    inner = KeptTableLM(V, kept_ids=(0, 1, 2))
    params = inner.init(jax.random.key(0))
    found = read(Copying(inner, SHARES), params, [1, 6, 0, 1], 3)[-1]
    assert found[6] == pytest.approx(SHARES[0], abs=1e-6)
    assert found[[3, 4, 5]].sum() == 0.0


@pytest.mark.parametrize(
    "make",
    [
        lambda target, draft: decode.sequoia(target, draft, tree.k_ary(2, 2)),
        lambda target, draft: decode.speculative(target, draft, 3),
        lambda target, draft: decode.pearl(target, draft, 3),
    ],
)
def test_the_law_of_the_target_stands(make):
    checks.assert_joint_law(make(MODEL, Copying(MODEL, SHARES)), PARAMS, law(), 4, 0.022)


def test_a_repeating_text_is_accepted_whole():
    """A target that goes round in a circle, and a draft that knows nothing: only copying can follow."""
    target = toys.TableLM(V)
    circle = 50.0 * np.eye(V)[np.roll(np.arange(V), -1)]
    params = {"target": {"table": jnp.asarray(circle, jnp.float32)}, "draft": {"table": jnp.zeros((V, V))}}
    prompt = [*range(V)] * 3
    plain = decode.speculative(target, toys.TableLM(V), 4)
    copying = decode.speculative(target, Copying(toys.TableLM(V), SHARES), 4)

    def run(decoder):
        return decode.generate(decoder, params, [prompt], key=jax.random.key(0), max_new_tokens=40)

    first, second = run(plain), run(copying)
    np.testing.assert_array_equal(first.tokens, second.tokens)
    assert second.stats.total().tokens_per_round == 5.0
    assert first.stats.total().tokens_per_round < 2.0


@pytest.mark.parametrize("shares", [(), (1.0,), (-0.1,), (float("nan"),)])
def test_shares_out_of_range_are_refused(shares):
    with pytest.raises(ValueError, match="from 0 to below 1"):
        Copying(toys.TableLM(V), shares)
