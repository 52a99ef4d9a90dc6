"""Toy models that make a decoding bug visible, against the `Model` protocol."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import decode, plan, tree
from jaxspec.base import Context, Entries, Model, Output, Params
from jaxspec.decode.trees.decoder import TreeDecoder
from jaxspec.networks import Transformer, TransformerConfig


@dataclasses.dataclass(frozen=True)
class _Toy:
    """A model whose entries are one number for each slot: position · V + token."""

    vocab_size: int
    max_length: int | None = None

    def init(self, key: jax.Array) -> Params:
        del key  # without parameters of its own
        return {}

    def empty(self, slots: int) -> Entries:
        return jnp.zeros(slots, jnp.int32)

    def embed(self, params: Params, token: jax.Array) -> jax.Array:
        del params
        return jax.nn.one_hot(token, self.vocab_size)

    def logits(self, params, tokens, positions, context: Context, block, mask) -> jax.Array:
        """`[n, V]`, of the toy's own."""
        raise NotImplementedError

    def apply(self, params, tokens, positions, context: Context, block, slot, mask) -> Output:
        block = jax.lax.dynamic_update_slice(block, positions * self.vocab_size + tokens, (slot,))
        return Output(self.logits(params, tokens, positions, context, block, mask), None, block)


@dataclasses.dataclass(frozen=True)
class TableLM(_Toy):
    """Logits that depend on the last token alone: `params["table"]` is `[V, V]`."""

    def init(self, key):
        return {"table": 2 * jax.random.normal(key, (self.vocab_size, self.vocab_size))}

    def logits(self, params, tokens, positions, context, block, mask):
        return params["table"][tokens]


@dataclasses.dataclass(frozen=True)
class KeptTableLM(TableLM):
    """A table model with logits for some tokens only."""

    kept_ids: tuple[int, ...] = (0, 2, 3)

    def logits(self, params, tokens, positions, context, block, mask):
        return params["table"][tokens][:, np.array(self.kept_ids)]


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

    The hash is a sum of random numbers, one for each entry, which chooses a row of random logits: of all that a test's
    round contains a model's calls are the most, so they are of few operations.

    As a draft it has `params["noise"]`, how far its logits are from those of the same model without noise.
    """

    def init(self, key):
        first, second, third = jax.random.split(key, 3)
        shape = (2**12, self.vocab_size)
        return {
            "marks": jax.random.bits(first, (2**13,), jnp.uint32),
            "logits": jax.random.uniform(second, shape, maxval=6.0),
            "noises": jax.random.uniform(third, shape, maxval=6.0),
        }

    def logits(self, params, tokens, positions, context: Context, block, mask):
        def rows_of(table, numbers):
            return table.at[numbers & (len(table) - 1)].get(mode="promise_in_bounds")

        committed = jnp.arange(context.entries.shape[0]) < context.length
        past = jnp.where(committed, rows_of(params["marks"], context.entries), 0).sum(dtype=jnp.uint32)
        in_flight = jnp.where(mask, rows_of(params["marks"], block)[None], 0).sum(axis=1, dtype=jnp.uint32)
        row = (past + in_flight).astype(jnp.int32)
        exact = rows_of(params["logits"], row)
        return exact + params["noise"] * rows_of(params["noises"], row) if "noise" in params else exact


def noisy(params: Params, noise: float) -> Params:
    """Those of a `CtxLM` as a draft of the one with the parameters; 0: the same model."""
    return params | {"noise": jnp.float32(noise)}


@dataclasses.dataclass(frozen=True)
class TokenFeatLM(TableLM):
    """A `TableLM` whose features are the token itself, one-hot: `[n, 1, V]`."""

    def apply(self, params, tokens, positions, context: Context, block, slot, mask) -> Output:
        output = super().apply(params, tokens, positions, context, block, slot, mask)
        return output._replace(hidden=jax.nn.one_hot(tokens, self.vocab_size)[:, None])


@dataclasses.dataclass(frozen=True)
class FeatLM(CtxLM):
    """A `CtxLM` whose features say where they come from: `[n, 3, width]`, the row, the position and the token, one-hot.

    The row's number is the first token of its text, which is read from slot 0 of the context: prompts have 2 or more.

    Attributes:
        width: D, above every token and position.
    """

    width: int = 64

    def embed(self, params, token):
        del params
        return jax.nn.one_hot(token, self.width)

    def apply(self, params, tokens, positions, context: Context, block, slot, mask) -> Output:
        output = super().apply(params, tokens, positions, context, block, slot, mask)
        rows = jnp.full_like(tokens, context.entries[0])  # at position 0 the number is the token
        hidden = jax.nn.one_hot(jnp.stack([rows, positions, tokens], axis=1), self.width)
        return output._replace(hidden=hidden)


@dataclasses.dataclass(frozen=True)
class ConstantLM(_Toy):
    """Logits that favour one token, whatever came before."""

    token: int = 0

    def logits(self, params, tokens, positions, context, block, mask):
        return jnp.broadcast_to(10 * jax.nn.one_hot(self.token, self.vocab_size), (tokens.shape[0], self.vocab_size))


@dataclasses.dataclass(frozen=True)
class RandomLM(_Toy):
    """Logits without any relation to a target: a fixed random vector for each position and token."""

    def init(self, key):
        return {"table": jax.random.normal(key, (64, self.vocab_size))}

    def logits(self, params, tokens, positions, context, block, mask):
        return params["table"][(31 * positions + tokens) % 64]


@dataclasses.dataclass(frozen=True)
class WideLM(_Toy):
    """Logits from the sum of all visible entries, which are `[slots, width]` floats: a cache worth not copying."""

    width: int = 4096

    def init(self, key):
        first, second = jax.random.split(key)
        return {
            "in": jax.random.normal(first, (self.vocab_size, self.width)),
            "out": jax.random.normal(second, (self.width, self.vocab_size)),
        }

    def empty(self, slots: int) -> Entries:
        return jnp.zeros((slots, self.width))

    def apply(self, params, tokens, positions, context: Context, block, slot, mask) -> Output:
        block = jax.lax.dynamic_update_slice(block, params["in"][tokens], (slot, 0))
        committed = jnp.arange(context.entries.shape[0]) < context.length
        past = committed.astype(jnp.float32) @ context.entries
        return Output((past[None] + mask.astype(jnp.float32) @ block) @ params["out"], None, block)


@dataclasses.dataclass(frozen=True)
class Wrapped:
    """A model whose caller has a bug: `change(positions, mask)` is what it hands over."""

    model: Model
    change: Any

    def __getattr__(self, name):
        return getattr(self.model, name)

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    def init(self, key):
        return self.model.init(key)

    def empty(self, slots):
        return self.model.empty(slots)

    def embed(self, params, token):
        return self.model.embed(params, token)

    def apply(self, params, tokens, positions, context, block, slot, mask):
        positions, mask = self.change(positions, mask)
        return self.model.apply(params, tokens, positions, context, block, slot, mask)


class Pair(NamedTuple):
    """A target, a draft that agrees with it now and then, and the parameters of both.

    The draft of `PAIRS` is the same model, so that one program serves `equal`, by which it always agrees, as well.
    """

    target: Model
    draft: Model
    params: dict[str, Params]

    @property
    def equal(self) -> dict[str, Params]:
        target, draft = self.params["target"], self.params["draft"]
        return {"target": target, "draft": noisy(target, 0.0) if "noise" in draft else target}


@functools.cache
def pair(name: str) -> Pair:
    """One of `PAIRS` by its name."""
    return PAIRS[name]()


def decoder_of(name: str, shape: str) -> TreeDecoder:
    """One of `PAIRS` with one of `TREES`, by their names."""
    return decode.sequoia(pair(name).target, pair(name).draft, TREES[shape])


def _related(model: Model, noise: float) -> Pair:
    """A model, and as its draft the same with noise on its parameters."""
    params = model.init(jax.random.key(11))
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(12), len(leaves))
    noisy = [leaf + noise * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)]
    return Pair(model, model, {"target": params, "draft": jax.tree.unflatten(structure, noisy)})


def _hashed() -> Pair:
    params = CtxLM(11).init(jax.random.key(11))
    return Pair(CtxLM(11), CtxLM(11), {"target": params, "draft": noisy(params, 0.6)})


TINY = Transformer(TransformerConfig(61, 32, 40, 2, 4, 2, 8, initializer_range=0.3))
"""A random two-layer Llama with 4 query and 2 key-value heads and an odd vocabulary."""

PAIRS = {
    "ctx": _hashed,
    "pos": functools.partial(_related, PosLM(11), 1.2),
    "table": functools.partial(_related, TableLM(11), 1.2),
    "tiny": functools.partial(_related, TINY, 0.03),
}

TREES = {
    "chain1": tree.chain(1),
    "chain3": tree.chain(3),
    "chain5": tree.chain(5),
    "star": tree.star(2),
    "binary": tree.k_ary(2, 3),
    "ternary": tree.k_ary(3, 2),
    "comb": tree.comb(3, 3),
    "optimal": plan.optimal_tree([0.5, 0.2, 0.1], 12),
}
