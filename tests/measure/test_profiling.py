"""Measuring: acceptance by depth and rank against its exact value, step times, and a profile from both."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import TableLM

from jaxspec import decode, measure, plan, tree
from jaxspec.measure import timing
from jaxspec.profiles import Profile

MODEL = TableLM(4)
TARGET, DRAFT = (0.1, 0.2, 0.3, 0.4), (0.5, 0.3, 0.2, 0.0)
"""The same in every context: acceptance by rank is (.5, .1, 0, .4)."""

KEY = jax.random.key(3)
PROMPTS = [[index % 4] for index in range(32)]


def params_of(target, draft):
    with np.errstate(divide="ignore"):
        return {
            name: {"table": jnp.asarray(np.log(np.tile(probs, (4, 1))), jnp.float32)}
            for name, probs in (("target", target), ("draft", draft))
        }


PARAMS = params_of(TARGET, DRAFT)


def measured(shape, **options):
    arguments = {"key": KEY, "max_new_tokens": 48, "sampling": decode.Sampling(1.0), "batch_size": 16, **options}
    return measure.acceptance(decode.sequoia(MODEL, MODEL, shape), PARAMS, PROMPTS, **arguments)


def test_star_gives_the_exact_acceptance_by_rank():
    """In probabilities, so that the mean is near although rounds are few; the last rank and the rest are there."""
    found = measured(tree.star(4))
    values, errors, rejection = found.pooled()
    np.testing.assert_allclose(values, [0.5, 0.1, 0.0, 0.4], atol=0.03)
    assert rejection == pytest.approx(0.0, abs=1e-5)
    assert (np.abs(values - [0.5, 0.1, 0.0, 0.4]) <= 4 * errors + 1e-6).all()
    assert found.counts.sum() == found.rounds


def test_comb_gives_the_same_acceptance_at_every_depth():
    found = measured(tree.comb(3, 3))
    assert found.acceptance.shape == (3, 3)
    for depth in range(3):
        np.testing.assert_allclose(found.acceptance[depth], [0.5, 0.1, 0.0], atol=0.06)
        assert found.rejection[depth] == pytest.approx(1 - found.acceptance[depth].sum(), abs=1e-6)
    assert (np.diff(found.counts) < 0).all()  # deeper nodes are visited less
    assert found.tokens_per_round == pytest.approx(plan.expected_tokens(tree.comb(3, 3), [0.5, 0.1, 0.0]), abs=0.1)


def test_an_incomplete_batch_counts_its_own_rows_only():
    whole = measured(tree.star(2), batch_size=32)
    split = measured(tree.star(2), batch_size=24)  # 24 and 8
    assert whole.rounds == pytest.approx(split.rounds, rel=0.1)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="prompts is empty"):
        measure.acceptance(decode.sequoia(MODEL, MODEL, tree.star(2)), PARAMS, [], key=KEY)
    with pytest.raises(ValueError, match="batch_size=0"):
        measured(tree.star(2), batch_size=0)
    with pytest.raises(ValueError, match="lacks 1"):
        measure.profile(MODEL, MODEL, PARAMS, PROMPTS, key=KEY, verify_sizes=(2, 4))


def test_profile_plans(tmp_path):
    told = []
    profile = measure.profile(
        MODEL,
        MODEL,
        PARAMS,
        PROMPTS[:8],
        key=KEY,
        width=3,
        depth=2,
        temperature=1.0,
        max_new_tokens=24,
        batch_size=8,
        verify_sizes=(1, 4),
        draft_widths=(1, 2),
        names=("a", "b"),
        progress=lambda what, done, total: told.append((what, done, total)),
    )
    assert np.shape(profile.acceptance) == (2, 3)
    assert profile.standard_errors is not None
    assert np.shape(profile.standard_errors) == (2, 3)
    assert set(profile.verify_ms) == {1, 4}
    assert set(profile.draft_ms) == {1, 2}
    assert (profile.temperature, profile.target, profile.draft) == (1.0, "a", "b")
    assert profile.protocol["num_prompts"] == 8
    assert told[0] == ("acceptance", 8, 8)
    assert told[-1] == ("times", 3, 3)
    profile.save(tmp_path / "profile.json")
    assert type(profile).load(tmp_path / "profile.json") == profile
    assert plan.best(profile).expected_speedup >= 1
    pooled = measure.profile(
        MODEL, MODEL, PARAMS, PROMPTS[:8], key=KEY, width=3, depth=2, by_depth=False, verify_sizes=(1,),
        draft_widths=(1,), max_new_tokens=24, batch_size=8,
    )  # fmt: skip
    assert np.shape(pooled.acceptance) == (3,)


def test_overhead_is_what_a_round_takes_beyond_its_forwards_and_beyond_a_plain_round(monkeypatch):
    rounds, steps = {1: 12.0, 3: 21.0}, {1: 10.0, 3: 14.0}  # milliseconds by the number of tokens; a draft step takes 1
    asked = []

    def slowly(milliseconds):
        moments = itertools.count()  # the third is a slow one, which meets everything that is measured then
        return lambda: milliseconds * (5 if next(moments) == 2 else 1)

    def timed_round(decoder, params, prompt, **options):
        asked.append(options["num_tokens"])
        return slowly(rounds[decoder.forwards["target"][0]])

    def timed_step(model, params, size, **options):
        return slowly(steps[size] if model.vocab_size == 4 else 1.0)

    monkeypatch.setattr(timing, "timed_round", timed_round)
    monkeypatch.setattr(timing, "timed_step", timed_step)
    profile = Profile(acceptance=((0.9,), (0.9,)), verify_ms={1: 10.0, 3: 14.0}, draft_ms={1: 1.0}, overhead_ms=50.0)
    assert plan.predict(tree.chain(2), profile).round_ms == pytest.approx(66.0)

    def overhead(profile, model=MODEL):
        return measure.overhead(model, TableLM(5), PARAMS, profile, [0], key=KEY)

    assert overhead(profile) == pytest.approx((21.0 - 16.0) - (12.0 - 10.0))
    assert set(asked) == {timing.ROUND_TOKENS}
    rounds[3] = 17.0
    assert overhead(profile) == 0.0
    useless = dataclasses.replace(profile, acceptance=(0.01,))
    asked.clear()
    assert overhead(useless) == 0.0
    assert not asked  # the plan is plain decoding

    @dataclasses.dataclass(frozen=True)
    class Short(TableLM):
        max_length: int = 20

    assert overhead(profile, Short(4)) == 0.0
    assert not asked
