"""A schema for one run: made empty, marked as a laboratory, and dropped afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager

from ...database import Database
from ...errors import AgentFlowError, DatabaseAway
from ...migrations import MARK, migrate
from ...statements import WORLD_SUFFIX, Statement, quoted

_MADE = Statement(
    "made",
    "What of this pair of schemas carries this mark, and which tables in it are ours?",
    """\
SELECT quote_ident(nspname) AS schema,
       (SELECT string_agg(oid::regclass::text, ', ')
        FROM pg_class
        WHERE relnamespace = n.oid
          AND starts_with(obj_description(oid, 'pg_class'), 'made by AgentFlow')) AS tables
FROM pg_namespace AS n
WHERE nspname = ANY (%(p_schemas)s)
  AND obj_description(oid, 'pg_namespace') = %(p_mark)s""",
)  # fmt: skip


def new_name(prefix: str) -> str:
    """A name that no other schema has."""
    return f"{prefix}_{uuid.uuid4().hex[:8]}"


@contextmanager
def own_schema(url: str, schema: str, keep: bool = False) -> Iterator[Database]:
    """Makes a new laboratory, and drops it afterwards unless `keep`. Raises NotALaboratory if the schema exists.

    What is dropped carries the mark of this call, so it is what was made here, also when the answer to that was lost. A
    server that is away at the end is waited for; if it stays away, the error says what is left and how to drop it.
    """
    mark = f"{MARK}, {uuid.uuid4().hex}"
    with closing(Database(url, schema)) as database:
        try:
            migrate(database, laboratory=True, scratch=mark)
            yield database
        except BaseException as error:
            if not keep and (left := _left_behind(database, mark)):
                error.add_note(left)
            raise
        if not keep and (left := _left_behind(database, mark)):
            raise DatabaseAway(left)


def drop_schemas(database: Database, mark: str) -> None:
    """Drops those of the two schemas that carry this mark, with the tables that AgentFlow made in them, and nothing else."""
    made = database.run(_MADE, {"p_schemas": [database.schema, database.schema + WORLD_SUFFIX], "p_mark": mark})
    tables = ", ".join(one["tables"] for one in made if one["tables"])
    drops = [f"DROP TABLE IF EXISTS {tables}"] * bool(tables) + [
        f"DROP SCHEMA IF EXISTS {one['schema']}" for one in made
    ]
    if drops:
        database.command("; ".join(drops))


def _left_behind(database: Database, mark: str) -> str | None:
    """Drops what was made under this mark; says what is left if that could not be done."""
    try:
        drop_schemas(database, mark)
    except AgentFlowError as error:
        both = f"{quoted(database.schema)}, {quoted(database.schema + WORLD_SUFFIX)}"
        return (
            f"The schemas {both} may be left, since they could not be dropped ({error}). What was made here has the comment "
            f"{mark!r}; drop what you find with it in psql."
        )
    return None
