"""The other named statements: what people and programs read, and what the laboratory and the simulated world write.

Reads change nothing and pass no boundary. What does not live here: the engine's own transactions (`statements`).
"""

from __future__ import annotations

import re

from .schema import DEFAULT_SCHEMA, WORLD_SUFFIX
from .statements import TRANSACTIONS, Statement

READS: dict[str, Statement] = {}
"""What people and programs read, by name."""

LABORATORY: dict[str, Statement] = {}
"""What the laboratory and the simulated world write beside the engine's transactions, by name."""


def _read(name: str, why: str, text: str) -> None:
    READS[name] = Statement(name, why, text)


def _laboratory(name: str, why: str, text: str) -> None:
    LABORATORY[name] = Statement(name, why, text)


_read(
    "runnable",
    "Is there work that a claim may have skipped because its row was locked?",
    """\
SELECT EXISTS (
    SELECT FROM agentflow.workflows
    WHERE status = 'ready'
      AND next_run_at <= (SELECT clock_timestamp())
      AND (lease_expires_at IS NULL OR lease_expires_at <= clock_timestamp())
      AND name = ANY(%(p_names)s)) AS runnable""",
)

_read(
    "inspect",
    "One workflow with its checkpoints and intents, from one snapshot.",
    """\
SELECT w.*,
       coalesce((SELECT json_agg(s ORDER BY s.position) FROM agentflow.steps AS s WHERE s.workflow_id = w.id), '[]') AS steps,
       coalesce((SELECT json_agg(i ORDER BY i.created_at) FROM agentflow.action_intents AS i WHERE i.workflow_id = w.id), '[]')
           AS actions
FROM agentflow.workflows AS w
WHERE id = %(p_workflow)s""",
)

_read(
    "list",
    "A page of workflows, the newest first; the prefix is matched literally.",
    """\
SELECT id, name, status, state, lease_owner, fence_token, checkpoints, attempts, crashes, waiting_for, created_at, updated_at,
       completed_at, finished_at
FROM agentflow.workflows
WHERE (%(p_status)s::text IS NULL OR status = %(p_status)s)
  AND starts_with(id, %(p_prefix)s)
ORDER BY created_at DESC, id
LIMIT %(p_limit)s OFFSET %(p_offset)s""",
)

_read(
    "look_up",
    "What the world remembers under a key, asked without acting.",
    """\
SELECT result, attempts
FROM agentflow_world.tool_ledger
WHERE idempotency_key = %(p_key)s AND remembered""",
)

_HISTORY = """\
SELECT * FROM (
    SELECT workflow_id, n, at, event, transaction, subject, worker, fence_token, detail
    FROM agentflow.history
    WHERE workflow_id = {workflow}
    UNION ALL
    SELECT a.workflow_id,
           (SELECT coalesce(max(h.n), 0) FROM agentflow.history AS h
            WHERE h.workflow_id = a.workflow_id AND h.at <= a.came_at),
           came_at, CASE outcome WHEN 'refused' THEN 'tool_refused' ELSE 'tool_attempt_committed' END, 'tool', action,
           NULL, NULL,
           json_build_object('idempotency_key', idempotency_key, 'effect_id', effect_id, 'attempts', attempt,
                             'outcome', outcome)
    FROM agentflow_world.tool_attempts AS a
    WHERE a.workflow_id = {workflow}
) AS entries
ORDER BY n, transaction = 'tool', at"""

_read(
    "history",
    "One workflow's history: the engine's entries in their own order, each of the world's after those before it.",
    _HISTORY.format(workflow="%(p_workflow)s"),
)

_read(
    "frame",
    "A few workflows with everything that was written for them, the world's record too, all from one snapshot.",
    f"""\
SELECT w.*, lease_expires_at <= clock_timestamp() AS expired, next_run_at > clock_timestamp() AS postponed,
       coalesce((SELECT json_agg(s ORDER BY s.position) FROM agentflow.steps AS s WHERE s.workflow_id = w.id), '[]')
           AS steps,
       coalesce((SELECT json_agg(i ORDER BY i.created_at) FROM agentflow.action_intents AS i WHERE i.workflow_id = w.id),
                '[]') AS intents,
       coalesce((SELECT json_agg(l ORDER BY l.effect_id) FROM agentflow_world.tool_ledger AS l WHERE l.workflow_id = w.id),
                '[]') AS effects,
       coalesce((SELECT json_agg(h) FROM ({_HISTORY.format(workflow="w.id")}) AS h), '[]') AS history
FROM agentflow.workflows AS w
WHERE id = ANY(%(p_workflows)s)""",
)


_laboratory(
    "fault",
    "An injected fault is an entry of the history like any other, numbered by the row.",
    """\
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
)

_laboratory(
    "refuse",
    "The tool refuses: the world remembers the attempt, and no effect.",
    """\
INSERT INTO agentflow_world.tool_attempts (idempotency_key, workflow_id, action, outcome)
VALUES (%(p_key)s, %(p_workflow)s, %(p_action)s, 'refused')
RETURNING 'committed' AS outcome, attempt_id""",
)

_laboratory(
    "forget",
    "The tool forgets keys: what was done stays done, and the key protects it no longer.",
    """\
UPDATE agentflow_world.tool_ledger
SET remembered = false
WHERE remembered
  AND (%(p_key)s::text IS NULL OR idempotency_key = %(p_key)s)
RETURNING 'committed' AS outcome, effect_id, idempotency_key""",
)

_laboratory(
    "reset",
    "A laboratory's rows are gone, all at once; another schema's are not touched.",
    """\
WITH a AS (DELETE FROM agentflow.history RETURNING 1),
b AS (DELETE FROM agentflow.steps RETURNING 1),
c AS (DELETE FROM agentflow.action_intents RETURNING 1),
d AS (DELETE FROM agentflow_world.tool_attempts RETURNING 1),
e AS (DELETE FROM agentflow_world.tool_ledger RETURNING 1),
w AS (DELETE FROM agentflow.workflows RETURNING 1)
SELECT 'committed' AS outcome, (SELECT count(*) FROM w) AS workflows, (SELECT count(*) FROM e) AS effects""",
)

_read(
    "purpose",
    "Whose rows are these? A laboratory's schema says so in its comment.",
    """\
SELECT obj_description(to_regnamespace('agentflow'), 'pg_namespace') AS purpose""",
)

_read(
    "metrics",
    "The reliability figures, from the rows alone.",
    """\
WITH recovered AS (
    SELECT extract(epoch FROM completed_at - recovery_started_at) * 1000 AS ms
    FROM agentflow.workflows
    WHERE recovery_started_at IS NOT NULL AND completed_at IS NOT NULL
),
planned AS (
    SELECT workflow_id, action, count(*) AS actions
    FROM agentflow.action_intents
    WHERE status <> 'REFUSED' OR idempotency_key IN (SELECT idempotency_key FROM agentflow_world.tool_ledger)
    GROUP BY workflow_id, action
),
done AS (
    SELECT workflow_id, action, count(*) AS effects, sum(attempts) AS attempts,
           count(idempotency_key) - count(DISTINCT idempotency_key) AS repeated
    FROM agentflow_world.tool_ledger
    GROUP BY workflow_id, action
)
SELECT (SELECT count(*) FROM agentflow.workflows) AS workflows_total,
       (SELECT count(*) FROM agentflow.workflows WHERE status = 'completed') AS workflows_completed,
       (SELECT coalesce(sum(attempts), 0)::bigint FROM done) AS tool_execution_attempts,
       (SELECT coalesce(sum(effects), 0)::bigint FROM done) AS business_effects,
       (SELECT coalesce(sum(greatest(repeated, effects - greatest(1, coalesce(actions, 1)))), 0)::bigint
        FROM done LEFT JOIN planned USING (workflow_id, action)) AS duplicate_business_effects,
       (SELECT round(avg(ms)::numeric, 3)::float8 FROM recovered) AS recovery_latency_ms""",
)

_read(
    "recoveries",
    "Every take-over: when the worker was lost (if known), noticed, claimed, replayed, and finished.",
    """\
SELECT c.workflow_id, c.n, c.worker, c.fence_token, c.detail ->> 'held_by' AS held_by, c.at AS claimed_at,
       (c.detail ->> 'asked_at')::timestamptz AS asked_at,
       crash.at AS crashed_at,
       (first.detail ->> 'replay_ms')::float8 AS replay_ms,
       (first.detail ->> 'replayed')::int AS replayed,
       w.completed_at
FROM agentflow.history AS c
JOIN agentflow.workflows AS w ON w.id = c.workflow_id
LEFT JOIN LATERAL (
    SELECT at FROM agentflow.history AS h
    WHERE h.workflow_id = c.workflow_id AND h.n < c.n AND h.event IN ('crash_injected', 'worker_killed')
      AND h.fence_token = c.fence_token - 1
    ORDER BY n DESC LIMIT 1) AS crash ON true
LEFT JOIN LATERAL (
    SELECT detail FROM agentflow.history AS h
    WHERE h.workflow_id = c.workflow_id AND h.n > c.n AND h.fence_token = c.fence_token AND h.detail IS NOT NULL
    ORDER BY n LIMIT 1) AS first ON true
WHERE c.transaction = 'claim' AND (c.detail ->> 'recovered')::bool
ORDER BY c.at""",
)


def show_sql(name: str, schema: str | None = None) -> str:
    """The text of a transaction or read, as PostgreSQL gets it; without a schema, the table names stand alone."""
    statement = (TRANSACTIONS | READS | LABORATORY)[name]
    if schema is not None:
        return statement.render(schema)
    return re.sub(rf"\b{DEFAULT_SCHEMA}({WORLD_SUFFIX})?\.", "", statement.text)
