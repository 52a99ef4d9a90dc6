"""What branch decoding carries: lines of drafted tokens, what a round makes of them, and what stays for the next."""

from typing import NamedTuple

import jax

from jaxspec.base import Entries


class Line(NamedTuple):
    """What the draft proposes at G positions in a row, each behind the line's own tokens of the positions before.

    Attributes:
        tokens: `[G]` int32, the line's own tokens: draws, or arg-maxima of a greedy draft.
        candidates: `[G, C]` int32, what a fork at the position tries, in this order. The line's own token is the first,
            but for the fork rule `verify.TOP_K`.
        probs: `[G, P]` float32 that they come from, over the P tokens that the draft can propose; None where all rows
            are greedy.
        confidence: `[G]` float32, see `BranchDecoder`.
    """

    tokens: jax.Array
    candidates: jax.Array
    probs: jax.Array | None
    confidence: jax.Array


class Memory(NamedTuple):
    """What is pending between two rounds.

    Attributes:
        line: Positions behind the root.
        entries: The draft's, of G tokens: the root, and the line's but for its last. Nobody reads them of a fresh row.
        num_pending: `[]` int32, the first ones, which the next round verifies; the branch point is behind them.
        is_fresh: `[]` bool, nothing was drafted yet behind the root: the line holds nothing.
        label: `[]` int32, the class of the cut that the line went through; see `cuts`.
        features: `[K, D]` of the target at the newest verified position; None unless they are kept.
        embedding: `[D]` of the root in the target; kept where the features are.
    """

    line: Line
    entries: Entries
    num_pending: jax.Array
    is_fresh: jax.Array
    label: jax.Array
    features: jax.Array | None
    embedding: jax.Array | None = None


class Evidence(NamedTuple):
    """What a cut reads of the target; None where it is not read.

    Attributes:
        features: `[K, D]` of the last K layers at the newest verified position, in front of the newest token.
        embedding: `[D]` of the newest token.
    """

    features: jax.Array | None
    embedding: jax.Array | None


class Branches(NamedTuple):
    """The draft's half of a round: a line, and the branches behind it.

    Attributes:
        line: The line, with the branch point's candidates.
        num_pending: `[]` int32.
        is_active: `[C]` bool, the candidates that are tried.
        label: `[]` int32, the class of the cut that the line went through.
        continuations: `Line` with a leading axis of C: G positions behind each candidate.
        block: The draft's entries: those of `Memory.entries`, then the branches'. Slot G + t C + r: step t, branch r.
    """

    line: Line
    num_pending: jax.Array
    is_active: jax.Array
    label: jax.Array
    continuations: Line
    block: Entries


class Verdict(NamedTuple):
    """What verification made of a round.

    Attributes:
        num_accepted: `[]` int32, how many pending tokens stand.
        branch: `[]` int32, the accepted candidate; any where none was.
        survives: `[]` bool, whether all pending tokens and a candidate were accepted.
        token: `[]` int32, emitted behind the pending tokens that stand: the candidate, or the correction;
            `sampling.NOTHING` where the target's logits give none.
        accept: `[G, C]` float32, see `Info`.
    """

    num_accepted: jax.Array
    branch: jax.Array
    survives: jax.Array
    token: jax.Array
    accept: jax.Array


class Tally(NamedTuple):
    """Counts of branch decoding, `[]` int32 or as stated, all 0 in the round of a finished row.

    Attributes:
        pending_rejected: Rounds that ended in the pending tokens.
        branch_rejected: Rounds whose candidates all failed.
        survived: Rounds that went on with a branch.
        branches: Candidates that were continued.
        pending: Pending tokens, accepted or not.
        labels: `[3]` lines by the class that the cut gave them.
        hits: `[3]` of those, the ones whose class came true; see `BranchDecoder`.
    """

    pending_rejected: jax.Array
    branch_rejected: jax.Array
    survived: jax.Array
    branches: jax.Array
    pending: jax.Array
    labels: jax.Array
    hits: jax.Array
