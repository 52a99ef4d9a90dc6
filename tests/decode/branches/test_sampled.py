"""Branch decoding at temperature above 0: the joint law of several tokens is the target's."""

import numpy as np
import pytest
import reference
from branching import ALL_PARAMS, SAMPLED, SETTINGS, assert_joint_law
from checks import RAGGED, run
from laws import KEPT_TARGET, MODEL, PARAMS, kept_params, law
from toys import KeptTableLM, TableLM

from jaxspec import decode, hrad
from jaxspec.decode.branches.decoder import branch_decoder
from jaxspec.sampling import Sampling


@pytest.mark.parametrize("name", SAMPLED)
def test_joint_law_of_four_tokens(name):
    """Two to four rounds: noise that is used twice shows."""
    assert_joint_law(SAMPLED[name], ALL_PARAMS, law())


def test_joint_law_under_options():
    """Pending tokens, candidates and corrections follow one pipeline."""
    decoder = SAMPLED["confidence"]
    for options in (
        {"temperature": 2.0, "top_k": 2, "top_p": 0.95},
        {"temperature": 2.0, "top_k": 3, "top_p": 0.6},
        {"temperature": 0.7, "top_k": 2, "top_p": 0.9},
    ):
        assert np.sort(law(**options), axis=1)[:, -1].min() < 0.9
        assert_joint_law(decoder, PARAMS, law(**options), 3, sampling=Sampling(**options))


def test_the_draft_s_temperature_changes_speed_only():
    """Drafts at temperature 0 and 2 below a target at .7, in one program."""
    decoder = SAMPLED["confidence"]
    for temperature in (0.0, 2.0):
        options = {"sampling": Sampling(0.7), "draft_temperature": temperature}
        assert_joint_law(decoder, ALL_PARAMS, law(temperature=0.7), **options)


def test_rows_with_their_own_options():
    """Rows at T = 0, 1, 0 and .7 in one batch each have their own law."""
    temperatures = np.tile([0.0, 1.0, 0.0, 0.7], 2**12)
    options = {"sampling": Sampling(temperatures), "logprobs": False}
    tokens = run(SAMPLED["confidence"], ALL_PARAMS, [[0]] * 2**14, 3, **options).tokens
    for offset, temperature in ((1, 1.0), (3, 0.7)):
        counts = np.bincount(tokens[offset::4] @ [9, 3, 1], minlength=27)
        assert reference.chi_square_excess(counts, reference.joint_law(law(temperature=temperature), 0, 3)) < 5
    assert (tokens[::2] == reference.greedy(MODEL, PARAMS["target"], [0], 3)).all()


def test_joint_law_with_a_reduced_vocabulary():
    """Candidates from a draft that lacks token 1, two of them where the confidence is low enough."""
    decoder = decode.specbranch(TableLM(4), KeptTableLM(4), None, 2, 3, 0.4)
    params = kept_params([[0.3, 0.1, 0.2, 0.4], [0.4, 0.1, 0.2, 0.3], [0.3, 0.0, 0.3, 0.4], [0.5, 0.1, 0.2, 0.2]])
    assert_joint_law(decoder, params, KEPT_TARGET, 3)
    generation = run(decoder, params, [[0]] * 2**14, 3, sampling=Sampling(1.0), logprobs=False)
    assert generation.stats.total().acceptance[1] > 0.005


def test_draft_of_limited_length_keeps_the_law():
    """The law is the target's on both sides of the limit."""
    decoder = branch_decoder(MODEL, TableLM(3, max_length=3), 3, 3, hrad.Confidence(0.25))
    assert_joint_law(decoder, PARAMS, law())


def test_sampled_draft_that_is_the_target_is_always_accepted():
    """Draws that come from the target pass every test: the noise of a round's parts does not matter."""
    decoder, _, equal = SETTINGS["confidence"]
    counts = run(decoder, equal, RAGGED, 26, sampling=Sampling(1.0)).stats.counts
    np.testing.assert_array_equal(counts.rejections, 0)
    np.testing.assert_array_equal(counts.accepted, 26)
