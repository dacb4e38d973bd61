"""DBOS executors as processes, each with workflows of its own, killed by SIGKILL at planned points of the function."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from agentflow import Database
from agentflow.lab.crashes.carriers import Task
from agentflow.lab.laboratory import processes
from agentflow.on_dbos import OnDbos


def eventual(on: OnDbos, workflow_id: str, seconds: float = 60.0) -> dict[str, Any]:
    """How the workflow ended."""
    deadline = time.monotonic() + seconds
    while (found := on.look(workflow_id))["status"] == "pending":
        assert time.monotonic() < deadline, f"{workflow_id} is pending after {seconds:g} s"
        time.sleep(0.01)
    return found


def execute(task: Task, executor: str, before: str, ids: Sequence[str], channel: Connection) -> None:
    """Takes over what `before` has left, unless that is its own name, and carries these workflows, one after the other.

    What DBOS has put back into its queue, for another executor too, comes between, and never at the same time: so a kill
    meets one workflow, where it was planned.
    """
    one_at_a_time = threading.Lock()

    def carry(run: Any, request: Any) -> Any:
        with one_at_a_time:
            return task.carry(run, request, run.run_id, lambda point: reach(run.run_id, point))

    def reach(workflow_id: str, point: str) -> None:
        if task.stops.get(workflow_id) == point:
            channel.send((workflow_id, point))
            processes.kill_me()

    on = OnDbos(Database(task.url, task.schema), {"compared": carry}, executor=executor)
    if before != executor:
        on.resume(before)
    for workflow_id in ids:
        on.submit(workflow_id, "compared", task.request)
        assert eventual(on, workflow_id)["status"] == "completed"
    channel.send(None)
    channel.recv()


def supervised(task: Task, name: str, ids: Sequence[str], all_done: threading.Barrier) -> list[str]:
    """Starts the executor again after each death: under its own name, or under a new one that resumes what is left.

    It lives until all are done, since any executor may get what another has left. Returns the points at which it was killed.
    """
    killed: list[str] = []
    stops = {one: point for one, point in task.stops.items() if one in ids}
    left, executor, before = list(ids), name, name
    while True:
        with processes.connected(execute, replace(task, stops=stops), executor, before, left) as (process, channel):
            assert channel.poll(100), f"{executor} says nothing"
            if (message := channel.recv()) is None:
                all_done.wait(100)
                return killed
            assert processes.has_ended(process, 20)
            assert process.exitcode == -9
        workflow_id, point = message
        killed.append(point)
        del stops[workflow_id]
        left, before = left[left.index(workflow_id) :], executor
        executor = executor if len(killed) % 2 else f"{name}.{len(killed)}"


def killed_at(task: Task, executors: int, workflows: int) -> list[str]:
    """Runs the executors side by side until all workflows have ended; returns every point at which one was killed."""
    ids = [f"w{number}" for number in range(workflows)]
    all_done = threading.Barrier(executors)
    with ThreadPoolExecutor(executors) as pool:
        shares = [ids[number::executors] for number in range(executors)]
        found = pool.map(lambda share: supervised(task, f"executor-{share[0]}", share, all_done), shares)
        return [point for points in found for point in points]
