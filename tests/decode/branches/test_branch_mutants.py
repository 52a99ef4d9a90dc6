"""Planted bugs in what a branch decoder sees, keeps and draws: the checks of the real one must reject each of them."""

import dataclasses

import checks
import jax
import jax.numpy as jnp
import pytest
from branching import (
    CTX,
    LOW,
    Spy,
    assert_accepts_everything,
    assert_cut_reads_the_newest,
    assert_joint_law,
    hashed,
)
from checks import RAGGED
from laws import MODEL, PARAMS, law
from toys import Wrapped

from jaxspec import hrad
from jaxspec.decode import proposals, state
from jaxspec.decode.branches.decoder import BranchDecoder, branch_decoder
from jaxspec.decode.branches.drafter import BranchDrafter

CONFIDENCE = hrad.Confidence(0.25)


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
    """Masks and positions of the draft's steps."""
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
    """What the draft commits, and what it keeps of the survivor."""
    decoder = BranchDecoder(wrong(CTX, CTX, LENGTH, BRANCHES, LOW))
    checks.assert_greedy_equals_reference(decoder, hashed(0.0), RAGGED)
    with pytest.raises(AssertionError, match="something was rejected"):
        assert_accepts_everything(decoder, hashed(0.0))


# What H-RAD sees.


@dataclasses.dataclass(frozen=True)
class FeaturesOfTheRoot(BranchDecoder):
    """The features of the round's first token, not of the last verified one."""

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
    """The same noise in every round, everywhere, or for proposal and test alike."""
    patch(monkeypatch)
    wrong = PatchedNoise(BranchDrafter(MODEL, MODEL, 3, 3, CONFIDENCE), name=patch.__name__)
    with pytest.raises(AssertionError, match="total variation"):
        assert_joint_law(wrong, PARAMS, law())
