"""What a round of branch decoding reports: its tokens, what was drafted, accepted and rolled back, and how it ended.

The verified path is the pending tokens, the accepted candidate (else the first), and the G - 1 tokens that continue
it. Each token counts in the round that first drafted it, and only as far as the draft's room goes (`room`: the tokens
behind the root that the draft has positions for).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.decode.branches import cuts
from jaxspec.decode.branches.drafter import BranchDrafter
from jaxspec.decode.branches.lines import Branches, Tally, Verdict
from jaxspec.decode.state import Info, Row, State


def info_of(
    drafter: BranchDrafter,
    state: State,
    row: Row,
    branches: Branches,
    verdict: Verdict,
    emitted: jax.Array,
    kept: jax.Array,
) -> Info:
    """What a round reports.

    Args:
        drafter: The draft's half.
        state: Before the round.
        row: Behind it.
        branches: What was drafted.
        verdict: What verification made of it.
        emitted: `[G]` tokens, of which the row took the first ones.
        kept: `[]` int32, how many.
    """
    num_pending, room = branches.num_pending, drafter.room(state.row)
    is_live = kept > 0
    has_line = _has_line(drafter, state)
    num_accepted = verdict.num_accepted + verdict.survives.astype(jnp.int32)
    ending = _ending(branches, verdict, kept, room, is_live)
    places = jnp.arange(drafter.length, dtype=jnp.int32)

    def drafted(num_branches: jax.Array | int) -> jax.Array:
        return drafted_now(drafter, state, num_pending, room, num_branches)

    goes_on = verdict.survives & ~row.is_finished
    rolled = jnp.where(goes_on, 0, rolled_back(drafter, num_pending, room, jnp.minimum(kept, num_accepted)))
    zero = jnp.zeros((), jnp.int32)
    return Info(
        tokens=emitted,
        num_emitted=kept,
        num_accepted=jnp.minimum(kept, num_accepted),
        num_drafted=jnp.where(is_live, drafted(branches.is_active.sum(dtype=jnp.int32)), zero),
        path_drafted=jnp.where(is_live, drafted(1), zero),
        path_rolled_back=jnp.where(is_live, rolled, zero),
        is_rejected=ending.pending_rejected | ending.branch_rejected,
        accept=verdict.accept,
        is_visited=(places <= verdict.num_accepted) & (places < jnp.minimum(jnp.minimum(num_pending + 1, room), kept)),
        tally=_tally(state, branches, verdict, ending, has_line, is_live),
    )


def drafted_before(drafter: BranchDrafter, state: State, num_pending: jax.Array, room: jax.Array) -> jax.Array:
    """`[]` int32 tokens of the first branch that an earlier continuation, or the draft stage, has counted: 0 or 1.

    Of a line G - 1 tokens are counted when it is drafted, so that a cut in front of the last of them makes the next
    one a candidate again: [there is a line] [num_pending < min(G - 1, room)].
    """
    is_again = _has_line(drafter, state) & (num_pending < jnp.minimum(drafter.length - 1, room))
    return is_again.astype(jnp.int32)


def drafted_now(
    drafter: BranchDrafter, state: State, num_pending: jax.Array, room: jax.Array, num_branches: jax.Array | int
) -> jax.Array:
    """`[]` int32 tokens that a round drafts first: [staged] min(G - 1, room) + branches · size - drafted before."""
    staged = jnp.where(_is_staged(drafter, state), jnp.minimum(drafter.length - 1, room), 0)
    size = _branch_size(drafter, num_pending, room)
    return staged + size * num_branches - drafted_before(drafter, state, num_pending, room)


def rolled_back(drafter: BranchDrafter, num_pending: jax.Array, room: jax.Array, num_accepted: jax.Array) -> jax.Array:
    """`[]` int32 tokens of the path that a row which does not go on loses: num_pending + size - num_accepted."""
    return num_pending + _branch_size(drafter, num_pending, room) - num_accepted


def _branch_size(drafter: BranchDrafter, num_pending: jax.Array, room: jax.Array) -> jax.Array:
    """`[]` int32 tokens of one branch: min(G, what room the pending ones leave)."""
    return jnp.clip(room - num_pending, 0, drafter.length)


def _is_staged(drafter: BranchDrafter, state: State) -> jax.Array:
    """`[]` bool, whether a draft stage drafted the round's line. That of a first round has one position only."""
    return drafter.has_draft_stage & state.memory.is_fresh & (state.row.num_rounds > 0)


def _has_line(drafter: BranchDrafter, state: State) -> jax.Array:
    """`[]` bool, whether the round has a line that was cut: a survivor's, or the draft stage's."""
    return ~state.memory.is_fresh | _is_staged(drafter, state)


class _Ending(NamedTuple):
    """`[]` bool each: how a round ended. None of them where a stop id or the limit cut it before that was known."""

    pending_rejected: jax.Array
    branch_rejected: jax.Array
    survived: jax.Array


def _ending(branches: Branches, verdict: Verdict, kept: jax.Array, room: jax.Array, is_live: jax.Array) -> _Ending:
    is_known = is_live & (kept > verdict.num_accepted)
    all_stand = verdict.num_accepted == branches.num_pending
    has_branch = branches.num_pending < room
    return _Ending(
        pending_rejected=is_known & ~all_stand,
        branch_rejected=is_known & all_stand & has_branch & ~verdict.survives,
        survived=is_known & verdict.survives,
    )


def _tally(
    state: State, branches: Branches, verdict: Verdict, ending: _Ending, has_line: jax.Array, is_live: jax.Array
) -> Tally:
    """The counts of a round. A line's class is judged where the round has an end."""
    line, num_pending = branches.line, branches.num_pending
    all_stand = verdict.num_accepted == num_pending
    own_survives = verdict.survives & (line.candidates[num_pending, verdict.branch] == line.tokens[num_pending])
    came_true = jnp.stack([(verdict.num_accepted == 0) & ~own_survives, all_stand & ~own_survives, all_stand])
    has_end = ending.pending_rejected | ending.branch_rejected | ending.survived
    labels = (jnp.arange(cuts.NUM_CLASSES) == branches.label) & has_end & has_line
    return Tally(
        pending_rejected=ending.pending_rejected.astype(jnp.int32),
        branch_rejected=ending.branch_rejected.astype(jnp.int32),
        survived=ending.survived.astype(jnp.int32),
        branches=jnp.where(is_live, branches.is_active.sum(dtype=jnp.int32), 0),
        pending=jnp.where(is_live, num_pending, 0),
        labels=labels.astype(jnp.int32),
        hits=(labels & came_true).astype(jnp.int32),
    )
