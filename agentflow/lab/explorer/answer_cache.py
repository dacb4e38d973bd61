"""Rows in canonical form, put back into PostgreSQL, and each distinct question asked once and remembered.

Canonical rows hold what can influence the future, and nothing else: a clock value becomes live, expired, due or not yet; the
numbers of entries, effects and calls of the tool start anew; what no statement reads (who wrote a row, when, how often a tool
repeated an answer) is left out. Two histories that lead to the same canonical rows have the same future, and that is what
makes the space of states finite.

A question ("what does this statement do, with these parameters, on these rows?") is asked in a transaction that puts the rows
back, runs the real statement, reads all rows, and is rolled back, so the tables stay empty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import DictRow
from psycopg.sql import Literal

from ...database import Database
from ...driver_errors import named, translate
from ...errors import DatabaseAway
from ...statements import Statement
from ..verify.snapshot import Rows, rows_from, rows_sql

Answer = list[dict[str, Any]] | Exception

_PUT = Statement(
    "put",
    "None: only the explorer uses this schema. It puts the rows of another history into empty tables.",
    """\
WITH given AS MATERIALIZED (
    SELECT $1::json AS rows
),
w AS (
    INSERT INTO agentflow.workflows (id, name, input, status, state, result, error, lease_owner, lease_expires_at,
           fence_token, checkpoints, next_run_at, waiting_for, events, attempts, crashes, completed_at, finished_at)
    SELECT id, name, input::json, status, state, result::json, error::json, lease_owner,
           CASE lease WHEN 'live' THEN clock_timestamp() + interval '1 day'
                      WHEN 'expired' THEN clock_timestamp() - interval '1 second' END,
           fence_token, checkpoints,
           clock_timestamp() + CASE WHEN due THEN interval '-1 hour' ELSE interval '1 day' END + turn * interval '1 second',
           waiting_for, events::jsonb, attempts, crashes,
           CASE status WHEN 'completed' THEN clock_timestamp() END,
           CASE WHEN status NOT IN ('ready', 'waiting') THEN clock_timestamp() END
    FROM given, json_to_recordset(rows -> 'workflows') AS r (
         id text, name text, input text, status text, state text, result text, error text, lease_owner text, lease text,
         fence_token bigint, checkpoints int, due bool, turn int, waiting_for text, events text, attempts int, crashes int)
),
s AS (
    INSERT INTO agentflow.steps (workflow_id, step_id, position, kind, state, value, error, waited_for, fence_token, worker)
    SELECT workflow_id, step_id, position, kind, state, value::json, error::json, waited_for, 1, '-'
    FROM given, json_to_recordset(rows -> 'steps') AS r (
         workflow_id text, step_id text, position int, kind text, state text, value text, error text, waited_for text)
),
i AS (
    INSERT INTO agentflow.action_intents (workflow_id, key, idempotency_key, action, arguments, status, tool_result, error,
           fence_token, worker, acknowledged_at)
    SELECT workflow_id, key, idempotency_key, action, arguments::json, status, tool_result::json, error::json, 1, '-',
           CASE WHEN status <> 'PENDING' THEN clock_timestamp() END
    FROM given, json_to_recordset(rows -> 'intents') AS r (
         workflow_id text, key text, idempotency_key text, action text, arguments text, status text, tool_result text,
         error text)
)
INSERT INTO agentflow_world.tool_ledger (effect_id, idempotency_key, remembered, workflow_id, action, arguments, result)
OVERRIDING SYSTEM VALUE
SELECT effect_id, idempotency_key, remembered, workflow_id, action, arguments::json, result::json
FROM given, json_to_recordset(rows -> 'effects') AS r (
     effect_id bigint, idempotency_key text, remembered bool, workflow_id text, action text, arguments text, result text)""",
)

_LEFT_OUT: dict[
    str, DictRow
] = {  # what canonical rows leave out, with the value that PostgreSQL shows when they are put back
    "workflows": {"entries": 1},
    "steps": {"fence_token": 1, "worker": "-"},
    "intents": {"fence_token": 1, "worker": "-"},
    "effects": {"attempts": 1},
    "tools": {},
}
_FIRST_EFFECT = -1000  # below every number that the identity column can give


def canonical_text(rows: Rows, keep_crashes: bool = True) -> str:
    """Returns the rows that can influence the future as text: equal texts have the same future.

    The count of crashes matters only because it is compared with a budget; `keep_crashes` is False where the bounds are too
    small to spend that.
    """
    tables = {table: _plain(table, getattr(rows, table)) for table in _LEFT_OUT}
    if not keep_crashes:
        for row in tables["workflows"]:
            row["crashes"] = 0
    return _in_rows(tables)


def _plain(table: str, rows: tuple[DictRow, ...]) -> list[DictRow]:
    kept = [{column: value for column, value in row.items() if column not in _LEFT_OUT[table]} for row in rows]
    if table == "effects":
        for number, row in enumerate(kept):
            row["effect_id"] = _FIRST_EFFECT + number
    if table == "workflows":
        turns = sorted({row["turn"] for row in kept if row["status"] == "ready"})
        for row in kept:
            row["turn"] = turns.index(row["turn"]) if row["status"] == "ready" else 0
            row["due"] = row["due"] or row["status"] != "ready"
            row["error"] = _without_trace(row["error"])
    return kept


def _without_trace(error: str | None) -> str | None:
    """A recorded failure without its traceback, which names lines of code."""
    return error and json.dumps({**json.loads(error), "traceback": ""})


def comparable(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """The parameters without what differs from run to run: measured and random times, tracebacks."""
    plain = dict(params or {})
    if isinstance(plain.get("p_detail"), str) and "replay_ms" in plain["p_detail"]:
        plain["p_detail"] = json.dumps({**json.loads(plain["p_detail"]), "replay_ms": 0.0})
    if plain.get("p_error"):
        plain["p_error"] = _without_trace(plain["p_error"])
    if isinstance(plain.get("p_delay"), timedelta):
        plain["p_delay"] = timedelta(days=1)
    return plain


@dataclass(frozen=True)
class StatementResult:
    """The result of one statement on one set of rows: the rows after it, its answer, and what it wrote to history and world.

    `rows` is the number of the canonical rows; `after` are the rows as PostgreSQL showed them, with this statement's
    history entries and calls of the tool only.
    """

    rows: int
    after: Rows
    answer: Answer
    key: str

    def entries(self) -> list[DictRow]:
        """The entries of the history that this statement wrote, the world's too."""
        return [*self.after.history, *map(_of_the_world, self.after.attempts)]


def bare_entry(workflow_id: str, event: str, transaction: str, **more: Any) -> DictRow:
    """An entry with these columns; the others are empty."""
    rest = dict.fromkeys(("subject", "worker", "fence_token", "detail"))
    return {"workflow_id": workflow_id, "n": None, "event": event, "transaction": transaction, **rest, **more}


def _of_the_world(row: DictRow) -> DictRow:
    event = "tool_refused" if row["outcome"] == "refused" else "tool_attempt_committed"
    detail = {"idempotency_key": row["idempotency_key"], "outcome": row["outcome"]}
    return bare_entry(row["workflow_id"], event, "tool", subject=row["action"], detail=detail)


class AnswerCache:
    """Answers statements on any rows: asks PostgreSQL the first time, and remembers.

    `database` is a migrated, empty schema that nobody else uses. `statements` counts what PostgreSQL really ran.
    """

    def __init__(self, database: Database, keep_crashes: bool = True) -> None:
        self.database, self.keep_crashes = database, keep_crashes
        self._open()
        self._memory: dict[tuple[int, str, str], StatementResult] = {}
        self._numbers: dict[str, int] = {}
        self._texts: list[str] = []
        self._rows: list[Rows] = []
        self._renamed: dict[tuple[int, str, str], int] = {}
        self.statements = 0

    def __getstate__(self) -> dict[str, Any]:
        """The rows that were met, without the connection and what PostgreSQL answered."""
        kept = ("keep_crashes", "_numbers", "_texts", "_rows", "_renamed", "statements")
        return {name: getattr(self, name) for name in kept}

    def number(self, rows: Rows) -> int:
        """The number of these rows' canonical form."""
        text = canonical_text(rows, self.keep_crashes)
        found = self._numbers.setdefault(text, len(self._texts))
        if found == len(self._texts):
            self._texts.append(text)
            tables = json.loads(text).items()
            self._rows.append(Rows(**{name: tuple(row | _LEFT_OUT[name] for row in rows) for name, rows in tables}))
        return found

    def rows(self, number: int) -> Rows:
        """The canonical rows of this number, without history."""
        return self._rows[number]

    def text(self, number: int) -> str:
        """The canonical rows of this number as text."""
        return self._texts[number]

    def __len__(self) -> int:
        return len(self._texts)

    def renamed(self, number: int, identity: str, other: str) -> int:
        """The rows in which the lease is held by `other` instead of `identity`."""
        key = number, identity, other
        if key not in self._renamed:
            rows, mine = self._rows[number], {"lease_owner": other}
            owners = (row | mine if row["lease_owner"] == identity else row for row in rows.workflows)
            self._renamed[key] = self.number(replace(rows, workflows=tuple(owners)))
        return self._renamed[key]

    def ask(self, number: int, name: str, text: str, params: Mapping[str, Any], question: str) -> StatementResult:
        """What the statement does to these rows. `question` is the canonical text of name and parameters.

        Raises DatabaseAway, which is not remembered.
        """
        key = number, text, question
        if key not in self._memory:
            self._memory[key] = self.database.patiently(lambda: self._ask(number, name, text, params))
        return self._memory[key]

    def _open(self) -> None:
        self._connection = self.database.session()
        self._cursor = self._connection.cursor()
        for prepared in (
            f"af_put (text) AS {_PUT.render(self.database.schema)}", f"af_read AS {rows_sql(self.database.schema)}"
        ):  # fmt: skip
            self._connection.execute(f"PREPARE {prepared}".encode())

    def _ask(self, number: int, name: str, text: str, params: Mapping[str, Any]) -> StatementResult:
        """Three round trips: put in a new transaction, the statement, read. The next question rolls this one back."""
        self.statements += 1
        try:
            if self._connection.closed:  # lost with the question before; each begins anew
                self._open()
            cursor = self._cursor
            self._put(number)
            answer = cursor.execute(text, params, prepare=True).fetchall()
            after = replace(self._rows_now(), tools=self._rows[number].tools)
        except psycopg.Error as error:
            said, where = named(name, params), self.database.where
            trouble = translate(error, self._connection, said, where=where, schema=self.database.schema)
            if isinstance(trouble, DatabaseAway):
                raise trouble from error
            return StatementResult(number, self._rows[number], trouble, f"{type(trouble).__name__}: {trouble}")
        return StatementResult(self.number(after), after, answer, answer_key(answer))

    # Below psycopg, which forgets its prepared statements at each rollback; that would double the time of a question.
    def _rows_now(self) -> Rows:
        """All rows, in the question's transaction."""
        result = self._run(b"EXECUTE af_read")
        tables = (result.fname(one) for one in range(result.nfields))
        return rows_from(
            {(name or b"").decode(): json.loads(result.get_value(0, one) or b"[]") for one, name in enumerate(tables)}
        )

    def _put(self, number: int) -> None:
        """Begins a transaction in which the tables hold these rows and no others."""
        open_now = self._connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE
        put = f"BEGIN; EXECUTE af_put({Literal(self._texts[number]).as_string(self._connection)})"
        self._run(("ROLLBACK; " * open_now + put).encode())

    def _run(self, command: bytes) -> psycopg.pq.abc.PGresult:
        result = self._connection.pgconn.exec_(command)
        if result.status not in (psycopg.pq.ExecStatus.COMMAND_OK, psycopg.pq.ExecStatus.TUPLES_OK):
            why = result.error_message.decode(errors="replace")
            raise DatabaseAway(f"The rows could not be put in or read at {self.database.where}: {why}")
        return result

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()


_NUMBERS = re.compile(r'"(effect_id|attempt_id)":-?\d+')


def answer_key(answer: list[dict[str, Any]]) -> str:
    """The canonical text of an answer: numbers that a sequence gives, and times, are left out."""
    return _NUMBERS.sub(r'"\1":0', _in_answers(answer))


def question(name: str, params: Mapping[str, Any]) -> str:
    """The canonical text of a statement's name and parameters."""
    return name + _in_questions(params)


def _named_only(value: Any) -> str:
    return "a time" if isinstance(value, datetime) else str(value)


# json.dumps() would make an encoder for each of many thousand texts.
_in_rows = json.JSONEncoder(separators=(",", ":")).encode
_in_questions = json.JSONEncoder(separators=(",", ":"), default=str).encode
_in_answers = json.JSONEncoder(separators=(",", ":"), default=_named_only).encode
