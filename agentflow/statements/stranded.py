"""What a server's clock that was set back leaves ahead: found, and freed."""

from __future__ import annotations

from .statement import Statement

STRANDED = Statement(
    "stranded",
    "Which workflows are due, or held, until a time that was written by a clock that was ahead?",
    text="""\
SELECT id, lease_owner,
       CASE WHEN lease_owner IS NULL THEN next_run_at ELSE lease_expires_at END::text AS until
FROM agentflow.workflows AS w
WHERE status = 'ready'
  AND CASE WHEN lease_owner IS NULL THEN next_run_at ELSE lease_expires_at END > clock_timestamp()
  -- The time at which that was written has not come yet, by more than the microseconds between a batch's rows.
  AND greatest(updated_at, CASE WHEN lease_owner IS NULL THEN (
          -- An event that came meanwhile has changed updated_at, and not what it is due.
          SELECT at
          FROM agentflow.history AS h
          WHERE h.workflow_id = w.id
            AND event IN ('workflow_created', 'attempt_failed', 'workflow_requeued', 'workflow_freed',
                          'backoff_ended_for_test')
          ORDER BY n DESC
          LIMIT 1) END) > clock_timestamp() + interval '1 second'
ORDER BY next_run_at""",
)  # fmt: skip

FREE = Statement(
    "free",
    "A person against the next claim: what a clock set back has stranded is due now, or held for its lease from now.",
    text="""\
WITH w AS (
    -- Waits for the row's lock, then sees the row as it is: one that was claimed or renewed meanwhile does not match.
    UPDATE agentflow.workflows AS w
    SET next_run_at = LEAST(next_run_at, clock_timestamp()),
        lease_expires_at = LEAST(lease_expires_at, clock_timestamp() + (lease_expires_at - updated_at)),
        entries = entries + 1,
        updated_at = clock_timestamp()
    WHERE id = %(p_workflow)s
      AND status = 'ready'
      AND CASE WHEN lease_owner IS NULL THEN next_run_at ELSE lease_expires_at END > clock_timestamp()
      -- The time at which that was written has not come yet, by more than the microseconds between a batch's rows.
      AND greatest(updated_at, CASE WHEN lease_owner IS NULL THEN (
              -- An event that came meanwhile has changed updated_at, and not what it is due.
              SELECT at
              FROM agentflow.history AS h
              WHERE h.workflow_id = w.id
                AND event IN ('workflow_created', 'attempt_failed', 'workflow_requeued', 'workflow_freed',
                              'backoff_ended_for_test')
              ORDER BY n DESC
              LIMIT 1) END) > clock_timestamp() + interval '1 second'
    RETURNING id, entries, fence_token,
              -- The bell for idle workers, rung when this commits; IS NULL turns the function's void into a value.
              pg_notify('agentflow', '') IS NULL AS told
),
entry AS (
    INSERT INTO agentflow.history (workflow_id, n, event, transaction, fence_token)
    SELECT id, entries, 'workflow_freed', 'free', fence_token
    FROM w
)
SELECT 'committed' AS outcome, entries AS n, 'workflow_freed' AS event, id, fence_token, told
FROM w""",
)  # fmt: skip
