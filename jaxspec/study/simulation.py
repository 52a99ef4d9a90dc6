"""What one device and two would give: logged rounds and a table of step times, laid out on a time line.

A round is forwards of the draft and one forward of the target. What a method is like shows in when the draft's are
taken: *before* the target's, which waits for them, as in a chain, a tree or SpecBranch's draft stage; or *beside* it,
as the branches of SpecBranch and PEARL are. On one device all of them follow one another. On two a round is

    draft's device     before ──┬── beside ─────────────┐
                                │                       ├── settle ──► the next round
    target's device             └── target's forward ───┘

so that a round without anything beside gains nothing from a second device. `log_rounds` logs a decoder's own rounds,
with the forwards that its compiled programs make.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from jaxspec.profiles import Profile

FLAT_TOKENS = 64
"""Up to how many tokens a GPU's step takes the same time, about."""


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


class StepTimes(NamedTuple):
    """How long a forward takes.

    Attributes:
        target: Milliseconds of one target forward by its number of tokens.
        draft: Milliseconds of one draft forward, likewise.
    """

    target: Callable[[int], float]
    draft: Callable[[int], float]


class Simulation(NamedTuple):
    """What some rounds take.

    Attributes:
        ms_per_token: Milliseconds for each emitted token.
        speedup: Over plain decoding by the same table, one target forward over 1 token for each token.
        target_busy: Share of the time in which the target runs.
        draft_busy: Share of the time in which the draft runs.
    """

    ms_per_token: float
    speedup: float
    target_busy: float
    draft_busy: float


def simulate(
    rounds: Sequence[Round], times: StepTimes, *, num_devices: int, overhead_ms: float = 0.0, crossing_ms: float = 0.0
) -> Simulation:
    """The time of the rounds, one after another.

    Args:
        rounds: Of one row, or of several, which then follow one another.
        times: Of the forwards.
        num_devices: 1: draft and target share it and take turns. 2: each has its own.
        overhead_ms: Milliseconds that settling a round takes: verification, commit, the cut.
        crossing_ms: Milliseconds that a small array takes to the other of two devices; see `jobs_of`.

    Raises:
        ValueError: No rounds, another number of devices, or a time that is negative or not finite.
    """
    if not rounds:
        raise ValueError("rounds is empty: log at least one, as log_rounds does.")
    spans = run(jobs_of(rounds, times, num_devices=num_devices, overhead_ms=overhead_ms, crossing_ms=crossing_ms))
    total = spans[-1].end
    busy = {kind: sum(span.job.ms for span in spans if span.job.kind in kinds) for kind, kinds in _KINDS.items()}
    ms_per_token = total / sum(entry.emitted for entry in rounds)
    shares = (busy[kind] / total if total > 0 else 0.0 for kind in ("target", "draft"))
    return Simulation(ms_per_token, times.target(1) / ms_per_token if total > 0 else float("inf"), *shares)


# The time line


class Job(NamedTuple):
    """Something that takes time.

    Attributes:
        kind: "before", "beside", "target", "settle" or "crossing".
        device: What is busy with it; None: nothing, it is only waited for.
        ms: Milliseconds.
        needs: Places, in the list of jobs, of earlier ones that must have ended.
    """

    kind: str
    device: str | None
    ms: float
    needs: tuple[int, ...]


class Span(NamedTuple):
    """When a job runs, in milliseconds from the beginning."""

    job: Job
    start: float
    end: float


_KINDS = {"target": ("target",), "draft": ("before", "beside")}


def run(jobs: Iterable[Job]) -> list[Span]:
    """When each job runs: as soon as what it needs has ended and its device has done the jobs queued before it.

    A device does its jobs in the order of the list, as one does what is dispatched to it.

    Raises:
        ValueError: A job that needs itself or a later one, or whose time is negative or not finite.
    """
    spans: list[Span] = []
    free_at: dict[str, float] = {}
    for place, job in enumerate(jobs):
        if not 0 <= job.ms < float("inf"):
            raise ValueError(f"{job.kind} takes {job.ms} ms, but a time is finite, 0 or more: check the step times.")
        if not all(0 <= need < place for need in job.needs):
            raise ValueError(f"job {place} needs {job.needs}, but can only need earlier ones: list those before it.")
        start = max((spans[need].end for need in job.needs), default=0.0)
        if job.device is not None:
            start = max(start, free_at.get(job.device, 0.0))
            free_at[job.device] = start + job.ms
        spans.append(Span(job, start, start + job.ms))
    return spans


def jobs_of(
    rounds: Iterable[Round], times: StepTimes, *, num_devices: int, overhead_ms: float = 0.0, crossing_ms: float = 0.0
) -> list[Job]:
    """The rounds' jobs; arguments as for `simulate`.

    On two devices there cross, each time waited for: what is pending, to the target's device, before its forward; what
    was drafted, to the same, before settling; and the outcome back, before the draft goes on. What a round lacks does
    not cross.

    Raises:
        ValueError: Another number of devices than 1 or 2.
    """
    if num_devices not in (1, 2):
        raise ValueError(f"num_devices={num_devices}: there are a draft and a target, on 1 device or on 2.")
    target, draft = ("target", "draft") if num_devices == 2 else ("both", "both")
    jobs: list[Job] = []

    def add(kind: str, device: str | None, ms: float, *needs: int) -> int:
        jobs.append(Job(kind, device, ms, needs))
        return len(jobs) - 1

    def cross(need: int) -> int:
        return add("crossing", None, crossing_ms, need) if num_devices == 2 else need

    known = add("settle", None, 0.0)  # what the next round begins with, as the draft's device knows it
    for entry in rounds:
        before = add("before", draft, sum(map(times.draft, entry.before)), known)
        has_draft = entry.before or entry.beside
        verified = add("target", target, times.target(entry.target), cross(before) if has_draft else before)
        ended = [verified]
        if entry.beside:
            ended.append(cross(add("beside", draft, sum(map(times.draft, entry.beside)), before)))
        settled = add("settle", target, overhead_ms, *ended)
        known = cross(settled) if has_draft else settled
    return jobs


# Tables of step times


def profile_times(profile: Profile) -> StepTimes:
    """The step times that were measured of a pair on a machine."""
    return StepTimes(profile.verify_time, profile.draft_time)


def table_times(target_ms: Mapping[int, float], draft_ms: Mapping[int, float]) -> StepTimes:
    """Measured step times, milliseconds by number of tokens; between them as `Profile.verify_time` has it.

    Raises:
        ValueError: As for a `Profile`; 1 must be among the target's sizes.
    """
    return profile_times(Profile(acceptance=(0.0,), verify_ms=target_ms, draft_ms=draft_ms))


def flat_times(target_ms: float, c: float, num_tokens: int = FLAT_TOKENS) -> StepTimes:
    """A GPU's step times, roughly: one time up to `num_tokens` tokens, in proportion to them beyond.

    Args:
        target_ms: Milliseconds of a target forward.
        c: Target step / draft step, as in SpecBranch.
        num_tokens: How far both are flat.

    Raises:
        ValueError: A number that is not above 0.
    """
    if not (target_ms > 0 and c > 0 and num_tokens > 0):
        raise ValueError(f"target_ms={target_ms}, c={c}, num_tokens={num_tokens}: each is above 0.")

    def time_of(ms: float) -> Callable[[int], float]:
        return lambda tokens: ms * max(1.0, tokens / num_tokens)

    return StepTimes(time_of(target_ms), time_of(target_ms / c))


# Logs


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


def without_rereading(rounds: Iterable[Round]) -> list[Round]:
    """The same rounds of a branch decoder with the draft forwards that the papers count, for comparison with them.

    This library's draft keeps no entries of pending tokens from one round to the next, and reads them again in one
    forward; nor does a draft stage hand over what it read. An implementation that kept all entries would save that.
    What remains is the continuation of the branches, and the drafting of a line where there is none.
    """
    return [_without_rereading(entry) for entry in rounds]


def _without_rereading(entry: Round) -> Round:
    if not entry.beside:
        return entry
    if not entry.is_fresh:
        return entry._replace(before=(), beside=entry.beside[1:])
    if entry.before:  # the stage has read the root, and its last forward is that of the first branch
        return entry._replace(before=entry.before[:-1], beside=entry.beside[1:])
    return entry


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
    length, tally = decoder.length, info.tally
    before: tuple[int, ...] = ()
    if decoder.has_draft_stage:  # the root; then as many tokens as the stage drafts, in the first round 1
        before = (2, *(1,) * ((length if number else 1) if is_fresh else 0))
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
        before=before,
        beside=(length + 1, *(decoder.max_branches,) * length),
        target=length,
    )


def _tree_round(decoder: TreeDecoder, info: Any) -> Round:
    widths = decoder.forwards["draft"]
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
