"""Planted bugs of the law of branch decoding: the enumeration must reject each of them."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from machines import assert_exact, machine

from jaxspec import hrad, verify
from jaxspec.decode.branches.decoder import BranchDecoder
from jaxspec.decode.branches.drafter import BranchDrafter

CONFIDENCE = hrad.Confidence(0.25)


@dataclasses.dataclass(frozen=True)
class DropsLowToken(BranchDrafter):
    """The drawn token at the cut is discarded for its low probability, and the next draw stands in."""

    def go_on(self, params, row, branches, verdict, evidence):
        memory = super().go_on(params, row, branches, verdict, evidence)
        cut: Any = self.cut  # one that has a threshold
        is_low = memory.line.confidence[memory.num_pending] < cut.epsilon
        at = memory.num_pending
        rolled = jnp.where(is_low, jnp.roll(memory.line.candidates[at], -1), memory.line.candidates[at])
        line = memory.line._replace(
            candidates=memory.line.candidates.at[at].set(rolled), tokens=memory.line.tokens.at[at].set(rolled[0])
        )
        return memory._replace(line=line)


@dataclasses.dataclass(frozen=True)
class PrunesSiblings(BranchDrafter):
    """Drawn candidates are cut off from the first later one of low draft probability on."""

    def tried(self, row, line, num_pending):
        assert line.probs is not None
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
    """The target's arg-max among the candidates, tested by one ratio, corrected by an arg-max."""

    corrects_by_argmax: bool = True

    def test(self, row, branches, place, logits):
        accept, rest = super().test(row, branches, place, logits)
        assert branches.line.probs is not None
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
        assert branches.line.probs is not None
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
