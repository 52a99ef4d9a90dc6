"""The simulation against closed forms and the theory, and logs against the decoders' own counts."""

import dataclasses
import math
from itertools import pairwise
from typing import Any

import checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from jaxspec import decode, hrad, simulate, theory, tree
from jaxspec.decode.branches.decoder import branch_decoder
from jaxspec.decode.trees.adaptive import adaedl
from jaxspec.profiles import Profile
from jaxspec.study.round_log import Round
from jaxspec.study.step_times import StepTimes
from jaxspec.study.timeline import Job

NO_DECODER: Any = object()


def constant(target_ms: float, draft_ms: float) -> StepTimes:
    return StepTimes(lambda tokens: target_ms, lambda tokens: draft_ms)


def overlapped(length: int, emitted: int) -> Round:
    """A round of PEARL with the paper's forwards."""
    return Round(emitted, "survived", length - 1, 1, False, (), (1,) * length, length)


def test_jobs_run_in_order():
    jobs = [
        Job("a", "one", 3.0, ()),
        Job("b", "two", 1.0, ()),
        Job("c", "two", 2.0, (0,)),  # waits for a
        Job("d", "two", 1.0, ()),  # could run at once, but is queued behind c
        Job("e", None, 4.0, (1,)),  # no device: a delay
        Job("f", "one", 1.0, (1, 4)),
    ]
    spans = simulate.run(jobs)
    assert [(span.start, span.end) for span in spans] == [(0, 3), (0, 1), (3, 5), (5, 6), (1, 5), (5, 6)]


@pytest.mark.parametrize("num_devices", [1, 2])
def test_no_device_does_two_things_at_once_and_nothing_starts_early(num_devices):
    generator = np.random.default_rng(0)
    rounds = [
        Round(1, "survived", 2, 2, False, (1,) * before, (2,) * beside, 4)
        for before, beside in generator.integers(0, 5, (40, 2))
    ]
    times = StepTimes(lambda tokens: generator.exponential(), lambda tokens: generator.exponential())
    options = {"num_devices": num_devices, "overhead_ms": 0.1, "crossing_ms": 0.2}
    spans = simulate.run(simulate.jobs_of(rounds, times, **options))
    for device in {span.job.device for span in spans} - {None}:
        mine = [span for span in spans if span.job.device == device]
        assert all(earlier.end <= later.start for earlier, later in pairwise(mine))
    for span in spans:
        ends = [spans[need].end for need in span.job.needs]
        assert span.start >= max(ends, default=0.0)
        assert span.end == span.start + span.job.ms


@pytest.mark.parametrize(("length", "draft_ms", "target_ms"), [(4, 1.0, 10.0), (4, 3.0, 10.0), (5, 2.0, 10.0)])
def test_pearl_accepted_in_full(length, draft_ms, target_ms):
    rounds = [overlapped(length, length)] * 7
    two = simulate.simulate(rounds, constant(target_ms, draft_ms), num_devices=2)
    one = simulate.simulate(rounds, constant(target_ms, draft_ms), num_devices=1)
    step = max(length * draft_ms, target_ms)
    assert math.isclose(two.ms_per_token, step / length)
    assert math.isclose(two.ms_per_token / draft_ms, theory.ideal_time(length, target_ms / draft_ms))
    assert math.isclose(two.speedup, target_ms * length / step)
    assert math.isclose(two.target_busy, target_ms / step)
    assert math.isclose(two.draft_busy, length * draft_ms / step)
    assert math.isclose(one.ms_per_token, (length * draft_ms + target_ms) / length)
    assert math.isclose(one.target_busy + one.draft_busy, 1.0)


@pytest.mark.parametrize("num_devices", [1, 2])
def test_a_chain_gains_nothing_from_a_second_device(num_devices):
    rounds = [Round(4, "accepted", 3, 0, True, (2, 1, 1), (), 4)] * 5
    result = simulate.simulate(rounds, constant(10.0, 2.0), num_devices=num_devices)
    assert math.isclose(result.ms_per_token, (3 * 2.0 + 10.0) / 4)
    assert math.isclose(result.ms_per_token, theory.chain_time(1.0, 3, 2.0, 10.0))


def test_plain_decoding_has_speedup_1():
    rounds = [Round(1, "accepted", 0, 0, True, (), (), 1)] * 3
    for num_devices in (1, 2):
        result = simulate.simulate(rounds, constant(10.0, 2.0), num_devices=num_devices, crossing_ms=5.0)
        assert (result.ms_per_token, result.speedup, result.draft_busy) == (10.0, 1.0, 0.0)


def test_a_draft_stage_comes_before_the_target():
    entry = Round(1, "survived", 3, 2, True, (2, 1, 1), (4, 2, 2), 4)
    times = StepTimes(lambda tokens: 10.0 + tokens, lambda tokens: float(tokens))
    assert simulate.simulate([entry], times, num_devices=2).ms_per_token == 4 + max(14, 8)
    assert simulate.simulate([entry], times, num_devices=1).ms_per_token == 4 + 14 + 8


def test_overhead_and_crossings():
    times, costs = constant(10.0, 2.0), {"overhead_ms": 0.5, "crossing_ms": 0.25}
    draft_bound = simulate.simulate([overlapped(8, 8)] * 3, times, num_devices=2, **costs)
    assert math.isclose(draft_bound.ms_per_token * 8, 16 + 0.25 + 0.5 + 0.25)  # drafted, settled, outcome
    target_bound = simulate.simulate([overlapped(4, 4)] * 3, times, num_devices=2, **costs)
    assert math.isclose(target_bound.ms_per_token * 4, 0.25 + 10 + 0.5 + 0.25)  # pending, target, settled, outcome
    assert math.isclose(simulate.simulate([overlapped(4, 4)] * 3, times, num_devices=1, **costs).ms_per_token * 4, 18.5)


@pytest.mark.parametrize(("alpha", "fork_alpha"), [(0.5, 0.5), (0.8, 0.8), (0.5, 0.75)])
def test_iid_overlap_has_the_yield_and_time_of_the_theory(alpha, fork_alpha):
    length, generator = 4, np.random.default_rng(1)
    rounds, has_pending = [], False
    for draws in generator.random((40_000, length)):
        limits = [alpha] * (length - 1) + [fork_alpha] if has_pending else [fork_alpha]
        stands = draws[: len(limits)] < limits
        accepted = len(limits) if stands.all() else int(np.argmin(stands))
        has_pending = bool(stands.all())
        rounds.append(overlapped(length, min(accepted + 1, len(limits))))
    tokens = sum(entry.emitted for entry in rounds) / len(rounds)
    assert math.isclose(tokens, theory.overlap_tokens(alpha, length, fork_alpha), rel_tol=0.015)
    result = simulate.simulate(rounds, constant(10.0, 2.0), num_devices=2)
    assert math.isclose(result.ms_per_token, theory.overlap_time(alpha, length, 2.0, 10.0, fork_alpha), rel_tol=0.015)


def test_tables():
    flat = simulate.flat_times(20.0, 10.0)
    assert [flat.target(tokens) for tokens in (1, 64, 128)] == [20.0, 20.0, 40.0]
    assert [flat.draft(tokens) for tokens in (1, 64, 128)] == [2.0, 2.0, 4.0]
    table = simulate.table_times({1: 10.0, 3: 14.0}, {1: 2.0})
    assert (table.target(2), table.draft(5)) == (12.0, 2.0)
    profile = Profile(acceptance=(0.5,), verify_ms={1: 10.0, 3: 14.0}, draft_ms={1: 2.0})
    assert simulate.profile_times(profile).target(2) == 12.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: simulate.simulate([], constant(1, 1), num_devices=1), "rounds is empty"),
        (lambda: simulate.simulate([overlapped(2, 1)], constant(1, 1), num_devices=3), "num_devices=3"),
        (lambda: simulate.simulate([overlapped(2, 1)], constant(-1, 1), num_devices=2), "takes -1 ms"),
        (lambda: simulate.run([Job("a", None, 1.0, (0,))]), "can only need earlier ones"),
        (lambda: simulate.flat_times(10.0, 0.0), r"c=0\.0"),
        (lambda: simulate.log_rounds(NO_DECODER, {}, [[1]], key=checks.KEY, max_new_tokens=1), "object: the forwards"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@dataclasses.dataclass(frozen=True)
class FixedLM(toys._Toy):
    """The same logits everywhere: acceptance is i.i.d."""

    def logits(self, params, tokens, positions, context, block, mask):
        return jnp.broadcast_to(params, (tokens.shape[0], self.vocab_size))


def test_the_log_of_pearl_on_iid_tokens_has_the_theorys_yield():
    target_probs, draft_probs = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    alpha, length = np.minimum(target_probs, draft_probs).sum(), 3
    params = {"target": jnp.log(jnp.float32(target_probs)), "draft": jnp.log(jnp.float32(draft_probs))}
    decoder = decode.pearl(FixedLM(3), FixedLM(3), length)
    logs = simulate.log_rounds(
        decoder, params, [[0]] * 64, key=checks.KEY, max_new_tokens=96, sampling=decode.Sampling(1.0)
    ).rounds
    rounds = [entry for log in logs for entry in log[:-1]]  # the last is cut by the limit
    tokens = sum(entry.emitted for entry in rounds) / len(rounds)
    assert math.isclose(tokens, theory.overlap_tokens(alpha, length), rel_tol=0.02)
    for log in logs:
        assert log[0].is_fresh
        for earlier, later in pairwise(log):
            assert later.is_fresh == (earlier.ending != "survived")
            assert later.num_pending == (0 if later.is_fresh else length - 1)
    assert {(entry.is_fresh, entry.before, entry.beside, entry.target) for entry in rounds} == {
        (True, (), (1, 1, 1, 1), 3),  # the root first
        (False, (), (1, 1, 1), 3),
    }


def logged(decoder, params):
    """A decoder's log, checked against what its rounds report, which is `[rounds, B, …]`."""
    logs, found = simulate.log_rounds(decoder, params, checks.PROMPTS, key=checks.KEY, max_new_tokens=20)
    expected = checks.run(decoder, params, checks.PROMPTS).stats
    jax.tree.map(np.testing.assert_array_equal, found.counts, expected.counts)
    _, reports = checks.steps(decoder, params, checks.PROMPTS, logprobs=False)
    infos = jax.tree.map(lambda *leaves: np.stack(leaves), *(info for _, info in reports))
    for log, emitted in zip(logs, infos.num_emitted.T, strict=True):
        assert [entry.emitted for entry in log] == emitted[emitted > 0].tolist()
    return logs, infos


def test_the_log_of_specbranch_with_a_draft_stage():
    pair = toys.pair("ctx")
    decoder = branch_decoder(pair.target, pair.draft, 4, 3, hrad.Confidence(0.4), has_draft_stage=True)
    logs, infos = logged(decoder, pair.params)
    for index, log in enumerate(logs):
        endings = [entry.ending for entry in log]
        tally = jax.tree.map(lambda leaf, index=index: leaf[:, index].sum(0), infos.tally)
        for name in ("pending rejected", "branch rejected", "survived"):
            assert endings.count(name) == getattr(tally, name.replace(" ", "_"))
        assert sum(entry.num_pending for entry in log) == tally.pending
        assert sum(entry.num_branches for entry in log) == tally.branches
        assert log[0].before == (1,)
        for entry in log[1:]:
            assert entry.before == ((1, 1, 1, 1) if entry.is_fresh else ())
        assert {(entry.beside, entry.target) for entry in log} == {((3, 3, 3, 3), 4)}


def test_the_log_of_a_tree_a_chain_and_plain_decoding():
    pair = toys.pair("ctx")
    logs, infos = logged(decode.sequoia(pair.target, pair.draft, tree.k_ary(2, 2)), pair.params)
    assert {(entry.before, entry.beside, entry.target) for log in logs for entry in log} == {((2, 2), (), 7)}
    rejected = [sum(entry.ending == "rejected" for entry in log) for log in logs]
    assert rejected == infos.is_rejected.sum(0).tolist()
    logs, infos = logged(adaedl(pair.target, pair.draft, 4), pair.params)
    assert [sum(len(entry.before) for entry in log) for log in logs] == infos.num_drafted.sum(0).tolist()
    logs, _ = logged(decode.autoregressive(pair.target), pair.params)
    assert {entry for log in logs for entry in log} == {Round(1, "accepted", 0, 0, True, (), (), 1)}
