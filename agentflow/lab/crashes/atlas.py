"""The crash atlas: at every boundary of every engine a real process is killed, and another recovers what it left.

Several cells are played side by side, each in its own laboratory, which is dropped afterwards. The killed worker and the
one that recovers are process lanes of a Stepper, so each cell is a schedule that can be played again. Read `atlas_result`
next.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ...agents import DEFAULT_WORKFLOW
from ...engine import Engine
from ...errors import AgentFlowError, DatabaseAway, LaneError
from ..broken.catalogue import engine_class
from ..laboratory.laboratory import PATIENT
from ..laboratory.scratch_schema import new_name, own_schema
from ..notebook.progress import progress_bar
from ..notebook.tables import query
from ..schedule.grammar import Move, Setting
from ..schedule.presets import REQUESTS
from ..schedule.stepper import Stepper
from .atlas_picture import Atlas
from .atlas_result import BOUNDARIES, GUARD_SETS, AtlasCell, GuardSet
from .counting_agent import CountedAgent
from .kill_plan import label
from .naive_queue import QueuedJob, kill_and_retry

BESIDE = 3
"""How many cells are played side by side: each waits for its own commits, and has two processes."""

CELL_PATIENCE = 30.0  # seconds until a worker that does not reach its next boundary is given up


def atlas(
    where: str | Engine, *, guard_sets: Sequence[GuardSet] = GUARD_SETS, boundaries: Sequence[str] = BOUNDARIES,
    schema: str | None = None, beside: int = BESIDE, progress: bool | None = False,
    watch: Callable[[Atlas], None] | None = None,
) -> Atlas:  # fmt: skip
    """Plays every cell: kills a worker there with SIGKILL, and lets another process recover its work.

    `where` is the URL of a PostgreSQL, or an engine on it. The atlas has its own schemas (`schema` and a number), which must
    not exist yet and are dropped afterwards. `progress` shows a bar on standard error (None: on a terminal); `watch` gets
    the atlas after each cell. A cell that cannot be played keeps the error, and the others are played all the same. Raises
    DatabaseAway, NotALaboratory, and AgentFlowError for unknown guards or boundaries before anything starts.
    """
    _check(guard_sets, boundaries)
    began, found = time.monotonic(), Atlas(tuple(guard_sets), boundaries=tuple(boundaries))
    with ExitStack() as stack:
        free: SimpleQueue[AtlasBench] = SimpleQueue()
        name = schema or new_name("atlas")
        for number in range(1, min(beside, len(list(found))) + 1):
            free.put(stack.enter_context(atlas_bench(_url(where), f"{name}_{number}")))
        show = stack.enter_context(progress_bar("cell", progress, len(list(found))))
        for number, cell in enumerate(stack.enter_context(closing(_played(found, free, beside))), 1):
            found = found.with_cell(cell)
            show(number)
            if watch:
                watch(found)
    return replace(found, seconds=round(time.monotonic() - began, 1))


def _check(guard_sets: Sequence[GuardSet], boundaries: Sequence[str]) -> None:
    names = [guards.name for guards in guard_sets]
    if len(set(names)) < len(names) or not names:
        raise AgentFlowError(
            "An atlas needs at least one set of guards, and no two with the same name. Nothing was started."
        )
    for guards in guard_sets:
        engine_class(guards.without)
    unknown = sorted(set(boundaries) - set(BOUNDARIES))
    if unknown or not boundaries:
        raise AgentFlowError(f"There is no boundary {''.join(unknown[:1])!r}. Choose from {', '.join(BOUNDARIES)}.")


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


@contextmanager
def atlas_bench(url: str, schema: str) -> Iterator[AtlasBench]:
    """A laboratory of this name for one cell after another; its schema, processes and connections are gone afterwards."""
    with own_schema(url, schema) as database, tempfile.TemporaryDirectory() as folder:
        agent = CountedAgent(Path(folder) / "executions")
        with (
            closing(Engine(database, workflows={DEFAULT_WORKFLOW: agent}, policy=PATIENT)) as engine,
            Stepper(engine, lanes="process", patience=CELL_PATIENCE) as stepper,
        ):
            yield AtlasBench(engine, stepper, agent)


class AtlasBench:
    """Plays one cell at a time in its laboratory, whose rows stay until the next one."""

    def __init__(self, engine: Engine, stepper: Stepper, agent: CountedAgent) -> None:
        self.engine, self.stepper, self.agent = engine, stepper, agent

    def play(self, guards: GuardSet, boundary: str) -> AtlasCell:
        """Plays the cell, again if the database was away. Raises DatabaseAway; all else that goes wrong is the cell's error."""
        return self.engine.database.patiently(lambda: self._play(guards, boundary))

    def _play(self, guards: GuardSet, boundary: str) -> AtlasCell:
        empty = AtlasCell(boundary, guards.name)
        try:
            self.agent.begin()
            self.stepper.reset(Setting(without=guards.without))
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
            exit_code=stepper.lane("A").exit_code,
            recovery_ms=recoveries[-1]["recovery_ms"] if recoveries else None,
            line=stepper.line,
            history=tuple(self.engine.history(workflow_id)),
        )

    def _bring(self, boundary: str) -> bool:
        """Moves worker A to the boundary; False if the run ended without it."""
        edge, name = boundary.split(" ", 1)
        while self._place("A") != f"before {name}":
            if self.stepper.step("A").ended:
                return False
        if edge == "after":
            self.stepper.move("A.")
            if self._place("A") != boundary:
                raise LaneError(f"Worker A stopped {self._place('A')}, not {boundary}.")
        return True

    def _place(self, lane: str) -> str:
        standing = self.stepper.lane(lane).standing
        return label(standing) if standing else ""

    def _naive(self, cell: AtlasCell) -> AtlasCell:
        """Kills a process that does the job from the top, and lets another do it from the top."""
        job = QueuedJob(_url(self.engine), self.engine.database.schema, self.agent, REQUESTS[0])
        retried = kill_and_retry(job, cell.boundary, CELL_PATIENCE)
        return self._counted(cell, **retried) if retried else replace(cell, state="missing")

    def _counted(self, cell: AtlasCell, **more: Any) -> AtlasCell:
        """Adds the counts of the world's rows and of the steps' own notes to the cell."""
        (found,) = query(self.engine, _WORLD)
        return replace(cell, state="done", executions=self.agent.executions(), **found, **more)


_WORLD = """
    SELECT (SELECT count(*) FROM tool_ledger) AS effects, (SELECT count(*) FROM tool_attempts) AS attempts"""
