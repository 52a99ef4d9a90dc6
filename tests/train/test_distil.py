import dataclasses
import json
import sys

import chex
import distil_draft
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from distil import network
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import CtxLM, TableLM

from jaxspec import networks, training
from jaxspec.networks import Transformer, TransformerConfig


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def draw_labels(rng, positions, vocab_size, count):
    probs = softmax(2 * rng.normal(size=(positions, vocab_size)))
    token_ids = np.argsort(-probs, axis=-1)[:, :count]
    return probs, training.Labels(
        jnp.asarray(token_ids, jnp.int32),
        jnp.asarray(np.log(np.take_along_axis(probs, token_ids, -1)), jnp.float32),
    )


def test_labels_are_the_most_probable_tokens_and_their_log_probabilities(key):
    logits = jax.random.normal(key, (3, 5, 17))
    labels = training.label(logits, 4)
    probs = softmax(np.asarray(logits, np.float64))
    np.testing.assert_array_equal(labels.token_ids, np.argsort(-probs, axis=-1)[..., :4])
    np.testing.assert_allclose(np.exp(labels.log_probs), -np.sort(-probs, axis=-1)[..., :4], rtol=1e-5)


def test_forward_sees_only_what_lies_in_front(key):
    model = CtxLM(11)
    params = model.init(key)
    tokens = jnp.asarray([[1, 2, 3, 4, 5], [1, 2, 9, 4, 5]], jnp.int32)
    logits = training.forward(model, params, tokens).logits
    chex.assert_shape(logits, (2, 5, 11))
    np.testing.assert_array_equal(logits[0, :2], logits[1, :2])
    assert not np.allclose(logits[0, 3], logits[1, 3])
    np.testing.assert_array_equal(training.forward(model, params, tokens[:, :3]).logits, logits[:, :3])


def loss_twin(logits, token_ids, log_probs, hard):
    """`distillation_loss` of one position, in plain float64."""
    draft = softmax(np.asarray(logits, np.float64))
    total, labelled, draft_labelled = 0.0, 0.0, 0.0
    for token, log_prob in zip(token_ids, np.asarray(log_probs, np.float64), strict=True):
        labelled += np.exp(log_prob)
        if token >= 0 and np.exp(log_prob) > 0:
            total -= np.exp(log_prob) * np.log(draft[token])
            draft_labelled += draft[token]
    total -= max(1 - labelled, 0) * np.log(max(1 - draft_labelled, 1e-6))
    first = -np.log(draft[token_ids[0]]) if token_ids[0] >= 0 and np.exp(log_probs[0]) > 0 else 0.0
    return (1 - hard) * total + hard * first


@pytest.mark.parametrize("hard", [0.0, 0.3, 1.0])
def test_loss_equals_its_twin(hard):
    rng = np.random.default_rng(0)
    _, labels = draw_labels(rng, 20, 13, 5)
    token_ids = np.where(rng.random((20, 5)) < 0.3, -1, np.asarray(labels.token_ids))
    log_probs = np.array(labels.log_probs)
    log_probs[0] = -np.inf  # no label at all
    log_probs[1] = [0.0, *[-np.inf] * 4]  # one token has it all
    logits = rng.normal(size=(20, 13)).astype(np.float32)
    found = training.distillation_loss(jnp.asarray(logits), training.Labels(token_ids, jnp.asarray(log_probs)), hard)
    expected = [loss_twin(*row, hard) for row in zip(logits, token_ids, log_probs, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


def test_loss_is_least_at_the_target_and_has_finite_gradients():
    rng = np.random.default_rng(1)
    probs, labels = draw_labels(rng, 8, 13, 13)
    logits = jnp.asarray(np.log(probs), jnp.float32)

    def loss(logits):
        return training.distillation_loss(logits, labels, 0.0).mean()

    np.testing.assert_allclose(jax.grad(loss)(logits), 0.0, atol=1e-5)
    bare = training.Labels(jnp.full((8, 3), -1), jnp.full((8, 3), -jnp.inf))
    gradient = jax.grad(lambda x: training.distillation_loss(x, bare, 0.5).mean())(logits)
    assert np.isfinite(gradient).all()


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_candidates_hold_what_is_to_gain_and_stand_for_all(count, seed):
    rng = np.random.default_rng(seed)
    gain = np.where(rng.random(40) < 0.3, rng.random(40), 0.0)
    chosen, log_weights = training.candidates(gain, count, rng)
    assert len(chosen) == len(set(chosen.tolist())) == count
    np.testing.assert_allclose(np.exp(log_weights).sum(), 40, rtol=1e-5)
    certain = chosen[log_weights == 0]
    wanted = np.argsort(-gain, kind="stable")[: min(int((gain > 0).sum()), count - -(-count // 4))]
    assert set(wanted) <= set(chosen)
    assert set(wanted) <= set(certain)


def test_sampled_candidates_estimate_the_whole_sum():
    rng = np.random.default_rng(0)
    gain, logits = np.where(np.arange(40) < 6, 1.0, 0.0), rng.normal(size=40)
    sums = []
    for _ in range(4000):
        chosen, log_weights = training.candidates(gain, 16, rng)
        sums.append(np.exp(logits[chosen] + log_weights).sum())
    np.testing.assert_allclose(np.mean(sums), np.exp(logits).sum(), rtol=0.02)


@given(st.lists(st.integers(0, 5), min_size=8, max_size=30), st.data())
@settings(max_examples=30, deadline=None)
def test_kept_tokens_hold_the_stops_and_the_most_frequent(counts, data):
    counts = np.array(counts)
    stops = data.draw(st.sets(st.integers(0, len(counts) - 1), min_size=1, max_size=4))
    size = data.draw(st.integers(len(stops), len(counts)))
    kept = training.kept_tokens(counts, size, stops)
    assert kept.dtype == np.int32
    assert len(kept) == size
    assert (np.diff(kept) > 0).all()
    assert stops <= set(kept.tolist())
    others, left = [t for t in kept if t not in stops], [t for t in range(len(counts)) if t not in kept]
    assert not others or not left or counts[others].min() >= counts[left].max()
    index = training.positions_of(kept, len(counts))
    np.testing.assert_array_equal(index[kept], np.arange(size))
    assert (np.delete(index, kept) == -1).all()


def test_too_few_kept_tokens_are_refused():
    with pytest.raises(ValueError, match="stop tokens"):
        training.kept_tokens(np.ones(10), 1, [3, 4])


def test_agreement_equals_its_twin():
    rng = np.random.default_rng(2)
    probs, labels = draw_labels(rng, 30, 12, 12)
    kept_ids = np.array([0, 2, 3, 5, 7, 8, 11], np.int32)
    logits = 2 * rng.normal(size=(30, 7)).astype(np.float32)
    found = training.agreement(jnp.asarray(logits), labels, jnp.asarray(kept_ids), 3, (0.6, 1.0))
    for row in range(30):
        order = kept_ids[np.argsort(-logits[row])][:3]
        np.testing.assert_array_equal(found.ranks[row], (order == probs[row].argmax()).astype(np.float32))
        for place, temperature in enumerate((0.6, 1.0)):
            draft = np.zeros(12)
            draft[kept_ids] = softmax(logits[row] / temperature)
            expected = np.minimum(draft, softmax(np.log(probs[row]) / temperature)).sum()
            np.testing.assert_allclose(found.overlap[row, place], expected, rtol=1e-4)


def test_schedule_rises_stays_and_falls():
    rate = training.schedule(2.0, steps=100, warm_up=10, decay=0.4)
    values = np.array([rate(step) for step in range(101)])
    assert 0 < values[0] < 0.21
    assert (np.diff(values[:10]) > 0).all()
    np.testing.assert_allclose(values[10:60], 2.0, rtol=1e-6)
    assert (np.diff(values[61:]) < 0).all()
    np.testing.assert_allclose(values[[80, 100]], [1.0, 0.0], atol=1e-5)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.integers(5, 40), st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_packing_holds_every_sequence_once(lengths, size, seed):
    packs = training.pack(np.array(lengths), size, seed)
    assert sorted(number for pack in packs for number in pack) == list(range(len(lengths)))
    assert all(sum(min(lengths[number], size) for number in pack) <= size for pack in packs)
    assert packs == training.pack(np.array(lengths), size, seed)


@pytest.fixture
def optax_promotion():
    """optax's bias correction raises a Python float to an int32 power, which strict promotion refuses."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def toy_training(key):
    """A table that learns another table's distributions: state, jitted step and batches."""
    model = TableLM(9)
    target, params = model.init(key), {"table": jnp.zeros((9, 9))}
    optimiser = optax.adam(0.1)

    def loss(params, batch):
        logits = training.forward(model, params, batch.tokens).logits.reshape(-1, 9)[batch.positions]
        return training.distillation_loss(logits[:, batch.candidates], batch.labels, 0.2)

    def batch(seed):
        tokens = np.random.default_rng(seed).integers(0, 9, (2, 8)).astype(np.int32)
        labels = training.label(training.forward(model, target, jnp.asarray(tokens)).logits.reshape(-1, 9), 4)
        return training.Batch(tokens, np.arange(16), labels, np.ones(16, np.float32), np.arange(9), np.zeros(9))

    state = training.TrainState(params, optimiser.init(params), jnp.int32(0))
    return state, jax.jit(training.train_step(loss, optimiser)), batch


@pytest.mark.usefixtures("optax_promotion")
def test_steps_lower_the_loss(key):
    state, step, batch = toy_training(key)
    losses = []
    for seed in range(60):
        state, loss = step(state, batch(seed))
        losses.append(float(loss))
    assert np.mean(losses[-5:]) < 0.75 * np.mean(losses[:5])
    assert int(state.step) == 60


@pytest.mark.usefixtures("optax_promotion")
def test_weightless_positions_teach_nothing(key):
    state, step, batch = toy_training(key)
    one = batch(0)
    tokens = np.asarray(one.tokens).ravel()
    weights = (tokens != tokens[0]).astype(np.float32)
    after, _ = step(state, one._replace(weights=weights))
    np.testing.assert_array_equal(after.params["table"][tokens[0]], 0.0)
    assert np.any(np.asarray(after.params["table"]) != 0)


@pytest.mark.usefixtures("optax_promotion")
def test_a_restored_state_goes_on_bit_for_bit(key, tmp_path):
    state, step, batch = toy_training(key)
    straight = state
    for seed in range(6):
        straight, _ = step(straight, batch(seed))
        if seed == 2:
            training.save(tmp_path / "state.safetensors", straight)
    resumed = training.restore(tmp_path / "state.safetensors", state)
    for seed in range(int(resumed.step), 6):
        resumed, _ = step(resumed, batch(seed))
    chex.assert_trees_all_equal(straight, resumed)
    with pytest.raises(ValueError, match="other settings"):
        training.restore(tmp_path / "state.safetensors", {"table": jnp.zeros(3)})


def test_a_pruned_draft_has_the_targets_own_layers():
    target = Transformer(TransformerConfig(64, 16, 32, 4, 2, 1, 8, tie_word_embeddings=True))
    params = target.init(jax.random.key(0))
    draft, kept = network.pruned(target, params, [1, 3])
    assert draft.config == dataclasses.replace(target.config, num_layers=2)
    chex.assert_trees_all_equal(kept["layers"], {"0": params["layers"]["1"], "1": params["layers"]["3"]})
    assert kept["embed_tokens"] is params["embed_tokens"]
    whole, same = network.pruned(target, params, [0, 1, 2, 3])
    tokens = jnp.arange(6)[None]
    logits = [training.forward(*one, tokens).logits for one in ((whole, same), (target, params))]
    np.testing.assert_array_equal(logits[0], logits[1])
    with pytest.raises(ValueError, match=r"--prune \[4\]: the target has the layers 0 to 3"):
        network.pruned(target, params, [4])
    untied = dataclasses.replace(target, config=dataclasses.replace(target.config, tie_word_embeddings=False))
    with pytest.raises(ValueError, match="has a head of its own"):
        network.pruned(untied, params, [0])


@pytest.mark.usefixtures("optax_promotion")
def test_the_script_distils_and_resumes(tmp_path, monkeypatch, capsys):
    target = Transformer(TransformerConfig(64, 16, 32, 1, 2, 1, 8, tie_word_embeddings=True))
    networks.save(tmp_path / "target", target, target.init(jax.random.key(0)))
    rng = np.random.default_rng(0)
    lengths = rng.integers(8, 20, 24)
    np.savez(
        tmp_path / "data.npz",
        tokens=rng.integers(0, 64, lengths.sum()).astype(np.int32),
        offsets=np.cumsum([0, *lengths]),
        prompt_lengths=np.full(24, 4, np.int32),
        temperatures=np.tile(np.asarray([0, 0.8], np.float32), 12),
    )

    def run(command):
        monkeypatch.setattr(sys, "argv", ["distil_draft.py", *command.format(tmp_path).split()])
        options = distil_draft.parse()
        options.run(options)
        return capsys.readouterr().out

    run("generate --target {0}/target --data {0}/data.npz --out {0}/made.npz --rows 6 --batch 4 --max-new-tokens 8")
    run("label --target {0}/target --data {0}/data.npz --out {0}/labels --count 8")
    run("label --target {0}/target --data {0}/made.npz --out {0}/made --count 8")
    data = "--data {0}/data.npz {0}/made.npz --labels {0}/labels {0}/made --held-out 0.4"
    made = np.load(tmp_path / "made.npz")
    first = np.load(tmp_path / "made/token_ids.npy")[:, 0]
    assert made["offsets"].shape == (7,)
    for start, end in zip(made["offsets"][:-1] + 4, made["offsets"][1:], strict=True):
        assert 1 <= end - start <= 8
        np.testing.assert_array_equal(made["tokens"][start:end], first[start - 1 : end - 1])  # greedy, as labelled
    train = (
        f"train --target {{0}}/target {data} --width 8 --layers 1 --heads 2 --kv-heads 1 --head-dim 4 --intermediate 8 "
        "--kept 32 --candidates 16 --labels-used 4 --batch 2 --length 32 --evaluation-length 32 --every 2 --warm-up 1 "
        "--optimiser adamw"
    )
    # The plateau lasts beyond step 2, so that stopping there and prolonging change nothing.
    run(f"{train} --out {{0}}/straight --steps 4 --decay 0")
    run(f"{train} --out {{0}}/halves --steps 2 --decay 0")
    run(f"{train} --out {{0}}/halves --steps 4 --decay 0")
    files = [(tmp_path / name / "checkpoint.safetensors").read_bytes() for name in ("straight", "halves")]
    assert files[0] == files[1]
    found = json.loads(run(f"evaluate --run {{0}}/halves {data} --lengths 32"))
    assert found["32"] == {
        key: json.loads((tmp_path / "halves/log.jsonl").read_text().splitlines()[-1])[key] for key in found["32"]
    }
    run("export --run {0}/halves --out {0}/draft --stop-ids 2 5")
    draft, params = networks.load(tmp_path / "draft")
    assert draft.vocab_size == 64
    assert params["embed_tokens"]["weight"].shape == (64, 8)
    assert {2} <= set(np.load(tmp_path / "draft/kept_ids.npy").tolist())
    assert json.loads((tmp_path / "draft/config.json").read_text())["eos_token_id"] == [2, 5]
