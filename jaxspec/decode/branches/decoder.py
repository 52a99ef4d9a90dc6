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

from jaxspec import cache, sampling, verify
from jaxspec.base import Context, Entries, Model, Output, Params
from jaxspec.decode import proposals
from jaxspec.decode import state as states
from jaxspec.decode.branches import counts, cuts
from jaxspec.decode.branches.drafter import BranchDrafter
from jaxspec.decode.branches.lines import Drafted, Evidence, Line, Memory, Resolved, Tally
from jaxspec.decode.proposals import OUTCOME, RESIDUAL
from jaxspec.decode.state import Info, Row, State


@dataclasses.dataclass(frozen=True)
class BranchDecoder(BranchDrafter):
    """A decoder that drafts behind the tokens that are being verified.

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
        zero, classes = jnp.zeros((), jnp.int32), jnp.zeros(cuts.NUM_CLASSES, jnp.int32)
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

    @property
    def forwards(self) -> dict[str, tuple[int, ...]]:
        return {"target": (self.length,), "draft": (self.length + 1, *(self.max_branches,) * self.length)}

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
        is_fixed = is_fork if self.fork == verify.TOP_K else None
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
        return State(row, contexts, memory), counts.report(self, state, row, drafted, resolved, emitted, kept)

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


def specbranch(
    target: Model,
    draft: Model,
    hrad_network: cuts.Network | None,
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
    cut = cuts.Confidence(epsilon) if hrad_network is None else cuts.HRad(hrad_network, epsilon)
    return BranchDecoder(target, draft, length, max_branches, cut, fork, has_draft_stage)


def pearl(target: Model, draft: Model, length: int) -> BranchDecoder:
    """PEARL: one branch, nothing is cut. `length` tokens are drafted while as many are verified.

    Raises:
        ValueError: A length below 1, or a draft with fewer tokens than the target.
    """
    return BranchDecoder(target, draft, length, 1)
