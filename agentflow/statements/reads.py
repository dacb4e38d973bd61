"""What people and programs read. A read changes nothing and passes no boundary."""

from __future__ import annotations

from .statement import Statement

RUNNABLE = Statement(
    "runnable",
    "Which work is there, the oldest first, that a claim may have skipped because its row was locked?",
    text="""\
SELECT id, name
FROM agentflow.workflows
WHERE status = 'ready'
  AND next_run_at <= (SELECT clock_timestamp())
  AND (lease_expires_at IS NULL OR lease_expires_at <= clock_timestamp())
  AND (%(p_names)s::text[] IS NULL OR name = ANY(%(p_names)s))
  AND id <> ALL(%(p_ids)s::text[])
ORDER BY next_run_at
LIMIT %(p_most)s""",
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
    "A page of one workflow's history: the engine's entries in their own order, each of the world's after those before it.",
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
ORDER BY n, transaction = 'tool', at
LIMIT %(p_limit)s OFFSET %(p_offset)s""",
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
    "The reliability figures of effects, from the rows and from what tools of one's own tell (p_told, p_asked).",
    text="""\
WITH done AS (
    SELECT idempotency_key, workflow_id, action, attempts
    FROM agentflow_world.tool_ledger
    UNION ALL
    SELECT idempotency_key, workflow_id, action, attempts
    FROM json_to_recordset(%(p_told)s::json) AS told (idempotency_key text, workflow_id text, action text, attempts int)
),
planned AS (
    SELECT i.workflow_id, i.key, i.action, i.status,
           count(done.action) AS effects
    FROM agentflow.action_intents AS i
    LEFT JOIN done USING (workflow_id, idempotency_key)
    GROUP BY i.workflow_id, i.key
),
facts AS (
    SELECT workflow_id, action, status, effects, 0 AS strays,
           -- A tool of one's own to which it was given and which did not tell, whatever others tell of it.
           (SELECT detail ->> 'tool'
            FROM agentflow.history AS h
            WHERE h.workflow_id = planned.workflow_id
              AND subject = key
              AND event IN ('action_intent_committed', 'action_acknowledged')
              AND detail ->> 'tool' <> ALL(%(p_asked)s)
            LIMIT 1) AS tool
    FROM planned
    UNION ALL
    -- Effects under no planned key; those under one made-up key, or each one without a key, could be one action's.
    SELECT workflow_id, action, NULL, count(*),
           count(DISTINCT idempotency_key) + count(*) - count(idempotency_key), NULL
    FROM done
    WHERE NOT EXISTS (
        SELECT FROM agentflow.action_intents AS i
        WHERE i.idempotency_key = done.idempotency_key
          AND i.workflow_id = done.workflow_id)
    GROUP BY workflow_id, action
),
named AS (
    SELECT workflow_id,
           sum(effects) AS effects,
           sum(strays) AS strays,
           count(*) FILTER (WHERE status <> 'REFUSED') AS wanted,
           count(status) FILTER (WHERE effects > 0) AS served,
           count(*) FILTER (WHERE effects > 0 AND status <> 'ACKNOWLEDGED') AS unacknowledged,
           count(*) FILTER (WHERE effects = 0 AND status = 'ACKNOWLEDGED') AS undone,
           count(*) FILTER (WHERE effects = 0 AND status = 'PENDING') AS pending,
           count(tool) AS unseen,
           count(tool) FILTER (WHERE effects = 0 AND status = 'ACKNOWLEDGED') AS unseen_done,
           string_agg(DISTINCT tool, ', ') AS tools
    FROM facts
    GROUP BY workflow_id, action
),
judged AS (
    -- A stray effect serves an action of its name that has none: an acknowledged one first.
    SELECT *,
           CASE WHEN wanted > 0 THEN least(undone + pending, strays)
                ELSE (strays > 0 AND served = 0)::int END AS more,
           CASE WHEN wanted > 0 THEN greatest(0, least(pending, strays - undone))
                ELSE (strays > 0 AND served = 0)::int END AS unknown
    FROM named
)
SELECT (SELECT CASE count(*) WHEN count(attempts) THEN coalesce(sum(attempts), 0)::bigint END
        FROM done) AS tool_execution_attempts,
       coalesce(sum(effects), 0)::bigint AS business_effects,
       -- The effects beyond the first of each action.
       coalesce(sum(effects - served - more), 0)::bigint AS duplicate_business_effects,
       coalesce(sum(greatest(0, undone - unseen_done - strays)), 0)::bigint AS missing_business_effects,
       coalesce(sum(unacknowledged + unknown) FILTER (WHERE workflow_id IN (
           SELECT id
           FROM agentflow.workflows
           WHERE finished_at IS NOT NULL)), 0)::bigint AS unacknowledged_effects,
       coalesce(sum(unseen), 0)::bigint AS effects_not_observed,
       string_agg(DISTINCT tools, ', ') AS tools
FROM judged""",
)  # fmt: skip

CONDITION = Statement(
    "condition",
    "How far the workflows are: how many there are, how long recoveries took, and which nobody can claim now.",
    text="""\
WITH recovered AS (
    SELECT extract(epoch FROM completed_at - recovery_started_at)::float8 * 1000 AS ms,
           (SELECT bool_or(at < before)
            FROM (
                SELECT at, lag(at) OVER (ORDER BY n) AS before
                FROM agentflow.history
                WHERE workflow_id = w.id) AS told) AS backwards
    FROM agentflow.workflows AS w
    WHERE recovery_started_at IS NOT NULL
      AND completed_at IS NOT NULL
),
running AS (
    -- Each running worker holds a lock for each name that it knows; see `bell`.
    SELECT objid
    FROM pg_locks
    WHERE locktype = 'advisory'
      AND objsubid = 2
      AND classid = hashtext('agentflow')::oid
      AND database = (
          SELECT oid
          FROM pg_database
          WHERE datname = current_database())
),
ready AS (
    SELECT next_run_at > clock_timestamp() AS later,
           hashtext(name)::oid IN (SELECT objid FROM running) AS known
    FROM agentflow.workflows
    WHERE status = 'ready'
      AND (lease_expires_at IS NULL OR lease_expires_at <= clock_timestamp())
)
SELECT (SELECT count(*) FROM agentflow.workflows) AS workflows_total,
       (SELECT count(*) FROM agentflow.workflows WHERE status = 'completed') AS workflows_completed,
       count(*) FILTER (WHERE backwards OR ms < 0) AS recoveries_not_observed,
       round(avg(ms)::numeric, 3)::float8 AS recovery_latency_ms,
       round((percentile_cont(0.5) WITHIN GROUP (ORDER BY ms))::numeric, 3)::float8 AS recovery_latency_p50_ms,
       round((percentile_cont(0.95) WITHIN GROUP (ORDER BY ms))::numeric, 3)::float8 AS recovery_latency_p95_ms,
       round(max(ms)::numeric, 3)::float8 AS recovery_latency_max_ms,
       (SELECT count(*) FILTER (WHERE NOT known) FROM ready) AS ready_unknown_to_workers,
       (SELECT count(*) FILTER (WHERE later) FROM ready) AS ready_due_later
FROM recovered""",
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
