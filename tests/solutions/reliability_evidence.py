"""06: count the effects too many, whatever their keys."""

from __future__ import annotations

from agentflow import Engine
from agentflow.lab.notebook.tables import query


def duplicate_effects(engine: Engine) -> int:
    """How many business effects there are beyond one for each planned action, or under a key that has left one already."""
    sql = """
        SELECT coalesce(sum(greatest(effects - greatest(1, coalesce(planned, 1)), repeated)), 0)::int AS duplicates
        FROM (SELECT workflow_id, action, count(*) AS effects,
                     count(idempotency_key) - count(DISTINCT idempotency_key) AS repeated
              FROM tool_ledger
              GROUP BY workflow_id, action) AS done
        LEFT JOIN (SELECT workflow_id, action, count(*) AS planned
                   FROM action_intents
                   WHERE status <> 'REFUSED'
                   GROUP BY workflow_id, action) AS plans USING (workflow_id, action)"""
    return int(query(engine, sql)[0]["duplicates"])
