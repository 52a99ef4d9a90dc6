"""The transformer against transformers+torch: recorded, and directly where torch is installed."""

import jax
import numpy as np
import pytest
from checkpoints import (
    COMMON,
    DATA,
    FAMILIES,
    ROPES,
    TOKENS,
    assert_close,
    layers_of,
    prefill,
    random_checkpoint,
    torch_reference,
)

from jaxspec.networks import Transformer, from_hugging_face, to_hugging_face
from jaxspec.networks.rotation import inverse_frequencies


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_equals_the_recorded_one_of_transformers(family):
    recorded = np.load(DATA / f"transformer_{family}.npz")
    assert_close(layers_of(family), dict(recorded))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_equals_that_of_torch(family):
    pytest.importorskip("torch")
    assert_close(layers_of(family), torch_reference(FAMILIES[family], random_checkpoint(FAMILIES[family])))


def test_smollm2_equals_recorded_logits():
    pairs = pytest.importorskip("jaxspec.pairs")
    from jaxspec.networks import load, load_tokenizer

    try:
        path = pairs.fetch("smollm2-135m")
    except pairs.Unavailable as reason:
        pytest.skip(str(reason))
    recorded = np.load(DATA / "smollm2_135m.npz")
    tokens = recorded["tokens"]
    assert load_tokenizer(path)(str(recorded["text"]))["input_ids"][: len(tokens)] == tokens.tolist()
    model, params = load(path)
    output, _ = prefill(model, params, tokens, slots=256)
    logits = np.asarray(output.logits)[recorded["positions"]]
    np.testing.assert_allclose(logits[:, recorded["vocabulary"]], recorded["logits"], atol=1e-3)
    np.testing.assert_array_equal(np.argsort(-logits, axis=-1)[:, :5], recorded["top"])


@pytest.mark.parametrize("name", ROPES)
def test_stretched_frequencies_equal_those_of_transformers(name):
    entries, length = ROPES[name]
    config = from_hugging_face({**COMMON, "model_type": "llama", **entries})
    scaling = config.rope_scaling
    assert scaling is not None
    found = np.append(inverse_frequencies(config, config.layer_kinds[0], length), scaling.attention_factor)
    np.testing.assert_allclose(found, np.load(DATA / "ropes.npz")[name], rtol=1e-5)
    assert from_hugging_face(to_hugging_face(config)) == config


def test_rotation_that_depends_on_the_length_is_fixed_by_the_length_a_network_is_used_for():
    """Or keys in a cache would be turned by other angles than the queries that read them."""
    config = from_hugging_face({**COMMON, "model_type": "llama", **ROPES["longrope"][0]})
    assert Transformer(config).max_length == 256
    assert Transformer(config, context_length=1024).max_length == 1024
    outputs = []
    for length in (None, 200, 1024):
        model = Transformer(config, context_length=length)
        params = model.init(jax.random.key(0))
        outputs.append(prefill(model, params, TOKENS)[0].logits)
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert np.abs(outputs[0] - outputs[2]).max() > 1e-6


def test_llama3_frequencies_equal_the_published_piecewise_rule():
    config = from_hugging_face(FAMILIES["llama3"])
    expected = []
    for pair in range(config.head_dim // 2):
        frequency = config.rope_theta ** (-2 * pair / config.head_dim)
        wavelength = 2 * np.pi / frequency
        if wavelength > 256 / 1.0:
            frequency /= 8
        elif wavelength >= 256 / 4.0:
            smooth = (256 / wavelength - 1.0) / (4.0 - 1.0)
            frequency = (1 - smooth) * frequency / 8 + smooth * frequency
        expected.append(frequency)
    np.testing.assert_allclose(inverse_frequencies(config, config.layer_kinds[0], None), expected, rtol=1e-6)
    assert len({round(ratio, 3) for ratio in config.rope_theta ** (-np.arange(0, 8, 2) / 8) / expected}) > 2
