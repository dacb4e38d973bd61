"""Migrations: from any older schema, or none, to today's. Alembic keeps the version in the schema itself."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..database import Database
from ..errors import AgentFlowError, DatabaseAway, NotALaboratory, SchemaMissing, SchemaTooNew
from ..statements import WORLD_SUFFIX, Statement, quoted
from ..statements import command as typed

if TYPE_CHECKING:
    from sqlalchemy import Connection

MARK = "made by AgentFlow"
"""How the comment begins of every table and schema that was made here. It is written by the transaction that makes it; behind a
colon stands what the tables are for: a laboratory, which may be emptied, or a course, which keeps a learner's answers."""
LABORATORY, COURSE, OLDER = "laboratory", "course", "older"

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
_SCHEMAS = """
SELECT nspname AS name, obj_description(n.oid, 'pg_namespace') AS mark, pg_get_userbyid(owner) AS owner,
       owner = me.oid OR (NOT me.rolsuper AND pg_has_role(owner, 'USAGE')) AS ours,
       EXISTS (SELECT FROM unnest(%(tables)s::text[]) AS t (one)
               JOIN pg_class ON pg_class.oid = to_regclass(one) WHERE relnamespace = n.oid) AS known,
       (SELECT string_agg(one, ', ')
        FROM (SELECT pg_describe_object(classid, objid, objsubid) FROM pg_depend
              WHERE refclassid = 'pg_namespace'::regclass AND refobjid = n.oid AND classid <> 'pg_default_acl'::regclass
              ORDER BY 1 DESC LIMIT 3) AS few (one)) AS holds
FROM pg_roles AS me, pg_namespace AS n,
     LATERAL (SELECT CASE WHEN nspowner = 'pg_database_owner'::regrole  -- whoever that is here
                     THEN (SELECT datdba FROM pg_database WHERE datname = current_database())
                     ELSE nspowner END) AS o (owner)
WHERE me.rolname = current_user AND nspname = ANY (%(names)s)
ORDER BY 1"""


def migrate(database: Database, *, laboratory: bool = False, course: bool = False, scratch: str | None = None) -> None:
    """Brings the schema's tables up to date, even if others migrate it at the same time; a second call changes nothing.

    `laboratory=True` marks its tables as a laboratory's, whose rows may be reset, and makes those anew that it has lost;
    `course=True` as those that keep a learner's answers, which cannot become a laboratory; `scratch` is the comment of a
    pair of schemas that only this call makes. Raises SchemaTooNew if a newer AgentFlow migrated it; NotALaboratory if it
    holds workflows or answers and was not marked so before they came, or holds what AgentFlow did not make; DatabaseAway.
    """
    purpose = LABORATORY if laboratory else COURSE if course else None
    if not ((not scratch and _is_done(database, purpose)) or _made_again(database, purpose, scratch)):
        database.patiently(lambda: _upgrade(database, purpose, scratch))


def _upgrade(database: Database, purpose: str | None, scratch: str | None) -> None:
    from alembic import command  # here, so that no other process waits for Alembic and SQLAlchemy to be imported
    from alembic.config import Config
    from alembic.util.exc import CommandError
    from sqlalchemy import event
    from sqlalchemy.exc import DBAPIError, InternalError, OperationalError

    from ..schema import metadata

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
            for statement in _missing_schemas(connection, database, scratch):
                connection.exec_driver_sql(statement)
            found = _purpose(connection, database)
            config.attributes.update(connection=connection, schema=database.schema)
            del ran[:]
            command.upgrade(config, "head")
            if any(one.startswith("CREATE TABLE") and "schema_version" in one for one in ran):  # all, from the first
                _script[:] = [_without_names(one, database.schema) for one in ran if one.startswith(_CHANGES)]
            elif found == LABORATORY:
                metadata.create_all(connection)  # only what is missing
            for statement in _marks(ran, purpose or found):
                connection.exec_driver_sql(statement)
            if purpose:
                _mark(connection, database, purpose)
    except CommandError as error:
        raise SchemaTooNew(
            f"Schema {database.schema!r} at {database.where} was migrated by a newer AgentFlow ({error}). Nothing was "
            "changed; install that version, or use another schema."
        ) from error
    except DBAPIError as error:
        said = str(error.orig).strip().partition("\n")[0]
        lost = error.connection_invalidated or isinstance(error, OperationalError | InternalError)
        kind = DatabaseAway if lost else AgentFlowError
        raise kind(
            f"Schema {database.schema!r} at {database.where} could not be migrated ({said}). Nothing was changed; fix "
            f"that and run {typed('migrate', database.schema)} (the user must own both schemas, or may create them)."
        ) from error
    finally:
        engine.dispose()


def tables_of(database: Database) -> list[str]:
    """The names of all tables, that of the version first."""
    emptied = re.findall(r"DELETE FROM ONLY (\S+)", database.sql("reset"))  # every other table
    return [f"{quoted(database.schema)}.schema_version", *emptied]


def standing(database: Database) -> Literal["missing", "old", "current", "damaged", "newer"]:
    """Returns how the schema compares with the current tables; changes nothing. Raises DatabaseAway.

    `damaged`: it had the current tables, and has lost one of them since.
    """
    version, *tables = tables_of(database)
    seen = database.run(_TABLES, {"p_version": version, "p_tables": tables})[0]
    versions = database.run(_VERSION) if seen["versioned"] else []
    if not versions:
        return "missing"
    found = versions[0]["version_num"]
    known = sorted(path.name.partition("_")[0] for path in _FOLDER.glob("versions/[0-9]*.py"))
    if found == known[-1]:
        return "damaged" if seen["damaged"] else "current"
    return "old" if found in known else "newer"


def is_laboratory(database: Database) -> bool:
    """Whether the schema's tables are marked as a laboratory's, whose rows may be reset."""
    return bool(database.read("purpose", {})[0]["purpose"] == LABORATORY)


LOST = (
    "Restore them from a backup, or choose another --schema: made anew and empty, they would say that nothing was done."
)
"""How a schema that has lost tables is mended if it is no laboratory."""


def made_here(mark: str, *schemas: str) -> list[str]:
    """The statements that make these schemas, which must not exist, with this comment."""
    return [
        f"{do} SCHEMA {quoted(one)}{said}"
        for one in schemas
        for do, said in (("CREATE", ""), ("COMMENT ON", f" IS '{mark}'"))
    ]


def _is_done(database: Database, purpose: str | None) -> bool:
    """Whether nothing is left to do. What PostgreSQL refuses here, it refuses again, and is explained, in migrate()."""
    with suppress(SchemaMissing):
        found, how = database.read("purpose", {})[0]["purpose"], standing(database)
        return purpose in (None, found) and (how == "current" or (how == "damaged" and found != LABORATORY))
    return False


def _purpose(connection: Connection, database: Database) -> str | None:
    found: str | None = connection.exec_driver_sql(database.sql("purpose")).scalar()
    return found


def _missing_schemas(connection: Connection, database: Database, scratch: str | None) -> list[str]:
    """The statements that make those of the two schemas that are not there. Raises NotALaboratory if one is not ours to fill.

    One that is there may be filled if it is empty and ours, or holds tables that AgentFlow made; its comment stays.
    """
    names = [database.schema, database.schema + WORLD_SUFFIX]
    tables = tables_of(database)
    found = connection.exec_driver_sql(_SCHEMAS, {"names": names, "tables": tables}).mappings().all()
    version = connection.exec_driver_sql("SELECT to_regclass(%(name)s)", {"name": tables[0]}).scalar()
    made = bool(version) and _purpose(connection, database) is not None
    for one in found:
        where = f"Schema {one['name']!r} at {database.where}"
        if scratch and one["mark"] != scratch:
            raise NotALaboratory(f"{where} already exists. Nothing was changed; choose another name.")
        if one["holds"] and not (made and one["known"]) and not scratch:
            raise NotALaboratory(
                f"{where} holds what AgentFlow did not make, or only a part of it ({one['holds']}). Nothing was changed; "
                "choose another name with --schema, or for notebooks with AGENTFLOW_SCHEMA."
            )
        if not one["holds"] and not one["ours"]:
            raise NotALaboratory(
                f"{where} is empty and belongs to the role {one['owner']!r}. Nothing was changed; ask its owner to give it to "
                "you (ALTER SCHEMA ... OWNER TO), or choose another name with --schema."
            )
    return made_here(scratch or MARK, *(name for name in names if name not in {one["name"] for one in found}))


def _marks(ran: list[str], purpose: str | None) -> list[str]:
    """The statements that mark the tables which these statements make."""
    tables = re.findall(r"^CREATE TABLE (\S+)", "\n".join(ran), re.MULTILINE)
    return [f"COMMENT ON TABLE {table} IS '{MARK}{f': {purpose}' * bool(purpose)}'" for table in tables]


_OWN, _WORLD = quoted("{own}"), quoted("{world}")
_CHANGES = ("SET", "CREATE", "ALTER", "INSERT", "UPDATE")


def _made_again(database: Database, purpose: str | None, scratch: str | None) -> bool:
    """Whether a pair of schemas was made with its tables as this process made its first.

    If not, nothing has changed: Alembic makes it, or says why that cannot be done.
    """
    if not _script or standing(database) != "missing":
        return False
    own, world = quoted(database.schema), quoted(database.schema + WORLD_SUFFIX)
    script = [one.replace(_WORLD, world).replace(_OWN, own) for one in _script]
    schemas = made_here(scratch or MARK, database.schema, database.schema + WORLD_SUFFIX)
    try:
        database.command(";".join([*schemas, *script, *_marks(script, purpose)]))
    except DatabaseAway:
        raise
    except AgentFlowError:  # perhaps that the schemas are there, since an answer was lost
        return False
    return True


def _without_names(statement: str, schema: str) -> str:
    """The statement for any schema. Alembic puts the name of its own table's schema into quotes only if that needs them."""
    statement = statement.replace(f"{schema}.schema_version", f"{_OWN}.schema_version")
    return statement.replace(quoted(schema + WORLD_SUFFIX), _WORLD).replace(quoted(schema), _OWN)


def _mark(connection: Connection, database: Database, wanted: str) -> None:
    """Marks what the tables are for. Workflows in a schema without a purpose must not be reset later; answers never."""
    found = _purpose(connection, database)
    if found == wanted:
        return
    where = f"Schema {database.schema!r} at {database.where}"
    if found == COURSE:
        raise NotALaboratory(
            f"{where} keeps the learner's answers, so it cannot become a laboratory. Nothing was changed; choose "
            "another name, such as lab."
        )
    if found == LABORATORY:
        raise NotALaboratory(
            f"{where} is a laboratory, and a reset would empty it: answers cannot be kept there. Nothing was changed; "
            "choose another name with AGENTFLOW_COURSE."
        )
    rows = " OR ".join(f"EXISTS (SELECT FROM {table})" for table in tables_of(database)[1:])
    filled = connection.exec_driver_sql(f"SELECT {rows}").scalar()
    if filled or found == OLDER:
        raise NotALaboratory(
            f"{where} contains workflows or effects, or was made by an older AgentFlow, but not as a laboratory. "
            "Nothing was changed; choose another name with --schema, such as lab."
        )
    for statement in _marks([f"CREATE TABLE {table}" for table in tables_of(database)], wanted):
        connection.exec_driver_sql(statement)
