"""What the tables of a finished laboratory must say about each other, one SELECT for each rule.

What lives here: the rules, as SQL over whole tables; each returns a row for every fault: table, row, what stands there and
what should. What does not: running them (`checker`). They know the tables and the names of entries, and nothing of the
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


RULES: list[Rule] = []


def _rule(name: str, sentence: str, sql: str) -> None:
    RULES.append(Rule(name, sentence, sql.strip()))


def _fault(table: str, row: str, stands: str, should: str) -> str:
    return f"""SELECT '{table}' AS "table", {row} AS "row", {stands} AS stands, {should} AS should"""


_KEY = "i.workflow_id || ':' || replace(replace(i.key, '%', '%25'), ':', '%3A')"
_WRITES = "'{checkpoint,intent,acknowledge,complete,wait,renew,release,postpone,fail}'::text[]"
_PROGRESS = "'{checkpoint_committed,action_acknowledged,event_received}'::text[]"
_ENDS = "'{workflow_completed,workflow_failed,workflow_cancelled}'::text[]"
_AFTER_AN_END = (
    "'{write_refused,event_refused,event_repeated,worker_killed,worker_paused,worker_resumed,reply_lost,"
    "database_restarted,crash_injected}'::text[]"
)
_REQUEUED = "EXISTS (SELECT FROM history AS r WHERE r.workflow_id = {id} AND r.event = 'workflow_requeued')"

_rule(
    "every row belongs to a workflow",
    "Checkpoints, planned actions, entries and effects belong to a workflow that exists.",
    " UNION ALL ".join(
        _fault(table, f"t.workflow_id || ' ' || {key}", "'no such workflow'", "'a row of an existing workflow'")
        + f" FROM {table} AS t WHERE NOT EXISTS (SELECT FROM workflows AS w WHERE w.id = t.workflow_id)"
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
    f"""
WITH numbered AS (
    SELECT workflow_id, n, at, row_number() OVER w AS nth, lag(at) OVER w AS before
    FROM history
    WINDOW w AS (PARTITION BY workflow_id ORDER BY n)
)
{_fault("history", "workflow_id || ' n=' || n", "'number ' || n", "'number ' || nth")}
FROM numbered
WHERE n <> nth AND n - nth = 1
UNION ALL
{_fault("history", "workflow_id || ' n=' || n", "'earlier than the entry before it'", "'a time not before ' || before")}
FROM numbered
WHERE at < before
UNION ALL
{_fault("workflows", "id", "'entries ' || entries", "'entries ' || coalesce(there, 0)")}
FROM workflows LEFT JOIN (SELECT workflow_id, max(n) AS there FROM history GROUP BY workflow_id) AS h ON workflow_id = id
WHERE entries <> coalesce(there, 0)""",
)

_rule(
    "a history begins with the creation",
    "The first entry, and only it, says that the workflow was created.",
    f"""
{_fault("history", "workflow_id || ' n=' || n", "event", "CASE n WHEN 1 THEN 'workflow_created' ELSE 'no second creation' END")}
FROM history
WHERE (n = 1) <> (event = 'workflow_created')""",
)

_rule(
    "each claim raises the token by one",
    "The k-th claim of a workflow has token k, and the row holds the last.",
    f"""
WITH claims AS (
    SELECT workflow_id, n, fence_token, row_number() OVER (PARTITION BY workflow_id ORDER BY n) AS nth
    FROM history
    WHERE transaction = 'claim'
)
{_fault("history", "workflow_id || ' n=' || n", "'a claim with token ' || coalesce(fence_token::text, 'none')", "'token ' || nth")}
FROM claims
WHERE fence_token IS DISTINCT FROM nth
UNION ALL
{_fault("workflows", "id", "'fence_token ' || fence_token", "'fence_token ' || coalesce(last, 0)")}
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
{
        _fault(
            "history",
            "workflow_id || ' n=' || n",
            "event || ' by ' || coalesce(worker, 'nobody') || ' with token ' || coalesce(fence_token::text, 'none')",
            "coalesce('worker ' || holder || ' with token ' || token, 'no write before a claim')",
        )
    }
FROM writes
WHERE worker IS DISTINCT FROM holder OR fence_token IS DISTINCT FROM token""",
)

_rule(
    "a take-over names whom it took over from",
    "A claim is a recovery exactly if the claim before it did not give its lease back; it names that holder.",
    f"""
WITH told AS (
    SELECT workflow_id, n, event, transaction, worker, detail,
           count(*) FILTER (WHERE transaction = 'claim' AND event = 'workflow_claimed') OVER w AS claim
    FROM history
    WINDOW w AS (PARTITION BY workflow_id ORDER BY n)
),
given AS (
    SELECT DISTINCT workflow_id, claim
    FROM told
    WHERE event = ANY ('{{lease_released,workflow_waiting,attempt_failed,workflow_failed,workflow_requeued}}')
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
{
        _fault(
            "history",
            "workflow_id || ' n=' || n",
            "'recovered ' || coalesce(recovered::text, 'unknown') || ' from ' || coalesce(held_by, 'nobody')",
            "'recovered ' || (holder IS NOT NULL) || ' from ' || coalesce(holder, 'nobody')",
        )
    }
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
{_fault("history", "workflow_id || ' n=' || n", "event || ' after the end at n=' || ended", "'a refusal, a fault or a requeue'")}
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
{
        _fault(
            "workflows",
            "id",
            "'status ' || status",
            "CASE WHEN event IS NULL OR event = 'workflow_requeued' THEN 'waiting, or an end with its entry' "
            "ELSE 'status ' || substr(event, 10) END",
        )
    }
FROM workflows LEFT JOIN ends ON workflow_id = id
WHERE status <> 'waiting' AND coalesce(event, '') <> 'workflow_' || status
   OR status = 'waiting' AND coalesce(event, 'workflow_requeued') <> 'workflow_requeued'
UNION ALL
{_fault("workflows", "id", "'state ' || state", "'state ' || upper(status)")}
FROM workflows
WHERE status IN ('completed', 'failed', 'cancelled') AND state <> upper(status)""",
)

_rule(
    "checkpoints are counted and numbered",
    "A workflow's checkpoints stand at positions 1, 2, 3, ..., as many as its row counts.",
    f"""
WITH numbered AS (
    SELECT workflow_id, step_id, position, row_number() OVER (PARTITION BY workflow_id ORDER BY position, step_id) AS nth
    FROM steps
)
{_fault("steps", "workflow_id || ' ' || step_id", "'position ' || position", "'position ' || nth")}
FROM numbered
WHERE position <> nth
UNION ALL
{_fault("workflows", "id", "'checkpoints ' || checkpoints", "'checkpoints ' || coalesce(there, 0)")}
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
{
        _fault(
            "steps",
            "coalesce(s.workflow_id || ' ' || s.step_id, p.workflow_id || ' position ' || nth)",
            "coalesce(s.kind || ' by ' || s.worker || ' with token ' || s.fence_token, 'no checkpoint')",
            "coalesce(p.event || ' ' || p.subject || ' by ' || p.worker || ' with token ' || p.fence_token, "
            "'no checkpoint: nothing tells of it')",
        )
    }
FROM steps AS s
FULL JOIN progress AS p ON p.workflow_id = s.workflow_id AND p.nth = s.position
WHERE (s.step_id IS NULL OR p.n IS NULL OR (s.worker, s.fence_token) IS DISTINCT FROM (p.worker, p.fence_token)
       OR coalesce(s.waited_for, s.step_id) IS DISTINCT FROM p.subject
       OR s.kind <> CASE p.event WHEN 'checkpoint_committed' THEN 'step' WHEN 'event_received' THEN 'wait' ELSE 'side_effect' END)
  AND NOT {_REQUEUED.format(id="coalesce(s.workflow_id, p.workflow_id)")}""",
)

_rule(
    "a planned action has its entry and its key",
    "Each planned action was written once, by its worker and token, under the key <workflow id>:<key>.",
    f"""
{
        _fault(
            "action_intents",
            "i.workflow_id || ' ' || i.key",
            "'idempotency_key ' || idempotency_key",
            f"'idempotency_key ' || {_KEY}",
        )
    }
FROM action_intents AS i
WHERE idempotency_key <> {_KEY}
UNION ALL
{
        _fault(
            "action_intents",
            "i.workflow_id || ' ' || i.key",
            "'planned by ' || i.worker || ' with token ' || i.fence_token",
            "'an entry action_intent_committed of that worker and token'",
        )
    }
FROM action_intents AS i
WHERE NOT EXISTS (
    SELECT FROM history AS h
    WHERE h.workflow_id = i.workflow_id AND h.event = 'action_intent_committed' AND h.subject = i.key
      AND h.worker = i.worker AND h.fence_token = i.fence_token)
UNION ALL
{_fault("history", "h.workflow_id || ' n=' || h.n", "'plans action ' || h.subject", "'a row in action_intents'")}
FROM history AS h
WHERE h.event = 'action_intent_committed'
  AND NOT EXISTS (SELECT FROM action_intents AS i WHERE i.workflow_id = h.workflow_id AND i.key = h.subject)""",
)

_rule(
    "completed means acknowledged",
    "A completed workflow has no pending action, and an action is acknowledged exactly if its checkpoint stands.",
    f"""
{
        _fault(
            "action_intents",
            "i.workflow_id || ' ' || i.key",
            "'PENDING, and the workflow is completed'",
            "'ACKNOWLEDGED or REFUSED'",
        )
    }
FROM action_intents AS i JOIN workflows AS w ON w.id = i.workflow_id
WHERE i.status = 'PENDING' AND w.status = 'completed'
UNION ALL
{
        _fault(
            "action_intents",
            "coalesce(i.workflow_id || ' ' || i.key, s.workflow_id || ' ' || s.step_id)",
            "coalesce('status ' || i.status, 'no planned action')",
            "CASE WHEN s.step_id IS NULL THEN 'PENDING: no checkpoint stands' WHEN s.error IS NULL THEN 'status ACKNOWLEDGED' "
            "ELSE 'status REFUSED' END",
        )
    }
FROM (SELECT * FROM steps WHERE kind = 'side_effect') AS s
FULL JOIN action_intents AS i ON i.workflow_id = s.workflow_id AND i.key = s.step_id
WHERE coalesce(i.status, '') <> CASE WHEN s.step_id IS NULL THEN 'PENDING' WHEN s.error IS NULL THEN 'ACKNOWLEDGED' ELSE 'REFUSED' END""",
)

_rule(
    "the recorded result is the tool's",
    "An acknowledged action's result is what its checkpoint holds and what the world did under its key.",
    f"""
{_fault("steps", "s.workflow_id || ' ' || s.step_id", "'value ' || s.value", "'value ' || i.tool_result")}
FROM steps AS s JOIN action_intents AS i ON i.workflow_id = s.workflow_id AND i.key = s.step_id
WHERE s.kind = 'side_effect' AND s.value::jsonb IS DISTINCT FROM i.tool_result::jsonb
UNION ALL
{
        _fault(
            "action_intents",
            "i.workflow_id || ' ' || i.key",
            "'tool_result ' || i.tool_result",
            "coalesce('tool_result ' || l.result, 'an effect in the world under ' || i.idempotency_key)",
        )
    }
FROM action_intents AS i
LEFT JOIN (SELECT DISTINCT ON (idempotency_key) * FROM tool_ledger ORDER BY idempotency_key, effect_id) AS l
  USING (idempotency_key)
WHERE i.status = 'ACKNOWLEDGED'
  AND (i.tool_result::jsonb, i.action, i.workflow_id) IS DISTINCT FROM (l.result::jsonb, l.action, l.workflow_id)""",
)

_rule(
    "one effect for each planned action",
    "The world has at most one effect for each key, and none that nobody planned.",
    f"""
{
        _fault(
            "tool_ledger",
            "'effect ' || effect_id || ' of ' || workflow_id",
            "'effect ' || nth || ' of one key'",
            "'one effect'",
        )
    }
FROM (SELECT *, row_number() OVER (PARTITION BY idempotency_key ORDER BY effect_id) AS nth FROM tool_ledger) AS l
WHERE nth > 1 AND idempotency_key IS NOT NULL
UNION ALL
{
        _fault(
            "tool_ledger",
            "'effect ' || effect_id || ' of ' || workflow_id",
            "'key ' || coalesce(idempotency_key, 'none')",
            "'the key of a planned action'",
        )
    }
FROM tool_ledger AS l
WHERE NOT EXISTS (SELECT FROM action_intents AS i WHERE i.idempotency_key = l.idempotency_key)""",
)

_rule(
    "attempts are counted and in time",
    "An effect counts its attempts; the first came after the plan and before the acknowledgment.",
    f"""
WITH called AS (
    SELECT effect_id, count(*) AS calls, min(came_at) AS first, count(*) FILTER (WHERE outcome = 'effect') AS effects
    FROM tool_attempts
    WHERE effect_id IS NOT NULL
    GROUP BY effect_id
)
{
        _fault(
            "tool_ledger",
            "'effect ' || l.effect_id || ' of ' || l.workflow_id",
            "'attempts ' || l.attempts",
            "'attempts ' || coalesce(calls, 0) || ', one of them the effect'",
        )
    }
FROM tool_ledger AS l LEFT JOIN called USING (effect_id)
WHERE l.attempts <> coalesce(calls, 0) OR effects <> 1
UNION ALL
{_fault("tool_attempts", "'attempt ' || attempt_id", "'effect ' || a.effect_id", "'an effect that exists'")}
FROM tool_attempts AS a LEFT JOIN tool_ledger AS l USING (effect_id)
WHERE a.effect_id IS NOT NULL AND l.effect_id IS NULL
UNION ALL
{
        _fault(
            "tool_attempts",
            "'effect ' || l.effect_id || ' of ' || l.workflow_id",
            "'first attempt at ' || first",
            "'after the plan at ' || i.created_at || coalesce(' and before the acknowledgment at ' || i.acknowledged_at, '')",
        )
    }
FROM tool_ledger AS l JOIN called USING (effect_id) JOIN action_intents AS i USING (idempotency_key)
WHERE first < i.created_at OR (i.status = 'ACKNOWLEDGED' AND first > i.acknowledged_at)""",
)

_rule(
    "each event has one payload",
    "A wait got the payload in its workflow's row; each event there was delivered once; nobody waits for one that came.",
    f"""
{_fault("steps", "s.workflow_id || ' ' || s.step_id", "'payload ' || s.value", "coalesce('payload ' || (w.events ->> s.waited_for), 'no payload: it never came')")}
FROM steps AS s JOIN workflows AS w ON w.id = s.workflow_id
WHERE s.kind = 'wait' AND s.value::jsonb IS DISTINCT FROM (w.events ->> s.waited_for)::jsonb
UNION ALL
{_fault("workflows", "coalesce(e.id, d.workflow_id)", "coalesce('event ' || e.name, 'no event ' || d.subject)", "coalesce(d.times || ' delivery', 'an entry event_delivered')")}
FROM (SELECT id, jsonb_object_keys(events) AS name FROM workflows) AS e
FULL JOIN (SELECT workflow_id, subject, count(*) AS times FROM history WHERE event = 'event_delivered'
           GROUP BY workflow_id, subject) AS d ON d.workflow_id = e.id AND d.subject = e.name
WHERE coalesce(d.times, 0) <> 1 OR e.name IS NULL
UNION ALL
{_fault("workflows", "id", "'waits for ' || waiting_for || ', which came'", "'status ready'")}
FROM workflows
WHERE status = 'waiting' AND events ? waiting_for""",
)
