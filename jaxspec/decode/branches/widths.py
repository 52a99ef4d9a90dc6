"""How many of a fork's candidates are tried: SpecBranch's k.

All C of them are drawn and continued in any case, since a compiled program's shapes are fixed. A width says how many
may be accepted: the first k. It reads the draft's distribution at the branch point and no draw that is still to be
tested, so that it changes the speed and never the law of the output.
"""

import dataclasses
from typing import Protocol

import jax
import jax.numpy as jnp


class Width(Protocol):
    """A rule for k: a frozen dataclass, so that decoders that use it hash by value.

    Attributes:
        reads_confidence: Whether k depends on the draft's confidence.
    """

    reads_confidence: bool

    def __call__(self, confidence: jax.Array, max_branches: int) -> jax.Array:
        """`[]` int32 candidates that are tried, 1 to C, at the draft's `[]` confidence at the branch point."""
        ...


@dataclasses.dataclass(frozen=True)
class AdaptiveWidth:
    """SpecBranch's k = max(1, floor(C (1 - confidence))): the surer the draft, the fewer."""

    reads_confidence = True

    def __call__(self, confidence: jax.Array, max_branches: int) -> jax.Array:
        return jnp.maximum(jnp.floor(max_branches * (1.0 - confidence)).astype(jnp.int32), 1)


@dataclasses.dataclass(frozen=True)
class FullWidth:
    """k = C: every candidate that is continued is tried."""

    reads_confidence = False

    def __call__(self, confidence: jax.Array, max_branches: int) -> jax.Array:
        return jnp.asarray(max_branches, jnp.int32)


ADAPTIVE, ALL = AdaptiveWidth(), FullWidth()

WIDTHS: dict[str, Width] = {"adaptive": ADAPTIVE, "all": ALL}
"""By the names that a user gives."""


def width_of(name: str) -> Width:
    """The width of a name.

    Raises:
        ValueError: Another name.
    """
    if name not in WIDTHS:
        raise ValueError(f"width={name!r}: give one of {', '.join(map(repr, WIDTHS))}.")
    return WIDTHS[name]
