"""A schema for one run: made empty, marked as a laboratory, and dropped afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from ...database import Database
from ...errors import NotALaboratory
from ...migrations import migrate


def new_name(prefix: str) -> str:
    """A name that no other schema has."""
    return f"{prefix}_{uuid.uuid4().hex[:8]}"


@contextmanager
def own_schema(url: str, schema: str, keep: bool = False) -> Iterator[Database]:
    """Makes a new laboratory, and drops it afterwards unless `keep`. Raises NotALaboratory if the schema exists."""
    database = Database(url, schema)
    try:
        _make(database)
        try:
            migrate(database, laboratory=True)
            yield database
        finally:
            if not keep:
                with database.session() as session:
                    session.execute(f'DROP SCHEMA IF EXISTS "{schema}", "{schema}_world" CASCADE'.encode())
    finally:
        database.close()


def _make(database: Database) -> None:
    """Makes both schemas or neither, so that what is dropped at the end is what was made here."""
    both = f'CREATE SCHEMA "{database.schema}"; CREATE SCHEMA "{database.schema}_world"'
    try:
        with database.session() as session:
            session.execute(f"DO $$ BEGIN {both}; END $$".encode())
    except psycopg.ProgrammingError as error:
        raise NotALaboratory(
            f"The new schemas {database.schema!r} and {database.schema + '_world'!r} cannot be created "
            f"({str(error).strip().splitlines()[0]}). Choose another name."
        ) from error
