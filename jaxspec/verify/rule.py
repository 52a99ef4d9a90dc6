"""What a verification rule is: arithmetic at one position.

A rule proposes ordered children from a draft distribution and says, given the target's distribution, with which
probability each child is the accepted one and what is emitted when none is. The probabilities are unconditional: that
the earlier children were rejected is counted in. Drawing the outcome is one draw from `(accept, rest)`, so what the
tests enumerate is what runs.
"""

from collections.abc import Iterator
from typing import Protocol

import chex
import jax
import jax.numpy as jnp
import numpy as np

ONE_POSITION = "a rule reads one position; vmap it over several"


class Rule(Protocol):
    """A rule of one position; a frozen dataclass, so that decoders that use it hash by value."""

    def propose(self, key: jax.Array, draft_logits: jax.Array, count: int) -> jax.Array:
        """`[C]` int32 children in draw order, from `[V]` draft logits after temperature; the key is consumed."""
        ...

    def outcome(
        self,
        target_probs: jax.Array,
        draft_probs: jax.Array,
        children: jax.Array,
        active: jax.Array,
        support: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """What becomes of the children.

        Args:
            target_probs: `[V]` float32.
            draft_probs: `[V]` float32, the distribution that the children were drawn from (`sampling.distribution`).
            children: `[C]` int32 in draw order.
            active: `[C]` bool, true for the first few: only these are there. How many must not depend on which tokens
                were drawn, and none may be missing in between, since later draws depended on it.
            support: `[V]` bool, the tokens that the draft can propose at all; None: every token.

        Returns:
            `[C]` probability that child j is the accepted one, and the `[V]` distribution of the token that is emitted
            when none is (the probability of that is one minus the sum).
        """
        ...

    def draws(self, draft_probs: np.ndarray, count: int) -> Iterator[tuple[tuple[int, ...], float]]:
        """Every ordered proposal of `count` children with its probability."""
        ...


def draw_outcome(key: jax.Array, accept: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Which child is accepted: `[]` int32 index, and `[]` bool whether any is; the key is consumed.

    The test is strict, so that a uniform of exactly 0 accepts no child of probability 0.
    """
    chex.assert_rank(accept, 1, custom_message=ONE_POSITION)
    chex.assert_type(accept, float)
    below = jax.random.uniform(key) < jnp.cumsum(accept)
    is_hit = below & (accept > 0)
    return jnp.argmax(is_hit).astype(jnp.int32), is_hit.any()


def check_position(
    target_probs: jax.Array,
    draft_probs: jax.Array,
    children: jax.Array,
    active: jax.Array,
    support: jax.Array | None = None,
) -> None:
    """Checks the arguments of `Rule.outcome` while a program is traced; the program does not contain it.

    Raises:
        AssertionError: A shape or a type other than `Rule.outcome` says.
    """
    chex.assert_rank([target_probs, children], 1, custom_message=ONE_POSITION)
    over_vocabulary = [target_probs, draft_probs] if support is None else [target_probs, draft_probs, support]
    chex.assert_equal_shape(over_vocabulary, custom_message="target_probs, draft_probs and support are [V]")
    chex.assert_equal_shape([children, active], custom_message="children and active are [C]")
    types = [jnp.float32, jnp.float32, bool][: len(over_vocabulary)]
    chex.assert_type([*over_vocabulary, children, active], [*types, int, bool])


def repeats(children: jax.Array) -> jax.Array:
    """`[C]` bool, whether an earlier child is the same token: an active one is, since the active ones come first."""
    same = children[:, None] == children[None, :]
    return (same & jnp.tri(children.shape[0], k=-1, dtype=bool)).any(axis=1)


def normalised(weights: jax.Array, mass: jax.Array, fallback: jax.Array) -> jax.Array:
    """Weights over their mass. Without mass (rounding alone leads there) the target itself stands in."""
    return jnp.where(mass > 0, weights / jnp.where(mass > 0, mass, 1.0), fallback)
