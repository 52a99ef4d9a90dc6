"""Branch decoding at temperature 0 gives the target's tokens, and accepts what it must; so do all its ends."""

import checks
import numpy as np
import pytest
import reference
from branching import CTX, H_RAD, SETTINGS, assert_accepts_everything, assert_counts_hold_together, hashed
from checks import RAGGED, run
from toys import FeatLM

from jaxspec import hrad
from jaxspec.decode.branches.decoder import branch_decoder
from jaxspec.sampling import Sampling


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_and_counts_of_a_batch(name):
    """Prompts of 1, 2, 7 and 31 tokens together, with drafts of different quality."""
    decoder, params, _ = SETTINGS[name]
    counts = checks.assert_greedy_equals_reference(decoder, params, RAGGED).stats.counts
    assert_counts_hold_together(decoder, counts)
    assert counts.accepted.sum() > 0.2 * counts.emitted.sum()
    assert counts.tally.branch_rejected.sum() > 0
    if decoder.target == CTX and decoder.length > 1:
        assert counts.tally.pending_rejected.sum() > 0
        assert counts.tally.survived.sum() > 0
    if decoder.drafter.cut == H_RAD:
        assert (counts.tally.labels.sum(axis=0) > 0).all()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_draft_that_is_the_target_is_always_accepted(name):
    """a forgotten catch-up token, a wrong slot, position or mask anywhere in the draft, and a round is short."""
    decoder, _, equal = SETTINGS[name]
    count = 26
    counts = assert_accepts_everything(decoder, equal, count)
    assert_counts_hold_together(decoder, counts)
    np.testing.assert_array_equal(counts.tally.hits[:, : hrad.ALL], 0)
    np.testing.assert_array_equal(counts.tally.hits[:, hrad.ALL], counts.tally.labels[:, hrad.ALL])
    if decoder.drafter.cut == hrad.KEEP_ALL:  # one token in the first round, G in each further one
        np.testing.assert_array_equal(counts.rounds, 1 + -(-(count - 1) // decoder.length))
    elif decoder.length > 1:
        assert (counts.rounds > 1 + (count - 1) // decoder.length).all()
        assert (counts.rounds < count).any()


@pytest.mark.parametrize("name", ["confidence, topk, staged", "tiny"])
def test_tokens_of_one_prompt(name):
    decoder, params, _ = SETTINGS[name]
    for prompt in checks.PROMPTS:
        checks.assert_greedy_equals_reference(decoder, params, [prompt])


@pytest.mark.parametrize("is_equal", [False, True], ids=["", "equal"])
@pytest.mark.parametrize(
    ("name", "temperature"),
    [("pearl", 0.0), ("H-RAD, topk, staged", 0.0), ("confidence", 1.0)],
)
def test_ends_in_the_middle_of_a_round(name, temperature, is_equal):
    """a stop id or a limit falls on pending tokens, candidates and corrections; it changes no other token."""
    decoder, params, equal = SETTINGS[name]
    arguments_ = decoder, equal if is_equal else params, RAGGED
    whole = checks.rows(run(*arguments_, 20, sampling=Sampling(temperature)))
    for stops in ((), (0, 1), (2, 3), (5, 7, 9)):
        for count in (1, 2, 3, 5, 6, 7, 20):
            generation = run(*arguments_, count, sampling=Sampling(temperature), stop_ids=stops)
            assert_counts_hold_together(decoder, generation.stats.counts)
            for row, (tokens, found) in enumerate(zip(whole, checks.rows(generation), strict=True)):
                places = [place for place, token in enumerate(tokens[:count]) if token in stops]
                assert found == (tokens[: places[0] + 1] if places else tokens[:count])
                assert generation.finish_reason[row] == ("stop" if places else "length")


def test_room_that_grows_between_rounds():
    """The pending tokens outlive a change of the bucket."""
    decoder, _, equal = SETTINGS["pearl"]
    generation = checks.assert_greedy_equals_reference(decoder, equal, RAGGED, 60, first_capacity=64)
    assert generation.stats.rounds.tolist() == [1 + -(-59 // 4)] * 5


def test_draft_of_limited_length():
    """Behind the draft's last position nothing is drafted, and decoding goes on plainly, in the same program."""
    decoder = branch_decoder(FeatLM(11, max_length=64), FeatLM(11, max_length=16), 4, 1)
    prompts = [checks.PROMPTS[0], checks.PROMPTS[2]]
    state, reports = checks.steps(decoder, hashed(0.1), prompts, 40)
    drafted = accepted = rolled_back = 0
    for row, prompt in enumerate(prompts):
        tokens = state.row.tokens[row, len(prompt) : len(prompt) + 40].tolist()
        assert tokens == reference.greedy(CTX, hashed(0.1)["target"], prompt, 40)
    for before, info in reports:
        beyond = before.num_tokens - 1 >= 16
        assert not info.num_drafted[beyond].any()
        assert not info.is_visited[beyond].any()
        assert not info.is_rejected[beyond].any()
        np.testing.assert_array_equal(info.num_emitted[beyond], ~before.is_finished[beyond])
        drafted, accepted = drafted + info.num_drafted, accepted + info.num_accepted
        rolled_back = rolled_back + info.path_rolled_back
    np.testing.assert_array_equal(drafted, accepted + rolled_back)
    assert np.all(drafted > 4)
    assert np.all(accepted > 4)


def test_draft_of_limited_length_that_is_the_target():
    """Of the 16 tokens that the draft can propose behind a prompt of one, all are drafted, once, and accepted."""
    decoder = branch_decoder(FeatLM(11, max_length=64), FeatLM(11, max_length=16), 4, 1)
    _, reports = checks.steps(decoder, hashed(0.0), [[3], [1, 4]], 40)
    assert np.sum([info.num_drafted for _, info in reports], axis=0).tolist() == [16, 15]
    assert np.sum([info.num_accepted for _, info in reports], axis=0).tolist() == [16, 15]
    assert np.sum([info.tally.branches for _, info in reports], axis=0).tolist() == [4, 4]
