"""Acceptance and step times of a pair on this machine, measured by running the decoders themselves."""

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxspec import cache, calibration, decode, plan, profiles, timing
from jaxspec import tree as trees
from jaxspec.base import Model, Params, Progress
from jaxspec.decode import Decoder, Sampling
from jaxspec.profiles import Profile
from jaxspec.sampling import GREEDY

NUM_PROMPTS = 200
PROMPT_TOKENS = 128
NEW_TOKENS = 128
"""SEQUOIA's protocol: 200 prompts of up to 128 tokens, 128 new tokens each."""

CALIBRATION_PROMPTS = 40
"""Prompts, from the first on, that the draft's confidence is measured on."""

VERIFY_SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
DRAFT_WIDTHS = (1, 2, 4, 8, 16)


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
    sampling: Sampling = GREEDY,
    draft_temperature: float | None = None,
    stop_ids: Sequence[int] = (),
    batch_size: int = 1,
    progress: Progress | None = None,
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
        sampling: As for `decode.generate`.
        draft_temperature: As for `decode.generate`.
        stop_ids: As for `decode.generate`.
        batch_size: Prompts decoded side by side.
        progress: Told after each batch.

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
            sampling=sampling,
            stop_ids=stop_ids,
            draft_temperature=draft_temperature,
            logprobs=False,
        )
        stats = generation.stats.total(len(batch))
        total = stats if total is None else total.merged(stats)
        if progress is not None:
            progress("acceptance", min(start + batch_size, len(prompts)), len(prompts))
    assert total is not None
    return _acceptance(total)


def overhead(
    target: Model,
    draft: Model,
    params: dict[str, Params],
    profile: Profile,
    prompt: Sequence[int],
    *,
    key: jax.Array,
    repeats: int = 5,
) -> float:
    """Milliseconds that a round of the profile's plan costs beyond its forwards: what `Profile.overhead_ms` holds.

    A plain round's own excess is taken off, since a speedup is over plain rounds. Rounds and forwards are measured in
    turns, since a difference of times of different moments would be noise. It is 0 where the plan is plain decoding,
    where the target has no positions for so many tokens, and where the noise leaves less than nothing.

    Args:
        target: The target.
        draft: The draft.
        params: Their parameters.
        profile: Acceptance, step times and temperatures; an overhead in it is not read.
        prompt: Token ids.
        key: The key is consumed.
        repeats: Measurements of each round and each forward.
    """
    tree = plan.best(dataclasses.replace(profile, overhead_ms=0.0)).tree
    short, long = timing.ROUND_TOKENS
    limit = getattr(target, "max_length", None)
    if limit is not None:
        long = min(long, limit - len(prompt))
    if tree.size == 1 or long < 2 * short:
        return 0.0
    decoder, plain = decode.sequoia(target, draft, tree), decode.autoregressive(target)
    capacity = max(timing.CAPACITY, cache.bucket(len(prompt) + long + decoder.max_emitted))
    timed: dict[Any, timing.Timed] = {
        method: timing.timed_round(
            method,
            params,
            prompt,
            key=key,
            num_tokens=(short, long),
            capacity=capacity,
            sampling=Sampling(profile.temperature),
            draft_temperature=profile.draft_temperature,
        )
        for method in (decoder, plain)
    }
    steps = {"target": (1, tree.size), "draft": sorted(set(tree.level_widths))}
    for role, model in (("target", target), ("draft", draft)):
        for size in steps[role]:
            timed[role, size] = timing.timed_step(model, params[role], size, capacity=capacity)
    times = {name: np.array(found) for name, found in timing.in_turns(timed, repeats).items()}
    beyond = times[decoder] - times["target", tree.size] - sum(times["draft", width] for width in tree.level_widths)
    return max(0.0, float(np.median(beyond - (times[plain] - times["target", 1]))))


def profile(
    target: Model,
    draft: Model,
    params: dict[str, Params],
    prompts: Sequence[Sequence[int]],
    *,
    key: jax.Array,
    width: int = 8,
    depth: int = 5,
    temperature: float = 0.0,
    draft_temperature: float | None = None,
    max_new_tokens: int = NEW_TOKENS,
    stop_ids: Sequence[int] = (),
    batch_size: int = 1,
    by_depth: bool = True,
    verify_sizes: Sequence[int] = VERIFY_SIZES,
    draft_widths: Sequence[int] = DRAFT_WIDTHS,
    names: tuple[str, str] = ("", ""),
    progress: Progress | None = None,
) -> Profile:
    """A profile of a pair on this machine: acceptance from a comb of `width` children and `depth` edges, and times.

    The calibration of the draft's confidence is from the first `CALIBRATION_PROMPTS` prompts.

    Args:
        target: The target.
        draft: The draft.
        params: `{"target": …, "draft": …}`.
        prompts: Lists of token ids, 200 of up to 128 tokens in SEQUOIA's protocol.
        key: The key is consumed.
        width: Children at each measured position.
        depth: Depths measured; 1 is a star.
        temperature: Of the target.
        draft_temperature: Of the draft; None: the target's.
        max_new_tokens: New tokens of each prompt.
        stop_ids: Token ids that end a row.
        batch_size: Prompts decoded side by side.
        by_depth: Whether the profile keeps the acceptance by depth, or pools it.
        verify_sizes: Tree sizes to time the target at; 1 must be among them.
        draft_widths: Level widths to time the draft at.
        names: Of target and draft, as the profile states them.
        progress: Told how far the work is.

    Raises:
        ValueError: Sizes without 1, or anything that `decode.generate` refuses.
    """
    if 1 not in verify_sizes:
        raise ValueError(f"verify_sizes={tuple(verify_sizes)} lacks 1, the plain step that every speedup is over.")
    tree = trees.star(width) if depth == 1 else trees.comb(width, depth)
    progress = progress or (lambda what, done, total: None)
    how: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "sampling": Sampling(temperature=temperature),
        "draft_temperature": draft_temperature,
        "stop_ids": stop_ids,
        "batch_size": batch_size,
    }
    measured = acceptance(decode.sequoia(target, draft, tree), params, prompts, key=key, progress=progress, **how)
    sure = calibration.measured(
        target,
        draft,
        params,
        prompts[:CALIBRATION_PROMPTS],
        key=jax.random.fold_in(key, len(prompts) + 1),
        progress=lambda _, done, total: progress("confidence", done, total),
        **how,
    )
    progress("times", 0, 3)
    verify_ms = timing.step_times(target, params["target"], verify_sizes)
    progress("times", 1, 3)
    draft_ms = timing.step_times(draft, params["draft"], draft_widths)
    progress("times", 2, 3)
    reached = int((measured.counts > 0).sum())  # depths that no round came to say nothing
    if by_depth and reached > 1:
        values, errors = measured.acceptance[:reached], measured.standard_errors[:reached]
        rejection: Any = tuple(measured.rejection[:reached].tolist())
        counts: Any = tuple(int(count) for count in measured.counts[:reached])
    else:
        values, errors, rejection = measured.pooled()
        counts = int(measured.counts.sum())
    found = Profile(
        acceptance=tuple(_at_most_one(values).tolist()),
        verify_ms=verify_ms,
        draft_ms=draft_ms,
        rejection=rejection,
        standard_errors=tuple(errors.tolist()),
        counts=counts,
        temperature=temperature,
        draft_temperature=draft_temperature,
        target=names[0],
        draft=names[1],
        protocol={
            "num_prompts": len(prompts),
            "longest_prompt": max(map(len, prompts)),
            "max_new_tokens": max_new_tokens,
            "tree": list(tree.parents),
            "rounds": measured.rounds,
            "tokens_per_round": measured.tokens_per_round,
        },
        machine=profiles.machine_description(),
        versions=profiles.library_versions(),
        date=datetime.date.today().isoformat(),
        calibration=None if sure is None else tuple(sure.tolist()),
    )
    overhead_ms = overhead(
        target, draft, params, found, min(prompts, key=len), key=jax.random.fold_in(key, len(prompts))
    )
    progress("times", 3, 3)
    return dataclasses.replace(found, overhead_ms=overhead_ms)


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


def _at_most_one(acceptance: np.ndarray) -> np.ndarray:
    """The acceptance with each row's sum at most 1, which float32 sums may miss by their rounding."""
    return acceptance / np.maximum(acceptance.sum(-1, keepdims=True), 1.0)
