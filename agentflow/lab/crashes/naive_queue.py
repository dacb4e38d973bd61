"""A job queue without checkpoints, as processes: NaiveRunner runs a job from the top, and so does the worker that retries it.

The queue's only record of a job is that its result has arrived: there is no row, no lease and no history. So the entries
here are what was seen of the workers, which stop before and after everything that others can see.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from ...database import Database
from ...model import Boundary, ToolCall
from ...run import NaiveRunner
from ...tools import SimulatedTool
from ..laboratory import processes
from ..schedule.lane_worker import Report
from ..schedule.lanes import ProcessLane
from .counting_agent import CountedAgent
from .kill_plan import label

SEEN = {
    "before claim": ("worker_started", "{0} is started."),
    "after claim": ("job_taken", "{0} takes the job."),
    "before tool": ("steps_executed", "{0} has run every step from the top."),
    "after tool": ("tool_called", "{0} has called the tool."),
    "before complete": ("function_returned", "{0} has the result."),
    "after complete": ("result_handed_over", "{0} hands the result over; the job is done."),
}
"""What the queue sees of a worker at each of its boundaries: an entry's name and its sentence."""


@dataclass(frozen=True)
class QueuedJob:
    """What a worker of a plain job queue gets; `request` None means that the job is done and there is no other."""

    url: str
    schema: str
    function: CountedAgent
    request: str | None


class NaiveLane(ProcessLane):
    """A process that runs a job from the top, and stops before and after everything that others can see.

    It takes the job (`claim`), calls the tool, and hands over the result (`complete`). Nothing else leaves a trace, so
    there are no other boundaries. `tell("go")` moves it from one boundary to the next.
    """

    def __init__(self, name: str, patience: float, job: QueuedJob) -> None:
        super().__init__(name, patience, lambda _: "", lambda *_: None)  # type: ignore[arg-type]
        self.job = job

    def _start(self) -> None:
        self._connection, theirs = Pipe()
        self._process = processes.start(serve_naive, self.job, self.identity, theirs, name=f"naive-{self.name}")
        theirs.close()


def serve_naive(job: QueuedJob, identity: str, connection: Connection[Any, Any]) -> None:
    """Does the job from the top in this process, whatever was done before, until it is killed."""
    worker = _NaiveWorker(identity, connection, SimulatedTool(Database(job.url, job.schema)))
    with worker.passing("claim"):
        request = job.request
    if request is None:
        worker.stand(Boundary("claim", "after", identity), "idle")
        return
    result = job.function(NaiveRunner(tool=worker.call), request)
    with worker.passing("complete"):
        worker.result = result


class _NaiveWorker:
    """Stops at the boundaries of a job and reports them to the parent process."""

    def __init__(self, identity: str, connection: Connection[Any, Any], tool: SimulatedTool) -> None:
        self.identity, self.connection, self.tool = identity, connection, tool
        self.result: Any = None

    def call(self, call: ToolCall) -> Any:
        """Calls the tool."""
        with self.passing("tool", call.action):
            return self.tool(call)

    @contextmanager
    def passing(self, name: str, subject: str | None = None) -> Iterator[None]:
        """Stops the worker before and after the block."""
        before = Boundary(name, "before", self.identity, subject=subject)
        self.stand(before)
        yield
        after = Boundary(name, "after", self.identity, subject=subject, outcome="committed")
        self.stand(after, "completed" if name == "complete" else None)

    def stand(self, boundary: Boundary, ended: Any = None) -> None:
        """Reports the boundary and waits until the parent says go on."""
        self.connection.send(Report(boundary, ended=ended))
        self.connection.recv()


@dataclass(frozen=True)
class Retried:
    """A job whose first worker was killed: what was seen, how it ended, and ms from the second worker's start to the end."""

    history: tuple[dict[str, Any], ...]
    completed: bool
    exit_code: int | None
    recovery_ms: float | None


def kill_and_retry(job: QueuedJob, boundary: str, patience: float) -> Retried | None:
    """Kills A at the boundary and lets B do the job from the top, unless A's result had arrived. Raises LaneError.

    Returns None if there is no such boundary.
    """
    log = _QueueLog()
    first = NaiveLane("A", patience, job)
    try:
        first.start("A")
        while log.see(first) != boundary:
            if first.tell("go").ended:
                if label(first.standing) != boundary:  # type: ignore[arg-type]
                    return None
                log.done = True
        first.kill()
        log.add("worker_killed", f"A is killed {boundary}.", "A", boundary)
        recovery_ms = _retry(replace(job, request=None) if log.done else job, patience, log)
        return Retried(tuple(log.entries), log.done, first.exit_code, recovery_ms)
    finally:
        if first.alive:
            first.kill()


def _retry(job: QueuedJob, patience: float, log: _QueueLog) -> float | None:
    """Lets B do the job, if it is not done yet; returns how long that took in ms."""
    lane = NaiveLane("B", patience, job)
    try:
        lane.start("B")
        log.see(lane)
        report, began = lane.tell("go"), time.monotonic()
        while not report.ended:
            log.see(lane)
            report = lane.tell("go")
        if report.ended == "idle":
            log.add("queue_empty", "B asks for a job; there is none.", "B")
            return None
        log.done = True
        log.see(lane)
        return round((time.monotonic() - began) * 1000, 3)
    finally:
        if lane.alive:
            lane.kill()


class _QueueLog:
    """What the queue saw, as entries, and whether it has the job's result."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.done = False

    def see(self, lane: NaiveLane) -> str:
        """Adds an entry for the boundary at which the worker stands, and returns the boundary's name."""
        place = label(lane.standing)  # type: ignore[arg-type]
        event, said = SEEN[place]
        self.add(event, said.format(lane.name), lane.name)
        return place

    def add(self, event: str, said: str, worker: str, subject: str | None = None) -> None:
        """Adds an entry."""
        entry = {"n": len(self.entries) + 1, "event": event, "subject": subject, "worker": worker}
        self.entries.append({**entry, "detail": {"said": said}, "at": None, "transaction": None, "fence_token": None})
