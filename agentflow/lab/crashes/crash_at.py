"""A worker is lost at a boundary: by an exception (kinder, `finally` blocks run) or by SIGKILL of a real process.

Both go through the engine's one hook and write one history entry before they act: `crash_injected` or `worker_killed`.
Nothing is recorded where there is no workflow yet: before it is created, and before a claim has found one.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...engine import Engine
from ...errors import CrashInjected
from ...model import Boundary, Edge, Hook
from ..history.faults import FAULTS
from ..laboratory.processes import kill_me


@dataclass(frozen=True)
class CrashAt:
    """A rule, sendable to a process, that names one boundary: the `nth` visit of this edge of this transaction.

    `subject` (step id, action key, event), `worker` and `workflow` narrow it; None means any. After a transaction only
    the outcome "committed" counts.
    """

    transaction: str
    edge: Edge
    subject: str | None = None
    worker: str | None = None
    workflow: str | None = None
    nth: int = 1

    def matches(self, boundary: Boundary) -> bool:
        """Whether the rule names this boundary, on whichever visit."""
        return (
            (self.transaction, self.edge) == (boundary.transaction, boundary.edge)
            and self.subject in (None, boundary.subject)
            and self.worker in (None, boundary.worker)
            and self.workflow in (None, boundary.workflow)
            and boundary.outcome in (None, "committed")
        )

    def __str__(self) -> str:
        return Boundary(self.transaction, self.edge, subject=self.subject).place


def by_exception(engine: Engine, rule: CrashAt) -> Hook:
    """A hook that raises CrashInjected at the rule's boundary, once, after writing `crash_injected` to the history."""

    def crash(boundary: Boundary) -> None:
        _record(engine, "crash", rule, boundary)
        raise CrashInjected(f"{rule}, worker {boundary.worker}, workflow {boundary.workflow}, token {boundary.token}")

    return at_boundary(rule, crash)


def kill_here(engine: Engine, at: str, boundary: Boundary) -> None:
    """Writes `worker_killed` to the workflow's history and kills this process. Does not return."""
    _record(engine, "kill", at, boundary)
    kill_me()


def at_boundary(rule: CrashAt, act: Hook) -> Hook:
    """A hook that calls `act` at the rule's boundary, once."""
    visits = 0

    def hook(boundary: Boundary) -> None:
        nonlocal visits
        if rule.matches(boundary):
            visits += 1
            if visits == rule.nth:
                act(boundary)

    return hook


def _record(engine: Engine, kind: str, at: CrashAt | str, boundary: Boundary) -> None:
    if boundary.workflow is not None:
        engine.record_fault(
            boundary.workflow, FAULTS[kind].event, worker=boundary.worker, token=boundary.token, at=str(at),
            signal=FAULTS[kind].signalled[0],
        )  # fmt: skip
