"""AdaEDL's compiled program, and the settings that are refused."""

import functools
import math

import checks
import jax
import jax.numpy as jnp
import pytest
from adapting import MODEL, POS, of_pair
from checks import run
from compiled import for_users, memory_of, num_programs
from programs import equations, program, vocabulary_work, wide_vocabulary
from toys import WideLM, pair

from jaxspec import tree
from jaxspec.decode import loop, stats
from jaxspec.decode.request import Asked, checked
from jaxspec.decode.trees.adaptive import AdaEDL, adaedl
from jaxspec.decode.trees.static import StaticTree


def test_greedy_program_does_no_vocabulary_work_but_maxima_and_entropy():
    """No noise, cumulative sum or sort of the vocabulary; no array of distributions."""
    wide, params = wide_vocabulary()
    assert isinstance(wide.drafter, StaticTree)
    work = vocabulary_work(program(adaedl(wide.target, wide.drafter.draft, 4), params).jaxpr)
    assert "exp" in work
    banned = {"sort", "cumsum", "random_bits", "threefry2x32", "log", "div", "scatter", "dynamic_update_slice"}
    assert not work & banned


def test_programs_do_not_grow_with_the_chain():
    sizes = [sum(1 for _ in equations(program(of_pair("ctx", size), pair("ctx").params).jaxpr)) for size in (4, 64)]
    assert sizes[0] == sizes[1]


def test_the_drafting_loop_copies_neither_caches_nor_carry():
    """Its condition is one for the batch: no step selects between an old and a new block, and caches stay in place."""
    model = WideLM(7)
    params = {"target": model.init(jax.random.key(0)), "draft": model.init(jax.random.key(1))}
    decoder = adaedl(model, model, 3)
    asked = Asked(max_new_tokens=500, logprobs=False, first_capacity=512)
    state = loop.begin(decoder, params, checked(decoder, params, [[1, 2]] * 3, checks.KEY, asked))
    counts = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), stats.zeros(decoder))
    cache = 3 * state.row.tokens.shape[1] * model.width * 4
    memory = memory_of(for_users(loop._rounds.lower(decoder, params, state, counts)))
    assert memory.alias_size_in_bytes > 2 * cache
    assert memory.temp_size_in_bytes < cache / 4
    traced = jax.make_jaxpr(functools.partial(loop._rounds, decoder))(params, state, counts)
    block = (3, 4, model.width)
    for equation in equations(traced.jaxpr):
        if equation.primitive.name == "select_n":
            assert equation.outvars[0].aval.shape != block


def test_equal_settings_are_one_program():
    again = of_pair("pos", threshold=0.6)
    assert again == POS
    assert hash(again) == hash(POS)
    assert again != of_pair("pos", threshold=0.61)
    run(POS, pair("pos").params, [[1]], 9)
    size = num_programs(loop._rounds)
    for seed in range(3):
        run(again, pair("pos").params, [[seed, 4]], 7 + seed, key=jax.random.key(seed))
    assert num_programs(loop._rounds) == size


def test_constructor_has_the_class_s_defaults():
    chain = tree.chain(4)
    assert adaedl(MODEL, MODEL, 4).drafter == AdaEDL(StaticTree(MODEL, MODEL, chain))
    assert (adaedl(MODEL, MODEL, 4).depth, adaedl(MODEL, MODEL, 4).max_emitted) == (4, 5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 0}, r"max_length=0.*at least 1.*autoregressive"),
        ({"threshold": math.nan}, r"threshold=nan.*-inf never stops"),
        ({"entropy_factor": -0.1}, r"entropy_factor=-0\.1.*at least 0.*0\.2"),
        ({"entropy_factor": math.inf}, r"entropy_factor=inf.*finite"),
        ({"step": math.nan}, r"step=nan.*at least 0.*0\.01"),
        ({"target_acceptance": 1.1}, r"target_acceptance=1\.1.*between 0 and 1.*0\.9"),
        ({"acceptance_memory": -1.0}, r"acceptance_memory=-1\.0.*between 0 and 1.*0\.5"),
        ({"threshold_memory": 2}, r"threshold_memory=2.*between 0 and 1.*0\.9"),
    ],
)
def test_values_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        adaedl(MODEL, MODEL, **{"max_length": 3, **settings})


def test_a_tree_is_refused():
    with pytest.raises(ValueError, match=r"siblings.*tree\.chain"):
        AdaEDL(StaticTree(MODEL, MODEL, tree.star(2)))
