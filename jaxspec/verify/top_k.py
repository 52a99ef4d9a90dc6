"""The draft's most probable tokens, matched against the target's own draw."""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import sampling
from jaxspec.verify.rule import check_position, normalised, repeats


@dataclasses.dataclass(frozen=True)
class TopK:
    """The draft's most probable tokens, accepted where the target's own draw is one of them.

    Exact for any children that were not drawn at random, whatever the target (a draw from it, matched against the
    children). At temperature 0, where the target is one-hot, it is the exact-match rule of greedy decoding.
    """

    def propose(self, key: jax.Array, draft_logits: jax.Array, count: int) -> jax.Array:
        del key  # nothing is drawn
        return sampling.top_k(draft_logits.astype(jnp.float32), count)[1]

    def outcome(
        self,
        target_probs: jax.Array,
        draft_probs: jax.Array,
        children: jax.Array,
        active: jax.Array,
        support: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        check_position(target_probs, draft_probs, children, active, support)
        accept = jnp.where(active & ~repeats(children), target_probs[children], 0.0)  # a repeated child counts once
        rest = target_probs.at[children].multiply(jnp.where(active, 0.0, 1.0))
        return accept, normalised(rest, rest.sum(), target_probs)

    def draws(self, draft_probs: np.ndarray, count: int) -> Iterator[tuple[tuple[int, ...], float]]:
        yield tuple(int(token) for token in np.argsort(-draft_probs, kind="stable")[:count]), 1.0


TOP_K = TopK()
