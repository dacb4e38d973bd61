"""A worker is lost at a boundary: by an exception (kinder, `finally` blocks run) or by SIGKILL of a real process.

Both go through the engine's one hook and write one history entry before they act: `crash_injected` or `worker_killed`.
A workflow that does not exist yet has no history, and a claim that has not happened no workflow: then nothing is
recorded. What does not live here: which crashes to choose (`soak`), the processes (`processes`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...engine import Engine
from ...errors import CrashInjected
from ...model import Boundary, Edge, Hook
from ..history.faults import FAULTS
from ..laboratory.processes import kill_me


@dataclass(frozen=True)
class CrashAt:
    """A rule that picklably names one boundary: the `nth` visit of this edge of this transaction.

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
        """Whether the boundary is one of those that this rule names, whichever visit it is."""
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
    """A hook that raises CrashInjected at the rule's boundary, once; the history has `crash_injected`."""

    def crash(boundary: Boundary) -> None:
        _record(engine, "crash", rule, boundary)
        raise CrashInjected(f"{rule}, worker {boundary.worker}, workflow {boundary.workflow}, token {boundary.token}")

    return _at(rule, crash)


def by_sigkill(engine: Engine, rule: CrashAt) -> Hook:
    """A hook that kills its own process at the rule's boundary; the history has `worker_killed`."""

    def die(boundary: Boundary) -> None:
        kill_here(engine, str(rule), boundary)

    return _at(rule, die)


def kill_here(engine: Engine, at: str, boundary: Boundary) -> None:
    """This process is dead, and the workflow's history has `worker_killed` at this boundary. Does not return."""
    _record(engine, "kill", at, boundary)
    kill_me()


def crash_in_process(
    rule: CrashAt, act: Callable[[Engine], Any], make_engine: Callable[..., Engine], *arguments: Any
) -> None:
    """Runs `act` on an engine of this process's own and is killed at the rule's boundary; the target of a process."""
    engine = make_engine(*arguments)
    act(engine.with_hook(by_sigkill(engine, rule)))


def _at(rule: CrashAt, act: Hook) -> Hook:
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
            boundary.workflow, FAULTS[kind].event, worker=boundary.worker, token=boundary.token, at=str(at)
        )
