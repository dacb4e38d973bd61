"""The checker's rules for what a workflow's row and its checkpoints keep, and the history records as well."""

from __future__ import annotations

from .history_rules import AT_ONCE, ENDS, MOMENTS, PROGRESS, STEADY, Rule, miscounted

_REQUEUED = "EXISTS (SELECT FROM history AS r WHERE r.workflow_id = {id} AND r.event = 'workflow_requeued')"

UNFINISHED = Rule(
    "the work is done",
    "Where nobody works any more, a workflow is finished or waits for an event; a ready one was lost.",
    """
SELECT 'workflows', id, 'status ready, held by ' || coalesce(lease_owner, 'nobody'), 'waiting, or an end'
FROM workflows
WHERE status = 'ready'
ORDER BY created_at, id""",
)
"""What is a mistake in a finished laboratory alone: work that still runs, or could, contradicts nothing."""

ROW_RULES = [
    Rule(
        "the status is the history's",
        "A finished workflow ended as its last such entry says, and an open one has not ended since it was requeued.",
        f"""
WITH ends AS (
    SELECT DISTINCT ON (workflow_id) workflow_id, event
    FROM history
    WHERE event = ANY ({ENDS}) OR event = 'workflow_requeued'
    ORDER BY workflow_id, n DESC
)
SELECT 'workflows', id,
       'status ' || status,
       CASE WHEN event IS NULL OR event = 'workflow_requeued' THEN 'open, or an end with its entry'
            ELSE 'status ' || substr(event, 10) END
FROM workflows LEFT JOIN ends ON workflow_id = id
WHERE status NOT IN ('ready', 'waiting') AND coalesce(event, '') <> 'workflow_' || status
   OR status IN ('ready', 'waiting') AND coalesce(event, 'workflow_requeued') <> 'workflow_requeued'
UNION ALL
SELECT 'workflows', id,
       'state ' || state, 'state ' || upper(status)
FROM workflows
WHERE status IN ('completed', 'failed', 'cancelled') AND state <> upper(status)""",
    ),
    Rule(
        "a wait is the history's",
        "A waiting workflow waits for the event of its last parking, in the state of its last checkpoint (PENDING without one).",
        f"""
WITH parked AS (
    SELECT DISTINCT ON (workflow_id) workflow_id, subject
    FROM history
    WHERE event = 'workflow_waiting'
    ORDER BY workflow_id, n DESC
),
since AS (
    SELECT DISTINCT ON (workflow_id) workflow_id, event
    FROM history
    WHERE event = ANY ({PROGRESS}) OR event IN ('action_intent_committed', 'workflow_requeued')
    ORDER BY workflow_id, n DESC
)
SELECT 'workflows', id,
       'waits for ' || waiting_for, coalesce('waits for ' || subject, 'waits for nothing')
FROM workflows LEFT JOIN parked ON workflow_id = id
WHERE status = 'waiting' AND waiting_for IS DISTINCT FROM subject
UNION ALL
SELECT 'workflows', id,
       'state ' || w.state, 'state ' || coalesce(s.state, 'PENDING')
FROM workflows AS w
LEFT JOIN since ON since.workflow_id = id
LEFT JOIN steps AS s ON s.workflow_id = id AND s.position = checkpoints
WHERE status = 'waiting' AND w.state <> coalesce(s.state, 'PENDING')
  AND (event IS NULL OR event = ANY ({PROGRESS}))""",
    ),
    Rule(
        "checkpoints are counted and numbered",
        "A workflow's checkpoints stand at positions 1, 2, 3, ..., as many as its row counts.",
        f"""
WITH numbered AS (
    SELECT workflow_id, step_id, position, row_number() OVER (PARTITION BY workflow_id ORDER BY position, step_id) AS nth
    FROM steps
)
SELECT 'steps', workflow_id || ' ' || step_id,
       'position ' || position, 'position ' || nth
FROM numbered
WHERE position <> nth
UNION ALL
{miscounted("checkpoints", "count(*)", "steps")}""",
    ),
    Rule(
        "each checkpoint was written once",
        "The k-th entry of progress tells of the checkpoint at position k, with its worker and token (unless it was requeued).",
        f"""
WITH progress AS (
    SELECT workflow_id, n, event, subject, worker, fence_token, row_number() OVER (PARTITION BY workflow_id ORDER BY n) AS nth
    FROM history
    WHERE event = ANY ({PROGRESS})
)
SELECT 'steps', coalesce(s.workflow_id || ' ' || s.step_id, p.workflow_id || ' position ' || nth),
       coalesce(s.kind || ' by ' || s.worker || ' with token ' || s.fence_token, 'no checkpoint'),
       coalesce(p.event || ' ' || p.subject || ' by ' || p.worker || ' with token '
         || p.fence_token, 'no checkpoint: nothing tells of it')
FROM steps AS s
FULL JOIN progress AS p ON p.workflow_id = s.workflow_id AND p.nth = s.position
WHERE (s.step_id IS NULL OR p.n IS NULL OR (s.worker, s.fence_token) IS DISTINCT FROM (p.worker, p.fence_token)
       OR coalesce(s.waited_for, s.step_id) IS DISTINCT FROM p.subject
       OR s.kind <> CASE p.event WHEN 'checkpoint_committed' THEN 'step' WHEN 'event_received' THEN 'wait' ELSE 'side_effect' END)
  AND NOT {_REQUEUED.format(id="coalesce(s.workflow_id, p.workflow_id)")}""",
    ),
    Rule(
        "attempts and crashes are the history's",
        "A row counts the failed tries and the crashes since its last progress; a claim adds a crash only if it took over.",
        f"""
WITH told AS (
    SELECT workflow_id, n, event, transaction, (detail ->> 'crashes')::int AS crashes,
           (detail ->> 'recovered')::bool::int AS recovered,
           count(*) FILTER (WHERE event = ANY ({PROGRESS}) OR event IN ('workflow_waiting', 'workflow_requeued')) OVER w AS later
    FROM history
    WINDOW w AS (PARTITION BY workflow_id ORDER BY n DESC)
),
claims AS (
    SELECT *, lag(crashes, 1, 0) OVER (PARTITION BY workflow_id, later ORDER BY n) AS before
    FROM told
    WHERE transaction = 'claim'
),
counted AS (
    SELECT workflow_id, count(*) FILTER (WHERE event = 'attempt_failed') AS attempts,
           max(crashes) FILTER (WHERE transaction = 'claim') AS crashes
    FROM told
    WHERE later = 0
    GROUP BY workflow_id
)
SELECT 'history', workflow_id || ' n=' || n,
       'crashes ' || coalesce(crashes::text, 'unknown'),
       'crashes ' || before || CASE WHEN recovered = 1 THEN ' or ' || before + 1 ELSE '' END
FROM claims
WHERE coalesce(crashes NOT BETWEEN before AND before + recovered, true)
UNION ALL
SELECT 'workflows', id,
       'attempts ' || w.attempts || ', crashes ' || w.crashes,
       'attempts ' || coalesce(c.attempts, 0) || ', crashes ' || coalesce(c.crashes, 0)
FROM workflows AS w LEFT JOIN counted AS c ON workflow_id = id
WHERE (w.attempts, w.crashes) <> (coalesce(c.attempts, 0), coalesce(c.crashes, 0))""",
    ),
    Rule(
        "a recovery begins with its claim",
        "A row says when the first take-over since its last parking was made, and nothing if there was none.",
        f"""
WITH parked AS (
    SELECT workflow_id, max(n) AS n
    FROM history
    WHERE event = 'workflow_waiting'
    GROUP BY workflow_id
),
first AS (
    SELECT DISTINCT ON (workflow_id) h.workflow_id, at, (detail ->> 'asked_at')::timestamptz AS asked_at
    FROM history AS h LEFT JOIN parked AS p ON p.workflow_id = h.workflow_id
    WHERE transaction = 'claim' AND (detail ->> 'recovered')::bool AND h.n > coalesce(p.n, 0)
    ORDER BY h.workflow_id, h.n
)
SELECT 'workflows', id,
       coalesce('recovery_started_at ' || recovery_started_at, 'no recovery'),
       coalesce('a recovery between ' || asked_at || ' and ' || at, 'no recovery')
FROM workflows LEFT JOIN first ON workflow_id = id
WHERE (recovery_started_at IS NULL) <> (at IS NULL) OR recovery_started_at NOT BETWEEN asked_at AND at
  AND ({STEADY} OR recovery_started_at NOT BETWEEN at - {AT_ONCE} AND at  -- it may be set while the claim runs
       AND recovery_started_at NOT BETWEEN asked_at AND asked_at + {AT_ONCE})""",
    ),
    Rule(
        "a row's time is its entry's",
        "What a row says of when it was written lies between the entries around the one that tells of it.",
        f"""
WITH told AS (
    SELECT workflow_id, event, CASE WHEN event = ANY ({ENDS}) THEN '' ELSE subject END AS subject, at,
           lag(at) OVER w AS before, lead(at, 1, statement_timestamp()) OVER w AS after
    FROM history
    WINDOW w AS (PARTITION BY workflow_id ORDER BY n)
),
{MOMENTS}
SELECT "table", rtrim(m.workflow_id || ' ' || subject),
       "column" || ' ' || moment, 'a time between the entries around ' || event || ', which has come'
FROM moments AS m
WHERE NOT EXISTS (
    SELECT FROM told AS t
    WHERE (t.workflow_id, t.event, t.subject) = (m.workflow_id, m.event, m.subject)
      AND moment BETWEEN at - {AT_ONCE} AND at + {AT_ONCE}
      AND (moment BETWEEN before AND after OR NOT {STEADY}))""",
    ),
]
