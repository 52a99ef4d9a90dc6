"""Times of steps and rounds: of what was asked for, and above nothing."""

import jax
import numpy as np
import pytest
from toys import TableLM

from jaxspec import decode
from jaxspec.measure import timing

MODEL = TableLM(4)


@pytest.fixture(scope="module")
def params():
    return {"target": MODEL.init(jax.random.key(0))}


def test_times_are_of_the_sizes_asked_for(params):
    times = timing.step_times(MODEL, params["target"], (1, 3), capacity=64, repeats=2, steps=2)
    assert set(times) == {1, 3}
    assert all(value > 0 for value in times.values())


def test_a_round_takes_the_difference_of_two_generations_over_that_of_their_rounds(params, monkeypatch):
    """On a clock on which a generation takes 7 seconds and .02 more for each of its rounds."""
    now, generate = [0.0], decode.generate

    def timed(*args, **options):
        generation = generate(*args, **options)
        now[0] += 7.0 + 0.02 * int(generation.stats.rounds[0])
        return generation

    monkeypatch.setattr(decode, "generate", timed)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    whole = timing.round_time(
        decode.autoregressive(MODEL),
        params,
        [0],
        key=jax.random.key(3),
        num_tokens=(2, 40),
        capacity=64,
        repeats=2,
    )
    assert np.isclose(whole, 20.0)
