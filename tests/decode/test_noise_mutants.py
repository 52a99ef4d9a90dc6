"""Planted bugs in the noise of a round: the joint law over several rounds must reject each of them."""

import dataclasses

import checks
import jax
import jax.numpy as jnp
import pytest
from laws import MODEL, PARAMS, law

from jaxspec import tree
from jaxspec.decode import proposals
from jaxspec.decode.proposals import OUTCOME, PROPOSAL
from jaxspec.decode.trees.decoder import TreeDecoder
from jaxspec.decode.trees.static import StaticTree


@dataclasses.dataclass(frozen=True)
class DraftsWithTheRowsKey(StaticTree):
    def draft_tree(self, params, state, key):
        del key
        return super().draft_tree(params, state, state.row.key)


@dataclasses.dataclass(frozen=True)
class SameNoiseEveryRound(TreeDecoder):
    """The key of a round does not depend on the round."""

    def resolve(self, row, drafted, logits, key):
        del key
        return super().resolve(row, drafted, logits, row.key)


@dataclasses.dataclass(frozen=True)
class SameNoiseEveryNode(StaticTree):
    """Proposals of all nodes share a key."""

    def propose(self, row, key, node, logits, count):
        return super().propose(row, key, jnp.zeros_like(node), logits, count)


@dataclasses.dataclass(frozen=True)
class PatchedNoise(TreeDecoder):
    """A decoder traced while `proposals.key_of` is patched."""

    name: str = ""


def _no_purpose(key, node, purpose):
    del purpose
    return jax.random.fold_in(key, node)


def _residual_shares_proposal(key, node, purpose):
    purpose = OUTCOME if purpose == OUTCOME else PROPOSAL
    return jax.random.fold_in(jax.random.fold_in(key, node), purpose)


def _no_node(key, node, purpose):
    del node
    return jax.random.fold_in(key, purpose)


def assert_lossless(decoder):
    checks.assert_joint_law(decoder, PARAMS, law(), 4, 0.02)


@pytest.mark.parametrize(
    ("decoder", "drafter"), [(SameNoiseEveryRound, DraftsWithTheRowsKey), (TreeDecoder, SameNoiseEveryNode)]
)
def test_noise_used_twice_is_rejected(decoder, drafter):
    with pytest.raises(AssertionError, match="total variation"):
        assert_lossless(decoder(MODEL, drafter(MODEL, MODEL, tree.chain(2))))


@pytest.mark.parametrize("node_key", [_no_purpose, _no_node, _residual_shares_proposal])
def test_noise_shared_among_draws_is_rejected(monkeypatch, node_key):
    monkeypatch.setattr(proposals, "key_of", node_key)
    with pytest.raises(AssertionError, match="total variation"):
        assert_lossless(PatchedNoise(MODEL, StaticTree(MODEL, MODEL, tree.chain(2)), name=node_key.__name__))
