"""The output law of a rule, by enumeration of every proposal."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.verify.rule import Rule
from jaxspec.verify.rules import RULES


def output_distribution(rule: Rule | str, target_probs: object, draft_probs: object, count: int) -> np.ndarray:
    """`[V]` law of the token that one position emits, by enumeration of every proposal; for small V.

    Args:
        rule: One of `RULES`, or its name.
        target_probs: `[V]`.
        draft_probs: `[V]`.
        count: C, the number of children.

    Raises:
        ValueError: Something that is not a pair of distributions over the same tokens, or a count out of range.
        AssertionError: The rule returns other shapes than `Rule.outcome` says.
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
    chex.assert_shape(accept, (len(proposals), count))  # what a rule of the user's own returns
    chex.assert_shape(residual, (len(proposals), len(target)))
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


def _distribution(name: str, values: object) -> np.ndarray:
    probs = np.asarray(values, np.float64)
    if probs.ndim != 1 or not probs.size or not np.isfinite(probs).all() or (probs < 0).any():
        raise ValueError(f"{name} must be one vector of finite, non-negative probabilities; got {probs}.")
    if abs(probs.sum() - 1) > 1e-4:
        raise ValueError(f"{name} sums to {probs.sum():.6g}; a distribution sums to 1.")
    return probs
