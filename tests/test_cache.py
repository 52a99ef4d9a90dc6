"""Contexts: buckets, commits, prefill and growth."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import CtxLM, TableLM

from jaxspec import cache
from jaxspec.base import Context

MODEL = TableLM(16)


@dataclasses.dataclass(frozen=True)
class HeadsFirst(TableLM):
    """Entries whose slot axis is not the first, as keys and values have it."""

    vocab_size: int = 7

    def empty(self, slots):
        return {"keys": jnp.zeros((3, slots, 2)), "norms": jnp.zeros(slots), "last": jnp.zeros((2, 2, slots))}


@dataclasses.dataclass(frozen=True)
class Misshapen:
    """Entries that do not follow the number of slots along exactly one axis."""

    rank: int

    def empty(self, slots):
        return {"good": jnp.zeros(slots), "bad": jnp.zeros((slots,) * self.rank)}


def entries_of(tokens, first_position=0):
    tokens = jnp.asarray(tokens, jnp.int32)
    return (first_position + jnp.arange(tokens.shape[0], dtype=jnp.int32)) * MODEL.vocab_size + tokens


def filled(tokens, slots):
    """A context that holds the tokens in room for `slots`."""
    return cache.commit(MODEL, cache.empty(MODEL, slots), entries_of(tokens), jnp.int32(len(tokens)))


def held(context):
    return (context.entries[: int(context.length)] % MODEL.vocab_size).tolist()


def positions(context):
    return (context.entries[: int(context.length)] // MODEL.vocab_size).tolist()


@pytest.mark.parametrize(
    ("slots", "capacity"), [(1, 64), (63, 64), (64, 64), (65, 128), (128, 128), (129, 256), (100_000, 131_072)]
)
def test_bucket(slots, capacity):
    assert cache.bucket(slots) == capacity


def test_commit_appends_the_block():
    context = filled([4, 5], 8)
    assert held(context) == [4, 5]
    context = cache.commit(MODEL, context, entries_of([1, 2, 3], 2), jnp.int32(2))
    assert held(context) == [4, 5, 1, 2]
    assert positions(context) == [0, 1, 2, 3]


def test_commit_gathers_in_the_order_of_the_indices():
    context = cache.commit(MODEL, filled([4], 8), entries_of([1, 2, 3, 6]), jnp.int32(3), jnp.array([0, 3, 1, 2]))
    assert held(context) == [4, 1, 6, 2]


def test_commit_of_nothing_changes_nothing_that_is_read():
    before = filled([4, 5], 8)
    after = cache.commit(MODEL, before, entries_of([1, 2, 3]), jnp.int32(0), jnp.array([2, 1]))
    assert held(after) == held(before) == [4, 5]


@pytest.mark.parametrize("indices", [jnp.array([[0, 1]]), jnp.array([0.0, 1.0])], ids=["a matrix", "floats"])
def test_indices_are_a_list_of_slots(indices):
    with pytest.raises(AssertionError):
        cache.commit(MODEL, filled([4], 8), entries_of([1, 2]), jnp.int32(2), indices)


@pytest.mark.parametrize("anchor", [0, 3])
def test_anchor_moves_nothing(anchor):
    context = cache.commit(MODEL, filled([4], 8), entries_of([1, 2]), jnp.int32(2), anchor=jnp.int32(anchor))
    assert held(context) == [4, 1, 2]


def test_commit_follows_each_leaf_s_slot_axis():
    model = HeadsFirst()
    assert cache.slot_axes(model) == {"keys": 1, "norms": 0, "last": 2}
    block = jax.tree.map(lambda leaf: jnp.arange(leaf.size, dtype=jnp.float32).reshape(leaf.shape), model.empty(3))
    context = cache.commit(
        model, cache.empty(model, 6)._replace(length=jnp.int32(1)), block, jnp.int32(2), jnp.array([2, 0])
    )
    np.testing.assert_array_equal(context.entries["keys"][:, 1:3], block["keys"][:, [2, 0]])
    np.testing.assert_array_equal(context.entries["norms"][1:3], block["norms"][jnp.array([2, 0])])
    np.testing.assert_array_equal(context.entries["last"][:, :, 1:3], block["last"][:, :, [2, 0]])
    assert int(context.length) == 3


@pytest.mark.parametrize("rank", [0, 2])
def test_entries_need_one_slot_axis(rank):
    with pytest.raises(ValueError, match=r"Misshapen.*'bad'.*exactly one axis"):
        cache.slot_axes(Misshapen(rank))


@pytest.mark.parametrize("chunk", [1, 3, 4, 16])
def test_prefill_in_chunks_is_prefill_at_once(chunk):
    """The same entries and length whatever the chunk, and rows that ended before a chunk keep theirs."""
    tokens, stop, params = jnp.arange(16, dtype=jnp.int32), 10, MODEL.init(jax.random.key(0))
    context = cache.empty(MODEL, 16)
    for start in range(0, 12, chunk):
        context = cache.prefill(MODEL, params, context, tokens, jnp.int32(start), jnp.int32(stop), chunk)
    assert held(context) == list(range(10))
    assert positions(context) == list(range(10))


def test_prefill_behind_the_end_changes_nothing_that_is_read():
    context, params = filled([0, 1, 2], 16), MODEL.init(jax.random.key(0))
    after = cache.prefill(MODEL, params, context, jnp.zeros(16, jnp.int32), jnp.int32(4), jnp.int32(3), 4)
    assert held(after) == [0, 1, 2]


def test_growth_keeps_what_is_held():
    context = cache.grow(MODEL, filled([4, 5, 6], 4), 9)
    assert held(context) == [4, 5, 6]
    assert context.entries.shape == (9,)
    model = HeadsFirst()
    ones = Context(jax.tree.map(jnp.ones_like, model.empty(4)), jnp.int32(4))
    grown = cache.grow(model, ones, 6)
    assert jax.tree.map(jnp.shape, grown.entries) == jax.tree.map(jnp.shape, model.empty(6))
    assert jax.tree.map(lambda leaf: float(leaf.sum()), grown.entries) == {"keys": 24.0, "norms": 4.0, "last": 16.0}


def test_slots_behind_the_length_are_never_read():
    """What lies there may be anything."""
    model = CtxLM(7)
    params = model.init(jax.random.key(0))
    arguments = jnp.array([3]), jnp.array([2])

    def logits(context):
        return model.apply(params, *arguments, context, model.empty(1), 0, jnp.ones((1, 1), bool)).logits

    context = filled([4, 5], 8)
    stale = context._replace(entries=jax.tree.map(lambda leaf: leaf.at[2:].set(10_000), context.entries))
    np.testing.assert_array_equal(logits(context), logits(stale))
