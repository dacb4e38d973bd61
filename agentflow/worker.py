"""Claim, run, renew, stop: the loop around the engine, in a thread or as a process.

What lives here: which outcome ends a run, the renewal of leases from a connection of its own, and how an idle worker is
woken (a notification; a poll is the net). What does not: what a run records (`journal`).
"""

from __future__ import annotations

import _thread
import contextlib
import inspect
import math
import os
import select
import signal
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import psycopg

from .database import Database
from .engine import Transactions
from .errors import CrashInjected, DatabaseAway, LostLease, Postponed, StepMisuse, Stopping, Suspend, describe_failure
from .journal import ClaimedJournal
from .log import log_event
from .model import Claim, Tool
from .run import DurableRunner, Workflow, interrupted

Outcome = Literal["completed", "failed", "waiting", "postponed", "released", "lost"]


def new_identity(name: str) -> str:
    """A worker's identity: its name and something new for each start of its process."""
    return f"{name}.{uuid.uuid4().hex[:8]}"


def carry(
    engine: Transactions, claim: Claim, function: Workflow, tool: Tool, stopping: Callable[[], bool] = lambda: False,
    *, loaded: bool = False,
) -> Outcome:  # fmt: skip
    """The claimed workflow was carried as far as this claim goes: completed, failed, waiting, postponed or released.

    Raises LostLease, DatabaseAway and CrashInjected: then the lease ends by itself and another worker takes over.
    """
    journal = ClaimedJournal(engine, claim, tool, getattr(function, "states", {}), stopping)
    try:
        if claim.fence_token > 1 or loaded:
            journal.load()
        run = DurableRunner(claim.workflow_id, journal)
        try:
            result = function(run, claim.input)
        except BaseException as error:
            if run.ended_by in (None, error):
                raise
            raise run.ended_by from error  # the function had swallowed it
        run.finish()
        journal.complete(result)
        return "completed"
    except Suspend:
        return "waiting"
    except Postponed:
        return "postponed"
    except Stopping:
        engine.release_lease(claim)
        return "released"
    except (LostLease, DatabaseAway, CrashInjected):
        raise
    except BaseException as error:
        if interrupted(error):
            with contextlib.suppress(LostLease, DatabaseAway):
                engine.release_lease(claim)
            raise
        engine.fail_workflow(journal.claim, describe_failure(error))
        return "failed"


_RENEWALS: weakref.WeakSet[Renewals] = weakref.WeakSet()
_IDLE_SECONDS = 60.0  # after so long without a claim the thread ends; the next claim starts another


def _start_afresh() -> None:
    for renewals in _RENEWALS:
        renewals.start_afresh()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)


class Renewals:
    """Leases that are held are renewed in time, by one thread and its own connection, whatever the steps are doing."""

    def __init__(self, engine: Transactions) -> None:
        self.engine = engine
        self.start_afresh()
        _RENEWALS.add(self)

    def start_afresh(self) -> None:
        """Nothing is held. For a forked child: the parent's thread is not there, and may have held the lock."""
        self._held: dict[int, tuple[Claim, float]] = {}
        self._changed, self._running = threading.Condition(), False
        self._closed = False
        self._looks_at = 0.0  # when the thread looks again by itself

    @contextlib.contextmanager
    def hold(self, claim: Claim) -> Iterator[None]:
        """While this is open the claim's lease is renewed every third of its length."""
        with self._changed:
            self._closed = False
            if not self._running:  # the first claim, or the first one in a forked child
                self._running, self._looks_at = True, 0.0
                threading.Thread(target=self._renew_for_ever, name="agentflow-renewals", daemon=True).start()
            due = time.monotonic() + claim.lease_seconds / 3
            self._held[id(claim)] = (claim, due)
            if due < self._looks_at:  # waking it for each claim would cost as much as a statement
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._held.pop(id(claim), None)

    def close(self) -> None:
        """Nothing is renewed and the thread is gone; holding a claim starts another."""
        with self._changed:
            self._held, self._closed = {}, True
            self._changed.notify()

    def _renew_for_ever(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    self._running = False
                    return
                now = time.monotonic()
                due = min((at for _, at in self._held.values()), default=math.inf)
                if due > now:
                    self._looks_at = due
                    if not self._changed.wait(min(due - now, _IDLE_SECONDS)) and not self._held:
                        self._running = False
                        return
                    continue
                claims = [claim for claim, at in self._held.values() if at <= time.monotonic()]
            for claim in claims:
                self._renew(claim)

    def _renew(self, claim: Claim) -> None:
        again = claim.lease_seconds / 3
        try:
            self.engine.renew_lease(claim)
        except (LostLease, CrashInjected):
            again = float("inf")  # its own next write will be refused
        except Exception as error:
            log_event("renewal_failed", workflow_id=claim.workflow_id, error=str(error))
            again = claim.lease_seconds / 10
        with self._changed:
            if id(claim) in self._held:
                self._held[id(claim)] = (claim, time.monotonic() + again)


class Worker:
    """One worker: claims workflows whose functions it knows and carries them.

    `identity` must be new for each start of its process. `poll_seconds` is how long an idle worker trusts a silent
    database. Raises StepMisuse for an async workflow function.
    """

    def __init__(
        self, engine: Transactions, workflows: Mapping[str, Workflow], tool: Tool, identity: str, *,
        lease_seconds: float | None = None, poll_seconds: float = 1.0, renewals: Renewals | None = None,
    ) -> None:  # fmt: skip
        for name, function in workflows.items():
            if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
                raise StepMisuse(f"workflow {name!r} is async or a generator; give a plain function of a run and its input.")
        self.engine, self.workflows, self.tool, self.identity = engine, workflows, tool, identity
        self.lease_seconds, self.poll_seconds = lease_seconds, poll_seconds
        self.renewals = renewals or Renewals(engine)
        self.names = sorted(workflows)
        self._stop, self._bell = threading.Event(), _Bell(engine.database)

    def run_once(self) -> Outcome | None:
        """One workflow was claimed and carried as far as it goes; None if nothing was runnable.

        Raises DatabaseAway and CrashInjected.
        """
        claim = self.engine.claim_workflow(self.identity, self.lease_seconds, names=self.names)
        if claim is None:
            return None
        try:
            with self.renewals.hold(claim):
                return carry(self.engine, claim, self.workflows[claim.name], self.tool, self._stop.is_set)
        except LostLease as lost:
            log_event("lease_lost", workflow_id=claim.workflow_id, worker_id=self.identity, reason=lost.reason)
            return "lost"

    def run_until_idle(self) -> int:
        """Nothing is runnable now; how many workflows this worker completed. An empty claim is looked at twice."""
        completed = 0
        while not self._stop.is_set():
            outcome = self.run_once()
            completed += outcome == "completed"
            if outcome is None:
                if not self.engine.runnable(self.names):
                    break
                self._stop.wait(0.01)
        return completed

    def run_forever(self) -> None:
        """Workflows are carried until stop() is called. Nothing that a step, tool, request or database does ends this."""
        pause = 0.0
        with self._bell:
            while not self._stop.is_set():
                try:
                    if self.run_once() is None:
                        self._bell.wait(self.poll_seconds)
                    pause = 0.0
                except DatabaseAway as away:
                    pause = min(5.0, pause * 2 or 0.1)
                    log_event("database_away", worker_id=self.identity, error=str(away), next_try_seconds=pause)
                    self._stop.wait(pause)

    def stop(self) -> None:
        """The worker ends at the next boundary, releases what it holds, and run_forever() returns."""
        self._stop.set()
        self._bell.ring()

    def stop_on_signals(self) -> None:
        """SIGTERM and SIGINT stop this worker, also while it waits for a database (main thread only)."""

        def stop() -> None:
            self.engine.database.give_up.set()
            self.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            # On a thread: the signal may have come while the main thread held the lock inside an Event.
            signal.signal(number, lambda *_: _thread.start_new_thread(stop, ()))


class _Bell:
    """Rings when work arrives (a notification) or somebody calls ring(); silence is trusted for one poll."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._connection: psycopg.Connection[Any] | None = None
        self._sockets: tuple[socket.socket, ...] = ()  # only while somebody may wait: a Worker that runs once needs none

    def __enter__(self) -> _Bell:
        self._sockets = socket.socketpair()
        self._sockets[1].setblocking(False)
        return self

    def __exit__(self, *_: object) -> None:
        for open_one in (*self._sockets, self._connection):
            if open_one:
                open_one.close()
        self._connection = None

    def ring(self) -> None:
        with contextlib.suppress(OSError):
            for writer in self._sockets[1:]:
                writer.send(b"!")

    def wait(self, seconds: float) -> None:
        """Returns when rung, or after `seconds`. After (re)connecting it returns at once: something may have been missed."""
        if self._connection is None or self._connection.closed:
            with contextlib.suppress(DatabaseAway):
                self._connection = self.database.listen()
                return
        heard: list[Any] = [self._sockets[0], *([self._connection] if self._connection else [])]
        ready, _, _ = select.select(heard, [], [], seconds)
        if self._connection in ready and self._connection:
            try:
                for _ in self._connection.notifies(timeout=0):
                    pass
            except psycopg.Error:
                self._connection.close()
                self._connection = None
