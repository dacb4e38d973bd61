"""One lane: a worker thread, and the handshake that makes it stand before each of its transactions.

What lives here: the thread and its hook. What does not: the moves that people make (`stepper`), and what the rows say.
Between two boundaries runs the workflow's own code: the only thing a lane can be stuck in, and waiting for it is
bounded. Read `stepper` next.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..errors import CrashInjected, LaneError, LostLease
from ..front import Engine
from ..model import Boundary
from ..worker import carry, new_identity
from .laboratory import LEASE_SECONDS


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
