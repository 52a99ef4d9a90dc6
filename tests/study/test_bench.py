"""The benchmark: its arithmetic on made-up times, its turns, and what it refuses."""

import jax
import numpy as np
import pytest
from compiled import num_programs
from timed import samples
from toys import pair

from jaxspec import decode, tree
from jaxspec.decode import loop
from jaxspec.measure import timing
from jaxspec.study import bench, bench_results
from jaxspec.study.bench_results import BASELINE, Output, Report, Spread, Steps


@pytest.fixture(scope="module")
def generation():
    """Six tokens by a chain whose draft is the target: two rounds of three."""
    target, _, params = pair("table")
    params = {"target": params["target"], "draft": params["target"]}
    decoder = decode.speculative(target, target, 2)
    return decode.generate(decoder, params, [[1]], key=jax.random.key(0), max_new_tokens=6)


def test_ratios_pair_repeats_and_prompts():
    own, other = np.array([[1.0, 2.0, 4.0], [1.0, 1.0, 1.0]]), np.array([[2.0, 2.0, 2.0], [3.0, 1.0, 5.0]])
    assert bench_results.pairwise_ratios(own, other).tolist() == [1.0, 3.0]


def test_spread_is_the_median_and_the_quartiles():
    assert bench_results.spread(np.array([4.0, 1.0, 3.0, 2.0, 5.0])) == Spread(3.0, 2.0, 4.0)
    assert bench_results.spread(np.array([2.5])) == Spread(2.5, 2.5, 2.5)


def test_rotation_gives_every_arm_every_place():
    names = ["a", "b", "c"]
    orders = [bench.rotated(names, turn) for turn in range(3)]
    assert orders == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"]]
    assert bench.rotated(names, 3) == names


def test_first_of_each():
    assert bench.first_of_each("abaab") == [0, 1]
    assert bench.first_of_each("abaab", 2) == [0, 1, 2, 4]


def test_arms_take_turns_and_their_warm_up_is_not_counted():
    order, told = [], []

    def arm(name):
        def generate(index, prompt):
            order.append((name, index))
            return Output(np.zeros(2, np.int32))

        return bench.Arm(generate, lambda prompt: (len(prompt),))

    done = bench.interleaved(
        {"a": arm("a"), "b": arm("b")},
        [[1], [2], [3, 4]],
        repeats=2,
        progress=lambda *progress: told.append(progress),
    )
    assert order[:4] == [("a", 0), ("a", 2), ("b", 0), ("b", 2)]  # one prompt of each shape
    turns = [order[start : start + 2] for start in range(4, len(order), 2)]
    assert [[index for _, index in turn] for turn in turns] == [[0, 0], [1, 1], [2, 2]] * 2
    assert ["".join(name for name, _ in turn) for turn in turns] == ["ab", "ba", "ab", "ba", "ab", "ba"]
    assert [[len(repeats) for repeats in rows] for rows in done.values()] == [[2, 2, 2]] * 2
    assert all(np.isnan(sample.first_seconds) for rows in done.values() for repeats in rows for sample in repeats)
    assert told[0] == ("warm-up", 0, 4)
    assert told[-1] == ("bench", 6, 6)


def test_measures_of_made_up_times(generation):
    timed = {
        BASELINE: samples([[2.0], [2.0], [2.0]], stats=generation.stats),
        "fast": samples([[1.0], [2.0], [0.75]], stats=generation.stats),
        "peer": samples([[4.0], [4.0], [8.0]], first=float("nan")),
    }
    report = Report(timed, ["qa", "qa", "code"], {BASELINE: Steps(0.0, 500.0), "fast": Steps(100.0, 50.0)})
    measures = report.measures()
    fast = measures["fast"]
    assert measures[BASELINE]["speedup"] == 1.0
    assert measures[BASELINE]["speedup_spread"] == (1.0, 1.0)
    assert (fast["speedup"], fast["speedup_spread"]) == (2.0, (1.5, pytest.approx(7 / 3)))
    assert fast["tokens_per_second"] == pytest.approx(30 / 3.75)
    assert (fast["tokens"], fast["seconds"], fast["first_ms"]) == (30, 3.75, 500.0)
    assert (fast["tokens_per_round"], fast["accepted_per_round"], fast["acceptance"]) == (3.0, 2.0, [1.0])
    assert fast["overhead_ms"] == pytest.approx(500.0 - 150.0)  # two rounds in a second, of which half up to the first
    assert measures[BASELINE]["decode_speedup"] == 1.0
    assert fast["decode_speedup"] == pytest.approx(3.0)  # 1.5 seconds to .5, 1.5 and .25: half a second is the prompt's
    assert measures["peer"]["speedup"] == 0.5
    assert np.isnan(measures["peer"]["decode_speedup"])
    assert np.isnan(measures["peer"]["tokens_per_round"])
    by_category = report.by_category()
    assert list(by_category) == ["qa", "code"]
    assert [by_category[name]["fast"]["speedup"] for name in by_category] == [1.5, pytest.approx(8 / 3)]
    assert report.ratio("fast", "peer").median == 4.0
    assert report.same_texts("fast") == 3


def test_nothing_is_compiled_while_it_is_timed():
    target, draft, params = pair("table")
    arm = bench.decoder_arm(decode.speculative(target, draft, 2), params, jax.random.key(0), 40)
    short, long = [1, 2], [3] * 60
    assert arm.shape(short) == arm.shape([5] * 9) != arm.shape(long)

    def compiled():
        return num_programs(loop._start), num_programs(loop._rounds)

    begun = compiled()
    arm.generate(0, short)
    warm = compiled()
    assert warm == (begun[0] + 1, begun[1] + 1)
    assert arm.first is not None
    arm.first(0, short)
    arm.generate(1, [5] * 9)
    assert compiled() == warm
    arm.generate(2, long)
    assert compiled() != warm


def test_unequal_counts_are_an_error():
    with pytest.raises(ValueError, match="b emitted another number"):
        bench.check_equal_counts({"a": samples([[1.0]]), "b": samples([[1.0]], 9)})


def test_a_round_has_its_forwards(monkeypatch):
    monkeypatch.setattr(timing, "step_times", lambda model, params, sizes, **_: {size: 10.0**size for size in sizes})
    target, draft, params = pair("pos")
    shape = tree.TokenTree((-1, 0, 0, 1, 2, 2))
    decoders = {"plain": decode.autoregressive(target), "tree": decode.sequoia(target, draft, shape)}
    steps = bench.round_steps(decoders, params, 128)
    assert steps == {"plain": Steps(0.0, 10.0), "tree": Steps(100.0 + 100.0, 1e6)}  # the root's step has two tokens


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoders": {}}, "is not among"),
        ({"prompts": []}, "at least one"),
        ({"repeats": 0}, "at least one"),
        ({"categories": ["a", "b"]}, "2 categories for 1 prompts"),
    ],
)
def test_bad_input(changes, message):
    target, _, params = pair("table")
    arguments = {"decoders": {BASELINE: decode.autoregressive(target)}, "params": params, "prompts": [[1]]}
    with pytest.raises(ValueError, match=message):
        bench.run(**arguments | changes, key=jax.random.key(0), max_new_tokens=2)
