"""How a worker ends a workflow under its claim: completed, or failed. Each is guarded as in `progress`."""

from __future__ import annotations

from .statement import Statement

COMPLETE = Statement(
    "complete",
    "Complete against cancel and against a successor: the row is finished once, by whoever holds it.",
    entries=("workflow_completed",), refusals=("write_refused",), guarded=True, counted=True, progress=True,
    releases=("workflow_completed",),
    text="""\
WITH w AS (
    -- Waits for the row's lock; after the wait the guard sees the row as it is, and clock_timestamp() is the time as it
    -- is. Every other part selects FROM w, or it would run although the guard matched nothing.
    UPDATE agentflow.workflows
    SET status = 'completed',
        state = 'COMPLETED',
        result = %(p_value)s::json,
        error = NULL,
        lease_owner = NULL,
        lease_expires_at = NULL,
        completed_at = clock_timestamp(),
        finished_at = clock_timestamp(),
        entries = entries + 1,
        updated_at = clock_timestamp()
    WHERE id = %(p_workflow)s
      AND lease_owner = %(p_worker)s
      AND fence_token = %(p_token)s
      AND lease_expires_at > clock_timestamp()
      AND checkpoints = %(p_checkpoints)s
    RETURNING id, entries, status, lease_owner, fence_token, checkpoints
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
    SELECT id, entries, 'workflow_completed', 'complete',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint, %(p_detail)s::json
    FROM w
    UNION ALL
    SELECT id, entries, 'write_refused', 'complete',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint,
           json_build_object('guards', guards, 'row_status', status, 'row_token', fence_token, 'row_owner', lease_owner,
                             'row_checkpoints', checkpoints, 'checkpoints', %(p_checkpoints)s::int)
    FROM refused
)
SELECT 'committed' AS outcome, entries AS n, 'workflow_completed' AS event,
       id, entries, status, lease_owner, fence_token, checkpoints, '{}'::text[] AS guards
FROM w
UNION ALL
SELECT 'refused', entries, 'write_refused',
       id, entries, status, lease_owner, fence_token, checkpoints, guards
FROM refused""",
)  # fmt: skip

FAIL = Statement(
    "fail",
    "Fail against cancel and against a successor: the row is finished once, by whoever holds it.",
    entries=("workflow_failed",), refusals=("write_refused",), guarded=True, progress=True,
    releases=("workflow_failed",),
    text="""\
WITH w AS (
    -- Waits for the row's lock; after the wait the guard sees the row as it is, and clock_timestamp() is the time as it
    -- is. Every other part selects FROM w, or it would run although the guard matched nothing.
    UPDATE agentflow.workflows
    SET status = 'failed',
        state = 'FAILED',
        error = %(p_error)s::json,
        lease_owner = NULL,
        lease_expires_at = NULL,
        finished_at = clock_timestamp(),
        entries = entries + 1,
        updated_at = clock_timestamp()
    WHERE id = %(p_workflow)s
      AND lease_owner = %(p_worker)s
      AND fence_token = %(p_token)s
      AND lease_expires_at > clock_timestamp()
    RETURNING id, entries, status, lease_owner, fence_token, checkpoints
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
                  NULL], NULL) AS guards
),
entry AS (
    INSERT INTO agentflow.history (workflow_id, n, event, transaction, subject, worker, fence_token, detail)
    SELECT id, entries, 'workflow_failed', 'fail',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint, %(p_detail)s::json
    FROM w
    UNION ALL
    SELECT id, entries, 'write_refused', 'fail',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint,
           json_build_object('guards', guards, 'row_status', status, 'row_token', fence_token,
                             'row_owner', lease_owner, 'row_checkpoints', checkpoints)
    FROM refused
)
SELECT 'committed' AS outcome, entries AS n, 'workflow_failed' AS event,
       id, entries, status, lease_owner, fence_token, checkpoints, '{}'::text[] AS guards
FROM w
UNION ALL
SELECT 'refused', entries, 'write_refused',
       id, entries, status, lease_owner, fence_token, checkpoints, guards
FROM refused""",
)  # fmt: skip
