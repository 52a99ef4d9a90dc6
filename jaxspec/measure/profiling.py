"""A profile of a pair on this machine: acceptance, the draft's confidence, step times and a round's overhead."""

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxspec import cache, decode, plan, records
from jaxspec import tree as trees
from jaxspec.base import Model, Params, Progress
from jaxspec.decode import Sampling
from jaxspec.measure import calibration, timing
from jaxspec.measure.ranks import NEW_TOKENS, Acceptance, acceptance
from jaxspec.profiles import Profile

NUM_PROMPTS = 200


PROMPT_TOKENS = 128


CALIBRATION_PROMPTS = 40
"""Prompts, from the first on, that the draft's confidence is measured on."""


VERIFY_SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)


DRAFT_WIDTHS = (1, 2, 4, 8, 16)


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
    found = Profile(
        **_acceptance_fields(measured, by_depth),
        verify_ms=verify_ms,
        draft_ms=draft_ms,
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
        machine=records.machine_description(),
        versions=records.library_versions(),
        date=datetime.date.today().isoformat(),
        calibration=None if sure is None else tuple(sure.tolist()),
    )
    overhead_ms = overhead(
        target, draft, params, found, min(prompts, key=len), key=jax.random.fold_in(key, len(prompts))
    )
    progress("times", 3, 3)
    return dataclasses.replace(found, overhead_ms=overhead_ms)


def _acceptance_fields(measured: Acceptance, by_depth: bool) -> dict[str, Any]:
    """A profile's fields of what was measured, by depth as far as any round came, or whatever the depth."""
    reached = int((measured.counts > 0).sum())  # depths that no round came to say nothing
    if by_depth and reached > 1:
        values, errors = measured.acceptance[:reached], measured.standard_errors[:reached]
        rejection: Any = tuple(measured.rejection[:reached].tolist())
        counts: Any = tuple(int(count) for count in measured.counts[:reached])
    else:
        values, errors, rejection = measured.pooled()
        counts = int(measured.counts.sum())
    return {
        "acceptance": tuple(_at_most_one(values).tolist()),
        "standard_errors": tuple(errors.tolist()),
        "rejection": rejection,
        "counts": counts,
    }


def _at_most_one(acceptance: np.ndarray) -> np.ndarray:
    """The acceptance with each row's sum at most 1, which float32 sums may miss by their rounding."""
    return acceptance / np.maximum(acceptance.sum(-1, keepdims=True), 1.0)
