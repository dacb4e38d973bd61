"""What a learner's SQL may do: read, one command at a time. And tables show only columns that exist."""

from __future__ import annotations

import pytest

from agentflow import Engine
from agentflow.errors import QueryRefused
from agentflow.lab.broken.catalogue import engine_class
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.notebook.tables import query, snapshot
from agentflow.lab.room.row_tables import grids
from agentflow.lab.schedule.stepper import Stepper
from agentflow.schema import metadata
from tests.conftest import rows


@pytest.mark.parametrize(
    "sql", ["COMMIT; DELETE FROM {s}.workflows; SELECT 1", "DELETE FROM {s}.workflows RETURNING id"]
)
def test_a_learners_query_changes_nothing(engine: Engine, sql: str) -> None:
    engine.create_workflow("password", workflow_id="w")
    with pytest.raises(QueryRefused):
        query(engine, sql.format(s=engine.database.schema))
    assert rows(engine, "SELECT id FROM {s}.workflows") == [{"id": "w"}]
    assert list(query(engine, "SELECT id FROM workflows WHERE id = :id", id="w")) == [{"id": "w"}]


@pytest.mark.parametrize("without", [[], ["idempotency_key"], ["intent"]])
@pytest.mark.parametrize("line", ["A*5", "A*5 A! expire B*"])
def test_a_table_that_is_called_by_its_name_shows_columns_that_it_has(
    engine: Engine, without: list[str], line: str
) -> None:
    mine = engine_class(without)(engine.database, policy=PATIENT)
    with Stepper(mine) as stepper:
        stepper.play(line)
    seen = snapshot(mine, "request-1")
    (frame,) = mine.database.read("frame", {"p_workflows": ["request-1"]})
    shown = {table.caption: table.columns for table in (seen.row(), seen.belief(), seen.world())}
    found = [*shown.items(), *((name, list(grid.columns)) for name, grid in grids(frame, None).items())]
    columns = {table.name: set(table.columns.keys()) for table in metadata.tables.values()}
    assert [(name, column) for name, shows in found for column in shows if column not in columns[name]] == []
    assert len(found) == 7 and len(query(mine, "SELECT action, attempts FROM tool_ledger")) == len(seen.world())
