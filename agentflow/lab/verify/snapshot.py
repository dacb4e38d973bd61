"""All rows of a laboratory, its history included, as of one moment: read by one query."""

from __future__ import annotations

from dataclasses import dataclass, replace

from psycopg.rows import DictRow

from ...engine import Engine
from ...statements import Statement
from ..history.belief import with_unseen

_READ = Statement(
    "rows",
    "None: it only reads. All rows are from one snapshot; JSON columns are their text, clocks are live, expired, due.",
    """\
SELECT (SELECT coalesce(json_agg(r ORDER BY r.id), '[]') FROM (
            SELECT id, name, input::text, status, state, result::text, error::text, lease_owner, fence_token,
                   CASE WHEN lease_expires_at > clock_timestamp() THEN 'live'
                        WHEN lease_expires_at IS NOT NULL THEN 'expired' END AS lease,
                   next_run_at <= clock_timestamp() AS due,
                   rank() OVER (ORDER BY next_run_at) AS turn,
                   checkpoints, entries, waiting_for, events::text, attempts, crashes
            FROM agentflow.workflows) AS r) AS workflows,
       (SELECT coalesce(json_agg(r ORDER BY r.workflow_id, r.position, r.step_id), '[]') FROM (
            SELECT workflow_id, step_id, position, kind, state, value::text, error::text, waited_for, fence_token, worker
            FROM agentflow.steps) AS r) AS steps,
       (SELECT coalesce(json_agg(r ORDER BY r.workflow_id, r.key), '[]') FROM (
            SELECT workflow_id, key, idempotency_key, action, arguments::text, status, tool_result::text, error::text,
                   fence_token, worker
            FROM agentflow.action_intents) AS r) AS intents,
       (SELECT coalesce(json_agg(r ORDER BY r.effect_id), '[]') FROM (
            SELECT effect_id, idempotency_key, remembered, workflow_id, action, arguments::text, result::text, attempts
            FROM agentflow_world.tool_ledger) AS r) AS effects,
       (SELECT coalesce(json_agg(r ORDER BY r.attempt_id), '[]') FROM (
            SELECT attempt_id, effect_id, attempt, idempotency_key, workflow_id, action, outcome
            FROM agentflow_world.tool_attempts) AS r) AS attempts,
       (SELECT coalesce(json_agg(r ORDER BY r.workflow_id, r.n), '[]') FROM (
            SELECT workflow_id, n, event, transaction, subject, worker, fence_token, detail
            FROM agentflow.history) AS r) AS history""",
)


@dataclass(frozen=True)
class Rows:
    """All rows of one laboratory at one moment, by table; JSON columns hold their text. `history` may be a part of it.

    `tools` has the explorer's alone: the `state` of each `tool` of one's own that can be put back, as JSON text.
    """

    workflows: tuple[DictRow, ...] = ()
    steps: tuple[DictRow, ...] = ()
    intents: tuple[DictRow, ...] = ()
    effects: tuple[DictRow, ...] = ()
    attempts: tuple[DictRow, ...] = ()
    history: tuple[DictRow, ...] = ()
    tools: tuple[DictRow, ...] = ()

    def workflow(self, workflow_id: str) -> DictRow | None:
        """The workflow's row, or None."""
        return next((row for row in self.workflows if row["id"] == workflow_id), None)

    def of(self, table: str, workflow_id: str) -> list[DictRow]:
        """The rows of one table that belong to a workflow."""
        return [row for row in getattr(self, table) if row["workflow_id"] == workflow_id]


def rows_sql(schema: str) -> str:
    """Returns the text of the query behind read_rows()."""
    return _READ.render(schema)


def rows_from(answer: DictRow) -> Rows:
    """Returns the answer of that query as a record."""
    return Rows(**{table: tuple(rows) for table, rows in answer.items()})


def read_rows(engine: Engine) -> Rows:
    """Reads all rows of the engine's laboratory from one snapshot, and what its own tool tells. Raises DatabaseAway."""
    rows, told = rows_from(engine.database.run(_READ)[0]), engine.told_effects()
    intents = with_unseen(rows.intents, map(told.marked, rows.history))
    return replace(rows, intents=tuple(map(dict, intents)), effects=(*rows.effects, *told.effects))
