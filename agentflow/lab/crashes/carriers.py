"""Processes that carry one workflow function on AgentFlow or on DBOS and stand where they are told, to be killed there.

The points are the function's own, so they are the same on every engine: before and after the body of each step and each call
of the tool, after the tool's answer is recorded, before the end.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ...agents import WORKFLOWS
from ...database import Database
from ...engine import Engine
from ...errors import AgentFlowError, UnknownWorkflow
from ...model import Policy, Tool, ToolCall
from ...on_dbos import OnDbos
from ...run import Workflow
from ...tools import SimulatedTool

LEASE = 2.0  # seconds until AgentFlow's second process may have what the dead one held
Reach = Callable[[str], None]


@dataclass(frozen=True)
class Task:
    """What is carried: a function (or the name of an example), its request and its events, in this laboratory.

    `stops` says for each workflow id at which point its first process stops; `one_tool` leaves the key out of the points'
    names. It can be sent to a process.
    """

    url: str
    schema: str
    notes: Path
    function: Workflow | str
    request: Any
    events: Mapping[str, Any] = field(default_factory=dict)
    stops: Mapping[str, str] = field(default_factory=dict)
    one_tool: bool = False

    def carry(self, run: Any, request: Any, workflow_id: str, reach: Reach) -> Any:
        """Runs the function, and calls `reach(point)` at each point of it; notes each execution of a step in a file."""
        function = WORKFLOWS.get(self.function) if isinstance(self.function, str) else self.function
        if function is None:
            raise UnknownWorkflow(
                f"There is no workflow {self.function!r}; give a function, or one of {', '.join(WORKFLOWS)}."
            )
        result = function(_WatchedRun(self, run, workflow_id, reach), request)
        reach("before end")
        return result

    def executions(self, workflow_id: str) -> tuple[tuple[int, str], ...]:
        """The process id and the step of each execution."""
        noted = map(json.loads, self.notes.read_text(encoding="utf-8").splitlines())
        return tuple((pid, step) for pid, one, step in noted if one == workflow_id)


class _WatchedRun:
    """A run around another one. The tool is the simulated one, in whose ledger the effects are counted."""

    def __init__(self, task: Task, run: Any, workflow_id: str, reach: Reach) -> None:
        self.task, self.run, self.workflow_id, self.reach = task, run, workflow_id, reach

    def _reach(self, point: str, key: str) -> None:
        self.reach(point if self.task.one_tool else f"{point} {key}")

    def step(self, step_id: str, fn: Callable[[], Any]) -> Any:
        def watched() -> Any:
            self.reach(f"before {step_id}")
            with self.task.notes.open("a", encoding="utf-8") as file:
                file.write(json.dumps([os.getpid(), self.workflow_id, step_id]) + "\n")
            value = fn()
            self.reach(f"after {step_id}")
            return value

        return self.run.step(step_id, watched)

    def side_effect(self, name: str, key: str, tool: Tool | None = None, arguments: Any = None) -> Any:
        if tool is not None:
            raise AgentFlowError("Effects are counted in the simulated world: leave out `tool=` to compare engines.")
        result = self.run.side_effect(name, key, tool=partial(self._call, key), arguments=arguments)
        self._reach("after record", key)
        return result

    def wait_for_event(self, step_id: str, name: str) -> Any:
        self.reach(f"before {step_id}")
        payload = self.run.wait_for_event(step_id, name)
        self.reach(f"after {step_id}")
        return payload

    def _call(self, key: str, call: ToolCall) -> Any:
        self._reach("before tool", key)
        with closing(Database(self.task.url, self.task.schema)) as database:
            # A plain queue's call does not say for which job it is, and the ledger is counted by that.
            answer = SimulatedTool(database)(
                ToolCall(call.idempotency_key, call.action, call.arguments, self.workflow_id)
            )
        self._reach("after tool", key)
        return answer


def carrier(task: Task, kind: str, name: str, channel: Connection) -> None:
    """The process `name` on the engine `kind`: "A" begins the workflows and stands where it is told, "B" is only there.

    It sends ("stands" or "left", workflow id, an error's name), and answers each order with ("looks", "", statuses). The orders
    are "go on", "resume" (what A has left; on AgentFlow a worker does so unasked) and "look".
    """
    told, one_at_a_time, to_stop = threading.Event(), threading.Lock(), dict(task.stops) if name == "A" else {}

    def send(*message: Any) -> None:
        with one_at_a_time:
            channel.send(message)

    def function(run: Any, request: Any) -> Any:
        stood = error = ""

        def reach(point: str) -> None:
            nonlocal stood
            if to_stop.get(run.run_id) == point:
                stood = to_stop.pop(run.run_id)
                send("stands", run.run_id, "")
                told.wait()

        try:
            return task.carry(run, request, run.run_id, reach)
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            if stood:
                send("left", run.run_id, error)

    engine = (_OnDbos if kind == "DBOS" else _OnAgentFlow)(task, name, function)
    send("up", "", "")
    for order in iter(channel.recv, None):
        if order == "go on":
            told.set()
        elif order == "resume":
            engine.resume("A")
        send("looks", "", {one: engine.look(one) for one in task.stops})


class _OnAgentFlow:
    def __init__(self, task: Task, name: str, function: Workflow) -> None:
        database, policy = Database(task.url, task.schema), Policy(lease_seconds=LEASE)
        self.engine = Engine(database, workflows={"compared": function}, policy=policy)
        for one in task.stops if name == "A" else ():
            self.engine.create_workflow(task.request, name="compared", workflow_id=one)
            for event, payload in task.events.items():
                self.engine.deliver_event(one, event, payload)
        for _ in task.stops:
            worker = self.engine.worker(name, poll_seconds=LEASE / 8)
            threading.Thread(target=worker.run_once if name == "A" else worker.run_forever, daemon=True).start()

    def resume(self, executor: str) -> None:
        pass

    def look(self, workflow_id: str) -> str:
        return str((self.engine.get_workflow(workflow_id) or {}).get("status"))


class _OnDbos:
    def __init__(self, task: Task, name: str, function: Workflow) -> None:
        self.dbos = OnDbos(Database(task.url, task.schema), {"compared": function}, executor=name)
        self.resume = self.dbos.resume
        for one in task.stops if name == "A" else ():
            self.dbos.submit(one, "compared", task.request)
            for event, payload in task.events.items():
                self.dbos.deliver(one, event, payload)

    def look(self, workflow_id: str) -> str:
        return str(self.dbos.look(workflow_id)["status"])
