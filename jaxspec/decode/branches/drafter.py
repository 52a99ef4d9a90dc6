"""The draft's half of branch decoding: lines of drawn tokens, forks, the branches that continue them, and cuts."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxspec import sampling, verify
from jaxspec.base import Entries, Model, Params
from jaxspec.decode import proposals
from jaxspec.decode import state as states
from jaxspec.decode.branches import cuts
from jaxspec.decode.branches.lines import Drafted, Evidence, Line, Memory
from jaxspec.decode.proposals import PROPOSAL, STAGE
from jaxspec.decode.state import Row, State


@dataclasses.dataclass(frozen=True)
class BranchDrafter:
    """What drafts in a `BranchDecoder`, which says what the attributes are. Nothing here runs the target.

    A token's confidence is the draft's probability of it at temperature 1, whatever temperature it was drawn at. With
    the fork rule `verify.TOP_K`, which drops the line's own token at a fork, it is the draft's largest probability.
    """

    target: Model
    draft: Model
    length: int
    max_branches: int
    cut: cuts.Cut = cuts.KEEP_ALL
    fork: verify.Rule = verify.SEQUOIA
    has_draft_stage: bool = False

    def draft_stage(self, params: dict[str, Params], state: State) -> State:
        """The state with a line and its cut: where there was none, the draft has made one alone. Reads no target."""
        row, memory, context = state.row, state.memory, state.contexts["draft"]
        num_slots = self.length + 2
        _, _, causal = _root_tokens(row, num_slots)
        tokens, positions, mask = _root_tokens(row, 2, num_slots)
        output = self.draft.apply(params["draft"], tokens, positions, context, self.draft.empty(num_slots), 0, mask)

        def step(carry: tuple) -> tuple:
            place, block, logits, line = carry
            proposed = self._propose(row, place, STAGE, logits)
            line = jax.tree.map(lambda old, new: old.at[place].set(new), line, proposed)
            position = (row.root_position + 1 + place)[None]
            mask = jax.lax.dynamic_slice_in_dim(causal, place + 2, 1)
            output = self.draft.apply(params["draft"], proposed.tokens[None], position, context, block, place + 2, mask)
            return place + 1, output.block, output.logits[0], line

        num_steps = jnp.where(memory.is_fresh, jnp.where(row.num_rounds > 0, self.length, 1), 0)
        start = jnp.zeros((), jnp.int32), output.block, output.logits[1], memory.line
        _, _, _, line = jax.lax.while_loop(lambda carry: carry[0] < num_steps, step, start)
        memory = memory._replace(line=line)
        num_pending, label = self._cut_stage(params, row, memory)
        return state._replace(memory=memory._replace(num_pending=num_pending, label=label))

    def draft_branches(self, params: dict[str, Params], state: State) -> Drafted:
        """The draft's half: the branch point's candidates, each continued by G positions. Reads no target."""
        line, num_pending, label = state.memory.line, state.memory.num_pending, state.memory.label
        block, logits = self._read_pending(params, state, line, num_pending)
        if not self.has_draft_stage:
            first = self._propose(state.row, 0, PROPOSAL, logits)
            line = jax.tree.map(
                lambda old, new: old.at[0].set(jnp.where(state.memory.is_fresh, new, old[0])), line, first
            )
        is_active = self.tried(state.row, line, num_pending)
        block, continuations = self._continue(params, state, block, line.candidates[num_pending], num_pending)
        return Drafted(line, num_pending, is_active, label, continuations, block)

    def draft_first(self, params: dict[str, Params], state: State) -> Line:
        """A line's position right behind the root."""
        block = self.draft.empty(2)
        tokens, positions, mask = _root_tokens(state.row, 2)
        output = self.draft.apply(params["draft"], tokens, positions, state.contexts["draft"], block, 0, mask)
        return self._propose(state.row, 0, PROPOSAL, output.logits[1])

    def tried(self, row: Row, line: Line, num_pending: jax.Array) -> jax.Array:
        """`[C]` bool, the branch point's candidates that are tried: the first few, or none without room."""
        count = self.num_active(line.confidence[num_pending])
        return (jnp.arange(self.max_branches) < count) & (num_pending < self.room(row))

    def num_active(self, confidence: jax.Array) -> jax.Array:
        """`[]` int32, how many candidates are tried at a confidence: k of SpecBranch."""
        return jnp.maximum(jnp.floor(self.max_branches * (1.0 - confidence)).astype(jnp.int32), 1)

    def position(self, logits: jax.Array, drawn: jax.Array, probs: jax.Array | None) -> Line:
        """One position of a line (no leading axis), from what was drawn there; draws nothing.

        Args:
            logits: `[P]` of the draft, adjusted (`proposals.adjusted`).
            drawn: `[C]` places among the P tokens, in draw order.
            probs: `[P]` that they were drawn from, or None.
        """
        tried = sampling.top_k(logits, self.max_branches)[1] if self.fork == verify.TOP_K else drawn
        confidence = jnp.zeros((), jnp.float32)
        if self.max_branches > 1 or self.cut != cuts.KEEP_ALL:
            certain = logits.max() if self.fork == verify.TOP_K else logits[drawn[0]]
            confidence = jnp.exp(certain - jax.nn.logsumexp(logits))
        ids = proposals.token_ids(self.draft, jnp.append(drawn[:1], tried))
        return Line(ids[0], ids[1:], probs, confidence)

    def _propose(self, row: Row, number: jax.Array | int, purpose: int, logits: jax.Array) -> Line:
        """One position of a line (no leading axis) from the draft's logits in front of it."""
        key = proposals.key_of(states.round_key(row), number, purpose)
        logits = proposals.adjusted(self.target, self.draft, row, logits)
        drawn, probs = proposals.draw(verify.SEQUOIA, row, key, logits, self.max_branches)
        return self.position(logits, drawn, probs)

    def _read_pending(
        self, params: dict[str, Params], state: State, line: Line, num_pending: jax.Array
    ) -> tuple[Entries, jax.Array]:
        """The draft's block with the root and the pending tokens, and the `[V]` logits behind the root.

        The token before the root goes in front: it was a correction or a candidate, which the context lacks.
        """
        size = self.length + 1
        num_slots = size + self.length * self.max_branches
        tokens, positions, mask = _root_tokens(state.row, size, num_slots)
        tokens = tokens.at[2:].set(line.tokens[:-1])
        output = self.draft.apply(
            params["draft"], tokens, positions, state.contexts["draft"], self.draft.empty(num_slots), 0, mask
        )
        return output.block, output.logits[1]

    def _continue(
        self, params: dict[str, Params], state: State, block: Entries, candidates: jax.Array, num_pending: jax.Array
    ) -> tuple[Entries, Line]:
        """The block with the branches, and what lies behind each `[C]` candidate: a line with a leading axis of C.

        The branches are rows of the model's calls, one call for each of the G steps. A branch sees the context, the
        pending tokens and itself; step t of branch r has slot G + 1 + t C + r.
        """
        row, first, count = state.row, self.length + 1, self.max_branches
        slots = jnp.arange(first + self.length * count)
        is_before = (slots < 2 + num_pending) & ((slots > 0) | (row.num_tokens > 1))
        branches = jnp.arange(count)
        is_own = (slots >= first)[None] & (((slots - first) % count)[None] == branches[:, None])

        def step(carry: tuple[Entries, jax.Array], place: jax.Array) -> tuple[tuple[Entries, jax.Array], Line]:
            block, tokens = carry
            slot = first + place * count
            positions = jnp.full(count, row.root_position + 1 + num_pending + place, jnp.int32)
            mask = is_before[None] | (is_own & (slots < slot + count)[None])
            output = self.draft.apply(params["draft"], tokens, positions, state.contexts["draft"], block, slot, mask)
            numbers = 1 + place * count + branches
            proposed = jax.vmap(lambda number, logits: self._propose(row, number, PROPOSAL, logits))(
                numbers, output.logits
            )
            return (output.block, proposed.tokens), proposed

        (block, _), lines = jax.lax.scan(step, (block, candidates), jnp.arange(self.length, dtype=jnp.int32))
        return block, jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), lines)

    def _cut_stage(self, params: dict[str, Params], row: Row, memory: Memory) -> tuple[jax.Array, jax.Array]:
        """How much of a line is pending, and its class: the ones of the last round, or the cut of a new line."""
        cutting = self._cut(params, row, memory.line, Evidence(memory.features, memory.embedding))
        is_first = row.num_rounds == 0  # the target has not run yet, so that there is nothing to cut by
        count = jnp.where(is_first, 0, cutting.kept)
        label = jnp.where(is_first, cuts.NONE, cutting.label)
        is_fresh = memory.is_fresh
        return jnp.where(is_fresh, count, memory.num_pending), jnp.where(is_fresh, label, memory.label)

    def _cut(self, params: dict[str, Params], row: Row, line: Line, evidence: Evidence) -> cuts.Cutting:
        """Where a line behind the row's newest token is cut; the draft's positions may end it before."""
        cutting = self.cut(params.get("hrad"), evidence.features, evidence.embedding, line.confidence)
        return cutting._replace(kept=jnp.minimum(cutting.kept, self.room(row)))

    def room(self, row: Row) -> jax.Array:
        """`[]` int32 tokens behind the root that the draft can propose, each by one that it has a position for."""
        limit = getattr(self.draft, "max_length", None)
        most = jnp.asarray(2 * self.length, jnp.int32)  # more than a round has
        return most if limit is None else jnp.clip(limit - row.root_position, 0, most)


def _root_tokens(row: Row, size: int, num_slots: int | None = None) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Tokens, positions and causal mask of a draft step that begins with the token before the root, and the root.

    Args:
        row: The row. Where it has one token only, nothing sees the first slot.
        size: Tokens; those behind the root are 0.
        num_slots: Of the block; None: `size`.
    """
    previous = row.tokens[jnp.maximum(row.num_tokens - 2, 0)]
    tokens = jnp.zeros(size, jnp.int32).at[:2].set(jnp.stack([previous, row.root]))
    places, slots = jnp.arange(size, dtype=jnp.int32), jnp.arange(num_slots or size)
    positions = jnp.maximum(row.root_position - 1 + places, 0)
    is_there = ((slots > 0) | (row.num_tokens > 1))[None] | (places[:, None] == 0)
    return tokens, positions, (slots[None] <= places[:, None]) & is_there
