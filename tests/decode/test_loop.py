"""The loop: stops, lengths, batches, growth, log-probabilities and errors."""

import checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from checks import KEY, PROMPTS, logprobs, rows, run, steps
from compiled import num_programs
from toys import TREES, ConstantLM, TableLM, pair

from jaxspec import decode, sampling, tree
from jaxspec.decode import loop

TARGET, DRAFT, PARAMS = pair("ctx")
DECODER = decode.sequoia(TARGET, DRAFT, TREES["binary"])
CHAIN = decode.sequoia(TARGET, TARGET, tree.chain(5))
SAME = {"target": PARAMS["target"], "draft": PARAMS["target"]}
SAMPLED = decode.Sampling(1.0)

CYCLE = TableLM(10)
"""With the table below, 0 1 2 … 9 0 1 …: where a stop falls is known."""
CYCLE_PARAMS = {"table": 20 * jnp.roll(jnp.eye(10), 1, axis=1)}
CYCLES = {"target": CYCLE_PARAMS, "draft": CYCLE_PARAMS}
CYCLE_DECODERS = {
    "plain": decode.autoregressive(CYCLE),
    "chain": decode.speculative(CYCLE, CYCLE, 4),
    "binary": decode.sequoia(CYCLE, CYCLE, TREES["binary"]),
}


@pytest.mark.parametrize("count", range(1, 14))
def test_exact_lengths(count):
    """Any limit, with a draft that is always right and blocks of six."""
    generation = checks.assert_greedy_equals_reference(CHAIN, SAME, [[3]], count)
    assert generation.tokens.shape == (1, count)
    assert generation.lengths.tolist() == [count]
    assert generation.finish_reason == ("length",)
    assert generation.stats.counts.emitted.tolist() == [count]


def test_each_row_has_its_limit():
    limits = [1, 7, 20, 3]
    generation = run(DECODER, PARAMS, PROMPTS, limits)
    assert generation.tokens.shape == (4, 20)
    for prompt, tokens, limit in zip(PROMPTS, rows(generation), limits, strict=True):
        assert tokens == reference.greedy(TARGET, PARAMS["target"], prompt, limit)
    assert (generation.tokens == decode.PADDING).sum() == 80 - sum(limits)


@pytest.mark.parametrize("decoder", CYCLE_DECODERS.values(), ids=CYCLE_DECODERS)
@pytest.mark.parametrize("stop", range(10))
def test_a_stop_anywhere_in_a_block(decoder, stop):
    """The stop token is the last one kept, and every count ends with it."""
    generation = run(decoder, CYCLES, [[0], [4, 5]], 30, stop_ids=[stop])
    for row, last in enumerate((0, 5)):
        length = (stop - last - 1) % 10 + 1
        assert rows(generation)[row] == [(last + 1 + i) % 10 for i in range(length)]
        assert generation.lengths[row] == length
        assert np.isfinite(logprobs(generation)[row]).sum() == length
        assert (generation.tokens[row] != decode.PADDING).sum() == length
    np.testing.assert_array_equal(generation.stats.counts.emitted, generation.lengths)
    assert generation.finish_reason == ("stop", "stop")


def test_several_stops_for_each_row():
    """Whichever comes first ends a row; rows may have sets of their own, and none."""
    decoder = CYCLE_DECODERS["chain"]
    assert rows(run(decoder, CYCLES, [[0], [5]], 12, stop_ids=(3, 8))) == [[1, 2, 3], [6, 7, 8]]
    apart = run(decoder, CYCLES, [[0], [5]], 12, stop_ids=[[3], [3, 9, 7, 8, 6]])
    assert [row[-1] for row in rows(apart)] == [3, 6]
    apart = run(decoder, CYCLES, [[0], [5]], 12, stop_ids=[[], [3, 9, 7, 8]])
    assert [row[-1] for row in rows(apart)] == [2, 7]
    assert apart.finish_reason == ("length", "stop")


@pytest.mark.parametrize("stop_ids", [(), None, -1, [-1], [[], [-1]]], ids=str)
def test_no_stop_runs_to_the_limit(stop_ids):
    generation = run(CYCLE_DECODERS["chain"], CYCLES, [[0], [5]], 12, stop_ids=stop_ids)
    assert generation.lengths.tolist() == [12, 12]


def test_stop_at_the_limit_is_a_stop():
    generation = run(CYCLE_DECODERS["chain"], CYCLES, [[0], [1]], 3, stop_ids=3)
    assert (rows(generation), generation.finish_reason) == ([[1, 2, 3], [2, 3]], ("stop", "stop"))


def test_stop_in_the_prompt_is_no_stop():
    assert rows(run(CYCLE_DECODERS["chain"], CYCLES, [[3, 3, 0], [3]], 3, stop_ids=3)) == [[1, 2, 3], [4, 5, 6]]


def test_a_drafted_stop_that_is_rejected_stops_nothing():
    """The draft always proposes the stop token, the target never emits it."""
    stop = ConstantLM(10, token=9)
    decoder = decode.speculative(CYCLE, stop, 3)
    bias = {9: -np.inf}  # 8 is followed by 0: the lowest of the others
    generation = run(
        decoder, {"target": CYCLE_PARAMS, "draft": {}}, [[0]], 20, stop_ids=9, sampling=decode.Sampling(bias=bias)
    )
    assert generation.lengths.tolist() == [20]
    assert 9 not in generation.tokens
    free = run(decoder, {"target": CYCLE_PARAMS, "draft": {}}, [[0]], 20, stop_ids=9)
    assert rows(free) == [list(range(1, 10))]
    assert free.stats.counts.drafted.tolist() == [3 * 9]
    assert free.stats.counts.accepted.tolist() == [1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_does_not_depend_on_its_batch(temperature):
    """Prompts of 1 to 31 tokens together or alone, with keys of their own."""
    keys = jax.random.split(jax.random.key(3), len(PROMPTS))
    options = {"sampling": decode.Sampling(temperature)}
    together = run(DECODER, PARAMS, PROMPTS, key=keys, **options)
    for row, prompt in enumerate(PROMPTS):
        alone = run(DECODER, PARAMS, [prompt], key=keys[row : row + 1], **options)
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])
        np.testing.assert_allclose(logprobs(alone)[0], logprobs(together)[row], atol=1e-5)
        for one, many in zip(*map(jax.tree.leaves, (alone.stats.counts, together.stats.counts)), strict=True):
            np.testing.assert_allclose(one[0], many[row], atol=1e-5)


def test_one_key_is_folded_by_row():
    """Rows of a batch differ; their number in the batch, not its size, is what counts."""
    four = run(DECODER, PARAMS, [[1]] * 4, sampling=SAMPLED)
    one = run(DECODER, PARAMS, [[1]], sampling=SAMPLED)
    np.testing.assert_array_equal(four.tokens[0], one.tokens[0])
    assert len({tuple(row) for row in four.tokens.tolist()}) == 4


def test_a_finished_row_is_frozen():
    """A row of two tokens beside one of twenty: its counts end with it, and the other's are as when alone."""
    keys = jax.random.split(jax.random.key(3), 4)
    both = run(DECODER, PARAMS, [[3], [1, 4], [1], [1]], [2, 20, 1, 1], key=keys, sampling=SAMPLED)
    for row, (prompt, count) in enumerate((([3], 2), ([1, 4], 20))):
        alone = run(DECODER, PARAMS, [prompt], count, key=keys[row : row + 1], sampling=SAMPLED)
        assert rows(both)[row] == rows(alone)[0]
        for one, many in zip(*map(jax.tree.leaves, (alone.stats.counts, both.stats.counts)), strict=True):
            np.testing.assert_allclose(one[0], many[row], atol=1e-5)


@pytest.mark.parametrize("decoder", [DECODER, decode.autoregressive(TARGET)], ids=["binary", "plain"])
@pytest.mark.parametrize("options", [{}, {"sampling": decode.Sampling(0.8, bias={4: 3.0})}], ids=["greedy", "sampled"])
def test_logprobs_are_the_target_s(decoder, options):
    """By teacher forcing, at accepted, corrected and bonus positions; of the raw logits at temperature 1."""
    generation = run(decoder, PARAMS, PROMPTS, [20, 9, 14, 3], **options)
    for prompt, tokens, found in zip(PROMPTS, rows(generation), logprobs(generation), strict=True):
        wanted = reference.logprobs(TARGET, PARAMS["target"], prompt, tokens)
        np.testing.assert_allclose(found[: len(tokens)], wanted, atol=1e-5)
        assert np.isnan(found[len(tokens) :]).all()


def test_logprobs_only_where_asked_for():
    assert run(decode.autoregressive(TARGET), PARAMS, [[1]], logprobs=False).logprobs is None


def test_room_that_grows_changes_nothing():
    """Segments of 64, 128 and 256 slots equal one segment: tokens, log-probabilities and counts."""
    options = {"sampling": decode.Sampling([0.0, 1.0])}
    prompts, counts = [PROMPTS[1], PROMPTS[3]], [180, 150]
    grown = run(DECODER, PARAMS, prompts, counts, first_capacity=64, **options)
    whole = run(DECODER, PARAMS, prompts, counts, **options)
    np.testing.assert_array_equal(grown.tokens, whole.tokens)
    np.testing.assert_array_equal(grown.logprobs, whole.logprobs)
    for one, other in zip(grown.stats.counts, whole.stats.counts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    assert rows(grown)[0] == reference.greedy(TARGET, PARAMS["target"], prompts[0], 180)


def test_stream_is_generate():
    """Chunks in order, once, of every size, through growth; what the step API emits is what one call does."""
    sampling = decode.Sampling([0.0, 1.0])
    options = {"key": KEY, "max_new_tokens": [90, 40], "sampling": sampling, "first_capacity": 64}
    chunks = list(decode.stream(DECODER, PARAMS, [[3], [1, 4]], stop_ids=[[], [7]], **options))
    generation = decode.generate(DECODER, PARAMS, [[3], [1, 4]], stop_ids=[[], [7]], logprobs=False, **options)
    for row in range(2):
        assert [token for chunk in chunks for token in chunk[row]] == rows(generation)[row]
        assert sum(chunk.num_accepted[row] for chunk in chunks) == generation.stats.counts.accepted[row]
    assert len(chunks) == generation.stats.counts.rounds.max()
    assert all(len(chunk) == 2 for chunk in chunks)
    assert {len(chunk[0]) for chunk in chunks} > {1, 2}


def test_state_holds_what_was_emitted():
    """After a stop inside a block the target's context is one token short of the text, as in plain decoding."""
    for decoder in CYCLE_DECODERS.values():
        state, _ = steps(decoder, CYCLES, [[0], [7]], 30, stop_ids=[6])
        assert state.row.num_tokens.tolist() == [7, 10]
        context = state.contexts["target"]
        assert context.length.tolist() == [6, 9]
        for row, last in enumerate((0, 7)):
            held = (context.entries[row, : int(context.length[row])] % 10).tolist()
            assert held == [(last + i) % 10 for i in range(len(held))]


BAD = {
    "no prompts": ({"prompts": []}, "prompts is empty"),
    "empty prompt": ({"prompts": [[1], []]}, r"prompts\[1\] is empty"),
    "flat prompt": ({"prompts": [1, 2]}, "list of lists"),
    "text": ({"prompts": [["a"]]}, "integers"),
    "token too large": ({"prompts": [[11]]}, "token 11.*0 to 10"),
    "negative token": ({"prompts": [[-1]]}, "token -1"),
    "no new tokens": ({"max_new_tokens": 0}, "at least 1"),
    "limits of another length": ({"max_new_tokens": [1, 2]}, "each of the 1 rows"),
    "fractional limit": ({"max_new_tokens": 1.5}, "one integer"),
    "overflow": ({"max_new_tokens": 2**30}, r"2\*\*30"),
    "stop out of range": ({"stop_ids": [11]}, "11.*0 and 10"),
    "stops of another length": ({"stop_ids": [[1], [2]]}, "2 lists for 1 rows"),
    "seed for a key": ({"key": 0}, "jax.random.key"),
    "old key": ({"key": np.zeros(2, np.uint32)}, "jax.random.key"),
    "keys of another length": ({"key": jax.random.split(jax.random.key(3), 3)}, r"shape \(3,\)"),
    "no parameters": ({"params": {"target": {}}}, "no 'draft'"),
    "no chunk": ({"prefill_chunk": 0}, "at least 1"),
    "bad option": ({"sampling": decode.Sampling(-1.0)}, "temperature=-1"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_refused_before_anything_runs(change, message):
    arguments = {"params": PARAMS, "prompts": [[1]], "key": KEY, "max_new_tokens": 4, **change}
    params, prompts = arguments.pop("params"), arguments.pop("prompts")
    started = num_programs(loop._start)
    with pytest.raises(ValueError, match=message):
        decode.generate(DECODER, params, prompts, **arguments)
    with pytest.raises(ValueError, match=message):
        for _ in decode.stream(DECODER, params, prompts, **arguments):
            pass
    assert num_programs(loop._start) == started


def test_texts_beyond_the_target_s_limit_are_refused():
    model = TableLM(11, max_length=20)
    with pytest.raises(ValueError, match=r"21 tokens.*made for 20"):
        run(decode.autoregressive(model), {"target": {}}, [[1, 2]], 19)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: decode.sequoia(TARGET, TARGET, tree.chain(0)), "drafts nothing"),
        (lambda: decode.sequoia(TableLM(3), TableLM(3), tree.star(4)), "4 siblings.* 3 "),
        (lambda: decode.speculative(TARGET, TARGET, 0), "length=0"),
    ],
    ids=["root alone", "more siblings than tokens", "no length"],
)
def test_decoders_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_options_are_a_batch_s():
    with pytest.raises(ValueError, match="2 rows"):
        sampling.options(decode.Sampling([1.0] * 3), None, 2, 11)
