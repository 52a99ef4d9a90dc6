"""How a head decides: the estimates by running the chain of rounds, the choice on rounds where the best is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import hrad
from jaxspec.networks import MLP
from jaxspec.train.hrad import deciding
from jaxspec.train.hrad.collecting import Rounds
from jaxspec.train.hrad.deciding import Estimate, Setting

LENGTH = 6


def rounds(confidence, num_accepted):
    count = len(num_accepted)
    nothing = np.zeros(count, np.int32)
    features = np.zeros((count, 1, 4), np.float32)
    return Rounds(features, nothing, np.asarray(confidence, np.float32), np.asarray(num_accepted), nothing)


def test_confidence_counts_are_the_cuts():
    confidence = np.random.default_rng(0).random((50, LENGTH)).astype(np.float32)
    for epsilon in (0.0, 0.2, 0.5, 1.0):
        wanted = [int(hrad.first_below(jnp.asarray(row), epsilon)) for row in confidence]
        assert deciding.confidence_counts(confidence, epsilon).tolist() == wanted


def test_what_is_kept_is_what_the_cut_of_a_decoder_keeps():
    """`hrad.HRad` with the offsets in the parameters against `kept_by_head` of the logits without them."""
    network, setting = MLP(1, 4, (8,)), Setting(0.4, -0.7, 0.3)
    params = network.init(jax.random.key(0))
    rng = np.random.default_rng(1)
    features, embeddings = rng.standard_normal((2, 64, 1, 4)).astype(np.float32)
    confidence = rng.random((64, LENGTH)).astype(np.float32)
    logits = network.apply(params, jnp.concatenate([features[:, 0], embeddings[:, 0]], axis=1))
    cut = hrad.HRad(network, setting.epsilon)
    found = [
        cut(deciding.settled(params, setting), *row)
        for row in zip(features, embeddings[:, 0], jnp.asarray(confidence), strict=True)
    ]
    wanted = deciding.kept_by_head(np.asarray(logits), confidence, setting)
    assert [int(one.kept) for one in found] == wanted.tolist()
    assert [int(one.label) for one in found] == deciding.decided(np.asarray(logits), setting).tolist()
    assert len({int(one.label) for one in found}) == 3
    assert deciding.decided(np.asarray(logits), Setting(0.4)).tolist() != [int(one.label) for one in found]


def test_tokens_a_round_are_those_of_the_chain_of_rounds():
    """Rounds with pending tokens and without them, drawn one after another."""
    rng = np.random.default_rng(0)
    num_accepted, kept = rng.integers(0, LENGTH, 400), rng.integers(0, LENGTH, 400)
    alpha = deciding.acceptance(num_accepted, LENGTH)
    has_pending, tokens, steps = False, 0, 40_000
    for place, chance in zip(rng.integers(0, 400, steps).tolist(), rng.random(steps).tolist(), strict=True):
        if not has_pending:
            tokens, has_pending = tokens + 1, chance < alpha
            continue
        accepted, cut = int(num_accepted[place]), int(kept[place])
        tokens += min(accepted, cut) + 1
        has_pending = cut < accepted or (cut == accepted == LENGTH - 1 and chance < alpha)
    assert deciding.tokens_per_round(kept, num_accepted, LENGTH) == pytest.approx(tokens / steps, rel=0.01)
    assert deciding.tokens_per_round(np.zeros(3, int), np.zeros(3, int), 4) == 1


def test_rollback_is_the_share_of_pending_tokens_that_do_not_stand():
    some = rounds(np.ones((4, LENGTH)), [0, 2, 5, 3])
    assert deciding.estimate(np.array([2, 3, 5, 0]), some).rollback == pytest.approx(1 - 7 / 10)
    assert deciding.estimate(some.num_accepted, some).rollback == 0.0
    assert deciding.estimate(np.zeros(4, int), some) == Estimate(1.0, 0.0)


def test_epsilon_is_the_largest_that_costs_hardly_any_tokens():
    """Everything ends at position 2, where the confidence is .57 and otherwise .9."""
    confidence = np.full((40, LENGTH), 0.9)
    confidence[:, 2] = 0.57
    partial = np.tile([0.0, 9.0, 0.0], (40, 1))
    found = deciding.choose(partial, rounds(confidence, np.full(40, 2)))
    assert found.confidence == found.head.epsilon == 0.9  # the largest that does not cut in front of the first token
    whole = deciding.choose(partial, rounds(confidence, np.full(40, LENGTH - 1)))
    assert whole.confidence == whole.head.epsilon == 0.55  # .6 would cut what stands
    assert found.head[1:] == (0.0, 0.0)  # among equal settings the one that changes the least


def test_offsets_quieten_a_head_that_is_wrong_and_leave_alone_one_that_is_right():
    """The confidence knows the ends in both, and a head that is wrong spoils them."""
    rng = np.random.default_rng(0)
    num_accepted = rng.integers(0, LENGTH, 300)
    confidence = np.where(np.arange(LENGTH) < num_accepted[:, None], 0.9, 0.1)
    classes = np.asarray(hrad.labels(num_accepted, LENGTH - 1))
    right = 4.0 * np.eye(3)[classes]
    wrong = 1.5 * np.eye(3)[(classes + 1) % 3]
    some = rounds(confidence, num_accepted)
    best = deciding.estimate(num_accepted, some)
    for logits in (right, wrong):
        setting = deciding.choose(logits, some).head
        kept = deciding.kept_by_head(logits, some.confidence, setting)
        assert deciding.estimate(kept, some) == best, setting
    plain = deciding.choose(wrong, some).argmax
    assert (plain.none, plain.all) == (0.0, 0.0)
    assert deciding.estimate(deciding.kept_by_head(wrong, some.confidence, plain), some).rollback > 0.1
    assert deciding.choose(wrong, some).head.none < 0.0
