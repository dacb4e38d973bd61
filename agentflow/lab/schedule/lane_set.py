"""The workers of one laboratory by lane: who they are, on which engine they work, and how all of them end."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal, get_args

from ...agents import WORKFLOWS
from ...engine import Engine
from ...errors import AgentFlowError, LaneError
from ...model import Boundary
from ...tools import why_no_tool
from ..broken.catalogue import engine_class
from ..laboratory.laboratory import LEASE_SECONDS
from .grammar import LANES, Setting
from .lane_worker import engine_of_a_lane
from .lanes import Lane, ProcessLane, ThreadLane, process_engine
from .presets import workflows_for

LaneKind = Literal["thread", "process"]
SHARED_NAME = "W"
_WAITING = """\
SELECT pg_blocking_pids(pid) <> '{}' AS blocked FROM pg_stat_activity WHERE application_name = :name AND state = 'active'"""


class LaneSet:
    """Lanes by name, each with a worker of the setting's engine; a lane's first worker starts when it is asked for."""

    def __init__(self, engine: Engine, setting: Setting, kind: LaneKind, patience: float) -> None:
        self.engine, self.setting, self.kind, self.patience = engine, setting, kind, patience
        if why := why_no_tool(engine.tool):
            raise LaneError(f"The engine's tool {why}. Nothing was moved.")
        # a worker gives up on the database before it is given up itself, and only the move `due` ends a back-off
        self.database_patience = min(3.0, patience / 2)
        self.policy = replace(
            engine.policy, unknown_outcome=setting.retry, first_delay=LEASE_SECONDS, max_delay=LEASE_SECONDS
        )
        self._lanes: dict[str, Lane] = {}
        self._starts: dict[str, int] = {}
        self._salt = uuid.uuid4().hex[:8]  # identities are new for each start of a worker, also after a reset

    def lane(self, name: str) -> Lane:
        """The lane of this name; asked for the first time, its worker starts and stands before its claim. Raises LaneError."""
        known_lane(name)
        if name not in self._lanes:
            kind = ThreadLane if self.kind == "thread" else ProcessLane
            lane: Lane = kind(name, self.patience, self._reason, self._prepare)
            self._start(lane)
            self._lanes[name] = lane
        return self._lanes[name]

    def known(self, name: str) -> Lane | None:
        """The lane if it ever had a worker."""
        return self._lanes.get(name)

    def restart(self, name: str) -> Lane:
        """Starts a new worker in the lane. Raises LaneError."""
        self._start(self.lane(name))
        return self._lanes[name]

    def standing(self, name: str) -> Boundary | None:
        """Where the lane's worker stands; None while it runs, is dead, or has not moved yet."""
        lane = self._lanes.get(name)
        return lane.standing if lane and not lane.busy else None

    def gone(self, name: str) -> set[str]:
        """The identities of the lane's lost or paused workers."""
        started = {self._identity(name, number) for number in range(1, self._starts.get(name, 0) + 1)}
        lane = self._lanes.get(name)
        return started - {lane.identity} if lane and lane.alive and not lane.paused else started

    def lost(self) -> list[Lane]:
        """The lanes whose worker has ended without an order to."""
        return [lane for lane in self._lanes.values() if not lane.alive]

    def end(self) -> None:
        """Ends the threads and processes of all lanes. Raises LaneError if one does not end."""
        stuck = []
        for lane in self._lanes.values():
            try:
                if lane.alive:
                    lane.kill()
            except LaneError as error:
                stuck.append(str(error))
        if stuck:
            raise LaneError(" ".join(stuck))

    def _start(self, lane: Lane) -> None:
        number = self._starts.get(lane.name, 0) + 1
        self._starts[lane.name] = number
        lane.start(self._identity(lane.name, number))

    def _identity(self, lane: str, number: int) -> str:
        return SHARED_NAME if self.setting.names == "shared" else f"{lane}.{self._salt}{number}"

    def _reason(self, identity: str) -> str:
        """Why a worker does not reach its next boundary, as far as PostgreSQL knows; empty if no statement of it is running."""
        database = self.engine.database.twin()
        try:
            found = [row["blocked"] for row in database.read_sql(_WAITING, {"name": identity})[1]]
        except AgentFlowError:
            return "PostgreSQL does not answer"
        finally:
            database.close()
        if not found:
            return ""
        return f"its statement waits in PostgreSQL{' for a lock that another session holds' if any(found) else ''}"

    def _prepare(self, lane: str, identity: str) -> Callable[[], Engine]:
        """How the engine of the lane's next worker is made, here or in its process."""
        label, given = f"{lane}{self._starts[lane]}", self.engine
        if self.kind == "thread":
            return partial(self._thread_engine, label, identity)
        own = {name: function for name, function in given.workflows.items() if WORKFLOWS.get(name) is not function}
        tool = None if given.tool is given.world else given.tool
        url = given.database.address
        where = (url, given.database.schema, self.setting, self.policy)
        return partial(process_engine, *where, own, tool, label, identity, self.database_patience)

    def _thread_engine(self, label: str, identity: str) -> Engine:
        engine = engine_of_a_lane(self.engine, identity, self.database_patience)
        engine.workflows = workflows_for(self.setting, label, engine.workflows)
        engine.policy = self.policy
        return engine


def known_lane(name: str) -> None:
    """Raises LaneError if there is no lane of this name."""
    if name not in LANES:
        raise LaneError(f"There is no lane {name!r}; the lanes are {', '.join(LANES)}.")


def known_kind(kind: str) -> None:
    """Raises LaneError if lanes cannot be of this kind."""
    if kind not in get_args(LaneKind):
        raise LaneError(f"Lanes can be {' or '.join(get_args(LaneKind))}, not {kind!r}. Nothing was started.")


def weakened(engine: Engine, setting: Setting) -> Engine:
    """The engine without the setting's guards, and with its workflows and tool. Raises AgentFlowError for unknown guards.

    An engine of another class keeps its class; guards can be taken away from Engine only.
    """
    if not setting.without:
        return engine
    if type(engine) is not Engine:
        raise LaneError(
            f"Guards can be removed only from Engine itself, not from {type(engine).__name__}; leave `without=` out."
        )
    tool = None if engine.tool is engine.world else engine.tool
    kind = engine_class(setting.without)
    return kind(engine.database, workflows=engine.workflows, tool=tool, policy=engine.policy, hook=engine.hook)
