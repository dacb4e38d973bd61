"""What AgentFlow did not make stays byte for byte as it was, whatever it is called and whichever command meets it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest
import typer

from agentflow import Database, Engine, home, migrate
from agentflow.address import connect
from agentflow.cli import app
from agentflow.errors import AgentFlowError, NotALaboratory
from agentflow.lab.course.record import open_record
from agentflow.lab.laboratory.laboratory import fresh_laboratory, let_go
from agentflow.lab.laboratory.scratch_schema import drop_schemas, own_schema
from agentflow.migrations import MARK, is_laboratory, standing
from tests.security.test_homes import plain
from tests.support.helpers import administrator, database_of_its_own, eventually
from tests.support.programs import Program, Shell, agentflow, environment, installed_running, running

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
CREATE SCHEMA start_here_1; CREATE TABLE start_here_1.numbers (n serial);
CREATE SCHEMA agentflow_1; CREATE VIEW agentflow_1.numbers AS SELECT 1;
CREATE SCHEMA kept; CREATE VIEW kept.seen AS SELECT * FROM start_here.customers;
CREATE SCHEMA marked; COMMENT ON SCHEMA marked IS 'made by AgentFlow';
CREATE TABLE marked.workflows AS SELECT 1 AS n; CREATE TABLE marked.tool_ledger AS SELECT 2 AS n"""
# Somebody's roles, with members, comments and settings; their names begin with the database's.
ROLES = """
CREATE ROLE {0}_worker LOGIN CONNECTION LIMIT 3; COMMENT ON ROLE {0}_worker IS 'made by AgentFlow, they said';
CREATE ROLE {0}_boss; GRANT {0}_boss TO {0}_worker WITH ADMIN OPTION; GRANT {0}_worker TO {1};
ALTER ROLE {0}_worker SET work_mem = '7MB'; ALTER ROLE {0}_worker IN DATABASE {0} SET search_path = start_here;
ALTER DATABASE {0} SET work_mem = '5MB'; COMMENT ON DATABASE {0} IS 'agentflow'"""
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
SELECT 'column ' || attrelid::regclass || '.' || attname,
       concat_ws('|', atttypid, attnotnull, attacl, col_description(attrelid, attnum))
FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
WHERE attnum > 0 AND relnamespace >= 2200 AND relnamespace <> 'information_schema'::regnamespace AND relkind <> 't'
UNION ALL
SELECT 'trigger ' || tgrelid::regclass || '.' || tgname, concat(pg_get_triggerdef(oid), tgenabled) FROM pg_trigger
UNION ALL
SELECT 'constraint ' || conrelid::regclass || '.' || conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid > 0
UNION ALL
SELECT 'role ' || rolname, to_jsonb(r)::text || coalesce(shobj_description(oid, 'pg_authid'), '')
FROM pg_roles AS r WHERE starts_with(rolname, $1) OR rolname = current_user
UNION ALL
SELECT 'member ' || member::regrole || ' of ' || roleid::regrole,
       concat_ws('|', grantor, admin_option, inherit_option, set_option)
FROM pg_auth_members WHERE starts_with(roleid::regrole::text, $1)
UNION ALL
SELECT concat_ws(' ', 'setting', setdatabase, setrole), setconfig::text
FROM pg_db_role_setting LEFT JOIN pg_roles ON pg_roles.oid = setrole
WHERE starts_with(rolname, $1) OR setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
UNION ALL
SELECT concat_ws(' ', 'right on the database', grantee, privilege_type), concat_ws('|', grantor, is_grantable)
FROM pg_database, aclexplode(coalesce(datacl, acldefault('d', datdba))) WHERE datname = current_database()
UNION ALL
SELECT 'database', concat_ws('|', datdba, datconnlimit, datallowconn, shobj_description(oid, 'pg_database'))
FROM pg_database WHERE datname = current_database()"""


def inventory(database: Database, roles: str | None = None) -> dict[str, str]:
    """Everything in the database, and what it is like: names, owners, rights, comments, settings, rows.

    Roles belong to the whole server, where other tests run too: those of this test begin with `roles` (default: the database).
    """
    asked = _INVENTORY.replace("$1", f"'{roles or database.url.database}'").encode()
    with database.session() as session:
        session.execute("SET search_path = ''")
        found = {name: str(what) for name, what in map(dict.values, session.execute(asked).fetchall())}
        for name in [one for one, what in found.items() if one.startswith("relation ") and what.split("|")[1] in "rS"]:
            rows = (
                f"SELECT array_agg(row(t.*)::text ORDER BY row(t.*)::text) AS rows FROM {name.split()[1]} AS t".encode()
            )
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
    admin, name = Database(administrator(url)), f"t_{uuid.uuid4().hex[:12]}"
    with database_of_its_own(url, name) as address:
        monkeypatch.setenv("DATABASE_URL", address)
        database = Database(address, patience=1)
        admin.command(ROLES.format(name, database.url.username))
        database.command(f"{THEIRS}; GRANT SELECT ON start_here.customers TO {name}_worker")
        before = inventory(database)
        yield database
        after = inventory(database)
        database.close()
    roles = admin.read_sql("SELECT rolname FROM pg_roles WHERE starts_with(rolname, :name)", {"name": name})[1]
    admin.command("; ".join(f"DROP ROLE {one['rolname']}" for one in roles))
    admin.close()
    assert {one: after.get(one) for one in before} == before


IN_THE_MIDDLE = b"SELECT pg_backend_pid(), pg_current_xact_id()"


@dataclass
class Beside:
    """Somebody's files, links, programs and a session, around us and in our home, under names that look like ours."""

    here: Path  # where commands are started
    home: Path
    port: int  # on which a program of somebody's listens
    session: psycopg.Connection[Any]  # in the middle of a transaction
    programs: list[subprocess.Popen[bytes]]
    in_the_middle: Any
    before: Any = None

    @property
    def environment(self) -> dict[str, str]:
        """What commands are started with."""
        person = str(self.here.parent / "person")
        return environment(AGENTFLOW_HOME=str(self.home), AGENTFLOW_SCHEMA="lab", HOME=person)

    def seen(self) -> Any:
        """Each file and link, and each program, as it is now."""
        return files(self.here.parent), [
            (one.poll(), found.cmdline(), found.nice(), found.open_files(), found.status() in ("stopped", "zombie"))
            for one in self.programs
            for found in [psutil.Process(one.pid)]
        ]

    def check(self) -> None:
        """All is as it was; what is new does not count."""
        (then, ran), (now, runs) = self.before, self.seen()
        assert {name: (one, now.get(name)) for name, one in then.items() if now.get(name) != one} == {}
        assert runs == ran
        assert self.session.execute(IN_THE_MIDDLE).fetchone() == self.in_the_middle
        with socket.create_connection(("127.0.0.1", self.port), timeout=5):
            pass


def files(top: Path) -> dict[str, Any]:
    """Every file, link and folder below: what is in it, owner, permissions, and of files which it is and when it was changed."""
    found: dict[str, Any] = {}
    for path in (top, *top.rglob("*")):
        one = path.lstat()
        inside = os.readlink(path) if path.is_symlink() else path.read_bytes() if stat.S_ISREG(one.st_mode) else None
        time = () if path.is_dir() and inside is None else (one.st_ino, one.st_nlink, one.st_mtime_ns)
        found[str(path)] = (inside, one.st_uid, one.st_gid, one.st_mode, *time)
    return found


def program(stack: ExitStack, name: str, *held: Any) -> subprocess.Popen[bytes]:
    """A program of somebody's runs under this name, with these files and sockets open; it ends when it is killed, or with us."""
    process = subprocess.Popen(
        [name, "-c", "echo; read _"], executable="/bin/sh", pass_fds=[one.fileno() for one in held],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    stack.enter_context(process)
    stack.callback(process.kill)
    assert process.stdout and process.stdout.readline()  # it has begun, and opens nothing more
    return process


@pytest.fixture
def beside(theirs: Database, tmp_path: Path) -> Iterator[Beside]:
    here, ours, thesis = tmp_path / "here", tmp_path / "home", tmp_path / "thesis.txt"
    plain(ours)
    for one in ours.rglob("*"):
        one.chmod(0o700 if one.is_dir() else 0o600)
    for name in (
        "here/notes.txt", "here/lab.json", "here/artifacts/lab.svg", "here/.agentflow", "here/bystanders/agentflow.py",
        "home/notes.txt", "home/socket/notes.txt", "home/socket/.s.PGSQL.5432.bak", "home/data.new-thesis/thesis.txt",
        "person/.local/share/agentflow/lock", "person/.jupyter/notes.txt", "thesis.txt",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"mine: {name}\n")
    for name in ("here/artifacts/reliability-report.json", "home/data.new-link", "here/to-thesis"):
        (tmp_path / name).symlink_to(thesis)
    os.link(here / "lab.json", here / "another-name.json")
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        session = stack.enter_context(connect(theirs.address, application_name="agentflow worker"))
        session.execute("LISTEN lab; BEGIN; SELECT FROM start_here.customers FOR UPDATE")
        with (here / "notes.txt").open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            programs = [
                program(stack, f"postgres -D {ours / 'data'}"), program(stack, "agentflow worker --schema lab", held),
                program(stack, "agentflow api", listener), program(stack, "python -m agentflow.jupyterlab"),
            ]  # fmt: skip
        middle, port = session.execute(IN_THE_MIDDLE).fetchone(), listener.getsockname()[1]
        listener.close()
        (ours / "data" / "postmaster.pid").write_text(f"{programs[0].pid}\n{ours / 'data'}\n")
        beside = Beside(here, ours, port, session, programs, middle)
        beside.before = beside.seen()
        yield beside
        beside.check()


# Every command, as it meets a schema that is somebody's. A new one is in none of these lists, and the tests say so.
EVERY = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
NO_SCHEMA = {"diff", "stop"}
ONE = ["--requests", "-", "--workers", "1", "--kills", "0"]
NONE = ["--crashes", "0", "--expiries", "0", "--lost-replies", "0"]
SERVING = (["api", "--port", "0", "--json"], ["worker"])
COMMANDS = (
    ["migrate"], ["migrate", "--laboratory"], ["reset", "--yes"], ["free"], ["report", "--json"], ["doctor"], ["check"],
    ["submit", "--requests", "-"], ["soak", *ONE], ["play", "A*"], ["play", "A*", "--lanes", "process"], ["explore", *NONE],
    ["atlas"], ["grant"], ["lab", "--no-browser"], *SERVING,
)  # fmt: skip


def test_no_command_changes_what_is_in_somebody_elses_schema(theirs: Database, beside: Beside) -> None:
    assert {command[0] for command in COMMANDS} == EVERY - NO_SCHEMA
    before = inventory(theirs)
    with Shell(beside.environment, beside.here) as shell:
        for schema in ("start_here", "agentflow"):
            for command in COMMANDS:
                if schema == "agentflow" and command in SERVING:
                    continue
                done = shell.run(*command, "--schema", schema, stdin="a request\n")
                assert done.returncode != 0 and "Traceback" not in done.stderr, (command, done.stderr)
                assert "drop" not in done.stderr.lower()  # no advice to delete what is not known to be ours
                beside.check()
    # Where what they look for first has our names, these begin, and say what is wrong when they are asked to do something.
    api, worker = (running(*one, "--schema", "agentflow", env=beside.environment, cwd=beside.here) for one in SERVING)
    with api, worker:
        assert api.stdout and worker.stdout
        told = json.loads(api.stdout.readline())
        bearer = {"authorization": f"Bearer {told['token']}"}
        for verb, sent in (("GET", None), ("POST", {"request": "x"})):
            asked = httpx.request(verb, f"{told['url']}/workflows", json=sent, headers=bearer, trust_env=False)
            assert asked.status_code == 503
        assert "worker_started" in worker.stdout.readline() and "SchemaMissing" in worker.stdout.readline()
    assert inventory(theirs) == before  # nothing new either


def test_no_command_changes_what_is_somebody_elses_while_it_works(theirs: Database, beside: Beside) -> None:
    """Each does its work, in a schema that AgentFlow makes between somebody's."""
    before, tried = inventory(theirs), set()
    env = beside.environment
    admin = {**env, "DATABASE_URL": administrator(theirs.address)}

    def ends(code: int, *command: str, env: Mapping[str, str] = env, cwd: Path = beside.here) -> None:
        done = shell.run(*command, env=env, stdin="I cannot login\n", cwd=cwd)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), (command, done.stdout, done.stderr)
        beside.check()
        tried.add(command[0])

    def runs(*command: str) -> Program:
        tried.add(command[0])
        return running(*command, env=env, cwd=beside.here)

    with Shell(env, beside.here) as shell:
        ends(0, "migrate", "--laboratory")
        ends(0, "submit", "--requests", "-")
        with runs("worker", "--poll", "0.05") as worker:
            eventually(lambda: theirs.read_sql("SELECT FROM lab.workflows WHERE status = 'completed'")[1])
            os.kill(worker.pid, signal.SIGTERM)
            assert worker.wait(20) == 0
        ends(1, "api", "--port", str(beside.port))
        with runs("api", "--port", "0", "--json") as api:
            assert api.stdout
            told = json.loads(api.stdout.readline())
            bearer = {"authorization": f"Bearer {told['token']}"}
            asked = httpx.get(f"{told['url']}/workflows", headers=bearer, trust_env=False)
            assert len(asked.json()) == 1
            os.kill(api.pid, signal.SIGTERM)
            api.wait(20)
        with runs("lab", "--no-browser", "--port", str(beside.port)) as lab:
            assert lab.stdout and "is ready" in lab.stdout.readline()  # JupyterLab itself: see below
        ends(0, "doctor")
        ends(0, "check")
        ends(0, "free")
        ends(1, "report")  # a link is in the way
        (beside.here / "mine").mkdir()
        ends(0, "report", cwd=beside.here / "mine")
        ends(1, "grant", "--prefix", str(theirs.url.database), env=admin)  # one of the roles is somebody's
        ends(0, "grant", "--prefix", f"{theirs.url.database}_lab", env=admin)
        ends(0, "play", "A*", "--capsule", "a.json", "--svg", "a.svg", "--schema", "mine")
        ends(0, "play", "A*", "--capsule", "b.json", "--schema", "mine", "--lanes", "process")
        ends(0, "diff", "a.json", "b.json")
        ends(0, "explore", *NONE, "--schema", "mine")
        ends(0, "soak", *ONE, "--schema", "mine")
        ends(0, "stop")
        ends(0, "reset", "--yes")
    assert tried == EVERY - {"atlas"}
    after = inventory(theirs)
    assert {name: after.get(name) for name in before} == before
    assert [name for name in after if " mine" in name] == []


def test_a_report_takes_the_place_of_a_report_and_of_nothing_else(engine: Engine, tmp_path: Path) -> None:
    report, theirs = tmp_path / "artifacts" / "reliability-report.json", tmp_path / "theirs.json"
    for _ in range(2):
        engine.write_reliability_report(report)
    theirs.write_text(ours := report.read_text())
    for kind in (
        lambda: report.symlink_to(theirs),
        lambda: os.link(theirs, report),
        lambda: report.write_text("{}"),
        report.mkdir,
    ):
        report.unlink()
        kind()
        before = files(tmp_path)
        with pytest.raises(AgentFlowError, match=r"is in the way and no report of AgentFlow's\. Nothing was written"):
            engine.write_reliability_report(report)
        assert files(tmp_path) == before
    assert theirs.read_text() == ours


@pytest.mark.long
def test_atlas_jupyterlab_and_a_server_of_ours_leave_alone_what_is_somebody_elses(
    theirs: Database, beside: Beside, tmp_path: Path
) -> None:
    before = inventory(theirs)
    env = beside.environment
    for command in (["atlas"], ["soak", "--requests", "-", "--workers", "2", "--kills", "4"]):
        done = agentflow(*command, "--schema", "mine", env=env, stdin="a\nb\nc\n", cwd=beside.here)
        assert done.returncode == 0, done.stderr
        beside.check()
    with installed_running("lab", "--no-browser", "--port", str(beside.port), env=env, cwd=beside.here) as lab:
        assert lab.stderr and any("/lab/tree/notebooks" in line for line in lab.stderr)
        beside.check()
        lab.terminate()
        lab.wait(30)
    after = inventory(theirs)
    assert {name: after.get(name) for name in before} == before
    ours, notes = tmp_path / "server", ("notes.txt", "socket/notes.txt", "data.new-thesis/thesis.txt")
    home.make(ours)
    for name in notes:
        (ours / name).parent.mkdir(mode=0o700, exist_ok=True)
        (ours / name).write_text("mine")
    kept, env = files(ours), env | {"AGENTFLOW_HOME": str(ours)}
    del env["DATABASE_URL"]
    for command in ("migrate", "stop", "migrate", "stop"):
        assert agentflow(command, env=env, cwd=beside.here).returncode == 0
        beside.check()
        assert {name: one for name, one in files(ours).items() if name in kept} == kept
        if command == "stop":  # as after a crash, and somebody's process has the number since
            (ours / "data" / "postmaster.pid").write_text((beside.home / "data" / "postmaster.pid").read_text())


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


def test_a_reset_empties_no_table_that_inherits_from_ours(theirs: Database) -> None:
    engine = fresh_laboratory("mixed")
    theirs.command("CREATE TABLE mixed.archive() INHERITS (mixed.workflows)")
    engine.create_workflow("r")
    theirs.command("INSERT INTO mixed.archive SELECT * FROM ONLY mixed.workflows")
    engine.reset_database()
    assert theirs.read_sql("SELECT count(*) FROM mixed.archive")[1] == [{"count": 1}]
    let_go("engine", "mixed")


def test_a_schema_with_effects_alone_becomes_no_laboratory(theirs: Database) -> None:
    migrate(database := Database(theirs.address, "orders"))
    Engine(database).execute_simulated_tool("order-1:pay")
    with pytest.raises(NotALaboratory, match="contains workflows or effects"):
        fresh_laboratory("orders")
    assert theirs.read_sql("SELECT count(*) FROM orders_world.tool_ledger")[1] == [{"count": 1}]
    database.close()


def test_no_function_of_somebody_elses_is_called_for_postgresqls_own(theirs: Database) -> None:
    """It takes our arguments better than PostgreSQL's; whoever may create in `public` could leave it there."""
    for name in ("obj_description(oid, text)", "to_regclass(text)"):
        theirs.command(
            f"CREATE FUNCTION public.{name} RETURNS text LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE 'somebody else was asked'; END $$"
        )
    engine = fresh_laboratory("mixed")
    engine.create_workflow("r")
    assert engine.run_once("A")
    let_go("engine", "mixed")


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
