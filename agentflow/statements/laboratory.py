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
WITH a AS (DELETE FROM ONLY agentflow.history RETURNING n),
b AS (DELETE FROM ONLY agentflow.steps RETURNING step_id),
c AS (DELETE FROM ONLY agentflow.action_intents RETURNING idempotency_key),
d AS (DELETE FROM ONLY agentflow_world.tool_attempts RETURNING attempt_id),
e AS (DELETE FROM ONLY agentflow_world.tool_ledger RETURNING effect_id),
w AS (DELETE FROM ONLY agentflow.workflows RETURNING fence_token)
SELECT 'committed' AS outcome,
       (SELECT count(*) FROM w) AS workflows,
       (SELECT count(*) FROM e) AS effects,
       (SELECT count(*) FROM a) AS entries,
       -- Whoever else works in this laboratory hears it when this is committed.
       pg_notify('agentflow' || '_emptied',
                 to_char(clock_timestamp(), 'HH24:MI:SS TZ') || ' by ' || %(p_by)s::text) IS NULL AS told""",
)  # fmt: skip

PURPOSE = Statement(
    "purpose",
    "What are these tables for? Their marks say so; NULL if they are not all ours.",
    text="""\
SELECT CASE
           WHEN bool_and(coalesce(starts_with(mark, 'made by AgentFlow'), false))
           THEN max(split_part(mark, ': ', 2))
           -- Made before tables were marked: then the comment of the schema says it.
           WHEN bool_or(n = 1 AND mark IS NULL) AND bool_and(mark IS NULL OR starts_with(mark, 'made by AgentFlow'))
           THEN CASE obj_description(to_regnamespace('agentflow'), 'pg_namespace')
                    WHEN 'agentflow laboratory' THEN 'laboratory'
                    WHEN 'agentflow course' THEN 'course'
                    ELSE CASE WHEN count(*) = 7 THEN 'older' END
                END
       END AS purpose
FROM (SELECT n, obj_description(to_regclass(name), 'pg_class') AS mark
      FROM unnest(ARRAY['agentflow.schema_version', 'agentflow.workflows', 'agentflow.steps',
                        'agentflow.action_intents', 'agentflow.history',
                        'agentflow_world.tool_ledger', 'agentflow_world.tool_attempts'])
               WITH ORDINALITY AS t (name, n)
      WHERE to_regclass(name) IS NOT NULL) AS made""",
)  # fmt: skip
