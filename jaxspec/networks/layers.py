"""A layer, and what stands before and behind the layers, as Flax nnx modules."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from jaxspec.networks.attention import Attention, KeysValues, Step, capped
from jaxspec.networks.form import Form
from jaxspec.networks.parts import Embedding, Linear, RMSNorm, product


class MLP(nnx.Module):
    """Feed-forward layer with a gate."""

    def __init__(self, form: Form):
        config = form.config
        self.config = config
        width, bias = config.intermediate_size, config.mlp_bias
        if config.fused_projections:
            self.gate_up_proj = Linear(config.hidden_size, 2 * width, bias, form)
        else:
            self.gate_proj = Linear(config.hidden_size, width, bias, form)
            self.up_proj = Linear(config.hidden_size, width, bias, form)
        self.down_proj = Linear(width, config.hidden_size, bias, form)

    def __call__(self, x: jax.Array) -> jax.Array:
        if self.config.fused_projections:
            gate, up = jnp.split(self.gate_up_proj(x), 2, axis=1)
        else:
            gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(gated(gate, up, self.config.activation))


def gated(gate: jax.Array, up: jax.Array, activation: str) -> jax.Array:
    """`[n, width]` activation of the gate times `up`: both activations are `gate / (1 + exp(-slope))`.

    For SiLU the slope is the gate, for the GELU that is approximated by a tangent 2 √(2/π) (gate + .044715 gate³).
    """
    wide_gate, wide_up = gate.astype(jnp.float32), up.astype(jnp.float32)
    slope = wide_gate
    if activation == "gelu_pytorch_tanh":
        slope = 2 * math.sqrt(2 / math.pi) * (wide_gate + 0.044715 * wide_gate**3)
    # The division comes last: XLA computes a division once, where it would repeat a product for every block.
    return (wide_gate * wide_up / (1 + jnp.exp(-slope))).astype(gate.dtype)


class Layer(nnx.Module):
    """Attention and feed-forward, each normalised in front, behind or both, and added.

    Norms have the names that checkpoints give them, which say where they stood in a Llama.
    """

    def __init__(self, form: Form):
        config = form.config
        self.config = config
        if config.pre_norms:
            self.input_layernorm = RMSNorm(config.hidden_size, form)
        self.self_attn = Attention(form)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, form)
        if config.post_norms and config.pre_norms:
            self.pre_feedforward_layernorm = RMSNorm(config.hidden_size, form)
        self.mlp = MLP(form)
        if config.post_norms:
            self.post_feedforward_layernorm = RMSNorm(config.hidden_size, form)

    def __call__(
        self, x: jax.Array, context: KeysValues, block: KeysValues, step: Step
    ) -> tuple[jax.Array, KeysValues]:
        normed = self.input_layernorm(x) if self.config.pre_norms else x
        attended, block = self.self_attn(normed, context, block, step)
        if self.config.post_norms:
            attended = self.post_attention_layernorm(attended)
        x = self._added(x, attended)
        fed = self.mlp(self._normed_for_mlp(x))
        if self.config.post_norms:
            fed = self.post_feedforward_layernorm(fed)
        return self._added(x, fed), block

    def _normed_for_mlp(self, x: jax.Array) -> jax.Array:
        if not self.config.pre_norms:
            return x
        return self.pre_feedforward_layernorm(x) if self.config.post_norms else self.post_attention_layernorm(x)

    def _added(self, x: jax.Array, more: jax.Array) -> jax.Array:
        multiplier = self.config.residual_multiplier
        return x + (more if multiplier == 1 else more * multiplier)


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
        return scaled(self.embed_tokens.weight[...][tokens], self.form.config.embedding_multiplier)

    def normalise(self, x: jax.Array) -> jax.Array:
        return self.norm(x)

    def logits(self, x: jax.Array) -> jax.Array:
        """`[n, V]` from normalised hidden states."""
        logits = product(self.embed_tokens if self.lm_head is None else self.lm_head, x, self.form)
        divisor = self.form.config.logit_divisor
        return capped(logits if divisor == 1 else logits / divisor, self.form.config.logit_cap)


def scaled(embeddings: jax.Array, multiplier: float) -> jax.Array:
    """Embeddings as they enter the first layer; the multiplier is rounded to their type, as in published networks."""
    return embeddings if multiplier == 1 else embeddings * jnp.asarray(multiplier, embeddings.dtype)
