"""What the tables of a finished laboratory must say about each other, one SELECT for each rule.

What lives here: the rules for workflows, checkpoints and history, as SQL over whole tables; each returns a row for every
fault: table, row, what stands there and what should. What does not: rules for actions, effects and events
(`checker_actions`), running them (`checker`). They know the tables and the names of entries, and nothing of the
engine's code or statements, so a mistake of the engine is not repeated here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """One thing that must hold, its sentence, and the SELECT that finds where it does not."""

    name: str
    sentence: str
    sql: str


HISTORY_RULES: list[Rule] = []


def _rule(name: str, sentence: str, sql: str) -> None:
    HISTORY_RULES.append(Rule(name, sentence, sql.strip()))


_WRITES = "'{checkpoint,intent,acknowledge,complete,wait,renew,release,postpone,fail}'::text[]"
_PROGRESS = "'{checkpoint_committed,action_acknowledged,event_received}'::text[]"
_ENDS = "'{workflow_completed,workflow_failed,workflow_cancelled}'::text[]"
_AFTER_AN_END = (
    "'{write_refused,event_refused,event_repeated,worker_killed,worker_paused,worker_resumed,reply_lost,"
    "database_restarted,keys_forgotten,crash_injected}'::text[]"
)
_REQUEUED = "EXISTS (SELECT FROM history AS r WHERE r.workflow_id = {id} AND r.event = 'workflow_requeued')"

_rule(
    "every row belongs to a workflow",
    "Checkpoints, planned actions, entries and effects belong to a workflow that exists.",
    " UNION ALL ".join(
        f"SELECT '{table}', t.workflow_id || ' ' || {key}, 'no such workflow', 'a row of an existing workflow' "
        f"FROM {table} AS t WHERE NOT EXISTS (SELECT FROM workflows AS w WHERE w.id = t.workflow_id)"
        for table, key in (
            ("steps", "step_id"),
            ("action_intents", "key"),
            ("history", "n"),
            ("tool_ledger", "action"),
            ("tool_attempts", "action"),
        )
    ),
)

_rule(
    "entries are numbered without a gap",
    "A workflow's entries are numbered 1, 2, 3, ..., as many as its row counts, in the order of time.",
    """
WITH numbered AS (
    SELECT workflow_id, n, at, row_number() OVER w AS nth, lag(at) OVER w AS before
    FROM history
    WINDOW w AS (PARTITION BY workflow_id ORDER BY n)
)
SELECT 'history',
       workflow_id || ' n=' || n,
       'number ' || n,
       'number ' || nth
FROM numbered
WHERE n <> nth AND n - nth = 1
UNION ALL
SELECT 'history',
       workflow_id || ' n=' || n,
       'earlier than the entry before it',
       'a time not before ' || before
FROM numbered
WHERE at < before
UNION ALL
SELECT 'workflows',
       id,
       'entries ' || entries,
       'entries ' || coalesce(there, 0)
FROM workflows LEFT JOIN (SELECT workflow_id, max(n) AS there FROM history GROUP BY workflow_id) AS h ON workflow_id = id
WHERE entries <> coalesce(there, 0)""",
)

_rule(
    "a history begins with the creation",
    "The first entry, and only it, says that the workflow was created.",
    """
SELECT 'history',
       workflow_id || ' n=' || n,
       event,
       CASE n WHEN 1 THEN 'workflow_created' ELSE 'no second creation' END
FROM history
WHERE (n = 1) <> (event = 'workflow_created')""",
)

_rule(
    "each claim raises the token by one",
    "The k-th claim of a workflow has token k, and the row holds the last.",
    """
WITH claims AS (
    SELECT workflow_id, n, fence_token, row_number() OVER (PARTITION BY workflow_id ORDER BY n) AS nth
    FROM history
    WHERE transaction = 'claim'
)
SELECT 'history',
       workflow_id || ' n=' || n,
       'a claim with token ' || coalesce(fence_token::text, 'none'),
       'token ' || nth
FROM claims
WHERE fence_token IS DISTINCT FROM nth
UNION ALL
SELECT 'workflows',
       id,
       'fence_token ' || fence_token,
       'fence_token ' || coalesce(last, 0)
FROM workflows LEFT JOIN (SELECT workflow_id, max(nth) AS last FROM claims GROUP BY workflow_id) AS c ON workflow_id = id
WHERE fence_token <> coalesce(last, 0)""",
)

_rule(
    "only the holder writes",
    "Between two claims every committed write has the token and the worker of the earlier claim.",
    f"""
WITH told AS (
    SELECT workflow_id, n, event, transaction, worker, fence_token,
           count(*) FILTER (WHERE transaction = 'claim') OVER w AS claim
    FROM history
    WINDOW w AS (PARTITION BY workflow_id ORDER BY n)
),
writes AS (
    SELECT t.workflow_id, t.n, t.event, t.worker, t.fence_token, c.worker AS holder, c.fence_token AS token
    FROM told AS t
    LEFT JOIN told AS c ON c.workflow_id = t.workflow_id AND c.claim = t.claim AND c.transaction = 'claim'
    WHERE t.transaction = ANY ({_WRITES}) AND t.event <> 'write_refused'
)
SELECT 'history',
       workflow_id || ' n=' || n,
       event || ' by ' || coalesce(worker, 'nobody') || ' with token ' || coalesce(fence_token::text, 'none'),
       coalesce('worker ' || holder || ' with token ' || token, 'no write before a claim')
FROM writes
WHERE worker IS DISTINCT FROM holder OR fence_token IS DISTINCT FROM token""",
)

_rule(
    "a take-over names whom it took over from",
    "A claim is a recovery exactly if the claim before it did not give its lease back; it names that holder.",
    """
WITH told AS (
    SELECT workflow_id, n, event, transaction, worker, detail,
           count(*) FILTER (WHERE transaction = 'claim' AND event = 'workflow_claimed') OVER w AS claim
    FROM history
    WINDOW w AS (PARTITION BY workflow_id ORDER BY n)
),
given AS (
    SELECT DISTINCT workflow_id, claim
    FROM told
    WHERE event = ANY ('{lease_released,workflow_waiting,attempt_failed,workflow_failed,workflow_requeued}')
),
claims AS (
    SELECT c.workflow_id, c.n, (c.detail ->> 'recovered')::bool AS recovered, c.detail ->> 'held_by' AS held_by,
           CASE WHEN g.claim IS NULL THEN before.worker END AS holder
    FROM told AS c
    LEFT JOIN told AS before ON before.workflow_id = c.workflow_id AND before.claim = c.claim - 1
         AND before.event = 'workflow_claimed'
    LEFT JOIN given AS g ON g.workflow_id = c.workflow_id AND g.claim = c.claim - 1
    WHERE c.event = 'workflow_claimed'
)
SELECT 'history',
       workflow_id || ' n=' || n,
       'recovered ' || coalesce(recovered::text, 'unknown') || ' from ' || coalesce(held_by, 'nobody'),
       'recovered ' || (holder IS NOT NULL) || ' from ' || coalesce(holder, 'nobody')
FROM claims
WHERE held_by IS DISTINCT FROM holder OR recovered IS DISTINCT FROM (holder IS NOT NULL)""",
)

_rule(
    "an end is an end",
    "After its end a workflow has only refusals and faults, until it is requeued.",
    f"""
WITH told AS (
    SELECT workflow_id, n, event,
           max(n) FILTER (WHERE event = ANY ({_ENDS})) OVER w AS ended,
           max(n) FILTER (WHERE event = 'workflow_requeued') OVER w AS again
    FROM history
    WINDOW w AS (PARTITION BY workflow_id ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
SELECT 'history',
       workflow_id || ' n=' || n,
       event || ' after the end at n=' || ended,
       'a refusal, a fault or a requeue'
FROM told
WHERE ended > coalesce(again, 0) AND event <> 'workflow_requeued' AND event <> ALL ({_AFTER_AN_END})""",
)

_rule(
    "the status is the history's",
    "A finished workflow ended as its last such entry says; an open one waits for an event, or nobody would work on it.",
    f"""
WITH ends AS (
    SELECT DISTINCT ON (workflow_id) workflow_id, event
    FROM history
    WHERE event = ANY ({_ENDS}) OR event = 'workflow_requeued'
    ORDER BY workflow_id, n DESC
)
SELECT 'workflows',
       id,
       'status ' || status,
       CASE WHEN event IS NULL OR event = 'workflow_requeued' THEN 'waiting, or an end with its entry'
            ELSE 'status ' || substr(event, 10) END
FROM workflows LEFT JOIN ends ON workflow_id = id
WHERE status <> 'waiting' AND coalesce(event, '') <> 'workflow_' || status
   OR status = 'waiting' AND coalesce(event, 'workflow_requeued') <> 'workflow_requeued'
UNION ALL
SELECT 'workflows',
       id,
       'state ' || state,
       'state ' || upper(status)
FROM workflows
WHERE status IN ('completed', 'failed', 'cancelled') AND state <> upper(status)""",
)

_rule(
    "checkpoints are counted and numbered",
    "A workflow's checkpoints stand at positions 1, 2, 3, ..., as many as its row counts.",
    """
WITH numbered AS (
    SELECT workflow_id, step_id, position, row_number() OVER (PARTITION BY workflow_id ORDER BY position, step_id) AS nth
    FROM steps
)
SELECT 'steps',
       workflow_id || ' ' || step_id,
       'position ' || position,
       'position ' || nth
FROM numbered
WHERE position <> nth
UNION ALL
SELECT 'workflows',
       id,
       'checkpoints ' || checkpoints,
       'checkpoints ' || coalesce(there, 0)
FROM workflows LEFT JOIN (SELECT workflow_id, count(*) AS there FROM steps GROUP BY workflow_id) AS s ON workflow_id = id
WHERE checkpoints <> coalesce(there, 0)""",
)

_rule(
    "each checkpoint was written once",
    "The k-th entry of progress tells of the checkpoint at position k, with its worker and token (unless it was requeued).",
    f"""
WITH progress AS (
    SELECT workflow_id, n, event, subject, worker, fence_token, row_number() OVER (PARTITION BY workflow_id ORDER BY n) AS nth
    FROM history
    WHERE event = ANY ({_PROGRESS})
)
SELECT 'steps',
       coalesce(s.workflow_id || ' ' || s.step_id, p.workflow_id || ' position ' || nth),
       coalesce(s.kind || ' by ' || s.worker || ' with token ' || s.fence_token, 'no checkpoint'),
       coalesce(p.event || ' ' || p.subject || ' by ' || p.worker || ' with token '
         || p.fence_token, 'no checkpoint: nothing tells of it')
FROM steps AS s
FULL JOIN progress AS p ON p.workflow_id = s.workflow_id AND p.nth = s.position
WHERE (s.step_id IS NULL OR p.n IS NULL OR (s.worker, s.fence_token) IS DISTINCT FROM (p.worker, p.fence_token)
       OR coalesce(s.waited_for, s.step_id) IS DISTINCT FROM p.subject
       OR s.kind <> CASE p.event WHEN 'checkpoint_committed' THEN 'step' WHEN 'event_received' THEN 'wait' ELSE 'side_effect' END)
  AND NOT {_REQUEUED.format(id="coalesce(s.workflow_id, p.workflow_id)")}""",
)
