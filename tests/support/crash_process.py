"""A process that is killed at a boundary while it works on an engine: the target of `processes.start`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentflow import Engine
from agentflow.lab.crashes.crash_at import CrashAt, at_boundary, kill_here
from agentflow.model import Boundary, Hook


def by_sigkill(engine: Engine, rule: CrashAt) -> Hook:
    """A hook that kills its own process at the rule's boundary; the history has `worker_killed`."""

    def die(boundary: Boundary) -> None:
        kill_here(engine, str(rule), boundary)

    return at_boundary(rule, die)


def crash_in_process(
    rule: CrashAt, act: Callable[[Engine], Any], make_engine: Callable[..., Engine], *arguments: Any
) -> None:
    """Makes an engine, runs `act` on it, and is killed at the rule's boundary."""
    engine = make_engine(*arguments)
    act(engine.with_hook(by_sigkill(engine, rule)))
