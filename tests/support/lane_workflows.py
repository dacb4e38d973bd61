"""Workflows for lanes that a worker process can import; `Gate` holds a step until the test lets it go."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentflow import Engine, StepFailed, ToolRefused
from agentflow.lab.schedule.lanes import ProcessLane
from agentflow.lab.schedule.stepper import Stepper


@dataclass(frozen=True)
class Gate:
    """A named pipe: a reader waits until somebody has written to it."""

    path: Path

    @property
    def _sign(self) -> Path:
        return self.path.with_name("somebody came")

    @classmethod
    def new(cls, folder: Path) -> Gate:
        """A closed gate in the folder."""
        os.mkfifo(folder / "gate")
        return cls(folder / "gate")

    def wait(self) -> str:
        """Returns when the gate has been opened."""
        self._sign.touch()
        return self.path.read_text()

    def has_somebody(self) -> bool:
        """Whether a step has come to the gate."""
        return self._sign.exists()

    def open(self) -> None:
        """One step that waits here, now or soon, goes on."""
        self.path.write_text("late")


@dataclass(frozen=True)
class Gated:
    """A workflow of two steps, the second of which waits for the gate."""

    gate: Gate

    def __call__(self, run: Any, _: Any) -> Any:
        """Quick, then slow."""
        run.step("quick", lambda: 1)
        return run.step("slow", self.gate.wait)


def short(run: Any, _: Any) -> Any:
    """A workflow of one step."""
    return run.step("only", lambda: 1)


def gated(engine: Engine, gate: Gate) -> Engine:
    """The engine knows the workflow `gated` beside its own; the shared one is not changed."""
    other: Engine = engine.with_hook(engine.hook)
    other.workflows = {**engine.workflows, "gated": Gated(gate)}
    return other


def pid_of(stepper: Stepper, lane: str) -> int:
    """The process in which the lane's worker is."""
    worker = stepper.lane(lane)
    assert isinstance(worker, ProcessLane)
    assert worker.pid is not None
    return worker.pid


def identity_of(stepper: Stepper, lane: str) -> str:
    """The worker that is in the lane now."""
    return stepper.lane(lane).identity


def trip(run: Any, request: Any) -> Any:
    """A step, and a side effect for each of the request's actions; without a list of them it fails."""
    actions = run.step("look", lambda: request["actions"])
    if actions is None:
        raise ValueError("no such trip")
    return [run.side_effect(name, key=name) for name in actions]


def never(run: Any, request: Any) -> Any:
    """Waits for the event that the request names."""
    return run.wait_for_event("wait", request)


def for_ever(run: Any, _: Any) -> Any:
    """Waits for one event after the other."""
    for n in range(1000):
        run.wait_for_event(f"wait-{n}", f"event-{n}")


def declines(call: Any) -> Any:
    """A tool that refuses, and has no effects."""
    raise ToolRefused("no such card")


declines.effects = list  # type: ignore[attr-defined]


def cautious(run: Any, _: Any) -> Any:
    """Needs a tool's refusal, and another's result."""
    try:
        run.side_effect("card", key="card", tool=declines)
    except StepFailed:
        return run.side_effect("cash", key="cash")["done"]


def approved(run: Any, request: Any) -> Any:
    """Needs an event's payload, too."""
    return [run.wait_for_event("approval", "approval")["by"], cautious(run, request)]


def mute(call: Any) -> Any:
    """A tool that does not tell."""
    return {}
