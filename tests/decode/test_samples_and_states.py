"""Several rows of one prompt, rows that are ended from outside, and rounds in a program of one's own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checks import KEY, RAGGED, rows, run, steps
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from methods import of
from toys import pair

from jaxspec import decode
from jaxspec.decode import loop, stats

TARGET, DRAFT, PARAMS = pair("pos")
DECODER = of("tree", TARGET, DRAFT)
MIXED = {"sampling": decode.Sampling([0.0, 1.0])}
PROMPTS = [[1, 2], [3]]


def test_samples_are_rows_of_their_prompt(monkeypatch):
    """As if the prompt stood in the batch as often, with its values; its tokens go through the models once."""
    values = {"stop_ids": [[2], [5]], "max_new_tokens": [14, 9], "draft_temperature": [1.0, 0.5]}
    samples = run(DECODER, PARAMS, [RAGGED[3], RAGGED[2]], num_samples=3, **values, **MIXED)
    repeated = {
        "stop_ids": [[2]] * 3 + [[5]] * 3,
        "max_new_tokens": [14] * 3 + [9] * 3,
        "draft_temperature": [1.0] * 3 + [0.5] * 3,
        "sampling": decode.Sampling([0.0] * 3 + [1.0] * 3),
    }
    apart = run(DECODER, PARAMS, [RAGGED[3]] * 3 + [RAGGED[2]] * 3, **repeated)
    assert rows(samples) == rows(apart)
    assert samples.finish_reason == apart.finish_reason
    assert len({*map(tuple, rows(samples)[3:])}) == 3
    sizes = []
    start = loop._start
    monkeypatch.setattr(loop, "_start", lambda *given: sizes.append(len(given[2].tokens)) or start(*given))
    keys = jax.random.split(KEY, 6)
    run(DECODER, PARAMS, [RAGGED[3], RAGGED[2]], num_samples=3, key=keys, **values, **MIXED)
    assert sizes == [2]
    with pytest.raises(ValueError, match=r"one for each of the 6 rows"):
        run(DECODER, PARAMS, [RAGGED[3], RAGGED[2]], num_samples=3, key=keys[:2])


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2"])
def test_numbers_of_samples_that_cannot_be(count):
    with pytest.raises(ValueError, match="num_samples"):
        run(DECODER, PARAMS, PROMPTS, num_samples=count)


def test_a_row_is_ended_from_outside():
    """It emits nothing more, and the others what they would have."""
    options = {"key": KEY, "max_new_tokens": 14, **MIXED}
    whole = run(DECODER, PARAMS, PROMPTS, 14, **MIXED)
    chunks = []
    for chunk in decode.stream(DECODER, PARAMS, PROMPTS, **options):
        chunks.append(chunk)
        if len(chunks) == 2:
            chunk.end(0)
    texts = [[token for chunk in chunks for token in chunk[row]] for row in (0, 1)]
    assert texts[0] == rows(whole)[0][: len(chunks[0][0]) + len(chunks[1][0])]
    assert texts[1] == rows(whole)[1]
    assert not any(chunk[0] for chunk in chunks[2:])
    assert chunks[-1].finish_reasons == ("stop", "length")
    found = stats.of_rounds(DECODER, [chunk.info for chunk in chunks])
    np.testing.assert_array_equal(found.counts.emitted, [len(text) for text in texts])
    for mine, theirs in zip(jax.tree.leaves(found.counts), jax.tree.leaves(whole.stats.counts), strict=True):
        np.testing.assert_allclose(mine[1], theirs[1], rtol=1e-5)


def test_a_round_that_is_cut_counts_what_is_left():
    _, reports = steps(DECODER, {**PARAMS, "draft": PARAMS["target"]}, PROMPTS, 9)
    info = stats.cut(reports[0][1], 0, 1)
    assert (info.num_emitted.tolist(), info.num_accepted.tolist()) == ([1, 3], [1, 2])
    found = stats.of_rounds(DECODER, [info])
    assert found.counts.emitted.tolist() == [1, 3]
    assert found.counts.accepted_lengths.tolist() == [[0, 1, 0], [0, 0, 1]]
    assert found.counts.path_drafted.tolist() == [2, 2]
    assert found.counts.path_rolled_back.tolist() == [1, 0]
    assert stats.cut(info, 0, 5) is info


def _text(row, index):
    return row.tokens[index, int(row.prompt_length[index]) : int(row.num_tokens[index])].tolist()


def _until_done(round_of, state):
    while not np.asarray(state.row.is_finished).all():
        state, _ = round_of(PARAMS, state)
    return state


def test_rounds_of_one_s_own_are_those_of_generate():
    """`vmap` within `jit`, all of them in one program, one row without `vmap`, and the rows of `shard_map`."""
    wanted = rows(run(DECODER, PARAMS, PROMPTS, 14, **MIXED))
    first = functools.partial(decode.first_state, DECODER, PARAMS, PROMPTS, key=KEY, max_new_tokens=14, **MIXED)
    rounds = jax.vmap(DECODER.round, in_axes=(None, 0))

    @jax.jit
    def whole(params, state):
        return jax.lax.while_loop(lambda at: ~at.row.is_finished.all(), lambda at: rounds(params, at)[0], state)

    mesh = Mesh(np.array(jax.devices()[:1]), ("rows",))
    sharded = jax.shard_map(rounds, mesh=mesh, in_specs=(P(), P("rows")), out_specs=P("rows"), check_vma=False)
    for state in (whole(PARAMS, first()), _until_done(jax.jit(sharded), first())):
        assert [_text(state.row, index) for index in (0, 1)] == wanted
    one = _until_done(jax.jit(DECODER.round), jax.tree.map(lambda leaf: leaf[1], first()))
    assert _text(jax.tree.map(lambda leaf: leaf[None], one.row), 0) == wanted[1]


def test_a_first_state_has_room_for_all():
    state = decode.first_state(DECODER, PARAMS, PROMPTS, key=KEY, max_new_tokens=3000)
    assert state.row.tokens.shape == (2, 4096)


@pytest.mark.parametrize(
    "traced",
    [
        lambda: jax.jit(lambda key: run(DECODER, PARAMS, PROMPTS, key=key).tokens)(KEY),
        lambda: jax.jit(lambda params: run(DECODER, params, PROMPTS).tokens)(PARAMS),
        lambda: jax.jit(lambda prompts: run(DECODER, PARAMS, prompts).tokens)(jnp.array([[1, 2]])),
        lambda: jax.jit(lambda: run(DECODER, PARAMS, PROMPTS).tokens)(),
        lambda: jax.vmap(lambda key: run(DECODER, PARAMS, PROMPTS, key=key).tokens)(
            jax.random.split(jax.random.key(1))
        ),
        lambda: jax.jit(lambda key: [*decode.stream(DECODER, PARAMS, PROMPTS, key=key, max_new_tokens=1)])(KEY),
    ],
    ids=["key", "params", "prompts", "nothing", "vmap", "stream"],
)
def test_what_is_traced_is_told_to_call_a_round(traced):
    with pytest.raises(ValueError, match=r"trace decoder\.round on a state of decode\.first_state"):
        traced()


def test_a_result_is_as_long_as_what_was_emitted():
    """Whatever the limit: a billion tokens for a row that stops at once."""
    limits = [2**30 - 1, 10**8]
    whole = run(DECODER, PARAMS, PROMPTS, 60)
    stops = [[row[5]] for row in rows(whole)]
    generation = run(DECODER, PARAMS, PROMPTS, limits, stop_ids=stops)
    assert rows(generation) == [row[: row.index(stop) + 1] for row, [stop] in zip(rows(whole), stops, strict=True)]
    assert generation.tokens.shape == (2, generation.lengths.max())
    assert generation.logprobs is not None
    assert generation.logprobs.shape == generation.tokens.shape
