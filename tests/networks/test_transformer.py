"""The transformer against itself: by steps, as a tree, in a batch, and in all its forms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checkpoints import (
    FAMILIES,
    POSITIONS,
    TOKENS,
    apply,
    assert_close,
    build,
    causal,
    prefill,
)

from jaxspec import cache
from jaxspec.base import Context, Model
from jaxspec.networks import Transformer, from_hugging_face


def test_it_is_a_model():
    model, _ = build()
    assert isinstance(model, Model)
    assert model == build()[0]
    assert hash(model) == hash(build()[0])
    assert model.max_length == 1024


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_then_single_steps_equal_one_prefill(family):
    model, params = build(family)
    whole, _ = prefill(model, params, TOKENS)
    output, context = prefill(model, params, TOKENS[:-3])
    assert_close(output.logits, whole.logits[:-3])
    for index in range(len(TOKENS) - 3, len(TOKENS)):
        step = apply(
            model, params, TOKENS[index : index + 1], jnp.array([index]), context, model.empty(1), 0, causal(1)
        )
        assert_close(step.logits[0], whole.logits[index])
        context = cache.commit(model, context, step.block, jnp.int32(1))


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_a_tree_equals_each_of_its_paths_alone(family):
    """Through a window of 5 too, whose end falls into the prompt or into the tree."""
    model, params = build(family, num_features=2)
    _, context = prefill(model, params, TOKENS[:5])
    parents = [-1, 0, 0, 1, 1, 2]
    nodes = jnp.array([7, 11, 13, 17, 19, 23])
    paths = [[0]]
    for node in range(1, 6):
        paths.append([*paths[parents[node]], node])
    mask = np.zeros((6, 6), bool)
    for node, path in enumerate(paths):
        mask[node, path] = True
    depths = jnp.array([len(path) - 1 for path in paths])
    tree = apply(model, params, nodes, 5 + depths, context, model.empty(6), 0, jnp.asarray(mask))
    for node, path in enumerate(paths):
        n = len(path)
        alone = apply(model, params, nodes[jnp.array(path)], 5 + jnp.arange(n), context, model.empty(n), 0, causal(n))
        assert_close(tree.logits[node], alone.logits[-1])
        assert_close(tree.hidden[node], alone.hidden[-1])


@pytest.mark.parametrize(("family", "length"), [("qwen3", 0), ("qwen3", 5), ("gemma3", 5)])
def test_garbage_behind_the_length_and_in_unseen_slots_changes_nothing(family, length):
    model, params = build(family)
    tokens, positions = jnp.asarray(TOKENS[5:8]), length + jnp.arange(3)
    context = prefill(model, params, TOKENS[:5])[1]._replace(length=jnp.int32(length))
    mask = jnp.zeros((3, 6), bool).at[:, 1:4].set(causal(3))
    clean = apply(model, params, tokens, positions, context, model.empty(6), 1, mask)
    garbage, axes = 10000, cache.slot_axes(model)
    soiled = jax.tree.map(
        lambda leaf, axis: jnp.swapaxes(jnp.swapaxes(leaf, 0, axis).at[length:].set(garbage), 0, axis),
        context.entries,
        axes,
    )
    dirty_context = context._replace(entries=soiled)
    dirty_block = jax.tree.map(lambda leaf: leaf - garbage, model.empty(6))
    dirty = apply(model, params, tokens, positions, dirty_context, dirty_block, 1, mask)
    np.testing.assert_array_equal(dirty.logits, clean.logits)
    assert np.isfinite(clean.logits).all()
    jax.tree.map(
        lambda leaf, axis: np.testing.assert_array_equal(np.take(leaf, [0, 4, 5], axis), -garbage), dirty.block, axes
    )


def test_a_token_that_sees_nothing_stays_finite():
    model, params = build()
    context = Context(model.empty(4), jnp.int32(0))
    output = apply(model, params, jnp.array([1, 2]), jnp.arange(2), context, model.empty(2), 0, jnp.zeros((2, 2), bool))
    assert np.isfinite(output.logits).all()


def test_context_of_no_slots_equals_an_empty_context():
    model, params = build()
    run = functools.partial(apply, model, params, jnp.asarray(TOKENS), jnp.arange(12))
    outputs = [run(Context(model.empty(slots), jnp.int32(0)), model.empty(12), 0, causal(12)) for slots in (0, 8)]
    assert_close(outputs[0], outputs[1])


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("scan_layers", [False, True])
def test_rows_of_a_vmap_equal_solo_runs_and_weights_are_not_batched(columns, scan_layers):
    model, params = build("llama3", columns=columns, scan_layers=scan_layers, num_features=1)
    entries = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(1), (3, *leaf.shape)), model.empty(9))
    context = Context(entries, jnp.array([0, 4, 9], jnp.int32))
    tokens = jnp.asarray(TOKENS).reshape(3, 4)
    positions = context.length[:, None] + jnp.arange(4)[None, :]
    block = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), model.empty(4))

    def batched(params, tokens, positions, context, block):
        return jax.vmap(model.apply, (None, 0, 0, 0, 0, None, None))(
            params, tokens, positions, context, block, 0, causal(4)
        )

    together = jax.jit(batched)(params, tokens, positions, context, block)
    for row in range(3):
        context_row, block_row = jax.tree.map(lambda leaf, row=row: leaf[row], (context, block))
        alone = apply(model, params, tokens[row], positions[row], context_row, block_row, 0, causal(4))
        assert_close(jax.tree.map(lambda leaf, row=row: leaf[row], together), alone)
    text = str(jax.make_jaxpr(batched)(params, tokens, positions, context, block))
    assert "f32[3,40,32]" not in text
    assert "f32[3,32,40]" not in text


def test_a_traced_slot_equals_a_static_one():
    model, params = build()
    _, context = prefill(model, params, TOKENS[:5])
    block = jax.tree.map(lambda leaf: leaf + 0.5, model.empty(7))
    mask = jnp.zeros((2, 7), bool).at[:, :5].set(True).at[0, 4].set(False)
    arguments = (params, jnp.array([3, 4]), jnp.array([5, 6]), context, block)
    static = jax.jit(model.apply, static_argnums=5)(*arguments, 3, mask)
    traced = jax.jit(model.apply)(*arguments, jnp.int32(3), mask)
    assert_close(traced, static)


@pytest.mark.parametrize("family", ["qwen3", "smollm2", "llama-biases", "phi3", "smollm3", "gemma3"])
def test_all_forms_agree(family):
    def run(columns: bool, scan_layers: bool):
        model, params = build(family, columns=columns, scan_layers=scan_layers, num_features=3)
        entries = jax.tree.map(lambda leaf: leaf + jnp.asarray(0.25).astype(leaf.dtype), model.empty(8))
        mask = jnp.ones((4, 6), bool)
        output = apply(
            model, params, TOKENS[:4], POSITIONS[3:7], Context(entries, jnp.int32(5)), model.empty(6), 1, mask
        )
        if not scan_layers:
            layers, *positions = output.block if family == "gemma3" else (output.block,)
            stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
            output = output._replace(block=type(output.block)(stacked, *positions) if positions else stacked)
        return output

    first = run(True, False)
    assert first.hidden.shape == (4, 3, 32)
    for form in ((True, True), (False, False), (False, True)):
        assert_close(run(*form), first)


def test_features_are_the_last_hidden_states():
    outputs = []
    for num_features in (0, 1, 3):
        model, params = build(num_features=num_features)
        outputs.append(prefill(model, params, TOKENS)[0].hidden)
    assert outputs[0] is None
    assert_close(outputs[1], outputs[2][:, -1:])
    with pytest.raises(ValueError, match="num_features=4: a network of 2 layers has 3"):
        build(num_features=4)


def test_bfloat16_stays_in_bfloat16_and_near_float32():
    outputs = []
    for dtype in ("float32", "bfloat16"):
        model, params = build("smollm2", dtype=dtype, num_features=1)
        output, _ = prefill(model, params, TOKENS)
        assert {leaf.dtype.name for leaf in jax.tree.leaves(output)} == {dtype}
        outputs.append(np.asarray(output.logits, np.float32))
    np.testing.assert_allclose(*outputs, atol=0.3)


def test_random_parameters_have_the_shapes_and_scales_of_the_config():
    model = Transformer(from_hugging_face(FAMILIES["qwen2"]))
    params = model.init(jax.random.key(0))
    assert jax.tree.map(lambda leaf: leaf.shape, params) == jax.tree.map(lambda leaf: leaf.shape, model.shapes())
    assert float(params["layers"]["1"]["mlp"]["up_proj"]["weight"].std()) == pytest.approx(0.02, rel=0.1)
    assert (params["norm"]["weight"] == 1).all()
    assert (params["layers"]["0"]["self_attn"]["q_proj"]["bias"] == 0).all()
    np.testing.assert_array_equal(model.embed(params, jnp.int32(5)), params["embed_tokens"]["weight"][5])


def test_scanned_parameters_are_a_stack_and_back():
    model, params = build(scan_layers=True)
    assert params["layers"]["mlp"]["up_proj"]["weight"].shape == (2, 40, 32)
    jax.tree.map(np.testing.assert_array_equal, model.unstack(params), build()[1])
    assert model.empty(5).keys.shape == (2, 2, 12, 5)


def test_equal_models_trace_once():
    traces = []

    @functools.partial(jax.jit, static_argnums=0)
    def logits(model, params, tokens):
        traces.append(model)
        context = Context(model.empty(0), jnp.int32(0))
        return model.apply(params, tokens, jnp.arange(3), context, model.empty(3), 0, causal(3)).logits

    for _ in range(2):
        model, params = build()
        logits(model, params, jnp.array([1, 2, 3]))
    assert len(traces) == 1
