"""Planted bugs in the decoder: the checks that the real one passes must reject each of them.

Mutants are subclasses, so that their compiled programs are their own; where a bug lies in a function that a round
calls, the test patches that function while the mutant is traced.
"""

import dataclasses

import checks
import jax.numpy as jnp
import pytest
from toys import Wrapped, pair

from jaxspec import cache, decode, tree
from jaxspec.decode import state
from jaxspec.decode.trees import drafting, levels
from jaxspec.decode.trees.decoder import TreeDecoder
from jaxspec.decode.trees.static import StaticTree

BINARY = tree.k_ary(2, 2)


def of(mutant, target, draft, shape, **options):
    """A mutant of the decoder, with the right drafter."""
    return mutant(target, StaticTree(target, draft, shape), **options)


def greedy_check(decoder):
    checks.assert_greedy_equals_reference(decoder, pair("ctx").params)


def acceptance_check(decoder):
    """The decoder of a model with itself."""
    checks.assert_accepts_everything(decoder, pair("ctx").equal)


def _node_index_as_position(positions, mask):
    return positions[0] + jnp.arange(positions.shape[0], dtype=jnp.int32), mask


def _siblings_leak(positions, mask):
    return positions, jnp.tri(*mask.shape, dtype=bool)


def _blind_to_ancestors(positions, mask):
    return positions, jnp.asarray(mask) & jnp.eye(*mask.shape, dtype=bool)


def assert_equals_right_tokens(decoder, right, params):
    tokens = checks.rows(checks.run(decoder, params, checks.RAGGED))
    assert tokens == checks.rows(checks.run(right, params, checks.RAGGED))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("ctx", _node_index_as_position),
        ("pos", _node_index_as_position),
        ("ctx", _siblings_leak),
        ("ctx", _blind_to_ancestors),
    ],
)
def test_wrong_verification_block_is_rejected(name, change):
    """Positions and masks of the target's forward over the tree."""
    target, draft, params = pair(name)
    right = decode.sequoia(target, draft, BINARY)
    wrong = dataclasses.replace(right, target=Wrapped(target, change))
    with pytest.raises(AssertionError):
        assert_equals_right_tokens(wrong, right, params)
    checks.assert_greedy_equals_reference(right, params)


@dataclasses.dataclass(frozen=True)
class CommitsOtherwise(TreeDecoder):
    """The target's context counts more or fewer tokens than were emitted."""

    change: int = 0

    def commit_target(self, state, output, accepted):
        context = super().commit_target(state, output, accepted)
        return context._replace(length=context.length + jnp.where(accepted.num_emitted > 0, self.change, 0))


@pytest.mark.parametrize("change", [-1, 1], ids=["one too few", "one too many"])
def test_wrong_count_of_commits_is_rejected(change):
    target, draft, _ = pair("ctx")
    with pytest.raises(AssertionError):
        greedy_check(of(CommitsOtherwise, target, draft, BINARY, change=change))
    greedy_check(of(CommitsOtherwise, target, draft, BINARY))


@dataclasses.dataclass(frozen=True)
class CommitsNodesInOrder(TreeDecoder):
    """The first nodes of the block are committed, not those of the accepted path."""


def test_commit_without_gather_is_rejected(monkeypatch):
    target, draft, _ = pair("ctx")
    commit = cache.commit
    monkeypatch.setattr(
        cache,
        "commit",
        lambda model, context, block, count, indices=None, anchor=None: (
            commit(model, context, block, count)
            if indices is not None and indices.shape[0] == 3 and model == target
            else commit(model, context, block, count, indices, anchor)
        ),
    )
    with pytest.raises(AssertionError):
        greedy_check(of(CommitsNodesInOrder, target, draft, BINARY))


@dataclasses.dataclass(frozen=True)
class NeverCatchesUp(TreeDecoder):
    """The token before the root is missing from what the draft sees."""


@dataclasses.dataclass(frozen=True)
class CommitsNoCatchUp(TreeDecoder):
    """The token before the root never enters the draft's context: the root stands in its slot."""


def test_forgotten_catch_up_token_is_rejected(monkeypatch):
    """The output stays right, the acceptance falls."""
    target, draft, _ = pair("ctx")
    acceptance_check(decode.sequoia(target, draft, BINARY))
    commit, draft_slots = cache.commit, 1 + len(BINARY.expanded)

    def commit_without_catch_up(model, context, block, count, indices=None, anchor=None):
        if block.shape[0] == draft_slots and indices is not None:
            indices = jnp.where(indices == 0, 1, indices)
        return commit(model, context, block, count, indices, anchor)

    wrong = of(CommitsNoCatchUp, target, draft, BINARY)
    with monkeypatch.context() as patched:
        patched.setattr(cache, "commit", commit_without_catch_up)
        greedy_check(wrong)
        with pytest.raises(AssertionError):
            acceptance_check(wrong)

    def without_catch_up(shape):
        constants = levels.constants_of(shape)

        def hidden(level):
            return level._replace(mask=level.mask & constants.is_node_slot)

        return constants._replace(
            runs=tuple(run._replace(levels=tuple(map(hidden, run.levels))) for run in constants.runs)
        )

    monkeypatch.setattr(drafting, "constants_of", without_catch_up)
    wrong = of(NeverCatchesUp, target, draft, BINARY)
    greedy_check(wrong)
    with pytest.raises(AssertionError):
        acceptance_check(wrong)


@dataclasses.dataclass(frozen=True)
class SeesLastStopOnly(TreeDecoder):
    """Only a round's last token is compared with the stop ids."""


@dataclasses.dataclass(frozen=True)
class Overshoots(TreeDecoder):
    """The limit is only looked at between rounds."""


def test_wrong_ends_are_rejected(monkeypatch):
    target, draft, params = pair("ctx")
    stops = (2, 7)
    checks.assert_greedy_equals_reference(decode.sequoia(target, draft, BINARY), params, stop_ids=stops)
    emit = state.emit

    def last_stop_only(row, tokens, count, logprobs):
        is_last = jnp.arange(tokens.shape[0]) == count - 1
        _, kept = emit(row, jnp.where(is_last, tokens, -2), count, None)
        updated, _ = emit(row._replace(stop_ids=jnp.where(kept < count, -3, row.stop_ids)), tokens, count, logprobs)
        stopped = (tokens[count - 1] == row.stop_ids).any() & ~row.is_finished
        unstopped, kept = emit(row._replace(stop_ids=jnp.full_like(row.stop_ids, -3)), tokens, count, logprobs)
        del updated
        return unstopped._replace(stop_ids=row.stop_ids, is_finished=unstopped.is_finished | stopped), kept

    monkeypatch.setattr(state, "emit", last_stop_only)
    with pytest.raises(AssertionError):
        checks.assert_greedy_equals_reference(of(SeesLastStopOnly, target, draft, BINARY), params, stop_ids=stops)

    def overshoot(row, tokens, count, logprobs):
        updated, kept = emit(row._replace(max_new_tokens=row.max_new_tokens + 64), tokens, count, logprobs)
        is_full = updated.num_tokens >= row.prompt_length + row.max_new_tokens
        return updated._replace(max_new_tokens=row.max_new_tokens, is_finished=updated.is_finished | is_full), kept

    monkeypatch.setattr(state, "emit", overshoot)
    wrong = of(Overshoots, target, draft, BINARY)
    for count in (1, 2, 3):
        rounds = checks.steps(wrong, params, [[3]], count)[0]
        emitted = int(rounds.row.num_tokens[0]) - 1
        if emitted > count:
            return
    pytest.fail("no limit was overshot")
