"""The thread that decodes: jobs wait in a queue, their rows join when a slot is free, and what they get is told."""

import collections
import dataclasses
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from jaxspec.decode.request import Request
from jaxspec.decode.slots import Progress, Reading, Slots

CHUNKS = 4
"""Chunks of a prompt that are read between two segments while others decode."""


class Full(RuntimeError):
    """No more rows can wait."""


@dataclasses.dataclass(eq=False)
class Job:
    """A prompt's rows.

    Attributes:
        request: Checked, for the prompt's samples.
        owner: Whom they belong to; the engine does not look at it.
        ended: Samples that nobody waits for any more.
    """

    request: Request
    owner: Any
    ended: set[int] = dataclasses.field(default_factory=set)


Told = tuple[Job, int, Progress]
"""A job, its sample's number, and what the sample got."""


class Engine:
    """Decodes jobs in the order in which they come. Its methods may be called from any thread.

    Attributes:
        batch: The slots; the engine's thread alone touches them.
        error: Why it has stopped for good; None as long as it works.
    """

    def __init__(self, batch: Slots, max_rounds: int, most_waiting: int) -> None:
        """Starts nothing yet.

        Args:
            batch: Whose slots are filled.
            max_rounds: Rounds of a segment, at the end of which rows may join and leave and text is handed on.
            most_waiting: Rows that may wait for a slot.
        """
        self.batch, self.error = batch, None
        self._max_rounds, self._most_waiting = max_rounds, most_waiting
        self._changed = threading.Condition()
        self._waiting: collections.deque[Job] = collections.deque()
        self._ended: list[tuple[Job, int]] = []
        self._is_stopping = False
        self._owners: dict[int, tuple[Job, int]] = {}
        self._reading: Reading | None = None
        self._next = 0  # sample of the first job that joins next
        self._thread = threading.Thread(target=self._run, name="jaxspec-engine", daemon=True)

    def start(self, tell: Callable[[Sequence[Told]], None], fail: Callable[[str], None]) -> None:
        """Begins to decode.

        Args:
            tell: Called in the engine's thread with what a segment gave. A row that `end` ended is not told of again.
            fail: Called there with an error after which nothing more is decoded.
        """
        self._tell, self._fail = tell, fail
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread behind its present segment, whatever is running."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self._thread.join()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Puts jobs at the end of the queue: all of them, or none.

        Raises:
            Full: Too many rows would wait.
            RuntimeError: The engine has failed.
        """
        with self._changed:
            if self.error is not None:
                raise RuntimeError(self.error)
            if self.num_waiting + sum(job.request.size for job in jobs) > self._most_waiting:
                raise Full(f"{self.num_waiting} rows wait already, of at most {self._most_waiting}")
            self._waiting.extend(jobs)
            self._changed.notify()

    def end(self, job: Job, sample: int) -> None:
        """Ends a row, wherever it is: from the next segment on it has no slot."""
        with self._changed:
            job.ended.add(sample)
            self._ended.append((job, sample))
            self._changed.notify()

    @property
    def num_waiting(self) -> int:
        """Rows without a slot."""
        return sum(job.request.size for job in list(self._waiting)) - self._next

    @property
    def num_running(self) -> int:
        """Rows in slots."""
        return len(self._owners)

    def _run(self) -> None:
        try:
            while self._wait():
                self._leave()
                self._admit()
                told = []
                for one in self.batch.advance(self._max_rounds):
                    owner = self._owners[one.slot]
                    if one.finish_reason is not None:
                        del self._owners[one.slot]
                    told.append((*owner, one))
                if told:
                    self._tell(told)
        except Exception as error:  # whatever it is, those who wait must hear of it
            traceback.print_exc()
            with self._changed:
                self.error = f"the decoder has failed ({type(error).__name__}); the server's log says where"
                self._waiting.clear()
            self._fail(self.error)

    def _wait(self) -> bool:
        """Waits until there is something to do; False: the end."""
        with self._changed:
            while not (self._is_stopping or self._waiting or self._owners):
                self._ended.clear()
                self._changed.wait()
            return not self._is_stopping

    def _leave(self) -> None:
        with self._changed:
            ended, self._ended = self._ended, []
        left = [slot for slot, owner in self._owners.items() if owner in ended]
        for slot in left:
            del self._owners[slot]
        self.batch.leave(left)

    def _admit(self) -> None:
        """Reads prompts and fills free slots, in the order of the queue."""
        budget = CHUNKS if self._owners else None
        while self._waiting and self.batch.num_free:
            job = self._waiting[0]
            if all(sample in job.ended for sample in range(self._next, job.request.size)):
                self._drop()
                continue
            self._reading = self._reading or self.batch.begin(job.request)
            while not self._reading.is_done:
                if budget == 0:
                    return
                self._reading = self.batch.read(self._reading)
                budget = None if budget is None else budget - 1
            while self._next < job.request.size and self.batch.num_free:
                if self._next not in job.ended:
                    self._owners[self.batch.join(self._reading, self._next)] = (job, self._next)
                self._next += 1
            if self._next == job.request.size:
                self._drop()

    def _drop(self) -> None:
        """The first job has all its rows in slots, or needs none."""
        with self._changed:
            self._waiting.popleft()
            self._reading, self._next = None, 0
