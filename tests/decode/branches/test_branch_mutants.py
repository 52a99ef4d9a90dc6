"""Planted bugs in branch decoding: the checks that the real decoder passes must reject each of them."""

import dataclasses
import functools

import checks
import jax
import jax.numpy as jnp
import pytest
from test_branches import (
    CTX,
    LOW,
    RAGGED,
    Spy,
    assert_accepts_everything,
    assert_cut_reads_the_newest,
    assert_joint_law,
    hashed,
)
from test_decoder_mutants import Wrapped
from test_exact import assert_exact, machine
from test_lossless_sampled import MODEL, PARAMS, law

from jaxspec import hrad, verify
from jaxspec.decode import proposals, state
from jaxspec.decode.branches.decoder import BranchDecoder, branch_decoder
from jaxspec.decode.branches.drafter import BranchDrafter

CONFIDENCE = hrad.Confidence(0.25)


@dataclasses.dataclass(frozen=True)
class DropsLowToken(BranchDrafter):
    """papers.md 2.2: the drawn token at the cut is discarded for its low probability, and the next draw stands in."""

    def go_on(self, params, row, branches, verdict, evidence):
        memory = super().go_on(params, row, branches, verdict, evidence)
        is_low = memory.line.confidence[memory.num_pending] < self.cut.epsilon
        at = memory.num_pending
        rolled = jnp.where(is_low, jnp.roll(memory.line.candidates[at], -1), memory.line.candidates[at])
        line = memory.line._replace(
            candidates=memory.line.candidates.at[at].set(rolled), tokens=memory.line.tokens.at[at].set(rolled[0])
        )
        return memory._replace(line=line)


@dataclasses.dataclass(frozen=True)
class PrunesSiblings(BranchDrafter):
    """papers.md 2.2: drawn candidates are cut off from the first later one of low draft probability on."""

    def tried(self, row, line, num_pending):
        probs = line.probs[num_pending][line.candidates[num_pending]]
        kept = (probs > 0.27) | (jnp.arange(self.max_branches) == 0)
        return super().tried(row, line, num_pending) & jnp.cumprod(kept).astype(bool)


@dataclasses.dataclass(frozen=True)
class ConfidenceOfTheDraw(BranchDrafter):
    """The confidence of the drawn token decides the cut, and the fork's candidates replace that token."""

    def position(self, logits, drawn, probs):
        confidence = jnp.exp(logits[drawn[0]] - jax.nn.logsumexp(logits))
        return super().position(logits, drawn, probs)._replace(confidence=confidence)


@dataclasses.dataclass(frozen=True)
class PublicBranchRule(BranchDecoder):
    """K1, papers.md 2.8: the target's arg-max among the candidates, tested by one ratio, corrected by an arg-max."""

    corrects_by_argmax: bool = True

    def test(self, row, branches, place, logits):
        accept, rest = super().test(row, branches, place, logits)
        target, draft = jax.nn.softmax(logits), branches.line.probs[place]
        children = branches.line.candidates[place]
        best = jnp.argmax(jnp.where(branches.is_active, target[children], -1.0))
        ratio = jnp.minimum(1.0, target[children[best]] / draft[children[best]])
        public = ratio * jax.nn.one_hot(best, self.max_children)
        residual = jnp.maximum(target - draft, 0.0)
        residual = residual / residual.sum()
        if self.corrects_by_argmax:
            residual = jax.nn.one_hot(jnp.argmax(target - draft), len(target))
        is_fork = place == branches.num_pending
        return jnp.where(is_fork, public, accept), jnp.where(is_fork, residual, rest)


@dataclasses.dataclass(frozen=True)
class ReadsTheTail(BranchDrafter):
    """An H-RAD whose class depends on a drafted token: none where token 2 stands at a place of the tail, else all."""

    place: int = 1

    def _cut(self, params, row, line, evidence):
        label = jnp.where(line.tokens[self.place] == 2, hrad.NONE, hrad.ALL).astype(jnp.int32)
        return hrad.Cutting(jnp.where(label == hrad.NONE, 0, self.length - 1).astype(jnp.int32), label)


@dataclasses.dataclass(frozen=True)
class ReadsTheWholeConfidence(BranchDrafter):
    """A cut that keeps nothing where any token is of low confidence, not only what is in front of it."""

    def _cut(self, params, row, line, evidence):
        is_low = (line.confidence < 0.25).any()
        count = jnp.where(is_low, 0, self.length - 1).astype(jnp.int32)
        return hrad.Cutting(count, jnp.zeros((), jnp.int32))


@dataclasses.dataclass(frozen=True)
class ForgetsTheSavedDistribution(BranchDecoder):
    """Each token is tested against the distribution of the position behind it."""

    def test(self, row, branches, place, logits):
        line = branches.line._replace(probs=jnp.roll(branches.line.probs, -1, axis=0))
        return super().test(row, branches._replace(line=line), place, logits)


@dataclasses.dataclass(frozen=True)
class FixedForkAsDrawn(BranchDecoder):
    """Candidates that were not drawn are tested as if they had been."""

    def test(self, row, branches, place, logits):
        drawn = BranchDecoder(dataclasses.replace(self.drafter, fork=verify.SEQUOIA))
        return drawn.test(row, branches, place, logits)


@dataclasses.dataclass(frozen=True)
class CorrectsByTheTarget(BranchDecoder):
    """A rejected token is replaced by a draw from the target, not from the residual."""

    def test(self, row, branches, place, logits):
        accept, rest = super().test(row, branches, place, logits)
        return accept, jnp.where(place < branches.num_pending, jax.nn.softmax(logits), rest)


kind = functools.partial
LAW_MUTANTS = {  # class, (size, length, branches, cut, fork, staged)
    "drawn token dropped": (DropsLowToken, (3, 2, 3, CONFIDENCE)),
    "drawn token dropped behind another": (DropsLowToken, (3, 3, 2, hrad.Confidence(0.28))),
    "drawn siblings dropped": (PrunesSiblings, (4, 2, 4, hrad.KEEP_ALL)),
    "drawn confidence, fixed fork": (ConfidenceOfTheDraw, (3, 2, 3, CONFIDENCE, verify.TOP_K)),
    "drawn confidence, fixed fork, staged": (ConfidenceOfTheDraw, (3, 3, 1, CONFIDENCE, verify.TOP_K, True)),
    "public rule, drawn": (PublicBranchRule, (4, 2, 4, hrad.KEEP_ALL)),
    "public rule": (PublicBranchRule, (4, 2, 4, hrad.KEEP_ALL, verify.TOP_K)),
    "public rule, residual drawn": (
        kind(PublicBranchRule, corrects_by_argmax=False),
        (4, 2, 4, hrad.KEEP_ALL, verify.TOP_K),
    ),
    "tail read": (ReadsTheTail, (3, 2, 3, CONFIDENCE)),
    "tail read, staged": (ReadsTheTail, (3, 3, 3, CONFIDENCE, verify.SEQUOIA, True)),
    "tail read, fixed fork": (kind(ReadsTheTail, place=0), (3, 2, 3, CONFIDENCE, verify.TOP_K)),
    "whole confidence read": (ReadsTheWholeConfidence, (3, 2, 3, CONFIDENCE)),
    "another's distribution": (ForgetsTheSavedDistribution, (3, 2, 3, CONFIDENCE)),
    "fixed fork tested as drawn": (FixedForkAsDrawn, (4, 2, 3, CONFIDENCE, verify.TOP_K)),
    "corrected by the target": (CorrectsByTheTarget, (3, 2, 1, hrad.KEEP_ALL)),
}


def half_of(wrong):
    """What `machine` takes of a wrong half."""
    is_drafter = issubclass(getattr(wrong, "func", wrong), BranchDrafter)
    return {"drafter" if is_drafter else "decoder": wrong}


@pytest.mark.parametrize(("wrong", "arguments"), LAW_MUTANTS.values(), ids=LAW_MUTANTS)
def test_wrong_law_is_rejected(wrong, arguments):
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_exact(machine(*arguments, **half_of(wrong)))


def test_reading_what_is_kept_is_right():
    """Not every look at a draft is wrong: drawn forks test the first token of the tail whatever the cut."""
    assert_exact(machine(3, 2, 3, CONFIDENCE, drafter=kind(ReadsTheTail, place=0)))


# What the draft sees: the output stays right, the acceptance falls.

LENGTH, BRANCHES = 4, 3


def _on_branches(change):
    """A change of the calls that continue the branches, told by their number of tokens."""

    def changed(positions, mask):
        return change(positions, mask) if mask.shape[0] == BRANCHES else (positions, mask)

    changed.__name__ = change.__name__
    return changed


@_on_branches
def stale_pending_tokens(positions, mask):
    return positions, mask | (jnp.arange(mask.shape[1]) < LENGTH)[None]


@_on_branches
def branches_that_see_each_other(positions, mask):
    return positions, jnp.broadcast_to(mask.any(axis=0)[None], mask.shape)


@_on_branches
def branches_a_position_late(positions, mask):
    return positions + 1, mask


@_on_branches
def branches_without_the_root(positions, mask):
    return positions, mask.at[:, 0].set(False)


@_on_branches
def branches_without_their_own_tokens(positions, mask):
    return positions, mask.at[:, LENGTH : LENGTH + BRANCHES].set(False)


def fresh_root_a_position_late(positions, mask):
    return positions + int(mask.shape[0] == 1), mask


VIEWS = (
    stale_pending_tokens,
    branches_that_see_each_other,
    branches_a_position_late,
    branches_without_the_root,
    branches_without_their_own_tokens,
    fresh_root_a_position_late,
)


@pytest.mark.parametrize("change", VIEWS, ids=lambda change: change.__name__)
def test_wrong_view_of_the_draft_is_rejected(change):
    """A5, E8: masks and positions of the draft's steps."""
    wrong = branch_decoder(CTX, Wrapped(CTX, change), LENGTH, BRANCHES, LOW)
    checks.assert_greedy_equals_reference(wrong, hashed(0.0), RAGGED)
    with pytest.raises(AssertionError, match="something was rejected"):
        assert_accepts_everything(wrong, hashed(0.0))


def commits_otherwise(half, name, change):
    """A half whose context counts more or fewer tokens than were emitted."""

    def commit(self, state, *arguments):
        context = getattr(half, f"commit_{name}")(self, state, *arguments)
        grows = context.length > state.contexts[name].length
        return context._replace(length=context.length + jnp.where(grows, change, 0))

    return dataclasses.dataclass(frozen=True)(type("CommitsOtherwise", (half,), {f"commit_{name}": commit}))


@dataclasses.dataclass(frozen=True)
class EntriesOfAnotherBranch(BranchDrafter):
    """The entries that are kept are not the survivor's."""

    def go_on(self, params, row, branches, verdict, evidence):
        memory = super().go_on(params, row, branches, verdict, evidence)
        other = verdict._replace(branch=(verdict.branch + 1) % self.max_branches)
        return memory._replace(entries=super().go_on(params, row, branches, other, evidence).entries)


@dataclasses.dataclass(frozen=True)
class EntriesAStepLate(BranchDrafter):
    """The entries that are kept begin behind the candidate."""

    def go_on(self, params, row, branches, verdict, evidence):
        memory = super().go_on(params, row, branches, verdict, evidence)
        return memory._replace(entries=jax.tree.map(lambda leaf: jnp.roll(leaf, -1, axis=0), memory.entries))


def test_wrong_count_of_the_target_s_commits_is_rejected():
    wrong = commits_otherwise(BranchDecoder, "target", 1)(BranchDrafter(CTX, CTX, LENGTH, BRANCHES, LOW))
    with pytest.raises(AssertionError):
        checks.assert_greedy_equals_reference(wrong, hashed(0.0), RAGGED)


WRONG_ENTRIES = {
    "one too few": commits_otherwise(BranchDrafter, "draft", -1),
    "one too many": commits_otherwise(BranchDrafter, "draft", 1),
    "another branch's": EntriesOfAnotherBranch,
    "a step late": EntriesAStepLate,
}


@pytest.mark.parametrize("wrong", WRONG_ENTRIES.values(), ids=WRONG_ENTRIES)
def test_wrong_entries_of_the_draft_are_rejected(wrong):
    """A5: what the draft commits, and what it keeps of the survivor."""
    decoder = BranchDecoder(wrong(CTX, CTX, LENGTH, BRANCHES, LOW))
    checks.assert_greedy_equals_reference(decoder, hashed(0.0), RAGGED)
    with pytest.raises(AssertionError, match="something was rejected"):
        assert_accepts_everything(decoder, hashed(0.0))


# What H-RAD sees.


@dataclasses.dataclass(frozen=True)
class FeaturesOfTheRoot(BranchDecoder):
    """E6: the features of the round's first token, not of the last verified one."""

    def evidence(self, params, row, hidden, place):
        return super().evidence(params, row, hidden, jnp.zeros_like(place))


@dataclasses.dataclass(frozen=True)
class FeaturesOfTheNewest(BranchDecoder):
    """The features of the place behind: a token that was rejected, or was not run yet."""

    def evidence(self, params, row, hidden, place):
        return super().evidence(params, row, hidden, jnp.minimum(place + 1, self.length - 1))


@dataclasses.dataclass(frozen=True)
class EmbeddingOfTheLastRoot(BranchDecoder):
    """The embedding of the token in front of the newest one."""

    def evidence(self, params, row, hidden, place):
        return super().evidence(params, row._replace(num_tokens=row.num_tokens - 1), hidden, place)


@pytest.mark.parametrize("wrong", [FeaturesOfTheRoot, FeaturesOfTheNewest, EmbeddingOfTheLastRoot])
def test_wrong_evidence_is_rejected(wrong):
    with pytest.raises(AssertionError):
        assert_cut_reads_the_newest(wrong(BranchDrafter(CTX, CTX, 3, 3, Spy())))


# Noise.


@dataclasses.dataclass(frozen=True)
class PatchedNoise(BranchDecoder):
    """A decoder traced while the keys are patched."""

    name: str = ""


def _same_every_round(monkeypatch):
    monkeypatch.setattr(state, "round_key", lambda row: row.key)


def _same_everywhere(monkeypatch):
    monkeypatch.setattr(proposals, "key_of", lambda key, number, purpose: jax.random.fold_in(key, purpose))


def _same_for_every_purpose(monkeypatch):
    def without_purpose(key, number, purpose):
        return jax.random.fold_in(key, number)

    monkeypatch.setattr(proposals, "key_of", without_purpose)


@pytest.mark.parametrize("patch", [_same_every_round, _same_everywhere, _same_for_every_purpose])
def test_noise_used_twice_is_rejected(monkeypatch, patch):
    """K3, papers.md 2.8."""
    patch(monkeypatch)
    wrong = PatchedNoise(BranchDrafter(MODEL, MODEL, 3, 3, CONFIDENCE), name=patch.__name__)
    with pytest.raises(AssertionError, match="total variation"):
        assert_joint_law(wrong, PARAMS, law())
