"""The recipe for a JupyterHub (docs/teaching.md), as it stands there, on a PostgreSQL of its own that asks for passwords."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import psycopg
import pytest

from agentflow import Database, Engine, migrate
from agentflow.address import connect, parts
from agentflow.lab.course.record import open_record
from agentflow.server import Server

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "teaching.md").read_text(encoding="utf-8")
Hub = Callable[[str], str]


def query(url: str, sql: str) -> list[tuple[object, ...]]:
    with connect(url) as connection:
        found = connection.execute(sql.encode())
        return found.fetchall() if found.description else []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("hub") / "home").start()
    ours = "local all agentflow,postgres trust\n"
    (server.data / "pg_hba.conf").write_text(f"{ours}local all all scram-sha-256\n")
    query(superuser(server), "SELECT pg_reload_conf()")
    yield server
    server.stop()


def superuser(server: Server) -> str:
    for name in ("postgres", "agentflow"):
        url = server.url("postgres").replace("://agentflow@", f"://{name}@", 1)
        try:
            if query(url, f"SELECT 1 FROM pg_roles WHERE rolname = '{name}' AND rolsuper"):
                return url
        except psycopg.OperationalError:
            continue
    raise AssertionError("nobody is a superuser")


@pytest.fixture(scope="module")
def hub(server: Server) -> Hub:
    """Starts a person's server as the hub does; gives the address that the person's processes get, on this server's socket."""
    code = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "pre_spawn_hook" in block)
    admin = superuser(server).replace("+psycopg", "")
    code, replaced = re.subn(r'^ADMIN = ".*?".*$', f"ADMIN = {admin!r}", code, flags=re.MULTILINE)
    assert replaced == 1
    around = {"c": SimpleNamespace(Spawner=SimpleNamespace())}
    exec(code, around)

    def start(name: str) -> str:
        spawner = SimpleNamespace(user=SimpleNamespace(name=name), environment={})
        around["c"].Spawner.pre_spawn_hook(spawner)
        said = parts(spawner.environment["DATABASE_URL"])
        return f"postgresql://{said['user']}:{said['password']}@/{said['dbname']}?host={quote(server.host())}&port=5432"

    return start


def refused(url: str, sql: str = "SELECT") -> str:
    with pytest.raises(psycopg.Error) as error:
        query(url, sql)
    return str(error.value)


def test_each_person_has_a_role_and_a_database_that_nobody_else_enters(hub: Hub) -> None:
    ada, bob = hub("ada-l"), hub("ada_l")
    hers, his = parts(ada), parts(bob)
    assert len({hers["user"], his["user"], hers["dbname"], his["dbname"]}) == 2
    assert query(bob, "SELECT current_user::text") == [(his["user"],)]
    assert "permission denied for database" in refused(bob.replace(f"/{his['dbname']}?", f"/{hers['dbname']}?"))
    for common in ("postgres", "template1"):
        assert "permission denied for database" in refused(bob.replace(f"/{his['dbname']}?", f"/{common}?"))
    assert "password authentication failed" in refused(ada.replace(hers["password"], his["password"]))
    assert query(ada, "SELECT rolsuper OR rolcreaterole OR rolcreatedb FROM pg_roles WHERE rolname = current_user") == [
        (False,)
    ]


def test_any_name_of_a_person_makes_a_role_of_its_own(hub: Hub) -> None:
    names = ["ada.l@example.org", "ülkü", "ülké", "7", "x" * 70, "x" * 71, "'; DROP ROLE teacher; --"]
    made = [parts(hub(name))["user"] for name in names]
    assert len(set(made)) == len(names)
    assert all(re.fullmatch("[a-z0-9_]{1,63}", one) for one in made)


def test_the_next_start_has_a_new_password_and_the_same_rows(hub: Hub) -> None:
    before = hub("carol")
    query(before, "CREATE TABLE mine AS SELECT 1 AS one")
    after = hub("carol")
    assert query(after, "SELECT one FROM mine") == [(1,)]
    assert "password authentication failed" in refused(before)


def test_a_teacher_reads_the_answers_and_nothing_else(
    hub: Hub, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    dora = hub("dora")
    monkeypatch.setenv("DATABASE_URL", dora)
    for name in ("AGENTFLOW_SCHEMA", "AGENTFLOW_COURSE"):
        monkeypatch.delenv(name, raising=False)
    record = open_record()
    record.engine.create_workflow("an answer", name=next(iter(record.engine.workflows)))
    record.engine.close()
    with closing(Engine(Database(dora, "start_here"))) as engine:
        migrate(engine.database, laboratory=True)
        query(superuser(server), "CREATE ROLE t LOGIN PASSWORD 't' IN ROLE teacher")
        teacher = dora.replace(f"{parts(dora)['user']}:{parts(dora)['password']}@", "t:t@", 1)
        assert query(teacher, "SELECT count(*) FROM course.workflows") == [(1,)]
        for sql in (
            "DELETE FROM course.workflows", "CREATE TABLE course.mine (a int)", "SELECT FROM start_here.workflows",
            "CREATE SCHEMA mine", "CREATE TEMP TABLE mine (a int)",
        ):  # fmt: skip
            assert "permission denied" in refused(teacher, sql)
        with connect(teacher) as listening:
            listening.execute("LISTEN start_here")
            engine.create_workflow("a secret", workflow_id="ada-secret-id")
            heard = list(listening.notifies(timeout=5, stop_after=1))
    assert [one.payload for one in heard] == [""]


def test_the_packages_beside_the_lock_are_pinned() -> None:
    (installs,) = re.findall(r"^pip freeze .*$", PAGE, re.MULTILINE)
    assert "--constraint pins.txt" in installs
    assert re.findall(r"(\w+)==[\d.]+", installs) == ["jupyterhub", "nbgitpuller"]
    assert not re.search(r"pip install[^`\n]* jupyterhub(?!==)", PAGE)
