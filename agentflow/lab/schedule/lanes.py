"""A lane: one worker at a time, in a thread (fast) or in a real process, that moves only when it gets an order.

A process is killed with SIGKILL and paused with SIGSTOP. A thread cannot be: there a kill is an exception at the boundary
where it stands (which is kinder: `finally` blocks run), and a pause is a refusal to move.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from multiprocessing.process import BaseProcess
from typing import Any

from ...agents import WORKFLOWS
from ...database import Database
from ...engine import Engine
from ...errors import LaneError
from ...model import Boundary, Policy
from ...run import Workflow
from ...statements import TRANSACTIONS
from ..broken.catalogue import engine_class
from ..laboratory import processes
from .grammar import Setting
from .lane_worker import LaneWorker, Order, Report, close_lane_engine, engine_of_a_lane
from .presets import workflows_for

_RELEASING = {name for name, one in TRANSACTIONS.items() if one.releases}
KILLED_BY = 5.0  # seconds in which a process that got SIGKILL has to end
Prepare = Callable[[str, str], Callable[[], Engine]]
"""Gives, for the names of a lane and a worker, the function that makes the worker's engine."""


class Lane(ABC):
    """What both kinds share: where the worker stands, and the wait for it, bounded by `patience` seconds.

    `parked` is the workflow that the worker let go of last without an end (it waits for an event, or out a back-off).
    `exit_code` is how the process that was killed last has ended, as the operating system says; a thread has none.
    """

    def __init__(self, name: str, patience: float, reason: Callable[[str], str], prepare: Prepare) -> None:
        self.name, self.patience, self._reason, self._prepare = name, patience, reason, prepare
        self.identity = ""
        self.standing: Boundary | None = None
        self.alive, self.paused, self.busy = False, False, False
        self.parked: str | None = None
        self.exit_code: int | None = None
        self._order: Order = "go"  # the last one

    def start(self, identity: str) -> None:
        """Starts a worker of this identity, which stands before its first claim. Raises LaneError."""
        self.identity, self.standing = identity, Boundary("claim", "before", identity)
        self.paused = self.busy = False
        self.parked = None
        self._order = "go"
        self._start()
        self.alive = True
        self.settle()

    def tell(self, order: Order) -> Report:
        """Gives the order, waits until the worker stands again, and returns its report. Raises LaneError.

        A worker that is still busy with an earlier order is waited for instead.
        """
        self.begin(order)
        return self.settle()

    def begin(self, order: Order) -> None:
        """Gives the order; settle() waits for what comes of it."""
        if self.busy and order != self._order:
            raise LaneError(
                f"{self.name} is still busy with its previous move: {self.why_busy()}. Repeat that move to keep waiting; a "
                "kill or a reset ends it."
            )
        if not self.busy:
            self.busy, self._order = True, order
            self._send(order)

    def settle(self) -> Report:
        """Waits until the worker stands and returns its report. Raises LaneError, with the reason, if none comes in time."""
        self.busy = True
        report = self._receive(self.patience)
        if report is None:
            raise LaneError(
                f"{self.name} has not reached its next transaction within {self.patience:g} s: {self.why_busy()}. "
                "Repeat the move to keep waiting; a kill or a reset ends it."
            )
        self._parks(report)
        self.busy, self.standing = False, report.standing
        return report

    def _parks(self, report: Report) -> None:
        at = report.standing
        if at.edge == "after" and at.transaction in _RELEASING:
            self.parked = at.workflow
        elif report.ended in ("waiting", "postponed") and report.passed:
            self.parked = report.passed.workflow
        elif report.ended != "idle":  # it works on something, or has ended it
            self.parked = None

    def kill(self) -> None:
        """Kills the worker. Raises LaneError if it is a thread inside its own code: then it dies at its next boundary."""
        self._kill()
        self.alive = self.paused = self.busy = False
        self.standing = None

    def pause(self) -> None:
        """Stops the worker until resume()."""
        self.paused = True

    def resume(self) -> None:
        """Ends the pause; the worker still stands where it stood."""
        self.paused = False

    def why_busy(self) -> str:
        """What the worker is doing, as far as can be seen from outside."""
        return self._reason(self.identity) or self._inside()

    def _inside(self) -> str:
        return "a step or tool of the workflow is still running"

    @abstractmethod
    def _start(self) -> None: ...

    @abstractmethod
    def _send(self, order: Order) -> None: ...

    @abstractmethod
    def _receive(self, seconds: float) -> Report | None: ...

    @abstractmethod
    def _kill(self) -> None: ...


class ThreadLane(Lane):
    """A worker in a thread of this process."""

    def _start(self) -> None:
        self._orders = orders = queue.SimpleQueue[Order]()
        self._reports = reports = queue.SimpleQueue[Report | None]()  # None: the worker has ended
        engine = self._prepare(self.name, self.identity)()

        def ask(report: Report) -> Order:
            reports.put(report)
            return orders.get()

        def work() -> None:
            try:
                LaneWorker(engine, self.identity, ask).run()
            finally:
                close_lane_engine(engine)
                reports.put(None)

        self._thread = threading.Thread(target=work, name=f"lane-{self.name}", daemon=True)
        self._thread.start()

    def _send(self, order: Order) -> None:
        self._orders.put(order)

    def _receive(self, seconds: float) -> Report | None:
        try:
            report = self._reports.get(timeout=seconds)
        except queue.Empty:
            return None
        if report is None:  # it was told to die while it was in its own code
            self.alive = self.paused = False
            raise LaneError(f"{self.name} died at its next transaction, as ordered; {self.name}+ starts a new process.")
        return report

    def _kill(self) -> None:
        self._orders.put("kill")
        self._thread.join(self.patience)
        if self._thread.is_alive():
            raise LaneError(
                f"{self.name} is a thread and {self.why_busy()}. It dies at its next transaction; restart the kernel if it "
                "never gets there (process lanes can be killed anywhere)."
            )

    def _inside(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0)
        stack = traceback.extract_stack(frame) if frame else []
        own = [one for one in stack if f"{os.sep}agentflow{os.sep}" not in one.filename and one.name != "_bootstrap"]
        mine = [one for one in own if not one.filename.startswith(os.path.dirname(threading.__file__))]
        if mine and mine[-1].line:
            return f"it is inside a step or tool, in `{mine[-1].line}`"
        return super()._inside()


class ProcessLane(Lane):
    """A worker in a separate process, killed with SIGKILL and paused with SIGSTOP."""

    _process: BaseProcess | None = None
    _connection: Connection[Order, Report] | None = None

    @property
    def pid(self) -> int | None:
        """The process id of the worker."""
        return self._process.pid if self._process else None

    def _start(self) -> None:
        make_engine = self._prepare(self.name, self.identity)
        self._connection, theirs = Pipe()
        self._process = processes.start(serve_lane, make_engine, self.identity, theirs, name=f"lane-{self.name}")
        theirs.close()

    def _send(self, order: Order) -> None:
        try:
            self._line.send(order)
        except OSError as error:
            raise self._gone() from error

    def _receive(self, seconds: float) -> Report | None:
        try:
            return self._line.recv() if self._line.poll(seconds) else None
        except (EOFError, OSError) as error:
            raise self._gone() from error

    def _kill(self) -> None:
        if self._process:
            processes.kill([self._process], KILLED_BY)
            self.exit_code = self._process.exitcode
            self._line.close()
        self._process = None

    def pause(self) -> None:
        """Stops the process (SIGSTOP)."""
        self._signal(signal.SIGSTOP)
        super().pause()

    def resume(self) -> None:
        """Lets the process go on (SIGCONT)."""
        self._signal(signal.SIGCONT)
        super().resume()

    def _signal(self, number: signal.Signals) -> None:
        pid = self.pid
        if pid is None or self._process is None or not self._process.is_alive():  # the number may be another's by now
            raise self._gone()
        os.kill(pid, number)

    @property
    def _line(self) -> Connection[Order, Report]:
        if self._connection is None:
            raise LaneError(f"{self.name} has no process yet.")
        return self._connection

    def _gone(self) -> LaneError:
        """The error for a process that ended without an order; the lane is empty."""
        code = None
        if self._process:
            processes.has_ended(self._process, 1)
            code = self._process.exitcode
        self.alive = self.paused = False
        return LaneError(
            f"The process of {self.name} ended unexpectedly (exit code {code}). Its lease lasts until it expires; "
            f"{self.name}+ starts a new one."
        )


def process_engine(
    url: str, schema: str, setting: Setting, policy: Policy, own: dict[str, Workflow], tool: Any, label: str,
    identity: str, patience: float,
) -> Engine:  # fmt: skip
    """The engine of a worker in a separate process; everything that it is made from can be pickled."""
    workflows = workflows_for(setting, label, {**WORKFLOWS, **own})
    kind = engine_class(setting.without)
    engine = kind(Database(url, schema), workflows=workflows, policy=policy, tool=tool)
    return engine_of_a_lane(engine, identity, patience)


def serve_lane(make_engine: Callable[[], Engine], identity: str, connection: Connection[Report, Order]) -> None:
    """Makes this process the worker of a lane, until it is killed."""

    def ask(report: Report) -> Order:
        connection.send(report)
        return connection.recv()

    LaneWorker(make_engine(), identity, ask).run()
