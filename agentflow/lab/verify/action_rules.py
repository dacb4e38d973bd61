"""The checker's rules for planned actions, what the world did for them, and events."""

from __future__ import annotations

from .history_rules import AT_ONCE, STEADY, Rule

_KEY = "i.workflow_id || ':' || replace(replace(i.key, '%', '%25'), ':', '%3A')"

ACTION_RULES = [
    Rule(
        "a planned action has its entry and its key",
        "Each planned action was written once, by its worker and token, under the key <workflow id>:<key>.",
        f"""
SELECT 'action_intents', i.workflow_id || ' ' || i.key,
       'idempotency_key ' || idempotency_key, 'idempotency_key ' || {_KEY}
FROM action_intents AS i
WHERE idempotency_key <> {_KEY}
UNION ALL
SELECT 'action_intents', i.workflow_id || ' ' || i.key,
       'planned by ' || i.worker || ' with token ' || i.fence_token,
       'an entry action_intent_committed of that worker and token'
FROM action_intents AS i
WHERE NOT EXISTS (
    SELECT FROM history AS h
    WHERE h.workflow_id = i.workflow_id AND h.event = 'action_intent_committed' AND h.subject = i.key
      AND h.worker = i.worker AND h.fence_token = i.fence_token)
UNION ALL
SELECT 'history', h.workflow_id || ' n=' || h.n,
       'plans action ' || h.subject, 'a row in action_intents'
FROM history AS h
WHERE h.event = 'action_intent_committed'
  AND NOT EXISTS (SELECT FROM action_intents AS i WHERE i.workflow_id = h.workflow_id AND i.key = h.subject)""",
    ),
    Rule(
        "completed means acknowledged",
        "A completed workflow has no pending action, and an action is acknowledged exactly if its checkpoint stands.",
        """
SELECT 'action_intents', i.workflow_id || ' ' || i.key,
       'PENDING, and the workflow is completed', 'ACKNOWLEDGED or REFUSED'
FROM action_intents AS i JOIN workflows AS w ON w.id = i.workflow_id
WHERE i.status = 'PENDING' AND w.status = 'completed'
UNION ALL
SELECT 'action_intents', coalesce(i.workflow_id || ' ' || i.key, s.workflow_id || ' ' || s.step_id),
       coalesce('status ' || i.status, 'no planned action'),
       CASE WHEN s.step_id IS NULL THEN 'PENDING: no checkpoint stands' WHEN s.error IS NULL THEN 'status ACKNOWLEDGED'
            ELSE 'status REFUSED' END
FROM (SELECT * FROM steps WHERE kind = 'side_effect') AS s
FULL JOIN action_intents AS i ON i.workflow_id = s.workflow_id AND i.key = s.step_id
WHERE coalesce(i.status, '') <> CASE WHEN s.step_id IS NULL THEN 'PENDING' WHEN s.error IS NULL THEN 'ACKNOWLEDGED'
                                ELSE 'REFUSED' END""",
    ),
    Rule(
        "the recorded result is the tool's",
        "An acknowledged action's result, or its refusal, is what its checkpoint holds; the result is the world's.",
        """
SELECT 'steps', s.workflow_id || ' ' || s.step_id,
       coalesce('value ' || s.value, 'error ' || s.error),
       coalesce('value ' || i.tool_result, 'error ' || i.error, 'neither value nor error')
FROM steps AS s JOIN action_intents AS i ON i.workflow_id = s.workflow_id AND i.key = s.step_id
WHERE s.kind = 'side_effect'
  AND (s.value::jsonb, s.error::jsonb) IS DISTINCT FROM (i.tool_result::jsonb, i.error::jsonb)
UNION ALL
SELECT 'action_intents', i.workflow_id || ' ' || i.key,
       'tool_result ' || i.tool_result,
       coalesce('tool_result ' || l.result, 'an effect in the world under ' || i.idempotency_key)
FROM action_intents AS i
LEFT JOIN (SELECT DISTINCT ON (idempotency_key) * FROM effects ORDER BY idempotency_key, effect_id) AS l
  USING (idempotency_key)
WHERE i.status = 'ACKNOWLEDGED'
  AND (i.tool_result::jsonb <> l.result::jsonb OR l.effect_id IS NULL)  -- a tool of one's own tells of no result
  AND (i.workflow_id, i.key) NOT IN (SELECT workflow_id, key FROM unseen)""",
    ),
    Rule(
        "one effect for each planned action",
        "The world has at most one effect for each key, and none that nobody planned.",
        """
SELECT "table", 'effect ' || effect_id || ' of ' || workflow_id,
       'effect ' || nth || ' of one key', 'one effect'
FROM (SELECT *, row_number() OVER (PARTITION BY idempotency_key ORDER BY effect_id) AS nth FROM effects) AS l
WHERE nth > 1 AND idempotency_key IS NOT NULL
UNION ALL
SELECT "table", 'effect ' || effect_id || ' of ' || workflow_id,
       'key ' || coalesce(idempotency_key, 'none'), 'the key of a planned action'
FROM effects AS l
WHERE NOT EXISTS (SELECT FROM action_intents AS i WHERE i.idempotency_key = l.idempotency_key)""",
    ),
    Rule(
        "the world was asked for what was planned",
        "Each effect has the workflow, action and arguments of the plan under its key; each attempt those of its effect or plan.",
        """
SELECT l."table", 'effect ' || l.effect_id || ' of ' || l.workflow_id,
       concat(l.action, ' ' || l.arguments, ' for ', l.workflow_id),
       i.action || ' ' || i.arguments || ' for ' || i.workflow_id
FROM effects AS l JOIN action_intents AS i USING (idempotency_key)
WHERE (l.workflow_id, l.action, l.arguments::jsonb) <> (i.workflow_id, i.action, i.arguments::jsonb)
UNION ALL
SELECT 'tool_attempts', 'attempt ' || attempt_id || ' of ' || a.workflow_id,
       a.action || ' under ' || coalesce(a.idempotency_key, 'no key'),
       coalesce(l.action || coalesce(' under ' || l.idempotency_key, ' under no key'),
                'the effect ' || a.effect_id || ', which is not there', 'the action and key of a plan')
FROM tool_attempts AS a
LEFT JOIN tool_ledger AS l USING (effect_id)
LEFT JOIN action_intents AS i ON a.effect_id IS NULL AND i.idempotency_key = a.idempotency_key
WHERE (a.idempotency_key, a.workflow_id, a.action) IS DISTINCT FROM
      (coalesce(l.idempotency_key, i.idempotency_key), coalesce(l.workflow_id, i.workflow_id),
       coalesce(l.action, i.action))""",
    ),
    Rule(
        "attempts are numbered",
        "An effect's attempts are numbered 1, 2, 3, ... in the order of time, up to now; the first one had the effect.",
        f"""
WITH numbered AS (
    SELECT *, row_number() OVER w AS nth, lag(came_at) OVER w AS before
    FROM tool_attempts
    WHERE effect_id IS NOT NULL
    WINDOW w AS (PARTITION BY effect_id ORDER BY attempt, attempt_id)
)
SELECT 'tool_attempts', 'attempt ' || attempt_id || ' of ' || workflow_id,
       'number ' || coalesce(attempt::text, 'none') || ', ' || outcome,
       'number ' || nth || CASE nth WHEN 1 THEN ', effect' ELSE ', repeated' END
FROM numbered
WHERE attempt IS DISTINCT FROM nth OR outcome <> CASE nth WHEN 1 THEN 'effect' ELSE 'repeated' END
UNION ALL
SELECT 'tool_attempts', 'attempt ' || attempt_id || ' of ' || workflow_id,
       'came at ' || came_at, 'not before ' || before
FROM numbered
WHERE came_at < before AND {STEADY}
UNION ALL
SELECT 'tool_attempts', 'attempt ' || attempt_id || ' of ' || workflow_id,
       'came at ' || came_at, 'a time that has come'
FROM tool_attempts
WHERE came_at > statement_timestamp() AND {STEADY}""",
    ),
    Rule(
        "attempts are counted and in time",
        "An effect counts its attempts and came with the first; a key's first effect is between plan and acknowledgment.",
        f"""
WITH called AS (
    SELECT effect_id, count(*) AS calls, min(came_at) FILTER (WHERE attempt = 1) AS first
    FROM tool_attempts
    WHERE effect_id IS NOT NULL
    GROUP BY effect_id
)
SELECT 'tool_ledger', 'effect ' || l.effect_id || ' of ' || l.workflow_id,
       'attempts ' || l.attempts, 'attempts ' || coalesce(calls, 0)
FROM tool_ledger AS l LEFT JOIN called USING (effect_id)
WHERE l.attempts <> coalesce(calls, 0)
UNION ALL
SELECT 'tool_ledger', 'effect ' || l.effect_id || ' of ' || l.workflow_id,
       'committed at ' || committed_at,
       'after the plan at ' || i.created_at || ' and just before its first attempt was noted at ' || first
FROM tool_ledger AS l JOIN called USING (effect_id) JOIN action_intents AS i USING (idempotency_key)
WHERE committed_at NOT BETWEEN first - {AT_ONCE} AND first OR (committed_at < i.created_at AND {STEADY})
UNION ALL
SELECT 'tool_attempts', 'effect ' || l.effect_id || ' of ' || l.workflow_id,
       'first attempt at ' || first,
       'after the plan at ' || i.created_at || coalesce(' and before the acknowledgment at ' || i.acknowledged_at, '')
FROM (SELECT DISTINCT ON (idempotency_key) * FROM tool_ledger ORDER BY idempotency_key, effect_id) AS l
JOIN called USING (effect_id) JOIN action_intents AS i USING (idempotency_key)
WHERE {STEADY} AND (first < i.created_at OR (i.status = 'ACKNOWLEDGED' AND first > i.acknowledged_at))""",
    ),
    Rule(
        "each event has one payload",
        "A wait got the payload in its workflow's row; each event there was delivered once; nobody waits for one that came.",
        """
SELECT 'steps', s.workflow_id || ' ' || s.step_id,
       'payload ' || s.value, coalesce('payload ' || (w.events ->> s.waited_for), 'no payload: it never came')
FROM steps AS s JOIN workflows AS w ON w.id = s.workflow_id
WHERE s.kind = 'wait' AND s.value::jsonb IS DISTINCT FROM (w.events ->> s.waited_for)::jsonb
UNION ALL
SELECT 'workflows', coalesce(e.id, d.workflow_id),
       coalesce('event ' || e.name, 'no event ' || d.subject),
       coalesce(d.times || ' delivery', 'an entry event_delivered')
FROM (SELECT id, jsonb_object_keys(events) AS name FROM workflows) AS e
FULL JOIN (SELECT workflow_id, subject, count(*) AS times FROM history WHERE event = 'event_delivered'
           GROUP BY workflow_id, subject) AS d ON d.workflow_id = e.id AND d.subject = e.name
WHERE coalesce(d.times, 0) <> 1 OR e.name IS NULL
UNION ALL
SELECT 'workflows', id,
       'waits for ' || waiting_for || ', which came', 'status ready'
FROM workflows
WHERE status = 'waiting' AND events ? waiting_for""",
    ),
]
