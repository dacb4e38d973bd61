"""A schema for one run: made empty, marked as a laboratory, and dropped afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager

from psycopg.errors import InsufficientPrivilege

from ...database import Database
from ...driver_errors import first_line
from ...errors import AgentFlowError, DatabaseAway, NotALaboratory
from ...migrations import migrate, way_out
from ...statements import WORLD_SUFFIX, Statement, quoted

_MARK = Statement(
    "mark", "Who made the schema?", "SELECT obj_description(to_regnamespace(%(p_world)s), 'pg_namespace') AS mark"
)


def new_name(prefix: str) -> str:
    """A name that no other schema has."""
    return f"{prefix}_{uuid.uuid4().hex[:8]}"


@contextmanager
def own_schema(url: str, schema: str, keep: bool = False) -> Iterator[Database]:
    """Makes a new laboratory, and drops it afterwards unless `keep`. Raises NotALaboratory if the schema exists.

    What is dropped carries the mark of this call, so it is what was made here, also when the answer to that was lost. A
    server that is away at the end is waited for; if it stays away, the error says what is left and how to drop it.
    """
    mark = f"made by AgentFlow, {uuid.uuid4().hex}"
    with closing(Database(url, schema)) as database:
        try:
            _make(database, mark)
            migrate(database, laboratory=True)
            yield database
        except BaseException as error:
            if not keep and (left := _left_behind(database, mark)):
                error.add_note(left)
            raise
        if not keep and (left := _left_behind(database, mark)):
            raise DatabaseAway(left)


def drop_schemas(database: Database) -> None:
    """Drops the engine's schema and the world's with all that is in them."""
    database.command(f"DROP SCHEMA IF EXISTS {_both(database)} CASCADE")


def _make(database: Database, mark: str) -> None:
    """Makes both schemas or neither, in one command, so that what is dropped at the end is what was made here."""
    schema, world = database.schema, database.schema + WORLD_SUFFIX
    try:
        database.command(
            f"CREATE SCHEMA {quoted(schema)}; CREATE SCHEMA {quoted(world)}; COMMENT ON SCHEMA {quoted(world)} IS '{mark}'"
        )
    except DatabaseAway:
        raise
    except AgentFlowError as error:
        cause = error.__cause__ or error
        if not _is_marked(database, mark):
            denied = isinstance(cause, InsufficientPrivilege)
            mend = "Ask for the right to create schemas" if denied else "Choose another name"
            said = f"The new schemas {schema!r} and {world!r} cannot be created ({first_line(cause)}). {mend}."
            raise NotALaboratory(said) from error


def _left_behind(database: Database, mark: str) -> str | None:
    """Drops what was made under this mark; says what is left if that could not be done."""
    try:
        if _is_marked(database, mark):
            drop_schemas(database)
    except AgentFlowError as error:
        said = f"The schemas {_both(database)} may be left, since they could not be dropped ({error})"
        return f"{said}; {way_out(database.schema)}."
    return None


def _is_marked(database: Database, mark: str) -> bool:
    (found,) = database.run(_MARK, {"p_world": quoted(database.schema + WORLD_SUFFIX)})
    return bool(found["mark"] == mark)


def _both(database: Database) -> str:
    return f"{quoted(database.schema)}, {quoted(database.schema + WORLD_SUFFIX)}"
