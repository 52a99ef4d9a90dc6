"""The parts of a network as Flax nnx modules, and the arithmetic of rotation and attention.

Weights are stored `[out, in]`, as checkpoints have them. A module holds no cache: a layer reads the context, writes the
block and attends to both.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxspec.networks.families import TransformerConfig
from jaxspec.networks.form import Form
from jaxspec.networks.weights import products
from jaxspec.networks.weights.products import PRECISION

# Score of a slot that may not be seen. Finite, so that a row that sees nothing (padding) stays finite too.
MASKED = float(np.finfo(np.float32).min)


class KeysValues(NamedTuple):
    """What one layer stores for its tokens.

    Attributes:
        keys: `[KV heads, head_dim, slots]`, rotated: as the scores' product reads them.
        values: `[KV heads, slots, head_dim]`.
    """

    keys: jax.Array
    values: jax.Array


class Step(NamedTuple):
    """What all layers share in one call.

    Attributes:
        cosines: `[n, head_dim / 2]` float32.
        sines: `[n, head_dim / 2]` float32.
        length: `[]` int32 committed tokens.
        slot: Where the n tokens' entries begin in the block.
        mask: `[n, N]` bool.
    """

    cosines: jax.Array
    sines: jax.Array
    length: jax.Array
    slot: jax.Array | int
    mask: jax.Array


class Linear(nnx.Module):
    """`x @ weight.T + bias`, `[n, out]` from `[n, in]`."""

    def __init__(self, num_in: int, num_out: int, bias: bool, form: Form):
        self.weight = nnx.Param(jnp.zeros((num_out, num_in), form.dtype))
        self.blocks = _blocks(self.weight, form)
        self.bias = nnx.Param(jnp.zeros(num_out, form.dtype)) if bias else None
        self.form = form

    def __call__(self, x: jax.Array) -> jax.Array:
        y = _product(self, x, self.form)
        return y if self.bias is None else y + self.bias[...][None]


class RMSNorm(nnx.Module):
    """Division by the root mean square over the last axis, the features, then a weight for each feature."""

    def __init__(self, num_features: int, form: Form):
        self.weight = nnx.Param(jnp.ones(num_features, form.dtype))
        self.epsilon = form.config.rms_norm_eps

    def __call__(self, x: jax.Array) -> jax.Array:
        wide = x.astype(jnp.float32)
        scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.epsilon)
        return (wide * scale).astype(x.dtype) * jnp.expand_dims(self.weight[...], range(x.ndim - 1))


class Attention(nnx.Module):
    """Grouped-query attention over a context that is read and a block that is written."""

    def __init__(self, form: Form):
        config = form.config
        self.head_dim = config.head_dim
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, queries, config.attention_bias, form)
        self.k_proj = Linear(config.hidden_size, keys, config.attention_bias, form)
        self.v_proj = Linear(config.hidden_size, keys, config.attention_bias, form)
        self.o_proj = Linear(queries, config.hidden_size, config.attention_output_bias, form)
        self.q_norm = RMSNorm(config.head_dim, form) if config.qk_norm else _unchanged
        self.k_norm = RMSNorm(config.head_dim, form) if config.qk_norm else _unchanged

    def __call__(
        self, x: jax.Array, context: KeysValues, block: KeysValues, step: Step
    ) -> tuple[jax.Array, KeysValues]:
        queries = rotate(self.q_norm(self._heads(self.q_proj(x))), step)
        keys = rotate(self.k_norm(self._heads(self.k_proj(x))), step)
        values = self._heads(self.v_proj(x))
        block = KeysValues(
            jax.lax.dynamic_update_slice(block.keys, keys.swapaxes(1, 2).astype(block.keys.dtype), (0, 0, step.slot)),
            jax.lax.dynamic_update_slice(block.values, values.astype(block.values.dtype), (0, step.slot, 0)),
        )
        return self.o_proj(self._merge(attend(queries, context, block, step))), block

    def _heads(self, x: jax.Array) -> jax.Array:
        """`[heads, n, head_dim]` from `[n, heads * head_dim]`."""
        return x.reshape(x.shape[0], -1, self.head_dim).swapaxes(0, 1)

    def _merge(self, x: jax.Array) -> jax.Array:
        """`[n, heads * head_dim]` from `[heads, n, head_dim]`."""
        return x.swapaxes(0, 1).reshape(x.shape[1], -1)


class MLP(nnx.Module):
    """Feed-forward layer with a SiLU gate."""

    def __init__(self, form: Form):
        config = form.config
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, config.mlp_bias, form)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, config.mlp_bias, form)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, config.mlp_bias, form)

    def __call__(self, x: jax.Array) -> jax.Array:
        gate, up = self.gate_proj(x).astype(jnp.float32), self.up_proj(x).astype(jnp.float32)
        # SiLU with its division last: XLA computes a division once, where it would repeat a product for every block.
        return self.down_proj((gate * up / (1 + jnp.exp(-gate))).astype(x.dtype))


class Layer(nnx.Module):
    """Attention and feed-forward, each normalised in front and added behind."""

    def __init__(self, form: Form):
        self.input_layernorm = RMSNorm(form.config.hidden_size, form)
        self.self_attn = Attention(form)
        self.post_attention_layernorm = RMSNorm(form.config.hidden_size, form)
        self.mlp = MLP(form)

    def __call__(
        self, x: jax.Array, context: KeysValues, block: KeysValues, step: Step
    ) -> tuple[jax.Array, KeysValues]:
        attended, block = self.self_attn(self.input_layernorm(x), context, block, step)
        x = x + attended
        return x + self.mlp(self.post_attention_layernorm(x)), block


class Embedding(nnx.Module):
    """A table of V rows."""

    def __init__(self, form: Form):
        self.weight = nnx.Param(jnp.zeros((form.config.vocab_size, form.config.hidden_size), form.dtype))
        self.blocks = _blocks(self.weight, form) if form.has_tied_head else None


class Ends(nnx.Module):
    """What stands before and behind the layers."""

    def __init__(self, form: Form):
        config = form.config
        self.form = form
        self.embed_tokens = Embedding(form)
        self.norm = RMSNorm(config.hidden_size, form)
        self.lm_head = None if form.has_tied_head else Linear(config.hidden_size, form.num_logits, False, form)

    def embed(self, tokens: jax.Array) -> jax.Array:
        """`[n, D]` embeddings of `[n]` tokens."""
        return self.embed_tokens.weight[...][tokens]

    def normalise(self, x: jax.Array) -> jax.Array:
        return self.norm(x)

    def logits(self, x: jax.Array) -> jax.Array:
        """`[n, V]` from normalised hidden states."""
        return _product(self.embed_tokens if self.lm_head is None else self.lm_head, x, self.form)


def _blocks(weight: nnx.Param[jax.Array], form: Form) -> nnx.Param[jax.Array] | None:
    """Where the form has blocks, those of a weight that is made of whole ones."""
    if not form.blocks or not products.has_blocks(weight.shape[0]):
        return None
    return nnx.Param(products.blocks_of(weight[...]))


def _product(of: Linear | Embedding, x: jax.Array, form: Form) -> jax.Array:
    """The `[n, out]` product of `[n, in]` with a weight."""
    weight = of.weight[...]
    if form.blocks:
        return products.multiply(weight, None if of.blocks is None else of.blocks[...], x)
    return products.by_columns(weight, x) if form.columns else jnp.matmul(x, weight.T, precision=PRECISION)


def attend(queries: jax.Array, context: KeysValues, block: KeysValues, step: Step) -> jax.Array:
    """`[H, n, head_dim]` of one softmax over the context's first `length` slots and the block under its mask.

    The segments keep their own score arrays and share one maximum and one denominator, so no cache is concatenated.

    Args:
        queries: `[H, n, head_dim]`, rotated; heads that share a key head are neighbours.
        context: Of S slots.
        block: Of N slots, the n tokens' own entries among them.
        step: Length and mask.
    """
    num_heads, n, head_dim = queries.shape
    num_kv_heads, _, slots = context.keys.shape
    grouped = queries.reshape(num_kv_heads, -1, head_dim)
    groups = num_heads // num_kv_heads

    def scores(keys: jax.Array) -> jax.Array:
        return jnp.einsum(
            "kqd,kds->kqs", grouped, keys, precision=PRECISION, preferred_element_type=jnp.float32
        ) / math.sqrt(head_dim)

    def mix(weights: jax.Array, values: jax.Array) -> jax.Array:
        return jnp.einsum(
            "kqs,ksd->kqd",
            weights.astype(values.dtype),
            values,
            precision=PRECISION,
            preferred_element_type=jnp.float32,
        )

    committed = jnp.arange(slots) < step.length
    in_context = jnp.where(committed[None, None, :], scores(context.keys), MASKED)
    in_block = jnp.where(jnp.tile(step.mask, (groups, 1))[None], scores(block.keys), MASKED)
    top = jnp.maximum(in_context.max(-1, initial=MASKED, keepdims=True), in_block.max(-1, keepdims=True))
    context_weights, block_weights = jnp.exp(in_context - top), jnp.exp(in_block - top)
    total = context_weights.sum(-1, keepdims=True) + block_weights.sum(-1, keepdims=True)
    mixed = (mix(context_weights, context.values) + mix(block_weights, block.values)) / total
    return mixed.reshape(num_heads, n, head_dim).astype(queries.dtype)


def rotation(config: TransformerConfig, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines `[n, head_dim / 2]` float32 of each position's angles."""
    angles = positions.astype(jnp.float32)[:, None] * jnp.asarray(inverse_frequencies(config))[None, :]
    return jnp.cos(angles), jnp.sin(angles)


@functools.lru_cache(maxsize=64)
def inverse_frequencies(config: TransformerConfig) -> np.ndarray:
    """`[head_dim / 2]` float32 radians a position turns each pair of features by, Llama 3's scaling applied."""
    frequencies = config.rope_theta ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
    scaling = config.rope_scaling
    if scaling is not None:
        # Turns within the old context: slow frequencies are divided by the factor, fast ones stay, a ramp between.
        turns = scaling.original_max_length * frequencies / (2 * np.pi)
        ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
        kept = np.clip(ramp, 0, 1)
        frequencies = frequencies * (kept + (1 - kept) / scaling.factor)
    return frequencies.astype(np.float32)


def rotate(x: jax.Array, step: Step) -> jax.Array:
    """`[heads, n, head_dim]` turned by each token's angles; feature i pairs with i + head_dim / 2."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cosines, sines = step.cosines[None], step.sines[None]
    turned = jnp.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)
    return turned.astype(x.dtype)


def _unchanged(x: jax.Array) -> jax.Array:
    return x
