"""After nbval has run a notebook, it is run once more, in a new kernel, on what a learner can leave behind.

What nbval's own kernel did is part of what is left, so the notebook need not be run a third time to make it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

from agentflow import Database, Engine, migrate
from agentflow.lab.laboratory.laboratory import PATIENT, schema_of
from tests.support.execute_notebooks import execute
from tests.support.notebook_rules import MEASURED


class NotebookAgain(pytest.File):
    """Collects one test, which comes after nbval's tests of the same notebook, in the same process."""

    def collect(self) -> Iterator[pytest.Item]:
        """The test."""
        name = "test_a_notebook_shows_the_same_in_any_state_a_learner_can_leave_behind"
        yield _Again.from_parent(self, name=name)


class _Again(pytest.Item):
    def __init__(self, name: str, parent: pytest.Collector) -> None:
        super().__init__(name, parent)
        self.add_marker(pytest.mark.notebook)
        self.add_marker(pytest.mark.timeout(180))

    def runtest(self) -> None:
        """A workflow of a dead kernel, leased for a day, and an effect too many: the next run shows the same."""
        leave_behind(schema_of(self.path.stem.split("-", 1)[1].replace("-", "_")))
        with tempfile.TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:
            patch.setenv("IPYTHONDIR", home)
            again = execute(self.path)
        pairs = zip(compared(nbformat.read(self.path, as_version=4)), compared(again), strict=True)
        for number, (committed, now) in enumerate(pairs):
            assert now == committed, (
                f"cell {number} of {self.path.name} shows\n{now}\nand is committed with\n{committed}"
            )

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:
        """The failure, from this file on."""
        excinfo.traceback = excinfo.traceback.cut(path=__file__)
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where it is, as pytest tells it."""
        return self.path, 0, self.name


def leave_behind(schema: str) -> None:
    """The laboratory holds what a kernel that died has left there, whatever else it holds."""
    url = os.environ.get("DATABASE_URL") or os.environ["AGENTFLOW_TEST_URL"]
    engine = Engine(Database(url, schema), policy=PATIENT)
    migrate(engine.database, laboratory=True)  # nbval's run did, unless this test runs alone
    engine.create_workflow("left behind", workflow_id="request-7")
    engine.claim_workflow("dead-kernel")
    engine.execute_simulated_tool("request-1:another-key")
    engine.close()


def compared(notebook: NotebookNode) -> list[object]:
    """The outputs of all cells; of one that measures, only whether it shows something."""
    return [
        bool(cell.outputs) if MEASURED in cell.metadata.get("tags", []) else cell.get("outputs")
        for cell in notebook.cells
    ]
