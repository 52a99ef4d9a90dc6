"""At temperature 0 every decoder returns the tokens of the uncached loop, whatever drafts."""

import checks
import jax
import pytest
from checks import PROMPTS, RAGGED, assert_greedy_equals_reference
from toys import PAIRS, TREES, ConstantLM, CtxLM, RandomLM, decoder_of, noisy, pair

from jaxspec import decode

SHAPES = {
    "ctx": tuple(TREES),
    "pos": ("star", "optimal"),
    "table": ("chain3", "ternary"),
    "tiny": ("binary", "optimal"),
}
"""The model that sees most in every tree, and each other in two."""


@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name in PAIRS for shape in SHAPES[name]])
def test_tokens_of_a_batch(name, shape):
    """Prompts of 1, 2, 7 and 31 tokens together, rows of unequal acceptance."""
    generation = assert_greedy_equals_reference(decoder_of(name, shape), pair(name).params, RAGGED)
    total = generation.stats.total()
    assert total.accepted_per_round > 0.1
    assert total.counts.rejections > 0


@pytest.mark.parametrize(("name", "shape"), [("ctx", "optimal"), ("tiny", "binary")])
def test_tokens_of_one_prompt(name, shape):
    for prompt in PROMPTS:
        assert_greedy_equals_reference(decoder_of(name, shape), pair(name).params, [prompt])


@pytest.mark.parametrize("name", PAIRS)
def test_plain_decoding(name):
    assert_greedy_equals_reference(decode.autoregressive(pair(name).target), pair(name).params, RAGGED)


def test_many_seeds():
    """200 models; parameters are arguments, so one program serves all."""
    decoder, init = decode.sequoia(CtxLM(11), CtxLM(11), TREES["comb"]), jax.jit(CtxLM(11).init)
    for seed in range(200):
        params = init(jax.random.key(seed))
        assert_greedy_equals_reference(decoder, {"target": params, "draft": noisy(params, 0.3)}, [[seed % 11, 3]], 10)


@pytest.mark.parametrize(("name", "shape"), [(name, shape) for name in PAIRS for shape in SHAPES[name]])
def test_a_draft_that_is_the_target_is_always_accepted(name, shape):
    """Off by one anywhere in the draft's context, or a forgotten catch-up token, and a round is short."""
    checks.assert_accepts_everything(decoder_of(name, shape), pair(name).equal)


@pytest.mark.parametrize("draft", [RandomLM(11), ConstantLM(11, 0), ConstantLM(11, 10)], ids=str)
def test_any_draft_changes_speed_only(draft):
    """A draft of noise, and drafts of one token."""
    target, _, params = pair("ctx")
    decoder = decode.sequoia(target, draft, TREES["binary"])
    assert_greedy_equals_reference(
        decoder, {"target": params["target"], "draft": draft.init(jax.random.key(3))}, RAGGED
    )
