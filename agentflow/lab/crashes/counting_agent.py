"""A support agent that counts: each execution of a step is noted in a file before it is made, so a SIGKILL loses none.

What does not live here: who is killed where (`atlas`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...agents import support_agent, support_agent_with
from ...tools import StandInModel


class NotingModel(StandInModel):
    """A stand-in for a model that writes each call into a file, before it answers: the process's id and the name."""

    def __init__(self, notes: Path) -> None:
        super().__init__()
        self.notes = notes

    def _answer(self, name: str, prompt: str, answer: Any) -> Any:
        with self.notes.open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {name}\n")
        return super()._answer(name, prompt, answer)


@dataclass(frozen=True)
class CountedAgent:
    """The support agent, whose steps are noted in a file as they are executed. It can be sent to a process."""

    notes: Path

    @property
    def states(self) -> dict[str, str]:
        """The states that the support agent declares."""
        declared: dict[str, str] = support_agent.states  # type: ignore[attr-defined]
        return declared

    def __call__(self, run: Any, request: str) -> Any:
        return support_agent_with(NotingModel(self.notes))(run, request)

    def begin(self) -> None:
        """Nothing is noted."""
        self.notes.write_text("", encoding="utf-8")

    def executions(self) -> tuple[tuple[int, str], ...]:
        """Each execution of a step: in which process, and which step."""
        lines = self.notes.read_text(encoding="utf-8").splitlines()
        return tuple((int(pid), step) for pid, step in (line.split(" ", 1) for line in lines))
