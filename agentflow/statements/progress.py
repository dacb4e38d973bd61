"""What a worker records under its claim. Each is guarded: one UPDATE of the row, from which all else selects."""

from __future__ import annotations

from .statement import Statement

CHECKPOINT = Statement(
    "checkpoint",
    "A stale worker against its successor: result and progress are written under the current token, or not at all.",
    entries=("checkpoint_committed",), refusals=("write_refused",), guarded=True, counted=True,
    progress=True, advances=True,
    text="""\
WITH w AS (
    -- Waits for the row's lock; after the wait the guard sees the row as it is, and clock_timestamp() is the time as it
    -- is. Every other part selects FROM w, or it would run although the guard matched nothing.
    UPDATE agentflow.workflows
    SET checkpoints = checkpoints + 1,
        state = %(p_state)s,
        attempts = 0,
        crashes = 0,
        error = NULL,
        entries = entries + 1,
        updated_at = clock_timestamp()
    WHERE id = %(p_workflow)s
      AND lease_owner = %(p_worker)s
      AND fence_token = %(p_token)s
      AND lease_expires_at > clock_timestamp()
      AND checkpoints = %(p_checkpoints)s
    RETURNING id, entries, status, lease_owner, fence_token, checkpoints
),
step AS (
    INSERT INTO agentflow.steps
        (workflow_id, step_id, position, kind, state, value, error, waited_for, fence_token, worker)
    SELECT id, %(p_subject)s, checkpoints, 'step', %(p_state)s,
           %(p_value)s::json, %(p_error)s::json, NULL, fence_token, lease_owner
    FROM w
),
refused AS (
    -- If w matched nothing, this second UPDATE numbers the refusal and returns the row and the guards that it fails.
    UPDATE agentflow.workflows
    SET entries = entries + 1
    WHERE id = %(p_workflow)s
      AND NOT EXISTS (SELECT FROM w)
    RETURNING id, entries, status, lease_owner, fence_token, checkpoints,
              array_remove(ARRAY[
                  CASE WHEN (fence_token = %(p_token)s) IS NOT TRUE THEN 'token' END,
                  CASE WHEN (lease_owner = %(p_worker)s) IS NOT TRUE THEN 'owner' END,
                  CASE WHEN (lease_expires_at > clock_timestamp()) IS NOT TRUE THEN 'lease' END,
                  CASE WHEN (checkpoints = %(p_checkpoints)s) IS NOT TRUE THEN 'checkpoints' END,
                  NULL], NULL) AS guards
),
entry AS (
    INSERT INTO agentflow.history (workflow_id, n, event, transaction, subject, worker, fence_token, detail)
    SELECT id, entries, 'checkpoint_committed', 'checkpoint',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint, %(p_detail)s::json
    FROM w
    UNION ALL
    SELECT id, entries, 'write_refused', 'checkpoint',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint,
           json_build_object('guards', guards, 'row_status', status, 'row_token', fence_token, 'row_owner', lease_owner,
                             'row_checkpoints', checkpoints, 'checkpoints', %(p_checkpoints)s::int)
    FROM refused
)
SELECT 'committed' AS outcome, entries AS n, 'checkpoint_committed' AS event,
       id, entries, status, lease_owner, fence_token, checkpoints, '{}'::text[] AS guards
FROM w
UNION ALL
SELECT 'refused', entries, 'write_refused',
       id, entries, status, lease_owner, fence_token, checkpoints, guards
FROM refused""",
)  # fmt: skip

INTENT = Statement(
    "intent",
    "A crash before the call against a second plan: one key is one planned action, whoever plans it again.",
    entries=("action_intent_committed",), refusals=("write_refused",), guarded=True, counted=True, progress=True,
    text="""\
WITH w AS (
    -- Waits for the row's lock; after the wait the guard sees the row as it is, and clock_timestamp() is the time as it
    -- is. Every other part selects FROM w, or it would run although the guard matched nothing.
    UPDATE agentflow.workflows
    SET state = %(p_state)s,
        entries = entries + 1,
        updated_at = clock_timestamp()
    WHERE id = %(p_workflow)s
      AND lease_owner = %(p_worker)s
      AND fence_token = %(p_token)s
      AND lease_expires_at > clock_timestamp()
      AND checkpoints = %(p_checkpoints)s
      AND NOT EXISTS (
          SELECT FROM agentflow.action_intents
          WHERE idempotency_key = %(p_key)s
            -- ::text first: a bind takes the type of its first cast, and as jsonb the json that is stored below would
            -- lose -0.0, 1e22 and the order of its keys.
            AND (workflow_id <> %(p_workflow)s
                 OR action <> %(p_action)s
                 OR arguments::jsonb <> %(p_arguments)s::text::jsonb))
    RETURNING id, entries, status, lease_owner, fence_token, checkpoints
),
planned AS (
    INSERT INTO agentflow.action_intents AS i
        (workflow_id, key, idempotency_key, action, arguments, fence_token, worker)
    SELECT id, %(p_subject)s, %(p_key)s, %(p_action)s, %(p_arguments)s::text::json, fence_token, lease_owner
    FROM w
    -- The same plan again changes nothing; the guard has refused every other plan under this key.
    ON CONFLICT (idempotency_key) DO UPDATE SET key = i.key
),
refused AS (
    -- If w matched nothing, this second UPDATE numbers the refusal and returns the row and the guards that it fails.
    UPDATE agentflow.workflows
    SET entries = entries + 1
    WHERE id = %(p_workflow)s
      AND NOT EXISTS (SELECT FROM w)
    RETURNING id, entries, status, lease_owner, fence_token, checkpoints,
              -- A plan is not in the row, and seen as it was before the wait: named if the row gives no reason.
              coalesce(nullif(array_remove(ARRAY[
                  CASE WHEN (fence_token = %(p_token)s) IS NOT TRUE THEN 'token' END,
                  CASE WHEN (lease_owner = %(p_worker)s) IS NOT TRUE THEN 'owner' END,
                  CASE WHEN (lease_expires_at > clock_timestamp()) IS NOT TRUE THEN 'lease' END,
                  CASE WHEN (checkpoints = %(p_checkpoints)s) IS NOT TRUE THEN 'checkpoints' END,
                  NULL], NULL), '{}'),
                  CASE WHEN EXISTS (
                      SELECT FROM agentflow.action_intents
                      WHERE idempotency_key = %(p_key)s
                        AND (workflow_id <> %(p_workflow)s
                             OR action <> %(p_action)s
                             OR arguments::jsonb <> %(p_arguments)s::text::jsonb))
                  THEN ARRAY['intent'] END, '{}') AS guards
),
entry AS (
    INSERT INTO agentflow.history (workflow_id, n, event, transaction, subject, worker, fence_token, detail)
    SELECT id, entries, 'action_intent_committed', 'intent',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint, %(p_detail)s::json
    FROM w
    UNION ALL
    SELECT id, entries, 'write_refused', 'intent',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint,
           json_build_object('guards', guards, 'row_status', status, 'row_token', fence_token, 'row_owner', lease_owner,
                             'row_checkpoints', checkpoints, 'checkpoints', %(p_checkpoints)s::int)
    FROM refused
)
SELECT 'committed' AS outcome, entries AS n, 'action_intent_committed' AS event,
       id, entries, status, lease_owner, fence_token, checkpoints, '{}'::text[] AS guards
FROM w
UNION ALL
SELECT 'refused', entries, 'write_refused',
       id, entries, status, lease_owner, fence_token, checkpoints, guards
FROM refused""",
)  # fmt: skip

ACKNOWLEDGE = Statement(
    "acknowledge",
    "A stale worker's late answer: the gap is closed once, under the current token, with the checkpoint beside it.",
    entries=("action_acknowledged",), refusals=("write_refused",), guarded=True, counted=True,
    progress=True, advances=True,
    text="""\
WITH w AS (
    -- Waits for the row's lock; after the wait the guard sees the row as it is, and clock_timestamp() is the time as it
    -- is. Every other part selects FROM w, or it would run although the guard matched nothing.
    UPDATE agentflow.workflows
    SET checkpoints = checkpoints + 1,
        state = %(p_state)s,
        attempts = 0,
        crashes = 0,
        error = NULL,
        entries = entries + 1,
        updated_at = clock_timestamp()
    WHERE id = %(p_workflow)s
      AND lease_owner = %(p_worker)s
      AND fence_token = %(p_token)s
      AND lease_expires_at > clock_timestamp()
      AND checkpoints = %(p_checkpoints)s
      AND EXISTS (
          SELECT FROM agentflow.action_intents
          WHERE workflow_id = %(p_workflow)s
            AND key = %(p_subject)s
            AND status = 'PENDING')
    RETURNING id, entries, status, lease_owner, fence_token, checkpoints
),
acknowledged AS (
    UPDATE agentflow.action_intents AS i
    SET status = CASE WHEN %(p_error)s::json IS NULL THEN 'ACKNOWLEDGED' ELSE 'REFUSED' END,
        tool_result = %(p_value)s::json,
        error = %(p_error)s::json,
        acknowledged_at = clock_timestamp()
    FROM w
    WHERE i.workflow_id = w.id
      AND i.key = %(p_subject)s
),
step AS (
    INSERT INTO agentflow.steps
        (workflow_id, step_id, position, kind, state, value, error, waited_for, fence_token, worker)
    SELECT id, %(p_subject)s, checkpoints, 'side_effect', %(p_state)s,
           %(p_value)s::json, %(p_error)s::json, NULL, fence_token, lease_owner
    FROM w
),
refused AS (
    -- If w matched nothing, this second UPDATE numbers the refusal and returns the row and the guards that it fails.
    UPDATE agentflow.workflows
    SET entries = entries + 1
    WHERE id = %(p_workflow)s
      AND NOT EXISTS (SELECT FROM w)
    RETURNING id, entries, status, lease_owner, fence_token, checkpoints,
              -- A plan is not in the row, and seen as it was before the wait: named if the row gives no reason.
              coalesce(nullif(array_remove(ARRAY[
                  CASE WHEN (fence_token = %(p_token)s) IS NOT TRUE THEN 'token' END,
                  CASE WHEN (lease_owner = %(p_worker)s) IS NOT TRUE THEN 'owner' END,
                  CASE WHEN (lease_expires_at > clock_timestamp()) IS NOT TRUE THEN 'lease' END,
                  CASE WHEN (checkpoints = %(p_checkpoints)s) IS NOT TRUE THEN 'checkpoints' END,
                  NULL], NULL), '{}'),
                  CASE WHEN NOT EXISTS (
                      SELECT FROM agentflow.action_intents
                      WHERE workflow_id = %(p_workflow)s
                        AND key = %(p_subject)s
                        AND status = 'PENDING')
                  THEN ARRAY['intent'] END, '{}') AS guards
),
entry AS (
    INSERT INTO agentflow.history (workflow_id, n, event, transaction, subject, worker, fence_token, detail)
    SELECT id, entries, 'action_acknowledged', 'acknowledge',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint, %(p_detail)s::json
    FROM w
    UNION ALL
    SELECT id, entries, 'write_refused', 'acknowledge',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint,
           json_build_object('guards', guards, 'row_status', status, 'row_token', fence_token, 'row_owner', lease_owner,
                             'row_checkpoints', checkpoints, 'checkpoints', %(p_checkpoints)s::int)
    FROM refused
)
SELECT 'committed' AS outcome, entries AS n, 'action_acknowledged' AS event,
       id, entries, status, lease_owner, fence_token, checkpoints, '{}'::text[] AS guards
FROM w
UNION ALL
SELECT 'refused', entries, 'write_refused',
       id, entries, status, lease_owner, fence_token, checkpoints, guards
FROM refused""",
)  # fmt: skip

WAIT = Statement(
    "wait",
    "Wait against deliver: both lock this row, so the event is either seen here or wakes the parked workflow.",
    entries=("event_received", "workflow_waiting"), refusals=("write_refused",), guarded=True, counted=True,
    progress=True, advances=True, releases=("workflow_waiting",),
    text="""\
WITH w AS (
    -- Waits for the row's lock; after the wait the guard sees the row as it is, and clock_timestamp() is the time as it
    -- is. Every other part selects FROM w, or it would run although the guard matched nothing.
    UPDATE agentflow.workflows
    -- The events are read from the row that is locked here, so one that was delivered during the wait for it is seen.
    SET status = CASE WHEN events ? %(p_subject)s THEN 'ready' ELSE 'waiting' END,
        waiting_for = CASE WHEN events ? %(p_subject)s THEN NULL ELSE %(p_subject)s END,
        lease_owner = CASE WHEN events ? %(p_subject)s THEN lease_owner END,
        lease_expires_at = CASE WHEN events ? %(p_subject)s THEN lease_expires_at END,
        checkpoints = checkpoints + (events ? %(p_subject)s)::int,
        state = CASE WHEN events ? %(p_subject)s THEN %(p_state)s ELSE state END,
        recovery_started_at = CASE WHEN events ? %(p_subject)s THEN recovery_started_at END,
        attempts = 0,
        crashes = 0,
        error = NULL,
        entries = entries + 1,
        updated_at = clock_timestamp()
    WHERE id = %(p_workflow)s
      AND lease_owner = %(p_worker)s
      AND fence_token = %(p_token)s
      AND lease_expires_at > clock_timestamp()
      AND checkpoints = %(p_checkpoints)s
    RETURNING id, entries, status, lease_owner, fence_token, checkpoints,
              status = 'ready' AS arrived,
              (events ->> %(p_subject)s)::json AS payload
),
step AS (
    INSERT INTO agentflow.steps
        (workflow_id, step_id, position, kind, state, value, error, waited_for, fence_token, worker)
    SELECT id, %(p_step)s, checkpoints, 'wait', %(p_state)s,
           payload, NULL::json, %(p_subject)s, fence_token, lease_owner
    FROM w
    WHERE arrived
),
refused AS (
    -- If w matched nothing, this second UPDATE numbers the refusal and returns the row and the guards that it fails.
    UPDATE agentflow.workflows
    SET entries = entries + 1
    WHERE id = %(p_workflow)s
      AND NOT EXISTS (SELECT FROM w)
    RETURNING id, entries, status, lease_owner, fence_token, checkpoints,
              array_remove(ARRAY[
                  CASE WHEN (fence_token = %(p_token)s) IS NOT TRUE THEN 'token' END,
                  CASE WHEN (lease_owner = %(p_worker)s) IS NOT TRUE THEN 'owner' END,
                  CASE WHEN (lease_expires_at > clock_timestamp()) IS NOT TRUE THEN 'lease' END,
                  CASE WHEN (checkpoints = %(p_checkpoints)s) IS NOT TRUE THEN 'checkpoints' END,
                  NULL], NULL) AS guards
),
entry AS (
    INSERT INTO agentflow.history (workflow_id, n, event, transaction, subject, worker, fence_token, detail)
    SELECT id, entries, CASE WHEN arrived THEN 'event_received' ELSE 'workflow_waiting' END, 'wait',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint, %(p_detail)s::json
    FROM w
    UNION ALL
    SELECT id, entries, 'write_refused', 'wait',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint,
           json_build_object('guards', guards, 'row_status', status, 'row_token', fence_token, 'row_owner', lease_owner,
                             'row_checkpoints', checkpoints, 'checkpoints', %(p_checkpoints)s::int)
    FROM refused
)
SELECT 'committed' AS outcome, entries AS n,
       CASE WHEN arrived THEN 'event_received' ELSE 'workflow_waiting' END AS event,
       id, entries, status, lease_owner, fence_token, checkpoints, '{}'::text[] AS guards, arrived, payload
FROM w
UNION ALL
SELECT 'refused', entries, 'write_refused',
       id, entries, status, lease_owner, fence_token, checkpoints, guards, NULL::boolean, NULL::json
FROM refused""",
)  # fmt: skip
