"""SpecBranch and PEARL: the draft continues behind the tokens that the target is verifying.

Behind the root, the newest emitted token, lies a line of tokens that the draft drew one after another, each kept with
the distribution that it was drawn from: first the pending ones, then the branch point. In a round two things happen
that do not depend on each other: the target runs over the root and the pending tokens, and the draft forks at the
branch point into several candidates, the line's own token first, and continues each of them. Then the pending tokens
are verified from left to right and, if all of them stand, the candidates. The branch of the accepted candidate becomes
the new line, and a cut (`cuts`) says how much of it is pending. After a rejection there is no line; the next round
forks at its first position.

A round with G = 4, C = 2 and two pending tokens b, c behind the root a; d and e are the candidates; time to the right:

    draft     read d, e │ read their 2nd │ read their 3rd │ read their 4th ─┐
                                                                            ├─ b, c stand, e is accepted: emit b c e,
    target    read a, b, c (and a token that nobody needs) ─────────────────┘  go on with e's branch, up to the cut

The draft has read a, b and c in the round before, as a branch, and keeps what it stored of them. Where the root is a
correction (`fresh`) it first reads that one; with a draft stage it then goes on alone, before the target begins:

    draft     read a (draws b) │ read b, … │ cut │ read d, e │ …      draft     read a (draws d, e) │ read d, e │ …
    target                                       │ read a, b, c       target    read a
              with a draft stage                                                without

Exact at every temperature: what decides (the number of candidates, the cut) reads distributions, committed tokens and
draws that are tested before, and a drawn token is never dropped because of what it is.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp

from jaxspec import base, cache, verify
from jaxspec.base import Context, Entries, Model, Output, Params
from jaxspec.decode import proposals
from jaxspec.decode import state as states
from jaxspec.decode.branches import counts, cuts, widths
from jaxspec.decode.branches.drafter import BranchDrafter
from jaxspec.decode.branches.lines import Branches, Evidence, Line, Tally, Verdict
from jaxspec.decode.state import Info, Row, State
from jaxspec.decode.walk import walk


@dataclasses.dataclass(frozen=True)
class BranchDecoder:
    """A decoder that drafts behind the tokens that are being verified: the target's half, and the round.

    The class of a cut comes true, which counts as a hit: none, when the line's own token behind the root fails;
    partial, when all pending tokens stand and the line's own token behind them fails; all, when all pending ones stand.

    Attributes:
        drafter: The draft's half.
    """

    drafter: BranchDrafter

    @property
    def target(self) -> Model:
        """The model whose distribution is sampled."""
        return self.drafter.target

    @property
    def models(self) -> dict[str, tuple[Model, int]]:
        return {"target": (self.target, 1), "draft": (self.drafter.draft, 1)}

    @property
    def extra_params(self) -> tuple[str, ...]:
        return ("hrad",) if self.drafter.cut.reads_features else ()

    @property
    def zero_tally(self) -> Tally:
        zero, classes = jnp.zeros((), jnp.int32), jnp.zeros(cuts.NUM_CLASSES, jnp.int32)
        return Tally(zero, zero, zero, zero, zero, classes, classes)

    @property
    def length(self) -> int:
        """G, tokens of a branch."""
        return self.drafter.length

    @property
    def max_emitted(self) -> int:
        return self.length

    @property
    def depth(self) -> int:
        return self.length

    @property
    def max_children(self) -> int:
        return self.drafter.max_branches

    @property
    def forwards(self) -> dict[str, tuple[int, ...]]:
        """Those of a round that begins fresh; a survivor's lacks the draft's over one token."""
        alone = (1,) * (self.length if self.drafter.has_draft_stage else 1)
        return {"target": (self.length,), "draft": (*alone, *(self.max_children,) * self.length)}

    def init(self, params: dict[str, Params], row: Row) -> State:
        """The state before the prompt is read."""
        state = states.init(self, row)
        return state._replace(memory=self.drafter.first_memory(params, state, self.first_evidence(params, state)))

    def round(self, params: dict[str, Params], state: State) -> tuple[State, Info]:
        """Fork and continue the branches, verify the pending tokens, go on with the branch that survives."""
        if self.drafter.has_draft_stage:
            state = self.drafter.draft_stage(params, state)
        branches = self.drafter.draft_branches(params, state)
        output = self.verify_pending(params, state, state.memory.line)
        verdict = self.resolve(state.row, branches, output.logits, states.round_key(state.row))
        return self.commit(params, state, branches, output, verdict)

    def verify_pending(self, params: dict[str, Params], state: State, line: Line) -> Output:
        """The target's half: one forward over the root and G - 1 tokens of the line. Reads no draft."""
        places = jnp.arange(self.length, dtype=jnp.int32)
        return base.forward(
            self.target,
            params["target"],
            jnp.append(state.row.root[None], line.tokens[:-1]),
            state.row.root_position + places,
            state.contexts["target"],
            self.target.empty(self.length),
            0,
            places[:, None] >= places[None, :],
        )

    def resolve(self, row: Row, branches: Branches, logits: jax.Array, key: jax.Array) -> Verdict:
        """The pending tokens, then the candidates, against the target's `[G, V]` logits; the key is the round's."""
        chex.assert_shape(logits, (self.length, None))
        row = states.reading(row, self.target.vocab_size)
        if row.options.temperature is None:
            return self._resolve_greedy(row, branches, logits)

        def outcome(place: jax.Array) -> tuple[jax.Array, jax.Array]:
            return self.test(self.drafter.at_place(row, branches.line, place), branches, place, logits[place])

        def onward(place: jax.Array, child: jax.Array) -> tuple[jax.Array, jax.Array]:
            del child  # a pending token is the only one at its place; the walk ends with a candidate
            return place + 1, place < branches.num_pending

        end, correction = walk(outcome, onward, key, self.length, self.max_children, logits.shape[1])
        token = jnp.where(end.is_hit, branches.line.candidates[end.place, end.child], correction)
        return Verdict(end.place, end.child, end.is_hit, token, end.accept)

    def test(self, row: Row, branches: Branches, place: jax.Array, logits: jax.Array) -> tuple[jax.Array, jax.Array]:
        """One position's `[C]` acceptance probabilities, and the `[V]` law of the correction when all fail.

        Args:
            row: The row, with its options, whose past is that of the position.
            branches: Its line, pending tokens and candidates.
            place: `[]` int32 position on the line, up to the branch point.
            logits: `[V]` of the target there.
        """
        drafter = self.drafter
        is_fork = place == branches.num_pending
        line = jax.tree.map(lambda leaf: leaf[place], branches.line)
        assert line.probs is not None  # kept whenever a row may sample
        children = jnp.where(is_fork, line.candidates, line.tokens)
        active = jnp.where(is_fork, branches.is_active, jnp.arange(self.max_children) == 0)
        is_fixed = is_fork if drafter.fork == verify.TOP_K else None
        return proposals.outcome(
            verify.SEQUOIA, self.target, drafter.draft, row, logits, line.probs, children, active, is_fixed
        )

    def commit(
        self, params: dict[str, Params], state: State, branches: Branches, output: Output, verdict: Verdict
    ) -> tuple[State, Info]:
        """Emits what stands, appends it to both contexts, and goes on with the surviving branch."""
        row, emitted, kept = self.emit(state.row, branches, verdict, output.logits)
        contexts = {
            "target": self.commit_target(state, output.block, verdict, kept),
            "draft": self.drafter.commit_draft(state, branches.block, verdict, kept),
        }
        evidence = self.evidence(params, row, output.hidden, verdict.num_accepted)
        memory = self.drafter.go_on(params, row, branches, verdict, evidence)
        info = counts.info_of(self.drafter, state, row, branches, verdict, emitted, kept)
        return State(row, contexts, memory), info

    def emit(
        self, row: Row, branches: Branches, verdict: Verdict, logits: jax.Array | None
    ) -> tuple[Row, jax.Array, jax.Array]:
        """The row with what stands; the `[G]` tokens that it took the first ones of; and `[]` int32, how many.

        The logits, `[G, V]` of the target, are read only where the row keeps log-probabilities.
        """
        places = jnp.arange(self.length, dtype=jnp.int32)
        emitted = jnp.where(places < verdict.num_accepted, branches.line.tokens, verdict.token)
        logprobs = None
        if row.logprobs is not None and logits is not None:
            logprobs = states.token_logprobs(logits, emitted)
        row, kept = states.emit(row, emitted, verdict.num_accepted + 1, logprobs)
        return row, emitted, kept

    def commit_target(self, state: State, block: Entries, verdict: Verdict, kept: jax.Array) -> Context:
        """The target's context, up to the new root: with the old one and what was emitted, but for the last token."""
        return cache.commit(self.target, state.contexts["target"], block, kept, anchor=kept)

    def first_evidence(self, params: dict[str, Params], state: State) -> Evidence:
        """Zeros in place of what the target has not said yet. Reads no draft."""
        if not self.drafter.reads_features:
            return Evidence(None, None)
        no = jnp.zeros((), jnp.int32)
        tokens = jnp.zeros(self.length, jnp.int32)
        line = Line(tokens, tokens[:, None], None, jnp.zeros(self.length, jnp.float32))
        shapes = jax.eval_shape(
            lambda: self.evidence(params, state.row, self.verify_pending(params, state, line).hidden, no)
        )
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

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
        if not self.drafter.reads_features:
            return Evidence(None, None)
        if hidden is None:
            raise ValueError(
                f"The target {type(self.target).__name__} gives no features, which H-RAD reads: load it with "
                "num_features=K for those of its last K layers."
            )
        chex.assert_shape(hidden, (self.length, None, None))
        return Evidence(hidden[place], self.target.embed(params["target"], row.root))

    def _resolve_greedy(self, row: Row, branches: Branches, logits: jax.Array) -> Verdict:
        """Every token against the arg-max in front of it: no vocabulary-size work but that."""
        places = jnp.arange(self.length, dtype=jnp.int32)
        best = states.best(lambda place: self.drafter.at_place(row, branches.line, place), logits)
        stands = (branches.line.tokens == best) & (places < branches.num_pending)
        place = jnp.argmin(stands).astype(jnp.int32)  # the branch point at the latest
        is_fork = place == branches.num_pending
        matches = (branches.line.candidates[place] == best[place]) & branches.is_active & is_fork
        first = jnp.arange(self.max_children) == 0
        accept = jnp.where((places == place)[:, None], matches[None], (places < place)[:, None] & first[None])
        branch = jnp.argmax(matches).astype(jnp.int32)
        return Verdict(place, branch, matches.any(), best[place], accept.astype(jnp.float32))


def branch_decoder(
    target: Model,
    draft: Model,
    length: int,
    max_branches: int,
    cut: cuts.Cut = cuts.KEEP_ALL,
    fork: verify.Rule = verify.SEQUOIA,
    has_draft_stage: bool = False,
    *,
    width: widths.Width = widths.ADAPTIVE,
    keeps_features: bool = False,
) -> BranchDecoder:
    """A decoder of any cut, fork and width; the arguments are those of `BranchDrafter`.

    Raises:
        ValueError: A number out of range, or a draft with fewer tokens than the target.
    """
    return BranchDecoder(
        BranchDrafter(target, draft, length, max_branches, cut, fork, width, has_draft_stage, keeps_features)
    )


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
    width: str = "adaptive",
) -> BranchDecoder:
    """SpecBranch: branches at a fork, and H-RAD to put the fork where the draft is about to fail.

    Args:
        target: The target; with features of its last K layers (`num_features=K`) where H-RAD reads them.
        draft: The draft.
        hrad_network: H-RAD's network, whose parameters are `params["hrad"]`; None: the confidence alone cuts.
        length: G (gamma), tokens of a branch, its candidate included.
        max_branches: The most candidates of a fork; as many are continued.
        epsilon: The confidence below which a continuation is cut, 0 to 1.
        fork: The rule of a fork's candidates, `verify.SEQUOIA` or `verify.TOP_K`.
        has_draft_stage: Whether the draft works alone after a rejection, as in the paper.
        width: How many of the candidates are tried: "adaptive", the paper's max(1, floor(C (1 - confidence))); or
            "all". Either way all of them are continued, so that "all" costs nothing more here.

    Raises:
        ValueError: A number out of range, another width, or a draft with fewer tokens than the target.
    """
    cut = cuts.Confidence(epsilon) if hrad_network is None else cuts.HRad(hrad_network, epsilon)
    return branch_decoder(target, draft, length, max_branches, cut, fork, has_draft_stage, width=widths.width_of(width))


def pearl(target: Model, draft: Model, length: int) -> BranchDecoder:
    """PEARL: one branch, nothing is cut. `length` tokens are drafted while as many are verified.

    Raises:
        ValueError: A length below 1, or a draft with fewer tokens than the target.
    """
    return branch_decoder(target, draft, length, 1)
