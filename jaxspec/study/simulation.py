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

from collections.abc import Sequence
from typing import NamedTuple

from jaxspec.study.round_log import Log, Round, log_rounds
from jaxspec.study.step_times import FLAT_TOKENS, StepTimes, flat_times, profile_times, table_times
from jaxspec.study.timeline import Job, Span, jobs_of, run

__all__ = [
    "FLAT_TOKENS",
    "Job",
    "Log",
    "Round",
    "Simulation",
    "Span",
    "StepTimes",
    "flat_times",
    "jobs_of",
    "log_rounds",
    "profile_times",
    "run",
    "simulate",
    "table_times",
]

_KINDS = {"target": ("target",), "draft": ("before", "beside")}


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
