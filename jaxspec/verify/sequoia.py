"""SEQUOIA's rule: draws without replacement, tested one by one against a shrinking residual."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import sampling
from jaxspec.verify.rule import check_position, normalised, repeats


class Standing(NamedTuple):
    """Where Algorithm 2 stands between two children: the residual R and the draft's rest D by scalars.

    Every rejection of a child s turns R into norm((R - D)+) and D into norm(D without s), or into the uniform
    distribution of the unseen tokens once D is exhausted. Hence R is always proportional to
    (target - lam * draft - mu * possible)+ on the unseen tokens and 0 on the rejected ones.

    Attributes:
        lam: `[]` float32, how many times the draft's distribution was subtracted from the target's.
        mu: `[]` float32, the same of 1 for each token that the draft can propose, once its distribution is exhausted.
        mass: `[]` float32, the sum of (target - lam * draft - mu * possible)+ over the unseen tokens.
        is_unseen: `[C]` bool, the child has not been rejected.
        num_unseen: `[]` float32, how many possible tokens have not been rejected, at least 1.
        reach: `[]` float32, the probability that all children so far are rejected.
    """

    lam: jax.Array
    mu: jax.Array
    mass: jax.Array
    is_unseen: jax.Array
    num_unseen: jax.Array
    reach: jax.Array


@dataclasses.dataclass(frozen=True)
class Sequoia:
    """Draws without replacement, tested one by one against a shrinking residual (SEQUOIA, Algorithm 2).

    With R the target's distribution and D the draft's, for each child s, drawn from D, in turn:

        1. accept s with the probability min(1, R(s) / D(s));
        2. if it is rejected, R becomes norm((R - D)+), by the D that s was drawn from;
        3. D(s) becomes 0, or, where nothing of D is left, D becomes 1 on the tokens not yet rejected; then norm(D).

    If none is accepted, the emitted token is drawn from R.
    """

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
        check_position(target_probs, draft_probs, children, active, support)
        # The children's probabilities are kept apart, so that a child costs one sum over the vocabulary. Of the other
        # tokens either the draft proposes some, then mu stays 0, or it proposes none, and lam does not matter.
        is_first = ~repeats(children)
        target_of, draft_of = (jnp.where(is_first, probs[children], 0.0) for probs in (target_probs, draft_probs))
        target = target_probs.at[children].set(0.0)
        draft_mass = draft_probs.at[children].set(0.0).sum()
        possible = jnp.ones_like(draft_probs) if support is None else support.astype(jnp.float32)
        subtracted = jnp.where(draft_mass > 0, draft_probs, possible)

        def elsewhere(lam: jax.Array, mu: jax.Array) -> jax.Array:
            """`[V]` (target - lam * draft - mu * possible)+, 0 on the children."""
            return jnp.maximum(target - jnp.where(draft_mass > 0, lam, mu) * subtracted, 0.0)

        def on_children(lam: jax.Array, mu: jax.Array, is_unseen: jax.Array) -> jax.Array:
            """`[C]` the same on the children, 0 on the rejected ones."""
            weights = jnp.maximum(target_of - lam * draft_of - mu * possible[children], 0.0)
            return jnp.where(is_unseen & is_first, weights, 0.0)

        def test(now: Standing, place: jax.Array) -> tuple[Standing, jax.Array]:
            is_active = active[place]
            left = draft_mass + jnp.where(now.is_unseen, draft_of, 0.0).sum()
            is_exhausted = left <= 0
            scale = now.mass / jnp.where(is_exhausted, now.num_unseen, left)  # R - D is as R' - scale * D', unnormed
            # 1. R(s) / D(s)
            proposal = jnp.where(is_exhausted, 1.0, draft_of[place]) * scale
            weight = on_children(now.lam, now.mu, now.is_unseen)[place]
            ratio = jnp.where(proposal > 0, weight / jnp.where(proposal > 0, proposal, 1.0), 0.0)
            accepts = jnp.where(is_active, jnp.minimum(ratio, 1.0), 0.0)
            # 2. (R - D)+
            lam = now.lam + jnp.where(is_active & ~is_exhausted, scale, 0.0)
            mu = now.mu + jnp.where(is_active & is_exhausted, scale, 0.0)
            # 3. D without s; the next test norms R by its mass and D by what is left of it
            is_unseen = now.is_unseen.at[place].set(~is_active)
            num_unseen = jnp.maximum(now.num_unseen - is_active.astype(jnp.float32), 1.0)
            mass = elsewhere(lam, mu).sum() + on_children(lam, mu, is_unseen).sum()
            return Standing(lam, mu, mass, is_unseen, num_unseen, now.reach * (1.0 - accepts)), now.reach * accepts

        count = children.shape[0]
        start = Standing(
            lam=jnp.float32(0.0),
            mu=jnp.float32(0.0),
            mass=target_probs.sum(),
            is_unseen=jnp.ones(count, bool),
            num_unseen=possible.sum(),
            reach=jnp.float32(1.0),
        )
        end, accept = jax.lax.scan(test, start, jnp.arange(count))
        rest = elsewhere(end.lam, end.mu).at[children].add(on_children(end.lam, end.mu, end.is_unseen))
        # By its own sum: where no draw leads, rounding alone decides about R: here perhaps another than in `test`.
        return accept, normalised(rest, rest.sum(), target_probs)

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
