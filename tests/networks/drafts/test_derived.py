"""Models made of models: a draft with a reduced vocabulary keeps every law exact."""

import jax.numpy as jnp
import numpy as np
import pytest
from checks import PROMPTS, assert_joint_law, rows, run
from laws import KEPT_TARGET, kept_params
from toys import KeptTableLM, TableLM, pair

from jaxspec import decode, networks, tree, verify
from jaxspec.base import Context
from jaxspec.decode.trees.decoder import TreeDecoder
from jaxspec.decode.trees.static import StaticTree

BINARY = tree.k_ary(2, 2)


@pytest.mark.parametrize("rule", ["sequoia", "topk"])
def test_joint_law_with_a_reduced_vocabulary(rule):
    draft = [[0.1, 0.2, 0.3, 0.4]] * 4
    decoder = TreeDecoder(TableLM(4), StaticTree(TableLM(4), KeptTableLM(4), BINARY, verify.RULES[rule]))
    assert_joint_law(decoder, kept_params(draft), KEPT_TARGET, 3, 0.02)


def test_joint_law_when_the_kept_support_is_exhausted():
    """The second sibling is uniform over the kept tokens that remain, in drawing and in testing."""
    decoder = decode.sequoia(TableLM(4), KeptTableLM(4), BINARY)
    assert_joint_law(decoder, kept_params([[0.0, 0.0, 1.0, 0.0]] * 4), KEPT_TARGET, 3, 0.02)


def test_wrong_support_is_rejected():
    """Testing as if the fallback covered all tokens is biased: the check above can fail."""

    class Blind(verify.Sequoia):
        def outcome(self, target_probs, draft_probs, children, active, support=None):
            return super().outcome(target_probs, draft_probs, children, active, None)

    decoder = TreeDecoder(TableLM(4), StaticTree(TableLM(4), KeptTableLM(4), BINARY, Blind()))
    with pytest.raises(AssertionError):
        assert_joint_law(decoder, kept_params([[0.0, 0.0, 1.0, 0.0]] * 4), KEPT_TARGET, 3, 0.02)


def test_only_kept_tokens_are_drafted_and_bias_reaches_them():
    decoder = decode.sequoia(TableLM(4), KeptTableLM(4), tree.star(3))
    bias = {"sampling": decode.Sampling(1.0, bias={1: 3.0, 2: -2.0}), "logprobs": False}
    generation = run(decoder, kept_params([[0.25] * 4] * 4), [[0]] * 64, 8, **bias)
    assert generation.stats.total().accepted_per_round > 0
    law = KEPT_TARGET * np.exp([0.0, 3.0, -2.0, 0.0])
    law /= law.sum(axis=1, keepdims=True)
    assert_joint_law(decoder, kept_params([[0.25] * 4] * 4), law, 2, 0.02, **bias)


def test_bad_kept_ids_are_refused():
    with pytest.raises(ValueError, match=r"3 siblings.*only 2"):
        decode.sequoia(TableLM(4), KeptTableLM(4, kept_ids=(0, 2)), tree.star(3))
    with pytest.raises(ValueError, match=r"keeps token 9.*4 tokens"):
        decode.sequoia(TableLM(4), KeptTableLM(16, kept_ids=(0, 9)), tree.star(2))


def test_reduced_network_gives_the_rows_that_it_keeps():
    toy = pair("tiny")
    model, params = toy.target, toy.params["target"]
    kept = (2, 5, 17, 60)
    reduced, reduced_params = networks.reduce_vocabulary(model, params, kept[::-1])
    assert reduced.kept_ids == kept
    tokens = jnp.array([3, 4, 5], jnp.int32)
    context = Context(model.empty(4), jnp.zeros((), jnp.int32))
    arguments = tokens, tokens, context, model.empty(3), 0, jnp.tril(jnp.ones((3, 3), bool))
    whole = model.apply(params, *arguments).logits
    np.testing.assert_allclose(reduced.apply(reduced_params, *arguments).logits, whole[:, np.array(kept)], atol=1e-5)
    assert reduced_params["layers"] is params["layers"]
    for wrong in ((), (2, 2), (-1, 3), (2, 61)):
        with pytest.raises(ValueError, match="between 0 and 60"):
            networks.reduce_vocabulary(model, params, wrong)
    with pytest.raises(ValueError, match="keeps 4 tokens already"):
        networks.reduce_vocabulary(reduced, reduced_params, (1,))


def test_greedy_tokens_are_the_target_s_with_a_reduced_draft():
    toy = pair("tiny")
    draft, draft_params = networks.reduce_vocabulary(toy.target, toy.params["target"], range(0, 61, 3))
    params = {"target": toy.params["target"], "draft": draft_params}
    plain = run(decode.autoregressive(toy.target), params, PROMPTS, 20)
    reduced = run(decode.sequoia(toy.target, draft, BINARY), params, PROMPTS, 20)
    assert rows(plain) == rows(reduced)
    assert reduced.stats.total().accepted_per_round > 0
