"""What a learner's SQL may do: read, one command at a time."""

from __future__ import annotations

import pytest

from agentflow import Engine
from agentflow.errors import QueryRefused
from agentflow.lab.notebook.tables import query
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
