"""Where PostgreSQL is, and the one door through which a named statement runs.

Isolation is READ COMMITTED and every statement commits by itself (autocommit), whatever the server's defaults are.
`transactions` knows what the rows mean; read it next.
"""

from __future__ import annotations

import copy
import os
import re
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.rows import DictRow, dict_row

from .address import SECRETS, addresses, connect
from .driver_errors import is_spent, named, translate, unconnected
from .errors import AgentFlowError, BadName, DatabaseAway, OutcomeUnknown
from .log import log_entries
from .model import Boundary, Hook
from .patience import Patient
from .statements import ALL_STATEMENTS, DEFAULT_SCHEMA, WORLD_SUFFIX, Statement

if TYPE_CHECKING:  # importing SQLAlchemy takes longer than all the rest, so only who asks for it waits for it
    from sqlalchemy import URL
    from sqlalchemy import Engine as Alchemy

Run = Callable[[str, str, Mapping[str, Any] | None], list[DictRow]]
Door = Callable[[str, str, Mapping[str, Any] | None, Run], list[DictRow]]
"""What every statement passes on its way to PostgreSQL: gets its name, text and parameters, and `run`, which really runs
one; returns the rows. A connection that is given out passes as the statement `session`, with an empty text."""

T = TypeVar("T")
_DATABASES: weakref.WeakSet[Database] = weakref.WeakSet()


def _forget_connections() -> None:
    for database in list(_DATABASES):
        database.forget_connections()


if hasattr(os, "register_at_fork"):  # a forked child opens its own connections instead of sharing its parent's
    os.register_at_fork(after_in_child=_forget_connections)

# Set on each connection, in two round trips; a platform that does not know the second keeps its own.
_SETTINGS = (
    "SET default_transaction_isolation = 'read committed';"
    # What the driver reads values by, and what the statements' texts mean.
    "SET TimeZone = 'UTC'; SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; SET extra_float_digits = 1;"
    "SET standard_conforming_strings = on; SET array_nulls = on; SET transform_null_equals = off;"
    "SET quote_all_identifiers = off; SET search_path = '';"
    # A plan is made once for a session, perhaps when a table is empty: it must be the one for full tables, by the index.
    "SET enable_seqscan = off; SET enable_bitmapscan = off;"
    # No statement holds a row or a reader for ever; one that is cut off has changed nothing and is tried again.
    "SET statement_timeout = '60s';"
    "SET lock_timeout = '5s'",
    "SET client_connection_check_interval = '100ms'",
)


class Database(Patient):
    """One PostgreSQL database and one pair of schemas in it.

    `url` is a SQLAlchemy or libpq URL; `patience` is for how many seconds a transaction is tried again while PostgreSQL
    does not answer; `application_name` is what its connections are called in pg_stat_activity. Each connection prepares its
    statements, keeps settings, and listens, so a pooler in between must be in session mode; one in transaction mode is
    detected and named. If there is a `door`, every statement passes it. Raises BadName for a schema name that cannot be used.
    """

    def __init__(
        self, url: str, schema: str = DEFAULT_SCHEMA, *, patience: float = 30.0, application_name: str = "agentflow",
        door: Door | None = None,
    ) -> None:  # fmt: skip
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,49}", schema):
            raise BadName(
                f"Schema name {schema!r:.80} is not allowed. Use 1-50 characters from a-z, 0-9 and _, and do not start with a "
                "digit."
            )
        if schema == "information_schema" or schema.startswith("pg_"):
            raise BadName(f"Schema name {schema!r} is reserved for PostgreSQL itself. Choose another.")
        self.address, self.where = addresses(url)  # with its password, and without
        self.schema, self.patience, self.application_name = schema, patience, application_name
        self.give_up, self.door = threading.Event(), door
        self._idle: list[psycopg.Cursor[DictRow]] = []  # last in, first out; each has a connection of its own
        self._texts = {name: s.render(schema) for name, s in ALL_STATEMENTS.items()}
        _DATABASES.add(self)

    @cached_property
    def url(self) -> URL:
        """The address as SQLAlchemy has it, without what its text would show of a key's password and the like."""
        from sqlalchemy import make_url

        return make_url(self.address).difference_update_query(SECRETS)

    @cached_property
    def alchemy(self) -> Alchemy:
        """A SQLAlchemy engine on this database, for tables and queries of SQLAlchemy's; each connection passes the door."""
        from sqlalchemy import create_engine

        return create_engine(self.url, isolation_level="AUTOCOMMIT", creator=self._given_connection).execution_options(
            schema_translate_map={None: self.schema, "world": self.schema + WORLD_SUFFIX}
        )

    def sql(self, name: str) -> str:
        """Returns the text that PostgreSQL gets for a transaction or read of this name."""
        return self._texts[name]

    def twin(self, *, patience: float | None = None, application_name: str | None = None) -> Database:
        """Returns the same database with the same texts and the same door, on its own connections."""
        patience = self.patience if patience is None else patience
        name = application_name or self.application_name
        return self._with(patience=patience, application_name=name, give_up=threading.Event(), _idle=[])

    def with_texts(self, texts: Mapping[str, str]) -> Database:
        """Returns the same database and connections, with these texts under these names instead."""
        return self._with(_texts={**self._texts, **texts})

    def with_door(self, door: Door) -> Database:
        """Returns the same database, texts and connections, where every statement passes this door (and no other)."""
        return self._with(door=door)

    def _with(self, **changes: Any) -> Database:
        other = copy.copy(self)
        vars(other).update(changes)
        vars(other).pop("alchemy", None)
        _DATABASES.add(other)
        return other

    def transact(
        self, boundary: Boundary, params: Mapping[str, Any], hook: Hook | None = None
    ) -> tuple[list[DictRow], bool]:
        """Commits the boundary's transaction, or has it refused; returns its rows, and whether it was in doubt.

        A lost connection leaves the outcome unknown, so the same guarded statement is issued again; the flag says that
        this happened, and that an earlier issue may have been committed. Raises DatabaseAway (OutcomeUnknown if a
        statement had been sent) when `patience` runs out.
        """

        in_doubt = False

        def tell(told: Boundary) -> None:
            try:
                if hook:
                    hook(told)
            except DatabaseAway as away:
                away.waited = True  # it is the hook's own: nothing is issued again for it
                raise

        def after(outcome: Any, **known: Any) -> None:
            tell(replace(boundary, edge="after", outcome=outcome, **known))

        def once() -> list[DictRow]:
            nonlocal in_doubt
            tell(boundary)
            try:
                rows = self.execute(boundary.transaction, params)
            except DatabaseAway as away:
                lost = isinstance(away, OutcomeUnknown)
                in_doubt = in_doubt or lost
                after("unknown" if lost else "refused")
                raise OutcomeUnknown(str(away)) if in_doubt else away from away.__cause__
            except AgentFlowError:
                after("refused")
                raise
            log_entries(rows, boundary)
            # No row of the workflow means that it was refused; a claim names none, and may find nothing.
            none = "refused" if boundary.workflow else "committed"
            after(rows[0].get("outcome", "committed") if rows else none, **_claimed(boundary, rows))
            return rows

        return self.patiently(once), in_doubt

    def read(self, name: str, params: Mapping[str, Any]) -> list[DictRow]:
        """Returns the rows of a named read; it is tried again like a transaction, and has no boundary."""
        return self.transact(Boundary(name, "before"), params)[0]

    def execute(self, name: str, params: Mapping[str, Any]) -> list[DictRow]:
        """Issues the named statement once. Raises DatabaseAway or OutcomeUnknown, and names anything else that went wrong."""
        return self._pass(name, self._texts[name], params)

    def run(self, statement: Statement, params: Mapping[str, Any] | None = None) -> list[DictRow]:
        """Like read(), for a statement that is not among the named ones. It must return rows, and bear being issued twice."""
        text = statement.render(self.schema)
        return self.patiently(lambda: self._pass(statement.name, text, params))

    def session(self) -> psycopg.Connection[DictRow]:
        """A connection for several statements, committed one by one, that the caller closes. Raises DatabaseAway."""
        connection = self.patiently(self._given_connection)
        connection.row_factory = dict_row
        return connection

    def _given_connection(self) -> psycopg.Connection[Any]:
        self._pass("session", "", None)
        return self._connect()

    def check(self) -> DictRow:
        """Returns what answers: server version, database, durability. Raises DatabaseAway at once, without patience."""
        try:
            return self._pass("check", _CHECK, None)[0]
        except OutcomeUnknown:  # a connection had died while idle, which says nothing about the server
            return self._pass("check", _CHECK, None)[0]

    def _pass(self, name: str, text: str, params: Mapping[str, Any] | None) -> list[DictRow]:
        return self.door(name, text, params, self._run) if self.door else self._run(name, text, params)

    def _run(self, name: str, text: str, params: Mapping[str, Any] | None) -> list[DictRow]:
        if name == "session":
            return []
        return self._with_cursor(name, lambda cursor: cursor.execute(text, params, prepare=True).fetchall(), params)

    def _lend(self, name: str, work: Callable[[psycopg.Cursor[DictRow]], T]) -> T:
        self._pass("session", "", None)
        return self._with_cursor(name, work)

    def _with_cursor(self, name: str, work: Callable[[psycopg.Cursor[DictRow]], T], params: Any = None) -> T:
        cursor = self._take()
        try:
            answer = work(cursor)
        except psycopg.Error as error:
            ours = translate(error, cursor.connection, named(name, params), where=self.where, schema=self.schema)
            self._give_back(cursor, error)
            raise ours from error
        except BaseException as error:
            self._give_back(cursor, error)
            raise
        self._idle.append(cursor)
        return answer

    # SQLAlchemy's pool does the same for twice the time; a statement's own work is not much more than that.
    def _take(self) -> psycopg.Cursor[DictRow]:
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect().cursor(row_factory=dict_row)

    def _give_back(self, cursor: psycopg.Cursor[DictRow], error: BaseException) -> None:
        """Keeps a connection after an error if it is whole. Otherwise drops it, with its neighbours, which are as old."""
        if is_spent(cursor.connection, error):
            cursor.connection.close()
            self.close()
        else:
            self._idle.append(cursor)

    def _connect(self) -> psycopg.Connection[Any]:
        try:
            connection = connect(self.address, application_name=self.application_name, client_encoding="utf8")
            for setting in _SETTINGS:
                with suppress(psycopg.errors.InvalidParameterValue, psycopg.errors.UndefinedObject):
                    connection.execute(setting)
            return connection
        except psycopg.Error as error:
            raise unconnected(error, self.where) from error

    def listen(self, of: str = "") -> psycopg.Connection[Any]:
        """Returns a new connection that is notified when work arrives, or `_emptied`: a reset. Raises DatabaseAway."""
        connection = self._given_connection()
        try:
            connection.execute(f'LISTEN "{self.schema}{of}"')
        except psycopg.Error as error:
            connection.close()
            raise translate(error, connection, "listen", where=self.where, schema=self.schema) from error
        return connection

    def close(self) -> None:
        """Closes every idle connection."""
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().connection.close()
        if "alchemy" in vars(self):
            self.alchemy.dispose()

    def forget_connections(self) -> None:
        """Makes a forked child use none of its parent's connections, which stay open for the parent."""
        self._inherited, self._idle = self._idle, []
        if "alchemy" in vars(self):
            self.alchemy.dispose(close=False)


_CHECK = """\
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS version_number,
       current_database() AS database, current_setting('fsync')::bool AS fsync,
       current_setting('full_page_writes')::bool AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit, current_setting('is_superuser')::bool AS superuser,
       current_setting('server_encoding') AS encoding, current_setting('transaction_read_only')::bool AS read_only"""


def _claimed(boundary: Boundary, rows: list[DictRow]) -> dict[str, Any]:
    """What a claim knows only afterwards: its workflow and token."""
    is_claim = boundary.transaction == "claim" and rows
    return {"workflow": rows[0]["id"], "token": rows[0]["fence_token"]} if is_claim else {}
