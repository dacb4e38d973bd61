"""The checker's rules for the history, one SELECT over whole tables for each rule.

A SELECT returns a row for every mistake: its table and key on the first line, then what it holds and what it should hold. The
rules know the tables and the names of entries, but nothing of the engine's code, so a mistake of the engine is not repeated.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    """One thing that must hold, its sentence, and the SELECT that finds where it does not."""

    name: str
    sentence: str
    sql: str


_WRITES = "'{checkpoint,intent,acknowledge,complete,wait,renew,release,postpone,fail}'::text[]"
PROGRESS = "'{checkpoint_committed,action_acknowledged,event_received}'::text[]"
_REFUSABLE = f"{_WRITES} || '{{cancel,requeue,expire}}'::text[]"
ENDS = "'{workflow_completed,workflow_failed,workflow_cancelled}'::text[]"
_FAULTS = (
    "worker_killed,worker_paused,worker_resumed,reply_lost,answer_lost,database_restarted,keys_forgotten,crash_injected,"
    "claim_passed_over"
)
_AFTER_AN_END = f"'{{write_refused,event_refused,event_repeated,{_FAULTS}}}'::text[]"

STEADY = "current_setting('agentflow.clock_was_set') = 'false'"
"""The condition of what compares times: nothing in the tables shows that the server's clock was set back; see `checker`."""

AT_ONCE = "interval '60 s'"
"""Two times of one statement are at most so far apart: none runs longer."""

MOMENTS = """\
moments ("table", workflow_id, subject, event, "column", moment) AS MATERIALIZED (  -- or not all three columns are hashed
    SELECT 'steps', workflow_id, coalesce(waited_for, step_id),
           CASE kind WHEN 'step' THEN 'checkpoint_committed' WHEN 'wait' THEN 'event_received'
                ELSE 'action_acknowledged' END,
           'created_at', created_at
    FROM steps
    UNION ALL
    SELECT 'action_intents', workflow_id, key, 'action_intent_committed', 'created_at', created_at
    FROM action_intents
    UNION ALL
    SELECT 'action_intents', workflow_id, key, 'action_acknowledged', 'acknowledged_at', acknowledged_at
    FROM action_intents
    WHERE acknowledged_at IS NOT NULL
    UNION ALL
    SELECT 'workflows', id, '', 'workflow_' || status, "column", moment
    FROM workflows, LATERAL (VALUES ('finished_at', finished_at), ('completed_at', completed_at)) AS ended ("column", moment)
    WHERE moment IS NOT NULL
)"""
"""What rows say of when they were written, with the entry that tells of it."""


def miscounted(column: str, number: str, rows: str) -> str:
    """The SELECT of the workflows whose column differs from that number, taken over their rows."""
    return f"""\
SELECT 'workflows', id,
       '{column} ' || {column}, '{column} ' || coalesce(there, 0)
FROM workflows LEFT JOIN (SELECT workflow_id, {number} AS there FROM {rows} GROUP BY workflow_id) AS c ON workflow_id = id
WHERE {column} <> coalesce(there, 0)"""


HISTORY_RULES = [
    Rule(
        "every row belongs to a workflow",
        "Checkpoints, planned actions, entries and effects belong to a workflow that exists.",
        " UNION ALL ".join(
            f"SELECT {name}, t.workflow_id || ' ' || {key}, 'no such workflow', 'a row of an existing workflow' "
            f"FROM {table} AS t WHERE NOT EXISTS (SELECT FROM workflows AS w WHERE w.id = t.workflow_id)"
            for table, name, key in (
                ("steps", "'steps'", "step_id"),
                ("action_intents", "'action_intents'", "key"),
                ("history", "'history'", "n"),
                ("effects", '"table"', "action"),
                ("tool_attempts", "'tool_attempts'", "action"),
            )
        ),
    ),
    Rule(
        "entries are numbered without a gap",
        "A workflow's entries are numbered 1, 2, 3, ..., as many as its row counts, in the order of time, up to now.",
        f"""
WITH numbered AS (
    SELECT workflow_id, n, at, row_number() OVER w AS nth, lag(at) OVER w AS before
    FROM history
    WINDOW w AS (PARTITION BY workflow_id ORDER BY n)
)
SELECT 'history', workflow_id || ' n=' || n,
       'number ' || n, 'number ' || nth
FROM numbered
WHERE n <> nth AND n - nth = 1
UNION ALL
SELECT 'history', workflow_id || ' n=' || n,
       'earlier than the entry before it', 'a time not before ' || before
FROM numbered
WHERE at < before AND {STEADY}
UNION ALL
SELECT 'history', workflow_id || ' n=' || n,
       'at ' || at, 'a time that has come'
FROM history
WHERE at > statement_timestamp() AND {STEADY}
UNION ALL
{miscounted("entries", "max(n)", "history")}""",
    ),
    Rule(
        "a history begins with the creation",
        "The first entry, and only it, says that the workflow was created, with the name in its row.",
        """
SELECT 'history', workflow_id || ' n=' || n,
       event, CASE n WHEN 1 THEN 'workflow_created' ELSE 'no second creation' END
FROM history
WHERE (n = 1) <> (event = 'workflow_created')
UNION ALL
SELECT 'workflows', id,
       'name ' || name, 'name ' || coalesce(h.subject, 'unknown')
FROM workflows JOIN history AS h ON h.workflow_id = id AND h.event = 'workflow_created'
WHERE name IS DISTINCT FROM h.subject""",
    ),
    Rule(
        "each transaction tells its own entry",
        "An entry is one that its transaction writes, and has a subject exactly if that has one; a fault is the laboratory's.",
        f"""
WITH known (transaction, event, subject) AS (
    VALUES ('create', 'workflow_created', true),
           ('claim', 'workflow_claimed', false),
           ('claim', 'workflow_failed', false),
           ('checkpoint', 'checkpoint_committed', true),
           ('intent', 'action_intent_committed', true),
           ('acknowledge', 'action_acknowledged', true),
           ('wait', 'workflow_waiting', true),
           ('wait', 'event_received', true),
           ('deliver', 'event_delivered', true),
           ('deliver', 'event_repeated', true),
           ('deliver', 'event_refused', true),
           ('renew', 'lease_renewed', false),
           ('release', 'lease_released', false),
           ('free', 'workflow_freed', false),
           ('postpone', 'attempt_failed', true),
           ('complete', 'workflow_completed', false),
           ('fail', 'workflow_failed', NULL),
           ('cancel', 'workflow_cancelled', false),
           ('requeue', 'workflow_requeued', false),
           ('expire', 'lease_expired_for_test', false),
           ('expire', 'backoff_ended_for_test', false)
    UNION ALL
    SELECT 'fault', unnest('{{{_FAULTS}}}'::text[]), NULL
    UNION ALL
    SELECT unnest({_REFUSABLE}), 'write_refused', NULL
)
SELECT 'history', h.workflow_id || ' n=' || h.n,
       h.event || ' by ' || h.transaction || coalesce(', subject ' || h.subject, ', no subject'),
       'an entry that this transaction writes'
FROM history AS h LEFT JOIN known AS k USING (transaction, event)
WHERE k.event IS NULL OR k.subject <> (h.subject IS NOT NULL)""",
    ),
    Rule(
        "nothing comes before its cause",
        "An action is acknowledged after it was planned, and an event received after it was delivered.",
        """
SELECT 'history', told.workflow_id || ' n=' || told.n,
       told.event || ' ' || told.subject, cause || ' ' || told.subject || ' before it'
FROM (SELECT *, CASE event WHEN 'action_acknowledged' THEN 'action_intent_committed'
                           WHEN 'event_received' THEN 'event_delivered' END AS cause FROM history) AS told
WHERE cause IS NOT NULL
  AND NOT EXISTS (SELECT FROM history AS h WHERE h.workflow_id = told.workflow_id AND h.event = cause
                                             AND h.subject = told.subject AND h.n < told.n)""",
    ),
    Rule(
        "each claim raises the token by one",
        "The k-th claim of a workflow has token k, and the row holds the last.",
        f"""
WITH claims AS (
    SELECT workflow_id, n, fence_token, row_number() OVER (PARTITION BY workflow_id ORDER BY n) AS nth
    FROM history
    WHERE transaction = 'claim'
)
SELECT 'history', workflow_id || ' n=' || n,
       'a claim with token ' || coalesce(fence_token::text, 'none'), 'token ' || nth
FROM claims
WHERE fence_token IS DISTINCT FROM nth
UNION ALL
{miscounted("fence_token", "max(nth)", "claims")}""",
    ),
    Rule(
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
SELECT 'history', workflow_id || ' n=' || n,
       event || ' by ' || coalesce(worker, 'nobody') || ' with token ' || coalesce(fence_token::text, 'none'),
       coalesce('worker ' || holder || ' with token ' || token, 'no write before a claim')
FROM writes
WHERE worker IS DISTINCT FROM holder OR fence_token IS DISTINCT FROM token""",
    ),
    Rule(
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
SELECT 'history', workflow_id || ' n=' || n,
       'recovered ' || coalesce(recovered::text, 'unknown') || ' from ' || coalesce(held_by, 'nobody'),
       'recovered ' || (holder IS NOT NULL) || ' from ' || coalesce(holder, 'nobody')
FROM claims
WHERE held_by IS DISTINCT FROM holder OR recovered IS DISTINCT FROM (holder IS NOT NULL)""",
    ),
    Rule(
        "an end is an end",
        "After its end a workflow has only refusals and faults, until it is requeued.",
        f"""
WITH told AS (
    SELECT workflow_id, n, event,
           max(n) FILTER (WHERE event = ANY ({ENDS})) OVER w AS ended,
           max(n) FILTER (WHERE event = 'workflow_requeued') OVER w AS again
    FROM history
    WINDOW w AS (PARTITION BY workflow_id ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
SELECT 'history', workflow_id || ' n=' || n,
       event || ' after the end at n=' || ended, 'a refusal, a fault or a requeue'
FROM told
WHERE ended > coalesce(again, 0) AND event <> 'workflow_requeued' AND event <> ALL ({_AFTER_AN_END})""",
    ),
]
