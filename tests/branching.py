"""Branch decoders of toy models, and what each of them must pass."""

import dataclasses
from typing import NamedTuple

import checks
import jax
import jax.numpy as jnp
import numpy as np
from checks import RAGGED
from laws import MODEL, PARAMS
from machines import ReadsBoth
from toys import FeatLM, TokenFeatLM, noisy, pair

from jaxspec import decode, hrad, verify
from jaxspec.base import Model, Params
from jaxspec.decode import loop, stats
from jaxspec.decode.branches import widths
from jaxspec.decode.branches.decoder import BranchDecoder, branch_decoder
from jaxspec.decode.request import Asked, checked

CTX = FeatLM(11)


@dataclasses.dataclass(frozen=True)
class ReadsFeatures:
    """A network whose class changes with the position and the token of the features, and with the newest token."""

    def apply(self, params, inputs):
        position, token, newest = (jnp.argmax(part) for part in jnp.split(inputs, 4)[1:])
        return jax.nn.one_hot((position + token + newest) % 3, hrad.NUM_CLASSES)


def hashed(noise: float) -> dict[str, Params]:
    """Parameters of `CTX` as a target, and as its draft with noise; 0: the target itself."""
    params = CTX.init(jax.random.key(11))
    return {"target": noisy(params, 0.0), "draft": noisy(params, noise), "hrad": {}}


class Setting(NamedTuple):
    """A decoder, and the parameters of a draft that differs from the target and of one that is the target."""

    decoder: BranchDecoder
    params: dict[str, Params]
    equal: dict[str, Params]


def setting(model: Model, params, *arguments, **options):
    equal = {**params, "draft": params["target"]}
    return Setting(branch_decoder(model, model, *arguments, **options), params, equal)


LOW, H_RAD = hrad.Confidence(0.3), hrad.HRad(ReadsFeatures(), 0.3)
SETTINGS = {
    "pearl": setting(CTX, hashed(0.4), 4, 1),
    "pearl staged": setting(CTX, hashed(0.4), 4, 1, has_draft_stage=True),
    "branches": setting(CTX, hashed(0.6), 3, 4),
    "confidence": setting(CTX, hashed(0.4), 4, 3, LOW),
    "confidence, topk, staged": setting(CTX, hashed(0.4), 5, 3, LOW, verify.TOP_K, True),
    "H-RAD": setting(CTX, hashed(0.4), 4, 3, H_RAD),
    "H-RAD, topk, staged": setting(CTX, hashed(0.4), 3, 3, H_RAD, verify.TOP_K, True),
    "one token": setting(CTX, hashed(0.4), 1, 3, LOW),
    "all tried": setting(CTX, hashed(1.0), 3, 2, LOW, width=widths.ALL),
    **{name: setting(pair(name).target, pair(name).params, 4, 3, LOW) for name in ("pos", "table", "tiny")},
}
"""Draft and target are one model with different parameters, so that a program serves both kinds of parameters."""


def assert_counts_hold_together(decoder: BranchDecoder, counts: stats.Counts) -> None:
    """What is true of every row's counts without a limit of the draft's positions."""
    tally, length, drafter = counts.tally, decoder.length, decoder.drafter
    ends = tally.pending_rejected + tally.branch_rejected + tally.survived
    assert ((ends == counts.rounds) | (ends == counts.rounds - 1)).all()  # the last may be cut short
    np.testing.assert_array_equal(counts.rejections, tally.pending_rejected + tally.branch_rejected)
    np.testing.assert_array_equal(counts.emitted - counts.accepted, counts.rejections)
    np.testing.assert_array_equal(counts.accepted_lengths @ np.arange(length + 1), counts.accepted)
    assert (counts.accepted <= counts.drafted).all()
    assert (counts.path_rolled_back <= counts.path_drafted).all()
    assert (counts.path_drafted <= counts.drafted).all()
    assert (counts.path_drafted - counts.path_rolled_back >= counts.accepted).all()
    np.testing.assert_array_equal(counts.drafted - counts.path_drafted, length * (tally.branches - counts.rounds))
    widest = drafter.max_branches - (drafter.width == widths.ADAPTIVE)
    assert (tally.branches <= max(widest, 1) * counts.rounds).all()
    assert (tally.pending <= (length - 1) * counts.rounds).all()
    assert (tally.hits <= tally.labels).all()
    labels, judged = tally.labels.sum(axis=1), ends - 1 if drafter.has_draft_stage else tally.survived
    assert ((labels == judged) | (labels == judged - 1) & (not drafter.has_draft_stage)).all()
    if drafter.cut == hrad.KEEP_ALL:
        assert not tally.labels[:, : hrad.ALL].any()
    if drafter.cut == hrad.KEEP_ALL and drafter.max_branches == 1:
        np.testing.assert_array_equal(counts.path_drafted, counts.drafted)
        np.testing.assert_array_equal(counts.path_rolled_back, counts.drafted - counts.accepted)


def assert_accepts_everything(decoder: BranchDecoder, equal: dict[str, Params], count: int = 26) -> stats.Counts:
    """The tokens are right, and the draft proposed all of them."""
    counts = checks.assert_greedy_equals_reference(decoder, equal, RAGGED, count).stats.counts
    np.testing.assert_array_equal(counts.rejections, 0, err_msg="something was rejected")
    np.testing.assert_array_equal(counts.accepted, count)
    return counts


SAMPLED = {
    "pearl": decode.pearl(MODEL, MODEL, 3),
    "confidence": decode.specbranch(MODEL, MODEL, None, 3, 3, 0.25),
    "H-RAD, topk, staged": decode.specbranch(
        TokenFeatLM(3), MODEL, ReadsBoth(), 3, 3, 0.55, fork=verify.TOP_K, has_draft_stage=True
    ),
}
ALL_PARAMS = {**PARAMS, "hrad": {}}


def assert_joint_law(decoder, params, transitions, count=4, **options):
    """From 2^15 samples, of which the expected distance is .4 sqrt(V^count / 2^15): .02 for 4 tokens of 3."""
    limit = 0.65 * (len(transitions) ** count / 2**15) ** 0.5
    checks.assert_joint_law(decoder, params, transitions, count, limit, num_keys=2, num_rows=2**14, **options)


@dataclasses.dataclass(frozen=True)
class Spy:
    """A cut that hands out what it was given, as the label: row, position and token of the features, newest token."""

    reads_features = True

    def __call__(self, params, features, embedding, confidence):
        assert features.shape == (3, 64)
        assert confidence.shape == (3,)
        row, position, token = jnp.argmax(features, axis=1)
        newest = jnp.argmax(embedding)
        label = ((row * 64 + position) * 64 + token) * 64 + newest
        return hrad.Cutting(((position + token + newest) % 3).astype(jnp.int32), label.astype(jnp.int32))


SPY_PROMPTS = [[1, 4], [2, 0, 5, 5, 1], [3, 9, 2, 7, 7, 0, 1, 5, 4]]


def seen_by_the_cut(decoder, chunk=64, count=24):
    """What each row's cut saw after each round, beside what it should have seen, and each round's emitted tokens."""
    asked = Asked(max_new_tokens=count, logprobs=False, prefill_chunk=chunk)
    state = loop.begin(decoder, hashed(0.4), checked(decoder, hashed(0.4), SPY_PROMPTS, checks.KEY, asked))
    stage = jax.jit(jax.vmap(lambda one: decoder.drafter.draft_stage(hashed(0.4), one)))
    found, wanted, emitted = [], [], []
    while not np.asarray(state.row.is_finished).all():
        state, info = loop._round(decoder, hashed(0.4), state)
        tokens, lengths = np.asarray(state.row.tokens), np.asarray(state.row.num_tokens)
        memory = stage(state).memory if decoder.drafter.has_draft_stage else state.memory
        goes_on = ~np.asarray(state.row.is_finished)  # where the limit cut a round, nothing is read any more
        for row, length in enumerate(lengths):
            if goes_on[row]:
                label = int(memory.label[row])
                found.append((label >> 18, (label >> 12) & 63, (label >> 6) & 63, label & 63))
                wanted.append((tokens[row, 0], length - 2, tokens[row, length - 2], tokens[row, length - 1]))
        emitted.append(np.asarray(info.num_emitted).tolist())
    return found, wanted, emitted


def assert_cut_reads_the_newest(decoder: BranchDecoder) -> tuple:
    """The target's features at the last verified position of the row, and the embedding of its newest token."""
    found, wanted, emitted = seen_by_the_cut(decoder)
    assert found == wanted
    return found, wanted, emitted
