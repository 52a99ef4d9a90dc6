"""The cuts, what they read, and the settings that are refused."""

import dataclasses

import checks
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from branching import (
    CTX,
    H_RAD,
    LOW,
    SETTINGS,
    SPY_PROMPTS,
    ReadsFeatures,
    Spy,
    assert_cut_reads_the_newest,
    hashed,
    seen_by_the_cut,
)
from checks import run
from compiled import num_programs
from programs import COMPILATIONS, arguments
from toys import CtxLM

from jaxspec import decode, hrad
from jaxspec.decode import loop
from jaxspec.decode.branches.decoder import branch_decoder


@pytest.mark.parametrize("staged", [False, True], ids=["", "staged"])
def test_what_the_cut_reads(staged):
    decoder = branch_decoder(CTX, CTX, 3, 3, Spy(), has_draft_stage=staged)
    found, wanted, emitted = assert_cut_reads_the_newest(decoder)
    assert {1, 2, 3} <= {count for counts in emitted for count in counts}
    assert any(len(set(counts)) > 1 for counts in emitted)
    for chunk in () if staged else (1, 3):  # whatever the chunks
        assert seen_by_the_cut(decoder, chunk) == (found, wanted, emitted)


def test_features_are_kept_for_training():
    """`keeps_features` gives them to any cut, and changes no token."""
    decoder, seen = branch_decoder(CTX, CTX, 3, 3, LOW, keeps_features=True), 0

    def look(state):
        nonlocal seen
        for row in np.flatnonzero(~np.asarray(state.row.is_finished) & (np.asarray(state.row.num_rounds) > 0)):
            tokens, last = np.asarray(state.row.tokens[row]), int(state.row.num_tokens[row]) - 1
            assert np.argmax(state.memory.features[row], axis=1).tolist() == [row + 1, last - 1, tokens[last - 1]]
            assert np.argmax(state.memory.embedding[row]) == tokens[last]
            seen += 1
        return state

    state, _ = checks.steps(decoder, hashed(0.4), SPY_PROMPTS, 12, change=look)
    assert seen > 12
    for row, prompt in enumerate(SPY_PROMPTS):
        tokens = state.row.tokens[row, len(prompt) : len(prompt) + 12].tolist()
        assert tokens == reference.greedy(CTX, hashed(0.4)["target"], prompt, 12)


@pytest.mark.parametrize("staged", [False, True])
def test_a_target_without_features_is_refused(staged):
    """The message comes before anything of the decoder is compiled."""
    decoder = branch_decoder(CtxLM(11), CtxLM(11), 3, 3, H_RAD, has_draft_stage=staged)

    def attempt():
        with pytest.raises(ValueError, match=r"CtxLM gives no features.*num_features"):
            run(decoder, hashed(0.4), [[1]])

    attempt()  # which may compile what makes the keys
    programs, count = num_programs(loop._rounds), len(COMPILATIONS)
    attempt()
    assert (num_programs(loop._rounds), len(COMPILATIONS)) == (programs, count)


def test_missing_parameters_of_the_head_are_refused():
    decoder, params, _ = SETTINGS["H-RAD"]
    without = {name: params[name] for name in ("target", "draft")}
    with pytest.raises(ValueError, match=r"params has no 'hrad'"):
        run(decoder, without, [[1]])
    arguments(SETTINGS["confidence"].decoder, without)  # which reads none


def test_bad_settings_are_refused():
    for message, arguments_ in (
        ("length=0", (0, 2)),
        ("max_branches=0", (2, 0)),
        ("12 siblings.*11 tokens", (2, 12)),
    ):
        with pytest.raises(ValueError, match=message):
            branch_decoder(CTX, CTX, *arguments_)
    with pytest.raises(ValueError, match=r"epsilon=1\.5"):
        decode.specbranch(CTX, CTX, None, 4, 3, 1.5)
    with pytest.raises(ValueError, match=r"epsilon=-0\.1"):
        decode.specbranch(CTX, CTX, ReadsFeatures(), 4, 3, -0.1)
    with pytest.raises(ValueError, match=r"width='most'.*'adaptive', 'all'"):
        decode.specbranch(CTX, CTX, None, 4, 3, 0.1, width="most")


@dataclasses.dataclass(frozen=True)
class TwoClasses:
    """A network of a class too few."""

    def apply(self, params, inputs):
        return jnp.zeros(2)


def test_a_head_of_another_number_of_classes_is_refused():
    with pytest.raises(AssertionError, match=r"shape.*\(2,\)"):
        hrad.HRad(TwoClasses(), 0.3)({}, jnp.zeros((3, 64)), jnp.zeros(64), jnp.zeros(4))


def test_cuts():
    """How many tokens are kept, and the class, from confidences of a continuation of four."""
    confidence = jnp.array([0.9, 0.5, 0.2, 0.0])  # the last is the one beyond: it can't be pending
    features, embedding = jnp.zeros((3, 64)), jnp.zeros(64)

    def found(cut):
        return tuple(int(value) for value in cut({}, features, embedding, confidence))

    assert found(hrad.KEEP_ALL) == (3, hrad.ALL)
    assert found(hrad.Confidence(0.0)) == found(hrad.Confidence(0.2)) == (3, hrad.ALL)
    assert found(hrad.Confidence(0.3)) == (2, hrad.PARTIAL)
    assert found(hrad.Confidence(0.6)) == (1, hrad.PARTIAL)
    assert found(hrad.Confidence(1.0)) == (0, hrad.NONE)
    assert found(hrad.HRad(ReadsFeatures(), 0.3)) == (0, hrad.NONE)
    embedding = embedding.at[1].set(1.0)
    assert found(hrad.HRad(ReadsFeatures(), 0.3)) == (2, hrad.PARTIAL)
    embedding = jnp.roll(embedding, 1)
    assert found(hrad.HRad(ReadsFeatures(), 0.3)) == (3, hrad.ALL)
    assert hrad.labels(np.arange(4), 3).tolist() == [hrad.NONE, hrad.PARTIAL, hrad.PARTIAL, hrad.ALL]
