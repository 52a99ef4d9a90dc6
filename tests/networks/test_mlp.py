import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import hrad
from jaxspec.networks import MLP, mlp
from jaxspec.pairs import heads

NETWORK = MLP(num_features=2, width=5, hidden_sizes=(7, 4))


@pytest.fixture(scope="module")
def params():
    params = NETWORK.init(jax.random.key(0))
    keys = iter(jax.random.split(jax.random.key(1), 8))
    params["mean"] = jax.random.normal(next(keys), (15,))
    params["scale"] = jnp.exp(jax.random.normal(next(keys), (15,)))
    for layer in params["layers"].values():
        layer["bias"] = jax.random.normal(next(keys), layer["bias"].shape)
    return params


def twin(params, inputs, masks=(1.0, 1.0)):
    """The network in plain float64."""
    x = (np.asarray(inputs, np.float64) - np.asarray(params["mean"])) / np.asarray(params["scale"])
    for index in range(3):
        layer = params["layers"][str(index)]
        x = x @ np.asarray(layer["weight"], np.float64).T + np.asarray(layer["bias"])
        x = np.maximum(x, 0) * masks[index] if index < 2 else x
    return x


def test_it_equals_its_twin_for_one_input_and_for_many(params):
    inputs = jax.random.normal(jax.random.key(2), (6, 15))
    np.testing.assert_allclose(NETWORK.apply(params, inputs), twin(params, inputs), rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(NETWORK.apply(params, inputs[0]), twin(params, inputs[0]), rtol=2e-5, atol=1e-5)


def test_it_reads_what_hrad_gives_it(params):
    features, embedding = jnp.arange(10.0).reshape(2, 5), jnp.arange(5.0)
    assert hrad.inputs(features, embedding).shape == (NETWORK.input_size,)
    assert NETWORK.apply(params, hrad.inputs(features, embedding)).shape == (3,)
    with pytest.raises(ValueError, match="load the target with num_features=2"):
        NETWORK.apply(params, hrad.inputs(features[:1], embedding))


def test_dropout_drops_its_share_of_both_layers_and_keeps_the_mean(params):
    wide = MLP(1, 1, hidden_sizes=(2000, 50), num_classes=1)
    ones = jax.tree.map(jnp.ones_like, wide.init(jax.random.key(0)))
    ones["mean"] = jnp.zeros(2)
    ones["layers"] = {name: {**layer, "bias": 0 * layer["bias"]} for name, layer in ones["layers"].items()}
    inputs = jnp.full(2, 0.5)
    found = wide.apply_dropout(ones, inputs, jax.random.key(3), 0.2)
    kept = float(found[0]) / (2000 * 50) * 0.8**2  # what is kept is scaled up by 1 / 0.8, twice
    assert kept == pytest.approx(0.8**2, rel=0.1)
    assert found[0] != wide.apply_dropout(ones, inputs, jax.random.key(4), 0.2)[0]
    np.testing.assert_allclose(
        NETWORK.apply_dropout(params, jnp.ones(15), jax.random.key(3), 0.0), twin(params, [1] * 15), rtol=1e-4
    )


def test_init_has_hes_scale_and_takes_inputs_as_they_are():
    network = MLP(4, 100, hidden_sizes=(300, 100))
    params = network.init(jax.random.key(0))
    assert jax.tree.map(lambda leaf: leaf.shape, params) == jax.tree.map(lambda leaf: leaf.shape, network.shapes())
    for layer in params["layers"].values():
        weight = np.asarray(layer["weight"])
        assert weight.std() == pytest.approx(np.sqrt(2 / weight.shape[1]), rel=0.1)
        assert not np.asarray(layer["bias"]).any()
    assert not np.asarray(params["mean"]).any()
    assert (np.asarray(params["scale"]) == 1).all()


def test_it_is_hashable_by_value_and_refuses_sizes_that_are_none():
    sizes: Any = [7, 4]  # as JSON has them
    assert hash(MLP(2, 5, sizes)) == hash(NETWORK)
    assert MLP(2, 5, sizes) == NETWORK != dataclasses.replace(NETWORK, num_classes=4)
    for wrong in ({"num_features": 0}, {"hidden_sizes": (3, 0)}, {"width": 1.5}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            dataclasses.replace(NETWORK, **wrong)


def test_a_head_is_read_as_it_was_saved(params, tmp_path):
    record = {"temperature": 1.0, "length": 8, "epsilon": 0.3, "metrics": {"a": [1]}}
    heads.save(tmp_path / "head", NETWORK, params, record, "# card\n")
    assert {file.name for file in (tmp_path / "head").iterdir()} == {"hrad.safetensors", "hrad.json", "README.md"}
    head = heads.load(tmp_path / "head")
    assert (head.network, head.temperature, head.length, head.epsilon) == (NETWORK, 1.0, 8, 0.3)
    assert "params" not in vars(head)  # not read yet
    jax.tree.map(np.testing.assert_array_equal, head.params, params)
    assert head.record == record | {"config": json.loads(json.dumps(dataclasses.asdict(NETWORK)))}


def test_damaged_heads_are_refused(params, tmp_path):
    with pytest.raises(ValueError, match=r"hrad\.json does not exist"):
        heads.load(tmp_path)
    mlp.save(tmp_path / "hrad.safetensors", NETWORK, params)
    with pytest.raises(ValueError, match="temperature, length and epsilon"):
        heads.load(tmp_path)
    other = dataclasses.replace(NETWORK, width=6)
    with pytest.raises(ValueError, match=r"layers\.0\.weight, mean, scale differ"):
        mlp.load_params(tmp_path / "hrad.safetensors", other)
    (tmp_path / "hrad.json").write_text(json.dumps({"config": {"num_features": 2, "depth": 3}}))
    with pytest.raises(ValueError, match="no config of an MLP"):
        mlp.read_record(tmp_path / "hrad.safetensors")
    mlp.save(tmp_path / "hrad.safetensors", NETWORK, params, {"temperature": 0, "length": 8, "epsilon": 0.3})
    (tmp_path / "hrad.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no hrad\.safetensors"):
        heads.load(tmp_path)
