"""Acceptance by child rank and depth, measured by running a decoder."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxspec import decode
from jaxspec.base import Params, Progress
from jaxspec.decode import Decoder

NEW_TOKENS = 128
"""SEQUOIA's protocol: 200 prompts of up to 128 tokens, 128 new tokens each."""


class Acceptance(NamedTuple):
    """Acceptance by the depth of the parent and the rank of the child.

    Attributes:
        acceptance: `[depth, C]` mean probability that this child is the accepted one, at a tested node of that depth.
        standard_errors: `[depth, C]` of these means, positions taken as independent.
        rejection: `[depth]` mean probability that no child is.
        counts: `[depth]` tested nodes.
        rounds: Rounds that were run.
        tokens_per_round: Tokens that the measuring tree itself emitted a round.
    """

    acceptance: np.ndarray
    standard_errors: np.ndarray
    rejection: np.ndarray
    counts: np.ndarray
    rounds: int
    tokens_per_round: float

    def pooled(self) -> tuple[np.ndarray, np.ndarray, float]:
        """`[C]` acceptance and standard errors whatever the depth, and the rejection."""
        weights = self.counts / max(self.counts.sum(), 1)
        errors = np.sqrt(((weights[:, None] * self.standard_errors) ** 2).sum(0))
        return (weights[:, None] * self.acceptance).sum(0), errors, float((weights * self.rejection).sum())


def acceptance(
    decoder: Decoder,
    params: dict[str, Params],
    prompts: Sequence[Sequence[int]],
    *,
    key: jax.Array,
    max_new_tokens: int = NEW_TOKENS,
    batch_size: int = 1,
    progress: Progress | None = None,
    **asked: Any,
) -> Acceptance:
    """Acceptance by child rank, and by depth, of the contexts that a decoder itself comes through.

    A star tree (`tree.star`) measures the root's children, a comb (`tree.comb`) the children along the chain of first
    children. What is averaged is the rule's acceptance probability of each child rather than the outcome: the same
    expectation with far less variance (at temperature 0 the two are one).

    Args:
        decoder: Such as `decode.sequoia(target, draft, tree.comb(width, depth))`.
        params: Parameters by model name.
        prompts: Lists of token ids.
        key: The key is consumed.
        max_new_tokens: New tokens of each prompt.
        batch_size: Prompts decoded side by side.
        progress: Told after each batch.
        **asked: As for `decode.generate`, such as `sampling`, `draft_temperature` and `stop_ids`.

    Raises:
        ValueError: No prompts, or a batch size below 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}; at least one prompt is decoded at a time.")
    if not prompts:
        raise ValueError("prompts is empty: acceptance is measured on at least one.")
    total: decode.Stats | None = None
    for start in range(0, len(prompts), batch_size):
        batch = list(prompts[start : start + batch_size])
        padded = batch + batch[:1] * (batch_size - len(batch))  # the last batch keeps the shape that is compiled
        generation = decode.generate(
            decoder,
            params,
            padded,
            key=jax.random.fold_in(key, start),
            max_new_tokens=max_new_tokens,
            logprobs=False,
            **asked,
        )
        stats = generation.stats.total(len(batch))
        total = stats if total is None else total.merged(stats)
        if progress is not None:
            progress("acceptance", min(start + batch_size, len(prompts)), len(prompts))
    assert total is not None
    return _acceptance(total)


def _acceptance(total: decode.Stats) -> Acceptance:
    counts = total.counts
    visits = np.asarray(counts.visits, float)
    divisor = np.maximum(visits, 1.0)[:, None]
    mean = np.asarray(counts.accept, float) / divisor
    variance = np.maximum(np.asarray(counts.accept_squares, float) / divisor - mean**2, 0.0)
    return Acceptance(
        acceptance=mean,
        standard_errors=np.sqrt(variance / divisor),
        rejection=np.where(visits > 0, np.maximum(1.0 - mean.sum(1), 0.0), 0.0),
        counts=np.asarray(counts.visits, int),
        rounds=int(counts.rounds),
        tokens_per_round=float(total.tokens_per_round),
    )
