"""Attention as a Flax nnx module: it reads the context, writes the block, and attends to both. It holds no cache."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxspec.networks.form import Form
from jaxspec.networks.parts import Linear, RMSNorm
from jaxspec.networks.rotation import rotate
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
    """What all layers of a kind share in one call.

    Attributes:
        cosines: `[n, rope_size / 2]` float32.
        sines: `[n, rope_size / 2]` float32.
        length: `[]` int32 committed tokens.
        slot: Where the n tokens' entries begin in the block.
        mask: `[n, N]` bool, the slots of the block that each token sees.
        near: `[n, S]` bool, the slots of the context that are inside each token's window; None: there is none.
    """

    cosines: jax.Array
    sines: jax.Array
    length: jax.Array
    slot: jax.Array | int
    mask: jax.Array
    near: jax.Array | None


class Attention(nnx.Module):
    """Grouped-query attention over a context that is read and a block that is written."""

    def __init__(self, form: Form):
        config = form.config
        self.config = config
        self.head_dim = config.head_dim
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.widths = (queries, keys, keys)
        if config.fused_projections:
            self.qkv_proj = Linear(config.hidden_size, sum(self.widths), config.attention_bias, form)
        else:
            self.q_proj = Linear(config.hidden_size, queries, config.attention_bias, form)
            self.k_proj = Linear(config.hidden_size, keys, config.attention_bias, form)
            self.v_proj = Linear(config.hidden_size, keys, config.attention_bias, form)
        self.o_proj = Linear(queries, config.hidden_size, config.attention_output_bias, form)
        if config.qk_norm:
            is_wide = config.qk_norm_is_wide
            self.q_norm = RMSNorm(queries if is_wide else config.head_dim, form)
            self.k_norm = RMSNorm(keys if is_wide else config.head_dim, form)

    def __call__(
        self, x: jax.Array, context: KeysValues, block: KeysValues, step: Step
    ) -> tuple[jax.Array, KeysValues]:
        queries, keys, values = self._projected(x)
        queries, keys = (rotate(heads, step.cosines, step.sines) for heads in (queries, keys))
        block = KeysValues(
            jax.lax.dynamic_update_slice(block.keys, keys.swapaxes(1, 2).astype(block.keys.dtype), (0, 0, step.slot)),
            jax.lax.dynamic_update_slice(block.values, values.astype(block.values.dtype), (0, step.slot, 0)),
        )
        divisor, cap = self.config.score_divisor or math.sqrt(self.head_dim), self.config.score_cap
        return self.o_proj(self._merge(attend(queries, context, block, step, divisor, cap))), block

    def _projected(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries, keys and values, each `[heads, n, head_dim]`, not yet turned."""
        if self.config.fused_projections:
            ends = np.cumsum(self.widths)[:-1].tolist()
            queries, keys, values = jnp.split(self.qkv_proj(x), ends, axis=1)
        else:
            queries, keys, values = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.config.qk_norm and self.config.qk_norm_is_wide:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        queries, keys = self._heads(queries), self._heads(keys)
        if self.config.qk_norm and not self.config.qk_norm_is_wide:
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        return queries, keys, self._heads(values)

    def _heads(self, x: jax.Array) -> jax.Array:
        """`[heads, n, head_dim]` from `[n, heads * head_dim]`."""
        return x.reshape(x.shape[0], -1, self.head_dim).swapaxes(0, 1)

    def _merge(self, x: jax.Array) -> jax.Array:
        """`[n, heads * head_dim]` from `[heads, n, head_dim]`."""
        return x.swapaxes(0, 1).reshape(x.shape[1], -1)


def attend(
    queries: jax.Array, context: KeysValues, block: KeysValues, step: Step, divisor: float, cap: float | None = None
) -> jax.Array:
    """`[H, n, head_dim]` of one softmax over the context's first `length` slots and the block under its mask.

    The segments keep their own score arrays and share one maximum and one denominator, so no cache is concatenated.

    Args:
        queries: `[H, n, head_dim]`, rotated; heads that share a key head are neighbours.
        context: Of S slots.
        block: Of N slots, the n tokens' own entries among them.
        step: Length, mask and window.
        divisor: Of the scores.
        cap: Scores are kept between it and minus it; None: as they are.
    """
    num_heads, n, head_dim = queries.shape
    num_kv_heads, _, slots = context.keys.shape
    grouped = queries.reshape(num_kv_heads, -1, head_dim)
    groups = num_heads // num_kv_heads

    def scores(keys: jax.Array) -> jax.Array:
        product = jnp.einsum("kqd,kds->kqs", grouped, keys, precision=PRECISION, preferred_element_type=jnp.float32)
        return capped(product / divisor, cap)

    def mix(weights: jax.Array, values: jax.Array) -> jax.Array:
        return jnp.einsum(
            "kqs,ksd->kqd",
            weights.astype(values.dtype),
            values,
            precision=PRECISION,
            preferred_element_type=jnp.float32,
        )

    seen = (jnp.arange(slots) < step.length)[None]
    if step.near is not None:
        seen = jnp.tile(seen & step.near, (groups, 1))
    in_context = jnp.where(seen[None], scores(context.keys), MASKED)
    in_block = jnp.where(jnp.tile(step.mask, (groups, 1))[None], scores(block.keys), MASKED)
    top = jnp.maximum(in_context.max(-1, initial=MASKED, keepdims=True), in_block.max(-1, keepdims=True))
    context_weights, block_weights = jnp.exp(in_context - top), jnp.exp(in_block - top)
    total = context_weights.sum(-1, keepdims=True) + block_weights.sum(-1, keepdims=True)
    mixed = (mix(context_weights, context.values) + mix(block_weights, block.values)) / total
    return mixed.reshape(num_heads, n, head_dim).astype(queries.dtype)


def capped(x: jax.Array, cap: float | None) -> jax.Array:
    """Values kept between `cap` and `-cap` by a hyperbolic tangent; None: as they are."""
    return x if cap is None else cap * jnp.tanh(x / cap)
