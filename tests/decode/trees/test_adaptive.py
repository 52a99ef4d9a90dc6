"""AdaEDL is exact, whatever stops it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from adapting import (
    ALWAYS,
    BRISK,
    CTX,
    MIXED,
    MODEL,
    NEVER,
    PARAMS,
    POS,
    TARGET,
    TINY,
    logged,
    new_tokens,
    tables,
    total,
)
from checks import PROMPTS, assert_greedy_equals_reference, assert_joint_law, run, steps
from toys import KeptTableLM, TableLM, pair

from jaxspec import decode, tree
from jaxspec.decode.trees.adaptive import AdaEDL, adaedl
from jaxspec.decode.trees.decoder import TreeDecoder
from jaxspec.decode.trees.static import StaticTree
from jaxspec.sampling import Sampling

LAW = adaedl(MODEL, MODEL, 3, threshold=0.56, **BRISK)


@pytest.mark.parametrize(("temperature", "draft_temperature"), [(1.0, None), (0.7, 0.0)])
def test_joint_law(temperature, draft_temperature):
    """Chains that stop at some tokens and not at others, over two to four rounds, while the threshold moves."""
    options = {"sampling": Sampling(temperature), "draft_temperature": draft_temperature}
    law = reference.distribution(np.log(TARGET), temperature=temperature)
    assert_joint_law(LAW, PARAMS, law, 4, 0.02, **options)


@dataclasses.dataclass(frozen=True)
class DropsUnlikelyTokens(AdaEDL):
    """Stops at a token that was drawn with a low probability, and drops it."""

    def draft_tree(self, params, state, key):
        drafted = super().draft_tree(params, state, key)
        drawn = jnp.take_along_axis(drafted.probs, drafted.tokens[1:, None], axis=1)[:, 0]
        is_kept = jnp.cumprod((drawn > 0.3).at[0].set(True)).astype(bool)
        return drafted._replace(is_active=drafted.is_active & jnp.append(True, is_kept))


def test_deciding_from_the_drawn_token_is_rejected():
    """The first token is never dropped, and still the law is wrong."""
    drafter = DropsUnlikelyTokens(StaticTree(MODEL, MODEL, tree.chain(3)), threshold=NEVER)
    with pytest.raises(AssertionError, match="total variation"):
        assert_joint_law(TreeDecoder(MODEL, drafter), PARAMS, TARGET, 4, 0.02)


def test_joint_law_of_a_reduced_and_limited_draft():
    """Tokens that the draft can't propose, and a last position of it within the text, behind which it drafts none."""
    target = np.array([[0.4, 0.3, 0.1, 0.2], [0.1, 0.3, 0.4, 0.2], [0.25, 0.25, 0.25, 0.25], [0.1, 0.5, 0.2, 0.2]])
    draft = np.array([[0.8, 0.0, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4], [0.3, 0.3, 0.3, 0.1], [0.1, 0.2, 0.7, 0.0]])
    decoder = adaedl(TableLM(4), KeptTableLM(4, max_length=2), 3, threshold=0.6)
    assert_joint_law(decoder, tables(target, draft), target, 3, 0.02, num_keys=1)


@pytest.mark.parametrize("decoder", [CTX, TINY], ids=["ctx", "tiny"])
def test_greedy_tokens(decoder):
    """Ragged prompts; thresholds at which the pair's chains have several lengths."""
    generation = assert_greedy_equals_reference(decoder, pair("ctx" if decoder == CTX else "tiny").params)
    counts = generation.stats.total().counts
    assert counts.rounds < counts.drafted < 4 * counts.rounds
    assert 0 < counts.accepted < counts.drafted


def test_greedy_tokens_of_one_prompt():
    for prompt in PROMPTS:
        assert_greedy_equals_reference(POS, pair("pos").params, [prompt])


def test_rows_do_not_depend_on_their_batch():
    """Rows draft on beside others that have stopped."""
    params, keys = pair("ctx").params, jax.random.split(jax.random.key(3), 4)
    options = {**MIXED, "sampling": Sampling([0.8] * 4)}
    rounds, together = logged(CTX, params, key=keys, **options)
    assert len({tuple(info.num_drafted) for _, _, info in rounds}) > 2
    for row in (1, 3):
        alone_rounds, alone = logged(CTX, params, [PROMPTS[row]] * 4, key=jnp.stack([keys[row]] * 4), **options)
        assert new_tokens(alone) == [new_tokens(together)[row]] * 4
        assert total(alone_rounds, "num_drafted")[0] == total(rounds, "num_drafted")[row]


def said(info):
    """A report without what stands behind the emitted tokens and at nodes that were not visited."""
    is_emitted = np.arange(info.tokens.shape[1]) < np.asarray(info.num_emitted)[:, None]
    return info._replace(tokens=info.tokens * is_emitted, accept=info.accept * info.is_visited[..., None])


def test_a_threshold_that_never_stops_is_the_plain_chain():
    """The same tokens, keys and reports, for greedy and sampled rows."""
    params = pair("ctx").params
    chain = decode.speculative(CTX.target, pair("ctx").draft, 4)
    chain_state, chain_reports = steps(chain, params, PROMPTS, **MIXED)
    rounds, state = logged(CTX, params, threshold=NEVER, **MIXED)
    assert new_tokens(state) == new_tokens(chain_state)
    for (_, _, info), (_, chain_info) in zip(rounds, chain_reports, strict=True):
        jax.tree.map(np.testing.assert_array_equal, said(info), said(chain_info))
    assert np.isneginf(state.memory.value).all()
    for row, _, info in logged(CTX, params, threshold=NEVER)[0]:
        np.testing.assert_array_equal(info.num_drafted, np.where(row.is_finished, 0, 4))


@pytest.mark.parametrize("options", [{}, MIXED], ids=["greedy", "mixed"])
def test_a_threshold_above_one_drafts_one_token_a_round(options):
    rounds, state = logged(CTX, pair("ctx").params, threshold=ALWAYS, **options)
    for row, _, info in rounds:
        np.testing.assert_array_equal(info.num_drafted, ~row.is_finished)
        np.testing.assert_array_equal(info.path_drafted, ~row.is_finished)
    for row in (0, 2):
        assert new_tokens(state)[row] == reference.greedy(CTX.target, pair("ctx").params["target"], PROMPTS[row], 20)


def test_a_draft_that_is_the_target_is_always_accepted():
    """Nothing is missing from the draft's context, wherever it stopped."""
    model, _, params = pair("ctx")
    decoder = adaedl(model, model, 4, threshold=0.42, threshold_memory=1.0)
    counts = run(decoder, {**params, "draft": params["target"]}, PROMPTS, 40).stats.counts
    np.testing.assert_array_equal(counts.rejections, 0)
    np.testing.assert_array_equal(counts.path_rolled_back, counts.drafted - counts.accepted)
    assert (counts.drafted - counts.accepted <= 4).all()  # cut at the limit
    assert (counts.rounds < counts.drafted).all()
    assert (counts.drafted < 4 * counts.rounds).all()
