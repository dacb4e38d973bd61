"""06: count the effects too many, whatever their keys."""

from __future__ import annotations

from agentflow import Engine
from agentflow.lab.notebook.tables import query


def duplicate_effects(engine: Engine) -> int:
    """How many business effects there are beyond one for each action of each workflow."""
    sql = """
        SELECT coalesce(sum(effects - 1), 0)::int AS duplicates
        FROM (SELECT count(*) AS effects FROM tool_ledger GROUP BY workflow_id, action) AS each"""
    return int(query(engine, sql)[0]["duplicates"])
