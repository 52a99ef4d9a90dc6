"""SpecBranch and PEARL: the draft continues behind the tokens that the target is verifying.

Behind the root, the newest emitted token, lies a line of tokens that the draft drew one after another, each kept with
the distribution that it was drawn from: first the pending ones, then the branch point. In a round two things happen
that do not depend on each other: the target runs over the root and the pending tokens, and the draft forks at the
branch point into several candidates, the line's own token first, and continues each of them. Then the pending tokens
are verified from left to right and, if all of them stand, the candidates. The branch of the accepted candidate becomes
the new line, and a cut (`jaxspec.hrad`) says how much of it is pending. After a rejection there is no line; the next
round forks at its first position.

Exact at every temperature: what decides (the number of candidates, the cut) reads distributions, committed tokens and
draws that are tested before, and a drawn token is never dropped because of what it is.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jaxspec import cache, hrad, sampling, verify
from jaxspec.base import Context, Entries, Model, Output, Params
from jaxspec.decode import proposals
from jaxspec.decode import state as states
from jaxspec.decode.lines import Drafted, Evidence, Line, Memory, Resolved, Tally
from jaxspec.decode.state import Info, Row, State

PROPOSAL, OUTCOME, RESIDUAL, STAGE = range(4)
"""Purposes of a round's randomness."""


@dataclasses.dataclass(frozen=True)
class BranchDecoder:
    """A decoder that drafts behind the tokens that are being verified.

    A token's confidence is the draft's probability of it at temperature 1, whatever temperature it was drawn at. With
    the fork rule `verify.TOP_K`, which drops the line's own token at a fork, it is the draft's largest probability.

    The class of a cut comes true, which counts as a hit: none, when the line's own token behind the root fails;
    partial, when all pending tokens stand and the line's own token behind them fails; all, when all pending ones stand.

    Attributes:
        target: The model whose distribution is sampled.
        draft: The model that proposes.
        length: G (gamma), tokens of a branch, its candidate included: at most G - 1 are pending.
        max_branches: C, the most candidates of a fork; max(1, floor(C (1 - confidence))) of them are tried.
        cut: How much of a surviving continuation is kept.
        fork: The rule of a fork's candidates: `verify.SEQUOIA` draws them without replacement, the line's own token
            first; `verify.TOP_K` takes the most probable ones. Pending tokens are drawn in either case.
        has_draft_stage: Whether, after a rejection, the draft first works alone and the fork is where the cut puts it
            (as the paper does), instead of forking at once.
        keeps_features: Whether `Memory.features` is kept although nothing reads it, to train H-RAD from.
    """

    target: Model
    draft: Model
    length: int
    max_branches: int
    cut: hrad.Cut = hrad.KEEP_ALL
    fork: verify.Rule = verify.SEQUOIA
    has_draft_stage: bool = False
    keeps_features: bool = False

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length={self.length}: a branch has at least 1 token, its candidate.")
        if self.max_branches < 1:
            raise ValueError(f"max_branches={self.max_branches}: a fork has at least 1 candidate.")
        proposals.check(self.target, self.draft, self.max_branches, "The fork")

    @property
    def models(self) -> dict[str, tuple[Model, int]]:
        return {"target": (self.target, 1), "draft": (self.draft, 2)}

    @property
    def extra_params(self) -> tuple[str, ...]:
        return ("hrad",) if self.cut.reads_features else ()

    @property
    def zero_tally(self) -> Tally:
        zero, classes = jnp.zeros((), jnp.int32), jnp.zeros(hrad.NUM_CLASSES, jnp.int32)
        return Tally(zero, zero, zero, zero, zero, classes, classes)

    @property
    def max_emitted(self) -> int:
        return self.length

    @property
    def depth(self) -> int:
        return self.length

    @property
    def max_children(self) -> int:
        return self.max_branches

    def init(self, params: dict[str, Params], row: Row) -> State:
        """The state before the prompt is read."""
        state = states.init(self, row)
        return state._replace(memory=self.first_memory(params, state, self.first_evidence(params, state)))

    def round(self, params: dict[str, Params], state: State) -> tuple[State, Info]:
        """Fork and continue the branches, verify the pending tokens, go on with the branch that survives."""
        if self.has_draft_stage:
            state = self.draft_stage(params, state)
        drafted = self.draft_branches(params, state)
        output = self.verify_pending(params, state, state.memory.line)
        resolved = self.resolve(state.row, drafted, output.logits, states.round_key(state.row))
        return self.commit(params, state, drafted, output, resolved)

    def first_memory(self, params: dict[str, Params], state: State, evidence: Evidence) -> Memory:
        """The memory before the first round: nothing is drafted. Reads no target."""
        line = jax.eval_shape(lambda: self.draft_first(params, state))
        line = jax.tree.map(lambda leaf: jnp.zeros((self.length, *leaf.shape), leaf.dtype), line)
        no = jnp.zeros((), jnp.int32)
        return Memory(line, no, jnp.ones((), bool), no, *self._kept(evidence))

    def first_evidence(self, params: dict[str, Params], state: State) -> Evidence:
        """Zeros in place of what the target has not said yet. Reads no draft."""
        if not self._reads_features:
            return Evidence(None, None)
        no = jnp.zeros((), jnp.int32)
        tokens = jnp.zeros(self.length, jnp.int32)
        line = Line(tokens, tokens[:, None], None, jnp.zeros(self.length, jnp.float32))
        shapes = jax.eval_shape(
            lambda: self.evidence(params, state.row, self.verify_pending(params, state, line).hidden, no)
        )
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

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

    def tried(self, row: Row, line: Line, num_pending: jax.Array) -> jax.Array:
        """`[C]` bool, the branch point's candidates that are tried: the first few, or none without room."""
        count = self.num_active(line.confidence[num_pending])
        return (jnp.arange(self.max_branches) < count) & (num_pending < self._room(row))

    def num_active(self, confidence: jax.Array) -> jax.Array:
        """`[]` int32, how many candidates are tried at a confidence: k of SpecBranch."""
        return jnp.maximum(jnp.floor(self.max_branches * (1.0 - confidence)).astype(jnp.int32), 1)

    def verify_pending(self, params: dict[str, Params], state: State, line: Line) -> Output:
        """The target's half: one forward over the root and G - 1 tokens of the line. Reads no draft."""
        places = jnp.arange(self.length, dtype=jnp.int32)
        return self.target.apply(
            params["target"],
            jnp.append(state.row.root[None], line.tokens[:-1]),
            state.row.root_position + places,
            state.contexts["target"],
            self.target.empty(self.length),
            0,
            places[:, None] >= places[None, :],
        )

    def resolve(self, row: Row, drafted: Drafted, logits: jax.Array, key: jax.Array) -> Resolved:
        """The pending tokens, then the candidates, against the target's `[G, V]` logits; the key is the round's."""
        if row.options.temperature is None:
            return self._resolve_greedy(row, drafted, logits)

        def visit(carry: tuple) -> tuple:
            place, _, _, _, _, accept = carry
            accepts, rest = self.test(row, drafted, place, logits[place])
            branch, is_hit = verify.draw_outcome(proposals.key_of(key, place, OUTCOME), accepts)
            goes_on = is_hit & (place < drafted.num_pending)
            return place + goes_on.astype(jnp.int32), branch, is_hit, ~goes_on, rest, accept.at[place].set(accepts)

        zero, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
        nothing = jnp.zeros(logits.shape[1], jnp.float32), jnp.zeros((self.length, self.max_branches), jnp.float32)
        start = (zero, zero, no, no, *nothing)
        place, branch, survives, _, rest, accept = jax.lax.while_loop(lambda carry: ~carry[3], visit, start)
        correction = sampling.draw(proposals.key_of(key, place, RESIDUAL), rest)
        token = jnp.where(survives, drafted.line.candidates[place, branch], correction)
        return Resolved(place, branch, survives, token, accept)

    def test(self, row: Row, drafted: Drafted, place: jax.Array, logits: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One position's `[C]` acceptance probabilities, and the `[V]` law of the correction when all fail.

        Args:
            row: The row, with its options.
            drafted: Its line, pending tokens and candidates.
            place: `[]` int32 position on the line, up to the branch point.
            logits: `[V]` of the target there.
        """
        is_fork = place == drafted.num_pending
        line = jax.tree.map(lambda leaf: leaf[place], drafted.line)
        assert line.probs is not None  # kept whenever a row may sample
        children = jnp.where(is_fork, line.candidates, line.tokens)
        active = jnp.where(is_fork, drafted.is_active, jnp.arange(self.max_branches) == 0)
        is_fixed = is_fork & (self.fork == verify.TOP_K)
        return proposals.outcome(
            verify.SEQUOIA, self.target, self.draft, row, logits, line.probs, children, active, is_fixed
        )

    def commit(
        self, params: dict[str, Params], state: State, drafted: Drafted, output: Output, resolved: Resolved
    ) -> tuple[State, Info]:
        """Emits what stands, appends it to both contexts, and goes on with the surviving branch."""
        row, emitted, kept = self.emit(state.row, drafted, resolved, output.logits)
        contexts = {
            "target": self.commit_target(state, output.block, resolved, kept),
            "draft": self.commit_draft(state, drafted.block, resolved, row),
        }
        evidence = self.evidence(params, row, output.hidden, resolved.num_pending)
        memory = self.go_on(params, row, drafted, resolved, evidence)
        return State(row, contexts, memory), self.report(state, row, drafted, resolved, emitted, kept)

    def emit(
        self, row: Row, drafted: Drafted, resolved: Resolved, logits: jax.Array | None
    ) -> tuple[Row, jax.Array, jax.Array]:
        """The row with what stands; the `[G]` tokens that it took the first ones of; and `[]` int32, how many.

        The logits, `[G, V]` of the target, are read only where the row keeps log-probabilities.
        """
        places = jnp.arange(self.length, dtype=jnp.int32)
        emitted = jnp.where(places < resolved.num_pending, drafted.line.tokens, resolved.token)
        logprobs = None
        if row.logprobs is not None and logits is not None:
            logprobs = states.token_logprobs(logits, emitted)
        row, kept = states.emit(row, emitted, resolved.num_pending + 1, logprobs)
        return row, emitted, kept

    def commit_target(self, state: State, block: Entries, resolved: Resolved, kept: jax.Array) -> Context:
        """The target's context, up to the new root: with the old one and what was emitted, but for the last token."""
        return cache.commit(self.target, state.contexts["target"], block, kept, anchor=resolved.token)

    def commit_draft(self, state: State, block: Entries, resolved: Resolved, row: Row) -> Context:
        """The draft's context, up to the token in front of the new root, which the next round reads again.

        Args:
            state: Before the round.
            block: What the draft wrote in it.
            resolved: What verification made of it.
            row: The row behind it.
        """
        context = state.contexts["draft"]
        places = jnp.arange(self.length + 1, dtype=jnp.int32)
        has_previous = state.row.num_tokens > 1
        missing = jnp.maximum(row.num_tokens - 2, 0) - context.length
        indices = jnp.where(has_previous, places, places + 1)
        return cache.commit(self.draft, context, block, missing, indices, resolved.token)

    def evidence(self, params: dict[str, Params], row: Row, hidden: jax.Array | None, place: jax.Array) -> Evidence:
        """What a cut may read of the target behind a round.

        Args:
            params: The target's are read.
            row: The row behind the round.
            hidden: `[G, K, D]` features that the target gave in it.
            place: `[]` int32 of the newest verified position.

        Raises:
            ValueError: The cut needs features, and the target gives none.
        """
        if not self._reads_features:
            return Evidence(None, None)
        if hidden is None:
            raise ValueError(
                f"The target {type(self.target).__name__} gives no features, which H-RAD reads: load it with "
                "num_features=K for those of its last K layers."
            )
        return Evidence(hidden[place], self.target.embed(params["target"], row.root))

    def go_on(
        self, params: dict[str, Params], row: Row, drafted: Drafted, resolved: Resolved, evidence: Evidence
    ) -> Memory:
        """What is pending behind the row's new root: the surviving continuation, up to the cut. Reads no target."""
        line = jax.tree.map(lambda leaf: leaf[resolved.branch], drafted.continuations)
        cutting = self._cut(params, row, line, evidence)
        return Memory(
            line,
            jnp.where(resolved.survives, cutting.kept, 0),
            ~resolved.survives,
            cutting.label,
            *self._kept(evidence),
        )

    def report(
        self, state: State, row: Row, drafted: Drafted, resolved: Resolved, emitted: jax.Array, kept: jax.Array
    ) -> Info:
        """What the round reports.

        The verified path is the pending tokens, the accepted candidate (else the first), and the G - 1 tokens that
        continue it. Each token counts where it was first drafted: a branch counts G, less its candidate where that was
        cut from the continuation before, and a draft stage G - 1; all of them only as far as the draft's room goes.
        """
        memory, num_pending, survives = state.memory, drafted.num_pending, resolved.survives
        is_live, room = ~state.row.is_finished, self._room(state.row)
        num_accepted = resolved.num_pending + survives.astype(jnp.int32)
        was_cut = kept <= resolved.num_pending  # by a stop id or the limit, before the last verified position
        has_branch = num_pending < room
        size = jnp.clip(room - num_pending, 0, self.length)
        is_staged = self.has_draft_stage & memory.is_fresh & (state.row.num_rounds > 0)
        staged = jnp.where(is_staged, jnp.minimum(self.length - 1, room), 0)
        was_drafted = (~memory.is_fresh | is_staged) & (num_pending < self.length - 1) & has_branch
        before = staged - was_drafted.astype(jnp.int32)
        goes_on = survives & ~row.is_finished
        rolled_back = jnp.where(goes_on, 0, num_pending + size - jnp.minimum(kept, num_accepted))
        places = jnp.arange(self.length, dtype=jnp.int32)
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
            is_visited=(places <= resolved.num_pending)
            & (places < kept)
            & (places < jnp.minimum(num_pending + 1, room)),
            tally=self._tally(state, drafted, resolved, ends, is_live),
        )

    def draft_first(self, params: dict[str, Params], state: State) -> Line:
        """A line's position right behind the root."""
        block = self.draft.empty(2)
        tokens, positions, mask = _root_tokens(state.row, 2)
        output = self.draft.apply(params["draft"], tokens, positions, state.contexts["draft"], block, 0, mask)
        return self._propose(state.row, 0, PROPOSAL, output.logits[1])

    def _propose(self, row: Row, number: jax.Array | int, purpose: int, logits: jax.Array) -> Line:
        """One position of a line (no leading axis) from the draft's logits in front of it."""
        key = proposals.key_of(states.round_key(row), number, purpose)
        logits = proposals.adjusted(self.target, self.draft, row, logits)
        drawn, probs = proposals.draw(verify.SEQUOIA, row, key, logits, self.max_branches)
        return self.position(logits, drawn, probs)

    def position(self, logits: jax.Array, drawn: jax.Array, probs: jax.Array | None) -> Line:
        """One position of a line (no leading axis), from what was drawn there; draws nothing.

        Args:
            logits: `[P]` of the draft, adjusted (`proposals.adjusted`).
            drawn: `[C]` places among the P tokens, in draw order.
            probs: `[P]` that they were drawn from, or None.
        """
        tried = sampling.top_k(logits, self.max_branches)[1] if self.fork == verify.TOP_K else drawn
        confidence = jnp.zeros((), jnp.float32)
        if self.max_branches > 1 or self.cut != hrad.KEEP_ALL:
            certain = logits.max() if self.fork == verify.TOP_K else logits[drawn[0]]
            confidence = jnp.exp(certain - jax.nn.logsumexp(logits))
        ids = proposals.token_ids(self.draft, jnp.append(drawn[:1], tried))
        return Line(ids[0], ids[1:], probs, confidence)

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
        label = jnp.where(is_first, hrad.NONE, cutting.label)
        is_fresh = memory.is_fresh
        return jnp.where(is_fresh, count, memory.num_pending), jnp.where(is_fresh, label, memory.label)

    def _cut(self, params: dict[str, Params], row: Row, line: Line, evidence: Evidence) -> hrad.Cutting:
        """Where a line behind the row's newest token is cut; the draft's positions may end it before."""
        cutting = self.cut(params.get("hrad"), evidence.features, evidence.embedding, line.confidence)
        return cutting._replace(kept=jnp.minimum(cutting.kept, self._room(row)))

    def _room(self, row: Row) -> jax.Array:
        """`[]` int32 tokens behind the root that the draft can propose, each by one that it has a position for."""
        limit = getattr(self.draft, "max_length", None)
        most = jnp.asarray(2 * self.length, jnp.int32)  # more than a round has
        return most if limit is None else jnp.clip(limit - row.root_position, 0, most)

    @property
    def _reads_features(self) -> bool:
        return self.keeps_features or self.cut.reads_features

    def _kept(self, evidence: Evidence) -> Evidence:
        """What the memory keeps of the evidence: all where the draft stage or a training reads it, else nothing."""
        keeps = self.keeps_features or (self.cut.reads_features and self.has_draft_stage)
        return evidence if keeps else Evidence(None, None)

    def _resolve_greedy(self, row: Row, drafted: Drafted, logits: jax.Array) -> Resolved:
        """Every token against the arg-max in front of it: no vocabulary-size work but that."""
        best = jax.vmap(lambda one: sampling.argmax(sampling.adjust(row.options, one)))(logits)
        places = jnp.arange(self.length, dtype=jnp.int32)
        stands = (drafted.line.tokens == best) & (places < drafted.num_pending)
        place = jnp.argmin(stands).astype(jnp.int32)  # the branch point at the latest
        is_fork = place == drafted.num_pending
        matches = (drafted.line.candidates[place] == best[place]) & drafted.is_active & is_fork
        first = jnp.arange(self.max_branches) == 0
        accept = jnp.where((places == place)[:, None], matches[None], (places < place)[:, None] & first[None])
        branch = jnp.argmax(matches).astype(jnp.int32)
        return Resolved(place, branch, matches.any(), best[place], accept.astype(jnp.float32))

    def _tally(self, state: State, drafted: Drafted, resolved: Resolved, ends: jax.Array, is_live: jax.Array) -> Tally:
        """The counts of a round. A line's class is judged where the round was not cut short."""
        stands = ~ends[0]  # read only where the round has an end
        line = drafted.line
        own_stands = resolved.survives & (
            line.candidates[drafted.num_pending, resolved.branch] == line.tokens[drafted.num_pending]
        )
        came_true = jnp.stack([~own_stands & (resolved.num_pending == 0), stands & ~own_stands, stands])
        has_label = ends.any() & (~state.memory.is_fresh | (self.has_draft_stage & (state.row.num_rounds > 0)))
        labels = (jnp.arange(hrad.NUM_CLASSES) == drafted.label) & has_label
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


def specbranch(
    target: Model,
    draft: Model,
    hrad_network: hrad.Network | None,
    length: int,
    max_branches: int,
    epsilon: float,
    *,
    fork: verify.Rule = verify.SEQUOIA,
    has_draft_stage: bool = False,
) -> BranchDecoder:
    """SpecBranch: branches at a fork, and H-RAD to put the fork where the draft is about to fail.

    Args:
        target: The target; with features of its last K layers (`num_features=K`) where H-RAD reads them.
        draft: The draft.
        hrad_network: H-RAD's network, whose parameters are `params["hrad"]`; None: the confidence alone cuts.
        length: G (gamma), tokens of a branch, its candidate included.
        max_branches: The most candidates of a fork.
        epsilon: The confidence below which a continuation is cut, 0 to 1.
        fork: The rule of a fork's candidates, `verify.SEQUOIA` or `verify.TOP_K`.
        has_draft_stage: Whether the draft works alone after a rejection, as in the paper.

    Raises:
        ValueError: A number out of range, or a draft with fewer tokens than the target.
    """
    cut = hrad.Confidence(epsilon) if hrad_network is None else hrad.HRad(hrad_network, epsilon)
    return BranchDecoder(target, draft, length, max_branches, cut, fork, has_draft_stage)


def pearl(target: Model, draft: Model, length: int) -> BranchDecoder:
    """PEARL: one branch, nothing is cut. `length` tokens are drafted while as many are verified.

    Raises:
        ValueError: A length below 1, or a draft with fewer tokens than the target.
    """
    return BranchDecoder(target, draft, length, 1)


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
