"""Rounds as a decoder runs them, logged with the forwards that each takes: what a simulation reads."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.base import Params
from jaxspec.decode import Decoder, loop
from jaxspec.decode.branches.decoder import BranchDecoder
from jaxspec.decode.plain import Autoregressive
from jaxspec.decode.request import Asked, checked
from jaxspec.decode.stats import Stats, add, zeros
from jaxspec.decode.trees.adaptive import AdaEDL
from jaxspec.decode.trees.decoder import TreeDecoder


class Round(NamedTuple):
    """One logged round of one row.

    Attributes:
        emitted: New tokens, at least 1.
        ending: "pending rejected", "branch rejected" or "survived" of a branch decoder; "rejected" or "accepted" (the
            whole path) of another; "cut" by a stop id or the limit before that was known.
        num_pending: Tokens behind the root that were drafted in earlier rounds, or in the draft stage; all of a chain.
        num_branches: Candidates that were continued beside the target's forward.
        is_fresh: Whether nothing was drafted behind the root when the round began.
        before: The number of tokens of each draft forward that the target waits for.
        beside: Likewise, of those that do not need the target, nor it them.
        target: Tokens of the target's forward.
    """

    emitted: int
    ending: str
    num_pending: int
    num_branches: int
    is_fresh: bool
    before: tuple[int, ...]
    beside: tuple[int, ...]
    target: int


class Log(NamedTuple):
    """What a decoder did.

    Attributes:
        rounds: For each prompt its rounds, with the forwards that the prompt alone would take.
        stats: The measures, by prompt.
    """

    rounds: list[list[Round]]
    stats: Stats


def log_rounds(
    decoder: Decoder,
    params: dict[str, Params],
    prompts: Sequence[Sequence[int]],
    *,
    key: jax.Array,
    **asked: Any,
) -> Log:
    """The rounds in which a decoder decodes some prompts.

    Arguments as for `decode.generate`; the prompts are decoded side by side, and a row's rounds do not depend on that.

    Raises:
        ValueError: A decoder of another kind than plain, chain, tree or branches, or what `decode.generate` refuses.
    """
    facts = _facts_of(decoder)
    request = checked(decoder, params, prompts, key, Asked(**asked, logprobs=False))
    rows: list[list[Round]] = [[] for _ in prompts]
    counts = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(prompts), *leaf.shape)), zeros(decoder))
    is_fresh = np.ones(len(prompts), bool)
    for state, info in loop.rounds(decoder, params, request):
        counts = _add(counts, info)
        info, is_fresh_then = jax.device_get((info, getattr(state.memory, "is_fresh", is_fresh)))
        for row, log in enumerate(rows):
            report = jax.tree.map(lambda leaf, row=row: leaf[row], info)
            if report.num_emitted > 0:  # not a row that was finished
                log.append(facts(report, bool(is_fresh[row]), len(log)))
        is_fresh = is_fresh_then
    return Log(rows, Stats(jax.device_get(counts)))


_add = jax.jit(jax.vmap(add))


Facts = Callable[[Any, bool, int], Round]
"""From a row's `Info`, whether nothing was drafted, and the number of the row's rounds before to what is logged."""


def _facts_of(decoder: Decoder) -> Facts:
    if isinstance(decoder, BranchDecoder):
        return lambda info, is_fresh, number: _branch_round(decoder, info, is_fresh, number)
    if isinstance(decoder, TreeDecoder):
        return lambda info, is_fresh, number: _tree_round(decoder, info)
    if isinstance(decoder, Autoregressive):
        return lambda info, is_fresh, number: Round(int(info.num_emitted), "accepted", 0, 0, True, (), (), 1)
    raise ValueError(
        f"{type(decoder).__name__}: the forwards of its rounds are not known here; log a plain, tree or branch decoder."
    )


def _branch_round(decoder: BranchDecoder, info: Any, is_fresh: bool, number: int) -> Round:
    length, tally, drafter = decoder.length, info.tally, decoder.drafter
    alone: tuple[int, ...] = ()
    if is_fresh:  # the root; with a stage the line behind it as well, but not before the target has run once
        alone = (1,) * (length if drafter.has_draft_stage and number else 1)
    beside = (drafter.max_branches,) * length
    if not drafter.has_draft_stage:
        alone, beside = (), (*alone, *beside)
    endings = {
        "pending rejected": tally.pending_rejected,
        "branch rejected": tally.branch_rejected,
        "survived": tally.survived,
    }
    return Round(
        emitted=int(info.num_emitted),
        ending=next((name for name, count in endings.items() if count), "cut"),
        num_pending=int(tally.pending),
        num_branches=int(tally.branches),
        is_fresh=is_fresh,
        before=alone,
        beside=beside,
        target=length,
    )


def _tree_round(decoder: TreeDecoder, info: Any) -> Round:
    widths = decoder.forwards.get("draft", ())
    if isinstance(decoder.drafter, AdaEDL):
        widths = widths[: max(1, int(info.num_drafted))]
    return Round(
        emitted=int(info.num_emitted),
        ending="rejected" if info.is_rejected else "accepted",
        num_pending=int(info.path_drafted),
        num_branches=0,
        is_fresh=True,
        before=widths,
        beside=(),
        target=decoder.forwards["target"][0],
    )
