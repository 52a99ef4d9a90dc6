"""What a round of branch decoding reports: its tokens, what was drafted, accepted and rolled back, and how it ended."""

import jax
import jax.numpy as jnp

from jaxspec.decode.branches import cuts
from jaxspec.decode.branches.drafter import BranchDrafter
from jaxspec.decode.branches.lines import Drafted, Resolved, Tally
from jaxspec.decode.state import Info, Row, State


def report(
    drafter: BranchDrafter,
    state: State,
    row: Row,
    drafted: Drafted,
    resolved: Resolved,
    emitted: jax.Array,
    kept: jax.Array,
) -> Info:
    """What a round reports.

    The verified path is the pending tokens, the accepted candidate (else the first), and the G - 1 tokens that
    continue it. Each token counts where it was first drafted: a branch counts G, less its candidate where that was
    cut from the continuation before, and a draft stage G - 1; all of them only as far as the draft's room goes.

    Args:
        drafter: The decoder.
        state: Before the round.
        row: Behind it.
        drafted: The draft's half.
        resolved: What verification made of it.
        emitted: `[G]` tokens, of which the row took the first ones.
        kept: `[]` int32, how many.
    """
    memory, num_pending, survives = state.memory, drafted.num_pending, resolved.survives
    is_live, room = ~state.row.is_finished, drafter.room(state.row)
    num_accepted = resolved.num_pending + survives.astype(jnp.int32)
    was_cut = kept <= resolved.num_pending  # by a stop id or the limit, before the last verified position
    has_branch = num_pending < room
    size = jnp.clip(room - num_pending, 0, drafter.length)
    is_staged = drafter.has_draft_stage & memory.is_fresh & (state.row.num_rounds > 0)
    staged = jnp.where(is_staged, jnp.minimum(drafter.length - 1, room), 0)
    was_drafted = (~memory.is_fresh | is_staged) & (num_pending < drafter.length - 1) & has_branch
    before = staged - was_drafted.astype(jnp.int32)
    goes_on = survives & ~row.is_finished
    rolled_back = jnp.where(goes_on, 0, num_pending + size - jnp.minimum(kept, num_accepted))
    places = jnp.arange(drafter.length, dtype=jnp.int32)
    all_stand = resolved.num_pending == num_pending
    ends = jnp.stack([~all_stand, all_stand & ~survives & has_branch, survives]) & ~was_cut & is_live
    zero = jnp.zeros((), jnp.int32)
    return Info(
        tokens=emitted,
        num_emitted=kept,
        num_accepted=jnp.minimum(kept, num_accepted),
        num_drafted=jnp.where(is_live, before + size * drafted.is_active.sum(dtype=jnp.int32), zero),
        path_drafted=jnp.where(is_live, before + size, zero),
        path_rolled_back=jnp.where(is_live, rolled_back, zero),
        is_rejected=ends[0] | ends[1],
        accept=resolved.accept,
        is_visited=(places <= resolved.num_pending) & (places < kept) & (places < jnp.minimum(num_pending + 1, room)),
        tally=_tally(drafter, state, drafted, resolved, ends, is_live),
    )


def _tally(
    drafter: BranchDrafter, state: State, drafted: Drafted, resolved: Resolved, ends: jax.Array, is_live: jax.Array
) -> Tally:
    """The counts of a round. A line's class is judged where the round was not cut short."""
    stands = ~ends[0]  # read only where the round has an end
    line = drafted.line
    own_stands = resolved.survives & (
        line.candidates[drafted.num_pending, resolved.branch] == line.tokens[drafted.num_pending]
    )
    came_true = jnp.stack([~own_stands & (resolved.num_pending == 0), stands & ~own_stands, stands])
    has_label = ends.any() & (~state.memory.is_fresh | (drafter.has_draft_stage & (state.row.num_rounds > 0)))
    labels = (jnp.arange(cuts.NUM_CLASSES) == drafted.label) & has_label
    ends = ends.astype(jnp.int32)
    return Tally(
        pending_rejected=ends[0],
        branch_rejected=ends[1],
        survived=ends[2],
        branches=jnp.where(is_live, drafted.is_active.sum(dtype=jnp.int32), 0),
        pending=jnp.where(is_live, drafted.num_pending, 0),
        labels=labels.astype(jnp.int32),
        hits=(labels & came_true).astype(jnp.int32),
    )
