"""Drafters of one's own, handed to the decoder: without a model, with a tree chosen in the round, with features.

What they propose changes the speed only: greedy tokens are those of plain decoding, and the joint law is the target's.
"""

import dataclasses
from typing import Any

import checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import TREES, CtxLM, TableLM, TokenFeatLM, pair

from jaxspec import base, decode, sampling, tree, verify
from jaxspec.base import Model
from jaxspec.decode import proposals
from jaxspec.decode.proposals import PROPOSAL
from jaxspec.decode.trees import structure
from jaxspec.decode.trees.decoder import TreeDecoder
from jaxspec.decode.trees.drafter import Drafted, Sizes

MODEL = TableLM(3)
TARGET = np.array([[0.5, 0.3, 0.2], [0.1, 0.3, 0.6], [0.35, 0.5, 0.15]])
DRAFT = np.array([[0.15, 0.8, 0.05], [0.5, 0.4, 0.1], [0.3, 0.3, 0.4]])
PARAMS = {
    name: {"table": jnp.asarray(np.log(probs), jnp.float32)} for name, probs in (("target", TARGET), ("draft", DRAFT))
}


@dataclasses.dataclass(frozen=True)
class PromptLookup:
    """Proposes what followed the newest token where it last stood before: no model, no context, nothing drawn."""

    length: int

    @property
    def models(self):
        return {}

    @property
    def sizes(self):
        return Sizes(self.length + 1, self.length, 1, {})

    def init(self, params, row):
        return ()

    def draft_tree(self, params, state, key):
        row, places = state.row, jnp.arange(state.row.tokens.shape[0], dtype=jnp.int32)
        found = jnp.where((row.tokens == row.root) & (places < row.num_tokens - 1), places, -1).max()
        following = found + 1 + jnp.arange(self.length, dtype=jnp.int32)
        tokens = jnp.append(row.root[None], jnp.take(row.tokens, following, mode="clip"))
        is_active = jnp.append(jnp.zeros(1, bool), (found >= 0) & (following < row.num_tokens))
        return Drafted(tokens, is_active, structure.of_tree(tree.chain(self.length)))

    def test(self, row, drafted, node, logits, children, active):
        return proposals.matched(row, logits, children, active)

    def resume(self, params, state, drafted, output, accepted):
        return {}, state.memory


@dataclasses.dataclass(frozen=True)
class WideOrDeep:
    """Three children of the root where the draft is unsure of its next token, else two and a grandchild.

    Its tree is data. It reads the target's context, so that it needs none of its own.
    """

    target: Model
    draft: Model
    confidence: float
    extra_params = ("draft",)

    @property
    def models(self):
        return {}

    @property
    def sizes(self):
        return Sizes(4, 2, 3, {"draft": (1, 1)})

    def init(self, params, row):
        return ()

    def draft_tree(self, params, state, key):
        row, block = state.row, self.draft.empty(2)
        block, logits = self._forward(params, state, row.root, 0, block)
        is_wide = jax.nn.softmax(logits).max() < self.confidence  # decided before anything is drawn
        first, root_probs = self._draw(row, key, 0, logits)
        _, logits = self._forward(params, state, first[0], 1, block)
        second, child_probs = self._draw(row, key, 1, logits)
        tokens = jnp.stack([row.root, first[0], first[1], jnp.where(is_wide, first[2], second[0])])
        parents = jnp.stack([jnp.int32(-1), jnp.int32(0), jnp.int32(0), jnp.where(is_wide, 0, 1)])
        probs = None if root_probs is None or child_probs is None else jnp.stack([root_probs, child_probs])
        return Drafted(tokens, jnp.arange(4) > 0, structure.of_parents(parents, 2, 3), probs)

    def test(self, row, drafted, node, logits, children, active):
        probs = drafted.probs[jnp.minimum(node, 1)]
        return proposals.outcome(verify.SEQUOIA, self.target, self.draft, row, logits, probs, children, active)

    def resume(self, params, state, drafted, output, accepted):
        return {}, state.memory

    def _forward(self, params, state, token, depth, block):
        positions, mask = (state.row.root_position + depth)[None], jnp.arange(2)[None] <= depth
        context = state.contexts["target"]
        output = base.forward(self.draft, params["draft"], token[None], positions, context, block, depth, mask)
        return output.block, proposals.adjusted(self.target, self.draft, state.row, output.logits[0])

    def _draw(self, row, key, node, logits):
        return proposals.draw(verify.SEQUOIA, row, proposals.key_of(key, node, PROPOSAL), logits, 3)


@dataclasses.dataclass(frozen=True)
class FeatureHead:
    """Proposes one token from the target's features in front of the root, as an EAGLE head does."""

    target: Model
    extra_params = ("head",)

    @property
    def models(self):
        return {}

    @property
    def sizes(self):
        return Sizes(2, 1, 1, {})

    def init(self, params, row):
        return jnp.zeros(params["head"].shape[0])

    def draft_tree(self, params, state, key):
        child = sampling.argmax(state.memory @ params["head"])
        tokens, is_active = jnp.stack([state.row.root, child]), jnp.arange(2) > 0
        return Drafted(tokens, is_active, structure.of_tree(tree.chain(1)))

    def test(self, row, drafted, node, logits, children, active):
        return proposals.matched(row, logits, children, active)

    def resume(self, params, state, drafted, output, accepted):
        return {}, output.hidden[accepted.path[accepted.num_accepted], -1]


LOOKUP = TreeDecoder(MODEL, PromptLookup(2))
DYNAMIC = TreeDecoder(MODEL, WideOrDeep(MODEL, MODEL, 0.45))
"""Of the draft's laws of the next token, that behind token 2 is below the confidence."""


@pytest.mark.parametrize("decoder", [LOOKUP, DYNAMIC], ids=["lookup", "dynamic"])
def test_joint_law(decoder):
    checks.assert_joint_law(decoder, PARAMS, TARGET, 4, 0.02)


def test_greedy_tokens_without_a_draft():
    """Where text repeats itself, the target takes what it is offered."""
    target, _, params = pair("table")
    decoder = TreeDecoder(target, PromptLookup(3))
    generation = checks.assert_greedy_equals_reference(decoder, {"target": params["target"]}, count=40)
    assert generation.stats.total().counts.accepted > 40
    assert (generation.stats.rounds < 40).any()
    checks.assert_greedy_equals_reference(TreeDecoder(CtxLM(11), PromptLookup(3)), pair("ctx").params)


def test_greedy_tokens_of_a_tree_that_is_data():
    """With a target that sees every slip of mask, position and commit; trees of both shapes."""
    target, draft, params = pair("ctx")
    decoder = TreeDecoder(target, WideOrDeep(target, draft, 0.34))
    checks.assert_greedy_equals_reference(decoder, params)
    _, reports = checks.steps(decoder, params, checks.PROMPTS, 60)
    accepted = np.concatenate([info.num_accepted for _, info in reports])
    assert set(accepted.tolist()) == {0, 1, 2}
    first_tested = np.concatenate([info.accept[:, 0] for _, info in reports])
    assert (first_tested[:, 2] > 0).any()  # a third child was the accepted one


def test_a_head_reads_the_features_of_the_last_accepted_position():
    """In a cycle, the token behind the root is two behind the one whose features they are: always accepted."""
    model = TokenFeatLM(10)
    cycle, head = 20 * jnp.roll(jnp.eye(10), 1, axis=1), jnp.roll(jnp.eye(10), 2, axis=1)
    params: dict[str, Any] = {"target": {"table": cycle}, "head": head}
    decoder = TreeDecoder(model, FeatureHead(model))
    generation = checks.assert_greedy_equals_reference(decoder, params, [[3], [1, 2]], 21)
    counts = generation.stats.counts
    assert counts.rounds.tolist() == [11, 11]  # the first round has no features yet
    assert counts.accepted.tolist() == [10, 10]
    with pytest.raises(ValueError, match=r"no 'head'"):
        checks.run(decoder, {"target": params["target"]}, [[3]])


@pytest.mark.parametrize("name", TREES)
def test_structure_from_parents_is_that_of_the_tree(name):
    shape = TREES[name]
    made = structure.of_parents(jnp.asarray(shape.parents, jnp.int32), shape.depth, shape.max_children)
    jax.tree.map(np.testing.assert_array_equal, made, structure.of_tree(shape))


@pytest.mark.parametrize("field", ["tokens", "is_active", "structure"])
def test_what_a_drafter_gives_is_checked(field):
    @dataclasses.dataclass(frozen=True)
    class Wrong(PromptLookup):
        def draft_tree(self, params, state, key):
            drafted = super().draft_tree(params, state, key)
            return drafted._replace(**{field: jax.tree.map(lambda leaf: leaf[:-1], getattr(drafted, field))})

    with pytest.raises(AssertionError, match="shape"):
        checks.run(TreeDecoder(MODEL, Wrong(2)), PARAMS, [[0]])


def test_equal_drafters_are_one_decoder():
    assert hash(TreeDecoder(MODEL, PromptLookup(2))) == hash(LOOKUP)
    assert TreeDecoder(MODEL, PromptLookup(2)) == LOOKUP != TreeDecoder(MODEL, PromptLookup(3))
    assert decode.speculative(MODEL, MODEL, 2) == decode.speculative(TableLM(3), TableLM(3), 2)
