"""The tables: migrations and metadata agree, impossible rows are refused, plans and updates are cheap."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import CheckConstraint, Column, MetaData, Text, text
from sqlalchemy.schema import CreateSchema

from agentflow import Database, Engine, migrate, migrations
from agentflow.errors import NotALaboratory, SchemaTooNew
from agentflow.schema import metadata
from tests.conftest import rows
from tests.support.helpers import eventually
from tests.support.isolation import Session
from tests.support.programs import started

Make = Callable[..., Database]


# -- migrations and metadata -----------------------------------------------------------------------------------------

_CATALOG = """
SELECT c.relname AS "table", 'column ' || a.attname AS what,
       concat_ws(' ', format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
                 pg_get_expr(d.adbin, d.adrelid)) AS how
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = to_regnamespace(:s) AND c.relkind = 'r'
UNION ALL
SELECT c.relname, 'constraint ' || k.conname, pg_get_constraintdef(k.oid)
FROM pg_constraint AS k JOIN pg_class AS c ON c.oid = k.conrelid WHERE c.relnamespace = to_regnamespace(:s)
UNION ALL
SELECT c.relname, 'index ' || i.relname, replace(pg_get_indexdef(i.oid), quote_ident(:s) || '.', '')
FROM pg_index AS x JOIN pg_class AS c ON c.oid = x.indrelid JOIN pg_class AS i ON i.oid = x.indexrelid
WHERE c.relnamespace = to_regnamespace(:s)
UNION ALL
SELECT c.relname, 'options', c.reloptions::text FROM pg_class AS c
WHERE c.relnamespace = to_regnamespace(:s) AND c.relkind = 'r'
ORDER BY 1, 2, 3"""


def catalog(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """What PostgreSQL says of both schemas: columns, defaults, constraints with their texts, indexes, options."""
    with database.alchemy.connect() as connection:
        return {
            world: [
                tuple(row) for row in connection.execute(text(_CATALOG), {"s": database.schema + world}).all()
                if row[0] != "schema_version"
            ]
            for world in ("", "_world")
        }  # fmt: skip


def test_migrations_make_the_tables_of_the_metadata(schema: Make) -> None:
    migrated, made = schema(), schema()
    migrate(migrated)
    with made.alchemy.begin() as connection:
        for world in ("", "_world"):
            connection.execute(CreateSchema(made.schema + world))
        metadata.create_all(connection)
    found, right = catalog(migrated), catalog(made)
    assert found == right
    assert sum(what.startswith("constraint") for *_, what, _ in right[""]) > 20  # CHECKs too, by name and text
    with made.alchemy.begin() as connection:
        connection.execute(
            text(
                f"ALTER TABLE {made.schema}.history DROP CONSTRAINT counts_from_one, "
                "ADD CONSTRAINT counts_from_one CHECK (n > 1)"
            )
        )
    assert catalog(migrated) != catalog(made)


def test_a_schema_made_again_in_one_process_is_the_one_that_alembic_makes(
    schema: Make, own_database: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    script: list[str] = []
    monkeypatch.setattr(migrations, "_script", script)
    migrate(first := schema(), laboratory=True)
    assert script
    for again in (schema(), Database(own_database().address, "select")):
        with monkeypatch.context() as patch:
            patch.setattr("alembic.command.upgrade", lambda *_: pytest.fail("Alembic was asked"))
            migrate(again, laboratory=True)
        assert catalog(again) == catalog(first)
        assert (migrations.standing(again), migrations.is_laboratory(again)) == ("current", True)
    migrate(course := schema(), course=True)
    with pytest.raises(NotALaboratory, match="keeps the learner's answers"):
        migrate(course, laboratory=True)


def test_a_reset_names_every_table_and_so_does_the_search_for_lost_ones(schema: Make) -> None:
    """`standing` takes the names from that text: the tables themselves are SQLAlchemy's, and slow to import."""
    database = schema()
    tables = [f'"{database.schema}{"_world" if one.schema else ""}".{one.name}' for one in metadata.tables.values()]
    assert sorted(re.findall(r"DELETE FROM ONLY (\S+)", database.sql("reset"))) == sorted(tables)


def test_alembic_finds_nothing_to_do(schema: Make) -> None:
    database = schema()
    migrate(database)
    here = MetaData()
    for table in metadata.tables.values():
        made = table.to_metadata(here, schema=database.schema + ("_world" if table.schema else ""))
        made.comment = migrations.MARK
    ours = {database.schema, database.schema + "_world"}
    with database.alchemy.execution_options(schema_translate_map={}).connect() as connection:
        context = MigrationContext.configure(connection, opts={
            "include_schemas": True, "compare_type": True, "compare_server_default": True,
            "include_name": lambda name, kind, parents: name in ours if kind == "schema" else name != "schema_version",
        })  # fmt: skip
        assert compare_metadata(context, here) == []
        here.tables[f"{database.schema}.history"].append_column(Column("more", Text))
        assert compare_metadata(context, here) != []


_MIGRATE = """
import sys
from agentflow import Database, migrate
for schema in sys.argv[2:]:
    sys.stdin.readline()
    migrate(Database(sys.argv[1], schema, patience=10), laboratory=True)
"""


def test_eight_processes_migrate_an_empty_database_at_once_and_all_succeed(schema: Make) -> None:
    rounds = [schema() for _ in range(3)]
    told = [rounds[0].url.render_as_string(hide_password=False), *(database.schema for database in rounds)]
    processes = [started(told, code=_MIGRATE, asks=True) for _ in range(8)]
    try:
        for _ in rounds:
            for process in processes:
                assert process.stdin
                process.stdin.write("go\n")
                process.stdin.flush()
        said = [process.communicate(timeout=90)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * 8, said
    for database in rounds:
        assert len(Session(database).run(f'SELECT 1 FROM "{database.schema}".schema_version')) == 1
        assert [len(rows) for rows in catalog(database).values()] == [len(rows) for rows in catalog(rounds[0]).values()]
        Engine(database).reset_database()


def test_migrating_again_changes_nothing(schema: Make) -> None:
    database = schema()
    migrate(database, laboratory=True)
    engine = Engine(database)
    engine.create_workflow("r", workflow_id="w")
    before = catalog(database)
    migrate(database)
    migrate(database, laboratory=True)
    assert catalog(database) == before
    assert rows(engine, "SELECT id FROM {s}.workflows") == [{"id": "w"}]
    engine.reset_database()


def test_a_newer_schema_is_refused_in_words_and_left_alone(schema: Make) -> None:
    database = schema()
    migrate(database)
    with database.alchemy.begin() as connection:
        connection.execute(text(f"UPDATE {database.schema}.schema_version SET version_num = '9999'"))
    before = catalog(database)
    with pytest.raises(
        SchemaTooNew, match=r"migrated by a newer AgentFlow .*Nothing was changed; install that version"
    ):
        migrate(database, laboratory=True)
    assert catalog(database) == before
    assert Engine(database).database.read("purpose", {}) == [{"purpose": ""}]


def test_laboratories_in_two_schemas_do_not_see_each_other(schema: Make) -> None:
    engines = []
    for _ in range(2):
        migrate(database := schema(), laboratory=True)
        engines.append(Engine(database))
    one, two = engines
    one.create_workflow("login", workflow_id="w")
    two.create_workflow("other", workflow_id="w")
    assert one.run_until_idle("a") == 1
    assert [w["state"] for w in two.list_workflows()] == ["PENDING"]
    assert rows(two, "SELECT 1 FROM {w}.tool_ledger") == []
    one.reset_database()
    assert one.list_workflows() == []
    assert [w["id"] for w in two.list_workflows()] == ["w"]
    assert two.run_until_idle("b") == 1


def test_reset_refuses_a_schema_that_is_not_marked(schema: Make) -> None:
    migrate(database := schema())
    engine = Engine(database)
    engine.create_workflow("r", workflow_id="w")
    with pytest.raises(NotALaboratory, match="Nothing was deleted"):
        engine.reset_database()
    assert [w["id"] for w in engine.list_workflows()] == ["w"]


# -- impossible rows -------------------------------------------------------------------------------------------------

_NOW = "clock_timestamp()"
_STEP = {
    "workflow_id": "'w'",
    "step_id": "'s'",
    "position": "1",
    "kind": "'step'",
    "state": "'S'",
    "value": "'1'",
    "fence_token": "1",
    "worker": "'a'",
}
_INTENT = {
    "workflow_id": "'w'",
    "key": "'k'",
    "idempotency_key": "'w:k'",
    "action": "'a'",
    "arguments": "'1'",
    "fence_token": "1",
    "worker": "'a'",
}
_ATTEMPT = {"workflow_id": "'w'", "action": "'a'", "outcome": "'effect'", "effect_id": "1"}
_POSSIBLE: dict[str, dict[str, str]] = {
    "workflows": {"id": "'w'", "name": "'n'", "input": "'1'"},
    "steps": _STEP,
    "action_intents": _INTENT,
    "history": {"workflow_id": "'w'", "n": "1", "event": "'e'", "transaction": "'create'"},
    "tool_ledger": {"workflow_id": "'w'", "action": "'a'", "arguments": "'1'", "result": "'1'"},
    "tool_attempts": _ATTEMPT,
}  # fmt: skip
_COMPLETED = {"status": "'completed'", "completed_at": _NOW, "finished_at": _NOW, "result": "'1'"}
_HELD = {"lease_owner": "'a'", "lease_expires_at": _NOW, "fence_token": "1"}
_FAILED = {"status": "'failed'", "finished_at": _NOW, "error": "'{}'"}
_IMPOSSIBLE: list[tuple[str, str, dict[str, str]]] = [
    ("workflows", "status_is_known", {"status": "'asleep'", "finished_at": _NOW}),
    ("workflows", "lease_is_whole", {"lease_owner": "'a'", "fence_token": "1"}),
    ("workflows", "lease_is_whole", {"lease_expires_at": _NOW}),
    ("workflows", "only_ready_is_leased", {**_COMPLETED, **_HELD}),
    ("workflows", "only_ready_is_leased", {"status": "'waiting'", "waiting_for": "'e'", **_HELD}),
    ("workflows", "waiting_names_its_event", {"status": "'waiting'"}),
    ("workflows", "waiting_names_its_event", {"waiting_for": "'e'"}),
    ("workflows", "completed_has_its_time", {**_COMPLETED, "completed_at": "NULL"}),
    ("workflows", "completed_has_its_time", {"completed_at": _NOW}),
    ("workflows", "completed_has_its_result", {**_COMPLETED, "result": "NULL"}),
    ("workflows", "completed_has_its_result", {"result": "'1'"}),
    ("workflows", "finished_has_its_time", {**_COMPLETED, "finished_at": "NULL"}),
    ("workflows", "finished_has_its_time", {"finished_at": _NOW}),
    ("workflows", "finished_has_its_time", {"status": "'cancelled'"}),
    ("workflows", "failed_says_why", {**_FAILED, "error": "NULL"}),
    ("workflows", "leased_has_its_token", {**_HELD, "fence_token": "0"}),
    *[
        ("workflows", "counts_are_counts", {column: "-1"})
        for column in ("fence_token", "checkpoints", "entries", "attempts", "crashes")
    ],
    ("workflows", "counts_are_counts", {"entries": "0"}),
    ("steps", "kind_is_known", {"kind": "'dream'"}),
    ("steps", "value_or_failure", {"value": "NULL"}),
    ("steps", "value_or_failure", {"error": "'{}'"}),
    ("steps", "wait_names_its_event", {"kind": "'wait'"}),
    ("steps", "wait_names_its_event", {"waited_for": "'e'"}),
    ("steps", "counts_from_one", {"position": "0"}),
    ("steps", "counts_from_one", {"fence_token": "0"}),
    ("action_intents", "status_is_known", {"status": "'DONE'", "acknowledged_at": _NOW}),
    ("action_intents", "acknowledged_has_its_result", {"status": "'ACKNOWLEDGED'", "acknowledged_at": _NOW}),
    ("action_intents", "acknowledged_has_its_result", {"tool_result": "'1'"}),
    ("action_intents", "refused_says_why", {"status": "'REFUSED'", "acknowledged_at": _NOW}),
    ("action_intents", "refused_says_why", {"error": "'{}'"}),
    ("action_intents", "acknowledged_has_its_time", {"acknowledged_at": _NOW}),
    ("action_intents", "acknowledged_has_its_time", {"status": "'ACKNOWLEDGED'", "tool_result": "'1'"}),
    ("history", "counts_from_one", {"n": "0"}),
    ("tool_ledger", "an_effect_was_asked_for", {"attempts": "0"}),
    ("tool_attempts", "outcome_is_known", {"outcome": "'perhaps'"}),
    ("tool_attempts", "refused_has_no_effect", {"outcome": "'refused'"}),
    ("tool_attempts", "refused_has_no_effect", {"effect_id": "NULL"}),
]  # fmt: skip


def insert(engine: Engine, table: str, values: dict[str, str]) -> None:
    schema = engine.database.schema + ("_world" if table.startswith("tool_") else "")
    with Session(engine.database) as session:
        session.run("BEGIN")
        try:
            session.run(f'INSERT INTO "{schema}".{table} ({", ".join(values)}) VALUES ({", ".join(values.values())})')
        finally:
            session.run("ROLLBACK")


@pytest.mark.parametrize(("table", "constraint", "values"), _IMPOSSIBLE)
def test_an_impossible_row_is_refused_by_name(
    engine: Engine, table: str, constraint: str, values: dict[str, str]
) -> None:
    insert(engine, table, _POSSIBLE[table])
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        insert(engine, table, {**_POSSIBLE[table], **values})
    assert refused.value.diag.constraint_name == constraint


@pytest.mark.parametrize(
    "values",
    [
        {},
        _HELD,
        _COMPLETED,
        _FAILED,
        {"status": "'waiting'", "waiting_for": "'e'"},
        {"status": "'cancelled'", "finished_at": _NOW},
    ],
)
def test_every_possible_status_is_accepted(engine: Engine, values: dict[str, str]) -> None:
    insert(engine, "workflows", {**_POSSIBLE["workflows"], **values})


def test_every_check_constraint_has_an_impossible_row() -> None:
    named = {
        (table.name, str(constraint.name))
        for table in metadata.tables.values()
        for constraint in table.constraints if isinstance(constraint, CheckConstraint)
    }  # fmt: skip
    assert named == {(table, constraint) for table, constraint, _ in _IMPOSSIBLE}


# -- plans and HOT updates -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowded(url: str) -> Any:
    """20,000 finished and 2,000 postponed workflows, 2,000 that wait, beside 400 that can run; analysed."""
    database = Database(url, f"t_{uuid.uuid4().hex[:12]}")
    migrate(database, laboratory=True)
    s = f'"{database.schema}"'
    with Session(database) as session:
        session.run(f"""
            INSERT INTO {s}.workflows (id, name, input, status, result, completed_at, finished_at, next_run_at)
            SELECT 'f' || n, 'job', '1', 'completed', '1', now(), now(), now() - interval '2 h'
            FROM generate_series(1, 20000) AS n;
            INSERT INTO {s}.workflows (id, name, input, status, waiting_for, next_run_at)
            SELECT 'w' || n, 'job', '1', 'waiting', 'e', now() - interval '2 h' FROM generate_series(1, 2000) AS n;
            INSERT INTO {s}.workflows (id, name, input, next_run_at)
            SELECT 'p' || n, 'job', '1', now() + interval '1 h' FROM generate_series(1, 2000) AS n;
            INSERT INTO {s}.workflows (id, name, input, next_run_at)
            SELECT 'r' || n, 'job', '1', now() - interval '1 h' + n * interval '1 s' FROM generate_series(1, 400) AS n;
            ANALYZE {s}.workflows""")
    yield Engine(database, workflows={"job": lambda run, request: run.step("one", lambda: 1)})
    with Session(database) as session:
        session.run(f'DROP SCHEMA {s}, "{database.schema}_world" CASCADE')
    database.close()


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", []) for node in nodes(child))]


_VALUES = {
    "p_worker": ("text", "'a'"), "p_names": ("text[]", "'{job,other}'"), "p_lease": ("interval", "'30 s'"),
    "p_crash_budget": ("int", "5"), "p_status": ("text", "'ready'"), "p_ids": ("text[]", "'{}'"), "p_only": ("bool", "false"),
    "p_most": ("int", "1"),
}  # fmt: skip


def explained(database: Database, statement: str, mode: str) -> list[dict[str, Any]]:
    """The plan's nodes, as executed, of the statement prepared like a client's."""
    binds = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))
    prepared = re.sub(r"%\((\w+)\)s", lambda m: f"${binds.index(m[1]) + 1}", statement).replace("%%", "%")
    with Session(database) as session:
        session.run("BEGIN")
        session.run(f"SET LOCAL plan_cache_mode = {mode}")
        session.run(f"PREPARE asked ({', '.join(_VALUES[bind][0] for bind in binds)}) AS {prepared}")
        answer = session.run(
            f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE asked ({', '.join(_VALUES[bind][1] for bind in binds)})"
        )
        session.run("ROLLBACK")
        session.run("DEALLOCATE asked")
    return nodes(answer[0]["QUERY PLAN"][0]["Plan"])


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", ["claim", "runnable"])
def test_claim_reads_only_the_partial_index_of_runnable_rows(crowded: Engine, mode: str, name: str) -> None:
    found = explained(crowded.database, crowded.database.sql(name), mode)
    scans = [node for node in found if node.get("Relation Name") == "workflows" and "Scan" in node["Node Type"]]
    reading = [node for node in scans if node.get("Index Name") != "workflows_pkey"]
    assert [node.get("Index Name") for node in reading] == ["workflows_runnable"]
    assert reading[0]["Actual Rows"] + reading[0].get("Rows Removed by Filter", 0) <= 1
    assert not [node for node in found if node["Node Type"] == "Sort"]


def test_the_plan_check_catches_a_predicate_that_is_a_bind(crowded: Engine) -> None:
    broken = crowded.database.sql("claim").replace("WHERE status = 'ready'", "WHERE status = %(p_status)s")
    found = explained(crowded.database, broken, "force_generic_plan")
    assert "workflows_runnable" not in [node.get("Index Name") for node in found]


def updates(engine: Engine) -> tuple[int, int]:
    """How many updates of workflows' rows there were in all, and how many were HOT."""
    with Session(engine.database) as session:
        (row,) = session.run(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_all_tables "
            f"WHERE relid = '\"{engine.database.schema}\".workflows'::regclass"
        )
    return row["n_tup_upd"], row["n_tup_hot_upd"]


def test_state_changes_stay_hot_updates(own_database: Make) -> None:
    """A page is pruned only past every transaction of the server: a neighbour's open one keeps it full for a round."""
    migrate(database := own_database(), laboratory=True)
    engine = Engine(database)

    def nearly_all_hot() -> bool:
        total, hot = updates(engine)
        engine.create_workflows(["login"] * 40)
        for _ in range(40):
            claim = engine.claim_workflow("a", 600)
            assert claim
            engine.renew_lease(claim)
            claim = engine.checkpoint(claim, "classify", 1)
            engine.create_action_intent(claim, "pay", "pay", 1)
            engine.acknowledge_action(claim, 1, "pay")
        database.close()  # a session reports what it did when it ends
        eventually(lambda: updates(engine)[0] >= total + 200)
        again, hot_again = updates(engine)
        assert again == total + 200
        return hot_again - hot >= 180  # the first update of a full page has to move once; nothing else does

    eventually(nearly_all_hot)
    total, hot = updates(engine)
    with Session(database) as session:
        session.run(f'CREATE INDEX spoilt ON "{database.schema}".workflows (state)')
    engine.create_workflow("login")
    claim = engine.claim_workflow("a", 600)
    for step in ("a", "b", "c", "d"):
        assert claim
        claim = engine.checkpoint(claim, step, 1)
    database.close()
    eventually(lambda: updates(engine)[0] >= total + 5)
    assert updates(engine)[1] <= hot + 1
