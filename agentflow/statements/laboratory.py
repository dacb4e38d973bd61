"""What the laboratory writes beside the engine, and how it knows its own schemas."""

from __future__ import annotations

from .statement import Statement

FAULT = Statement(
    "fault",
    "An injected fault is an entry of the history like any other, numbered by the row.",
    text="""\
WITH w AS (
    UPDATE agentflow.workflows
    SET entries = entries + 1
    WHERE id = %(p_workflow)s
    RETURNING id, entries
),
entry AS (
    INSERT INTO agentflow.history (workflow_id, n, event, transaction, subject, worker, fence_token, detail)
    SELECT id, entries, %(p_event)s, 'fault', %(p_subject)s, %(p_worker)s, %(p_token)s, %(p_detail)s::json
    FROM w
    RETURNING n, event
)
SELECT 'committed' AS outcome, entry.n, entry.event, w.id
FROM w, entry""",
)  # fmt: skip

RESET = Statement(
    "reset",
    "A laboratory's rows are gone; what a write in flight leaves behind this snapshot, another issue takes.",
    text="""\
WITH a AS (DELETE FROM agentflow.history RETURNING 1),
b AS (DELETE FROM agentflow.steps RETURNING 1),
c AS (DELETE FROM agentflow.action_intents RETURNING 1),
d AS (DELETE FROM agentflow_world.tool_attempts RETURNING 1),
e AS (DELETE FROM agentflow_world.tool_ledger RETURNING 1),
w AS (DELETE FROM agentflow.workflows RETURNING 1)
SELECT 'committed' AS outcome,
       (SELECT count(*) FROM w) AS workflows,
       (SELECT count(*) FROM e) AS effects,
       (SELECT count(*) FROM a) AS entries""",
)  # fmt: skip

PURPOSE = Statement(
    "purpose",
    "Whose rows are these? A laboratory's schema says so in its comment.",
    text="""\
SELECT obj_description(to_regnamespace('agentflow'), 'pg_namespace') AS purpose""",
)  # fmt: skip
