"""Two transactions at once, each on a connection of its own, in the manner of PostgreSQL's isolation tester.

`at_once` holds the first one uncommitted while the second is started; `TwoSessions` plays an engine's calls like that from a
prepared situation, or one after the other, and puts the rows back.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Executor, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow

from ...database import Database, Run
from ...driver_errors import translate
from ...engine import Engine
from ...errors import AgentFlowError, LostLease
from ...statements import WORLD_SUFFIX, Statement
from .situations import SITUATIONS, Call, Claims

End = Literal["COMMIT", "ROLLBACK"]
A = TypeVar("A")
B = TypeVar("B")
_LOOK_EVERY = 0.0002  # seconds that the second call gets before we look whether it waits
_TABLES = {
    "workflows": "workflows", "steps": "steps", "intents": "action_intents", "history": "history",
    "effects": "tool_ledger", "attempts": "tool_attempts",
}  # fmt: skip
_RESTORE = """\
DELETE FROM {place};
INSERT INTO {place} OVERRIDING SYSTEM VALUE SELECT * FROM json_populate_recordset(NULL::{place}, {rows});"""

# All rows, without clock values and generated numbers: a lease is live or not, a back-off over or not.
_ROWS = Statement(
    "pair_rows",
    "None: only the session that sees its own uncommitted rows reads them.",
    """\
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
        FROM agentflow_world.tool_attempts ORDER BY attempt_id) AS r))::text AS rows""",
)


# What two claims of one workflow do not share with each other is left out of an answer, and so is the lease's length.
_IRRELEVANT = re.compile(r"(workflow_id|name|input)='[^']*', |, lease_seconds=[\d.]+")


@dataclass(frozen=True)
class PairOutcome:
    """What both calls answered (`first` is empty if only one acted), and all rows afterwards as JSON text."""

    first: str
    second: str
    rows: str


class HeldSession:
    """One connection, on which one statement at a time runs, in whatever transaction is open there."""

    def __init__(self, where: Database, application_name: str) -> None:
        near = where.twin(patience=0.0, application_name=application_name)
        self.connection = near.session()
        self.pid = self.connection.info.backend_pid
        self.database = near.with_door(self._run_here)

    def run(self, text: str, params: Mapping[str, Any] | None = None) -> list[DictRow]:
        """The rows of the statement, if it gives any."""
        cursor = self.connection.execute(text.encode(), params)
        return cursor.fetchall() if cursor.description else []

    def _run_here(self, name: str, text: str, params: Mapping[str, Any] | None, _: Run) -> list[DictRow]:
        """The door of `database`: its statements run on this connection, too."""
        try:
            return self.connection.execute(text.encode(), params, prepare=True).fetchall()
        except psycopg.Error as error:
            where, schema = self.database.where, self.database.schema
            raise translate(error, self.connection, name, where=where, schema=schema) from error

    def close(self) -> None:
        """Closes the connection, which rolls back what was open."""
        self.connection.close()


def at_once(
    first: Callable[[], A],
    second: Callable[[], B],
    end: Callable[[], object],
    waits: Callable[[], bool],
    thread: Executor,
) -> tuple[A, B, bool]:
    """Runs `first`, starts `second` on the thread, and calls `end` when the second `waits()` or has finished.

    Returns both answers, and whether the second was seen to wait.
    """
    answer, waited = first(), False
    future = thread.submit(second)
    while not (waited or wait([future], _LOOK_EVERY).done):
        waited = waits()
    end()
    return answer, future.result(), waited


class _Side:
    """One of the two who act: an engine on a connection of its own, always inside an open transaction."""

    def __init__(self, kind: type[Engine], where: Database) -> None:
        self.session = HeldSession(where, "agentflow-pairs")
        self.session.run("SET synchronous_commit = off")
        self.session.run("BEGIN")
        self.engine = kind(self.session.database)

    def end(self, how: End) -> None:
        """Ends the open transaction, and opens the next one."""
        self.session.run(f"{how} AND CHAIN")

    def call(self, call: Call) -> str:
        """What the caller gets: the result, or the error by name."""
        try:
            return _IRRELEVANT.sub("", repr(call.run(self.engine)))
        except (AgentFlowError, LostLease) as error:
            return f"{type(error).__name__}: {error}"

    def failed(self) -> bool:
        """Whether PostgreSQL refused the last statement; then the whole transaction is undone, and locks nothing."""
        if self.session.connection.info.transaction_status != TransactionStatus.INERROR:
            return False
        self.end("ROLLBACK")
        return True

    def rows(self) -> str:
        """All rows as this side sees them now."""
        return str(self.session.database.run(_ROWS)[0]["rows"])


class TwoSessions:
    """Two sides and a watcher in one laboratory that nobody else uses; once `stopped` is set, they play no more."""

    def __init__(self, kind: type[Engine], database: Database, stopped: threading.Event | None = None) -> None:
        self.stopped = stopped or threading.Event()
        self.database, self.real = database, Engine(database)
        self.one, self.two = _Side(kind, database), _Side(kind, database)
        self.watcher = database.session()
        self.watcher.execute("SET synchronous_commit = off")
        self.thread = ThreadPoolExecutor(1)
        self.scripts: dict[str, sql.Composable] = {}

    def close(self) -> None:
        """Closes every connection, and ends the thread."""
        self.one.session.close()
        self.two.session.close()
        self.thread.shutdown()
        self.watcher.close()
        self.real.close()

    def set_up(self, situation: str) -> Claims:
        """Makes the situation with the real engine, and keeps the scripts by which restore() brings it back."""
        self.real.reset_database()
        claims = SITUATIONS[situation](self.real)
        own, world = (sql.Identifier(self.database.schema + suffix) for suffix in ("", WORLD_SUFFIX))
        for section, table in _TABLES.items():
            place = sql.SQL("{}.{}").format(world if table.startswith("tool") else own, sql.Identifier(table))
            query = sql.SQL("SELECT coalesce(json_agg(t), '[]')::text AS rows FROM {} AS t").format(place)
            for row in self.watcher.execute(query):
                self.scripts[section] = sql.SQL(_RESTORE).format(place=place, rows=sql.Literal(row["rows"]))
        return claims

    def way_back(self, before: str, after: str) -> bytes:
        """The script that turns the rows after a call into those of the situation again; empty if it changed nothing."""
        old, new = json.loads(before), json.loads(after)
        scripts = [self.scripts[section] for section in _TABLES if old[section] != new[section]]
        return sql.SQL("").join(scripts).as_bytes(self.watcher)

    def restore(self, way_back: bytes) -> None:
        """Brings the rows of the situation back."""
        self.watcher.execute(way_back)

    def in_turn(self, *several: Call) -> PairOutcome:
        """The outcome of the calls one after the other, which is then rolled back."""
        self._go_on()
        answers, done = [""], list[Call]()
        for call in several:
            answers.append(self.one.call(call))
            if not self.one.failed():
                done.append(call)
            else:  # outside this transaction it would have undone nothing but itself, so the others are made again
                for earlier in done:
                    self.one.call(earlier)
        rows = self.one.rows()
        self.one.end("ROLLBACK")
        return PairOutcome(answers[-2] if several else "", answers[-1], rows)

    def at_once(self, first: Call, second: Call, end: End) -> tuple[PairOutcome, bool]:
        """The outcome of the second call, started while the first is uncommitted, and whether it was seen to wait for it."""

        def hold() -> str:
            answer = self.one.call(first)
            self.one.failed()
            return answer

        self._go_on()
        release = partial(self.one.end, end)
        answer, other, waited = at_once(hold, partial(self.two.call, second), release, self._two_waits, self.thread)
        self.two.failed()
        rows = self.two.rows()
        self.two.end("ROLLBACK")
        return PairOutcome(answer, other, rows), waited

    def _go_on(self) -> None:
        if self.stopped.is_set():
            raise CancelledError

    def _two_waits(self) -> bool:
        pids = [self.two.session.pid, self.one.session.pid]
        query = "SELECT FROM unnest(pg_blocking_pids(%s)) AS pid WHERE pid = %s"
        return bool(self.watcher.execute(query, pids, prepare=True).rowcount)
