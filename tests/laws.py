"""Table models, which depend on the last token alone: the law of what they emit is known exactly."""

import jax.numpy as jnp
import numpy as np
import reference
from toys import TableLM

MODEL = TableLM(3)
TARGET = np.log(np.array([[0.5, 0.3, 0.2], [0.1, 0.3, 0.6], [0.35, 0.5, 0.15]]))
DRAFT = np.log(np.array([[0.15, 0.25, 0.6], [0.5, 0.4, 0.1], [0.3, 0.1, 0.6]]))
PARAMS = {name: {"table": jnp.asarray(table, jnp.float32)} for name, table in (("target", TARGET), ("draft", DRAFT))}
"""The draft is far from its target."""

KEPT_TARGET = np.array([[0.4, 0.3, 0.1, 0.2], [0.1, 0.3, 0.4, 0.2], [0.25, 0.25, 0.25, 0.25], [0.1, 0.5, 0.2, 0.2]])
"""Transitions of a target whose draft, a `toys.KeptTableLM`, lacks token 1."""


def law(**options):
    """The target's transition probabilities under the options."""
    return reference.distribution(TARGET, **options)


def independent(target, draft):
    """A pair whose tokens depend on nothing: the same distributions at every position."""
    size = len(target)
    params = {
        name: {"table": jnp.log(jnp.tile(jnp.asarray(probs, jnp.float32), (size, 1)))}
        for name, probs in (("target", target), ("draft", draft))
    }
    return TableLM(size), params


def kept_params(draft):
    """Parameters of a target with the transitions `KEPT_TARGET`, and of a draft with those given."""
    with np.errstate(divide="ignore"):
        return {
            name: {"table": jnp.asarray(np.log(probs), jnp.float32)}
            for name, probs in (("target", KEPT_TARGET), ("draft", np.array(draft)))
        }
