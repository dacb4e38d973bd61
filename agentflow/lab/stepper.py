"""Workers that move only when told: each is a lane, which the engine's one hook stops before each transaction.

What lives here: the moves step, crash, expire, recover, reset, and what each did. What does not: the thread behind a
lane (`lane`), buttons (`panel`), pictures (`look`). A standing lane holds no connection and no transaction; it can stand
for hours, since its lease does not end by itself. Read `panel` next.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ..database import Database
from ..errors import AlreadyFinished, CrashInjected, DatabaseAway, LaneError
from ..front import Engine, is_embedded
from .lane import Lane, Move, named
from .look import worker_name

MAX_MOVES = 1_000
FIRST_CELL = "Run the first cell again, which starts it, and then the cells after it."


class Stepper:
    """Lanes over an engine, by name. Each move is a method; none waits longer than `patience` seconds for user code."""

    def __init__(self, engine: Engine, names: Sequence[str] = ("A", "B"), *, patience: float = 10.0) -> None:
        self.patience, self.names = patience, tuple(names)
        self.engine: Engine = engine.with_hook(engine.hook)
        where = engine.database.url.render_as_string(hide_password=False)
        self.engine.database = Database(where, engine.database.schema, patience=min(3.0, patience))
        self.workflow_id: str | None = None
        self._closed = False
        self._owed: dict[str, list[str]] = {}
        self._lanes = {name: Lane(name, self.engine, patience) for name in self.names}

    # -- the moves ---------------------------------------------------------------------------------------------------

    def step(self, name: str) -> Move:
        """The lane's worker has passed its next transaction and stands before the one after, or has ended.

        Raises LaneError if it is busy or stuck in its own code; DatabaseAway, and then nothing was moved.
        """
        lane = self._lane(name)
        with lane.moving():
            self._answers()
            lane.go()
            return self._settled(lane)

    def crash(self, name: str) -> Move:
        """The lane's worker is gone, at the boundary where it stood; the history has the fault. Its lease stays.

        Raises LaneError if there is no worker to crash; DatabaseAway, and then it still stands.
        """
        lane = self._lane(name)
        with lane.moving():
            if not lane.alive:
                raise LaneError(f"{name} has no worker to crash: step it first, so that it claims a workflow.")
            lane.settle()
            self._answers()
            at = lane.standing
            if at and at.workflow:
                self.engine.with_hook(None).record_fault(
                    at.workflow, "crash_injected", worker=at.worker, token=at.token, at=f"before {named(at)}"
                )
            lane.passed = None
            lane.obey(CrashInjected)
            return self._settled(lane)

    def expire(self, workflow_id: str | None = None) -> str:
        """The lease (or back-off) of this workflow, or of the one last worked on, has ended; its id.

        Raises AlreadyFinished if there is nothing to age, DatabaseAway.
        """
        self._answers()
        chosen = workflow_id or self.current()
        if chosen is None:
            raise LaneError("There is no workflow whose lease could end; submit a request first.")
        self.engine.expire_lease(chosen)
        return chosen

    def recover(self, name: str) -> list[Move]:
        """Everything that the lane's lost workers left is finished (or parked) by the next lane; its moves.

        That lane first ends what it holds, and goes on past other work it claims. If the lane's worker is alive and it
        alone left something, it is now stale, and its next write is refused. Raises LaneError if nothing was left
        behind, and then nothing was written; DatabaseAway.
        """
        left = self.left_by(name)
        if not left:
            lost = [other for other in self.names if self.left_by(other) and not self.is_alive(other)]
            hint = f" It was {lost[0]} that was lost: recover {lost[0]}." if lost else " Nothing was written."
            raise LaneError(f"{name} left nothing behind, so there is nothing to recover.{hint}")
        self._owed[name] = left
        other = self.names[(self.names.index(name) + 1) % len(self.names)]
        moves = self.run(other) if self.is_alive(other) else []
        for target in left:
            moves += self._finish(target, other)
        del self._owed[name]
        return moves

    def run(self, name: str) -> list[Move]:
        """The lane's worker was stepped until it ended; its moves. Raises like step()."""
        moves = [self.step(name)]
        while moves[-1].ended is None:
            if len(moves) >= MAX_MOVES:
                raise LaneError(f"{name} made {MAX_MOVES:,} moves without an end; look at the history, or reset.")
            moves.append(self.step(name))
        return moves

    def submit(self, request: Any, *, name: str = "support_agent", workflow_id: str | None = None) -> str:
        """The request waits as a workflow, the next in the order `request-1`, `request-2`, ...; its id."""
        self._answers()
        if workflow_id is None:
            workflow_id = f"request-{1 + len(self.engine.list_workflows(prefix='request-', limit=1_000_000))}"
        return str(self.engine.create_workflow(request, name=name, workflow_id=workflow_id)["id"])

    def reset(self) -> None:
        """The lanes are empty and the laboratory has no rows. Raises LaneError, DatabaseAway, NotALaboratory."""
        self._answers()
        self._end_lanes()
        self.engine.reset_database()
        self.workflow_id, self._owed = None, {}

    def close(self) -> None:
        """No thread and no connection of the stepper is left. Raises LaneError if a step does not return."""
        self._closed = True
        try:
            self._end_lanes()
        finally:
            self.engine.database.close()

    def __enter__(self) -> Stepper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what can be seen --------------------------------------------------------------------------------------------

    def next_transaction(self, name: str) -> str:
        """What step(name) would let the worker commit, such as `checkpoint classify`; `claim` if it has no work yet."""
        lane = self._lane(name)
        if lane.standing:
            return named(lane.standing)
        return "still running" if lane.alive else "claim"

    def is_alive(self, name: str) -> bool:
        """Whether the lane has a worker that stands or runs."""
        return self._lane(name).alive

    def left_by(self, name: str) -> list[str]:
        """The open workflows that this lane's lost workers hold, the oldest first; without any, what its worker holds.

        Counted too: what waits out a back-off after its failed attempt, and what a recovery began and did not end.
        """
        lane = self._lane(name)
        self._answers()
        ready = {row["id"]: row["lease_owner"] for row in reversed(self._ready())}
        held = [workflow_id for workflow_id, owner in ready.items() if owner and worker_name(owner) == name]
        lost = [workflow_id for workflow_id in held if not (lane.alive and ready[workflow_id] == lane.identity)]
        owed = [workflow_id for workflow_id in self._owed.get(name, []) if workflow_id in ready]
        return list(dict.fromkeys([*owed, *(lost or held)]))

    def current(self) -> str | None:
        """The workflow last worked on; without one, the newest; None if there is none."""
        if self.workflow_id and self.engine.get_workflow(self.workflow_id):
            return self.workflow_id
        newest = self.engine.list_workflows(limit=1)
        return str(newest[0]["id"]) if newest else None

    # -- how ---------------------------------------------------------------------------------------------------------

    def _lane(self, name: str) -> Lane:
        if self._closed:
            raise LaneError("This stepper is closed. Run the cell that made it again.")
        if name not in self._lanes:
            raise LaneError(f"There is no lane {name!r}; there are {', '.join(self.names)}.")
        return self._lanes[name]

    def _settled(self, lane: Lane) -> Move:
        lane.settle()
        seen = lane.standing or lane.passed
        if seen and seen.workflow:
            self.workflow_id = seen.workflow
            if lane.ended == "postponed":
                self._owed[lane.name] = [*self._owed.get(lane.name, []), seen.workflow]
        return Move(lane.name, lane.passed, self.next_transaction(lane.name), lane.ended)

    def _finish(self, target: str, name: str) -> list[Move]:
        """The lane carried the workflow until it was no longer ready, or found nothing more to claim; its moves."""
        moves: list[Move] = []
        if self._is_open(target):
            self._age(target)
        while self._is_open(target) and not (moves and moves[-1].ended in ("idle", "crashed")):
            moves += self.run(name)
            passed = moves[-1].passed
            if moves[-1].ended == "postponed" and passed and passed.workflow == target:
                self._age(target)
        return moves

    def _age(self, workflow_id: str) -> None:
        with suppress(AlreadyFinished):  # nobody holds it, so there is nothing to wait for
            self.engine.expire_lease(workflow_id)

    def _ready(self) -> list[dict[str, Any]]:
        return self.engine.list_workflows(status="ready", limit=1_000_000)

    def _is_open(self, workflow_id: str) -> bool:
        row = self.engine.get_workflow(workflow_id)
        return row is not None and row["status"] == "ready"

    def _answers(self) -> None:
        """PostgreSQL answers now; asked before a move, so that a worker never leaves its place for nothing."""
        try:
            with suppress(DatabaseAway):
                self.engine.database.check()
                return
            self.engine.database.check()  # the pool may have held a connection from before a restart
        except DatabaseAway as away:
            mend = (
                FIRST_CELL
                if is_embedded()
                else "Start it again (`agentflow doctor` says which one is meant), then repeat the move."
            )
            where = self.engine.database.where
            raise DatabaseAway(f"PostgreSQL at {where} does not answer. No worker has moved. {mend}") from away

    def _end_lanes(self) -> None:
        left = [name for name, lane in self._lanes.items() if not lane.end()]
        if left:
            raise LaneError(
                f"The worker of {', '.join(left)} is inside a step or tool that has not returned within "
                f"{self.patience:g} s. It stops at its next transaction; restart the kernel if it never gets there."
            )
