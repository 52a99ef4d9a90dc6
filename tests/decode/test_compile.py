"""What is compiled, how often, and what the programs contain."""

import dataclasses
import gc
import math
import re
from typing import Any

import checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import for_users, memory_of, num_programs
from programs import COMPILATIONS, VOCAB, arguments, cache_sizes, equations, program, vocabulary_work, wide_vocabulary
from toys import TREES, WideLM, pair

from jaxspec import decode, tree
from jaxspec.decode import loop
from jaxspec.decode.trees.decoder import TreeDecoder


def decoder_of(shape: str = "binary") -> TreeDecoder:
    """A decoder made anew, with models and tree of its own."""
    models: tuple[Any, Any] = pair("ctx")[:2]
    target, draft = (dataclasses.replace(model) for model in models)
    return decode.sequoia(target, draft, tree.TokenTree(TREES[shape].parents))


@pytest.mark.parametrize(
    "sampling", [decode.Sampling(), decode.Sampling(1.0, top_p=0.9, bias={3: 1.0})], ids=["T0", "T1"]
)
def test_values_compile_nothing(sampling):
    """Seeds, values of options, prompt lengths, limits and stop ids share one program of each kind and bucket."""
    target, draft, params = pair("ctx")
    checks.run(decode.sequoia(target, draft, TREES["binary"]), params, [[1, 2], [3]], 20, sampling=sampling)
    jax.random.key(99)  # making a key is a program too, which is none of ours
    sizes, count = cache_sizes(), len(COMPILATIONS)
    is_sampled = bool(sampling.temperature)
    for seed in range(5):
        if is_sampled:
            sampling = decode.Sampling([0.1 + seed, 0.9], top_p=0.3 + 0.1 * seed, bias={seed: -1.0, 2: 2.0})
        checks.run(
            decoder_of(),
            params,
            [[1] * (1 + 5 * seed), [2] * (10 - 2 * seed)],
            [3 + 4 * seed, 7],
            key=jax.random.key(seed),
            sampling=sampling,
            stop_ids=range(seed % 3),
        )
    assert cache_sizes() == sizes
    assert len(COMPILATIONS) == count


def test_compilations_are_seen():
    """The count of the test above can rise."""
    count = len(COMPILATIONS)
    jax.jit(lambda x: x * 3 + 17)(jnp.arange(23.0))
    assert len(COMPILATIONS) > count


def test_a_bucket_and_a_kind_compile_once():
    """Each further bucket and kind costs one program of rounds, and a stream one of its own."""
    decoder, params = decode.sequoia(*pair("ctx")[:2], tree.chain(2)), pair("ctx").params
    before = num_programs(loop._rounds)
    for expected, prompt, options in (
        (1, 5, {}),
        (1, 20, {}),
        (2, 90, {}),
        (2, 100, {}),
        (3, 5, {"sampling": decode.Sampling(1.0)}),
        (3, 9, {"sampling": decode.Sampling(0.5)}),
        (4, 5, {"logprobs": False}),
    ):
        checks.run(decoder, params, [[1] * prompt], 10, **options)
        assert num_programs(loop._rounds) - before == expected
    streamed = num_programs(loop._round)
    for seed in range(3):
        list(decode.stream(decoder, params, [[seed]], key=jax.random.key(seed), max_new_tokens=4 + seed))
    assert num_programs(loop._round) - streamed == 1


def test_equal_decoders_are_one():
    first, second = decoder_of(), decoder_of()
    assert first is not second
    assert first == second
    assert hash(first) == hash(second)
    assert first != decoder_of("star")


@pytest.mark.parametrize("sampling", [decode.Sampling(), decode.Sampling(1.0)], ids=["T0", "T1"])
def test_one_loop_without_the_host(sampling):
    """All rounds are one `while` of one program, without callbacks."""
    target, draft, params = pair("ctx")
    jaxpr = program(decode.sequoia(target, draft, TREES["binary"]), params, sampling=sampling).jaxpr
    assert [equation.primitive.name for equation in jaxpr.eqns].count("while") == 1
    names = {equation.primitive.name for equation in equations(jaxpr)}
    assert not [name for name in names if "callback" in name or "infeed" in name or "outfeed" in name]


def largest_constant(lowered) -> int:
    """Elements of the largest constant in a lowered program."""
    shapes = re.findall(r"stablehlo\.constant .*tensor<([0-9x]*)x?[a-z]+[0-9]+>$", lowered.as_text(), re.MULTILINE)
    assert shapes
    return max(math.prod(int(size) for size in shape.split("x") if size) for shape in shapes)


@pytest.mark.parametrize("sampling", [decode.Sampling(), decode.Sampling(1.0)], ids=["T0", "T1"])
def test_weights_are_arguments(sampling):
    """No table of the models is a constant of the program, nor any other large array."""
    decoder, params = wide_vocabulary()
    decoder, *traced = arguments(decoder, params, sampling=sampling)
    assert largest_constant(loop._rounds.lower(decoder, *traced)) < 1000
    table = np.arange(VOCAB * 2, dtype=np.float32)
    closure = jax.jit(lambda x: x + table).lower(jnp.float32(1))
    assert largest_constant(closure) == VOCAB * 2


def test_greedy_program_does_no_vocabulary_work_but_maxima():
    """No exponential, logarithm, noise, cumulative sum or sort of the vocabulary; a sum tells whether one is NaN."""
    decoder, params = wide_vocabulary()
    work = vocabulary_work(program(decoder, params).jaxpr)
    allowed = {
        "gather", "reduce_max", "reduce_sum", "top_k", "pad", "reshape", "broadcast_in_dim", "convert_element_type",
        "slice", "dynamic_slice", "squeeze", "while", "scan", "jit", "pjit", "cond", "transpose", "argmax",
        "custom_jvp_call",
    }  # fmt: skip
    assert "reduce_max" in work
    assert work <= allowed, work - allowed


def test_log_probabilities_are_the_only_exponentials_of_a_greedy_program():
    decoder, params = wide_vocabulary()
    assert "exp" in vocabulary_work(program(decoder, params, logprobs=True).jaxpr)


@pytest.mark.parametrize(
    "sampling", [decode.Sampling(1.0), decode.Sampling(1.0, top_k=5, top_p=0.9, min_p=0.1)], ids=["plain", "filters"]
)
def test_sampled_program_does_not_sort_the_vocabulary(sampling):
    """Filters find their thresholds by search, and are absent where they are not in use."""
    decoder, params = wide_vocabulary()
    work = vocabulary_work(program(decoder, params, sampling=sampling).jaxpr)
    assert "sort" not in work
    assert ("bitcast_convert_type" in work and "ge" in work) or sampling.top_p == 1


def test_plain_decoding_takes_no_draft():
    """The draft's parameters are no argument of the compiled program."""
    target, _, params = pair("ctx")
    decoder, *traced = arguments(decode.autoregressive(target), params)
    jaxpr = program(decoder, params).jaxpr
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tuple(traced))]
    read = {id(value) for equation in jaxpr.eqns for value in equation.invars}
    is_read = {name: id(value) in read for name, value in zip(names, jaxpr.invars, strict=True) if "'marks'" in name}
    assert is_read == {"[0]['draft']['marks']": False, "[0]['target']['marks']": True}


def test_states_are_donated():
    """The buffers of the state that goes in are gone (a donation that did not work would warn)."""
    target, draft, params = pair("ctx")
    decoder, params, state, counts = arguments(decode.sequoia(target, draft, TREES["binary"]), params)
    loop._rounds(decoder, params, state, counts)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((state, counts)))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(params))
    _, _, state, _ = arguments(decoder, params)
    loop._round(decoder, params, state)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("shape", ["plain", "chain", "binary"])
def test_caches_are_not_copied(shape):
    """The program's temporaries are far smaller than one cache of 512 slots of 4,096 floats."""
    model = WideLM(7)
    trees = {"chain": tree.chain(3), "binary": tree.k_ary(2, 2)}
    decoder = decode.autoregressive(model) if shape == "plain" else decode.sequoia(model, model, trees[shape])
    params = {"target": model.init(jax.random.key(0)), "draft": model.init(jax.random.key(1))}
    decoder, *traced = arguments(decoder, params, count=500, first_capacity=512)
    slots = traced[1].row.tokens.shape[1]
    cache = slots * model.width * 4
    memory = memory_of(for_users(loop._rounds.lower(decoder, *traced)))
    assert memory.alias_size_in_bytes > cache * len(decoder.models)
    assert memory.temp_size_in_bytes < cache / 4


def test_live_buffers_stay_constant():
    """From the second of 20 calls on, no array is left behind."""
    target, draft, params = pair("ctx")
    decoder, sizes = decode.sequoia(target, draft, TREES["binary"]), []
    gc.collect()
    gc.freeze()  # what is there already, which is a million objects, is not looked at 20 times
    for seed in range(20):
        checks.run(decoder, params, [[1, 2], [3]], 20, key=jax.random.key(seed))
        gc.collect()
        sizes.append(sum(leaf.nbytes for leaf in jax.live_arrays()))
    gc.unfreeze()
    assert len(set(sizes[1:])) == 1, sizes


@pytest.mark.parametrize("length", [2, 16])
def test_programs_do_not_grow_with_the_chain(length):
    """Levels of one shape are one scan, so equations are as many for 2 drafted tokens as for 16."""
    target, draft, params = pair("ctx")
    sizes = [
        sum(1 for _ in equations(program(decode.sequoia(target, draft, tree.chain(size)), params).jaxpr))
        for size in (4, 4 * length)
    ]
    assert sizes[1] < 1.2 * sizes[0]
