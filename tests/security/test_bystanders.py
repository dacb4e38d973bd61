"""What AgentFlow did not make stays byte for byte as it was, whatever it is called and whichever command meets it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentflow import Database, Engine, migrate
from agentflow.errors import AgentFlowError, NotALaboratory
from agentflow.lab.course.record import open_record
from agentflow.lab.laboratory.laboratory import fresh_laboratory, let_go
from agentflow.lab.laboratory.scratch_schema import drop_schemas, own_schema
from agentflow.migrations import MARK, is_laboratory, standing
from tests.support.helpers import database_of_its_own
from tests.support.programs import agentflow, environment

# Somebody's database: schemas under the names that AgentFlow uses, and under marks that look like its own.
THEIRS = """
CREATE SCHEMA start_here; COMMENT ON SCHEMA start_here IS 'the shop';
CREATE TABLE start_here.customers AS SELECT n, 'customer ' || n AS name FROM generate_series(1, 100) AS n;
CREATE SCHEMA start_here_world; CREATE TABLE start_here_world.payments AS SELECT 1 AS paid;
CREATE SCHEMA crm; CREATE FUNCTION crm.total() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE SCHEMA agentflow; COMMENT ON SCHEMA agentflow IS 'agentflow laboratory';
CREATE TABLE agentflow.schema_version AS SELECT '0001'::varchar(32) AS version_num;
CREATE TABLE agentflow.workflows (id text PRIMARY KEY, boss text); INSERT INTO agentflow.workflows VALUES ('w', 'ada');
COMMENT ON TABLE agentflow.workflows IS 'ours';
CREATE TABLE agentflow.history AS SELECT 'once' AS upon, 1 AS n;
CREATE SCHEMA course_world; CREATE TYPE course_world.mood AS ENUM ('well');
CREATE SCHEMA kept; CREATE VIEW kept.seen AS SELECT * FROM start_here.customers;
CREATE SCHEMA marked; COMMENT ON SCHEMA marked IS 'made by AgentFlow';
CREATE TABLE marked.workflows AS SELECT 1 AS n; CREATE TABLE marked.tool_ledger AS SELECT 2 AS n"""
SCHEMAS = ("start_here", "crm", "agentflow", "course", "kept", "marked")

_INVENTORY = """
SELECT 'schema ' || nspname, concat_ws('|', oid, nspowner, nspacl, obj_description(oid, 'pg_namespace'))
FROM pg_namespace WHERE nspname !~ '^pg_(toast|temp)'
UNION ALL
SELECT 'relation ' || c.oid::regclass,
       concat_ws('|', c.oid, relkind, relowner, relacl, relfilenode, obj_description(c.oid, 'pg_class'))
FROM pg_class AS c WHERE relnamespace >= 2200 AND relnamespace <> 'information_schema'::regnamespace AND relkind <> 't'
UNION ALL
SELECT 'routine ' || oid::regprocedure, concat_ws('|', prosrc, proowner) FROM pg_proc
WHERE pronamespace >= 2200 AND pronamespace <> 'information_schema'::regnamespace
UNION ALL
SELECT 'type ' || oid::regtype, typowner::text FROM pg_type WHERE typtype = 'e' AND typnamespace >= 2200
UNION ALL
SELECT 'role ' || rolname, concat_ws('|', rolsuper, rolcreaterole, rolcanlogin, shobj_description(oid, 'pg_authid'))
FROM pg_roles"""


def inventory(database: Database) -> dict[str, str]:
    """Everything in the database, and what it is like: names, owners, rights, comments, rows."""
    with database.session() as session:
        session.execute("SET search_path = ''")
        found = {name: str(what) for name, what in map(dict.values, session.execute(_INVENTORY).fetchall())}
        for name in [one for one, what in found.items() if one.startswith("relation ") and what.split("|")[1] == "r"]:
            rows = f"SELECT array_agg(t::text ORDER BY t::text) AS rows FROM {name.split()[1]} AS t".encode()
            found[name] += str(session.execute(rows).fetchall())
        return found


def as_if_older(database: Database, schema: str, purpose: str | None = None) -> None:
    """As an older AgentFlow left it: no table has a mark, and the schema's comment may say what it is for."""
    made = [
        name.split()[1] for name, what in inventory(database).items() if name.startswith("relation ") and "|r|" in what
    ]
    ours = [one for one in made if one.startswith((f"{schema}.", f"{schema}_world.")) and "notes" not in one]
    comments = [f"COMMENT ON TABLE {one} IS NULL" for one in ours] + [f"COMMENT ON SCHEMA {schema}_world IS NULL"]
    said = f"'{purpose}'" if purpose else "NULL"
    database.command(";".join([*comments, f"COMMENT ON SCHEMA {schema} IS {said}"]))


@pytest.fixture
def theirs(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A database full of what is somebody else's, in which all must be as before when the test ends."""
    with database_of_its_own(url) as address:
        monkeypatch.setenv("DATABASE_URL", address)
        database = Database(address, patience=1)
        database.command(THEIRS)
        before = inventory(database)
        yield database
        after = inventory(database)
        database.close()
        assert {name: after.get(name) for name in before} == before


COMMANDS = (
    ["migrate"], ["migrate", "--laboratory"], ["reset", "--yes"], ["free"], ["report", "--json"], ["doctor"], ["check"],
    ["submit", "--requests", "-"], ["soak", "--requests", "-", "--workers", "1", "--kills", "0"], ["play", "A*"],
    ["explore", "--time-limit", "1"],
)  # fmt: skip


@pytest.mark.parametrize("schema", ["start_here", "agentflow"])
def test_no_command_changes_what_is_in_somebody_elses_schema(theirs: Database, schema: str, tmp_path: Path) -> None:
    before = inventory(theirs)
    here = environment(DATABASE_URL=theirs.address)
    for command in COMMANDS:
        done = agentflow(*command, "--schema", schema, env=here, stdin="a request\n", cwd=tmp_path)
        assert done.returncode != 0 and "Traceback" not in done.stderr, (command, done.stderr)
        assert "drop" not in done.stderr.lower()  # no advice to delete what is not known to be ours
    assert inventory(theirs) == before  # nothing new either


def test_the_first_cell_and_the_record_of_answers_adopt_nothing(theirs: Database) -> None:
    before = inventory(theirs)
    for name in SCHEMAS:
        with pytest.raises(NotALaboratory, match=r"Nothing was changed; choose another name"):
            fresh_laboratory(name)
    with pytest.raises(AgentFlowError):
        open_record("course")
    with pytest.raises(NotALaboratory), own_schema(theirs.address, "start_here"):
        pass
    assert inventory(theirs) == before


def test_an_empty_schema_of_ours_is_filled_and_keeps_its_comment(theirs: Database) -> None:
    theirs.command("CREATE SCHEMA given; COMMENT ON SCHEMA given IS 'by the DBA'; CREATE SCHEMA given_world")
    before = inventory(theirs)
    fresh_laboratory("given").create_workflow("r")
    assert fresh_laboratory("given").list_workflows() == []
    let_go("engine", "given")
    assert {name: one for name, one in inventory(theirs).items() if name in before} == before


def test_what_others_put_beside_our_tables_survives_a_reset_and_lost_tables(theirs: Database) -> None:
    """Also in a laboratory that an older AgentFlow made of somebody's schema: its tables have no marks, its schema has one."""
    engine = fresh_laboratory("mixed")
    for old in (False, True):
        if old:
            as_if_older(theirs, "mixed", "agentflow laboratory")
            assert is_laboratory(engine.database)
        else:
            theirs.command("CREATE TABLE mixed.notes AS SELECT 1 AS n; CREATE TABLE mixed_world.notes AS SELECT 2 AS n")
        before = inventory(theirs)
        engine.create_workflow("r")
        theirs.command("DROP TABLE mixed.history, mixed_world.tool_ledger")
        engine = fresh_laboratory("mixed")
        assert (standing(engine.database), engine.list_workflows()) == ("current", [])
        after = inventory(theirs)
        kept = [name for name in before if "notes" in name or name.startswith("schema ")]
        assert kept and {name: after[name] for name in kept} == {name: before[name] for name in kept}
    let_go("engine", "mixed")


@pytest.mark.parametrize("old", [False, True])
def test_a_reset_empties_no_table_that_only_has_our_tables_name(theirs: Database, old: bool) -> None:
    engine = fresh_laboratory("swapped")
    # Without marks, columns that are not ours tell it; with marks, even our columns do not excuse it.
    column = "mine" if old else "step_id"
    theirs.command(f"DROP TABLE swapped.steps; CREATE TABLE swapped.steps AS SELECT 1 AS {column}")
    if old:
        as_if_older(theirs, "swapped", "agentflow laboratory")
    with pytest.raises(AgentFlowError):
        engine.reset_database()
    with pytest.raises(AgentFlowError):
        fresh_laboratory("swapped")
    assert theirs.read_sql(f"SELECT {column} FROM swapped.steps")[1] == [{column: 1}]
    let_go("engine", "swapped")


def test_a_world_that_somebody_put_in_place_of_ours_is_not_filled(theirs: Database) -> None:
    fresh_laboratory("swapped")
    theirs.command("DROP TABLE swapped_world.tool_ledger, swapped_world.tool_attempts; DROP SCHEMA swapped_world")
    theirs.command("CREATE SCHEMA swapped_world; CREATE TABLE swapped_world.payments AS SELECT 1 AS paid")
    before = inventory(theirs)
    with pytest.raises(NotALaboratory, match=r"'swapped_world' .* holds what AgentFlow did not make"):
        fresh_laboratory("swapped")
    assert inventory(theirs) == before
    let_go("engine", "swapped")


def test_a_schema_of_ones_own_is_dropped_without_what_others_put_there(theirs: Database) -> None:
    name = f"own_{uuid.uuid4().hex[:8]}"
    with (
        pytest.raises(AgentFlowError, match="may be left, since they could not be dropped"),
        own_schema(theirs.address, name),
    ):
        theirs.command(f"CREATE TABLE {name}.notes AS SELECT 1 AS n")
    assert theirs.read_sql(f"SELECT n FROM {name}.notes")[1] == [{"n": 1}]
    drop_schemas(Database(theirs.address, "crm"), "the shop")  # not the mark of what is there
    drop_schemas(Database(theirs.address, "marked"), "made by AgentFlow, 0")


@pytest.mark.parametrize("purpose", ["laboratory", "course", ""])
def test_what_is_made_is_marked_in_the_transaction_that_makes_it(theirs: Database, purpose: str) -> None:
    """Whether Alembic made it, or a copy of what it ran in this process; the mark says what the tables are for."""
    for name in ("first", "second"):
        migrate(Database(theirs.address, name), laboratory=purpose == "laboratory", course=purpose == "course")
        made = [one for one in inventory(theirs).items() if f" {name}" in one[0]]
        schemas = [what for one, what in made if one.startswith("schema ")]
        tables = [what.partition("[")[0] for one, what in made if one.startswith("relation ") and "|r|" in what]
        assert (len(schemas), len(tables)) == (2, 7)
        assert all(what.endswith(f"|{MARK}") for what in schemas)
        assert all(what.endswith(f"|{MARK}{f': {purpose}' * bool(purpose)}") for what in tables)


def test_a_schema_migrated_by_an_older_agentflow_works_on_and_gets_no_mark(theirs: Database) -> None:
    database = Database(theirs.address, "older")
    migrate(database)
    as_if_older(theirs, "older")
    before = inventory(theirs)
    migrate(database)
    with pytest.raises(NotALaboratory, match="made by an older AgentFlow"):
        migrate(database, laboratory=True)
    assert inventory(theirs) == before
    engine = Engine(database)
    engine.create_workflow("login")
    assert engine.run_until_idle("w") == 1
    with pytest.raises(NotALaboratory):
        engine.reset_database()
    engine.close()
