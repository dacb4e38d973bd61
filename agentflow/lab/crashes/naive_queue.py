"""A job queue without checkpoints, as processes: NaiveRunner runs a job from the top, and so does the worker that retries it.

The queue's only record of a job is that its result has arrived: there is no row, no lease and no history. So the entries
here are what was seen of the workers, which report before and after everything that others can see.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from ...database import Database
from ...errors import LaneError
from ...evidence import on_one_line
from ...model import Tool
from ...run import NaiveRunner
from ...tools import SimulatedTool
from ..history.entries import Row
from ..history.faults import FAULTS
from ..laboratory import processes
from .counted_workflow import CountedWorkflow

SEEN = {
    "before claim": ("worker_started", "{0} is started."),
    "after claim": ("job_taken", "{0} takes the job."),
    "before tool": ("steps_executed", "{0} has run the steps before it from the top."),
    "after tool": ("tool_called", "{0} has called the tool."),
    "before complete": ("function_returned", "{0} has the result."),
    "after complete": ("result_handed_over", "{0} hands the result over; the job is done."),
}
"""What the queue sees of a worker at each of its boundaries: an entry's name and its sentence."""


@dataclass(frozen=True)
class QueuedJob:
    """What a worker of a plain job queue gets; `tool` None is the simulated one, `done` means that there is no job left."""

    url: str
    schema: str
    function: CountedWorkflow
    request: Any
    tool: Tool | None = None
    workflow_id: str = ""
    events: Mapping[str, Any] = field(default_factory=dict)
    done: bool = False


def serve_naive(job: QueuedJob, fatal: str, connection: Connection[Any, Any]) -> None:
    """Does the job from the top in this process, whatever was done before; kills the process at the `fatal` boundary.

    It takes the job (`claim`), calls the tool, and hands over the result (`complete`). Nothing else leaves a trace, so
    there are no other boundaries.
    """
    default = job.tool or SimulatedTool(Database(job.url, job.schema))

    def reach(boundary: str, action: str = "") -> None:
        places = {boundary, f"{boundary} {action}".rstrip()}
        connection.send((boundary, tuple(places)))
        if fatal in places:
            processes.kill_me()

    class Queued(NaiveRunner):
        """The runner, which tells before and after each call of the tool."""

        def side_effect(
            self, name: str, key: str | None = None, tool: Tool | None = None, arguments: Any = None
        ) -> Any:
            """As NaiveRunner does."""
            reach("before tool", name)
            chosen = tool or default
            answer = super().side_effect(
                name, key, lambda call: chosen(replace(call, workflow_id=job.workflow_id)), arguments
            )
            reach("after tool", name)
            return answer

    reach("before claim")
    if not job.done:
        reach("after claim")
        try:
            job.function(Queued(events=dict(job.events)), job.request)
        except Exception as error:
            return connection.send((f"raised {on_one_line(error)}", ()))
        reach("before complete")
        reach("after complete")


def kill_and_retry(job: QueuedJob, boundary: str, patience: float) -> dict[str, Any] | None:
    """Kills A at the boundary and lets B do the job from the top, unless A's result had arrived. Raises LaneError.

    Returns what was seen, A's exit code and how long B took, as fields of a cell; None if there is no such boundary.
    """
    first, exit_code = _work(job, "A", boundary, patience)
    if not any(boundary in places for _, places, _ in first):
        return None
    entries = [*_entries("A", first), (FAULTS["kill"].event, f"A is killed {boundary}.", "A", boundary)]
    done = first[-1][0] == "after complete"
    second, _ = _work(replace(job, done=done), "B", "", patience)
    entries += _entries("B", second)
    if done:
        entries.append(("queue_empty", "B asks for a job; there is none.", "B", None))
    recovery_ms = None if done else round((second[-1][2] - second[0][2]) * 1000, 3)
    history = tuple(_row(number, *entry) for number, entry in enumerate(entries, 1))
    return {"history": history, "completed": True, "exit_code": exit_code, "recovery_ms": recovery_ms}


_Reached = list[tuple[str, tuple[str, ...], float]]
"""Each boundary that a worker reached, the names it goes by, and when."""


def _work(job: QueuedJob, name: str, fatal: str, patience: float) -> tuple[_Reached, int | None]:
    """The boundaries that the worker reached, and the exit code of its process. Raises LaneError."""
    reports, theirs = Pipe(duplex=False)
    process = processes.start(serve_naive, job, fatal, theirs, name=f"naive-{name}")
    theirs.close()
    reached: _Reached = []
    try:
        with reports, suppress(EOFError):
            while reports.poll(patience):
                reached.append((*reports.recv(), time.monotonic()))
            raise LaneError(f"{name} has not reached its next boundary within {patience:g} s.")
    finally:
        processes.kill([process])
    if reached and reached[-1][0] not in SEEN:
        raise LaneError(f"On NaiveRunner, {name} {reached[-1][0]}.")
    last = "before claim" if job.done else "after complete"
    if not any({fatal, last} & {*places} for _, places, _ in reached):
        raise LaneError(f"The process of {name} ended unexpectedly. Its error is on standard error.")
    return reached, process.exitcode


def _entries(worker: str, reached: _Reached) -> list[tuple[str, str, str, str | None]]:
    return [(SEEN[place][0], SEEN[place][1].format(worker), worker, None) for place, _, _ in reached]


def _row(number: int, event: str, said: str, worker: str, subject: str | None) -> Row:
    detail = {"said": said, "signal": "SIGKILL"}
    entry = {"n": number, "event": event, "subject": subject, "worker": worker, "detail": detail}
    return {**entry, "at": None, "transaction": None, "fence_token": None}
