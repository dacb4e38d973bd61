"""What people and programs read. A read changes nothing and passes no boundary."""

from __future__ import annotations

from .statement import Statement

RUNNABLE = Statement(
    "runnable",
    "Is there work that a claim may have skipped because its row was locked?",
    text="""\
SELECT EXISTS (
    SELECT FROM agentflow.workflows
    WHERE status = 'ready'
      AND next_run_at <= (SELECT clock_timestamp())
      AND (lease_expires_at IS NULL OR lease_expires_at <= clock_timestamp())
      AND name = ANY(%(p_names)s)) AS runnable""",
)  # fmt: skip

INSPECT = Statement(
    "inspect",
    "One workflow with its checkpoints and intents, from one snapshot.",
    text="""\
SELECT w.*,
       coalesce((SELECT json_agg(s ORDER BY s.position)
                 FROM agentflow.steps AS s
                 WHERE s.workflow_id = w.id), '[]') AS steps,
       coalesce((SELECT json_agg(i ORDER BY i.created_at)
                 FROM agentflow.action_intents AS i
                 WHERE i.workflow_id = w.id), '[]') AS actions
FROM agentflow.workflows AS w
WHERE id = %(p_workflow)s""",
)  # fmt: skip

LIST = Statement(
    "list",
    "A page of workflows, the newest first; the prefix is matched literally.",
    text="""\
SELECT id, name, status, state, lease_owner, fence_token, checkpoints, attempts, crashes, waiting_for,
       created_at, updated_at, completed_at, finished_at
FROM agentflow.workflows
WHERE (%(p_status)s::text IS NULL OR status = %(p_status)s)
  AND starts_with(id, %(p_prefix)s)
ORDER BY created_at DESC, id
LIMIT %(p_limit)s OFFSET %(p_offset)s""",
)  # fmt: skip

HISTORY = Statement(
    "history",
    "One workflow's history: the engine's entries in their own order, each of the world's after those before it.",
    text="""\
SELECT *
FROM (
    SELECT workflow_id, n, at, event, transaction, subject, worker, fence_token, detail
    FROM agentflow.history
    WHERE workflow_id = %(p_workflow)s
    UNION ALL
    -- The world numbers nothing: each of its entries gets the number of the last one that the engine wrote before it.
    SELECT a.workflow_id,
           (SELECT coalesce(max(h.n), 0)
            FROM agentflow.history AS h
            WHERE h.workflow_id = a.workflow_id
              AND h.at <= a.came_at),
           came_at,
           CASE outcome WHEN 'refused' THEN 'tool_refused' ELSE 'tool_attempt_committed' END,
           'tool', action, NULL, NULL,
           json_build_object('idempotency_key', idempotency_key, 'effect_id', effect_id, 'attempts', attempt,
                             'outcome', outcome)
    FROM agentflow_world.tool_attempts AS a
    WHERE a.workflow_id = %(p_workflow)s
) AS entries
ORDER BY n, transaction = 'tool', at""",
)  # fmt: skip

FRAME = Statement(
    "frame",
    "A few workflows with everything that was written for them, the world's record too, all from one snapshot.",
    text="""\
SELECT w.*,
       lease_expires_at <= clock_timestamp() AS expired,
       next_run_at > clock_timestamp() AS postponed,
       coalesce((SELECT json_agg(s ORDER BY s.position)
                 FROM agentflow.steps AS s
                 WHERE s.workflow_id = w.id), '[]') AS steps,
       coalesce((SELECT json_agg(i ORDER BY i.created_at)
                 FROM agentflow.action_intents AS i
                 WHERE i.workflow_id = w.id), '[]') AS intents,
       coalesce((SELECT json_agg(l ORDER BY l.effect_id)
                 FROM agentflow_world.tool_ledger AS l
                 WHERE l.workflow_id = w.id), '[]') AS effects,
       coalesce((SELECT json_agg(h)
                 FROM (SELECT *
                       FROM (
                           SELECT workflow_id, n, at, event, transaction, subject, worker, fence_token, detail
                           FROM agentflow.history
                           WHERE workflow_id = w.id
                           UNION ALL
                           -- Numbered as in history.
                           SELECT a.workflow_id,
                                  (SELECT coalesce(max(h.n), 0)
                                   FROM agentflow.history AS h
                                   WHERE h.workflow_id = a.workflow_id
                                     AND h.at <= a.came_at),
                                  came_at,
                                  CASE outcome WHEN 'refused' THEN 'tool_refused' ELSE 'tool_attempt_committed' END,
                                  'tool', action, NULL, NULL,
                                  json_build_object('idempotency_key', idempotency_key, 'effect_id', effect_id,
                                                    'attempts', attempt, 'outcome', outcome)
                           FROM agentflow_world.tool_attempts AS a
                           WHERE a.workflow_id = w.id
                       ) AS entries
                       ORDER BY n, transaction = 'tool', at) AS h), '[]') AS history
FROM agentflow.workflows AS w
WHERE id = ANY(%(p_workflows)s)""",
)  # fmt: skip

METRICS = Statement(
    "metrics",
    "The reliability figures, from the rows alone.",
    text="""\
WITH recovered AS (
    SELECT extract(epoch FROM completed_at - recovery_started_at) * 1000 AS ms
    FROM agentflow.workflows
    WHERE recovery_started_at IS NOT NULL
      AND completed_at IS NOT NULL
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
       -- More effects than planned actions, or two under one key: whichever count is higher.
       (SELECT coalesce(sum(greatest(repeated, effects - greatest(1, coalesce(actions, 1)))), 0)::bigint
        FROM done
        LEFT JOIN planned USING (workflow_id, action)) AS duplicate_business_effects,
       (SELECT round(avg(ms)::numeric, 3)::float8 FROM recovered) AS recovery_latency_ms""",
)  # fmt: skip

RECOVERIES = Statement(
    "recoveries",
    "Every take-over: when the worker was lost (if known), noticed, claimed, replayed, and finished.",
    text="""\
SELECT c.workflow_id, c.n, c.worker, c.fence_token,
       c.detail ->> 'held_by' AS held_by,
       c.at AS claimed_at,
       (c.detail ->> 'asked_at')::timestamptz AS asked_at,
       crash.at AS crashed_at,
       (first.detail ->> 'replay_ms')::float8 AS replay_ms,
       (first.detail ->> 'replayed')::int AS replayed,
       w.completed_at
FROM agentflow.history AS c
JOIN agentflow.workflows AS w ON w.id = c.workflow_id
LEFT JOIN LATERAL (
    SELECT at
    FROM agentflow.history AS h
    WHERE h.workflow_id = c.workflow_id
      AND h.n < c.n
      AND h.event IN ('crash_injected', 'worker_killed')
      AND h.fence_token = c.fence_token - 1
    ORDER BY n DESC
    LIMIT 1) AS crash ON true
LEFT JOIN LATERAL (
    SELECT detail
    FROM agentflow.history AS h
    WHERE h.workflow_id = c.workflow_id
      AND h.n > c.n
      AND h.fence_token = c.fence_token
      AND h.detail IS NOT NULL
    ORDER BY n
    LIMIT 1) AS first ON true
WHERE c.transaction = 'claim'
  AND (c.detail ->> 'recovered')::bool
ORDER BY c.at""",
)  # fmt: skip
