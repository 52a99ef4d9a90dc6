"""The walk of verification, down a tree or along a line: at each place one draw says which child is accepted.

start ──► place: outcome(place) ──► draw ──┬── a child is accepted, and goes somewhere ──► next place
                                           ├── a child is accepted, and ends the walk ───► (is_hit)
                                           └── none is ──────────────────────────────────► a token from `rest`
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxspec import sampling, verify
from jaxspec.decode import proposals
from jaxspec.decode.proposals import OUTCOME, RESIDUAL

Outcome = Callable[[jax.Array], tuple[jax.Array, jax.Array]]
"""From a `[]` place to its children's `[C]` acceptance probabilities, and the `[V]` law of the token if none is."""

Onward = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
"""From a `[]` place and its accepted child to the place behind it, and `[]` bool whether the walk goes on there."""


class Walk(NamedTuple):
    """Where a walk ended.

    Attributes:
        place: `[]` int32, the last place visited.
        steps: `[]` int32, how many places were left behind before.
        child: `[]` int32, which of its children was accepted; any where none was.
        is_hit: `[]` bool, whether one was.
        rest: `[V]` float32, the law of the token if none was.
        accept: `[depth, C]` float32 acceptance probabilities at the visited places in turn, then 0.
    """

    place: jax.Array
    steps: jax.Array
    child: jax.Array
    is_hit: jax.Array
    rest: jax.Array
    accept: jax.Array


def walk(
    outcome: Outcome, onward: Onward, key: jax.Array, depth: int, max_children: int, vocab_size: int
) -> tuple[Walk, jax.Array]:
    """The walk from place 0, and the `[]` int32 token drawn from its `rest`. The key is the round's.

    Args:
        outcome: The test of a place's children.
        onward: Where an accepted child leads.
        key: Each draw's own is folded from it, by its place.
        depth: Places whose acceptance is kept.
        max_children: C.
        vocab_size: V.
    """

    def visit(carry: tuple[Walk, jax.Array]) -> tuple[Walk, jax.Array]:
        at, _ = carry
        accept, rest = outcome(at.place)
        child, is_hit = verify.draw_outcome(proposals.key_of(key, at.place, OUTCOME), accept)
        behind, is_open = onward(at.place, child)
        goes_on = is_hit & is_open
        place, steps = jnp.where(goes_on, behind, at.place), at.steps + goes_on.astype(jnp.int32)
        # A leaf at full depth has no row: what is written for it is dropped.
        return Walk(place, steps, child, is_hit, rest, at.accept.at[at.steps].set(accept, mode="drop")), goes_on

    zero, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    nothing = jnp.zeros(vocab_size, jnp.float32), jnp.zeros((depth, max_children), jnp.float32)
    start = Walk(zero, zero, zero, no, *nothing), ~no
    end, _ = jax.lax.while_loop(lambda carry: carry[1], visit, start)
    return end, sampling.draw(proposals.key_of(key, end.place, RESIDUAL), end.rest)
