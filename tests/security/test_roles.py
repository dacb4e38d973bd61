"""Rights: our server's role is no superuser, a granted role can do its work and no more, and rows need no right to create."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentflow import Database, Engine, migrate
from agentflow.doctor import examine
from agentflow.errors import AgentFlowError, BadName
from agentflow.grants import grant
from agentflow.lab.laboratory.laboratory import fresh_laboratory, let_go
from agentflow.lab.verify.checker import find_mistakes
from agentflow.server import ADMIN, Server
from tests.security.test_bystanders import inventory
from tests.support.helpers import administrator, database_of_its_own
from tests.support.programs import Shell, agentflow, environment

Login = Callable[[str], Database]


@pytest.fixture
def admin(url: str) -> Iterator[Database]:
    """A database of our own, as its server's administrator sees it; schema `lab`."""
    with database_of_its_own(url) as address:
        database = Database(administrator(address), "lab", patience=1)
        yield database
        database.close()


@pytest.fixture
def login(admin: Database) -> Iterator[Login]:
    """Makes logins that have one role, or none, and are gone afterwards with all roles of this test's prefix."""
    made: list[Database] = []

    def make(role: str = "") -> Database:
        name = f"r_{uuid.uuid4().hex[:12]}"
        admin.command(f"CREATE ROLE {name} LOGIN {f'IN ROLE {role}' * bool(role)}")
        where = admin.url.set(username=name).render_as_string(hide_password=False)
        made.append(Database(where, "lab", patience=1))
        return made[-1]

    yield make
    for database in made:
        database.close()
        name = database.url.username
        admin.command(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}")
    with admin.session() as session:
        for row in session.execute("SELECT rolname FROM pg_roles WHERE rolname LIKE 'grant\\_%'").fetchall():
            session.execute(f"DROP OWNED BY {row['rolname']} CASCADE; DROP ROLE {row['rolname']}".encode())


def ours(admin: Database) -> Database:
    """The same database for the role that owns it."""
    return Database(admin.address.replace("://postgres@/", "://agentflow@/", 1), "lab", patience=1)


def refused(database: Database, *commands: str) -> None:
    """PostgreSQL allows none of these, for want of rights."""
    for command in commands:
        with pytest.raises(AgentFlowError, match=r"permission denied|must be owner"):
            database.command(command)


# -- the embedded server ---------------------------------------------------------------------------------------------


def test_the_role_that_people_use_is_no_superuser_and_may_make_no_roles_and_databases(url: str) -> None:
    database = Database(url)
    _, (row,) = database.read_sql(
        "SELECT rolsuper, rolcreaterole, rolcreatedb, rolbypassrls FROM pg_roles WHERE rolname = current_user"
    )
    assert not any(row.values())
    refused(database, "CREATE ROLE another", "CREATE DATABASE another", "COPY (SELECT 1) TO PROGRAM 'true'")
    refused(database, "SELECT pg_read_file('/etc/passwd')", "ALTER SYSTEM SET fsync = off")
    _, (owner,) = database.read_sql("SELECT pg_get_userbyid(datdba) AS is FROM pg_database WHERE datname = 'agentflow'")
    assert owner == {"is": "agentflow"}
    database.close()


@pytest.mark.long
def test_an_older_home_whose_role_is_the_superuser_works_on_and_doctor_says_what_a_new_one_does_better() -> None:
    folder = Path(tempfile.mkdtemp(prefix="af-"))
    older = Server(folder / "home")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("agentflow.server.ADMIN", "agentflow")
            older.start()
        assert older.administrator() == "agentflow" != ADMIN
        older.stop()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AGENTFLOW_HOME", str(older.home))
            patch.delenv("DATABASE_URL", raising=False)
            engine = fresh_laboratory("older_home")
            engine.create_workflow("login")
            assert engine.run_until_idle("w") == 1
            (said,) = [one for one in examine("older_home") if one.topic == "role"]
            assert said.ok and "superuser" in said.says and "new" in said.says
            let_go("engine", "older_home")
    finally:
        older.stop()
        shutil.rmtree(folder)


# -- grants ----------------------------------------------------------------------------------------------------------


def test_each_role_can_do_its_work_and_no_more(admin: Database, login: Login) -> None:
    migrate(ours(admin), laboratory=True)
    roles = grant(admin, "grant")
    assert roles == ["grant_owner", "grant_worker", "grant_reader"] and grant(admin, "grant") == roles
    owner, worker, reader, nobody = (login(one) for one in (*roles, ""))

    engine = Engine(worker)
    engine.create_workflows(["login"] * 3, workflow_ids=["a", "b", "c"])
    engine.cancel_workflow("c")
    assert engine.run_until_idle("w") == 2
    refused(
        worker,
        "DELETE FROM lab.workflows",
        "TRUNCATE lab.history",
        "UPDATE lab.history SET n = 9",
        "UPDATE lab.steps SET position = 9",
        "DELETE FROM lab_world.tool_ledger",
    )
    refused(
        worker,
        "CREATE TABLE lab.more (n int)",
        "DROP TABLE lab.steps",
        "UPDATE lab_world.tool_attempts SET attempt = 9",
        "CREATE SCHEMA more",
    )
    with pytest.raises(AgentFlowError):
        engine.reset_database()

    assert Engine(reader).reliability_metrics()["workflows_completed"] == 2
    assert find_mistakes(reader) == [] and Engine(reader).history("a")
    refused(
        reader,
        "DELETE FROM lab.workflows",
        "INSERT INTO lab.history SELECT * FROM lab.history",
        "UPDATE lab.workflows SET state = 'X'",
    )
    refused(nobody, "SELECT FROM lab.workflows", "SELECT FROM lab_world.tool_ledger")

    Engine(owner).reset_database()
    admin.command("DROP TABLE lab_world.tool_ledger")
    migrate(owner, laboratory=True)
    assert Engine(owner).list_workflows() == []
    refused(owner, "CREATE SCHEMA more", "CREATE ROLE more")
    grant(admin, "grant")  # also what an owner has made since
    Engine(ours(admin)).reset_database()  # who made the tables may still do all with them
    Engine(worker).create_workflow("login")


def test_what_only_needs_rows_never_asks_for_the_right_to_create(admin: Database, login: Login, tmp_path: Path) -> None:
    migrate(ours(admin), laboratory=True)
    worker = login(grant(admin, "grant")[1])
    with Shell(environment(DATABASE_URL=worker.address), tmp_path) as shell:
        commands = (["migrate"], ["submit", "--requests", "-"], ["report"])
        every = [shell.run(*command, "--schema", "lab", stdin="login\n") for command in commands]
    for done in every:
        assert "create" not in done.stderr and "permission" not in done.stderr, done.stderr
    assert [row["status"] for row in Engine(worker).list_workflows()] == ["ready"]


def test_a_role_of_that_name_that_is_somebody_elses_is_left_alone(admin: Database, login: Login) -> None:
    migrate(ours(admin))
    admin.command("CREATE ROLE grant_worker; COMMENT ON ROLE grant_worker IS 'the night shift'")
    before = inventory(admin, "grant")
    with pytest.raises(BadName, match="'grant_worker' is there, and AgentFlow did not make it for this schema"):
        grant(admin, "grant")
    assert inventory(admin, "grant") == before


def test_who_may_make_no_roles_is_told_and_nothing_is_granted(admin: Database) -> None:
    migrate(ours(admin))
    before = inventory(admin, "grant")
    with pytest.raises(
        AgentFlowError, match=r"(?s)could not be made \(permission denied to create role.*Nothing was changed"
    ):
        grant(ours(admin), "grant")
    assert inventory(admin, "grant") == before


# -- schemas that a DBA made -----------------------------------------------------------------------------------------


def test_schemas_of_a_dba_are_filled_by_their_owner_without_the_right_to_create_schemas(
    admin: Database, login: Login
) -> None:
    student = login("")
    name = student.url.username
    admin.command(f"REVOKE CREATE ON DATABASE {admin.url.database} FROM PUBLIC")
    admin.command(f"CREATE SCHEMA lab AUTHORIZATION {name}; CREATE SCHEMA lab_world AUTHORIZATION {name}")
    admin.command(
        "COMMENT ON SCHEMA lab IS 'for ada'; ALTER DEFAULT PRIVILEGES IN SCHEMA lab GRANT SELECT ON TABLES TO PUBLIC"
    )
    before = inventory(admin)
    done = agentflow("migrate", "--laboratory", "--schema", "lab", env=environment(DATABASE_URL=student.address))
    assert (done.returncode, done.stderr) == (0, "")
    engine = Engine(student)
    engine.create_workflow("login")
    assert engine.run_until_idle("w") == 1
    engine.reset_database()
    assert {one: what for one, what in inventory(admin).items() if one in before} == before
    grant(admin, "grant")
    assert {one: what.split("|")[1] for one, what in inventory(admin).items() if one.startswith("schema lab")} == {
        one: what.split("|")[1] for one, what in before.items() if one.startswith("schema lab")
    }


def test_an_empty_schema_of_another_role_is_not_filled_even_by_a_superuser(admin: Database, login: Login) -> None:
    name = login("").url.username
    admin.command(f"CREATE SCHEMA lab AUTHORIZATION {name}")
    before = inventory(admin)
    with pytest.raises(
        AgentFlowError, match=f"is empty and belongs to the role '{name}'. Nothing was changed; ask its owner"
    ):
        migrate(admin)
    assert inventory(admin) == before
