"""Every transaction of the engine: one SQL statement each, with a name and a sentence about the race that it settles.

The shape of a guarded write, the same for all of them: one guarded UPDATE of the workflow's row; every later part selects
FROM that UPDATE's RETURNING (a part that does not runs even when the guard matched nothing); if the guard matched
nothing, a second UPDATE numbers the refusal in the history and brings back the row as it is now (after any lock wait, so
the reason is the current one); the last SELECT says what happened. Texts are written for the default schema and rendered
for others. No bind is named like a column (prefix `p_`). What does not live here: running them (`database`).
"""

from __future__ import annotations

from dataclasses import dataclass

from .schema import DEFAULT_SCHEMA, WORLD_SUFFIX


@dataclass(frozen=True)
class Statement:
    """One named SQL statement. `race` is one sentence: what it settles, and how."""

    name: str
    race: str
    text: str

    def render(self, schema: str) -> str:
        """The text for another pair of schemas."""
        text = self.text.replace(f"{DEFAULT_SCHEMA}{WORLD_SUFFIX}.", f"{quoted(schema + WORLD_SUFFIX)}.")
        return text.replace(f"{DEFAULT_SCHEMA}.", f"{quoted(schema)}.").replace(
            f"'{DEFAULT_SCHEMA}'", f"'{channel(schema)}'"
        )


def quoted(identifier: str) -> str:
    """The identifier in double quotes."""
    return '"' + identifier.replace('"', '""') + '"'


def channel(schema: str) -> str:
    """The notification channel of a schema: its own name, without quotes that would end the literal."""
    return schema.replace("'", "''")


GUARD = """\
    WHERE id = %(p_workflow)s
      AND lease_owner = %(p_worker)s
      AND fence_token = %(p_token)s
      AND lease_expires_at > clock_timestamp()"""

COUNTED = GUARD + "\n      AND checkpoints = %(p_checkpoints)s"

CURRENT = "id, entries, status, lease_owner, fence_token, checkpoints"


def _indent(text: str) -> str:
    return "\n".join("      " + line.strip() for line in text.strip().splitlines())


def _write(
    transaction: str,
    event: str,
    sets: str,
    guard: str = COUNTED,
    parts: str = "",
    columns: str = "",
    refused: str = "'write_refused'",
) -> str:
    """The text of a write of one workflow's row, in the shape that the module's docstring describes."""
    more = "".join(f", {column}" for column in columns.split())
    none = "".join(f", NULL::{'boolean' if column == 'arrived' else 'json'}" for column in columns.split())
    changes = _indent(sets + "\nentries = entries + 1,\nupdated_at = clock_timestamp()")[4:].lstrip()
    return f"""\
WITH w AS (
    UPDATE agentflow.workflows
    SET {changes}
{guard}
    RETURNING {CURRENT}{RETURNS.get(transaction, "")}
),
{parts}refused AS (
    UPDATE agentflow.workflows
    SET entries = entries + 1
    WHERE id = %(p_workflow)s
      AND NOT EXISTS (SELECT FROM w)
    RETURNING {CURRENT}, lease_expires_at <= clock_timestamp() AS expired{REFUSES.get(transaction, "")}
),
entry AS (
    INSERT INTO agentflow.history (workflow_id, n, event, transaction, subject, worker, fence_token, detail)
    SELECT id, entries, {event}, '{transaction}', %(p_subject)s::text, %(p_worker)s::text,
           fence_token, %(p_detail)s::json
    FROM w
    UNION ALL
    SELECT id, entries, {refused}, '{transaction}', %(p_subject)s::text, %(p_worker)s::text,
           %(p_token)s::bigint, json_build_object('row_token', fence_token, 'row_status', status)
    FROM refused
)
SELECT 'committed' AS outcome, entries AS n, {event} AS event, {CURRENT}, false AS expired{more}
FROM w
UNION ALL
SELECT 'refused', entries, {refused}, {CURRENT}, expired{none if transaction != "deliver" else more}
FROM refused"""


RETURNS = {
    "wait": ",\n              status = 'ready' AS arrived, (events ->> %(p_subject)s)::json AS payload",
    "deliver": ", true AS same, pg_notify('agentflow', id) IS NULL AS told",
    "requeue": ", pg_notify('agentflow', id) IS NULL AS told",
    "release": ", pg_notify('agentflow', id) IS NULL AS told",
}
REFUSES = {"deliver": ", (events ->> %(p_subject)s)::jsonb = %(p_payload)s::text::jsonb AS same"}

_NO_LEASE = "lease_owner = NULL,\nlease_expires_at = NULL,"

_STEP = """\
step AS (
    INSERT INTO agentflow.steps (workflow_id, step_id, position, kind, state, value, error, waited_for, fence_token,
           worker)
    SELECT id, %(p_subject)s, checkpoints, '{kind}', %(p_state)s, {value}, {error}, {waited_for}, fence_token,
           lease_owner
    FROM w{when}
),
"""
_RECORDED = {"value": "%(p_value)s::json", "error": "%(p_error)s::json", "waited_for": "NULL", "when": ""}

_PROGRESS = "checkpoints = checkpoints + 1,\nstate = %(p_state)s,\nattempts = 0,\ncrashes = 0,\nerror = NULL,"

_CREATE = """\
WITH clock AS MATERIALIZED (
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
    ON CONFLICT (id) DO UPDATE SET id = EXCLUDED.id
    RETURNING id, name, input, xmax = 0 AS inserted
),
entry AS (
    INSERT INTO agentflow.history (workflow_id, n, event, transaction, subject)
    SELECT id, 1, 'workflow_created', 'create', name
    FROM w
    WHERE inserted
)
SELECT 'committed' AS outcome, 1 AS n, 'workflow_created' AS event, w.id, w.name AS subject, inserted,
       w.name = b.name AND w.input::jsonb = b.input::jsonb AS same,
       CASE WHEN inserted THEN pg_notify('agentflow', w.id) IS NULL END AS told
FROM w
JOIN unnest(%(p_ids)s::text[], %(p_names)s::text[], %(p_inputs)s::text[]) AS b (id, name, input)
  ON b.id = w.id"""

_CLAIM = """\
WITH next AS MATERIALIZED (
    SELECT id,
           lease_owner AS held_by,
           (lease_owner IS NOT NULL AND updated_at >= pg_postmaster_start_time())::int AS crash
    FROM agentflow.workflows
    WHERE status = 'ready'
      AND next_run_at <= (SELECT clock_timestamp())
      AND (lease_expires_at IS NULL OR lease_expires_at <= clock_timestamp())
      AND name = ANY(%(p_names)s)
    ORDER BY next_run_at
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
),
due AS (
    SELECT next.*, clock_timestamp() AS now FROM next
),
w AS (
    UPDATE agentflow.workflows AS row
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
    RETURNING row.id, name, input, entries, status, fence_token, checkpoints, attempts, crashes, held_by
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
SELECT 'committed' AS outcome, entries AS n,
       CASE WHEN status = 'ready' THEN 'workflow_claimed' ELSE 'workflow_failed' END AS event, w.*
FROM w"""

_LOAD = """\
WITH w AS (
    SELECT id, checkpoints
    FROM agentflow.workflows
    WHERE id = %(p_workflow)s
      AND lease_owner = %(p_worker)s
      AND fence_token = %(p_token)s
)
SELECT checkpoints, position, step_id AS subject, kind, value, error, waited_for, NULL AS action, NULL::json AS arguments,
       NULL AS idempotency_key
FROM w
LEFT JOIN agentflow.steps ON workflow_id = id
UNION ALL
SELECT checkpoints, NULL, key, 'intent', NULL, NULL, NULL, action, arguments, idempotency_key
FROM w
JOIN agentflow.action_intents ON workflow_id = id
ORDER BY position"""

# A bind takes the type of its first cast: with jsonb first, the json beside it would lose -0.0, 1e22 and the order of keys.
_PLANNED = """\
planned AS (
    INSERT INTO agentflow.action_intents AS i
           (workflow_id, key, idempotency_key, action, arguments, fence_token, worker)
    SELECT id, %(p_subject)s, %(p_key)s, %(p_action)s, %(p_arguments)s::text::json, fence_token, lease_owner
    FROM w
    ON CONFLICT (idempotency_key) DO UPDATE SET key = i.key
),
"""

_UNPLANNED = """
      AND NOT EXISTS (
          SELECT FROM agentflow.action_intents
          WHERE idempotency_key = %(p_key)s
            AND (workflow_id <> %(p_workflow)s OR action <> %(p_action)s
                 OR arguments::jsonb <> %(p_arguments)s::text::jsonb))"""

_STILL_PENDING = """
      AND EXISTS (
          SELECT FROM agentflow.action_intents
          WHERE workflow_id = %(p_workflow)s AND key = %(p_subject)s AND status = 'PENDING')"""

_ACKNOWLEDGED = """\
acknowledged AS (
    UPDATE agentflow.action_intents AS i
    SET status = CASE WHEN %(p_error)s::json IS NULL THEN 'ACKNOWLEDGED' ELSE 'REFUSED' END,
        tool_result = %(p_value)s::json,
        error = %(p_error)s::json,
        acknowledged_at = clock_timestamp()
    FROM w
    WHERE i.workflow_id = w.id AND i.key = %(p_subject)s
),
"""

_ARRIVED = "events ? %(p_subject)s"

_REQUEUED = """\
gone AS (
    DELETE FROM agentflow.steps AS s
    USING w
    WHERE s.workflow_id = w.id AND s.position = w.checkpoints + 1
    RETURNING s.workflow_id, s.step_id
),
replanned AS (
    UPDATE agentflow.action_intents AS i
    SET status = 'PENDING', error = NULL, acknowledged_at = NULL
    FROM gone
    WHERE i.workflow_id = gone.workflow_id AND i.key = gone.step_id
),
"""

_LAST_FAILED = """SELECT count(*) FROM agentflow.steps AS s
    WHERE s.workflow_id = workflows.id AND s.position = workflows.checkpoints AND s.error IS NOT NULL"""

_UNFINISHED = """\
    WHERE id = %(p_workflow)s
      AND status IN ('ready', 'waiting')"""

_ALL = [
    Statement(
        "create",
        "Two callers with one id: the primary key lets one insert, the other sees that row; in id order, batches never deadlock.",
        _CREATE,
    ),
    Statement(
        "claim",
        "Two workers and one row: the first locks it, the second skips it; the token rises, so the old one is void.",
        _CLAIM,
    ),
    Statement("load", "Checkpoints and their count from one snapshot, and only for the holder of the token.", _LOAD),
    Statement(
        "checkpoint",
        "A stale worker against its successor: result and progress are written under the current token, or not at all.",
        _write("checkpoint", "'checkpoint_committed'", _PROGRESS, parts=_STEP.format(kind="step", **_RECORDED)),
    ),
    Statement(
        "intent",
        "A crash before the call against a second plan: one key is one planned action, whoever plans it again.",
        _write("intent", "'action_intent_committed'", "state = %(p_state)s,", COUNTED + _UNPLANNED, _PLANNED),
    ),
    Statement(
        "tool",
        "Two calls with one key: the world's unique key lets one have the effect, the other gets its result.",
        """\
WITH effect AS (
    INSERT INTO agentflow_world.tool_ledger AS l (idempotency_key, workflow_id, action, arguments, result)
    VALUES (%(p_key)s, %(p_workflow)s, %(p_action)s, %(p_arguments)s::json, %(p_result)s::json)
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
    ),
    Statement(
        "acknowledge",
        "A stale worker's late answer: the gap is closed once, under the current token, with the checkpoint beside it.",
        _write(
            "acknowledge",
            "'action_acknowledged'",
            _PROGRESS,
            COUNTED + _STILL_PENDING,
            _ACKNOWLEDGED + _STEP.format(kind="side_effect", **_RECORDED),
        ),
    ),
    Statement(
        "complete",
        "Complete against cancel and against a successor: the row is finished once, by whoever holds it.",
        _write(
            "complete",
            "'workflow_completed'",
            "status = 'completed',\nstate = 'COMPLETED',\nresult = %(p_value)s::json,\nerror = NULL,\n"
            + _NO_LEASE
            + "\ncompleted_at = clock_timestamp(),\nfinished_at = clock_timestamp(),",
        ),
    ),
    Statement(
        "wait",
        "Wait against deliver: both lock this row, so the event is either seen here or wakes the parked workflow.",
        _write(
            "wait",
            "CASE WHEN arrived THEN 'event_received' ELSE 'workflow_waiting' END",
            f"""status = CASE WHEN {_ARRIVED} THEN 'ready' ELSE 'waiting' END,
            waiting_for = CASE WHEN {_ARRIVED} THEN NULL ELSE %(p_subject)s END,
            lease_owner = CASE WHEN {_ARRIVED} THEN lease_owner END,
            lease_expires_at = CASE WHEN {_ARRIVED} THEN lease_expires_at END,
            checkpoints = checkpoints + ({_ARRIVED})::int,
            state = CASE WHEN {_ARRIVED} THEN %(p_state)s ELSE state END,
            recovery_started_at = CASE WHEN {_ARRIVED} THEN recovery_started_at END,
            attempts = 0,
            crashes = 0,
            error = NULL,""",
            parts=_STEP.format(
                kind="wait", value="payload", error="NULL::json", waited_for="%(p_subject)s", when="\n    WHERE arrived"
            ).replace("SELECT id, %(p_subject)s,", "SELECT id, %(p_step)s,"),
            columns="arrived payload",
        ),
    ),
    Statement(
        "deliver",
        "Deliver against wait, and two deliveries: the first payload of a name stays, a parked workflow becomes ready.",
        _write(
            "deliver",
            "'event_delivered'",
            """events = events || jsonb_build_object(%(p_subject)s::text, %(p_payload)s::text),
            next_run_at = CASE WHEN waiting_for = %(p_subject)s THEN clock_timestamp() ELSE next_run_at END,
            status = CASE WHEN waiting_for = %(p_subject)s THEN 'ready' ELSE status END,
            waiting_for = CASE WHEN waiting_for = %(p_subject)s THEN NULL ELSE waiting_for END,""",
            _UNFINISHED + "\n      AND NOT events ? %(p_subject)s",
            columns="same",
            refused="CASE WHEN same THEN 'event_repeated' ELSE 'event_refused' END",
        ),
    ),
    Statement(
        "renew",
        "A slow worker against a lease that ends: an unexpired lease is prolonged, a lost one is never revived.",
        _write("renew", "'lease_renewed'", "lease_expires_at = clock_timestamp() + %(p_lease)s,", GUARD),
    ),
    Statement(
        "release",
        "A worker that stops against its successor: the row is free at once, and the token stays spent.",
        _write("release", "'lease_released'", _NO_LEASE, GUARD),
    ),
    Statement(
        "postpone",
        "A failed attempt against a crash during back-off: the count stands in the row, so it goes on from there.",
        _write(
            "postpone",
            "'attempt_failed'",
            "attempts = attempts + 1,\nerror = %(p_error)s::json,\n"
            "next_run_at = clock_timestamp() + %(p_delay)s,\n" + _NO_LEASE,
        ),
    ),
    Statement(
        "fail",
        "Fail against cancel and against a successor: the row is finished once, by whoever holds it.",
        _write(
            "fail",
            "'workflow_failed'",
            "status = 'failed',\nstate = 'FAILED',\nerror = %(p_error)s::json,\n"
            + _NO_LEASE
            + "\nfinished_at = clock_timestamp(),",
            GUARD,
        ),
    ),
    Statement(
        "cancel",
        "Cancel against complete and fail: the row lock lets one of them win, and the others are told.",
        _write(
            "cancel",
            "'workflow_cancelled'",
            "status = 'cancelled',\nstate = 'CANCELLED',\nwaiting_for = NULL,\n"
            + _NO_LEASE
            + "\nfinished_at = clock_timestamp(),",
            _UNFINISHED,
        ),
    ),
    Statement(
        "requeue",
        "Two people and one dead letter: one makes it ready again, without its last recorded failure.",
        _write(
            "requeue",
            "'workflow_requeued'",
            f"""status = 'ready',
            checkpoints = checkpoints - ({_LAST_FAILED}),
            state = coalesce((SELECT s.state FROM agentflow.steps AS s
                WHERE s.workflow_id = workflows.id AND s.error IS NULL
                ORDER BY position DESC LIMIT 1), 'PENDING'),
            attempts = 0,
            crashes = 0,
            error = NULL,
            finished_at = NULL,
            next_run_at = clock_timestamp(),""",
            "    WHERE id = %(p_workflow)s\n      AND status = 'failed'",
            _REQUEUED,
        ),
    ),
    Statement(
        "expire",
        "The laboratory's clock: one workflow's lease, or its back-off, ends now instead of later.",
        _write(
            "expire",
            "CASE WHEN lease_owner IS NULL THEN 'backoff_ended_for_test' ELSE 'lease_expired_for_test' END",
            """lease_expires_at = CASE WHEN lease_owner IS NOT NULL THEN clock_timestamp() - interval '1 second' END,
            next_run_at = LEAST(next_run_at, clock_timestamp()),""",
            "    WHERE id = %(p_workflow)s\n      AND status = 'ready'\n"
            "      AND (lease_owner IS NOT NULL OR next_run_at > clock_timestamp())",
        ),
    ),
]

TRANSACTIONS: dict[str, Statement] = {statement.name: statement for statement in _ALL}
"""The engine's transactions by name, in the order of a workflow's life."""
