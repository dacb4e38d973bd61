"""How programs begin and end: two labs at once, an interrupt in the first second, a log that nobody reads any more."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from agentflow import Engine
from agentflow.jupyterlab import ServerApp
from tests.conftest import rows
from tests.support.helpers import eventually
from tests.support.programs import INSTALLED, environment, started


def test_two_labs_that_start_in_the_same_second_take_two_ports() -> None:
    labs = [ServerApp(ip="127.0.0.1", port=0)]
    labs[0]._find_http_port()
    labs.append(ServerApp(ip="127.0.0.1", port=labs[0].port))
    labs[1]._find_http_port()  # when the first has said its address, and does not serve yet
    assert labs[0].port != labs[1].port
    for lab in labs:
        assert [held.getsockname() for held in lab._held] == [("127.0.0.1", lab.port)]
        for held in lab._held:
            held.close()


_AT = """
import importlib.abc, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
moment, number, *sys.argv = sys.argv[1:]
class At(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == moment:
            sys.meta_path.remove(self)
            signal.raise_signal(int(number))
sys.meta_path.insert(0, At())
runpy.run_module(sys.argv[0], run_name="__main__")
print("It was not interrupted.", file=sys.stderr)
"""
EXPLORE = ["agentflow", "explore", "--time-limit", "1"]


@pytest.mark.parametrize(
    ("moment", "number", "started"),
    [
        ("agentflow.cli", signal.SIGINT, EXPLORE), ("agentflow.cli.laboratory", signal.SIGINT, EXPLORE),
        ("agentflow.lab.explorer.explore", signal.SIGINT, EXPLORE), ("psycopg", signal.SIGTERM, EXPLORE),
        ("jupyterlab.labapp", signal.SIGINT, ["agentflow.jupyterlab"]),
    ],
    ids=lambda one: one if isinstance(one, str) else None,
)  # fmt: skip
def test_an_interrupt_while_a_command_starts_ends_it_without_a_traceback(
    moment: str, number: signal.Signals, started: list[str], url: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _AT, moment, str(int(number)), *started], env=environment(DATABASE_URL=url), cwd=tmp_path,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode in (-number, 128 + number), done.stderr.strip()) == (True, "")


_EARLY = """
import importlib, signal, sys
where, what, number = sys.argv.pop(1), sys.argv.pop(1), int(sys.argv.pop(1))
home = getattr(importlib.import_module(where), "Server", None) or sys.modules[where]
begin = getattr(home, what)
def after(*given, **named):
    signal.raise_signal(number)
    return begin(*given, **named)
setattr(home, what, after)
from agentflow.__main__ import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("where", "what"), [("agentflow.api", "create_app"), ("uvicorn", "run")])
def test_the_api_ends_also_before_it_listens(
    where: str, what: str, number: signal.Signals, url: str, engine: Engine
) -> None:
    env = environment(DATABASE_URL=url, AGENTFLOW_SCHEMA=engine.database.schema)
    with started([where, what, str(int(number)), "api", "--port", "0"], code=_EARLY, env=env) as api:
        assert api.wait(30) == 0
        assert api.communicate()[1] == ""


@pytest.mark.parametrize(
    "line",
    ["doctor >&-", "doctor 2>&-", "submit --requests - <&-", "worker <&- >&- 2>&-", "api --port {port} >&- 2>&-"],
)
def test_a_command_works_with_a_standard_stream_that_is_closed(
    line: str, engine: Engine, url: str, tmp_path: Path
) -> None:
    env = environment(DATABASE_URL=url, AGENTFLOW_SCHEMA=engine.database.schema)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    engine.create_workflows(["a request"])
    query = "SELECT count(*) AS n FROM {s}.workflows WHERE status = 'completed'"
    with subprocess.Popen(
        ["sh", "-c", f"exec '{INSTALLED}' {line.format(port=port)}"],
        env=env,
        cwd=tmp_path,
        stdout=-1,
        stderr=-1,
        text=True,
    ) as program:
        if "worker" in line:
            eventually(lambda: rows(engine, query) == [{"n": 1}], 60)
            program.send_signal(signal.SIGTERM)
        if "api" in line:
            eventually(lambda: is_up(port), 60)
            program.send_signal(signal.SIGTERM)
        printed, said = program.communicate(timeout=60)
    assert (program.returncode, said) == (0, "")
    assert "submit" not in line or printed.startswith("0 created")


def is_up(port: int) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
    return False


@pytest.mark.parametrize("gone", ["a reader that goes", "a full disk"])
def test_a_worker_goes_on_when_nobody_takes_its_log(engine: Engine, url: str, tmp_path: Path, gone: str) -> None:
    env = environment(DATABASE_URL=url, AGENTFLOW_SCHEMA=engine.database.schema)
    reads, writes = os.pipe() if gone == "a reader that goes" else (None, os.open("/dev/full", os.O_WRONLY))
    with subprocess.Popen(
        [INSTALLED, "worker", "--poll", "0.05"], env=env, cwd=tmp_path, stdout=writes, stderr=-1, text=True
    ) as worker:
        os.close(writes)
        if reads is not None:
            os.read(reads, 10)  # its first line, or a part of it
            os.close(reads)
        engine.create_workflows([f"request {n}" for n in range(40)])
        query = "SELECT count(*) AS n FROM {s}.workflows WHERE status = 'completed'"
        eventually(lambda: rows(engine, query) == [{"n": 40}], 60)
        worker.send_signal(signal.SIGTERM)
        assert worker.communicate(timeout=60)[1] == ""
        assert worker.returncode == 0
