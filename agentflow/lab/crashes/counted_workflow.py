"""A workflow that counts: each execution of a step is noted in a file before the step has its result.

So a SIGKILL loses none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...agents import WORKFLOWS
from ...run import Workflow


@dataclass(frozen=True)
class CountedWorkflow:
    """A workflow, by an example's name or as a function, with a note for each execution of a step. Processes can get it."""

    notes: Path
    counted: str | Workflow

    @property
    def function(self) -> Workflow:
        """The workflow's own function."""
        return WORKFLOWS[self.counted] if isinstance(self.counted, str) else self.counted

    @property
    def states(self) -> dict[str, str]:
        """The states that the workflow declares."""
        declared: dict[str, str] = getattr(self.function, "states", {})
        return declared

    def __call__(self, run: Any, value: Any) -> Any:
        return self.function(_Noting(run, self._note), value)

    def _note(self, step_id: str) -> None:
        with self.notes.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps([os.getpid(), step_id])}\n")

    def begin(self) -> None:
        """Empties the file."""
        self.notes.write_text("", encoding="utf-8")

    def executions(self) -> tuple[tuple[int, str], ...]:
        """The process id and the step of each execution."""
        return tuple((pid, step) for pid, step in map(json.loads, self.notes.read_text(encoding="utf-8").splitlines()))


class _Noting:
    """A run whose steps are noted when they are executed."""

    def __init__(self, run: Any, note: Callable[[str], None]) -> None:
        self._run, self._note = run, note

    def step(self, step_id: str, fn: Callable[[], Any]) -> Any:
        def noted() -> Any:
            self._note(step_id)
            return fn()

        return self._run.step(step_id, noted)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)
