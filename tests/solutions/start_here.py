"""00: count the business effects of one workflow."""

from __future__ import annotations

from agentflow import Engine
from agentflow.lab.notebook.tables import query


def count_effects(engine: Engine, workflow_id: str) -> int:
    """How many business effects the world holds for this workflow: rows, whatever their attempts."""
    sql = "SELECT count(*) AS effects FROM tool_ledger WHERE workflow_id = :id"
    return int(query(engine, sql, id=workflow_id)[0]["effects"])
