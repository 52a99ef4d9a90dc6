"""The jobs of logged rounds on one device or two, laid out on a time line."""

from collections.abc import Iterable
from typing import NamedTuple

from jaxspec.study.round_log import Round
from jaxspec.study.step_times import StepTimes


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
