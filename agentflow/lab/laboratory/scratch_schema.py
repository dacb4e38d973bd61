"""A schema for one run: made empty, marked as a laboratory, and dropped afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import psycopg

from ...database import Database
from ...errors import NotALaboratory
from ...migrations import migrate
from ...statements import WORLD_SUFFIX, quoted


def new_name(prefix: str) -> str:
    """A name that no other schema has."""
    return f"{prefix}_{uuid.uuid4().hex[:8]}"


@contextmanager
def own_schema(url: str, schema: str, keep: bool = False) -> Iterator[Database]:
    """Makes a new laboratory, and drops it afterwards unless `keep`. Raises NotALaboratory if the schema exists."""
    with closing(Database(url, schema)) as database, ExitStack() as stack:
        _make(database)
        if not keep:
            stack.callback(drop_schemas, database)
        migrate(database, laboratory=True)
        yield database


def drop_schemas(database: Database) -> None:
    """Drops the engine's schema and the world's with all that is in them."""
    both = f"{quoted(database.schema)}, {quoted(database.schema + WORLD_SUFFIX)}"
    with database.session() as session:
        session.execute(f"DROP SCHEMA IF EXISTS {both} CASCADE".encode())


def _make(database: Database) -> None:
    """Makes both schemas or neither, so that what is dropped at the end is what was made here."""
    schema, world = database.schema, database.schema + WORLD_SUFFIX
    both = f"CREATE SCHEMA {quoted(schema)}; CREATE SCHEMA {quoted(world)}"
    try:
        with database.session() as session:
            session.execute(f"DO $$ BEGIN {both}; END $$".encode())
    except psycopg.ProgrammingError as error:
        raise NotALaboratory(
            f"The new schemas {schema!r} and {world!r} cannot be created ({str(error).strip().splitlines()[0]}). "
            "Choose another name."
        ) from error
