"""What callers do to a workflow from outside, with no claim: created, given an event, cancelled, requeued."""

from __future__ import annotations

from .statement import Statement

CREATE = Statement(
    "create",
    "Two callers with one id: the primary key lets one insert, the other sees that row; in id order, batches never deadlock.",
    entries=("workflow_created",), decides=("ON CONFLICT (id) DO UPDATE SET id = EXCLUDED.id",),
    text="""\
WITH clock AS MATERIALIZED (
    -- MATERIALIZED: the clock is read once, so the whole batch is due in its own order, a microsecond apart.
    SELECT clock_timestamp() AS now
),
w AS (
    INSERT INTO agentflow.workflows AS row (id, name, input, next_run_at, created_at, updated_at)
    SELECT b.id, b.name, b.input::json, due, due, due
    FROM unnest(%(p_ids)s::text[], %(p_names)s::text[], %(p_inputs)s::text[])
         WITH ORDINALITY AS b (id, name, input, n),
         clock,
         LATERAL (SELECT now + (n - 1) * interval '1 microsecond' AS due) AS moment
    ORDER BY b.id
    -- Changes nothing, but locks the row that is there (or waits for whoever is inserting it) and returns it;
    -- DO NOTHING would return no row.
    ON CONFLICT (id) DO UPDATE SET id = EXCLUDED.id
    -- xmax = 0 in a row that this statement inserted; in a row that it only locked, xmax is this transaction.
    RETURNING id, name, input, xmax = 0 AS inserted
),
entry AS (
    INSERT INTO agentflow.history (workflow_id, n, event, transaction, subject)
    SELECT id, 1, 'workflow_created', 'create', name
    FROM w
    WHERE inserted
)
SELECT 'committed' AS outcome, 1 AS n, 'workflow_created' AS event,
       w.id, w.name AS subject, inserted,
       w.name = b.name AND w.input::jsonb = b.input::jsonb AS same,
       -- The bell for idle workers, rung when this commits; IS NULL turns the function's void into a value.
       CASE WHEN inserted THEN pg_notify('agentflow', '') IS NULL END AS told
FROM w
JOIN unnest(%(p_ids)s::text[], %(p_names)s::text[], %(p_inputs)s::text[]) AS b (id, name, input)
  ON b.id = w.id""",
)  # fmt: skip

DELIVER = Statement(
    "deliver",
    "Deliver against wait, and two deliveries: the first payload of a name stays, a parked workflow becomes ready.",
    by_person=True, entries=("event_delivered",), refusals=("event_repeated", "event_refused"),
    decides=("AND NOT events ? %(p_subject)s",),
    text="""\
WITH w AS (
    -- Waits for the row's lock, then sees the row as it is. Every other part selects FROM w, or it would always run.
    UPDATE agentflow.workflows
    -- A payload is kept as its JSON text: in jsonb it would lose -0.0, 1e22 and the order of its keys.
    SET events = events || jsonb_build_object(%(p_subject)s::text, %(p_payload)s::text),
        next_run_at = CASE WHEN waiting_for = %(p_subject)s THEN clock_timestamp() ELSE next_run_at END,
        status = CASE WHEN waiting_for = %(p_subject)s THEN 'ready' ELSE status END,
        waiting_for = CASE WHEN waiting_for = %(p_subject)s THEN NULL ELSE waiting_for END,
        entries = entries + 1,
        updated_at = clock_timestamp()
    WHERE id = %(p_workflow)s
      AND status IN ('ready', 'waiting')
      AND NOT events ? %(p_subject)s
    RETURNING id, entries, status, lease_owner, fence_token, checkpoints,
              true AS same,
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
                  CASE WHEN status NOT IN ('ready', 'waiting') THEN 'status' END,
                  CASE WHEN events ? %(p_subject)s THEN 'event' END,
                  NULL], NULL) AS guards,
              (events ->> %(p_subject)s)::jsonb = %(p_payload)s::text::jsonb AS same
),
entry AS (
    INSERT INTO agentflow.history (workflow_id, n, event, transaction, subject, worker, fence_token, detail)
    SELECT id, entries, 'event_delivered', 'deliver',
           %(p_subject)s::text, %(p_worker)s::text, fence_token, %(p_detail)s::json
    FROM w
    UNION ALL
    SELECT id, entries, CASE WHEN same THEN 'event_repeated' ELSE 'event_refused' END, 'deliver',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint,
           json_build_object('guards', guards, 'row_status', status, 'row_token', fence_token,
                             'row_owner', lease_owner, 'row_checkpoints', checkpoints)
    FROM refused
)
SELECT 'committed' AS outcome, entries AS n, 'event_delivered' AS event,
       id, entries, status, lease_owner, fence_token, checkpoints, '{}'::text[] AS guards, same
FROM w
UNION ALL
SELECT 'refused', entries, CASE WHEN same THEN 'event_repeated' ELSE 'event_refused' END,
       id, entries, status, lease_owner, fence_token, checkpoints, guards, same
FROM refused""",
)  # fmt: skip

CANCEL = Statement(
    "cancel",
    "Cancel against complete and fail: the row lock lets one of them win, and the others are told.",
    by_person=True, entries=("workflow_cancelled",), refusals=("write_refused",),
    text="""\
WITH w AS (
    -- Waits for the row's lock, then sees the row as it is. Every other part selects FROM w, or it would always run.
    UPDATE agentflow.workflows
    SET status = 'cancelled',
        state = 'CANCELLED',
        waiting_for = NULL,
        lease_owner = NULL,
        lease_expires_at = NULL,
        finished_at = clock_timestamp(),
        entries = entries + 1,
        updated_at = clock_timestamp()
    WHERE id = %(p_workflow)s
      AND status IN ('ready', 'waiting')
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
                  CASE WHEN status NOT IN ('ready', 'waiting') THEN 'status' END,
                  NULL], NULL) AS guards
),
entry AS (
    INSERT INTO agentflow.history (workflow_id, n, event, transaction, subject, worker, fence_token, detail)
    SELECT id, entries, 'workflow_cancelled', 'cancel',
           %(p_subject)s::text, %(p_worker)s::text, fence_token, %(p_detail)s::json
    FROM w
    UNION ALL
    SELECT id, entries, 'write_refused', 'cancel',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint,
           json_build_object('guards', guards, 'row_status', status, 'row_token', fence_token,
                             'row_owner', lease_owner, 'row_checkpoints', checkpoints)
    FROM refused
)
SELECT 'committed' AS outcome, entries AS n, 'workflow_cancelled' AS event,
       id, entries, status, lease_owner, fence_token, checkpoints, '{}'::text[] AS guards
FROM w
UNION ALL
SELECT 'refused', entries, 'write_refused',
       id, entries, status, lease_owner, fence_token, checkpoints, guards
FROM refused""",
)  # fmt: skip

REQUEUE = Statement(
    "requeue",
    "Two people and one dead letter: one makes it ready again, without its last recorded failure.",
    by_person=True, entries=("workflow_requeued",), refusals=("write_refused",),
    text="""\
WITH w AS (
    -- Waits for the row's lock, then sees the row as it is. Every other part selects FROM w, or it would always run.
    UPDATE agentflow.workflows
    SET status = 'ready',
        -- count(*) is 1 if the last checkpoint is a recorded failure, which then goes; else 0.
        checkpoints = checkpoints - (
            SELECT count(*)
            FROM agentflow.steps AS s
            WHERE s.workflow_id = workflows.id
              AND s.position = workflows.checkpoints
              AND s.error IS NOT NULL),
        state = coalesce((
            SELECT s.state
            FROM agentflow.steps AS s
            WHERE s.workflow_id = workflows.id
              AND s.error IS NULL
            ORDER BY position DESC
            LIMIT 1), 'PENDING'),
        attempts = 0,
        crashes = 0,
        error = NULL,
        finished_at = NULL,
        next_run_at = clock_timestamp(),
        entries = entries + 1,
        updated_at = clock_timestamp()
    WHERE id = %(p_workflow)s
      AND status = 'failed'
      -- The failure that the caller saw: a claim since then has raised the token.
      AND fence_token = %(p_seen)s
    RETURNING id, entries, status, lease_owner, fence_token, checkpoints,
              -- The bell for idle workers, rung when this commits; IS NULL turns the function's void into a value.
              pg_notify('agentflow', '') IS NULL AS told
),
gone AS (
    -- w returns the lower count, so the failure is the checkpoint after it, if there is one.
    DELETE FROM agentflow.steps AS s
    USING w
    WHERE s.workflow_id = w.id
      AND s.position = w.checkpoints + 1
    RETURNING s.workflow_id, s.step_id
),
replanned AS (
    UPDATE agentflow.action_intents AS i
    SET status = 'PENDING',
        error = NULL,
        acknowledged_at = NULL
    FROM gone
    WHERE i.workflow_id = gone.workflow_id
      AND i.key = gone.step_id
),
refused AS (
    -- If w matched nothing, this second UPDATE numbers the refusal and returns the row and the guards that it fails.
    UPDATE agentflow.workflows
    SET entries = entries + 1
    WHERE id = %(p_workflow)s
      AND NOT EXISTS (SELECT FROM w)
    RETURNING id, entries, status, lease_owner, fence_token, checkpoints,
              array_remove(ARRAY[
                  CASE WHEN status <> 'failed' THEN 'status' END,
                  CASE WHEN status = 'failed' AND fence_token <> %(p_seen)s THEN 'token' END,
                  NULL], NULL) AS guards
),
entry AS (
    INSERT INTO agentflow.history (workflow_id, n, event, transaction, subject, worker, fence_token, detail)
    SELECT id, entries, 'workflow_requeued', 'requeue',
           %(p_subject)s::text, %(p_worker)s::text, fence_token, %(p_detail)s::json
    FROM w
    UNION ALL
    SELECT id, entries, 'write_refused', 'requeue',
           %(p_subject)s::text, %(p_worker)s::text, %(p_token)s::bigint,
           json_build_object('guards', guards, 'row_status', status, 'row_token', fence_token,
                             'row_owner', lease_owner, 'row_checkpoints', checkpoints)
    FROM refused
)
SELECT 'committed' AS outcome, entries AS n, 'workflow_requeued' AS event,
       id, entries, status, lease_owner, fence_token, checkpoints, '{}'::text[] AS guards
FROM w
UNION ALL
SELECT 'refused', entries, 'write_refused',
       id, entries, status, lease_owner, fence_token, checkpoints, guards
FROM refused""",
)  # fmt: skip
