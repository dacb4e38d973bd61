"""Workers that move only when told: a lane is a thread that the engine's one hook stops before each transaction.

What lives here: the moves step, crash, expire, recover, reset, and what each did. What does not: buttons (`panel`),
pictures (`look`). A standing lane holds no connection and no transaction; it can stand for hours, since its lease does
not end by itself. Between two boundaries runs the workflow's own code: the only thing a lane can be stuck in, and
waiting for it is bounded. Read `panel` next.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ..database import Database
from ..errors import AlreadyFinished, CrashInjected, DatabaseAway, LaneError, LostLease
from ..front import Engine
from ..model import Boundary
from ..worker import carry, new_identity
from .laboratory import LEASE_SECONDS

MAX_MOVES = 1_000


@dataclass(frozen=True)
class Move:
    """What one move of a lane did.

    `passed` is the boundary behind it (None: none), `next` names the transaction that it stands before. `ended` says
    how the worker ended: completed, failed, waiting, postponed, released, lost, crashed, or idle (nothing to claim).
    """

    lane: str
    passed: Boundary | None
    next: str
    ended: str | None = None

    def __str__(self) -> str:
        done = f"{named(self.passed)} {self.passed.outcome}" if self.passed else "nothing passed"
        return f"{self.lane}: {done}; {self.ended or 'stands'}; next: {self.next}"


def named(boundary: Boundary) -> str:
    """The transaction and its subject, such as `checkpoint classify`."""
    return f"{boundary.transaction} {boundary.subject or ''}".strip()


class _Closed(CrashInjected):
    """The laboratory closed the lane; no fault of anybody's, so the history does not mention it."""


class Lane:
    """One worker thread at a time, and the handshake that makes it stand before each transaction."""

    def __init__(self, name: str, engine: Engine, patience: float) -> None:
        self.name, self.patience = name, patience
        self.engine: Engine = engine.with_hook(self._stop_here)
        self._outer = engine.hook
        self._turn = threading.Condition()
        self._busy = threading.Lock()
        self._thread: threading.Thread | None = None
        self._order: type[BaseException] | str | None = None
        self._begin()

    def _begin(self) -> None:
        self.identity = new_identity(self.name)
        self.standing: Boundary | None = None
        self.passed: Boundary | None = None
        self.ended: str | None = None
        self._unsettled = False
        self.error: BaseException | None = None

    @property
    def alive(self) -> bool:
        """Whether this lane's worker runs or stands somewhere."""
        return self._thread is not None and self._thread.is_alive() and self.ended is None

    @contextmanager
    def moving(self) -> Iterator[None]:
        """One move at a time. Raises LaneError if another is under way."""
        if not self._busy.acquire(blocking=False):
            raise LaneError(f"{self.name} is still busy with its last move; wait until it has ended, then try again.")
        try:
            yield
        finally:
            self._busy.release()

    def go(self) -> None:
        """The worker passes the transaction that it stands before; a new worker starts if there is none.

        After a move that was not waited for to its end, nothing: the same move again only waits on.
        """
        if self._unsettled:
            return
        self.passed = None
        if not self.alive:
            self._begin()
            self._order = "go"
            self._thread = threading.Thread(target=self._work, name=f"lane-{self.name}", daemon=True)
            self._thread.start()
        elif self.standing:
            self.obey("go")

    def obey(self, order: type[BaseException] | str) -> None:
        """The worker has been told: to go, or what to raise where it stands or at the next boundary it reaches."""
        with self._turn:
            self._order, self.standing = order, None
            self._turn.notify_all()

    def settle(self) -> None:
        """The worker stands before a transaction, or has ended.

        Raises LaneError if its own code takes longer than `patience` seconds, and what the worker raised, if anything.
        """
        with self._turn:
            settled = self._turn.wait_for(lambda: self.standing is not None or self.ended is not None, self.patience)
        self._unsettled = not settled
        if not settled:
            raise LaneError(
                f"{self.name} has not reached its next transaction within {self.patience:g} s: a step or tool of the "
                "workflow is still running. Try the same move again to wait on, or reset."
            )
        if self.ended and self._thread:
            self._thread.join(self.patience)
        if self.error:
            error, self.error = self.error, None
            raise error

    def end(self) -> bool:
        """Whether no thread is left: a standing worker is told to stop, a running one stops at its next boundary."""
        if self.alive:
            self.obey(_Closed)
        if self._thread:
            self._thread.join(self.patience)
        gone = self._thread is None or not self._thread.is_alive()
        if gone:
            self._thread = None
            self._begin()
        return gone

    def _stop_here(self, boundary: Boundary) -> None:
        """The hook: before a transaction the worker stands until told; `load` commits nothing, so it is passed."""
        if self._outer:
            self._outer(boundary)
        if boundary.transaction == "renew":  # on the renewing thread, not on this lane
            return
        with self._turn:
            if boundary.edge == "after":
                self.passed = self.passed if boundary.transaction == "load" and self.passed else boundary
                return
            if boundary.transaction == "load" and self._order is None:
                return
            if self._order is None:
                self.standing = boundary
                self._turn.notify_all()
                self._turn.wait_for(lambda: self._order is not None)
            order, self._order = self._order, None
        if isinstance(order, type):
            raise order(f"{self.name} was stopped before {named(boundary)}")

    def _work(self) -> None:
        """The life of one worker: claim, carry, end. What it raises is kept for whoever told it to move."""
        ended = "crashed"
        try:
            claim = self.engine.claim_workflow(self.identity, LEASE_SECONDS)
            ended = carry(self.engine, claim, self.engine.workflows[claim.name], self.engine.tool) if claim else "idle"
        except LostLease:
            ended = "lost"
        except CrashInjected:
            pass
        except BaseException as error:
            self.error = error
        with self._turn:
            self.ended, self.standing = ended, None
            self._turn.notify_all()


class Stepper:
    """Lanes over an engine, by name. Each move is a method; none waits longer than `patience` seconds for user code."""

    def __init__(self, engine: Engine, names: Sequence[str] = ("A", "B"), *, patience: float = 10.0) -> None:
        self.patience, self.names = patience, tuple(names)
        self.engine: Engine = engine.with_hook(engine.hook)
        where = engine.database.url.render_as_string(hide_password=False)
        self.engine.database = Database(where, engine.database.schema, patience=min(3.0, patience))
        self.workflow_id: str | None = None
        self._closed = False
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
        """What the lane's worker left is finished by the next lane: expire, then that one to its end; its moves.

        If the lane's worker is alive it is now stale, and its next write is refused. Raises LaneError, DatabaseAway.
        """
        self._lane(name)
        self._answers()
        other = self.names[(self.names.index(name) + 1) % len(self.names)]
        target = self.current()
        if target is None:
            raise LaneError("There is no workflow to recover; submit a request first.")
        row = self.engine.get_workflow(target) or {}
        if row.get("lease_owner") != self._lane(other).identity:
            with suppress(AlreadyFinished):  # nobody holds it, so there is nothing to wait for
                self.expire(target)
        moves = self.run(other)
        while moves[-1].ended not in ("idle", "crashed") and self._is_open(target):
            if moves[-1].ended == "postponed":
                self.expire(target)
            moves += self.run(other)
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
        self.workflow_id = None

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
        return Move(lane.name, lane.passed, self.next_transaction(lane.name), lane.ended)

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
            raise DatabaseAway(
                f"PostgreSQL at {self.engine.database.where} does not answer. No worker has moved; start it again "
                "(`agentflow doctor` says which one is meant), then repeat the move."
            ) from away

    def _end_lanes(self) -> None:
        left = [name for name, lane in self._lanes.items() if not lane.end()]
        if left:
            raise LaneError(
                f"The worker of {', '.join(left)} is inside a step or tool that has not returned within "
                f"{self.patience:g} s. It stops at its next transaction; restart the kernel if it never gets there."
            )
