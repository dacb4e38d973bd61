"""Whose a workflow is: claimed, loaded, renewed, released, postponed; and the clock of a test."""

from __future__ import annotations

from .statement import Statement

CLAIM = Statement(
    "claim",
    "Two workers and one row: the first locks it, the second skips it; the token rises, so the old one is void.",
    entries=("workflow_claimed", "workflow_failed"),
    decides=("FOR NO KEY UPDATE SKIP LOCKED", "fence_token = fence_token + 1"),
    text="""\
WITH next AS MATERIALIZED (
    -- MATERIALIZED: one row is chosen and locked, once; inlined into the UPDATE, it might be chosen again.
    -- (SELECT clock_timestamp()) is read once, so the index can be searched with it; without SELECT, for every row.
    -- A lease from before PostgreSQL's last start may have ended by that restart, so no crash is counted.
    SELECT id,
           lease_owner AS held_by,
           (lease_owner IS NOT NULL AND updated_at >= pg_postmaster_start_time())::int AS crash
    FROM agentflow.workflows
    WHERE status = 'ready'
      AND next_run_at <= (SELECT clock_timestamp())
      AND (lease_expires_at IS NULL OR lease_expires_at <= clock_timestamp())
      AND name = ANY(%(p_names)s)
      -- All rows but these, whose claim was refused and which are passed by for a while; or only these.
      AND (id = ANY(%(p_ids)s::text[])) = %(p_only)s
    ORDER BY next_run_at
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
),
due AS (
    -- The clock is read after the row is locked, and once, so that all times below agree.
    SELECT next.*, clock_timestamp() AS now
    FROM next
),
w AS (
    UPDATE agentflow.workflows AS row
    -- Within the crash budget the worker gets the lease; beyond it, the same UPDATE fails the workflow.
    SET fence_token = fence_token + 1,
        crashes = crashes + crash,
        lease_owner = CASE WHEN crashes + crash <= %(p_crash_budget)s THEN %(p_worker)s END,
        lease_expires_at = CASE WHEN crashes + crash <= %(p_crash_budget)s THEN now + %(p_lease)s END,
        status = CASE WHEN crashes + crash <= %(p_crash_budget)s THEN 'ready' ELSE 'failed' END,
        state = CASE WHEN crashes + crash <= %(p_crash_budget)s THEN state ELSE 'FAILED' END,
        error = CASE WHEN crashes + crash <= %(p_crash_budget)s THEN error
                     ELSE json_build_object('type', 'CrashBudgetSpent', 'message',
                          format('%%s workers in a row lost their lease at this point; last: %%s',
                                 crashes + crash, held_by), 'traceback', '') END,
        finished_at = CASE WHEN crashes + crash <= %(p_crash_budget)s THEN NULL ELSE now END,
        recovery_started_at = CASE WHEN held_by IS NOT NULL THEN coalesce(recovery_started_at, now)
                                   ELSE recovery_started_at END,
        entries = entries + 1,
        updated_at = now
    FROM due
    WHERE row.id = due.id
    RETURNING row.id, name, input, entries, status, fence_token, checkpoints, attempts, crashes, held_by,
              error -> 'troubles' AS troubles
),
entry AS (
    INSERT INTO agentflow.history (workflow_id, n, event, transaction, worker, fence_token, detail)
    SELECT id, entries, CASE WHEN status = 'ready' THEN 'workflow_claimed' ELSE 'workflow_failed' END, 'claim',
           %(p_worker)s, fence_token,
           json_build_object('recovered', held_by IS NOT NULL, 'held_by', held_by, 'crashes', crashes,
                             'lease_seconds', extract(epoch FROM %(p_lease)s::interval)::float8,
                             'asked_at', statement_timestamp())
    FROM w
)
SELECT CASE WHEN w.id IS NULL THEN 'refused' ELSE 'committed' END AS outcome, entries AS n,
       CASE status WHEN 'ready' THEN 'workflow_claimed' WHEN 'failed' THEN 'workflow_failed' END AS event,
       next.id AS chosen, w.*
-- Without w, if a trigger of somebody else's has let nothing be written.
FROM next
LEFT JOIN w ON w.id = next.id""",
)  # fmt: skip

LOAD = Statement(
    "load",
    "Checkpoints and their count from one snapshot, and only for the holder of the token.",
    text="""\
WITH w AS (
    SELECT id, checkpoints, status, lease_owner, fence_token,
           -- A read needs no lease that still lasts: the first write does.
           array_remove(ARRAY[
                  CASE WHEN (fence_token = %(p_token)s) IS NOT TRUE THEN 'token' END,
                  CASE WHEN (lease_owner = %(p_worker)s) IS NOT TRUE THEN 'owner' END,
                  NULL], NULL) AS guards
    FROM agentflow.workflows
    WHERE id = %(p_workflow)s
)
-- One statement is one snapshot: the count and what is counted cannot disagree, unless somebody changed the rows.
SELECT CASE guards WHEN '{}' THEN 'committed' ELSE 'refused' END AS outcome, w.*,
       position, step_id AS subject, kind, value, error, waited_for,
       NULL AS action, NULL::json AS arguments, NULL AS idempotency_key
FROM w
LEFT JOIN agentflow.steps ON workflow_id = id AND guards = '{}'
UNION ALL
SELECT 'committed', w.*,
       NULL, key, 'intent', NULL, NULL, NULL,
       action, arguments, idempotency_key
FROM w
JOIN agentflow.action_intents ON workflow_id = id AND guards = '{}'
ORDER BY position""",
)  # fmt: skip

RENEW = Statement(
    "renew",
    "A slow worker against a lease that ends: an unexpired lease is prolonged, a lost one is never revived.",
    entries=("lease_renewed",), refusals=("write_refused",), guarded=True,
    text="""\
WITH w AS (
    -- Waits for the row's lock; after the wait the guard sees the row as it is, and clock_timestamp() is the time as it
    -- is. Every other part selects FROM w, or it would run although the guard matched nothing.
    UPDATE agentflow.workflows
    SET lease_expires_at = clock_timestamp() + %(p_lease)s,
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
      -- A lease that its own holder has given up, by ending or parking the workflow, leaves nothing to refuse.
      AND NOT (fence_token = %(p_token)s AND lease_owner IS NULL AND status <> 'cancelled')
    RETURNING id, entries, status, lease_owner, fence_token, checkpoints,
              array_remove(ARRAY[
                  CASE WHEN (fence_token = %(p_token)s) IS NOT TRUE THEN 'token' END,
                  CASE WHEN (lease_owner = %(p_worker)s) IS NOT TRUE THEN 'owner' END,
                  CASE WHEN (lease_expires_at > clock_timestamp()) IS NOT TRUE THEN 'lease' END,
                  NULL], NULL) AS guards
),
entry AS (
    INSERT INTO agentflow.history (workflow_id, n, event, transaction, subject, worker, fence_token, detail)
    SELECT id, entries, 'lease_renewed', 'renew',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint, %(p_detail)s::json
    FROM w
    UNION ALL
    SELECT id, entries, 'write_refused', 'renew',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint,
           json_build_object('guards', guards, 'row_status', status, 'row_token', fence_token,
                             'row_owner', lease_owner, 'row_checkpoints', checkpoints)
    FROM refused
)
SELECT 'committed' AS outcome, entries AS n, 'lease_renewed' AS event,
       id, entries, status, lease_owner, fence_token, checkpoints, '{}'::text[] AS guards
FROM w
UNION ALL
SELECT 'refused', entries, 'write_refused',
       id, entries, status, lease_owner, fence_token, checkpoints, guards
FROM refused""",
)  # fmt: skip

RELEASE = Statement(
    "release",
    "A worker that stops against its successor: the row is free at once, and the token stays spent.",
    entries=("lease_released",), refusals=("write_refused",), guarded=True, releases=("lease_released",),
    text="""\
WITH w AS (
    -- Waits for the row's lock; after the wait the guard sees the row as it is, and clock_timestamp() is the time as it
    -- is. Every other part selects FROM w, or it would run although the guard matched nothing.
    UPDATE agentflow.workflows
    SET lease_owner = NULL,
        lease_expires_at = NULL,
        -- After trouble that was not the workflow's own, the row says which, and is not due at once.
        error = coalesce(%(p_error)s::json, error),
        next_run_at = CASE WHEN %(p_error)s::json IS NULL THEN next_run_at ELSE clock_timestamp() + %(p_delay)s END,
        entries = entries + 1,
        updated_at = clock_timestamp()
    WHERE id = %(p_workflow)s
      AND lease_owner = %(p_worker)s
      AND fence_token = %(p_token)s
      AND lease_expires_at > clock_timestamp()
    RETURNING id, entries, status, lease_owner, fence_token, checkpoints,
              -- The bell for idle workers, rung when this commits; IS NULL turns the function's void into a value.
              pg_notify('agentflow', '') IS NULL AS told
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
    SELECT id, entries, 'lease_released', 'release',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint,
           CASE WHEN %(p_error)s::json IS NULL THEN %(p_detail)s::json
                ELSE json_build_object('trouble', left(concat_ws(': ', %(p_error)s::json ->> 'type',
                                                                 %(p_error)s::json ->> 'message'), 1000)) END
    FROM w
    UNION ALL
    SELECT id, entries, 'write_refused', 'release',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint,
           json_build_object('guards', guards, 'row_status', status, 'row_token', fence_token,
                             'row_owner', lease_owner, 'row_checkpoints', checkpoints)
    FROM refused
)
SELECT 'committed' AS outcome, entries AS n, 'lease_released' AS event,
       id, entries, status, lease_owner, fence_token, checkpoints, '{}'::text[] AS guards
FROM w
UNION ALL
SELECT 'refused', entries, 'write_refused',
       id, entries, status, lease_owner, fence_token, checkpoints, guards
FROM refused""",
)  # fmt: skip

POSTPONE = Statement(
    "postpone",
    "A failed try against a crash during back-off: the count stands in the row, so it goes on from there.",
    entries=("attempt_failed",), refusals=("write_refused",), guarded=True, counted=True, progress=True,
    releases=("attempt_failed",),
    text="""\
WITH w AS (
    -- Waits for the row's lock; after the wait the guard sees the row as it is, and clock_timestamp() is the time as it
    -- is. Every other part selects FROM w, or it would run although the guard matched nothing.
    UPDATE agentflow.workflows
    SET attempts = attempts + 1,
        error = %(p_error)s::json,
        next_run_at = clock_timestamp() + %(p_delay)s,
        lease_owner = NULL,
        lease_expires_at = NULL,
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
    SELECT id, entries, 'attempt_failed', 'postpone',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint, %(p_detail)s::json
    FROM w
    UNION ALL
    SELECT id, entries, 'write_refused', 'postpone',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint,
           json_build_object('guards', guards, 'row_status', status, 'row_token', fence_token, 'row_owner', lease_owner,
                             'row_checkpoints', checkpoints, 'checkpoints', %(p_checkpoints)s::int)
    FROM refused
)
SELECT 'committed' AS outcome, entries AS n, 'attempt_failed' AS event,
       id, entries, status, lease_owner, fence_token, checkpoints, '{}'::text[] AS guards
FROM w
UNION ALL
SELECT 'refused', entries, 'write_refused',
       id, entries, status, lease_owner, fence_token, checkpoints, guards
FROM refused""",
)  # fmt: skip

EXPIRE = Statement(
    "expire",
    "The laboratory's clock: one workflow's lease, or its back-off, ends now instead of later.",
    entries=("lease_expired_for_test", "backoff_ended_for_test"), refusals=("write_refused",),
    decides=("lease_expires_at = CASE WHEN lease_owner IS NOT NULL THEN clock_timestamp() - interval '1 second' END",),
    text="""\
WITH w AS (
    -- Waits for the row's lock, then sees the row as it is. Every other part selects FROM w, or it would always run.
    UPDATE agentflow.workflows
    SET lease_expires_at = CASE WHEN lease_owner IS NOT NULL THEN clock_timestamp() - interval '1 second' END,
        next_run_at = LEAST(next_run_at, clock_timestamp()),
        entries = entries + 1,
        updated_at = clock_timestamp()
    WHERE id = %(p_workflow)s
      AND status = 'ready'
      AND (lease_owner IS NOT NULL OR next_run_at > clock_timestamp())
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
                  CASE WHEN status <> 'ready' THEN 'status' END,
                  CASE WHEN lease_owner IS NULL AND next_run_at <= clock_timestamp() THEN 'lease' END,
                  NULL], NULL) AS guards
),
entry AS (
    INSERT INTO agentflow.history (workflow_id, n, event, transaction, subject, worker, fence_token, detail)
    SELECT id, entries,
           CASE WHEN lease_owner IS NULL THEN 'backoff_ended_for_test' ELSE 'lease_expired_for_test' END, 'expire',
           %(p_subject)s::text, %(p_worker)s::text, fence_token, %(p_detail)s::json
    FROM w
    UNION ALL
    SELECT id, entries, 'write_refused', 'expire',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint,
           json_build_object('guards', guards, 'row_status', status, 'row_token', fence_token,
                             'row_owner', lease_owner, 'row_checkpoints', checkpoints)
    FROM refused
)
SELECT 'committed' AS outcome, entries AS n,
       CASE WHEN lease_owner IS NULL THEN 'backoff_ended_for_test' ELSE 'lease_expired_for_test' END AS event,
       id, entries, status, lease_owner, fence_token, checkpoints, '{}'::text[] AS guards
FROM w
UNION ALL
SELECT 'refused', entries, 'write_refused',
       id, entries, status, lease_owner, fence_token, checkpoints, guards
FROM refused""",
)  # fmt: skip
