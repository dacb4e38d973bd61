"""Two workers on two connections, and one who watches them: two transactions at once, or one after the other.

What lives here: the connections, holding a transaction open, seeing that another waits, and
putting the rows back. What does not: which pairs, and what is right (`pairs`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from ...database import Database, Row
from ...driver_errors import translate
from ...engine import Engine
from ...errors import AgentFlowError, LostLease
from ...statements import WORLD_SUFFIX
from ...tools import SimulatedTool
from .situations import SITUATIONS, Call, Claims

End = Literal["COMMIT", "ROLLBACK"]
_LOOK_EVERY = 0.0002  # seconds that the second statement gets before it is asked whether it waits
_TABLES = {
    "workflows": "workflows", "steps": "steps", "intents": "action_intents", "history": "history",
    "effects": "tool_ledger", "attempts": "tool_attempts",
}  # fmt: skip
_INSERT = "INSERT INTO {place} OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::{place}, {rows});"

# All rows, without clock values and generated numbers: a lease is live or not, a back-off over or not.
_ROWS = """\
SELECT json_build_object(
    'workflows', (SELECT json_agg(r) FROM (
        SELECT id, status, state, result, error ->> 'type' AS error, lease_owner, fence_token, checkpoints, entries,
               lease_expires_at > clock_timestamp() AS leased, next_run_at <= clock_timestamp() AS due, waiting_for, events,
               attempts, crashes, recovery_started_at IS NOT NULL AS recovered
        FROM agentflow.workflows ORDER BY id) AS r),
    'steps', (SELECT json_agg(r) FROM (
        SELECT step_id, position, kind, state, value, error ->> 'type' AS error, waited_for, fence_token, worker
        FROM agentflow.steps ORDER BY position, step_id) AS r),
    'intents', (SELECT json_agg(r) FROM (
        SELECT key, idempotency_key, action, arguments, status, tool_result, error ->> 'type' AS error, fence_token, worker
        FROM agentflow.action_intents ORDER BY key) AS r),
    'history', (SELECT json_agg(r) FROM (
        SELECT n, event, transaction, subject, worker, fence_token,
               detail::jsonb - '{asked_at,lease_seconds}'::text[] AS detail
        FROM agentflow.history ORDER BY n) AS r),
    'effects', (SELECT json_agg(r) FROM (
        SELECT idempotency_key, remembered, action, arguments, result, attempts
        FROM agentflow_world.tool_ledger ORDER BY effect_id) AS r),
    'attempts', (SELECT json_agg(r) FROM (
        SELECT attempt, idempotency_key, action, outcome
        FROM agentflow_world.tool_attempts ORDER BY attempt_id) AS r))::text AS rows"""


# Of a claim, what is the same in all of them.
_UNTOLD = re.compile(r"(workflow_id|name|input)='[^']*', |, lease_seconds=[\d.]+")


@dataclass(frozen=True)
class Outcome:
    """What was answered (`first` is empty if only one acted), and all rows afterwards as JSON text."""

    first: str
    second: str
    rows: str


class _Session(Database):
    """A database whose statements all run on one connection, inside the transaction that is open there."""

    def __init__(self, where: Database) -> None:
        url = where.url.render_as_string(hide_password=False)
        super().__init__(url, where.schema, patience=0.0, application_name="agentflow-pairs")
        self._texts["rows"] = _everywhere(_ROWS, self)
        self.connection = self._connect()
        self.cursor: psycopg.Cursor[Row] = self.connection.cursor(row_factory=dict_row)
        self.cursor.execute("SET synchronous_commit = off")
        self.cursor.execute("BEGIN")

    def _run(self, name: str, text: str, params: Mapping[str, Any] | None) -> list[Row]:
        try:
            return self.cursor.execute(text, params, prepare=True).fetchall()
        except psycopg.Error as error:
            raise translate(error, self.connection, name, where=self.where, schema=self.schema) from error

    def end(self, how: End) -> None:
        """The open transaction has ended, and the next one is open."""
        self.cursor.execute(f"{how} AND CHAIN")

    def close(self) -> None:
        """The connection is closed; what was open in it is rolled back."""
        self.connection.close()
        super().close()


def _everywhere(text: str, database: Database) -> str:
    world = text.replace("agentflow_world.", f'"{database.schema}_world".')
    return world.replace("agentflow.", f'"{database.schema}".')


class _Side:
    """One of the two who act: an engine on a connection of its own."""

    def __init__(self, kind: type[Engine], where: Database) -> None:
        self.session = _Session(where)
        self.engine = kind(self.session)
        self.engine.world.database.close()
        self.engine.world = self.engine.tool = SimulatedTool(self.session)
        self.pid = self.session.connection.info.backend_pid

    def run(self, call: Call) -> str:
        """What the caller was told: the result, or the error by name."""
        try:
            return _UNTOLD.sub("", repr(call.run(self.engine)))
        except (AgentFlowError, LostLease) as error:
            return f"{type(error).__name__}: {error}"

    def failed(self) -> bool:
        """Whether PostgreSQL refused the last statement; then the whole transaction is undone, and locks nothing."""
        if self.session.connection.info.transaction_status != TransactionStatus.INERROR:
            return False
        self.session.end("ROLLBACK")
        return True

    def rows(self) -> str:
        """All rows as this side sees them now."""
        return str(self.session.execute("rows", {})[0]["rows"])


class Stage:
    """Two sides and a watcher on one laboratory, which belongs to them alone."""

    def __init__(self, kind: type[Engine], database: Database) -> None:
        self.database, self.real = database, Engine(database)
        self.one, self.two = _Side(kind, self.database), _Side(kind, self.database)
        self.watcher = self.database._connect()
        self.watcher.execute("SET synchronous_commit = off")
        self.thread = ThreadPoolExecutor(1)
        self.scripts: dict[str, sql.Composable] = {}

    def close(self) -> None:
        """No connection and no thread of this stage is left."""
        self.one.session.close()
        self.two.session.close()
        self.thread.shutdown()
        self.watcher.close()
        self.real.close()

    def set_up(self, situation: str) -> Claims:
        """The situation stands in the tables, made by the real engine; restore() brings it back."""
        self.real.reset_database()
        claims = SITUATIONS[situation](self.real)
        own, world = (sql.Identifier(self.database.schema + suffix) for suffix in ("", WORLD_SUFFIX))
        for section, table in _TABLES.items():
            place = sql.SQL("{}.{}").format(world if table.startswith("tool") else own, sql.Identifier(table))
            found = self.watcher.execute(sql.SQL("SELECT json_agg(t)::text FROM {} AS t").format(place)).fetchone()
            script = sql.SQL("DELETE FROM {};").format(place)
            if found and found[0]:
                script += sql.SQL(_INSERT).format(place=place, rows=sql.Literal(found[0]))
            self.scripts[section] = script
        return claims

    def way_back(self, before: str, after: str) -> bytes:
        """What makes the rows after a call those of the situation again; empty if it changed nothing."""
        old, new = json.loads(before), json.loads(after)
        scripts = [self.scripts[section] for section in _TABLES if old[section] != new[section]]
        return sql.SQL("").join(scripts).as_bytes(self.watcher)

    def restore(self, way_back: bytes) -> None:
        """The rows are those of the situation again."""
        self.watcher.execute(way_back)

    def in_turn(self, *several: Call) -> Outcome:
        """What comes of the calls one after the other; nothing is left of it."""
        answers, done = [""], list[Call]()
        for call in several:
            answers.append(self.one.run(call))
            if not self.one.failed():
                done.append(call)
            else:  # by itself it would have undone nothing but itself
                for earlier in done:
                    self.one.run(earlier)
        rows = self.one.rows()
        self.one.session.end("ROLLBACK")
        return Outcome(answers[-2] if several else "", answers[-1], rows)

    def at_once(self, first: Call, second: Call, end: End) -> tuple[Outcome, bool]:
        """What comes of the second call, started while the first is uncommitted; whether it was seen to wait for it."""
        told = self.one.run(first)
        self.one.failed()
        future, waited = self.thread.submit(self.two.run, second), False
        while not (waited or wait([future], _LOOK_EVERY).done):
            waited = self._two_waits()
        self.one.session.end(end)
        answer = future.result()
        self.two.failed()
        rows = self.two.rows()
        self.two.session.end("ROLLBACK")
        return Outcome(told, answer, rows), waited

    def _two_waits(self) -> bool:
        row = self.watcher.execute("SELECT pg_blocking_pids(%s)", [self.two.pid], prepare=True).fetchone()
        return row is not None and self.one.pid in row[0]
