"""`MLP`: the small network of H-RAD, from the target's features to a class; its files are a safetensors and a JSON one.

The inputs' mean and scale are parameters like the weights, so that whoever has the parameters can classify raw
features. Training does not touch them.
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxspec import records
from jaxspec.base import Params
from jaxspec.networks.files.safetensors_file import read_safetensors
from jaxspec.networks.weights.products import PRECISION

HIDDEN_SIZES = (256, 64)
DROPOUT = 0.2
"""Share of the hidden values that training drops."""


@dataclasses.dataclass(frozen=True)
class MLP:
    """Linear layers with ReLU between them, over standardised inputs.

    Attributes:
        num_features: K, how many of the target's hidden states it reads.
        width: D, the target's width. An input is K features and an embedding, `(K + 1) * D` numbers; `hrad.inputs`.
        hidden_sizes: Of the layers between input and output.
        num_classes: Of the output.
    """

    num_features: int
    width: int
    hidden_sizes: tuple[int, ...] = HIDDEN_SIZES
    num_classes: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden_sizes", tuple(self.hidden_sizes))  # JSON has lists
        for name, value in dataclasses.asdict(self).items():
            if not all(isinstance(size, int) and size >= 1 for size in (value if name == "hidden_sizes" else [value])):
                raise ValueError(f"{name}={value!r}: a size is a whole number, 1 or more.")

    @property
    def input_size(self) -> int:
        """F."""
        return (self.num_features + 1) * self.width

    def shapes(self) -> Params:
        """The tree of parameters as `jax.ShapeDtypeStruct`."""
        return _split(self).shapes

    def init(self, key: jax.Array) -> Params:
        """Random parameters: normal weights of He's scale, zero biases, inputs taken as they are. Consumes the key."""
        layers = self.shapes()["layers"]
        keys = jax.random.split(key, len(layers))

        def draw(layer: Params, key: jax.Array) -> Params:
            scale = jnp.sqrt(2.0 / layer["weight"].shape[1])
            weight = scale * jax.random.normal(key, layer["weight"].shape)
            return {"weight": weight, "bias": jnp.zeros(layer["bias"].shape)}

        drawn = {name: draw(layer, key) for (name, layer), key in zip(layers.items(), keys, strict=True)}
        return {"mean": jnp.zeros(self.input_size), "scale": jnp.ones(self.input_size), "layers": drawn}

    def apply(self, params: Params, inputs: jax.Array) -> jax.Array:
        """`[…, num_classes]` float32 outputs from `[…, F]` inputs.

        Raises:
            ValueError: The inputs have another size.
        """
        return self._merged(params, inputs)(inputs, lambda layer, hidden: hidden)

    def apply_dropout(self, params: Params, inputs: jax.Array, key: jax.Array, rate: float = DROPOUT) -> jax.Array:
        """As `apply`, with hidden values dropped and the others scaled up, for training. The key is consumed."""
        keys = jax.random.split(key, len(self.hidden_sizes))

        def drop(layer: int, hidden: jax.Array) -> jax.Array:
            return jnp.where(jax.random.bernoulli(keys[layer], 1.0 - rate, hidden.shape), hidden / (1.0 - rate), 0.0)

        return self._merged(params, inputs)(inputs, drop)

    def _merged(self, params: Params, inputs: jax.Array) -> "_Network":
        if inputs.shape[-1] != self.input_size:
            raise ValueError(
                f"The network reads {self.input_size} numbers, {self.num_features} features of width {self.width} and "
                f"an embedding, but got {inputs.shape[-1]}: load the target with num_features={self.num_features}."
            )
        return nnx.merge(_split(self).graph, params)


class _Dense(nnx.Module):
    """`weight @ x + bias`."""

    def __init__(self, num_in: int, num_out: int):
        self.weight = nnx.Param(jnp.zeros((num_out, num_in)))
        self.bias = nnx.Param(jnp.zeros(num_out))

    def __call__(self, x: jax.Array) -> jax.Array:
        y = jnp.matmul(x, self.weight[...].T, precision=PRECISION)
        return y + jnp.broadcast_to(self.bias[...], y.shape)


class _Network(nnx.Module):
    """The layers, with what standardises their inputs."""

    def __init__(self, config: MLP):
        sizes = (config.input_size, *config.hidden_sizes, config.num_classes)
        self.mean = nnx.Param(jnp.zeros(config.input_size))
        self.scale = nnx.Param(jnp.ones(config.input_size))
        self.layers = nnx.Dict({str(i): _Dense(*pair) for i, pair in enumerate(itertools.pairwise(sizes))})

    def __call__(self, inputs: jax.Array, drop: Callable[[int, jax.Array], jax.Array]) -> jax.Array:
        x = inputs.astype(jnp.float32)
        x = (x - jnp.broadcast_to(self.mean[...], x.shape)) / jnp.broadcast_to(self.scale[...], x.shape)
        last = len(self.layers) - 1
        for index in range(last):
            x = drop(index, jax.nn.relu(self.layers[str(index)](x)))
        return self.layers[str(last)](x)


def save(file: Path, network: MLP, params: Params, record: Mapping[str, Any] | None = None) -> None:
    """Writes the parameters as safetensors, and beside them, as `.json`, the `config` and a record of what it is."""
    from safetensors.numpy import save_file

    arrays = {"mean": params["mean"], "scale": params["scale"]}
    arrays |= {f"layers.{i}.{name}": leaf for i, layer in params["layers"].items() for name, leaf in layer.items()}
    save_file({name: np.asarray(array, np.float32) for name, array in arrays.items()}, file)
    written = {"config": dataclasses.asdict(network), **(record or {})}
    records.write(file.with_suffix(".json"), written, indent=2)


def read_record(file: Path) -> tuple[MLP, dict[str, Any]]:
    """The network of a safetensors file, from the `.json` beside it, and all that stands there.

    Raises:
        ValueError: It is missing, no JSON object, or its `config` is no MLP's.
    """
    beside = file.with_suffix(".json")
    try:
        record = json.loads(beside.read_text(encoding="utf-8"))
        return MLP(**record["config"]), record
    except FileNotFoundError:
        raise ValueError(f"{beside} does not exist: it has the config of {file.name}.") from None
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{beside} has no config of an MLP: {error}") from error


def load_params(file: Path, network: MLP) -> Params:
    """The parameters that `save` wrote.

    Raises:
        ValueError: The file is missing or damaged, or has other tensors or shapes than the network.
    """
    tensors = read_safetensors(file)
    wanted = {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(network.shapes())
    }
    if wanted != (found := {name: tensor.shape for name, tensor in tensors.items()}):
        differ = sorted(name for name in wanted.keys() | found if wanted.get(name) != found.get(name))
        raise ValueError(f"{file} is not of this network: {', '.join(differ)} differ.")
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.asarray(tensors[jax.tree_util.keystr(path, simple=True, separator=".")].read()),
        network.shapes(),
    )


class _Split(NamedTuple):
    """The network without arrays: its structure, and the shapes of its parameters."""

    graph: nnx.GraphDef[Any]
    shapes: Params


@functools.lru_cache(maxsize=64)
def _split(config: MLP) -> _Split:
    graph, state = nnx.split(nnx.eval_shape(functools.partial(_Network, config)))
    return _Split(graph, nnx.to_pure_dict(state))
