"""The door keeps its own connections: whole ones are used again, lost ones and inherited ones never."""

from __future__ import annotations

import multiprocessing
import re
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from agentflow import Boundary, Database, Engine
from agentflow.address import parts
from tests.conftest import rows
from tests.support.helpers import eventually


def session(database: Database) -> int:
    """The server process behind the connection that the door would use now."""
    cursor = database._take()
    database._idle.append(cursor)
    return cursor.connection.info.backend_pid


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///x",
        "postgres://u@h/x",
        "postgresql://u:p@h:5432/x?sslmode=require",
        "postgresql+psycopg://agentflow@/x?host=%2Ftmp%2Fx&port=5432",
        "postgresql+psycopg://u@h/x?options=-c+work_mem%3D1MB",
        "postgresql://u:p@[::1]:5432/x",
        "postgresql://ü:a/b#c?d: +é@k/x",
        "postgresql://u:50%off%40@h/x",
    ],
)
def test_an_address_is_read_as_sqlalchemy_reads_it(url: str) -> None:
    theirs = make_url(re.sub(r"^postgres(ql)?:", "postgresql+psycopg:", url))
    database = Database(url)
    assert database.url == theirs
    assert Database(database.address).address == database.address


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://u@h1:1,h2:2/x", {"user": "u", "host": "h1,h2", "port": "1,2", "dbname": "x"}),
        ("postgresql://u@h1,h2/x", {"user": "u", "host": "h1,h2", "dbname": "x"}),
        ("postgresql://h/x?options=-c%20a%3D1+2", {"host": "h", "dbname": "x", "options": "-c a=1+2"}),
        ("postgresql://%2Ftmp/x?ssl=true", {"host": "/tmp", "dbname": "x", "sslmode": "require"}),
        ("postgresql://h:1/x?password=a@b", {"host": "h", "port": "1", "dbname": "x", "password": "a@b"}),
        ("postgresql://[::1]:1/x?user=a@b", {"host": "::1", "port": "1", "dbname": "x", "user": "a@b"}),
        ("host=h user='a b' dbname=x", {"host": "h", "user": "a b", "dbname": "x"}),
    ],
)
def test_an_address_is_read_as_libpq_reads_it(url: str, said: dict[str, str]) -> None:
    assert parts(url) == parts(Database(url).address) == said


def test_one_thread_uses_one_connection_again_and_again(engine: Engine) -> None:
    assert {session(engine.database) for _ in range(5) if engine.database.check()} == {session(engine.database)}


def test_two_statements_at_once_have_a_connection_each(engine: Engine) -> None:
    first, second = engine.database._take(), engine.database._take()
    assert first.connection is not second.connection
    engine.database._idle.append(first)
    engine.database._idle.append(second)


def test_failed_statement_leaves_its_connection_usable(engine: Engine) -> None:
    engine.create_workflow("x", workflow_id="one")
    before = session(engine.database)
    with pytest.raises(Exception, match="refused the statement"):
        engine.database.execute("list", {"p_status": None, "p_prefix": "", "p_limit": -1, "p_offset": 0})
    assert session(engine.database) == before


def test_lost_connection_takes_its_idle_neighbours_along(engine: Engine) -> None:
    taken = [engine.database._take() for _ in range(3)]
    lost = {cursor.connection.info.backend_pid for cursor in taken}
    for cursor in taken:
        engine.database._idle.append(cursor)
    rows(engine, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = ANY(:pids)", pids=list(lost))
    eventually(lambda: not rows(engine, "SELECT FROM pg_stat_activity WHERE pid = ANY(:pids)", pids=list(lost)))
    assert engine.get_workflow("nobody") is None
    assert session(engine.database) not in lost
    assert len(engine.database._idle) == 1


def test_time_that_a_worker_stands_in_the_hook_is_not_taken_from_its_patience(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stood = 0.0
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + stood)

    def hook(boundary: Boundary) -> None:
        nonlocal stood
        if stood == 0:
            stood = 3600.0
            lost = session(engine.database)
            rows(engine, "SELECT pg_terminate_backend(:pid)", pid=lost)
            eventually(lambda: not rows(engine, "SELECT FROM pg_stat_activity WHERE pid = :pid", pid=lost))

    assert engine.with_hook(hook).create_workflow("x", workflow_id="one")["id"] == "one"
    assert stood


def test_closed_database_opens_again_when_it_is_used(engine: Engine) -> None:
    before = session(engine.database)
    engine.database.close()
    eventually(lambda: not rows(engine, "SELECT FROM pg_stat_activity WHERE pid = :pid", pid=before))
    assert engine.database.check()
    assert session(engine.database) != before


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system has no fork")
def test_forked_child_uses_no_connection_of_its_parent(engine: Engine) -> None:
    before = session(engine.database)
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_work, args=(engine, theirs))
    child.start()
    assert ours.poll(60)
    assert before not in ours.recv()
    child.join(60)
    assert child.exitcode == 0
    assert session(engine.database) == before
    assert rows(engine, "SELECT status FROM {s}.workflows") == [{"status": "completed"}]


def _work(engine: Engine, pipe: Connection) -> None:
    engine.create_workflow("login")
    engine.run_until_idle("child")
    pipe.send({session(engine.database)})


def test_shorter_lease_beside_a_longer_one_is_renewed(engine: Engine) -> None:
    for number in range(2):
        engine.create_workflow(f"login {number}")
    long, short = engine.claim_workflow("a", 600), engine.claim_workflow("b", 0.9)
    assert long
    assert short
    renewed = "SELECT n FROM {s}.history WHERE workflow_id = :id AND event = 'lease_renewed'"
    with engine._renewals.hold(long):
        eventually(lambda: engine._renewals._looks_at > 0)  # the thread has gone to sleep, for the longer one
        with engine._renewals.hold(short):
            eventually(lambda: len(rows(engine, renewed, id=short.workflow_id)) >= 2)
    assert not rows(engine, renewed, id=long.workflow_id)


# -- the door ----------------------------------------------------------------------------------------------------------


def test_every_statement_passes_the_door_and_the_door_decides_what_runs(engine: Engine) -> None:
    passed: list[str] = []

    def door(name: str, text: str, params: Any, run: Any) -> Any:
        passed.append(name)
        return [{"closed": True}] if name == "metrics" else run(name, text, params)

    own = engine.database.with_door(door)
    own.check()
    Engine(own).create_workflows(["x"], workflow_ids=["one"])
    assert own.execute("metrics", {}) == [{"closed": True}]
    assert own.read_sql("SELECT id FROM workflows WHERE id = :id", {"id": "one"}) == (["id"], [{"id": "one"}])
    own.session().close()
    with own.alchemy.connect():
        pass
    own.listen().close()
    assert passed == ["check", "create", "metrics", "session", "session", "session", "session"]
    assert engine.get_workflow("one") is not None and len(passed) == 7
    own.close()


def test_a_door_stays_with_other_texts_on_other_connections_and_for_the_world(engine: Engine) -> None:
    def closed(name: str, *_: Any) -> Any:
        raise LookupError(name)

    own = engine.database.with_door(closed)
    made = Engine(own.with_texts({"mine": "SELECT 1 AS one"}))
    for database, name in ((made.database, "mine"), (own.twin(), "check"), (made.world.database, "forget")):
        with pytest.raises(LookupError, match=name):
            database.check() if name == "check" else database.execute(name, {})


def test_a_connection_past_the_door_is_opened_only_where_sqlalchemy_is_needed() -> None:
    """Tables are made by SQLAlchemy; everything else is asked through Database."""
    package = Path(__file__).resolve().parents[2] / "agentflow"
    modules = {path.relative_to(package).as_posix(): path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    assert {name for name, text in modules.items() if ".alchemy" in text} == {"database.py", "migrations/__init__.py"}
    assert {name for name, text in modules.items() if "psycopg.connect(" in text} == {"address.py"}
    knowing = {name for name, text in modules.items() if re.search(r"from \.+address import .*\bconnect\b", text)}
    assert knowing == {"database.py", "server.py"}
    assert [name for name, text in modules.items() if ".__class__ =" in text] == []
