"""At temperature above 0: the law under options, of rows with their own, with other keys and other precisions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from checks import assert_joint_law, run
from laws import MODEL, PARAMS, law

from jaxspec import decode, tree
from jaxspec.sampling import Sampling

OPTIONS = {
    "temperature": {"temperature": 0.7},
    "top-k": {"temperature": 1.3, "top_k": 2},
    "top-p after temperature": {"temperature": 2.0, "top_p": 0.6},
    "min-p": {"temperature": 1.0, "min_p": 0.45},
    "bias": {"temperature": 1.0, "bias": (0.5, -1.0, 1.0)},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_joint_law_under_options(options):
    """Accepted, corrected and bonus tokens follow one pipeline, at every offset of a block."""
    sampling = Sampling(**{**options, "bias": np.array(options["bias"])} if "bias" in options else options)
    decoder = decode.sequoia(MODEL, MODEL, tree.k_ary(2, 2))
    assert_joint_law(decoder, PARAMS, law(**options), 3, 0.012, sampling=sampling)


def test_the_draft_s_temperature_changes_speed_only():
    """Drafts at temperature 0, .5, 1 and 2 below a target at .7, in one program."""
    decoder, accepted = decode.sequoia(MODEL, MODEL, tree.chain(2)), []
    for temperature in (0.0, 0.5, 1.0, 2.0):
        options = {"sampling": Sampling(0.7), "draft_temperature": temperature}
        assert_joint_law(decoder, PARAMS, law(temperature=0.7), 3, 0.02, num_keys=1, **options)
        generation = run(decoder, PARAMS, [[0]] * 2**15, 3, logprobs=False, **options)
        accepted.append(float(generation.stats.total().accepted_per_round))
    assert len({round(value, 2) for value in accepted}) == 4


def test_rows_with_their_own_options():
    """Rows at T = 0, 1, 0 and .7 in one batch each have their own law."""
    temperatures = np.tile([0.0, 1.0, 0.0, 0.7], 2**13)
    decoder = decode.sequoia(MODEL, MODEL, tree.k_ary(2, 2))
    tokens = run(decoder, PARAMS, [[0]] * 2**15, 3, sampling=Sampling(temperatures), logprobs=False).tokens
    codes = tokens @ [9, 3, 1]
    for offset, temperature in ((1, 1.0), (3, 0.7)):
        counts = np.bincount(codes[offset::4], minlength=27)
        wanted = reference.joint_law(law(temperature=temperature), 0, 3)
        assert reference.chi_square_excess(counts, wanted) < 5
    greedy = reference.greedy(MODEL, PARAMS["target"], [0], 3)
    assert (tokens[::2] == greedy).all()


def test_rows_are_independent_of_one_another():
    """The joint law of two neighbours' tokens is the product: no two rows share noise."""
    decoder = decode.sequoia(MODEL, MODEL, tree.chain(2))
    first = run(decoder, PARAMS, [[0]] * 2**15, 3, sampling=Sampling(1.0), logprobs=False).tokens[:, 0]
    counts = np.bincount(first[::2] * 3 + first[1::2], minlength=9)
    assert reference.chi_square_excess(counts, np.outer(law()[0], law()[0])) < 5


def test_acceptance_is_one_minus_the_distance():
    """a pair at total variation .1 in every context accepts .9 of the first positions."""
    target = np.array([[0.5, 0.3, 0.2]] * 3)
    draft = np.array([[0.4, 0.4, 0.2]] * 3)
    params = {
        name: {"table": jnp.asarray(np.log(probs), jnp.float32)}
        for name, probs in (("target", target), ("draft", draft))
    }
    generation = run(
        decode.sequoia(MODEL, MODEL, tree.chain(2)), params, [[0]] * 2**15, 3, sampling=Sampling(1.0), logprobs=False
    )
    assert generation.stats.total().conditional_acceptance[0] == pytest.approx(0.9, abs=0.005)


def test_low_precision_draft_that_is_the_target_is_always_accepted():
    """Logits that bfloat16 merges; proposals and tests read the same float32 distribution."""
    table = jnp.tile(jnp.array([1.0, 1.003, 0.2]), (3, 1)).astype(jnp.bfloat16)
    params = {"target": {"table": table}, "draft": {"table": table}}
    generation = run(decode.sequoia(MODEL, MODEL, tree.chain(2)), params, [[0]] * 512, 6, sampling=Sampling(1.0))
    assert generation.stats.total().rounds == 2 * 512


def test_same_key_same_tokens_and_another_key_others():
    """Nothing is carried from call to call."""
    decoder, sampling = decode.sequoia(MODEL, MODEL, tree.chain(2)), Sampling(1.0)
    first, other, again = (
        run(decoder, PARAMS, [[0]] * 512, 6, key=jax.random.key(seed), sampling=sampling) for seed in (1, 2, 1)
    )
    np.testing.assert_array_equal(first.tokens, again.tokens)
    np.testing.assert_array_equal(first.stats.counts.accepted, again.stats.counts.accepted)
    assert (first.tokens != other.tokens).any()
