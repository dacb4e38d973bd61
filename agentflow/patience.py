"""What is asked again while the database is away, beside the named statements: reads in one snapshot, commands, rehearsals."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import psycopg
from psycopg.rows import DictRow

from .errors import DatabaseAway, QueryRefused
from .statements import WORLD_SUFFIX

T = TypeVar("T")
Work = Callable[[psycopg.Cursor[DictRow]], T]


class Patient(ABC):
    """What a `Database` can do again. `patience` is in seconds; `give_up` ends it early."""

    schema: str
    patience: float
    give_up: threading.Event

    @abstractmethod
    def sql(self, name: str) -> str:
        """The text of a named statement."""

    @abstractmethod
    def _lend(self, name: str, work: Work[T]) -> T:
        """What `work` does on a connection that nobody else has meanwhile. Names what goes wrong."""

    def patiently(self, work: Callable[[], T]) -> T:
        """What `work` returns. While it raises DatabaseAway it is called again, for `patience` seconds from the first time.

        So it must be harmless to do twice. What it does patiently itself is not waited for again.
        """
        deadline, pause = 0.0, 0.0
        while True:
            try:
                return work()
            except DatabaseAway as away:
                now = time.monotonic()
                deadline = deadline or now + self.patience
                away.waited = away.waited or now + pause >= deadline or self.give_up.is_set()
                if away.waited:
                    raise
            self.give_up.wait(pause)
            pause = min(1.0, pause * 2 or 0.05)

    def read_sql(self, sql: str, params: Mapping[str, Any] | None = None) -> tuple[list[str], list[DictRow]]:
        """The columns and rows of one query, which names tables without a schema and can change nothing.

        `params` fill `:name`. Raises QueryRefused with PostgreSQL's words, DatabaseAway.
        """

        def read(cursor: psycopg.Cursor[DictRow]) -> tuple[list[str], list[DictRow]]:
            try:
                # Prepared: PostgreSQL then takes one command only, and refuses a COMMIT in front of another.
                rows = cursor.execute(driver_sql(sql), params or {}, prepare=True).fetchall()
                return [column.name for column in cursor.description or ()], rows
            except (psycopg.ProgrammingError, psycopg.DataError, psycopg.errors.ReadOnlySqlTransaction) as error:
                raise QueryRefused(str(error).strip()) from error

        return self.snapshot(read)

    def snapshot(self, work: Work[T], *settings: str) -> T:
        """What `work` reads by a cursor that sees one snapshot and can change nothing; tables are named without a schema.

        `settings`, such as "jit = off", hold meanwhile. While the database is away it is called again. Raises DatabaseAway.
        """
        path = f'search_path = "{self.schema}", "{self.schema}{WORLD_SUFFIX}"'
        begin = "; ".join(
            ["SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"]
            + [f"SET LOCAL {s}" for s in (path, *settings)]
        )

        def read(cursor: psycopg.Cursor[DictRow]) -> T:
            with cursor.connection.transaction():
                cursor.execute(begin.encode(), prepare=False)
                return work(cursor)

        return self.patiently(lambda: self._lend("query", read))

    def command(self, sql: str) -> None:
        """Carries out a command that gives no rows, again while the database is away: it must bear being done twice."""
        self.patiently(lambda: self._lend("command", lambda cursor: cursor.execute(sql.encode(), prepare=False)))

    def rehearse(self, name: str, params: Mapping[str, Any]) -> list[DictRow]:
        """The rows that the named statement would return now, if it were issued. Nothing is changed. Raises like execute()."""
        return self.undone(name, lambda cursor: cursor.execute(self.sql(name), params, prepare=True).fetchall())

    def undone(self, name: str, work: Work[T]) -> T:
        """What `work` returns, whose changes are rolled back. While the database is away it is called again."""

        def rehearsed(cursor: psycopg.Cursor[DictRow]) -> T:
            with cursor.connection.transaction(force_rollback=True):
                answer = work(cursor)
                cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # what a commit would check
                return answer

        return self.patiently(lambda: self._lend(name, rehearsed))


def driver_sql(sql: str) -> bytes:
    """The SQL as the driver expects it: `:name` as `%(name)s`, and each percent sign twice."""
    from sqlalchemy import text
    from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

    return str(text(sql).compile(dialect=PGDialect_psycopg())).encode()  # type: ignore[no-untyped-call]
