"""Logits of the target without a next token: the row ends there, with the tokens in front of it, under every method."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import reference
from checks import KEY, rows, run
from laws import KEPT_TARGET, MODEL, PARAMS, TARGET, kept_params, law
from methods import of
from toys import KeptTableLM, TableLM

from jaxspec import decode

BAD = {
    "NaN": np.float32(np.nan),
    "negative NaN": np.array(0xFFC00000, np.uint32).view(np.float32),
    "+inf": np.float32(np.inf),
}


TABLES = {f"{name} in a place": np.array(TARGET, np.float32) for name in BAD}
TABLES["-inf everywhere"] = np.array(TARGET, np.float32)
for table, value in zip(TABLES.values(), (*BAD.values(), -np.inf), strict=True):
    table[2, slice(None) if value == -np.inf else 1] = value
"""Targets without a next token behind token 2."""

CYCLE = 20 * np.roll(np.eye(10, dtype=np.float32), 1, axis=1)


MIXED = {"sampling": decode.Sampling(np.tile([0.0, 1.0], 2**11)), "logprobs": False}
PROMPTS = [[1], [0]] * 2**11
"""Greedy and sampled rows in turns: one program for both, and for all that breaks."""


@pytest.mark.parametrize("method", ["plain", "tree", "topk", "adaedl", "specbranch"])
def test_a_row_ends_where_its_target_breaks(method):
    """The tokens in front are those of a target that does not break."""
    decoder = of(method, MODEL)
    sound = run(decoder, PARAMS, PROMPTS, 5, **MIXED)
    assert "error" not in sound.finish_reason
    for name, table in TABLES.items():
        generation = run(decoder, {**PARAMS, "target": {"table": table}}, PROMPTS, 5, **MIXED)
        assert set(generation.finish_reason) == {"error", "length"}
        np.testing.assert_array_equal(generation.stats.counts.emitted, generation.lengths)
        for text, reason, whole in zip(rows(generation), generation.finish_reason, rows(sound), strict=True):
            stop = whole.index(2) + 1 if 2 in whole else 5
            assert (text, reason) == (whole[:stop], "error" if stop < 5 else "length"), name


@pytest.mark.parametrize("method", ["plain", "tree", "specbranch"])
def test_a_greedy_row_ends_where_its_target_breaks(method):
    """A cycle 0 1 2 … that breaks behind 4: in the middle of a block, at once, never, and just behind the limit."""
    for value in BAD.values():
        table = CYCLE.copy()
        table[4, 7] = value
        params = {"target": {"table": table}, "draft": {"table": CYCLE}}
        generation = run(of(method, TableLM(10)), params, [[0], [4], [5], [1]], [20, 20, 4, 3])
        assert rows(generation) == [[1, 2, 3, 4], [], [6, 7, 8, 9], [2, 3, 4]]
        assert generation.finish_reason == ("error", "error", "length", "length")
        assert (generation.stats.counts.emitted == generation.lengths).all()
        assert (generation.stats.counts.drafted > 0).tolist() == [method != "plain", False, *[method != "plain"] * 2]


def test_the_stream_says_why_a_row_ended():
    table = CYCLE.copy()
    table[4] = np.nan
    params = {"target": {"table": table}, "draft": {"table": CYCLE}}
    chunks = list(decode.stream(of("tree", TableLM(10)), params, [[0], [4], [5], [1]], key=KEY, max_new_tokens=4))
    assert [token for chunk in chunks for token in chunk[0]] == [1, 2, 3, 4]
    assert chunks[-1].finish_reasons == ("length", "error", "length", "error")
    assert chunks[0].finish_reasons == (None, "error", None, None)


@pytest.mark.parametrize("value", BAD.values(), ids=BAD)
def test_a_draft_that_breaks_changes_speed_only(value):
    params = {**PARAMS, "draft": {"table": jnp.full((3, 3), value)}}
    tokens = run(of("tree", MODEL), params, PROMPTS, 5, **MIXED).tokens
    assert (tokens[::2] == reference.greedy(MODEL, PARAMS["target"], [1], 5)).all()
    counts = np.bincount(tokens[1::2, :2] @ [3, 1], minlength=9)
    assert reference.chi_square_excess(counts, reference.joint_law(law(), 0, 2)) < 5


@pytest.mark.parametrize("method", ["tree", "specbranch"])
def test_a_bias_that_bans_all_of_a_reduced_draft(method):
    """The draft has the tokens 0, 2 and 3. The target may emit 1 alone; then 1 and 3, by its law over these two."""
    decoder = of(method, TableLM(4), KeptTableLM(4))
    params = kept_params(np.full((4, 4), 0.25))

    def emitted(bias):
        sampling = dataclasses.replace(MIXED["sampling"], bias=np.array(bias, np.float32))
        return run(decoder, params, PROMPTS, 3, sampling=sampling, logprobs=False).tokens

    banned = -np.inf
    assert (emitted([banned, 0, banned, banned]) == 1).all()
    tokens = emitted([banned, 0, banned, 0])
    two = KEPT_TARGET[:, [1, 3]] / KEPT_TARGET[:, [1, 3]].sum(axis=1, keepdims=True)
    counts = np.bincount((tokens[1::2] == 3)[:, :2] @ [2, 1], minlength=4)
    assert reference.chi_square_excess(counts, two[0][:, None] * two[[1, 3]]) < 5
    assert set(tokens.ravel().tolist()) == {1, 3}
