"""Products in the form that their number of tokens makes the fastest: one value in every form, by blocks for few."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checks import PROMPTS, rows, run
from compiled import for_users, memory_of, text_of

from jaxspec import decode, networks, tree
from jaxspec.base import Context
from jaxspec.networks import Transformer, TransformerConfig
from jaxspec.networks.weights import products

NUM_OUT, NUM_IN = 3 * products.BLOCK, 24
WEIGHT = jax.random.normal(jax.random.key(0), (NUM_OUT, NUM_IN))
BLOCKS = products.blocks_of(WEIGHT)


def normal(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(1), shape)


def model_of(**changes) -> tuple[Transformer, dict]:
    """Keys and values have too few outputs for a block, everything else has whole ones."""
    config = TransformerConfig(
        128, 64, 192, 2, 4, 2, 16, **{"tie_word_embeddings": True, "initializer_range": 0.2, **changes}
    )
    model = Transformer(config)
    return model, model.init(jax.random.key(2))


def logits(model, params, n: int, batch: int = 1) -> jax.Array:
    """`[batch, n, V]` of rows of n tokens behind a context of 5."""
    entries = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(3), leaf.shape), model.empty(8))
    tokens = jax.random.randint(jax.random.key(4), (batch, n), 0, model.vocab_size)
    forward = jax.vmap(model.apply, (None, 0, None, None, None, None, None))
    mask = jnp.tril(jnp.ones((n, n), bool))
    context = Context(entries, jnp.int32(5))
    return jax.jit(lambda params: forward(params, tokens, 5 + jnp.arange(n), context, model.empty(n), 0, mask).logits)(
        params
    )


@pytest.mark.parametrize("blocks", [None, BLOCKS])
@pytest.mark.parametrize("n", [1, 2, 5, 6, 8, 9, 31, 32, 33])
def test_every_form_is_the_product(n, blocks):
    x = normal(n, NUM_IN)
    expected = np.asarray(x, np.float64) @ np.asarray(WEIGHT, np.float64).T
    np.testing.assert_allclose(jax.jit(products.multiply)(WEIGHT, blocks, x), expected, rtol=1e-4, atol=1e-4)


def test_a_block_holds_64_outputs():
    assert BLOCKS.shape == (3, NUM_IN, 64)
    np.testing.assert_array_equal(BLOCKS[2, :, 7], WEIGHT[2 * 64 + 7])
    assert not products.has_blocks(NUM_OUT + 1)


@pytest.mark.parametrize(
    ("batch", "n", "few"), [((), 5, True), ((), 6, False), ((5,), 1, True), ((2,), 2, True), ((2,), 3, False)]
)
def test_blocks_serve_few_tokens_of_all_rows_together(batch, n, few):
    """Blocks of another weight tell which form has run."""
    x = normal(*batch, n, NUM_IN)
    multiply = products.multiply
    for _ in batch:
        multiply = jax.vmap(multiply, (None, None, 0))
    expected = jnp.einsum("oi,...ni->...no", WEIGHT, x, precision="highest")
    np.testing.assert_allclose(multiply(WEIGHT, -BLOCKS, x), -expected if few else expected, rtol=1e-4, atol=1e-4)


def test_rows_under_two_vmaps_count_together():
    x = normal(2, 3, 1, NUM_IN)
    multiply = jax.vmap(jax.vmap(products.multiply, (None, None, 0)), (None, None, 0))
    expected = jnp.einsum("oi,abni->abno", WEIGHT, x, precision="highest")
    np.testing.assert_allclose(multiply(WEIGHT, -BLOCKS, x), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(multiply(WEIGHT, -BLOCKS, x[:, :2]), -expected[:, :2], rtol=1e-4, atol=1e-4)


def test_weights_that_differ_by_row_are_multiplied_row_by_row():
    weights, x = jnp.stack([WEIGHT, 2 * WEIGHT]), normal(2, NUM_IN)
    found = jax.vmap(products.multiply, (0, 0, None))(weights, jax.vmap(products.blocks_of)(weights), x)
    np.testing.assert_allclose(found, jnp.stack([x @ WEIGHT.T, 2 * x @ WEIGHT.T]), rtol=1e-4, atol=1e-4)


def test_the_compiled_product_reads_each_block_as_it_lies():
    """XLA would rather transpose blocks than the few tokens, and takes six times as long."""
    compiled = for_users(jax.jit(products.multiply).lower(WEIGHT, BLOCKS, normal(4, NUM_IN)))
    [dot] = [line for line in text_of(compiled).splitlines() if " dot(" in line]
    assert "lhs_contracting_dims={2}" in dot
    assert "rhs_contracting_dims={1}" in dot
    assert memory_of(compiled).temp_size_in_bytes < BLOCKS.nbytes


@pytest.mark.parametrize(("n", "width"), [(6, 8), (9, 16), (31, 32), (33, 33)])
def test_the_compiled_product_is_as_wide_as_a_kernel(n, width):
    compiled = for_users(jax.jit(products.multiply).lower(WEIGHT, BLOCKS, normal(n, NUM_IN)))
    [dot] = [line for line in text_of(compiled).splitlines() if " dot(" in line]
    assert f"f32[{NUM_OUT},{width}]" in dot


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("n", "batch"), [(1, 1), (4, 1), (7, 1), (2, 2), (2, 3), (12, 2)])
def test_a_network_with_blocks_is_the_same_network(n, batch, tied):
    model, params = model_of(tie_word_embeddings=tied)
    np.testing.assert_allclose(
        logits(*networks.with_blocks(model, params), n, batch), logits(model, params, n, batch), rtol=1e-4, atol=1e-4
    )


def test_a_network_reads_the_blocks_where_it_has_them():
    model, params = networks.with_blocks(*model_of())
    spoilt = {**params, "embed_tokens": {**params["embed_tokens"], "blocks": -params["embed_tokens"]["blocks"]}}
    np.testing.assert_allclose(logits(model, spoilt, 5), -logits(model, params, 5), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(logits(model, spoilt, 6), logits(model, params, 6))
    attention = params["layers"]["0"]["self_attn"]
    assert "blocks" in attention["q_proj"]
    assert "blocks" not in attention["k_proj"]


def test_adding_blocks_keeps_every_array_and_unstacking_drops_them():
    model, params = model_of()
    with_them, more = networks.with_blocks(model, params)
    plain = with_them.unstack(more)
    assert jax.tree.structure(plain) == jax.tree.structure(params)
    assert all(a is b for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(params), strict=True))
    again = with_them.add_blocks(more)
    assert all(a is b for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(more), strict=True))
    assert jax.tree.structure(with_them.init(jax.random.key(0))) == jax.tree.structure(more)
    assert jax.tree.structure(with_them.shapes()) == jax.tree.structure(params)


def test_saving_and_loading_with_blocks(tmp_path):
    model, params = networks.with_blocks(*model_of())
    networks.save(tmp_path, model, params)
    again, loaded = networks.load(tmp_path, blocks=True)
    assert again.blocks
    jax.tree.map(np.testing.assert_array_equal, loaded, params)


def test_an_early_exit_shares_blocks_and_a_reduced_vocabulary_has_its_own():
    model, params = networks.with_blocks(*model_of())
    early = networks.early_exit_params(model, params, 1)
    assert early["layers"]["0"] is params["layers"]["0"]
    trimmed = networks.early_exit(model, 1)
    assert isinstance(trimmed, Transformer)
    assert trimmed.blocks
    kept = list(range(1, 128, 2)) + list(range(0, 128, 2))
    reduced, fewer = networks.reduce_vocabulary(model, params, kept[:64])
    assert set(fewer["embed_tokens"]) == {"weight"}
    assert fewer["lm_head"]["blocks"].shape == (1, 64, 64)
    np.testing.assert_allclose(logits(reduced, fewer, 3), logits(model, params, 3)[..., 1::2], rtol=1e-4, atol=1e-4)


def test_blocks_need_columns_and_layers_apart():
    model, params = model_of()
    for field in ({"columns": False}, {"scan_layers": True}):
        with pytest.raises(ValueError, match=r"blocks=True with columns=.*Leave blocks out"):
            dataclasses.replace(model, blocks=True, **field)
        with pytest.raises(ValueError, match=r"blocks=True with columns="):
            networks.with_blocks(dataclasses.replace(model, **field), params)


def test_parameters_of_another_model_are_named():
    model, params = model_of()
    blocked, more = networks.with_blocks(model, params)
    lacking = r"blocks=True: they lack embed_tokens\.blocks \(and \d+ more\), and nothing should not.*model\.stack"
    with pytest.raises(ValueError, match=lacking):
        logits(blocked, params, 2)
    with pytest.raises(ValueError, match=r"blocks=False: they lack nothing, and embed_tokens\.blocks \(and"):
        logits(model, more, 2)


def test_greedy_tokens_with_blocks_are_those_without():
    model, params = model_of()
    target, more = networks.with_blocks(model, params)
    plain = run(decode.autoregressive(model), {"target": params}, PROMPTS, 16)
    decoder = decode.sequoia(target, target, tree.k_ary(2, 2))
    assert rows(run(decoder, {"target": more, "draft": more}, PROMPTS, 16)) == rows(plain)
