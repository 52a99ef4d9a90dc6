"""SEQUOIA's rule: draws without replacement, tested one by one against a shrinking residual."""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import sampling
from jaxspec.verify.rule import normalised, repeats


@dataclasses.dataclass(frozen=True)
class Sequoia:
    """Draws without replacement, tested one by one against a shrinking residual (SEQUOIA, Algorithm 2)."""

    def propose(self, key: jax.Array, draft_logits: jax.Array, count: int) -> jax.Array:
        return sampling.draw_without_replacement(key, draft_logits, count)

    def outcome(
        self,
        target_probs: jax.Array,
        draft_probs: jax.Array,
        children: jax.Array,
        active: jax.Array,
        support: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        # With R_1 = target, D_1 = draft, a rejection of s turns R into norm((R - D)+) and D into norm(D without s), or
        # into the uniform distribution of the unseen tokens once D is exhausted. Hence R is always proportional to
        # (target - lam * draft - mu)+ on the unseen tokens and 0 on the rejected ones: two scalars carry it.
        # The children's probabilities are kept apart, so that a child costs one sum over the vocabulary. Of the other
        # tokens either the draft proposes some, then mu stays 0, or it proposes none, and lam does not matter.
        is_first = ~repeats(children)
        target_of, draft_of = (jnp.where(is_first, probs[children], 0.0) for probs in (target_probs, draft_probs))
        target = target_probs.at[children].set(0.0)
        draft_mass = draft_probs.at[children].set(0.0).sum()
        possible = jnp.ones_like(draft_probs) if support is None else support.astype(jnp.float32)
        subtracted = jnp.where(draft_mass > 0, draft_probs, possible)

        def residual(lam: jax.Array, mu: jax.Array) -> jax.Array:
            return jnp.maximum(target - jnp.where(draft_mass > 0, lam, mu) * subtracted, 0.0)

        def residual_of(lam: jax.Array, mu: jax.Array, is_unseen: jax.Array) -> jax.Array:
            weights = jnp.maximum(target_of - lam * draft_of - mu * possible[children], 0.0)
            return jnp.where(is_unseen & is_first, weights, 0.0)

        def test(carry: tuple, place: jax.Array) -> tuple[tuple, jax.Array]:
            lam, mu, mass, is_unseen, num_unseen, reach = carry
            is_active = active[place]
            left = draft_mass + jnp.where(is_unseen, draft_of, 0.0).sum()
            is_exhausted = left <= 0
            scale = mass / jnp.where(is_exhausted, num_unseen, left)  # R - D is proportional to R' - scale * D'
            proposal = jnp.where(is_exhausted, 1.0, draft_of[place]) * scale
            weight = residual_of(lam, mu, is_unseen)[place]
            ratio = jnp.where(proposal > 0, weight / jnp.where(proposal > 0, proposal, 1.0), 0.0)
            accepts = jnp.where(is_active, jnp.minimum(ratio, 1.0), 0.0)
            lam = lam + jnp.where(is_active & ~is_exhausted, scale, 0.0)
            mu = mu + jnp.where(is_active & is_exhausted, scale, 0.0)
            is_unseen = is_unseen.at[place].set(~is_active)
            num_unseen = jnp.maximum(num_unseen - is_active.astype(jnp.float32), 1.0)
            mass = residual(lam, mu).sum() + residual_of(lam, mu, is_unseen).sum()
            return (lam, mu, mass, is_unseen, num_unseen, reach * (1.0 - accepts)), reach * accepts

        zero, one, count = jnp.float32(0.0), jnp.float32(1.0), children.shape[0]
        start = zero, zero, target_probs.sum(), jnp.ones(count, bool), possible.sum(), one
        (lam, mu, mass, is_unseen, _, _), accept = jax.lax.scan(test, start, jnp.arange(count))
        rest = residual(lam, mu).at[children].add(residual_of(lam, mu, is_unseen))
        return accept, normalised(rest, mass, target_probs)

    def draws(self, draft_probs: np.ndarray, count: int) -> Iterator[tuple[tuple[int, ...], float]]:
        def extend(drawn: tuple[int, ...], probability: float) -> Iterator[tuple[tuple[int, ...], float]]:
            if len(drawn) == count:
                yield drawn, probability
                return
            unseen = np.array([token not in drawn for token in range(len(draft_probs))])
            law = np.where(unseen, draft_probs, 0.0)
            law = law / law.sum() if law.sum() > 0 else unseen / unseen.sum()
            for token in np.flatnonzero(law):
                yield from extend((*drawn, int(token)), probability * float(law[token]))

        yield from extend((), 1.0)


SEQUOIA = Sequoia()
