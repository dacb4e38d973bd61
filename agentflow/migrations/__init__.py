"""Migrations: from any older schema, or none, to today's. Alembic keeps the version in the schema itself."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from psycopg.errors import DuplicateTable

from ..database import Database
from ..errors import AgentFlowError, DatabaseAway, NotALaboratory, SchemaMissing, SchemaTooNew
from ..statements import WORLD_SUFFIX, Statement, quoted

if TYPE_CHECKING:
    from sqlalchemy import Connection

LABORATORY_MARK = "agentflow laboratory"
COURSE_MARK = "agentflow course"
"""The comments of two kinds of schema: one that may be emptied, one that keeps a learner's answers."""

_FOLDER = Path(__file__).parent
_script: list[str] = []
"""What Alembic ran to make the first schema of this process. It makes the next one in a thirtieth of Alembic's CPU time."""
_VERSION = Statement("version", "Which migration was the last.", "SELECT version_num FROM agentflow.schema_version")
_TABLES = Statement(
    "tables",
    "Whether the schema was ever migrated, and whether one of these tables is gone.",
    """\
SELECT to_regclass(%(p_version)s) IS NOT NULL AS versioned,
       (SELECT bool_or(to_regclass(name) IS NULL) FROM unnest(%(p_tables)s::text[]) AS name) AS damaged""",
)  # fmt: skip


def migrate(database: Database, *, laboratory: bool = False, course: bool = False) -> None:
    """Brings the schema's tables up to date, even if others migrate it at the same time; a second call changes nothing.

    `laboratory=True` marks it as a laboratory, whose rows may be reset; `course=True` as the one that keeps a learner's
    answers, which cannot become a laboratory. Raises SchemaTooNew if a newer AgentFlow migrated it, NotALaboratory if it
    holds workflows or answers and was not marked so before they came, DatabaseAway if PostgreSQL cannot do it now.
    """
    purpose = LABORATORY_MARK if laboratory else COURSE_MARK if course else None
    if not (_is_done(database, purpose) or _made_again(database, purpose)):
        database.patiently(lambda: _upgrade(database, purpose))


def _upgrade(database: Database, purpose: str | None) -> None:
    from alembic import command  # here, so that no other process waits for Alembic and SQLAlchemy to be imported
    from alembic.config import Config
    from alembic.util.exc import CommandError
    from sqlalchemy import event
    from sqlalchemy.exc import DBAPIError, InternalError, OperationalError

    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    engine = database.alchemy.execution_options(isolation_level="READ COMMITTED", schema_translate_map={})
    ran: list[str] = []
    event.listen(
        engine, "before_cursor_execute", lambda _connection, _cursor, statement, *_: ran.append(statement.strip())
    )
    try:
        with engine.begin() as connection:
            # A migrator that is frozen in here must not keep all others waiting.
            connection.exec_driver_sql("SET LOCAL lock_timeout = '60s'")
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
            connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = '30s'")
            # One migrator at a time in this database: the others wait here and then find nothing to do.
            connection.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtext('agentflow.migrate'))")
            connection.exec_driver_sql(f'CREATE SCHEMA IF NOT EXISTS "{database.schema}"')
            connection.exec_driver_sql(f'CREATE SCHEMA IF NOT EXISTS "{database.schema}{WORLD_SUFFIX}"')
            config.attributes.update(connection=connection, schema=database.schema)
            command.upgrade(config, "head")
            if any(
                one.startswith("CREATE TABLE") and "schema_version" in one for one in ran
            ):  # all of it, from the first
                _script[:] = [_without_names(one, database.schema) for one in ran if one.startswith(_CHANGES)]
            if purpose:
                _mark(connection, database, purpose)
    except CommandError as error:
        raise SchemaTooNew(
            f"Schema {database.schema!r} at {database.where} was migrated by a newer AgentFlow ({error}). Nothing was "
            "changed; install that version, or use another schema."
        ) from error
    except DBAPIError as error:
        said = str(error.orig).strip().partition("\n")[0]
        if isinstance(error.orig, DuplicateTable):
            raise AgentFlowError(
                f"Schema {database.schema!r} at {database.where} could not be migrated ({said}): tables of an earlier one "
                f"are left over. Nothing was changed; if nobody needs them, {way_out(database.schema)}, and try again."
            ) from error
        lost = error.connection_invalidated or isinstance(error, OperationalError | InternalError)
        kind = DatabaseAway if lost else AgentFlowError
        raise kind(
            f"Schema {database.schema!r} at {database.where} could not be migrated ({said}). Nothing was changed; fix "
            "that and run `agentflow migrate` (the user needs permission to create schemas)."
        ) from error
    finally:
        engine.dispose()


def standing(database: Database) -> Literal["missing", "old", "current", "damaged", "newer"]:
    """Returns how the schema compares with the current tables; changes nothing. Raises DatabaseAway.

    `damaged`: it had the current tables, and has lost one of them since.
    """
    tables = re.findall(r"DELETE FROM (\S+)", database.sql("reset"))  # it empties every table
    seen = database.run(_TABLES, {"p_version": f'"{database.schema}".schema_version', "p_tables": tables})[0]
    versions = database.run(_VERSION) if seen["versioned"] else []
    if not versions:
        return "missing"
    found = versions[0]["version_num"]
    known = sorted(path.name.partition("_")[0] for path in _FOLDER.glob("versions/[0-9]*.py"))
    if found == known[-1]:
        return "damaged" if seen["damaged"] else "current"
    return "old" if found in known else "newer"


def is_laboratory(database: Database) -> bool:
    """Whether the schema is marked as a laboratory, whose rows may be reset."""
    return bool(database.read("purpose", {})[0]["purpose"] == LABORATORY_MARK)


def way_out(schema: str) -> str:
    """What to run when tables of a schema are lost or left over."""
    return f'run DROP SCHEMA IF EXISTS "{schema}", "{schema}{WORLD_SUFFIX}" CASCADE; in psql'


def _is_done(database: Database, purpose: str | None) -> bool:
    """Whether nothing is left to do. What PostgreSQL refuses here, it refuses again, and is explained, in migrate()."""
    with suppress(SchemaMissing):
        marked = purpose is None or database.read("purpose", {})[0]["purpose"] == purpose
        return marked and standing(database) in ("current", "damaged")
    return False


_OWN, _WORLD = quoted("{own}"), quoted("{world}")
_CHANGES = ("SET", "CREATE", "ALTER", "INSERT", "UPDATE", "COMMENT")


def _made_again(database: Database, purpose: str | None) -> bool:
    """Whether a schema without tables was made as this process made its first.

    If not, nothing has changed: Alembic makes it, or says why that cannot be done.
    """
    if not _script or standing(database) != "missing" or database.read("purpose", {})[0]["purpose"]:
        return False
    own, world = quoted(database.schema), quoted(database.schema + WORLD_SUFFIX)
    script = [one.replace(_WORLD, world).replace(_OWN, own) for one in _script]
    script += [f"COMMENT ON SCHEMA {own} IS '{purpose}'"] if purpose else []
    try:
        database.command(";".join(script))
    except DatabaseAway:
        raise
    except AgentFlowError:  # perhaps that its tables are there, since an answer was lost
        return False
    return True


def _without_names(statement: str, schema: str) -> str:
    """The statement for any schema. Alembic puts the name of its own table's schema into quotes only if that needs them."""
    statement = statement.replace(f"{schema}.schema_version", f"{_OWN}.schema_version")
    return statement.replace(quoted(schema + WORLD_SUFFIX), _WORLD).replace(quoted(schema), _OWN)


def _mark(connection: Connection, database: Database, wanted: str) -> None:
    """Marks what the schema is for. Workflows in an unmarked schema must not be reset later; answers never."""
    found = connection.exec_driver_sql(database.sql("purpose")).scalar()
    if found == wanted:
        return
    where = f"Schema {database.schema!r} at {database.where}"
    if found == COURSE_MARK:
        raise NotALaboratory(
            f"{where} keeps the learner's answers, so it cannot become a laboratory. Nothing was changed; choose "
            "another name, such as lab."
        )
    if found == LABORATORY_MARK:
        raise NotALaboratory(
            f"{where} is a laboratory, and a reset would empty it: answers cannot be kept there. Nothing was changed; "
            "choose another name with AGENTFLOW_COURSE."
        )
    if connection.exec_driver_sql(f'SELECT EXISTS (SELECT FROM "{database.schema}".workflows)').scalar():
        raise NotALaboratory(
            f"{where} contains workflows and was not created as a laboratory. "
            "Nothing was changed; choose another name with --schema, such as lab."
        )
    connection.exec_driver_sql(f"COMMENT ON SCHEMA \"{database.schema}\" IS '{wanted}'")
