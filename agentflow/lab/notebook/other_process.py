"""The same rows seen from elsewhere: a query in another process, and rows that another session holds locked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

from ...database import Database
from ...engine import Engine
from ...errors import AgentFlowError
from ...statements import quoted
from ..history.entries import Row
from ..laboratory.processes import connected
from .tables import Table, query

WAIT_FOR_READER = 30.0  # seconds


class SeenElsewhere(Table):
    """Rows that another process read; `process` is its process id."""

    def __init__(self, rows: Sequence[Row], columns: Sequence[str], process: int) -> None:
        super().__init__(rows, "read by another process", columns)
        self.process = process


def query_elsewhere(engine: Engine, sql: str) -> SeenElsewhere:
    """The rows of the query, read by a new process that shares only the database with this one.

    Raises AgentFlowError, with what PostgreSQL said, if they could not be read.
    """
    url = engine.database.address
    with connected(_ask, url, engine.database.schema, sql, name="reader") as (_, channel):
        try:
            answer = channel.recv() if channel.poll(WAIT_FOR_READER) else "it did not answer in time"
        except EOFError:
            answer = "it ended before it answered"
    if isinstance(answer, str):
        raise AgentFlowError(f"The other process could not read that: {answer}. Run the cell again.")
    return SeenElsewhere(*answer)


@contextmanager
def locked(engine: Engine, *workflow_ids: str) -> Iterator[None]:
    """Holds the rows of these workflows locked in another session, as a claim does until its commit."""
    sql = f"SELECT FROM {quoted(engine.database.schema)}.workflows WHERE id = ANY(%(ids)s) FOR NO KEY UPDATE"
    with engine.database.session() as session, session.transaction():
        session.execute(sql.encode(), {"ids": list(workflow_ids)})
        yield


def _ask(url: str, schema: str, sql: str, channel: Connection) -> None:
    """Sends this process's answer: the rows, their columns and the reader's process id, or a sentence."""
    engine = Engine(Database(url, schema))
    try:
        rows = query(engine, sql)
        channel.send(([dict(row) for row in rows], rows.columns, os.getpid()))
    except Exception as error:
        channel.send(str(error).splitlines()[0])
    finally:
        engine.close()
