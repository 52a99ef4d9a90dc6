"""Toy models that make a decoding bug visible, against the `Model` protocol."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxspec.base import Context, Entries, Output, Params


@dataclasses.dataclass(frozen=True)
class _Toy:
    """A model whose entries are a token and its position, for each slot."""

    vocab_size: int
    max_length: int | None = None

    def empty(self, slots: int) -> Entries:
        return {"token": jnp.zeros(slots, jnp.int32), "position": jnp.zeros(slots, jnp.int32)}

    def embed(self, params: Params, token: jax.Array) -> jax.Array:
        del params
        return jax.nn.one_hot(token, self.vocab_size)

    def apply(self, params, tokens, positions, context: Context, block, slot, mask) -> Output:
        new = {"token": tokens, "position": positions}
        block = jax.tree.map(lambda old, fresh: jax.lax.dynamic_update_slice(old, fresh, (slot,)), block, new)
        logits = self.logits(params, tokens, positions, context, block, mask)
        return Output(logits, None, block)


@dataclasses.dataclass(frozen=True)
class TableLM(_Toy):
    """Logits that depend on the last token alone: `params["table"]` is `[V, V]`."""

    def init(self, key):
        return {"table": 2 * jax.random.normal(key, (self.vocab_size, self.vocab_size))}

    def logits(self, params, tokens, positions, context, block, mask):
        return params["table"][tokens]


@dataclasses.dataclass(frozen=True)
class PosLM(_Toy):
    """Logits that depend on the absolute position and the last token: a slip of a position flips the arg-max."""

    def init(self, key):
        first, second = jax.random.split(key)
        return {
            "position": 3 * jax.random.normal(first, (512, self.vocab_size)),
            "token": jax.random.normal(second, (self.vocab_size, self.vocab_size)),
        }

    def logits(self, params, tokens, positions, context, block, mask):
        return params["position"][positions] + params["token"][tokens]


@dataclasses.dataclass(frozen=True)
class CtxLM(_Toy):
    """Logits that hash every visible (position, token): a stale slot, a hole or a leak flips the arg-max.

    Attributes:
        noise: How far the logits are from those of the same model without noise (for use as a draft).
    """

    noise: float = 0.0

    def init(self, key):
        return {"seed": jax.random.bits(key, (), jnp.uint32)}

    def logits(self, params, tokens, positions, context, block, mask):
        def marks(entries):
            return _mix(entries["position"].astype(jnp.uint32) * 7919 + entries["token"].astype(jnp.uint32) + 1)

        committed = jnp.arange(context.entries["token"].shape[0]) < context.length
        past = jnp.where(committed, marks(context.entries), 0).sum(dtype=jnp.uint32)
        in_flight = jnp.where(mask, marks(block)[None], 0).sum(axis=1, dtype=jnp.uint32)
        digest = _mix(past + in_flight + params["seed"])

        def spread(salt):
            ids = jnp.arange(self.vocab_size, dtype=jnp.uint32)[None]
            return (_mix(digest[:, None] + 65537 * ids + salt) >> 8).astype(jnp.float32) / 2.0**23

        return 3 * (spread(jnp.uint32(1)) + self.noise * spread(jnp.uint32(2)))


@dataclasses.dataclass(frozen=True)
class ConstantLM(_Toy):
    """Logits that favour one token, whatever came before."""

    token: int = 0

    def init(self, key):
        return {}

    def logits(self, params, tokens, positions, context, block, mask):
        return jnp.broadcast_to(10 * jax.nn.one_hot(self.token, self.vocab_size), (tokens.shape[0], self.vocab_size))


@dataclasses.dataclass(frozen=True)
class RandomLM(_Toy):
    """Logits without any relation to a target: a fixed random vector for each position and token."""

    def init(self, key):
        return {"table": jax.random.normal(key, (64, self.vocab_size))}

    def logits(self, params, tokens, positions, context, block, mask):
        return params["table"][(31 * positions + tokens) % 64]


def _mix(x):
    """A 32-bit integer hash (the finaliser of MurmurHash3)."""
    x = x.astype(jnp.uint32)
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
