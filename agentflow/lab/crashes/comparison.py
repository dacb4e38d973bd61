"""One workflow function on four engines, killed at the same points of the function and carried on by another process.

On AgentFlow and on DBOS one process stands at all points at once, each in a workflow of its own, and SIGKILL ends it; a second
process is there already. The two runners that live in memory have no process of their own: an exception ends the run where it
stands, and the caller runs the function again, with the same store if there is one.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ...agents import DEFAULT_WORKFLOW
from ...database import Database
from ...engine import Engine
from ...errors import AgentFlowError, CrashInjected, LaneError, Suspend
from ...on_dbos import remove_dbos
from ...run import DurableRunner, NaiveRunner, StepStore, Workflow
from ..laboratory import processes
from ..laboratory.scratch_schema import new_name, own_schema
from ..notebook.tables import Table
from ..pictures.svg import INK, PAPER, Picture
from ..schedule.presets import REQUESTS
from .atlas_picture import Atlas, draw_atlas
from .atlas_result import AtlasCell, GuardSet
from .carriers import Task, carrier

PATIENCE = 60.0  # seconds until a process that does not go on is given up
ALONE = 3.0  # seconds, more than a lease, in which a second process shows what it does untold
NAIVE, MEMORY = GuardSet(("NaiveRunner", "(no checkpoints)"), naive=True), GuardSet(("results", "in memory"))
AGENTFLOW, ON_DBOS = GuardSet(("AgentFlow",)), GuardSet(("DBOS",))
RECORDED = GuardSet(("DBOS,", "recorded"))
"""The column for DBOS where it is not installed: what version 3.4.0 did with the support agent on 30 November 2026."""
RECORD = {
    "before classify": ("classify plan", 1, 1),
    "after classify": ("classify classify plan", 1, 1),
    "before plan": ("classify plan", 1, 1),
    "after plan": ("classify plan plan", 1, 1),
    "before tool": ("classify plan", 1, 1),
    "after tool": ("classify plan", 2, 1),
    "after record": ("classify plan", 1, 1),
    "before end": ("classify plan", 1, 1),
}
"""At each point: which steps ran, how often the tool was called, how many effects there are. A test compares it with DBOS."""

LIVING = (RECORDED.name, "a second run completed it", "and is refused (DBOSWorkflowConflictIDError)", 2, 1)
"""The line of `resume_the_living` that stands for DBOS there."""
_MISSING = "DBOS is not installed: {}. `make dbos` in AgentFlow's folder adds it."
_RECORDED = "recorded (version 3.4.0, 30 November 2026), not measured here"

_WORDS = {
    NAIVE.name: ("an exception", "no key", "the caller, who calls the function again"),
    MEMORY.name: ("an exception", "made by the runner", "the caller, who has kept the store"),
    AGENTFLOW.name: ("SIGKILL", "made by the engine", "any worker, once the lease has ended"),
    ON_DBOS.name: ("SIGKILL", "yours to make; here we do", "a process that is told to resume"),
    RECORDED.name: ("SIGKILL", "yours to make; here we do", "a process that is told to resume"),
}


@dataclass(frozen=True, repr=False)
class EngineComparison(Atlas):
    """What is left at each point of the function on each engine: a picture, and the sums as a table.

    `alone` counts the workflows that a second process completed before anybody told it anything; `recovery` is how many
    seconds the last one took, from the kill, or from the order to resume.
    """

    title = "One function on several engines: business effects after it is killed at each of its points and carried on"
    here, leaves = "a run killed here ...", "... leaves this many business effects after it was carried on"

    alone: Mapping[str, int] = field(default_factory=dict)
    recovery: Mapping[str, float] = field(default_factory=dict)

    @property
    def kills(self) -> int:
        """How many processes were killed: one on each engine that has any."""
        return len({cell.guards for cell in self if cell.exit_code == -9})

    @property
    def problems(self) -> list[str]:
        """A sentence for each cell that has no end."""
        return [cell.sentence for cell in self if cell.state != "done" or not cell.completed]

    def notes(self) -> list[str]:
        """What the picture cannot show."""
        said = ["A square is a step that ran again, a ring a call of the tool that the key answered."]
        if find_spec("dbos") is None:
            said.append(_MISSING.format("its column is " + (_RECORDED if RECORDED in self.guard_sets else "left out")))
        return said

    def picture(self) -> Picture:
        """The comparison as a picture with its text twin."""
        return draw_atlas(self, beside=_again)

    def table(self) -> Table:
        """The sums over all points, and who goes on."""
        rows = []
        for column in self.guard_sets:
            cells, (killed, key, after) = self.column(column), _WORDS[column.name]
            rows.append(
                {
                    "engine": " ".join(column.lines[:1]) if column.naive else column.name,
                    "killed by": killed,
                    "steps run": sum(len(cell.executions) for cell in cells),
                    "tool called": sum(cell.attempts or 0 for cell in cells),
                    "effects": sum(cell.effects or 0 for cell in cells),
                    "went on untold": f"{self.alone.get(column.name, 0)} of {len(cells)}",
                    "who goes on": after,
                    "the key": key,
                }
            )
        return Table(rows, f"{len(self.boundaries)} workflows on each engine, each killed at another point")

    def text(self) -> str:
        """The picture in sentences."""
        lines = [
            f"One function, killed at each of its {len(self.boundaries)} points on each of {len(self.guard_sets)} engines and "
            "carried on: how many business effects are left."
        ]
        for column in self.guard_sets:
            lines += [f"{cell.sentence}; {cell.figures}." for cell in self.column(column)]
        return "\n".join(lines + self.notes())


def _again(cell: AtlasCell, x: float, y: float) -> str:
    """What was done again: a square for each step (a number if they are many), a ring for a call that the key answered."""
    inverted, again = (cell.effects or 0) > 1, cell.executed_again
    ink = PAPER if inverted else INK
    shape = f'width="7" height="7" rx="1.5" fill="none" stroke="{ink}" stroke-width="1.2"'
    drawn = [f'<rect x="{x - 42 + 10 * n:g}" y="{y - 3.5:g}" {shape}/>' for n in range(again if again <= 2 else 1)]
    if again > 2:
        drawn.append(f'<text x="{x - 25:g}" y="{y + 4:g}" class="c{" inv" * inverted}" font-size="11">{again}</text>')
    if (cell.attempts or 0) > (cell.effects or 0):
        drawn.append(f'<circle cx="{x + 30:g}" cy="{y:g}" r="5" fill="none" stroke="{ink}" stroke-width="1.5"/>')
    return "".join(drawn)


def compare_engines(
    engine: Engine, workflow: Workflow | str = DEFAULT_WORKFLOW, request: Any = REQUESTS[0], *,
    events: Mapping[str, Any] | None = None,
) -> EngineComparison:  # fmt: skip
    """Kills the function at each of its points on NaiveRunner, the memory store, AgentFlow and DBOS, and looks what is left.

    `workflow` is an example's name or a function that a module defines; `events` are there before it starts. It has a schema of
    its own beside the engine's, dropped afterwards. Where DBOS is not installed its column is the recorded one, for the support
    agent, or is missing. Raises AgentFlowError for a function that does not come to its end undisturbed, LaneError.
    """
    with _laboratory(engine, workflow, request, events or {}) as task:
        task, points = _rehearsed(task)
        with_dbos = [ON_DBOS] if find_spec("dbos") else [RECORDED] * (workflow == DEFAULT_WORKFLOW)
        found = EngineComparison((NAIVE, MEMORY, AGENTFLOW, *with_dbos), boundaries=points)
        for column in (NAIVE, MEMORY):
            for point in points:
                _in_memory(task, column, point)
            found = _counted(found, task, column)
        for column in (AGENTFLOW, ON_DBOS) if find_spec("dbos") else (AGENTFLOW,):
            killed = replace(task, stops={_id(column, point): point for point in points})
            alone, recovery, exit_code = _kill(killed, column.name)
            found = _counted(found, killed, column, exit_code)
            more: Any = {
                "alone": {**found.alone, column.name: alone},
                "recovery": {**found.recovery, column.name: recovery},
            }
            found = replace(found, **more)
    return _recorded(found) if RECORDED in found.guard_sets else found


def resume_the_living(engine: Engine) -> Table:
    """A process stands before the tool and lives; a second one takes over if it can, and then the first goes on.

    On AgentFlow, and on DBOS if that is installed. Raises LaneError.
    """
    rows = []
    for column in (AGENTFLOW, ON_DBOS) if find_spec("dbos") else (AGENTFLOW,):
        with _laboratory(engine, DEFAULT_WORKFLOW, REQUESTS[0], {}) as task, ExitStack() as stack:
            task = replace(task, one_tool=True, stops={"request-1": "before tool"})
            first = stack.enter_context(_process(task, column.name, "A"))
            first.until("stands", "request-1")
            second = stack.enter_context(_process(task, column.name, "B"))
            second.order("resume")
            taken = second.completed_within(PATIENCE if column.name == ON_DBOS.name else ALONE)
            first.order("go on")
            refused = first.until("left", "request-1")
            second.completed_within(PATIENCE)
            with closing(Database(task.url, task.schema)) as database:
                (world,) = _world(database).values()
            rows.append(
                {
                    "engine": column.name,
                    "a second one is told to resume": "a second run completed it"
                    if taken
                    else "nothing: the lease is renewed",
                    "then the first goes on": f"and is refused ({refused})" if refused else "and completes it",
                    "tool called": int(world["attempts"]),
                    "effects": world["effects"],
                }
            )
    said = "Nobody is killed: the first process stands before the tool, and lives"
    if find_spec("dbos") is None:
        rows.append(dict(zip(rows[0], LIVING, strict=True)))
        said += f". {_MISSING.format('its line is ' + _RECORDED)}"
    return Table(rows, said)


# -- what is played ----------------------------------------------------------------------------------------------------


@contextmanager
def _laboratory(engine: Engine, workflow: Workflow | str, request: Any, events: Mapping[str, Any]) -> Iterator[Task]:
    address = engine.database.address
    with own_schema(address, new_name("compared")) as database, tempfile.TemporaryDirectory() as folder:
        try:
            (notes := Path(folder) / "executions").touch()
            yield Task(address, database.schema, notes, workflow, request, events)
        finally:
            remove_dbos(database)


def _rehearsed(task: Task) -> tuple[Task, tuple[str, ...]]:
    """The points of the function, in order, from a run that nothing disturbs. Raises AgentFlowError if that has no good end."""
    passed: list[str] = []
    try:
        task.carry(DurableRunner("rehearsal", StepStore(), dict(task.events)), task.request, "rehearsal", passed.append)
    except Suspend as waits:
        event = waits.waiting_for
        raise AgentFlowError(
            f"The workflow waits for the event {event!r}. Nothing was compared; give it: events={{{event!r}: ...}}."
        ) from waits
    except AgentFlowError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {str(error).removesuffix('.')}"
        raise AgentFlowError(f"Undisturbed, the workflow ends by {why}. Nothing was compared; correct it.") from error
    called = [point for point in passed if point.startswith("before tool ")]
    if len(set(called)) != 1:
        return task, tuple(dict.fromkeys(passed))
    key = called[0].removeprefix("before tool")
    return replace(task, one_tool=True), tuple(dict.fromkeys(point.removesuffix(key) for point in passed))


def _id(column: GuardSet, point: str) -> str:
    return f"{column.name}, {point}"


def _in_memory(task: Task, column: GuardSet, point: str) -> None:
    """Runs the function to the point, where an exception ends it, and then again from the top."""
    store, workflow_id = StepStore(), _id(column, point)
    stops = {point}

    def reach(passed: str) -> None:
        if passed in stops:
            stops.remove(passed)
            raise CrashInjected(point)

    for _ in range(2):
        events = dict(task.events)
        run = NaiveRunner(events=events) if column.naive else DurableRunner(workflow_id, store, events)
        with suppress(CrashInjected):
            task.carry(run, task.request, workflow_id, reach)


def _kill(task: Task, kind: str) -> tuple[int, float, int | None]:
    """Kills the first process where it stands in every workflow, and lets the second one go on, by itself and when told.

    Returns how many workflows went on untold, the seconds until the last was completed, and the exit code of the first.
    """
    with ExitStack() as stack:
        first = stack.enter_context(_process(task, kind, "A"))
        for workflow_id in task.stops:
            first.until("stands", workflow_id)
        second = stack.enter_context(_process(task, kind, "B"))
        processes.kill([first.process])
        began, alone = time.monotonic(), second.completed_within(ALONE if kind == ON_DBOS.name else PATIENCE)
        if alone < len(task.stops):
            began = time.monotonic()
            second.order("resume")
            if second.completed_within(PATIENCE) < len(task.stops):
                raise LaneError(f"On {kind} the second process has not completed every workflow within {PATIENCE:g} s.")
        return alone, round(time.monotonic() - began, 1), first.process.exitcode


class _Process:
    """One end of a carrier's channel."""

    def __init__(self, process: BaseProcess, channel: Connection, name: str) -> None:
        self.process, self.channel, self.name = process, channel, name
        self.heard: dict[tuple[str, str], Any] = {}

    def until(self, what: str, workflow_id: str = "") -> Any:
        """Waits until the process has said this, and returns what it said with it. Raises LaneError."""
        while (what, workflow_id) not in self.heard:
            if not self.channel.poll(PATIENCE):
                raise LaneError(f"Process {self.name} has said nothing for {PATIENCE:g} s, and should say {what}.")
            try:
                said, about, more = self.channel.recv()
            except EOFError:
                raise LaneError(f"Process {self.name} has ended; its error is on standard error.") from None
            self.heard[said, about] = more
        return self.heard.pop((what, workflow_id))

    def order(self, what: str) -> dict[str, str]:
        """Gives an order, and returns how each workflow stands after it."""
        self.channel.send(what)
        found: dict[str, str] = self.until("looks")
        return found

    def completed_within(self, seconds: float) -> int:
        """How many workflows are completed: all, or as many as there are after so long."""
        deadline = time.monotonic() + seconds
        while (found := list(self.order("look").values())).count("completed") < len(
            found
        ) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found.count("completed")


@contextmanager
def _process(task: Task, kind: str, name: str) -> Iterator[_Process]:
    with processes.connected(carrier, task, kind, name, name=f"{kind}-{name}") as (process, channel):
        found = _Process(process, channel, name)
        found.until("up")
        yield found


# -- what is left ------------------------------------------------------------------------------------------------------


def _world(database: Database) -> dict[str, dict[str, Any]]:
    """Effects and calls of the tool by workflow, from the world's own rows."""
    _, rows = database.read_sql(
        "SELECT workflow_id, count(*) AS effects, sum(attempts) AS attempts FROM tool_ledger GROUP BY workflow_id"
    )
    return {row["workflow_id"]: row for row in rows}


def _counted(found: EngineComparison, task: Task, column: GuardSet, exit_code: int | None = None) -> EngineComparison:
    """The comparison with this column's cells."""
    with closing(Database(task.url, task.schema)) as database:
        world = _world(database)
    for point in found.boundaries:
        one = _id(column, point)
        counts = {name: int(world[one][name]) if one in world else 0 for name in ("effects", "attempts")}
        more: Any = {"completed": True, "exit_code": exit_code, "executions": task.executions(one), **counts}
        found = found.with_cell(AtlasCell(point, column.name, "done", **more))
    return found


def _recorded(found: EngineComparison) -> EngineComparison:
    """The comparison with what DBOS did elsewhere."""
    for point, (steps, attempts, effects) in RECORD.items():
        counts = {"executions": tuple((0, step) for step in steps.split()), "attempts": attempts, "effects": effects}
        found = found.with_cell(AtlasCell(point, RECORDED.name, "done", completed=True, **counts))  # type: ignore[arg-type]
    return found
