"""The layers of a network, run one after another in the program or in a `lax.scan`, and what they share in a call."""

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxspec.base import Entries, Params
from jaxspec.networks.attention import KeysValues, Step
from jaxspec.networks.families import TransformerConfig
from jaxspec.networks.families.config import LayerKind
from jaxspec.networks.layers import Layer
from jaxspec.networks.rotation import rotation


class Placed(NamedTuple):
    """Entries of a network with windows: whether a token is inside one is told by its position.

    Attributes:
        layers: Keys and values.
        positions: `[slots]` int32.
    """

    layers: Entries
    positions: jax.Array


class Call(NamedTuple):
    """What the layers are called with, besides activations and entries.

    Attributes:
        config: The network's constants.
        max_length: Positions that it is used for; None: no limit.
        positions: `[n]` int32.
        length: `[]` int32 committed tokens.
        slot: Where the n tokens' entries begin in the block.
        mask: `[n, N]` bool.
    """

    config: TransformerConfig
    max_length: int | None
    positions: jax.Array
    length: jax.Array
    slot: jax.Array | int
    mask: jax.Array


def run(
    is_scanned: bool,
    graph: nnx.GraphDef[Layer],
    params: Params,
    x: jax.Array,
    context: Entries,
    block: Entries,
    call: Call,
) -> tuple[list[jax.Array], Entries]:
    """Hidden states in front of and behind each layer, and the written block."""
    every = _scan if is_scanned else _unroll
    if not isinstance(block, Placed):
        steps = {kind: _step(call, kind, None, None) for kind in dict.fromkeys(call.config.layer_kinds)}
        return every(graph, params, x, context, block, steps, call)
    placed = jax.lax.dynamic_update_slice(block.positions, call.positions.astype(jnp.int32), (call.slot,))
    distances = [call.positions[:, None] - positions[None] for positions in (context.positions, placed)]
    steps = {kind: _step(call, kind, *distances) for kind in dict.fromkeys(call.config.layer_kinds)}
    states, layers = every(graph, params, x, context.layers, block.layers, steps, call)
    return states, Placed(layers, placed)


def _step(call: Call, kind: LayerKind, to_context: jax.Array | None, to_block: jax.Array | None) -> Step:
    """What layers of a kind share; distances are `[n, S]` and `[n, N]` positions from each token to each slot."""
    cosines, sines = rotation(call.config, kind, call.max_length, call.positions)
    if kind.window is None or to_context is None or to_block is None:
        return Step(cosines, sines, call.length, call.slot, call.mask, None)
    mask, near = call.mask & (to_block < kind.window), to_context < kind.window
    return Step(cosines, sines, call.length, call.slot, mask, near)


def _unroll(
    graph: nnx.GraphDef[Layer],
    params: Params,
    x: jax.Array,
    context: Entries,
    block: Entries,
    steps: Mapping[LayerKind, Step],
    call: Call,
) -> tuple[list[jax.Array], Entries]:
    states, written = [x], []
    for index, kind in enumerate(call.config.layer_kinds):
        layer = nnx.merge(graph, params[str(index)])
        x, entries = layer(x, context[index], block[index], steps[kind])
        states.append(x)
        written.append(entries)
    return states, tuple(written)


def _scan(
    graph: nnx.GraphDef[Layer],
    params: Params,
    x: jax.Array,
    context: Entries,
    block: Entries,
    steps: Mapping[LayerKind, Step],
    call: Call,
) -> tuple[list[jax.Array], Entries]:
    """As `_unroll`. Entries are closed over and indexed: as scan inputs under `vmap` they would be transposed."""
    num_layers, n = context.keys.shape[0], call.mask.shape[0]
    of_layer = _by_layer(steps, call, context.keys.shape[-1])

    def body(
        x: jax.Array, layer_index_params: tuple[jax.Array, Params]
    ) -> tuple[jax.Array, tuple[jax.Array, KeysValues]]:
        index, layer_params = layer_index_params
        take: Callable[[jax.Array], jax.Array] = functools.partial(
            jax.lax.dynamic_index_in_dim, index=index, keepdims=False
        )
        layer = nnx.merge(graph, layer_params)
        x, entries = layer(x, jax.tree.map(take, context), jax.tree.map(take, block), of_layer(index))
        new = KeysValues(
            jax.lax.dynamic_slice_in_dim(entries.keys, call.slot, n, 2),
            jax.lax.dynamic_slice_in_dim(entries.values, call.slot, n, 1),
        )
        return x, (x, new)

    _, (states, new) = jax.lax.scan(body, x, (jnp.arange(num_layers), params))
    written = KeysValues(
        jax.lax.dynamic_update_slice_in_dim(block.keys, new.keys, call.slot, 3),
        jax.lax.dynamic_update_slice_in_dim(block.values, new.values, call.slot, 2),
    )
    return [x, *states], written


def _by_layer(steps: Mapping[LayerKind, Step], call: Call, slots: int) -> Callable[[jax.Array], Step]:
    """The step of the layer of a traced index: where kinds differ, taken from those of all kinds."""
    if len(steps) == 1:
        (only,) = steps.values()
        return lambda index: only
    kinds = list(steps)
    everything = jnp.ones((call.mask.shape[0], slots), bool)
    whole = [step if step.near is not None else step._replace(near=everything) for step in steps.values()]
    cosines, sines, mask, near = (
        jnp.stack([getattr(step, name) for step in whole]) for name in ("cosines", "sines", "mask", "near")
    )
    kind_of = jnp.array([kinds.index(kind) for kind in call.config.layer_kinds])

    def of_layer(index: jax.Array) -> Step:
        kind = kind_of[index]
        return Step(cosines[kind], sines[kind], call.length, call.slot, mask[kind], near[kind])

    return of_layer
