"""Pairs from folders: models that fit together, their vocabularies, memory and texts; a draft that exits early."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from folders import TEMPLATE, make_folder, make_tokenizer
from real import real_pair  # noqa: F401

from jaxspec import decode, networks, pairs, tree
from jaxspec.base import Context, Model
from jaxspec.networks import Copying, Transformer, TransformerConfig
from jaxspec.pairs import loading, reading
from jaxspec.profiles import Profile


def network(model: Model) -> Transformer:
    assert isinstance(model, Transformer)
    return model


def favour_padding(folder, rows: int, real: int):
    """Rewrites a folder's head so that padding ids have by far the highest logits."""
    model, params = networks.load(folder)
    assert model.vocab_size == rows
    # One feature of the final norm is made constant by a huge embedding, and only the padding's head reads it.
    params["embed_tokens"]["weight"] = params["embed_tokens"]["weight"].at[:, 0].set(100.0)
    params["lm_head"]["weight"] = params["lm_head"]["weight"].at[real:, 0].set(50.0)
    networks.save(folder, model, params)


def test_a_folder_is_a_pair(tmp_path, monkeypatch):
    folder = tmp_path / "tiny"
    target, params = make_folder(folder / "target", 61, make_tokenizer(61, TEMPLATE))
    make_folder(folder / "draft", 61, num_layers=1, seed=1)  # without a tokenizer
    (folder / "target" / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 0, 99]}))
    profile = Profile(acceptance=(0.5,), verify_ms={1: 2.0}, draft_ms={1: 1.0})
    profile.save(folder / "profile.json")
    entries = {"target": "target", "draft": "draft", "profiles": ["profile.json"], "description": "two toys"}
    (folder / "pair.json").write_text(json.dumps(entries))
    loaded = pairs.load(folder)
    assert (loaded.name, loaded.description, loaded.profile) == ("tiny", "two toys", profile)
    assert dataclasses.replace(network(loaded.target), blocks=False) == target
    assert network(loaded.draft).config.num_layers == 1
    assert loaded.stop_ids == (0, 3)  # 99 is no token
    jax.tree.map(np.testing.assert_array_equal, loaded.params["target"], params)
    shallow = pairs.load(str(folder), draft_layers=1)
    assert shallow.sources["draft"].startswith("the first 1 layers of")
    assert shallow.profile is None  # it was measured of another draft
    assert loaded.profile_at(0.7) == profile
    np.save(folder / "kept.npy", np.array([5, 0, 3]))
    (folder / "pair.json").write_text(json.dumps({**entries, "kept_ids": "kept.npy"}))
    reduced = pairs.load(folder)
    assert network(reduced.draft).kept_ids == (0, 3, 5)
    assert reduced.params["draft"]["lm_head"]["weight"].shape[0] == 3
    assert network(pairs.load(folder, dtype=jnp.bfloat16).target).dtype == "bfloat16"
    assert "Array" not in repr(loaded)
    monkeypatch.chdir(folder)
    assert pairs.load(".").name == "tiny"


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("{", "is not JSON"),
        ({"target": "a"}, "keys target and draft"),
        ({"target": "a", "draft": "b", "drafts": "c"}, r"unknown keys \['drafts'\]"),
        ({"target": "a", "draft": {"layers": 1}}, "draft is .*early_exit"),
        ({"target": 1, "draft": "b"}, "target is 1, but a string is needed"),
        ({"target": "absent", "draft": "b"}, "absent"),
    ],
)
def test_a_bad_pair_file_is_refused(tmp_path, entries, message):
    (tmp_path / "pair.json").write_text(entries if isinstance(entries, str) else json.dumps(entries))
    with pytest.raises(ValueError, match=message):
        pairs.load(tmp_path)


def test_vocabularies_of_different_sizes_are_refused_with_both(tmp_path):
    make_folder(tmp_path / "target", 61, make_tokenizer(61))
    make_folder(tmp_path / "draft", 50, make_tokenizer(50))
    with pytest.raises(ValueError, match=r"61 tokens in the target .*50 in the draft"):
        pairs.pair(tmp_path / "target", tmp_path / "draft")


def test_vocabularies_that_differ_are_refused_with_the_first_token(tmp_path):
    make_folder(tmp_path / "target", 61, make_tokenizer(61))
    make_folder(tmp_path / "draft", 61, make_tokenizer(61, swapped=True))
    with pytest.raises(ValueError, match=r"token 'w7' has id 7 in the target's and is id 9 there in the draft's"):
        pairs.pair(tmp_path / "target", tmp_path / "draft")


def test_a_model_with_fewer_rows_than_tokens_is_refused(tmp_path):
    make_folder(tmp_path / "target", 61, make_tokenizer(61))
    make_folder(tmp_path / "draft", 60, make_tokenizer(61))
    with pytest.raises(ValueError, match=r"draft .* has 60 embedding rows, but its tokenizer has ids up to 60"):
        pairs.pair(tmp_path / "target", tmp_path / "draft")


def test_a_model_without_tokenizer_is_refused(tmp_path):
    make_folder(tmp_path / "target", 61)
    with pytest.raises(ValueError, match="has no tokenizer that can be read"):
        pairs.pair(tmp_path / "target", tmp_path / "target")


@pytest.mark.parametrize(
    ("target_rows", "draft_rows", "temperature"), [(61, 64, 0.0), (64, 61, 1.0), (64, 67, [0.0, 1.0])]
)
def test_padding_rows_are_never_drafted_nor_emitted(tmp_path, target_rows, draft_rows, temperature):
    for name, rows, seed in (("target", target_rows, 0), ("draft", draft_rows, 1)):
        make_folder(tmp_path / name, rows, make_tokenizer(61), num_layers=1, seed=seed)
        if rows > 61:
            favour_padding(tmp_path / name, rows, 61)
            assert greedy_token(*networks.load(tmp_path / name)) >= 61
    loaded = pairs.pair(tmp_path / "target", tmp_path / "draft")
    assert (loaded.target.vocab_size, loaded.draft.vocab_size) == (61, 61)
    for name, model in (("target", loaded.target), ("draft", loaded.draft)):
        assert greedy_token(model, loaded.params[name]) < 61
    generation = decode.generate(
        decode.sequoia(loaded.target, loaded.draft, tree.k_ary(2, 2)),
        loaded.params,
        [[5, 6], [7, 8, 9]],
        key=jax.random.key(0),
        max_new_tokens=24,
        sampling=decode.Sampling(temperature=temperature),
    )
    assert generation.lengths.tolist() == [24, 24]
    assert 0 <= generation.tokens.min() <= generation.tokens.max() < 61


def greedy_token(model, params) -> int:
    return int(logits(model, params).argmax(-1)[-1])


def logits(model, params) -> jax.Array:
    """`[3, V]` over a fixed text."""
    tokens = jnp.array([5, 6, 7], jnp.int32)
    context = Context(model.empty(4), jnp.zeros((), jnp.int32))
    mask = jnp.tril(jnp.ones((3, 3), bool))
    return model.apply(params, tokens, jnp.arange(3), context, model.empty(3), 0, mask).logits


def test_models_have_blocks_where_they_pay(tmp_path, monkeypatch):
    make_folder(tmp_path / "model", 64, make_tokenizer(64))

    def has_blocks(**options):
        models = pairs.pair(tmp_path / "model", tmp_path / "model", **options)
        held = "blocks" in models.params["draft"]["lm_head"]
        assert network(models.target).blocks == network(models.draft).blocks == held
        return held

    assert has_blocks() == (jax.default_backend() == "cpu")
    assert has_blocks(blocks=True)
    assert not has_blocks(blocks=False)
    assert not has_blocks(dtype="bfloat16")
    assert not has_blocks(columns=False)
    monkeypatch.setattr(reading, "BLOCKS_LIMIT", 1000)
    assert not has_blocks()


def test_a_cpu_has_both_models_in_one_piece_of_memory(tmp_path, monkeypatch):
    make_folder(tmp_path / "model", 64, make_tokenizer(64))

    def span():
        """Bytes from the first parameter to the end of the last, and those of all."""
        leaves = jax.tree.leaves(pairs.pair(tmp_path / "model", tmp_path / "model").params)
        begins = [leaf.unsafe_buffer_pointer() for leaf in leaves]
        ends = [begin + leaf.nbytes for begin, leaf in zip(begins, leaves, strict=True)]
        return max(ends) - min(begins), sum(leaf.nbytes for leaf in leaves)

    if jax.default_backend() != "cpu":
        pytest.skip("parameters are packed on a CPU only")
    spanned, needed = span()
    assert needed <= spanned < 1.1 * needed
    monkeypatch.setattr(loading, "packed", lambda params: pytest.fail("packed beyond the limit"))
    monkeypatch.setattr(loading, "PACKED_LIMIT", needed - 1)
    span()


def test_early_exit_shares_the_arrays_and_is_a_model_with_those_layers(tmp_path):
    target, params = make_folder(tmp_path, 61, num_layers=3)
    model, kept = pairs.early_exit(target, 2), pairs.early_exit_params(target, params, 2)
    assert model == Transformer(dataclasses.replace(target.config, num_layers=2))
    assert list(kept["layers"]) == ["0", "1"]
    shared = {id(leaf) for leaf in jax.tree.leaves(params)}
    assert all(id(leaf) in shared for leaf in jax.tree.leaves(kept))
    networks.save(tmp_path / "exit", network(model), kept)
    np.testing.assert_array_equal(logits(model, kept), logits(*networks.load(tmp_path / "exit")))


def test_early_exit_of_scanned_layers_and_of_a_trimmed_model(tmp_path):
    target, params = make_folder(tmp_path, 61, num_layers=3)
    scanned = dataclasses.replace(target, scan_layers=True)
    expected = logits(pairs.early_exit(target, 1), pairs.early_exit_params(target, params, 1))
    stacked = scanned.stack(params)
    found = logits(pairs.early_exit(scanned, 1), pairs.early_exit_params(scanned, stacked, 1))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    trimmed = pairs.Trimmed(target, 50)
    assert pairs.early_exit(trimmed, 1) == pairs.Trimmed(network(pairs.early_exit(target, 1)), 50)
    found = logits(pairs.early_exit(trimmed, 1), pairs.early_exit_params(trimmed, params, 1))
    np.testing.assert_array_equal(found, expected[:, :50])


@pytest.mark.parametrize("layers", [0, 3, 4, -1])
def test_early_exit_keeps_some_layers_but_not_all(layers):
    config = TransformerConfig(61, 16, 32, 3, 2, 1, 8)
    with pytest.raises(ValueError, match=rf"layers={layers}: .* keeps 1 to 2"):
        pairs.early_exit(Transformer(config), layers)


def test_text_goes_through_the_chat_template_unless_raw(tmp_path):
    make_folder(tmp_path / "chat", 61, make_tokenizer(61, TEMPLATE))
    loaded = pairs.pair(tmp_path / "chat", tmp_path / "chat")
    assert loaded.encode("w1 w2") == [4, 1, 2, 3]
    assert loaded.encode([{"role": "user", "content": "w1"}, {"role": "user", "content": "w2"}]) == [4, 1, 4, 2, 3]
    assert loaded.encode("w1 w2", raw=True) == [1, 2]
    assert loaded.decode(np.array([1, 2, 0, -1])) == "w1 w2"
    with pytest.raises(ValueError, match="takes a text"):
        loaded.encode([{"role": "user", "content": "w1"}], raw=True)
    chat = [{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w5 w6"}]
    assert loaded.encode(chat) == [4, 1, 0, 5, 6]  # goes on: no turn is opened, and none closed
    with pytest.raises(ValueError, match=r"chat template of .* fails"):
        loaded.encode([])


def test_a_tokenizer_without_template_asks_for_raw(tmp_path):
    make_folder(tmp_path / "plain", 61, make_tokenizer(61))
    loaded = pairs.pair(tmp_path / "plain", tmp_path / "plain")
    with pytest.raises(ValueError, match=r"no chat template.*raw=True"):
        loaded.encode("w1")


def test_the_real_pair(real_pair):  # noqa: F811
    assert real_pair.target.config.num_layers == 30
    assert isinstance(real_pair.draft, Copying)
    assert network(real_pair.draft.model).config.num_layers == 3
    assert 2 in (network(real_pair.draft.model).kept_ids or ())
    assert real_pair.stop_ids == (2,)
    assert real_pair.profile_at(0.0).acceptance[0][0] > 0.35
    assert real_pair.hrad == real_pair.hrad_at(0.0).network
    first = pairs.load(draft_layers=2)
    assert first.params["draft"]["embed_tokens"]["weight"] is first.params["target"]["embed_tokens"]["weight"]
    assert real_pair.encode("Hello world", raw=True) == [19556, 905]
    system = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182]
    question = [2, 198, 1, 4093, 198, 1780, 314, 216, 34, 27, 34, 47, 2, 198, 1, 520, 9531, 198]
    assert real_pair.encode("What is 2+2?") == system + question
    assert real_pair.decode([*real_pair.encode("Héllo, wörld 🙂", raw=True), 2, -1]) == "Héllo, wörld 🙂"
