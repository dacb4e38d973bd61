"""Claim, run, renew, stop: the loop around the engine, in a thread or as a process."""

from __future__ import annotations

import _thread
import inspect
import signal
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Literal

from . import errors
from .bell import Bell
from .journal import ClaimedJournal
from .log import log_event
from .model import Claim, Tool
from .renewals import Renewals, give_back
from .run import DurableRunner, Workflow, interrupted
from .transactions import Transactions
from .values import check_settings

_AWAY = errors.DatabaseAway, errors.SchemaMissing
RunOutcome = Literal["completed", "failed", "waiting", "postponed", "released", "lost"]


def new_identity(name: str) -> str:
    """Returns a worker's identity: its name, and something new for each start of its process."""
    return f"{name}.{uuid.uuid4().hex[:8]}"


def carry(
    engine: Transactions, claim: Claim, function: Workflow, tool: Tool, stopping: Callable[[], bool] = lambda: False,
    *, loaded: bool = False,
) -> RunOutcome:  # fmt: skip
    """Carries the claimed workflow as far as this claim goes: completed, failed, waiting, postponed or released.

    Raises LostLease, CrashInjected, and whatever kept the record from being read or written: that is no failure of the
    workflow, which is given back then, if that can still be said, and is due later.
    """
    journal = (engine.journal or ClaimedJournal)(engine, claim, tool, stopping)
    try:
        return _carry(engine, claim, function, journal, loaded)
    except (errors.LostLease, errors.CrashInjected):
        raise
    except BaseException as trouble:
        give_back(engine, claim, None if interrupted(trouble) else trouble)
        raise


def _carry(engine: Transactions, claim: Claim, function: Workflow, journal: ClaimedJournal, loaded: bool) -> RunOutcome:
    fails_by: Any = (errors.DeterminismError, errors.UnfaithfulValue)  # what no replay could repeat
    try:
        journal.states = getattr(function, "states", {})
        if claim.fence_token > 1 or loaded:
            journal.load()
        run = DurableRunner(claim.workflow_id, journal)
        try:
            result = function(run, claim.input)
        except BaseException as error:
            if run.ended_by is None:
                if isinstance(error, errors.CrashInjected) or interrupted(error):
                    raise
                run.ended_by, fails_by = error, BaseException  # its own error, whatever its class
        run.finish()  # raises what has ended the run, which the function may have swallowed
        journal.complete(result)
        return "completed"
    except fails_by as error:
        engine.fail_workflow(journal.claim, errors.describe_failure(error))
        return "failed"
    except errors.Suspend:
        return "waiting"
    except errors.Postponed:
        return "postponed"
    except errors.Stopping:
        engine.release_lease(claim)
        return "released"


class Worker:
    """One worker: claims workflows whose functions it knows and carries them.

    `identity` must be new for each start of its process. `poll_seconds` is how long an idle worker trusts a silent
    database. Raises StepMisuse for an async workflow function, BadSetting.
    """

    def __init__(
        self, engine: Transactions, workflows: Mapping[str, Workflow], tool: Tool, identity: str, *,
        lease_seconds: float | None = None, poll_seconds: float = 1.0, renewals: Renewals | None = None,
    ) -> None:  # fmt: skip
        for name, function in workflows.items():
            if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
                raise errors.StepMisuse(
                    f"Workflow {name!r} is async or a generator; pass a plain function of a run and its input."
                )
        check_settings(poll_seconds=poll_seconds, **({} if lease_seconds is None else {"lease_seconds": lease_seconds}))
        self.engine, self.workflows, self.tool, self.identity = engine, workflows, tool, identity
        self.lease_seconds, self.poll_seconds = lease_seconds, poll_seconds
        self.renewals = renewals or Renewals(engine)
        self.names = sorted(workflows)
        self._stop, self._bell = threading.Event(), Bell(engine.database, self.names)
        self._told = False  # to stop, by a signal: seen at once, before the event is set

    def run_once(self) -> RunOutcome | None:
        """Claims one workflow and carries it as far as it goes; returns None if nothing was runnable.

        Raises CrashInjected, and DatabaseAway, SchemaMissing, StatementRefused or whatever else kept the record from being
        written; then the workflow is given back, if that can still be said, and is due later.
        """
        claim = self.engine.claim_workflow(self.identity, self.lease_seconds, names=self.names)
        if claim is None:
            return None
        try:
            with self.renewals.hold(claim):
                return carry(self.engine, claim, self.workflows[claim.name], self.tool, self._stopping)
        except errors.LostLease as lost:
            who = {"workflow_id": claim.workflow_id, "worker_id": self.identity}
            log_event("lease_lost", **who, reason=lost.reason, guards=lost.guards or None)
            return "lost"

    def run_until_idle(self) -> int:
        """Works until nothing is runnable, and returns how many workflows it completed. An empty claim is checked again."""
        completed = 0
        while not self._stopping():
            outcome = self.run_once()
            completed += outcome == "completed"
            if outcome is None:
                if not self.engine.runnable(self.names):
                    break
                self._stop.wait(0.01)
        return completed

    def run_forever(self) -> None:
        """Carries workflows until stop() is called. Nothing that a step, tool, request or database does ends this."""
        pause = 0.0
        with self._bell:
            while not self._stopping():
                try:
                    self._bell.connect()
                    if self.run_once() is None:
                        self._bell.wait(self.poll_seconds)
                    pause = 0.0
                except Exception as trouble:
                    if getattr(trouble, "let_go", False):
                        continue  # that was told, and the others have nothing to do with it
                    self._bell.lose()
                    pause = min(5.0, pause * 2 or 0.1)
                    event = "database_away" if isinstance(trouble, _AWAY) else "worker_in_trouble"
                    error = f"{type(trouble).__name__}: {trouble}"
                    log_event(event, worker_id=self.identity, error=error, next_try_seconds=pause)
                    self._stop.wait(pause)

    def stop(self) -> None:
        """Makes the worker end at the next boundary and release what it holds; then run_forever() returns."""
        self._stop.set()
        self._bell.ring()

    def stop_on_signals(self) -> None:
        """Makes SIGTERM and SIGINT stop this worker, also while it waits for a database (main thread only)."""

        def stop() -> None:
            self.engine.database.give_up.set()
            self.stop()

        def told(*_: object) -> None:
            self._told = True
            # On a thread: the signal may have come while the main thread held the lock inside an Event.
            _thread.start_new_thread(stop, ())

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, told)

    def _stopping(self) -> bool:
        return self._told or self._stop.is_set()
