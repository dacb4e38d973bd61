"""A machine that says something else: PG* variables, session settings, a proxy, a relative home, files that shadow modules."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
import types
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psycopg
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import start_new_kernel
from psycopg.pq import Conninfo

from agentflow import Database, Engine, address, migrate
from agentflow.agents import WORKFLOWS
from agentflow.cli import launch
from agentflow.errors import BadRequestFile, LaneError, ServerError
from agentflow.lab import Stepper, live_api, pair_matrix, support_requests
from agentflow.lab.laboratory import processes
from agentflow.server import Server, default_home
from tests.support.programs import INSTALLED, environment

HOSTILE = {
    "PGHOST": "nowhere.invalid", "PGHOSTADDR": "192.0.2.1", "PGPORT": "1", "PGUSER": "nobody", "PGDATABASE": "nowhere",
    "PGPASSFILE": "/nonexistent", "PGSERVICE": "prod", "PGSERVICEFILE": "/nonexistent", "PGSYSCONFDIR": "/nonexistent",
    "PGDATESTYLE": "nonsense", "PGTZ": "Mars/Olympus", "PGGEQO": "perhaps", "PGOPTIONS": "-c nonsense=1", "PGSSLMODE": "x",
    "PGCLIENTENCODING": "nonsense", "PGREQUIREAUTH": "scram-sha-256", "PGTARGETSESSIONATTRS": "standby",
    "PGCHANNELBINDING": "require", "PGGSSENCMODE": "require", "PGREQUIREPEER": "nobody", "PGREQUIRESSL": "1",
    "PGMINPROTOCOLVERSION": "9.9", "PGMAXPROTOCOLVERSION": "0.1", "PGSSLCERTMODE": "x", "PGSSLNEGOTIATION": "direct",
    "PGLOADBALANCEHOSTS": "x", "PGCONNECT_TIMEOUT": "soon", "PGAPPNAME": "\x7f", "PGPASSWORD": "wrong",
}  # fmt: skip


def test_nothing_is_taken_from_the_variables_of_libpq(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each alone and all at once, also those that a newer library will know; afterwards each is as it was."""
    others = {option.envvar.decode(): "nonsense" for option in Conninfo.get_defaults() if option.envvar}
    every = others | HOSTILE
    for shell in [*({name: value} for name, value in every.items()), every]:
        with monkeypatch.context() as patch:
            for name, value in shell.items():
                patch.setenv(name, value)
            before = dict(os.environ)
            assert Database(url, patience=0).check()["database"] == Database(url).url.database
            assert dict(os.environ) == before


def test_the_driver_is_not_the_shells_choice() -> None:
    env = environment(PSYCOPG_IMPL="nonsense", PSYCOPG_WAIT_FUNC="nonsense")
    code = "import agentflow.address, psycopg"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not os.environ.get("AGENTFLOW_TEST_HOME"), reason="it is about the embedded server")
def test_the_embedded_server_is_found_whatever_the_shell_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in HOSTILE.items():
        monkeypatch.setenv(name, value)
    assert Server(Path(os.environ["AGENTFLOW_TEST_HOME"])).is_running()


def test_what_the_address_says_is_not_overruled(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = address.parts(url)
    (tmp_path / ".pg_service.conf").write_text(
        "[here]\n" + "".join(f"{name}={value}\n" for name, value in said.items())
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("PGHOST", "PGPORT", "PGDATABASE", "PGSERVICEFILE"):
        monkeypatch.setenv(name, "nowhere.invalid")
    with address.connect("postgresql:///?service=here") as connection:
        assert connection.info.dbname == said["dbname"]
    with address.connect(url + "&options=-c%20work_mem%3D7MB&connect_timeout=3") as connection:
        shown = connection.execute("SHOW work_mem").fetchone()
    assert shown == ("7MB",)


def test_a_variable_is_gone_only_while_somebody_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that connect at once, and a child that is forked meanwhile."""
    monkeypatch.setenv("PGTZ", "Mars")
    with ExitStack() as another:
        with address._without({"PGTZ"}):
            second = threading.Thread(target=another.enter_context, args=[address._without({"PGTZ"})])
            second.start()
            second.join()
            if not (child := os.fork()):
                os._exit(0 if os.environ.get("PGTZ") == "Mars" else 1)
            assert os.waitpid(child, 0)[1] == 0
        assert "PGTZ" not in os.environ
    assert os.environ["PGTZ"] == "Mars"


SETTINGS = {
    "DateStyle": "'SQL, DMY'", "IntervalStyle": "sql_standard", "TimeZone": "'Asia/Kathmandu'", "extra_float_digits": "-15",
    "standard_conforming_strings": "off", "array_nulls": "off", "transform_null_equals": "on", "quote_all_identifiers": "on",
    "search_path": "evil, pg_catalog", "client_encoding": "'LATIN1'", "bytea_output": "escape", "xmloption": "document",
    "default_transaction_isolation": "serializable", "lc_numeric": "'C'", "statement_timeout": "1", "lock_timeout": "1",
}  # fmt: skip


def test_values_are_read_alike_whatever_the_database_sets(own_database: Any) -> None:
    database: Database = own_database()
    migrate(database, laboratory=True)
    with database.session() as session:
        session.execute(b"CREATE SCHEMA evil")
        session.execute(
            b"CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT ''epoch''::timestamptz'"
        )
        for name, value in SETTINGS.items():
            session.execute(f"ALTER DATABASE {session.info.dbname} SET {name} = {value}".encode())
    database.close()
    engine = Engine(own_database())
    identity = engine.create_workflow("a request with ä and \\ in it")["id"]
    assert engine.run_once("w")
    found = engine.get_workflow(identity)
    assert found["state"] == "COMPLETED"
    assert abs(found["created_at"].timestamp() - time.time()) < 60
    with engine.database.session() as session:
        query = "SELECT name, setting FROM pg_settings WHERE source = 'database' ORDER BY name"
        assert {row["name"] for row in session.execute(query)} == {"bytea_output", "lc_numeric", "xmloption"}
    engine.database.close()


# -- a proxy, a folder --------------------------------------------------------------------------------------------------


def test_a_proxy_is_not_asked_for_this_computer(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with live_api(engine) as api:
        assert api.get("/workflows") == []


@pytest.mark.parametrize("relative", ["mydata", "./mydata", "../mydata", "~nobody_of_that_name/x"])
def test_a_relative_home_is_refused(relative: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTFLOW_HOME", relative)
    with pytest.raises(ServerError, match="AGENTFLOW_HOME"):
        default_home()


@pytest.mark.skipif(sys.platform != "linux", reason="XDG is Linux's")
def test_a_relative_folder_for_data_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTFLOW_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    with pytest.raises(ServerError, match=r"XDG_DATA_HOME|wherever a command is started"):
        default_home()


def test_support_requests_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert len(support_requests()) > 10
    monkeypatch.setattr("agentflow.lab.laboratory.laboratory.__file__", str(tmp_path / "a" / "b" / "c" / "d.py"))
    with pytest.raises(BadRequestFile, match=r"is not in /, .*support_requests\(Path"):
        support_requests()
    with pytest.raises(BadRequestFile, match="mine"):
        support_requests(tmp_path / "mine.csv")


# -- files that shadow modules --------------------------------------------------------------------------------------------

INSTALLED_TOO = {"psycopg", "sqlalchemy", "typer", "jupyterlab", "ipykernel", "traitlets", "click"}
# Python looks for runpy in the folder before anybody can change that.
SHADOWS = {name for name in {*sys.stdlib_module_names, *INSTALLED_TOO} - {"runpy"} if importlib.util.find_spec(name)}


@pytest.fixture(scope="module")
def shadowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A learner's folder with a module of every name that something needs; each says so and ends what imports it."""
    folder = tmp_path_factory.mktemp("shadowed")
    for name in SHADOWS:
        (folder / f"{name}.py").write_text(f"import os; os.write(2, b'SHADOWED by {name}\\n'); os._exit(9)\n")
    (folder / "mine.py").write_text("flow = len\n")
    return folder


def test_a_command_and_its_workers_use_no_module_of_the_folder(shadowed: Path, schema: Any, url: str) -> None:
    env = environment(DATABASE_URL=url, PYTHONPATH=None)
    play = ["play", "A*", "--lanes", "process"]
    done = subprocess.run(
        [INSTALLED, *play], env=env, cwd=shadowed, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_python_m_agentflow_uses_no_module_of_the_folder(shadowed: Path) -> None:
    started = subprocess.run(
        [sys.executable, "-m", "agentflow", "--help"], env=environment(PYTHONPATH=None), cwd=shadowed, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (started.returncode, started.stderr) == (0, "")
    assert "durable execution" in started.stdout


def test_ones_own_module_is_found_last(shadowed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shadowed)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert launch.imported("--workflow", "mine:flow") is len
    assert sys.path[-1] == str(shadowed)


def kernel_of_ours(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("JUPYTER_PATH", str(launch.JUPYTER))
    return [sys.executable, *KernelSpecManager().get_kernel_spec("python3").argv[1:]]


def test_jupyterlab_and_its_kernels_begin_without_the_folder(shadowed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `-m` starts is not looked for there; a module that is only there is not found."""
    for command in (launch.jupyterlab(8888, browser=False, folder=None), kernel_of_ours(monkeypatch)):
        flags = command[: command.index("-m") + 1]
        run = subprocess.run([*flags, "mine"], cwd=shadowed, capture_output=True, text=True, timeout=60, check=False)
        assert "No module named mine" in run.stderr


@pytest.mark.long
def test_a_kernel_finds_ones_own_module_last(shadowed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = kernel_of_ours(monkeypatch)
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(shadowed))
    try:
        assert manager.kernel_spec.argv[1:] == argv[1:]
        code = "import sys, random, pandas, mine; assert sys.path[-1] == '' and mine.flow is len"
        assert client.execute_interactive(code, timeout=60)["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


# -- what a notebook defines, and an interrupt ---------------------------------------------------------------------------


def test_a_function_of_a_notebook_in_a_process_is_one_sentence(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = types.ModuleType("__main__")
    exec("def reply(run, given): return given\nclass Tool:\n    def __call__(self, call): return {}", vars(notebook))
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    told = Engine(engine.database, workflows={**WORKFLOWS, "reply": notebook.reply})
    stepper = Stepper(told, lanes="process")
    try:
        with pytest.raises(LaneError, match=r"'reply' is defined in a notebook.*thread lanes"):
            stepper.play("workflow=reply A*")
    finally:
        stepper.close()
    for thing in (notebook.Tool, notebook.Tool()):
        with pytest.raises(LaneError, match="'Tool' is defined in a notebook"):
            processes.start(print, {"deep": [thing]})


def tell_what_is_blocked(channel: Connection) -> None:
    """Sends the signals that this process holds back."""
    channel.send(signal.pthread_sigmask(signal.SIG_BLOCK, []))


def test_ctrl_c_is_not_heard_by_a_process_that_is_starting() -> None:
    with processes.connected(tell_what_is_blocked) as (_, channel):
        assert signal.SIGINT in channel.recv()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_an_interrupt_ends_the_pair_matrix_within_two_seconds(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ring(*_: object) -> None:
        nonlocal rung
        rung = time.monotonic()
        raise KeyboardInterrupt

    rung, before = 0.0, signal.signal(signal.SIGALRM, ring)
    monkeypatch.setenv("DATABASE_URL", url)
    signal.setitimer(signal.ITIMER_REAL, 0.7)
    try:
        with pytest.raises(KeyboardInterrupt):
            pair_matrix(database=Database(url))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - rung < 2
    with psycopg.connect(url.replace("+psycopg", "")) as session:
        assert session.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'pairs_%'").fetchall() == []
