"""What reads outside a worker waits for its database, too: any one request is cut, a server is away at the end, rights lack."""

from __future__ import annotations

import os
import re
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest

from agentflow import Database, Engine, migrate, migrations
from agentflow.cli import launch
from agentflow.doctor import examine
from agentflow.errors import DatabaseAway, NotALaboratory
from agentflow.lab.crashes.soak import soak
from agentflow.lab.explorer.explore import explore
from agentflow.lab.laboratory import scratch_schema
from agentflow.lab.laboratory.scratch_schema import own_schema
from agentflow.lab.notebook.tables import query
from agentflow.lab.verify.checker import find_mistakes
from agentflow.lab.verify.snapshot import read_rows
from agentflow.server import Server, ensure_running
from agentflow.stuck import free, look_for_stuck
from tests.conftest import drop, rows
from tests.support.helpers import administrator, eventually, working
from tests.support.isolation import Session
from tests.support.programs import agentflow, environment, running, started
from tests.support.proxy import Proxy
from tests.support.signals import send


def schemas(database: Database, like: str) -> list[str]:
    _, found = database.read_sql("SELECT nspname FROM pg_namespace WHERE nspname LIKE :name", {"name": f"{like}%"})
    return [row["nspname"] for row in found]


def made_and_dropped(database: Database) -> None:
    name = f"own_{uuid.uuid4().hex[:12]}"
    with own_schema(database.address, name) as own:
        assert migrations.standing(own) == "current"


def by_alembic(database: Database) -> None:
    other = Database(database.address, f"own_{uuid.uuid4().hex[:12]}")
    kept, migrations._script[:] = migrations._script[:], []
    try:
        migrate(other)
        assert migrations.standing(other) == "current"
    finally:
        migrations._script[:] = kept
        drop(other)


def healthy(database: Database) -> None:
    os.environ["DATABASE_URL"] = database.address
    assert [one.says for one in examine(database.schema) if not one.ok] == []


def seen(database: Database) -> None:
    assert look_for_stuck(database).found == []


READERS: dict[str, Callable[[Database], Any]] = {
    "standing": migrations.standing,
    "migrate": migrate,
    "migrate by Alembic": by_alembic,
    "a schema of one's own": made_and_dropped,
    "doctor": healthy,
    "checker": find_mistakes,
    "query": lambda database: query(Engine(database), "SELECT id FROM workflows"),
    "all rows": lambda database: read_rows(Engine(database)),
    "figures": lambda database: Engine(database).reliability_metrics(),
    "stuck": seen,
    "free": free,
}


@pytest.mark.parametrize("name", READERS)
def test_any_one_request_may_be_cut(engine: Engine, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "")  # restored afterwards
    engine.create_workflow("x")
    with Proxy(engine.database) as proxy:
        for nth in range(1, 300, 5 if "Alembic" in name else 1):
            database, before = Database(proxy.url, engine.database.schema), proxy.lost
            proxy.cut_request(nth)
            READERS[name](database)
            database.close()
            if proxy.lost == before:
                break
        assert nth > 3
    assert schemas(engine.database, "own_") == []


def test_a_worker_that_starts_while_any_one_request_is_cut_waits_and_works(engine: Engine) -> None:
    with Proxy(engine.database) as proxy:
        for nth in range(1, 17):
            made = engine.create_workflow("x")["id"]
            proxy.cut_request(nth)
            with closing(Engine(Database(proxy.url, engine.database.schema))) as starting:
                launch.wait_for_tables(starting.database, "w")
                with working(starting.worker("w", poll_seconds=0.05, lease_seconds=0.5)):
                    eventually(lambda made=made: (engine.get_workflow(made) or {})["status"] == "completed")
                    eventually(lambda nth=nth: proxy.lost == nth)


@pytest.mark.parametrize("nth", [8, 13])
def test_the_command_worker_does_so_too(engine: Engine, nth: int) -> None:
    engine.create_workflow("x")
    with Proxy(engine.database) as proxy:
        proxy.cut_request(nth)
        env = environment(DATABASE_URL=proxy.url, AGENTFLOW_SCHEMA=engine.database.schema)
        with running("worker", "--poll", "0.1", "--lease", "1", env=env) as process:
            assert any("workflow_completed" in line for line in process.stdout or ())
            assert proxy.lost == 1
            send(process.pid, signal.SIGTERM)
            assert process.communicate()[1] == ""
            assert process.returncode == 0


@pytest.fixture
def stranger(engine: Engine, url: str) -> Iterator[str]:
    """The address of the laboratory's database for a user without any right in it."""
    role = f"r_{uuid.uuid4().hex[:12]}"
    with Session(Database(administrator(url))) as session:
        session.run(f"CREATE ROLE {role} LOGIN")
        yield engine.database.url.set(username=role).render_as_string(hide_password=False)
        session.run(f"DROP ROLE {role}")


COMMANDS = (["worker"], ["api", "--port", "0"], ["report"], ["free"], ["atlas", "--no-progress"], ["explore", "--no-progress"],
            ["soak", "--requests", "-", "--no-progress"])  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_a_user_without_rights_is_told_so_in_one_sentence(engine: Engine, stranger: str, command: list[str]) -> None:
    env = environment(DATABASE_URL=stranger, AGENTFLOW_SCHEMA=engine.database.schema)
    if command[0] in ("atlas", "explore", "soak"):
        env.pop("AGENTFLOW_SCHEMA")
    done = agentflow(*command, env=env, stdin="a request\n")
    assert done.returncode == 1, done
    assert done.stderr.startswith("agentflow: ") and len(done.stderr.splitlines()) == 1
    assert "permission denied" in done.stderr and "Error:" not in done.stderr


def test_doctor_goes_on_to_its_end_for_a_user_without_rights(
    engine: Engine, stranger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", stranger)
    found = {one.topic: one for one in examine(engine.database.schema)}
    assert "permission denied" in found["schema"].says and "rights" in found["schema"].mend
    assert [one.topic for one in found.values() if not one.ok] == ["schema"]
    assert list(found)[-1] == "Chromium"


def test_a_reader_is_told_that_nobody_looked_whether_work_is_stuck(
    engine: Engine, stranger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", stranger)
    engine.create_workflow("x")
    role = stranger.partition("://")[2].partition("@")[0]
    with Session(engine.database) as session:
        for one in (engine.database.schema, f"{engine.database.schema}_world"):
            session.run(f'GRANT USAGE ON SCHEMA "{one}" TO {role}')
            session.run(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{one}" TO {role}')
        try:
            (queue,) = (one for one in examine(engine.database.schema) if one.topic == "queue")
        finally:
            for one in (engine.database.schema, f"{engine.database.schema}_world"):
                session.run(f'REVOKE ALL ON SCHEMA "{one}" FROM {role}')
                session.run(f'REVOKE ALL ON ALL TABLES IN SCHEMA "{one}" FROM {role}')
    assert "not observed" in queue.says and not queue.ok


# -- a server that restarts, or is away at the end -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of our own, to be crashed."""
    started = ensure_running(tmp_path_factory.mktemp("server"))
    yield started
    started.stop()


@contextmanager
def restarted(server: Server, when: Callable[[], Any]) -> Iterator[None]:
    """Meanwhile the server crashes at that moment, and is started again."""

    # By another process: one that is forked here meanwhile would inherit the file lock under which a server is started.
    code = f"from pathlib import Path; from agentflow.server import Server; one = Server(Path({str(server.home)!r}))"

    def restart() -> None:
        eventually(when)
        with started([], code=f"{code}; one.crash(); one.start()") as process:
            assert process.wait() == 0

    thread = threading.Thread(target=restart)
    thread.start()
    yield
    thread.join(60)
    assert not thread.is_alive()


def test_a_soak_survives_a_restart_and_leaves_no_schema(server: Server) -> None:
    address = server.start().url()
    watching = Engine(Database(address, "soak_here"))

    def some_are_done() -> bool:
        if schemas(watching.database, "soak_here_world") and migrations.standing(watching.database) == "current":
            return bool(rows(watching, "SELECT FROM {s}.workflows WHERE status = 'completed'"))
        return False

    with restarted(server, some_are_done):
        report = soak(address, (f"request {n}" for n in range(60)), schema="soak_here", workers=2, kills=2)
    watching.close()
    assert (report.problems, report.workflows_completed, report.kills_happened) == ([], 60, 2)
    assert schemas(Database(address), "soak_here") == []


def test_an_exploration_survives_a_restart_and_leaves_no_schema(server: Server) -> None:
    engine = Engine(Database(server.start().url()))
    with restarted(server, lambda: schemas(engine.database, "explored_world")):
        assert explore(engine, crashes=1, expiries=1, lost_replies=0, schema="explored").ok
    assert schemas(engine.database, "explored") == []
    engine.close()


def test_a_schema_of_ones_own_is_dropped_when_the_server_is_back(server: Server) -> None:
    thread = threading.Thread(target=server.start)

    def fail() -> None:
        server.stop()
        thread.start()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), own_schema(server.start().url(), "own_back"):
        fail()
    thread.join(60)
    assert schemas(Database(server.url()), "own_back") == []


@pytest.mark.parametrize("fails", [False, True])
def test_what_could_not_be_dropped_is_said(server: Server, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    monkeypatch.setattr(scratch_schema, "Database", partial(Database, patience=0.1))

    def end() -> None:
        server.stop()
        if fails:
            raise ZeroDivisionError

    kind = ZeroDivisionError if fails else DatabaseAway
    with pytest.raises(kind) as caught, own_schema(server.start().url(), "own_left"):
        end()
    said = " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    (mark,) = re.findall("has the comment '(made by AgentFlow, [0-9a-f]{32})'", said)
    left = Database(server.start().url(), "own_left")
    assert schemas(left, "own_left") == ["own_left", "own_left_world"]
    scratch_schema.drop_schemas(left, mark)
    assert schemas(left, "own_left") == []
    left.close()


def test_a_schema_of_somebody_elses_is_never_dropped(server: Server) -> None:
    database = Database(server.start().url(), "theirs")
    database.command("CREATE SCHEMA theirs_world")
    with pytest.raises(NotALaboratory, match="already exists"), own_schema(server.url(), "theirs"):
        pass
    assert schemas(database, "theirs") == ["theirs_world"]
    database.command("DROP SCHEMA theirs_world")
    database.close()
