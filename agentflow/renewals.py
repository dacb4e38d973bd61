"""Renews leases while steps take their time, from its own thread and connection; gives one back after trouble."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator

from .errors import CrashInjected, LostLease, describe_failure
from .log import log_event
from .model import Claim
from .transactions import Transactions

_RENEWALS: weakref.WeakSet[Renewals] = weakref.WeakSet()
_IDLE_SECONDS = 60.0  # after so long without a claim the thread ends; the next claim starts another


def _start_afresh() -> None:
    for renewals in _RENEWALS:
        renewals.start_afresh()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)


def _started(name: str, work: Callable[..., None], *told: object) -> bool:
    """Whether a new thread does the work now. If the machine has no thread left, that is logged."""
    try:
        threading.Thread(target=work, args=told, name=name, daemon=True).start()
        return True
    except RuntimeError as error:
        log_event("renewal_failed", error=str(error))
        return False


class Renewals:
    """Renews the leases that are held, from one thread with its own connection, whatever the steps are doing."""

    def __init__(self, engine: Transactions) -> None:
        self.engine = engine
        self.start_afresh()
        _RENEWALS.add(self)

    def start_afresh(self) -> None:
        """Forgets every lease. For a forked child: the parent's thread does not exist there, and may have held the lock."""
        self._held: dict[int, tuple[Claim, float]] = {}
        self._changed, self._running = threading.Condition(), False
        self._closed = False
        self._looks_at = 0.0  # when the thread looks again by itself

    @contextlib.contextmanager
    def hold(self, claim: Claim) -> Iterator[None]:
        """Renews the claim's lease after every third of its length, while this is open."""
        with self._changed:
            self._closed = False
            if not self._running:  # the first claim, or the first one in a forked child
                self._looks_at = 0.0
                self._running = _started("agentflow-renewals", self._renew_for_ever)
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
        """Stops renewing and ends the thread; holding a claim starts another."""
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
                claims = [claim for claim, at in self._held.values() if at <= now]
                self._held |= {id(claim): (claim, math.inf) for claim in claims}
            for claim in claims:  # each beside the others: one whose row is locked must not keep them waiting
                if not _started("agentflow-renewal", self._renew, claim):
                    self._renew(claim)

    def _renew(self, claim: Claim) -> None:
        again = claim.lease_seconds / 3
        if id(claim) not in self._held:  # done meanwhile
            return
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
                self._changed.notify()


def give_back(engine: Transactions, claim: Claim, trouble: BaseException | None) -> None:
    """Releases the lease after an interruption (None), or after trouble that is not the workflow's own: then it is due later.

    The delay grows with each such run. If the release is refused too, the lease ends by itself.
    """
    error, delay, released = None, 0.0, False
    if trouble:
        error = {**describe_failure(trouble), "troubles": claim.troubles + 1}
        delay = engine.policy.delay(claim.troubles + 1)
    engine = copy.copy(engine)
    engine.database = copy.copy(engine.database)
    engine.database.patience = 0  # an outage was waited for already
    for pause in (0.0, 0.1, 0.5):  # what was refused once need not be again: a pooler has several connections
        time.sleep(pause)
        with contextlib.suppress(Exception):
            with contextlib.suppress(LostLease):
                engine.release_lease(claim, error, delay)
                released = True
            break
    if trouble and error:
        vars(trouble)["let_go"] = released  # which its worker asks
        told = {"error": f"{error['type']}: {error['message']}", "next_try_seconds": delay if released else None}
        who = {"workflow_id": claim.workflow_id, "worker_id": claim.worker_id, "fence_token": claim.fence_token}
        log_event("run_let_go", **who, **told)
