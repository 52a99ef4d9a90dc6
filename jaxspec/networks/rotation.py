"""Rotary position embedding: pairs of features turned by an angle that grows with a token's position."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.networks.families import TransformerConfig, rope
from jaxspec.networks.families.config import LayerKind


def rotation(
    config: TransformerConfig, kind: LayerKind, length: int | None, positions: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines `[n, rope_size / 2]` float32 of each position's angles in layers of a kind.

    Args:
        config: The network's constants.
        kind: Of the layers.
        length: Positions that the network is used for; None: no limit.
        positions: `[n]` int32.
    """
    if kind.rope_theta is None:
        shape = (positions.shape[0], config.rope_size // 2)
        return jnp.ones(shape, jnp.float32), jnp.zeros(shape, jnp.float32)
    angles = positions.astype(jnp.float32)[:, None] * jnp.asarray(inverse_frequencies(config, kind, length))[None, :]
    cosines, sines = jnp.cos(angles), jnp.sin(angles)
    factor = 1.0 if kind.rope_scaling is None else kind.rope_scaling.attention_factor
    return (cosines, sines) if factor == 1 else (cosines * factor, sines * factor)


@functools.lru_cache(maxsize=64)
def inverse_frequencies(config: TransformerConfig, kind: LayerKind, length: int | None) -> np.ndarray:
    """`[rope_size / 2]` float32 radians a position turns each pair of features by, stretched as the kind says."""
    theta, size = kind.rope_theta, config.rope_size
    if theta is None:
        return np.zeros(size // 2, np.float32)
    if kind.rope_scaling is None:
        return rope.plain(theta, size).astype(np.float32)
    frequencies = kind.rope_scaling.scaled(theta, size, length).astype(np.float32)
    if frequencies.shape != (size // 2,) or not all(map(math.isfinite, frequencies)):
        raise ValueError(f"{kind.rope_scaling} does not give {size // 2} frequencies, one for each pair of features.")
    return frequencies


def rotate(x: jax.Array, cosines: jax.Array, sines: jax.Array) -> jax.Array:
    """`[heads, n, head_dim]` whose first features are turned by each token's angles, `[n, rope_size / 2]`.

    Feature i pairs with i + rope_size / 2; those behind `rope_size` stay.
    """
    size = 2 * cosines.shape[1]
    turned, rest = x[..., :size], x[..., size:]
    first, second = jnp.split(turned.astype(jnp.float32), 2, axis=-1)
    cosines, sines = cosines[None], sines[None]
    turned = jnp.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
    turned = turned.astype(x.dtype)
    return turned if size == x.shape[-1] else jnp.concatenate([turned, rest], axis=-1)
