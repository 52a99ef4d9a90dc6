"""A draft that also copies: where the newest tokens occurred before, it expects what followed them there.

Summaries, translations, code edits and any text that repeats itself are full of earlier tokens, and a small draft is
bad at finding them. The wrapper finds the latest earlier place in the committed text that agrees with the longest run
of newest tokens, as prompt lookup does, and mixes the token behind it into the draft's distribution:

    p' = (1 - share) p + share [token = the one that followed]

with a share for each length of agreement. The result is a draft like any other: trees, temperatures and verification
know nothing of it, and its distribution is the one that is drawn from, so everything stays exact.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxspec.base import Context, Entries, Model, Output, Params


@dataclasses.dataclass(frozen=True)
class Copying:
    """A model whose distribution is mixed with what followed the newest tokens where they occurred before.

    Its logits are over all V tokens, whatever the inner model keeps: a rare name can be copied.

    Attributes:
        model: The inner draft.
        shares: `shares[k - 1]` for an agreement of k tokens, 0 to below 1; the last one for all longer ones too.
    """

    model: Model
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.shares or not all(0.0 <= share < 1.0 for share in self.shares):
            raise ValueError(
                f"shares={self.shares}: at least one is needed, each from 0 to below 1 (what is left is the draft's)."
            )

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    @property
    def max_length(self) -> int | None:
        return getattr(self.model, "max_length", None)

    def init(self, key: jax.Array) -> Params:
        """Random parameters of the inner model; the key is consumed."""
        return self.model.init(key)

    def empty(self, slots: int) -> Entries:
        """The inner model's entries, and each token with its position."""
        numbers = jnp.zeros(slots, jnp.int32)
        return {"model": self.model.empty(slots), "token": numbers, "position": numbers}

    def apply(
        self,
        params: Params,
        tokens: jax.Array,
        positions: jax.Array,
        context: Context,
        block: Entries,
        slot: jax.Array | int,
        mask: jax.Array,
    ) -> Output:
        """As `Model.apply`."""
        inner = Context(context.entries["model"], context.length)
        output = self.model.apply(params, tokens, positions, inner, block["model"], slot, mask)
        written = {
            "model": output.block,
            "token": jax.lax.dynamic_update_slice(block["token"], tokens, (slot,)),
            "position": jax.lax.dynamic_update_slice(block["position"], positions, (slot,)),
        }
        newest = self._newest(tokens, positions, context, written, mask)
        follower, agreement = _lookup(newest, context)
        inner_logits = output.logits.astype(jnp.float32)
        total = jax.nn.logsumexp(inner_logits, axis=1)
        logits = jax.vmap(self._mix)(self._over_vocabulary(inner_logits), total, follower, agreement)
        return Output(logits, output.hidden, written)

    def embed(self, params: Params, token: jax.Array) -> jax.Array:
        """`[D]` input embedding of one token."""
        return self.model.embed(params, token)

    def _newest(
        self, tokens: jax.Array, positions: jax.Array, context: Context, block: Entries, mask: jax.Array
    ) -> jax.Array:
        """`[K, n]` each token, the one before it, and so on: of the block as far as it is seen, else of the context.

        -1 where there is none.
        """
        newest, committed = [tokens], context.entries["token"]
        for back in range(1, len(self.shares)):
            wanted = positions - back
            is_it = mask & (block["position"][None] == wanted[:, None])
            found = jnp.where(is_it, block["token"][None], -1).max(axis=1)
            if committed.shape[0]:
                is_committed = (wanted >= 0) & (wanted < context.length) & (found < 0)
                found = jnp.where(is_committed, committed[jnp.maximum(wanted, 0)], found)
            newest.append(found)
        return jnp.stack(newest)

    def _over_vocabulary(self, logits: jax.Array) -> jax.Array:
        """`[n, V]` logits; minus infinity for what the inner model can't propose."""
        kept = getattr(self.model, "kept_ids", None)
        if kept is None:
            return logits
        everywhere = jnp.full((logits.shape[0], self.vocab_size), -jnp.inf)
        return everywhere.at[:, jnp.asarray(kept)].set(logits, indices_are_sorted=True, unique_indices=True)

    def _mix(self, logits: jax.Array, total: jax.Array, follower: jax.Array, agreement: jax.Array) -> jax.Array:
        """`[V]` logits of the mixture, from logits and their log-sum-exp.

        Only the follower's changes, as the rest keep their proportions.
        """
        odds = jnp.asarray([0.0, *(share / (1.0 - share) for share in self.shares)], jnp.float32)
        gain = jnp.log(odds[agreement]) + total
        return logits.at[follower].set(jnp.logaddexp(logits[follower], gain))


def _lookup(newest: jax.Array, context: Context) -> tuple[jax.Array, jax.Array]:
    """`[n]` int32 token that followed the newest ones where they occurred before, and `[n]` in how many they agree.

    Of the places that agree in the most tokens, the latest. 0 agree where not even the newest token occurred.
    """
    committed = context.entries["token"]
    num_slots = committed.shape[0]
    if num_slots < 2:
        nothing = jnp.zeros(newest.shape[1], jnp.int32)
        return nothing, nothing
    places = jnp.arange(num_slots)
    agrees = jnp.broadcast_to(places[None] + 1 < context.length, (newest.shape[1], num_slots))  # something must follow
    length = jnp.zeros(agrees.shape, jnp.int32)
    for back, tokens in enumerate(newest):
        earlier = jnp.where(places >= back, jnp.roll(committed, back), -2)
        agrees &= tokens[:, None] == earlier[None]
        length += agrees.astype(jnp.int32)
    best = jnp.argmax(length * num_slots + places[None], axis=1)  # with no agreement, any
    agreement = jnp.take_along_axis(length, best[:, None], axis=1)[:, 0]
    return committed[jnp.minimum(best + 1, num_slots - 1)], agreement
