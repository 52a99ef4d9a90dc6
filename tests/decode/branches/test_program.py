"""The compiled program of branch decoding: when it is compiled, and what it contains."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from branching import CTX, LOW, SETTINGS, ReadsFeatures, hashed
from checks import RAGGED, run
from compiled import for_users, memory_of
from programs import COMPILATIONS, VOCAB, arguments, cache_sizes, program, vocabulary_work
from toys import FeatLM, TableLM, WideLM

from jaxspec import hrad
from jaxspec.decode import loop
from jaxspec.decode.branches.decoder import BranchDecoder, branch_decoder
from jaxspec.sampling import Sampling


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_values_compile_nothing(temperature):
    """Seeds, prompts and limits share a program, and so do equal decoders."""
    sampling = Sampling(temperature)

    def made_anew():
        cut = hrad.HRad(ReadsFeatures(), 0.3)
        return branch_decoder(FeatLM(11), FeatLM(11), 4, 3, cut)

    assert made_anew() == SETTINGS["H-RAD"].decoder
    assert hash(made_anew()) == hash(SETTINGS["H-RAD"].decoder)
    other = dataclasses.replace(made_anew().drafter, cut=hrad.HRad(ReadsFeatures(), 0.4))
    assert made_anew() != BranchDecoder(other)
    decoder = SETTINGS["confidence"].decoder if temperature else made_anew()
    run(decoder, hashed(0.4), RAGGED, sampling=sampling)
    sizes, count = cache_sizes(), len(COMPILATIONS)
    for seed in range(3):
        prompts = [[seed] * (1 + seed), *RAGGED[1:]]
        decoder = BranchDecoder(dataclasses.replace(decoder.drafter, target=FeatLM(11), draft=FeatLM(11)))
        run(decoder, hashed(0.1 * seed), prompts, 5 + seed, key=jax.random.key(seed), sampling=sampling)
    assert cache_sizes() == sizes
    assert len(COMPILATIONS) == count


@pytest.mark.parametrize(("length", "max_branches"), [(1, 1), (4, 1), (4, 3), (3, 5)])
def test_slots_of_the_draft(length, max_branches):
    """The root, G - 1 pending tokens, and G tokens for each branch; no context."""
    decoder = branch_decoder(CTX, CTX, length, max_branches, LOW)
    _, params, state, _ = arguments(decoder, hashed(0.4))
    one = jax.tree.map(lambda leaf: leaf[0], state)
    branches = jax.eval_shape(decoder.drafter.draft_branches, params, one)
    for leaf in jax.tree.leaves(branches.block):
        assert leaf.shape == (length + length * max_branches,)
    for leaf in jax.tree.leaves(one.memory.entries):
        assert leaf.shape == (length,)
    assert branches.continuations.tokens.shape == (max_branches, length)


def test_contexts_are_not_copied():
    """The program's temporaries are the same at twice the capacity, and far smaller than a cache."""
    model = WideLM(7, width=2048)
    params = {"target": model.init(jax.random.key(0)), "draft": model.init(jax.random.key(1))}
    sizes = []
    for count in (200, 900):
        decoder, *traced = arguments(branch_decoder(model, model, 3, 3, LOW), params, count=count, first_capacity=count)
        slots = traced[1].row.tokens.shape[1]
        memory = memory_of(for_users(loop._rounds.lower(decoder, *traced)))
        assert memory.alias_size_in_bytes > 2 * slots * model.width * 4
        sizes.append((slots, memory.temp_size_in_bytes))
    (small, least), (large, most) = sizes
    assert (small, large) == (256, 1024)
    assert most - least < (large - small) * model.width * 4 / 50
    assert most < large * model.width * 4 / 4


@pytest.mark.parametrize("cut", [hrad.KEEP_ALL, LOW], ids=["pearl", "confidence"])
def test_greedy_program_does_no_vocabulary_work_but_maxima(cut):
    """No noise, sort or cumulative sum; exponentials for the confidence alone, which PEARL does without."""
    model = TableLM(VOCAB)
    params = {"target": {"table": jnp.zeros((VOCAB, VOCAB))}, "draft": {"table": jnp.zeros((VOCAB, VOCAB))}}
    branches = 1 if cut == hrad.KEEP_ALL else 3
    work = vocabulary_work(program(branch_decoder(model, model, 3, branches, cut), params).jaxpr)
    allowed = {
        "gather", "reduce_max", "reduce_sum", "top_k", "pad", "reshape", "broadcast_in_dim", "convert_element_type",
        "slice", "dynamic_slice", "squeeze", "while", "scan", "jit", "pjit", "cond", "transpose", "argmax",
        "custom_jvp_call",
    }  # fmt: skip
    softmax = {"exp", "sub"}
    assert "reduce_max" in work
    if cut == hrad.KEEP_ALL:
        assert work <= allowed, work - allowed
    else:
        assert softmax <= work
        assert work <= allowed | softmax | {"stop_gradient", "is_finite", "select_n"}, work - allowed
