"""Verification rules: arithmetic at one position, and their output law by enumeration.

A rule proposes ordered children from a draft distribution and says, given the target's distribution, with which
probability each child is the accepted one and what is emitted when none is. The probabilities are unconditional: that
the earlier children were rejected is counted in. Drawing the outcome is one draw from `(accept, rest)`, so what the
tests enumerate is what runs.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import sampling


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
        is_first = ~_repeats(children)
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
        return accept, _normalised(rest, mass, target_probs)

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
        del draft_probs, support
        accept = jnp.where(active & ~_repeats(children), target_probs[children], 0.0)  # a repeated child counts once
        rest = target_probs.at[children].multiply(jnp.where(active, 0.0, 1.0))
        return accept, _normalised(rest, rest.sum(), target_probs)

    def draws(self, draft_probs: np.ndarray, count: int) -> Iterator[tuple[tuple[int, ...], float]]:
        yield tuple(int(token) for token in np.argsort(-draft_probs, kind="stable")[:count]), 1.0


SEQUOIA = Sequoia()
TOP_K = TopK()
RULES: Mapping[str, Rule] = {"sequoia": SEQUOIA, "topk": TOP_K}


def draw_outcome(key: jax.Array, accept: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Which child is accepted: `[]` int32 index, and `[]` bool whether any is; the key is consumed.

    The test is strict, so that a uniform of exactly 0 accepts no child of probability 0.
    """
    below = jax.random.uniform(key) < jnp.cumsum(accept)
    is_hit = below & (accept > 0)
    return jnp.argmax(is_hit).astype(jnp.int32), is_hit.any()


def output_distribution(rule: Rule | str, target_probs: object, draft_probs: object, count: int) -> np.ndarray:
    """`[V]` law of the token that one position emits, by enumeration of every proposal; for small V.

    Args:
        rule: One of `RULES`, or its name.
        target_probs: `[V]`.
        draft_probs: `[V]`.
        count: C, the number of children.

    Raises:
        ValueError: Something that is not a pair of distributions over the same tokens, or a count out of range.
    """
    chosen = RULES[rule] if isinstance(rule, str) else rule
    target, draft = _distribution("target_probs", target_probs), _distribution("draft_probs", draft_probs)
    if target.shape != draft.shape:
        raise ValueError(f"target_probs {target.shape} and draft_probs {draft.shape} are over different vocabularies.")
    if not 1 <= count <= len(target):
        raise ValueError(f"count={count}: there are between 1 and {len(target)} different children.")
    proposals = list(chosen.draws(draft, count))
    children = jnp.asarray([tokens for tokens, _ in proposals], jnp.int32)
    accept, residual = _outcomes(chosen, jnp.asarray(target, jnp.float32), jnp.asarray(draft, jnp.float32), children)
    law = np.zeros(len(target))
    for (tokens, probability), accepts, rest in zip(
        proposals, np.asarray(accept, float), np.asarray(residual, float), strict=True
    ):
        np.add.at(law, list(tokens), probability * accepts)
        law += probability * max(0.0, 1.0 - accepts.sum()) * rest
    return law


@functools.partial(jax.jit, static_argnames="rule")
def _outcomes(rule: Rule, target: jax.Array, draft: jax.Array, children: jax.Array) -> tuple[jax.Array, jax.Array]:
    active = jnp.ones(children.shape[1], bool)
    return jax.vmap(lambda tokens: rule.outcome(target, draft, tokens, active))(children)


def _repeats(children: jax.Array) -> jax.Array:
    """`[C]` bool, whether an earlier child is the same token: an active one is, since the active ones come first."""
    same = children[:, None] == children[None, :]
    return (same & jnp.tri(children.shape[0], k=-1, dtype=bool)).any(axis=1)


def _normalised(weights: jax.Array, mass: jax.Array, fallback: jax.Array) -> jax.Array:
    """Weights over their mass. Without mass (rounding alone leads there) the target itself stands in."""
    return jnp.where(mass > 0, weights / jnp.where(mass > 0, mass, 1.0), fallback)


def _distribution(name: str, values: object) -> np.ndarray:
    probs = np.asarray(values, np.float64)
    if probs.ndim != 1 or not probs.size or not np.isfinite(probs).all() or (probs < 0).any():
        raise ValueError(f"{name} must be one vector of finite, non-negative probabilities; got {probs}.")
    if abs(probs.sum() - 1) > 1e-4:
        raise ValueError(f"{name} sums to {probs.sum():.6g}; a distribution sums to 1.")
    return probs
