"""The draft's half of branch decoding: lines of drawn tokens, forks, the branches that continue them, and cuts."""

import dataclasses
import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxspec import base, cache, sampling, verify
from jaxspec.base import Context, Entries, Model, Output, Params
from jaxspec.decode import batching, proposals
from jaxspec.decode import state as states
from jaxspec.decode.branches import cuts, widths
from jaxspec.decode.branches.lines import Branches, Evidence, Line, Memory, Verdict
from jaxspec.decode.proposals import PROPOSAL, STAGE
from jaxspec.decode.state import Row, State


@dataclasses.dataclass(frozen=True)
class BranchDrafter:
    """What drafts in a `BranchDecoder`. Nothing here runs the target.

    A token's confidence is the draft's probability of it at temperature 1, whatever temperature it was drawn at. With
    the fork rule `verify.TOP_K`, which drops the line's own token at a fork, it is the draft's largest probability.

    Attributes:
        target: The model whose tokens are proposed.
        draft: The model that proposes.
        length: G (gamma), tokens of a branch, its candidate included: at most G - 1 are pending.
        max_branches: C, the most candidates of a fork; as many are continued.
        cut: How much of a surviving continuation is kept.
        fork: The rule of a fork's candidates: `verify.SEQUOIA` draws them without replacement, the line's own token
            first; `verify.TOP_K` takes the most probable ones. Pending tokens are drawn in either case.
        width: How many of the candidates are tried.
        has_draft_stage: Whether, after a rejection, the draft first works alone and the fork is where the cut puts it
            (as the paper does), instead of forking at once.
        keeps_features: Whether `Memory.features` is kept although nothing reads it, to train H-RAD from.
    """

    target: Model
    draft: Model
    length: int
    max_branches: int
    cut: cuts.Cut = cuts.KEEP_ALL
    fork: verify.Rule = verify.SEQUOIA
    width: widths.Width = widths.ADAPTIVE
    has_draft_stage: bool = False
    keeps_features: bool = False

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length={self.length}: a branch has at least 1 token, its candidate.")
        if self.max_branches < 1:
            raise ValueError(f"max_branches={self.max_branches}: a fork has at least 1 candidate.")
        proposals.check(self.target, self.draft, self.max_branches, "The fork")

    @property
    def reads_features(self) -> bool:
        """Whether the target's features are kept or read."""
        return self.keeps_features or self.cut.reads_features

    def first_memory(self, params: dict[str, Params], state: State, evidence: Evidence) -> Memory:
        """The memory before the first round: nothing is drafted."""
        entries = self.draft.empty(self.length)

        def first_position() -> Line:
            output = self._read(params, state, entries, state.row.root, jnp.zeros((), jnp.int32))
            return self._propose(states.reading(state.row, self.target.vocab_size), 0, PROPOSAL, output.logits[0])

        line = jax.tree.map(
            lambda leaf: jnp.zeros((self.length, *leaf.shape), leaf.dtype), jax.eval_shape(first_position)
        )
        no = jnp.zeros((), jnp.int32)
        return Memory(line, entries, no, jnp.ones((), bool), no, *self._kept(evidence))

    def draft_stage(self, params: dict[str, Params], state: State) -> State:
        """The state with a line and its cut: where there was none, the draft has made one alone.

        In a row's first round the line ends at its first position: the target has not run, and nothing says how far
        to draft without it.
        """
        row = state.row
        state = self._draft_line(params, state, jnp.where(row.num_rounds > 0, self.length, 1), STAGE)
        num_pending, label = self._cut_stage(params, row, state.memory)
        return state._replace(memory=state.memory._replace(num_pending=num_pending, label=label))

    def begin_line(self, params: dict[str, Params], state: State) -> State:
        """The state with a line's first position where there was no line: a row forks right behind a rejection."""
        return self._draft_line(params, state, jnp.ones((), jnp.int32), PROPOSAL)

    def draft_branches(self, params: dict[str, Params], state: State) -> Branches:
        """The draft's half of a round: the branch point's candidates, each continued by G positions."""
        if not self.has_draft_stage:
            state = self.begin_line(params, state)
        line, num_pending = state.memory.line, state.memory.num_pending
        is_active = self.tried(state.row, line, num_pending)
        block, continuations = self._continue(params, state, line.candidates[num_pending], is_active)
        return Branches(line, num_pending, is_active, state.memory.label, continuations, block)

    def tried(self, row: Row, line: Line, num_pending: jax.Array) -> jax.Array:
        """`[C]` bool, the branch point's candidates that are tried: the first few, or none without room."""
        count = self.width(line.confidence[num_pending], self.max_branches)
        return (jnp.arange(self.max_branches) < count) & (num_pending < self.room(row))

    def commit_draft(self, state: State, block: Entries, verdict: Verdict, kept: jax.Array) -> Context:
        """The draft's context, up to the new root: with the old one and what was emitted, but for the last token.

        Args:
            state: Before the round.
            block: What the draft wrote in it: the root and the pending tokens first.
            verdict: What verification made of it.
            kept: `[]` int32 tokens that were emitted.
        """
        slots = jnp.arange(self.length, dtype=jnp.int32)
        return cache.commit(self.draft, state.contexts["draft"], block, kept, slots, kept)

    def go_on(
        self, params: dict[str, Params], row: Row, branches: Branches, verdict: Verdict, evidence: Evidence
    ) -> Memory:
        """What is pending behind the row's new root: the surviving continuation, up to the cut, with its entries.

        The new root is the accepted candidate, so that the survivor's G steps gave the entries of the root and of its
        line. Behind a rejection the root is a correction, which the draft has not read.
        """
        line = jax.tree.map(lambda leaf: leaf[verdict.branch], branches.continuations)
        steps = jnp.arange(self.length, dtype=jnp.int32)
        slots = self.length + steps * self.max_branches + verdict.branch
        entries = cache.write(self.draft, self.draft.empty(self.length), branches.block, 0, slots)
        cutting = self._cut(params, row, line, evidence)
        num_pending = jnp.where(verdict.survives, cutting.kept, 0)
        return Memory(line, entries, num_pending, ~verdict.survives, cutting.label, *self._kept(evidence))

    def at_place(self, row: Row, line: Line, place: jax.Array) -> Row:
        """The row as its options read it at a `[]` place of a line: the line's tokens in front are in the text."""
        if row.options.past is None:
            return row
        return states.with_past(row, sampling.behind(row.options.past, line.tokens, place))

    def position(self, logits: jax.Array, drawn: jax.Array, probs: jax.Array | None) -> Line:
        """One position of a line (no leading axis), from what was drawn there; draws nothing.

        Args:
            logits: `[P]` of the draft, adjusted (`proposals.adjusted`).
            drawn: `[C]` places among the P tokens, in draw order.
            probs: `[P]` that they were drawn from, or None.
        """
        chex.assert_shape(drawn, (self.max_branches,))
        tried = sampling.top_k(logits, self.max_branches)[1] if self.fork == verify.TOP_K else drawn
        confidence = jnp.zeros((), jnp.float32)
        if self.cut != cuts.KEEP_ALL or (self.max_branches > 1 and self.width.reads_confidence):
            certain = logits.max() if self.fork == verify.TOP_K else logits[drawn[0]]
            confidence = jnp.exp(certain - jax.nn.logsumexp(logits))
        ids = proposals.token_ids(self.draft, jnp.append(drawn[:1], tried))
        return Line(ids[0], ids[1:], probs, confidence)

    def room(self, row: Row) -> jax.Array:
        """`[]` int32 tokens behind the root that the draft can propose, each by one that it has a position for."""
        limit = getattr(self.draft, "max_length", None)
        most = jnp.asarray(2 * self.length, jnp.int32)  # more than a round has
        return most if limit is None else jnp.clip(limit - row.root_position, 0, most)

    def branch_step(
        self,
        row: Row,
        num_pending: jax.Array,
        place: jax.Array,
        branch_index: jax.Array,
        is_active: jax.Array,
        logits: jax.Array,
    ) -> tuple[Line, "_Reading"]:
        """One step of one branch: the position that the draft proposes, and how its token is read next.

        This is `vmap`ped over the C branches, which differ in the last three arguments; the draft's calls have them as
        rows.

        Args:
            row: The row.
            num_pending: `[]` int32.
            place: `[]` int32, the step: tokens of the branch in front, less 1.
            branch_index: `[]` int32.
            is_active: `[]` bool, whether the branch's candidate is tried. What another branch reads is masked.
            logits: `[V]` of the draft behind the branch's newest token.
        """
        number = 1 + place * self.max_branches + branch_index
        position = self._propose(row, number, PROPOSAL, logits)
        return position, self._reading(row, num_pending, place + 1, branch_index, is_active, position.tokens)

    def _continue(
        self, params: dict[str, Params], state: State, candidates: jax.Array, is_active: jax.Array
    ) -> tuple[Entries, Line]:
        """The block with the branches, and what lies behind each `[C]` candidate: a line with a leading axis of C.

        One draft call of C rows for each of the G steps.
        """
        row, memory, count = states.reading(state.row, self.target.vocab_size), state.memory, self.max_branches
        empty = self.draft.empty(self.length * (1 + count))
        block = cache.write(self.draft, empty, memory.entries, 0)
        indices = jnp.arange(count, dtype=jnp.int32)

        def step(carry: tuple[Entries, _Reading, sampling.Past | None], place: jax.Array) -> tuple[tuple, Line]:
            block, reading, pasts = carry
            output = base.forward(
                self.draft,
                params["draft"],
                *reading[:2],
                state.contexts["draft"],
                block,
                self._slot(place, 0),
                reading.sees,
            )
            positions, reading = jax.vmap(
                lambda past, *branch: self.branch_step(states.with_past(row, past), memory.num_pending, place, *branch)
            )(pasts, indices, is_active, output.logits)
            return (output.block, reading, sampling.behind_each(pasts, positions.tokens)), positions

        start = jax.vmap(self._reading, in_axes=(None, None, None, 0, 0, 0))
        reading = start(row, memory.num_pending, jnp.zeros((), jnp.int32), indices, is_active, candidates)
        fork = self.at_place(row, memory.line, memory.num_pending).options.past
        pasts = sampling.behind_each(jax.tree.map(lambda leaf: jnp.stack([leaf] * count), fork), candidates)
        places = jnp.arange(self.length, dtype=jnp.int32)
        (block, *_), lines = jax.lax.scan(step, (block, reading, pasts), places)
        return block, jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), lines)

    def _reading(
        self,
        row: Row,
        num_pending: jax.Array,
        place: jax.Array,
        branch_index: jax.Array,
        is_active: jax.Array,
        token: jax.Array,
    ) -> "_Reading":
        """How the draft reads one branch's token in step `place`: it sees the pending tokens and its own branch."""
        slots = jnp.arange(self.length * (1 + self.max_branches))
        is_before = slots <= num_pending
        is_own = (slots >= self.length) & ((slots - self.length) % self.max_branches == branch_index)
        is_written = slots < self._slot(place, 0)
        is_itself = slots == self._slot(place, branch_index)
        position = row.root_position + 1 + num_pending + place
        sees = is_itself | (is_active & (is_before | (is_own & is_written)))
        return _Reading(jnp.where(is_active, token, 0), position, sees)

    def _slot(self, place: jax.Array, branch_index: jax.Array | int) -> jax.Array:
        """Where the block has step `place` of a branch."""
        return self.length + place * self.max_branches + branch_index

    def _draft_line(self, params: dict[str, Params], state: State, count: jax.Array, purpose: int) -> State:
        """The state in which a fresh row has the first `count` positions of its line, drawn by the draft alone.

        One draft forward over one token for each: the root, then the line's. No forward is run where no row of the
        batch is fresh, and rows that are not stay as they are.
        """
        row, memory = states.reading(state.row, self.target.vocab_size), state.memory
        count = jnp.where(memory.is_fresh & ~row.is_finished, count, 0)

        def step(carry: tuple) -> tuple:
            place, entries, line = carry
            token = jnp.where(place == 0, row.root, line.tokens[place - 1])
            output = self._read(params, state, entries, token, place)
            position = self._propose(self.at_place(row, line, place), place, purpose, output.logits[0])
            choose = functools.partial(jnp.where, place < count)
            line = jax.tree.map(lambda old, new: old.at[place].set(choose(new, old[place])), line, position)
            return place + 1, jax.tree.map(choose, output.block, entries), line

        start = jnp.zeros((), jnp.int32), memory.entries, memory.line
        _, entries, line = jax.lax.while_loop(lambda carry: batching.any_row(carry[0] < count), step, start)
        return state._replace(memory=memory._replace(line=line, entries=entries))

    def _read(
        self, params: dict[str, Params], state: State, entries: Entries, token: jax.Array, place: jax.Array
    ) -> Output:
        """The draft's forward over one token, `place` positions behind the root, with those in front in the entries."""
        sees = jnp.arange(self.length)[None] <= place
        position = state.row.root_position + place
        context = state.contexts["draft"]
        return base.forward(self.draft, params["draft"], token[None], position[None], context, entries, place, sees)

    def _propose(self, row: Row, number: jax.Array | int, purpose: int, logits: jax.Array) -> Line:
        """One position of a line (no leading axis) from the draft's logits in front of it."""
        key = proposals.key_of(states.round_key(row), number, purpose)
        logits = proposals.adjusted(self.target, self.draft, row, logits)
        drawn, probs = proposals.draw(verify.SEQUOIA, row, key, logits, self.max_branches)
        return self.position(logits, drawn, probs)

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
        if self.cut.reads_features:
            chex.assert_rank([evidence.features, evidence.embedding], [2, 1])
        cutting = self.cut(params.get("hrad"), evidence.features, evidence.embedding, line.confidence)
        chex.assert_rank([cutting.kept, cutting.label], 0)
        return cutting._replace(kept=jnp.minimum(cutting.kept, self.room(row)))

    def _kept(self, evidence: Evidence) -> Evidence:
        """What the memory keeps of the evidence: all where the draft stage or a training reads it, else nothing."""
        keeps = self.keeps_features or (self.cut.reads_features and self.has_draft_stage)
        return evidence if keeps else Evidence(None, None)


class _Reading(NamedTuple):
    """How the draft reads a token of a branch; in a call, with a leading axis of C.

    Attributes:
        token: `[]` int32.
        position: `[]` int32.
        sees: `[N]` bool slots of the block.
    """

    token: jax.Array
    position: jax.Array
    sees: jax.Array
