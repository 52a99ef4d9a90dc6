"""The smallest modules: products with a weight, and norms.

Weights are stored `[out, in]`, as checkpoints have them.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxspec.networks.form import Form
from jaxspec.networks.weights import products
from jaxspec.networks.weights.products import PRECISION


class Linear(nnx.Module):
    """`x @ weight.T + bias`, `[n, out]` from `[n, in]`."""

    def __init__(self, num_in: int, num_out: int, bias: bool, form: Form):
        self.weight = nnx.Param(jnp.zeros((num_out, num_in), form.dtype))
        self.blocks = blocks_of(self.weight, form)
        self.bias = nnx.Param(jnp.zeros(num_out, form.dtype)) if bias else None
        self.form = form

    def __call__(self, x: jax.Array) -> jax.Array:
        y = product(self, x, self.form)
        return y if self.bias is None else y + self.bias[...][None]


class RMSNorm(nnx.Module):
    """Division by the root mean square over the last axis, the features, then a weight for each feature."""

    def __init__(self, num_features: int, form: Form):
        self.offset = form.config.norm_offset
        self.weight = nnx.Param(jnp.full(num_features, 1 - self.offset, form.dtype))
        self.epsilon = form.config.rms_norm_eps

    def __call__(self, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.epsilon)
        weight = jnp.expand_dims(self.weight[...], range(x.ndim - 1))
        if self.offset:
            return (wide * scale * (weight.astype(jnp.float32) + self.offset)).astype(x.dtype)
        return (wide * scale).astype(x.dtype) * weight


class Embedding(nnx.Module):
    """A table of V rows."""

    def __init__(self, form: Form):
        self.weight = nnx.Param(jnp.zeros((form.config.vocab_size, form.config.hidden_size), form.dtype))
        self.blocks = blocks_of(self.weight, form) if form.has_tied_head else None


def blocks_of(weight: nnx.Param[jax.Array], form: Form) -> nnx.Param[jax.Array] | None:
    """Where the form has blocks, those of a weight that is made of whole ones."""
    if not form.blocks or not products.has_blocks(weight.shape[0]):
        return None
    return nnx.Param(products.blocks_of(weight[...]))


def product(of: Linear | Embedding, x: jax.Array, form: Form) -> jax.Array:
    """The `[n, out]` product of `[n, in]` with a weight."""
    weight = of.weight[...]
    if form.blocks:
        return products.multiply(weight, None if of.blocks is None else of.blocks[...], x)
    return products.by_columns(weight, x) if form.columns else jnp.matmul(x, weight.T, precision=PRECISION)
