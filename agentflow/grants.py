"""Three roles for one schema, each with the rights that its work needs and no other: owner, worker and reader.

A reader runs `report` and `check`; a worker also creates, runs and cancels workflows; an owner also migrates, resets and
requeues. Which tables a worker writes is read from the statements. None of them may log in: they are given to who may.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .database import Database
from .errors import BadName, NotALaboratory, SchemaMissing, StatementRefused
from .migrations import MARK, tables_of
from .statements import ALL_STATEMENTS, WORLD_SUFFIX, Statement, command, quoted

ROLES = ("owner", "worker", "reader")
_SEEN = Statement(
    "grantees",
    "What the roles of these names are known by, who owns the tables, and which schemas carry our mark?",
    """\
SELECT (SELECT json_object_agg(rolname, shobj_description(oid, 'pg_authid'))
        FROM pg_roles
        WHERE rolname = ANY (%(p_roles)s)) AS roles,
       ARRAY(SELECT DISTINCT quote_ident(rolname) FROM pg_class AS c JOIN pg_roles AS r ON r.oid = c.relowner
             WHERE c.oid = ANY (%(p_tables)s::text[]::regclass[]) AND rolname <> %(p_owner)s) AS owners,
       ARRAY(SELECT quote_ident(nspname) FROM pg_namespace WHERE nspname = ANY (%(p_schemas)s)
             AND starts_with(obj_description(oid, 'pg_namespace'), 'made by AgentFlow')) AS made,
       quote_ident(current_database()) AS database""",
)  # fmt: skip


def grant(database: Database, prefix: str) -> list[str]:
    """The roles exist, and have their rights; returns their names. What they were given by others, they keep.

    Raises NotALaboratory if not all the tables are AgentFlow's, BadName if a role of such a name was not made for them.
    """
    if database.read("purpose", {})[0]["purpose"] is None:
        raise NotALaboratory(
            f"Schema {database.schema!r} at {database.where} has no tables that AgentFlow made. Nothing was changed; run "
            f"{command('migrate', database.schema)} first, or choose another --schema."
        )
    names = [f"{prefix}_{one}" for one in ROLES]
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,55}", prefix) or prefix.startswith("pg_"):
        raise BadName(f"Roles cannot be called {names[0]!r:.80}. Use 1-56 characters from a-z, 0-9 and _ for --prefix.")
    schemas = [database.schema, database.schema + WORLD_SUFFIX]
    asked = {"p_roles": names, "p_tables": tables_of(database), "p_schemas": schemas, "p_owner": names[0]}
    seen = database.run(_SEEN, asked)[0]
    mark = f"{MARK} for schema {database.schema} in database {seen['database']}"
    for name, known in (seen["roles"] or {}).items():
        if known != mark:
            raise BadName(
                f"A role {name!r} is there, and AgentFlow did not make it for this schema. Nothing was changed; choose other "
                "names with --prefix."
            )
    new = [name for name in names if name not in (seen["roles"] or {})]
    said = mark.replace("'", "''")
    script = [sql for one in new for sql in (f"CREATE ROLE {one}", f"COMMENT ON ROLE {one} IS '{said}'")]
    try:
        database.command("; ".join([*script, *_rights(database, names, seen)]))
    except SchemaMissing as refused:
        raise StatementRefused(
            f"The roles of schema {database.schema!r} at {database.where} could not be made ({refused.__cause__}). Nothing was "
            "changed; it takes a user who may make roles and owns the tables, or a superuser."
        ) from refused
    return names


def _rights(database: Database, names: list[str], seen: dict[str, Any]) -> Iterator[str]:
    """The statements that give each role what it needs."""
    owner, worker, reader = names
    schemas = f"{quoted(database.schema)}, {quoted(database.schema + WORLD_SUFFIX)}"
    tables = tables_of(database)
    yield f"GRANT CONNECT ON DATABASE {seen['database']} TO {owner}, {worker}, {reader}"
    yield f"GRANT USAGE ON SCHEMA {schemas} TO {owner}, {worker}, {reader}"
    yield f"GRANT CREATE ON SCHEMA {schemas} TO {owner}"
    yield f"GRANT SELECT ON {', '.join(tables)} TO {worker}, {reader}"
    for right, table in sorted(_written()):
        yield f"GRANT {right} ON {Statement('', '', table).render(database.schema)} TO {worker}"
    for one in seen["owners"]:  # who has made the tables still may do all with them
        yield f"GRANT {owner} TO {one}"
    for one in tables:
        yield f"ALTER TABLE {one} OWNER TO {owner}"
    for one in seen["made"]:
        yield f"ALTER SCHEMA {one} OWNER TO {owner}"


def _written() -> set[tuple[str, str]]:
    """What a worker does to which table; requeue, which deletes checkpoints, is the owner's."""
    texts = [one.text for one in ALL_STATEMENTS.values() if "DELETE FROM" not in one.text]
    found = set()
    for part in re.split(r"\b(?=INSERT INTO agentflow|UPDATE agentflow)", " ".join(texts))[1:]:
        right, table = part.replace(" INTO", "", 1).split()[:2]
        found |= {(right, table)} | ({("UPDATE", table)} if "DO UPDATE" in part else set())
    return found
