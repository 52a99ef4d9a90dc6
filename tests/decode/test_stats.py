"""The measures of a generation, on models of which they are known."""

import jax.numpy as jnp
import numpy as np
import pytest
from checks import PROMPTS, run, steps
from laws import independent
from toys import TREES, ConstantLM, TableLM, pair

from jaxspec import decode, tree
from jaxspec.decode.stats import Counts, Stats


def test_full_acceptance():
    """Four accepted, five emitted a round, under different names."""
    target, _, params = pair("ctx")
    generation = run(decode.speculative(target, target, 4), {**params, "draft": params["target"]}, [[1]], 40)
    stats = generation.stats
    assert stats.rounds.tolist() == [8]
    assert stats.accepted_per_round.tolist() == [4]
    assert stats.tokens_per_round.tolist() == [5]
    assert stats.rollback_path.tolist() == stats.rollback_all.tolist() == [0]
    assert stats.counts.accepted_lengths.tolist() == [[0, 0, 0, 0, 8]]
    assert stats.acceptance.tolist() == [[1]]


def test_no_acceptance():
    """a draft that is never right: nothing accepted, one token a round, all of it rolled back."""
    model, params = independent((0.9, 0.05, 0.05), (0.1, 0.2, 0.7))
    stats = run(decode.speculative(model, model, 3), params, [[1]], 12).stats.total()
    assert (stats.rounds, stats.counts.emitted, stats.counts.accepted) == (12, 12, 0)
    assert (stats.counts.drafted, stats.counts.rejections) == (36, 12)
    assert stats.rollback_path == stats.rollback_all == 1
    assert stats.mean_accepted_run == 0


def test_chain_of_known_acceptance():
    """α = .8 at every position: conditional acceptance .8, and 3.3616 tokens a round of four drafts."""
    model, params = independent((0.5, 0.3, 0.2), (0.3, 0.5, 0.2))
    generation = run(
        decode.speculative(model, model, 4), params, [[0]] * 256, 500, sampling=decode.Sampling(1.0), logprobs=False
    )
    stats = generation.stats.total()
    np.testing.assert_allclose(stats.conditional_acceptance, 0.8, atol=0.01)
    assert stats.tokens_per_round == pytest.approx(3.3616, abs=0.02)
    assert stats.acceptance[0] == pytest.approx(0.8, abs=0.01)
    assert stats.mean_accepted_run == pytest.approx(0.8 / 0.2, abs=0.1)


def test_acceptance_by_child_rank():
    """The exact vector (.5, .1, 0, .4), from a star of four."""
    model, params = independent((0.1, 0.2, 0.3, 0.4), (0.5, 0.3, 0.2, 0))
    generation = run(
        decode.sequoia(model, model, tree.star(4)),
        params,
        [[3]] * 512,
        20,
        sampling=decode.Sampling(1.0),
        logprobs=False,
    )
    np.testing.assert_allclose(generation.stats.total().acceptance, [0.5, 0.1, 0, 0.4], atol=0.01)


@pytest.mark.parametrize(("shape", "temperature"), [("chain3", 0.0), ("optimal", 0.0), ("optimal", 1.0)])
def test_counts_add_up(shape, temperature):
    """Every sum from the rounds' own reports, with rows that end at different times."""
    target, draft, params = pair("ctx")
    decoder, limits = decode.sequoia(target, draft, TREES[shape]), [20, 9, 14, 3]
    options = decode.Sampling(temperature)
    counts = run(decoder, params, PROMPTS, limits, sampling=options).stats.counts
    _, reports = steps(decoder, params, PROMPTS, limits, sampling=options)
    infos = [info for _, info in reports]
    for name in ("num_emitted", "num_accepted", "num_drafted", "path_drafted", "path_rolled_back", "is_rejected"):
        field = {"num_emitted": "emitted", "num_accepted": "accepted", "num_drafted": "drafted"}.get(name, name)
        field = "rejections" if name == "is_rejected" else field
        np.testing.assert_array_equal(sum(getattr(info, name).astype(int) for info in infos), getattr(counts, field))
    np.testing.assert_array_equal(counts.emitted, limits)
    np.testing.assert_array_equal(counts.accepted_lengths.sum(axis=1), counts.rounds)
    np.testing.assert_array_equal(counts.accepted_lengths @ np.arange(decoder.depth + 1), counts.accepted)
    np.testing.assert_array_equal(counts.drafted, (TREES[shape].size - 1) * counts.rounds)
    np.testing.assert_array_equal(counts.path_drafted - counts.path_rolled_back, counts.accepted)
    assert (counts.emitted - counts.accepted <= counts.rounds).all()
    assert (counts.accept.sum(axis=2) <= counts.visits + 1e-4).all()


def test_a_cut_block_counts_what_was_kept():
    """a stop as second of four accepted tokens: two emitted, two accepted, two rolled back, no rejection."""
    cycle, table = TableLM(10), {"table": 20 * jnp.roll(jnp.eye(10), 1, axis=1)}
    stats = run(decode.speculative(cycle, cycle, 4), {"target": table, "draft": table}, [[0]], 9, stop_ids=2).stats
    counts = stats.counts
    assert [int(leaf[0]) for leaf in counts[:7]] == [1, 2, 2, 4, 4, 2, 0]
    assert stats.rollback_all.tolist() == [0.5]


def test_draft_of_one_token():
    """The draft proposes what the target never emits, so the reports come from the verifier."""
    model, params = independent((0.5, 0.5, 0.0), (0.2, 0.3, 0.5))
    decoder = decode.speculative(model, ConstantLM(3, token=2), 2)
    stats = run(decoder, {"target": params["target"], "draft": {}}, [[0]] * 64, 8, sampling=decode.Sampling(1.0)).stats
    assert stats.total().accepted_per_round < 0.01


def test_plain_decoding_drafts_nothing():
    target, _, params = pair("ctx")
    stats = run(decode.autoregressive(target), params, [[1], [2]], [5, 7]).stats
    assert stats.rounds.tolist() == stats.counts.emitted.tolist() == [5, 7]
    assert stats.total().tokens_per_round == 1
    assert stats.total().summary()["drafted"] == 0


def test_measures_of_given_counts():
    """The definitions, on counts that separate them."""
    counts = Counts(
        rounds=np.array([4, 0]),
        emitted=np.array([10, 0]),
        accepted=np.array([6, 0]),
        drafted=np.array([24, 0]),
        path_drafted=np.array([12, 0]),
        path_rolled_back=np.array([6, 0]),
        rejections=np.array([3, 0]),
        accepted_lengths=np.array([[1, 1, 1, 1], [0, 0, 0, 0]]),
        visits=np.array([[4, 3, 2], [0, 0, 0]]),
        accept=np.array([[[2.0, 1.0], [2.0, 0.5], [1.0, 0.0]], np.zeros((3, 2))]),
        accept_squares=np.zeros((2, 3, 2)),
    )
    stats = Stats(counts)
    assert stats.tokens_per_round.tolist() == [2.5, 0]
    assert stats.accepted_per_round.tolist() == [1.5, 0]
    assert stats.mean_accepted_run.tolist() == [2, 0]
    assert stats.rollback_path.tolist() == [0.5, 0]
    assert stats.rollback_all.tolist() == [0.75, 0]
    np.testing.assert_allclose(stats.acceptance, [[5 / 9, 1.5 / 9], [0, 0]])
    np.testing.assert_allclose(stats.conditional_acceptance[0], [3 / 4, 2 / 3, 1 / 2])
    assert np.isnan(stats.conditional_acceptance[1]).all()
    assert stats.summary()["tokens_per_round"] == 2.5
