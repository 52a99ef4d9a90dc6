"""The split placement on two devices: run by `test_split.py` in a process with two virtual ones."""

import dataclasses
import functools

import checks
import jax
import numpy as np
import pytest
import toys

from jaxspec import decode, hrad
from jaxspec.decode.branches.decoder import branch_decoder
from jaxspec.decode.placement import split

DRAFT_DEVICE, TARGET_DEVICE = jax.devices()  # arrays that belong to no device go to the first one
PROMPTS = checks.PROMPTS[1:]  # `FeatLM` needs two tokens


@dataclasses.dataclass(frozen=True)
class Stub:
    """A classifier whose class changes with what it reads."""

    def apply(self, params, inputs):
        return params @ inputs


def pair() -> toys.Pair:
    """A target with features, its draft, and the stub's parameters."""
    params = toys.pair("ctx").params
    weights = jax.random.normal(jax.random.key(1), (hrad.NUM_CLASSES, 4 * 64))
    return toys.Pair(toys.FeatLM(11), toys.CtxLM(11), {**params, "hrad": weights})


def run_split(decoder, params, prompts, count, **options):
    """`checks.run` on two devices."""
    run = functools.partial(split.generate_split, target_device=TARGET_DEVICE, draft_device=DRAFT_DEVICE)
    return run(decoder, params, prompts, **{"key": checks.KEY, "max_new_tokens": count, **options})


H_RAD = hrad.HRad(Stub(), 0.3)
CASES = {
    "greedy keep all, batch 3": ((3, 1, hrad.KEEP_ALL), {}, 3, 0.0),
    "greedy h-rad with a draft stage, batch 1": ((4, 2, H_RAD), {"has_draft_stage": True}, 1, 0.0),
    "sampled keep all, batch 1": ((3, 1, hrad.KEEP_ALL), {}, 1, 0.9),
    "sampled h-rad, batch 3": ((3, 2, H_RAD), {}, 3, 0.9),
}
COUNTS = "sampled keep all, batch 1"
"""The case with a penalty: both sides count the tokens of the row and of the line."""

GROWS = "greedy keep all, batch 3"
"""The case that begins without room for all it emits."""


@pytest.mark.parametrize("case", CASES)
def test_equals_fused(case):
    arguments, options, batch, temperature = CASES[case]
    target, draft, params = pair()
    decoder = branch_decoder(target, draft, *arguments, **options)
    run = {
        "prompts": PROMPTS[-batch:],
        "count": 40,
        "stop_ids": [7] if batch > 1 else (),
        "sampling": decode.Sampling(temperature, frequency_penalty=0.5 if case == COUNTS else 0.0),
    }
    fused = checks.run(decoder, params, **run)
    both = run_split(decoder, params, **run, first_capacity=64 if case == GROWS else None)
    assert checks.rows(both) == checks.rows(fused)
    assert both.finish_reason == fused.finish_reason
    assert batch == 1 or "stop" in fused.finish_reason
    np.testing.assert_allclose(checks.logprobs(both), checks.logprobs(fused), rtol=0, atol=1e-5)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), both.stats.counts, fused.stats.counts)
    if decoder.drafter.cut == H_RAD:
        assert (both.stats.total().tally["labels"] > 0).sum() >= 2  # the cut read something


def test_one_device_may_be_both():
    target, draft, params = pair()
    decoder = branch_decoder(target, draft, *CASES[GROWS][0])
    where = {"target_device": TARGET_DEVICE, "draft_device": TARGET_DEVICE}
    options = {"key": checks.KEY, "max_new_tokens": 12}
    both = split.generate_split(decoder, params, PROMPTS, **where, **options)
    assert checks.rows(both) == checks.rows(run_split(decoder, params, PROMPTS, 12))


@pytest.fixture
def crossed(monkeypatch):
    """The shapes of what is sent, in order; from the first round on nothing may cross in another way."""
    shapes, send, verify = [], split.send, split._verify

    def recorded(tree, device):
        shapes.append([leaf.shape for leaf in jax.tree.leaves(tree)])
        with jax.transfer_guard_device_to_device("allow"):
            return send(tree, device)

    def guarded(*arguments):
        jax.config.update("jax_transfer_guard_device_to_device", "disallow_explicit")
        return verify(*arguments)

    monkeypatch.setattr(split, "send", recorded)
    monkeypatch.setattr(split, "_verify", guarded)
    yield shapes
    jax.config.update("jax_transfer_guard_device_to_device", "allow")


@pytest.mark.parametrize("capacity", [128, 512])
def test_what_crosses_is_as_long_as_a_line(crossed, capacity):
    target, draft, params = pair()
    decoder = branch_decoder(target, draft, 4, 2, H_RAD)
    run_split(decoder, params, PROMPTS[-1:], 12, first_capacity=capacity)
    first, *later = crossed
    assert first == [(1, 3, 64), (1, 64)]  # the evidence that the draft begins with
    positions, candidates = (1, 4), (1, 4, 2)
    line = [positions, candidates, positions]  # tokens, candidates, confidence
    empty = [(1, 0, 4), (1, 0, 4, 2), (1, 0, 4)]
    tested = [*line, (1,), (1, 2), (1,), *empty]  # number of pending ones, active candidates, label
    outcome = [(1,), (1,), (1,), (1,), candidates, (1, 3, 64), (1, 64)]
    assert later[:3] == [line, tested, outcome]
    assert later == later[:3] * (len(later) // 3)
