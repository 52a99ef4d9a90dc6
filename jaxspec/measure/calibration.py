"""How sure a draft is of its tokens, and how often it is right: what a cut by confidence is planned from.

A calibration is `[2, n, 2]`: for tokens right behind a rejection, then for all others, and for each of n equal steps of
the draft's confidence from 0 to 1, the share of these tokens that have it, and how many of them are accepted. The two
kinds differ, since a rejection is where the draft's text had gone wrong. `theory.renewal` predicts SpecBranch from it.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxspec.base import Model, Params
from jaxspec.decode import Info, State
from jaxspec.decode.branches import cuts
from jaxspec.decode.branches.decoder import BranchDecoder, branch_decoder
from jaxspec.measure import observing

LENGTH = 8
"""Tokens of the continuations that are looked at."""

STEPS = 20


def measured(
    target: Model,
    draft: Model,
    params: dict[str, Params],
    prompts: Sequence[Sequence[int]],
    *,
    steps: int = STEPS,
    **options: Any,
) -> np.ndarray | None:
    """`[2, steps, 2]` calibration of a draft, by PEARL's rounds; None where they had no tokens of one of the kinds.

    A round tests its tokens up to the first that is not accepted; rounds that a stop id or the limit cut short count
    for nothing. A token's confidence is the draft's own probability of it, at temperature 1.

    Args:
        target: The target.
        draft: The draft.
        params: `{"target": …, "draft": …}`.
        prompts: Lists of token ids.
        steps: n.
        **options: Of `observing.observed`; `key`, which is consumed, and `max_new_tokens` must be among them.

    Raises:
        ValueError: No prompts, a batch size below 1, or anything that `decode.generate` refuses.
    """
    decoder = branch_decoder(target, draft, LENGTH, 1, cut=cuts.Confidence(0.0))  # which cuts nothing
    tested, accepted = np.zeros((2, 2, steps))
    observe = functools.partial(_observe, decoder)
    for before, after, _, is_own in observing.observed(decoder, params, prompts, observe, **options):
        places = np.arange(LENGTH)
        step = np.minimum((before.confidence * steps).astype(int), steps - 1)
        is_tested = (places <= np.minimum(after.num_stand, before.num_pending)[:, None]) & after.is_judged[:, None]
        stands = is_tested & (places < after.num_stand[:, None])
        for kind, rows in enumerate((before.is_fresh & is_own, ~before.is_fresh & is_own)):
            tested[kind] += np.bincount(step[rows][is_tested[rows]], minlength=steps)
            accepted[kind] += np.bincount(step[rows][stands[rows]], minlength=steps)
    totals = tested.sum(1, keepdims=True)
    if not totals.all():
        return None
    return np.stack([tested / totals, accepted / np.maximum(tested, 1)], axis=-1)


class _Seen(NamedTuple):
    """What is read of a round: what it left for the next one to test, and how many of its own tokens stood.

    Attributes:
        confidence: `[B, G]` of the pending tokens, and of the fork's candidate behind them.
        num_pending: `[B]`.
        is_fresh: `[B]` bool, whether the round ended with a rejection.
        num_stand: `[B]` tokens that this round accepted, with the candidate.
        is_judged: `[B]` bool, whether it ended by itself.
    """

    confidence: jax.Array
    num_pending: jax.Array
    is_fresh: jax.Array
    num_stand: jax.Array
    is_judged: jax.Array


@functools.partial(jax.jit, static_argnums=0)
def _observe(decoder: BranchDecoder, params: dict[str, Params], state: State, info: Info) -> _Seen:
    memory, tally = state.memory, info.tally
    begun = jax.vmap(decoder.drafter.begin_line, in_axes=(None, 0))(params, state)
    return _Seen(
        confidence=begun.memory.line.confidence,
        num_pending=memory.num_pending,
        is_fresh=memory.is_fresh,
        num_stand=info.num_accepted,
        is_judged=(tally.pending_rejected + tally.branch_rejected + tally.survived) > 0,
    )
