"""What the simulated outside world does in its own schema. The engine never reads it."""

from __future__ import annotations

from .statement import Statement

TOOL = Statement(
    "tool",
    "Two calls with one key: the world's unique key lets one have the effect, the other gets its result.",
    decides=("ON CONFLICT (idempotency_key) WHERE remembered DO UPDATE SET attempts = l.attempts + 1",),
    text="""\
WITH effect AS (
    INSERT INTO agentflow_world.tool_ledger AS l (idempotency_key, workflow_id, action, arguments, result)
    VALUES (%(p_key)s, %(p_workflow)s, %(p_action)s, %(p_arguments)s::json, %(p_result)s::json)
    -- The unique index holds only the keys that are remembered; NULL, a call without a key, never conflicts.
    ON CONFLICT (idempotency_key) WHERE remembered DO UPDATE SET attempts = l.attempts + 1
    RETURNING effect_id, result, attempts
),
attempt AS (
    INSERT INTO agentflow_world.tool_attempts (effect_id, attempt, idempotency_key, workflow_id, action, outcome)
    SELECT effect_id, attempts, %(p_key)s, %(p_workflow)s, %(p_action)s,
           CASE attempts WHEN 1 THEN 'effect' ELSE 'repeated' END
    FROM effect
    RETURNING attempt_id
)
SELECT 'committed' AS outcome, result, attempts, effect_id, attempt_id
FROM effect, attempt""",
)  # fmt: skip

LOOK_UP = Statement(
    "look_up",
    "What the world remembers under a key, asked without acting.",
    text="""\
SELECT result, attempts
FROM agentflow_world.tool_ledger
WHERE idempotency_key = %(p_key)s
  AND remembered""",
)  # fmt: skip

REFUSE = Statement(
    "refuse",
    "The tool refuses: the world remembers the attempt, and no effect.",
    text="""\
INSERT INTO agentflow_world.tool_attempts (idempotency_key, workflow_id, action, outcome)
VALUES (%(p_key)s, %(p_workflow)s, %(p_action)s, 'refused')
RETURNING 'committed' AS outcome, attempt_id""",
)  # fmt: skip

FORGET = Statement(
    "forget",
    "The tool forgets keys: what was done stays done, and the key protects it no longer.",
    text="""\
UPDATE agentflow_world.tool_ledger
SET remembered = false
WHERE remembered
  AND (%(p_key)s::text IS NULL OR idempotency_key = %(p_key)s)
RETURNING 'committed' AS outcome, effect_id, idempotency_key""",
)  # fmt: skip
