"""A support agent that counts: it notes each execution of a step in a file before the step has its result.

So a SIGKILL loses none.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...agents import support_agent, support_agent_with
from ..schedule.presets import WatchedModel


@dataclass(frozen=True)
class CountedAgent:
    """The support agent, with a note in a file for each execution of a step. It can be sent to a process."""

    notes: Path

    @property
    def states(self) -> dict[str, str]:
        """The states that the support agent declares."""
        declared: dict[str, str] = support_agent.states  # type: ignore[attr-defined]
        return declared

    def __call__(self, run: Any, request: str) -> Any:
        return support_agent_with(WatchedModel(self._note))(run, request)

    def _note(self, name: str, answer: Any) -> Any:
        with self.notes.open("a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {name}\n")
        return answer

    def begin(self) -> None:
        """Empties the file."""
        self.notes.write_text("", encoding="utf-8")

    def executions(self) -> tuple[tuple[int, str], ...]:
        """The process id and the step of each execution."""
        lines = self.notes.read_text(encoding="utf-8").splitlines()
        return tuple((int(pid), step) for pid, step in (line.split(" ", 1) for line in lines))
