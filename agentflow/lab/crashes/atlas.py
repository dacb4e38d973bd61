"""The crash atlas: at every boundary of every engine a real process is killed, and another recovers what it left.

Several cells are played side by side, each in its own laboratory, which is dropped afterwards. The killed worker and the
one that recovers are process lanes of a Stepper, so each cell is a schedule that can be played again. Read `atlas_result`
next.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ...agents import DEFAULT_WORKFLOW, WORKFLOWS
from ...engine import Engine
from ...errors import AgentFlowError, DatabaseAway, LaneError
from ...model import Tool
from ...run import Workflow
from ...tools import why_no_tool
from ..broken.catalogue import engine_class
from ..history.entries import Row
from ..history.words import brief
from ..laboratory.laboratory import PATIENT
from ..laboratory.scratch_schema import new_name, own_schema
from ..notebook.progress import progress_bar
from ..schedule.grammar import Move, Setting
from ..schedule.moves import Moved
from ..schedule.presets import MOST_EVENTS, REQUESTS, event_payloads, inputs_for, named, never_came
from ..schedule.stepper import Stepper
from .atlas_picture import Atlas
from .atlas_result import BOUNDARIES, GUARD_SETS, AtlasCell, GuardSet, losing, predicting
from .counted_workflow import CountedWorkflow
from .kill_plan import label
from .naive_queue import QueuedJob, kill_and_retry

BESIDE = 3
"""How many cells are played side by side: each waits for its own commits, and has two processes."""

CELL_PATIENCE = 30.0  # seconds until a worker that does not reach its next boundary is given up


def atlas(
    where: str | Engine, *, workflow: str | Workflow = DEFAULT_WORKFLOW,
    workflows: Mapping[str, Workflow] = WORKFLOWS, tool: Tool | None = None,
    asked: Sequence[Tool] = (), inputs: Sequence[Any] | None = None, guard_sets: Sequence[GuardSet] = GUARD_SETS,
    boundaries: Sequence[str] | None = None, schema: str | None = None, beside: int = BESIDE, progress: bool | None = False,
    events: Mapping[str, Any] | None = None, watch: Callable[[Atlas], None] | None = None,
) -> Atlas:  # fmt: skip
    """Plays every cell: kills a worker there with SIGKILL, and lets another process recover its work.

    `workflow` is a function that other processes can import, or the name of an example or of one of `workflows` (or of
    the engine's); `inputs` a list with its input; a `tool` of one's own is called for real, and asked for its
    effects(), as are those in `asked`, which only side effects name. The events that it waits for are there when it begins:
    `events` has the payload that an event of this name brings; without it, `true`. Without `boundaries` all are played that
    an undisturbed run passes. `where` is the URL of a PostgreSQL, or an engine on it.

    The atlas has its own schemas (`schema` and a number), which must not exist yet and are dropped afterwards. `progress`
    shows a bar on standard error (None: on a terminal); `watch` gets the atlas after each cell. A cell that cannot be played
    keeps the error, and the others are played all the same. Raises DatabaseAway, NotALaboratory, BadSchedule for what is no
    workflow, and AgentFlowError for unknown guards or boundaries and for a workflow that does not complete undisturbed,
    before anything is killed.
    """
    known = where.workflows if isinstance(where, Engine) else workflows
    called, function = named(workflow, known)
    brings = event_payloads(events)
    own = (tool, *asked, inputs, brings, function) != (None, None, {}, WORKFLOWS[DEFAULT_WORKFLOW])
    if tool and (why := why_no_tool(tool)):
        raise AgentFlowError(f"The tool {why}. Nothing was started.")
    (value,) = inputs_for(Setting(called), {called: function}, inputs)
    _check(guard_sets, None if own else boundaries)
    began, name = time.monotonic(), schema or new_name("atlas")
    subject = AtlasSubject(called, called if function is WORKFLOWS.get(called) else function, value, tool, (*asked,))
    with ExitStack() as stack:
        free: SimpleQueue[AtlasBench] = SimpleQueue()
        free.put(first := stack.enter_context(atlas_bench(_url(where), f"{name}_1", subject)))
        if own:
            subject.events.update(first.wait_for(brings))
            counts, effects = first.rehearse()
            _check(guard_sets, boundaries, there := tuple(counts))
            guard_sets = [losing(predicting(replace(one, predicted={}), counts), there) for one in guard_sets]
        else:
            there, effects = BOUNDARIES, 1
        found = Atlas(tuple(guard_sets), boundaries=tuple(boundaries or there))
        for number in range(2, min(beside, len(list(found))) + 1):
            free.put(stack.enter_context(atlas_bench(_url(where), f"{name}_{number}", subject)))
        show = stack.enter_context(progress_bar("cell", progress, len(list(found))))
        for number, cell in enumerate(stack.enter_context(closing(_played(found, free, beside))), 1):
            found = found.with_cell(replace(cell, due=effects))
            show(number)
            if watch:
                watch(found)
    return replace(found, seconds=round(time.monotonic() - began, 1))


def _check(guard_sets: Sequence[GuardSet], boundaries: Sequence[str] | None, there: Sequence[str] = BOUNDARIES) -> None:
    names = [guards.name for guards in guard_sets]
    if len(set(names)) < len(names) or not names:
        raise AgentFlowError(
            "An atlas needs at least one set of guards, and no two with the same name. Nothing was started."
        )
    for guards in guard_sets:
        engine_class(guards.without)
    unknown = sorted(set(boundaries or ()) - set(there))
    if unknown or (boundaries is not None and not boundaries):
        raise AgentFlowError(f"There is no boundary {''.join(unknown[:1])!r}. Choose from {', '.join(there)}.")


def _url(where: str | Engine) -> str:
    return where if isinstance(where, str) else where.database.address


def _played(atlas: Atlas, free: SimpleQueue[AtlasBench], beside: int) -> Generator[AtlasCell, None, None]:
    """Yields the cells as they are played. After an interruption no new cell is begun, and those begun have ended."""

    def play(guards: GuardSet, boundary: str) -> AtlasCell:
        mine = free.get()
        try:
            return mine.play(guards, boundary)
        finally:
            free.put(mine)

    pool = ThreadPoolExecutor(beside, thread_name_prefix="atlas")
    try:
        futures: list[Future[AtlasCell]] = [
            pool.submit(play, guards, boundary) for boundary in atlas.boundaries for guards in atlas.guard_sets
        ]
        for future in as_completed(futures):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


# -- one laboratory ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AtlasSubject:
    """What is killed: a workflow by its name, the function (or an example's name), its input and its tool (None: simulated).

    `asked` are the tools that only its side effects name, `events` what has arrived before it begins.
    """

    name: str = DEFAULT_WORKFLOW
    function: str | Workflow = DEFAULT_WORKFLOW
    value: Any = REQUESTS[0]
    tool: Tool | None = None
    asked: tuple[Tool, ...] = ()
    events: dict[str, Any] = field(default_factory=dict)


@contextmanager
def atlas_bench(url: str, schema: str, subject: AtlasSubject = AtlasSubject()) -> Iterator[AtlasBench]:
    """A laboratory of this name for one cell after another; its schema, processes and connections are gone afterwards."""
    with own_schema(url, schema) as database, tempfile.TemporaryDirectory() as folder:
        counted = CountedWorkflow(Path(folder) / "executions", subject.function)
        prefix = "" if isinstance(subject.function, str) and subject.tool is None else f"{schema}."
        with (
            closing(Engine(database, workflows={subject.name: counted}, tool=subject.tool, policy=PATIENT)) as engine,
            Stepper(engine, inputs=[subject.value], lanes="process", patience=CELL_PATIENCE, prefix=prefix) as stepper,
        ):
            engine.asked = stepper.engine.asked = subject.asked
            yield AtlasBench(engine, stepper, counted, subject)


class AtlasBench:
    """Plays one cell at a time in its laboratory, whose rows stay until the next one."""

    def __init__(self, engine: Engine, stepper: Stepper, counted: CountedWorkflow, subject: AtlasSubject) -> None:
        self.engine, self.stepper, self.counted, self.subject = engine, stepper, counted, subject

    def begin(self, without: tuple[str, ...] = ()) -> None:
        """Empties the laboratory. The workflow is there, and so are its events."""
        self.counted.begin()
        self.stepper.reset(Setting(self.subject.name, without))
        if self.subject.events:
            self.stepper.create()
        for name, payload in self.subject.events.items():
            self.engine.deliver_event(self.stepper.workflows[0], name, payload)

    def wait_for(self, brings: Mapping[str, Any]) -> dict[str, Any]:
        """The events that an undisturbed run waits for, with what they bring. Raises AgentFlowError for one that never comes."""
        found: dict[str, Any] = {}
        self.begin()
        while (row := self._carried()[1])["waiting_for"] and len(found) < MOST_EVENTS:
            name = row["waiting_for"]
            self.engine.deliver_event(row["id"], name, found.setdefault(name, brings.get(name, True)))
        if never := never_came(brings, found):
            raise AgentFlowError(f"Undisturbed, {never}. Nothing was killed. Give the event the name that it has.")
        return found

    def rehearse(self) -> tuple[dict[str, int], int | None]:
        """How many effects there are at each boundary of an undisturbed run, in order, and at its end (None: not observed).

        Raises AgentFlowError if it does not complete.
        """
        self.begin()
        done, row = self._carried()
        if row["status"] != "completed":
            error, event = row["error"], row["waiting_for"]
            why = f"waits for the event {event!r:.80}" if event else f"fails: {done[-1][0].trouble}"
            why = f"fails: {error['type']}: {error['message']}" if error else why
            raise AgentFlowError(
                f"Undisturbed, {self.subject.name} does not complete: it {brief(why, 300)}. Nothing was killed. Fix it, or give "
                "it another input."
            )
        steps = [(one.passed, effects or 0) for one, effects in done if one.passed]
        passed = [replace(one, outcome=None, edge="before") for one, _ in steps]
        labels = [label(one) for one in passed]
        names = labels if len({*labels}) == len(labels) else [one.place for one in passed]
        counts, before = dict[str, int](), 0
        for name, (one, effects) in zip(names, steps, strict=True):
            counts[name], before = before, effects
            if one.outcome == "committed":  # where a tool has refused, no worker stands
                counts[f"after {name.partition(' ')[2]}"] = effects
        return counts, done[-1][1]

    def _carried(self) -> tuple[list[tuple[Moved, int | None]], Row]:
        """What each step of A did until its run ended, and how many effects there were after it; and the workflow's row."""
        done: list[tuple[Moved, int | None]] = []
        while not done or not done[-1][0].ended:
            done.append((self.stepper.step("A"), self.engine.reliability_metrics()["business_effects"]))
        return done, self.engine.get_workflow(self.stepper.workflows[0]) or {}

    def play(self, guards: GuardSet, boundary: str) -> AtlasCell:
        """Plays the cell, again if the database was away. Raises DatabaseAway; all else that goes wrong is the cell's error."""
        return self.engine.database.patiently(lambda: self._play(guards, boundary))

    def _play(self, guards: GuardSet, boundary: str) -> AtlasCell:
        empty = AtlasCell(boundary, guards.name)
        try:
            self.begin(guards.without)
            return self._naive(empty) if guards.naive else self._durable(empty, guards)
        except DatabaseAway:
            raise
        except Exception as error:
            said = str(error) if isinstance(error, AgentFlowError) else f"{type(error).__name__}: {error}"
            return replace(empty, state="failed", error=said)

    def _durable(self, cell: AtlasCell, guards: GuardSet) -> AtlasCell:
        """Kills a worker of the engine without these guards, and lets another play to the end."""
        stepper = self.stepper
        if not self._bring(cell.boundary):
            return replace(cell, state="missing")
        stepper.crash("A")
        left = stepper.left_by("A")
        for move in stepper.recovery("A") if left else [Move("go", "B", None)]:
            stepper.move(move)
        (workflow_id,) = stepper.workflows
        row = self.engine.get_workflow(workflow_id) or {}
        recoveries = self.engine.recoveries()
        return self._counted(
            cell,
            completed=row.get("status") == "completed",
            failure=brief("{type}: {message}".format(**row["error"]), 120) if row.get("status") == "failed" else "",
            exit_code=stepper.lane("A").exit_code,
            recovery_ms=recoveries[-1]["recovery_ms"] if recoveries else None,
            line=stepper.line,
            history=tuple(self.engine.history(workflow_id)),
        )

    def _bring(self, boundary: str) -> bool:
        """Moves worker A to the boundary; False if the run ended without it."""
        edge, name = boundary.split(" ", 1)
        while f"before {name}" not in self._places("A"):
            if self.stepper.step("A").ended:
                return False
        if edge == "after":
            self.stepper.move("A.")
            if boundary not in self._places("A"):
                raise LaneError(f"Worker A stopped {' or '.join(self._places('A'))}, not {boundary}.")
        return True

    def _places(self, lane: str) -> tuple[str, ...]:
        standing = self.stepper.lane(lane).standing
        return (label(standing), standing.place) if standing else ()

    def _naive(self, cell: AtlasCell) -> AtlasCell:
        """Kills a process that does the job from the top, and lets another do it from the top."""
        made = self.subject
        workflow_id = f"{self.stepper.workflows[0]} {cell.boundary} {cell.guards}"  # no lane has it, before or after
        job = QueuedJob(
            _url(self.engine),
            self.engine.database.schema,
            self.counted,
            made.value,
            made.tool,
            workflow_id,
            made.events,
        )
        retried = kill_and_retry(job, cell.boundary, CELL_PATIENCE)
        if retried is None:
            return replace(cell, state="missing")
        cell = self._counted(cell, **retried)
        if not (tools := list({id(one): one for one in (made.tool, *made.asked) if one}.values())):
            return cell
        # Their effects are of no workflow in our tables.
        mine: list[Any] | None = None
        with suppress(Exception):  # one does not tell; or it raises, and that is said of the other columns
            mine = [one for tool in tools for one in getattr(tool, "effects")() if one[2] == workflow_id]  # noqa: B009
        if mine is None:
            return replace(cell, effects=None, attempts=None)
        attempts = sum(one[3] or 0 for one in mine if len(one) > 3)
        return replace(cell, effects=(cell.effects or 0) + len(mine), attempts=(cell.attempts or 0) + attempts)

    def _counted(self, cell: AtlasCell, **more: Any) -> AtlasCell:
        """Adds the counts of what the world did and of the steps' own notes to the cell."""
        found = self.engine.reliability_metrics()
        counts = {"effects": found["business_effects"], "attempts": found["tool_execution_attempts"]}
        return replace(cell, state="done", executions=self.counted.executions(), **counts, **more)
