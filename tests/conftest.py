"""One PostgreSQL for the whole test run and a separate schema for each test that asks for one; both are removed afterwards.

`DATABASE_URL` names another server to test on; otherwise the embedded one is started in a temporary folder. Under xdist the
controller owns it, so it is stopped once, at the very end.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from xdist.scheduler import LoadScopeScheduling

from agentflow import Database, Engine, migrate
from tests.support import programs
from tests.support.helpers import administrator, owner

_HOME = "AGENTFLOW_TEST_HOME"


def pytest_configure(config: pytest.Config) -> None:
    """The controller starts the server, and the process that forks programs, before any worker asks for them."""
    if hasattr(config, "workerinput"):
        return
    if config.getoption("numprocesses", None):
        programs.warm()
    if os.environ.get("DATABASE_URL") or os.environ.get(_HOME):
        return
    from agentflow.server import ensure_running

    home = Path(tempfile.mkdtemp(prefix="agentflow-test-"))
    # Whatever asks for no database in particular finds this server too, never somebody's laboratory.
    os.environ[_HOME] = os.environ["AGENTFLOW_HOME"] = str(home)
    os.environ["AGENTFLOW_TEST_URL"] = ensure_running(home).url()
    config.stash[_STARTED] = home


_STARTED: pytest.StashKey[Path] = pytest.StashKey()

# Slow files, in which each test brings what it needs: their tests go to whichever worker is free.
APART = (
    "tests/chaos/test_chaos.py",
    "tests/doors/test_cli.py",
    "tests/engine/test_leases.py",
    "tests/lab/crashes/test_soak.py",
    "tests/lab/explorer/test_verdicts.py",
    "tests/lab/schedule/test_play.py",
)
# What takes longest begins first, so that no worker is left alone with it at the end.
BROWSER = "tests/browser/"
FIRST = (BROWSER, "tests/chaos/", "tests/lab/explorer/", "tests/lab/crashes/", "notebooks/")


class Scheduling(LoadScopeScheduling):
    """A file's tests share a worker, and with it what the file's fixtures made, unless the file is one of `APART`.

    The tests of `tests/browser` share one too: they have one JupyterLab and one Chromium.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return nodeid if file in APART else BROWSER if file.startswith(BROWSER) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """How the workers of `-n` share the tests."""
    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first; the order is otherwise that of the files."""
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end; looking through it for garbage takes a twentieth of a worker's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


def pytest_unconfigure(config: pytest.Config) -> None:
    """The processes that we started have ended: the one that forks commands, and the server, whose folder is gone."""
    programs.stop()
    home = config.stash.get(_STARTED, None)
    if home is not None:
        del config.stash[_STARTED]  # notebooks/conftest.py asks for the same
        from agentflow.server import Server

        Server(home).stop()
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def sigint_is_heard() -> Iterator[None]:
    """Ctrl-C interrupts this process and those that it starts, also if a script started the tests in the background.

    The shell lets such a process ignore SIGINT from the start, and every child would inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def url() -> str:
    """Where the tests' PostgreSQL is."""
    return os.environ.get("DATABASE_URL") or os.environ["AGENTFLOW_TEST_URL"]


def drop(database: Database) -> None:
    """Both schemas of a test are gone, with all that a test put into them."""
    database.command(f'DROP SCHEMA IF EXISTS "{database.schema}", "{database.schema}_world" CASCADE')
    database.close()


@pytest.fixture(scope="session")
def shared_database(url: str) -> Iterator[Database]:
    """One migrated schema for this process; `engine` empties it around each test."""
    database = Database(url, f"t_{uuid.uuid4().hex[:12]}", patience=10)
    migrate(database, laboratory=True)
    yield database
    drop(database)


@pytest.fixture
def engine(shared_database: Database) -> Iterator[Engine]:
    """An engine on an empty laboratory."""
    engine = Engine(shared_database)
    engine.reset_database()
    yield engine
    engine.reset_database()
    engine.world.database.close()


@pytest.fixture
def schema(url: str) -> Iterator[Callable[[], Database]]:
    """Makes databases with a new, empty, unmigrated schema each; all are dropped afterwards."""
    made: list[Database] = []

    def make(**options: Any) -> Database:
        made.append(Database(url, f"t_{uuid.uuid4().hex[:12]}", **{"patience": 10, **options}))
        return made[-1]

    yield make
    for database in made:
        drop(database)


def rows(engine: Engine, query: str, **binds: Any) -> list[dict[str, Any]]:
    """The rows of a query, in which `{s}` is the engine's schema and `{w}` the world's."""
    schema = engine.database.schema
    with engine.database.alchemy.connect() as connection:
        found = connection.execute(text(query.format(s=f'"{schema}"', w=f'"{schema}_world"')), binds)
        return [dict(row) for row in found.mappings()]


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """What the `agentflow` logger says during the test, parsed."""
    said: list[dict[str, Any]] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(json.loads(record.getMessage()))

    handler, logger = Handler(), logging.getLogger("agentflow")
    logger.addHandler(handler)
    before, _ = logger.level, logger.setLevel(logging.INFO)
    yield said
    logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.fixture
def own_database(url: str) -> Iterator[Callable[..., Database]]:
    """A separate database on the server, whose sessions and settings nobody else shares."""
    made: list[Database] = []
    name = f"d_{uuid.uuid4().hex[:12]}"
    server, ours = Database(administrator(url)), Database(url)
    with server.session() as session:
        session.execute(f"CREATE DATABASE {name}{owner(url)}".encode())

    def make(kind: type[Database] = Database) -> Database:
        made.append(kind(ours.url.set(database=name).render_as_string(hide_password=False), "lab", patience=5))
        return made[-1]

    yield make
    for database in made:
        database.close()
    with server.session() as session:
        session.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
    server.close()
