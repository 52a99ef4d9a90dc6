"""Planted bugs in rules and pipeline: the checks that the real ones pass must reject each of them."""

import dataclasses

import checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import sampling, verify
from jaxspec.sampling import pipeline

FIRST = (0.2, 0.5, 0.3), (0.5, 0.3, 0.2)  # target, draft
PAPER = (0.4, 0.3, 0.2, 0.1), (0.1, 0.2, 0.3, 0.4)


def _one_hot(index, like):
    return jax.nn.one_hot(index, like.shape[0], dtype=jnp.float32)


@dataclasses.dataclass(frozen=True)
class SoftmaxResidual(verify.Sequoia):
    """The clipped difference goes through a softmax instead of being divided by its sum."""

    def outcome(self, target_probs, draft_probs, children, active, support=None):
        accept, _ = super().outcome(target_probs, draft_probs, children, active, support)
        return accept, jax.nn.softmax(jnp.maximum(target_probs - draft_probs, 0.0))


@dataclasses.dataclass(frozen=True)
class SpecBranchPublic(verify.TopK):
    """The target's arg-max among the draft's top-k, tested by the ratio, corrected by an arg-max."""

    def outcome(self, target_probs, draft_probs, children, active, support=None):
        del active, support
        best = jnp.argmax(target_probs[children])
        ratio = jnp.minimum(1.0, target_probs[children[best]] / draft_probs[children[best]])
        return ratio * _one_hot(best, children), _one_hot(jnp.argmax(target_probs - draft_probs), target_probs)


@dataclasses.dataclass(frozen=True)
class ArgMaxDraftRatio(verify.TopK):
    """The draft's arg-max, tested as if it had been drawn."""

    def outcome(self, target_probs, draft_probs, children, active, support=None):
        return verify.SEQUOIA.outcome(target_probs, draft_probs, children, active, support)


@dataclasses.dataclass(frozen=True)
class TiedDraws(verify.Sequoia):
    """Tokens whose draft probability underflowed come in the order of their ids."""

    def propose(self, key, draft_logits, count):
        scores = draft_logits - draft_logits.max() + jax.random.gumbel(key, draft_logits.shape)
        return sampling.top_k(jnp.maximum(scores, -256.0), count)[1]

    def draws(self, draft_probs, count):
        support = int((draft_probs > 0).sum())
        for tokens, probability in super().draws(draft_probs, min(count, support)):
            rest = [token for token in range(len(draft_probs)) if token not in tokens]
            yield (*tokens, *rest[: count - len(tokens)]), probability


@dataclasses.dataclass(frozen=True)
class DroppedDraw(verify.Sequoia):
    """A drawn token of low confidence is dropped, and a fresh draw from the target stands in."""

    threshold: float = 0.25

    def outcome(self, target_probs, draft_probs, children, active, support=None):
        accept, residual = super().outcome(target_probs, draft_probs, children, active, support)
        is_dropped = draft_probs[children[0]] < self.threshold
        return jnp.where(is_dropped, 0.0, accept), jnp.where(is_dropped, target_probs, residual)


@dataclasses.dataclass(frozen=True)
class PrunedDraws(verify.Sequoia):
    """Drawn tokens are cut off from the first later one of low draft probability on."""

    def outcome(self, target_probs, draft_probs, children, active, support=None):
        kept = (draft_probs[children] > 0.2) | (jnp.arange(children.shape[0]) == 0)
        return super().outcome(target_probs, draft_probs, children, active & jnp.cumprod(kept).astype(bool), support)


@dataclasses.dataclass(frozen=True)
class FixedProposal(verify.Sequoia):
    """Draws without replacement, verified as if with replacement (the draft is never updated)."""

    def outcome(self, target_probs, draft_probs, children, active, support=None):
        del active, support
        residual, reach, accept = target_probs, jnp.float32(1.0), []
        for token in children:
            accepts = jnp.minimum(1.0, residual[token] / draft_probs[token])
            accept.append(reach * accepts)
            reach = reach * (1.0 - accepts)
            residual = jnp.maximum(residual - draft_probs, 0.0)
            residual = residual / residual.sum()
        return jnp.stack(accept), residual


@dataclasses.dataclass(frozen=True)
class IndependentTests(verify.Sequoia):
    """Every candidate tested against the target itself."""

    def outcome(self, target_probs, draft_probs, children, active, support=None):
        accepts = jnp.minimum(1.0, target_probs[children] / draft_probs[children])
        reach = jnp.concatenate([jnp.ones(1), jnp.cumprod(1.0 - accepts)[:-1]])
        return reach * accepts, super().outcome(target_probs, draft_probs, children, active, support)[1]


RULE_MUTANTS = {  # rule, (target, draft), count, the wrong law where it is known
    "softmax residual": (SoftmaxResidual(), FIRST, 1, (0.2902, 0.4101, 0.2997)),
    "SpecBranch's public rule": (SpecBranchPublic(), FIRST, 2, (0, 1, 0)),
    "SpecBranch's public rule, 4.2": (
        SpecBranchPublic(),
        ((0.35, 0.25, 0.25, 0.15), (0.7, 0.15, 0.1, 0.05)),
        3,
        (0.5, 0, 0.5, 0),
    ),
    "arg-max draft, ratio test": (ArgMaxDraftRatio(), FIRST, 1, None),
    "tied draws": (TiedDraws(), ((0.1, 0.2, 0.3, 0.4), (1.0, 0.0, 0.0, 0.0)), 2, (0.1, 0.6, 0, 0.3)),
    "dropped draw": (DroppedDraw(), FIRST, 1, (0.24, 0.60, 0.16)),
    "dropped draw, equal models": (DroppedDraw(), ((0.5, 0.3, 0.2), (0.5, 0.3, 0.2)), 1, (0.60, 0.36, 0.04)),
    "dropped draw, papers 2.2": (DroppedDraw(), ((0.5, 0.3, 0.2), (0.2, 0.3, 0.5)), 1, (0.4, 0.36, 0.24)),
    "pruned draws": (PrunedDraws(), ((0.5, 0.3, 0.2), (0.15, 0.25, 0.6)), 3, (0.48125, 0.31875, 0.2)),
    "fixed proposal": (FixedProposal(), PAPER, 2, (0.356633, 0.343367, 0.2, 0.1)),
    "independent tests": (IndependentTests(), PAPER, 2, None),
}


@pytest.mark.parametrize(("rule", "probs", "count", "wrong"), RULE_MUTANTS.values(), ids=RULE_MUTANTS)
def test_rule_is_rejected(rule, probs, count, wrong):
    target, draft = probs
    if wrong is not None:
        np.testing.assert_allclose(verify.output_distribution(rule, target, draft, count), wrong, atol=5e-5)
    with pytest.raises(AssertionError):
        checks.assert_rule_is_exact(rule, target, draft, count)
    checks.assert_rule_is_exact(verify.SEQUOIA, target, draft, count)


def test_tied_proposals_are_rejected():
    """As it happens in the draw itself."""
    draft = (1.0, 0.0, 0.0, 0.0)
    with pytest.raises(AssertionError, match="chi-square"):
        checks.assert_proposes_its_law(TiedDraws(), draft, 2)
    checks.assert_proposes_its_law(verify.SEQUOIA, draft, 2)


@dataclasses.dataclass(frozen=True)
class WithReplacement(verify.Sequoia):
    """Children drawn independently."""

    def propose(self, key, draft_logits, count):
        return jax.random.categorical(key, draft_logits, shape=(count,)).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class SortedDraws(verify.Sequoia):
    """Children in the order of their probability, not in that of the draws."""

    def propose(self, key, draft_logits, count):
        children = super().propose(key, draft_logits, count)
        return children[jnp.argsort(-draft_logits[children])]


@pytest.mark.parametrize("rule", [WithReplacement(), SortedDraws()], ids=["with replacement", "sorted draws"])
def test_wrong_proposals_are_rejected(rule):
    with pytest.raises(AssertionError, match="chi-square"):
        checks.assert_proposes_its_law(rule, (0.4, 0.3, 0.2, 0.1), 2)


def _top_p_before_temperature(options, logits):
    probs = jax.nn.softmax(logits)
    kept = jnp.where(pipeline._nucleus(probs, options.top_p), logits, -jnp.inf)
    return jax.nn.softmax(kept / options.temperature)


def test_top_p_before_temperature_is_rejected():
    options = sampling.Options(jnp.float32(2.0), jnp.float32(2.0), top_p=jnp.float32(0.8))
    law = _top_p_before_temperature(options, jnp.array([2.0, 1.0, 0.0, -1.0]))
    np.testing.assert_allclose(law, (0.6225, 0.3775, 0, 0), atol=5e-5)
    with pytest.raises(AssertionError):
        checks.assert_pipeline(_top_p_before_temperature)
    checks.assert_pipeline(sampling.target_distribution)
