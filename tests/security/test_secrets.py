"""A password is in no output: not of a command, the API, a log line or a notebook's error, however the address spells it."""

from __future__ import annotations

import json
import socket
import struct
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import typer

from agentflow import Database, Engine
from agentflow.address import SECRETS
from agentflow.cli import app
from agentflow.doctor import examine
from agentflow.errors import AgentFlowError, BadName, DatabaseAway
from agentflow.lab import live_api
from tests.support.programs import Shell, environment, running

CANARY = "kanarien'vogel\\ 5@!%/?#"  # whatever has a meaning in a URL, in a connection string, in a shell
PIECES = ("kanarien", "vogel")
ESCAPED = quote(CANARY, safe="")


class Asking:
    """A server that asks everybody for a password, remembers it, and refuses it; all over 127.0.0.1."""

    def __init__(self, listener: socket.socket) -> None:
        self.port, self.got = listener.getsockname()[1], list[str]()
        self._listener = listener
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                threading.Thread(target=self._ask, args=[client], daemon=True).start()

    def _ask(self, client: socket.socket) -> None:
        with client, suppress(OSError, struct.error, IndexError):
            while struct.unpack("!ii", client.recv(4096)[:8])[1] > 80_000_000:  # asked for encryption
                client.sendall(b"N")
            client.sendall(b"R" + struct.pack("!ii", 8, 3))
            self.got.append(client.recv(4096)[5:-1].decode())
            said = b'SFATAL\0C28P01\0Mpassword authentication failed for user "u"\0\0'
            client.sendall(b"E" + struct.pack("!i", len(said) + 4) + said)


@pytest.fixture(scope="module")
def asking() -> Iterator[Asking]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield Asking(listener)


def nothing_of_it_is_in(output: str) -> None:
    assert [piece for piece in PIECES if piece in output] == []


SPELLINGS = {
    "postgresql://u:{escaped}@{place}/x": CANARY,
    "postgresql://{place}/x?user=u&password={escaped}": CANARY,
    "postgresql+psycopg://u:{escaped}@/x?host=127.0.0.1&port={port}": CANARY,
    "postgresql://u:kanarien%20vogel@{place}/x": "kanarien vogel",
    "postgresql://u:kanarien vogel@{place}/x": "kanarien vogel",
    "postgresql://u:kanarien%zzvogel%@{place}/x": "kanarien%zzvogel%",
    "postgresql://u:kanarien/vogel?a#b@{place}/x": "kanarien/vogel?a#b",
    "postgresql+psycopg://u@{place}/x?password=kanarien+vogel": "kanarien vogel",
    "postgresql://u@{place}/x?pass%77ord=kanarien+vogel": "kanarien+vogel",
    "postgresql://{place}/x?user=u&password=kanarien@vogel": "kanarien@vogel",
    "postgresql://u@127.0.0.1:1,{place}/x?password=kanarien&sslpassword=vogel&sslmode=prefer": "kanarien",
    "host=127.0.0.1 port={port} user=u dbname=x password='kanarien vogel'": "kanarien vogel",
}


@pytest.mark.parametrize(("spelling", "password"), SPELLINGS.items())
def test_a_password_arrives_as_it_was_meant_and_no_error_shows_it(
    asking: Asking, spelling: str, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = spelling.format(escaped=ESCAPED, place=f"127.0.0.1:{asking.port}", port=asking.port)
    database = Database(address, patience=0)
    with pytest.raises(DatabaseAway, match=r"refused .*password authentication failed") as refused:
        database.check()
    assert asking.got[-1] == password
    monkeypatch.setenv("DATABASE_URL", address)
    monkeypatch.setattr("agentflow.doctor.PATIENCE", 0.0)
    told = [
        "".join(traceback.format_exception(refused.value)),
        database.where,
        str(database.url),
        repr(database.alchemy),
    ]
    nothing_of_it_is_in("\n".join([*told, repr(database), *map(str, examine("agentflow"))]))


BROKEN = [
    "postgresql://u:kanarien@vogel@127.0.0.1:1/x",
    "postgresql://u:7@kanarien/vogel@127.0.0.1/x",
    "postgresql://u:7@kanarien?x=vogel@127.0.0.1/x",
    "postgresql://u:7/w?kanarien=vogel@127.0.0.1/x",
    "postgresql://u:kanarien%40vogel/x",
    "postgresql://u:kanarien%ffvogel@127.0.0.1/x",
    "postgresql://u:kanarien%00vogel@127.0.0.1/x",
    "postgresql://u@127.0.0.1/x?kanarienvogel",
    "postgresql://u@127.0.0.1/x?passwort=kanarienvogel",
    "postgresql://u@127.0.0.1/x password=kanarienvogel",
    "postgresql://u:kanarien@127.0.0.1:vogel/x",
    "mysql://root:kanarienvogel@127.0.0.1/x",
    "host=127.0.0.1 passwort=kanarienvogel",
    "host=127.0.0.1 password='kanarienvogel",
    "kanarienvogel",
    "postgresql://u:kanarien\udcffvogel@127.0.0.1/x",
    "postgresql://127.0.0.1/x?password=kanarienvogel\udcff",
    "host=127.0.0.1 password=kanarienvogel\udcff",
    *(f"postgresql://127.0.0.1/x?user=u{sign}password=kanarienvogel" for sign in ";#,"),
    *(f"postgresql://u@127.0.0.1/x{sign}password=kanarienvogel" for sign in ";#&"),
    "postgresql://u@127.0.0.1;password=kanarienvogel",
    "postgresql://u;password=kanarienvogel@127.0.0.1/x",
    "postgresql://u@127.0.0.1/x?sslmode=require;password=kanarienvogel",
    "host=127.0.0.1 user=u;password=kanarienvogel",
]


@pytest.mark.parametrize("address", BROKEN)
def test_an_address_that_cannot_be_read_is_not_repeated(address: str) -> None:
    with pytest.raises(BadName, match="DATABASE_URL") as refused:
        Database(address)
    nothing_of_it_is_in("".join(traceback.format_exception(refused.value)))


def test_every_parameter_that_libpq_hides_is_hidden() -> None:
    address = "postgresql://u@h/x?" + "&".join(f"{name}={ESCAPED}" for name in SECRETS)
    assert "password" in SECRETS
    assert "sslpassword" in SECRETS
    database = Database(address)
    nothing_of_it_is_in(f"{database.where} {database.url} {database.alchemy!r}")
    assert database.where == "postgresql+psycopg://u:***@h/x"


NEEDED = {
    "diff": ["A*", "A!"],
    "play": ["A*"],
    "reset": ["--yes"],
    "submit": ["--requests", "-"],
    "lab": ["--no-browser"],
    "explore": ["--crashes", "0", "--expiries", "0"],
    "soak": ["--requests", "data/support_requests.csv", "--kills", "0"],
}
FOR_EVER = {"api", "lab", "worker"}
PATIENT = {"atlas", "explore", "play", "soak"}  # they wait for a server half a minute and more
QUICK = set(typer.main.get_command(app).commands) - PATIENT - {"stop"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("names", [QUICK, pytest.param(PATIENT, marks=pytest.mark.long)], ids=["quick", "patient"])
def test_no_command_prints_the_password_of_a_server_that_refuses(
    asking: Asking, tmp_path: Path, names: set[str]
) -> None:
    """All at once, since each of them waits for the server."""
    address = f"postgresql://u:{ESCAPED}@127.0.0.1:{asking.port}/x?sslpassword=vogel"
    env, said = environment(DATABASE_URL=address, AGENTFLOW_HOME=str(tmp_path)), {}
    with ExitStack() as stack:
        lasting = {
            name: stack.enter_context(running(name, *NEEDED.get(name, []), env=env)) for name in names & FOR_EVER
        }
        pool, ending = stack.enter_context(ThreadPoolExecutor()), sorted(names - FOR_EVER)
        shells = [stack.enter_context(Shell(env)) for _ in range(min(4, len(ending)))]
        for few in pool.map(
            lambda n: [(name, shells[n].run(name, *NEEDED.get(name, []))) for name in ending[n::4]], range(len(shells))
        ):
            said |= {name: done.stdout + done.stderr for name, done in few}
        for name, program in lasting.items():
            assert program.stdout and program.stderr
            program.stdout.readline()
            program.kill()
            said[name] = program.stdout.read() + program.stderr.read()
    for name, output in said.items():
        nothing_of_it_is_in(f"{name}: {output}")
    refused = {name for name, output in said.items() if "authentication failed" in output}
    assert refused >= names & {"check", "doctor", "migrate", "report", "reset", "submit", "worker", *PATIENT}


def test_no_command_and_no_log_line_of_a_server_that_works_has_it(url: str, schema: Any) -> None:
    """Its socket asks for no password, so any is right."""
    database = schema()
    secret = url + ("&" if "?" in url else "?") + f"password={ESCAPED}&sslpassword=vogel"
    env = environment(DATABASE_URL=secret)
    commands = (
        ["migrate", "--laboratory", "--json"],
        ["migrate"],
        ["doctor", "--json"],
        ["reset", "--yes"],
        ["report"],
    )
    with Shell(env) as shell:
        for command in commands:
            done = shell.run(*command, "--schema", database.schema)
            assert "***@" in done.stdout or command[0] in ("doctor", "report", "reset")
            nothing_of_it_is_in(done.stdout + done.stderr)


def test_neither_the_api_nor_a_cell_that_asks_it_shows_it(asking: Asking, url: str) -> None:
    away = Engine(Database(f"postgresql://u:{ESCAPED}@127.0.0.1:{asking.port}/x?sslpassword=vogel", patience=0))
    with live_api(away) as api:
        for path in ("/workflows", "/nothing"):
            with pytest.raises(AgentFlowError) as refused:
                api.get(path)
            nothing_of_it_is_in("".join(traceback.format_exception(refused.value)))
        nothing_of_it_is_in(json.dumps(api.get("/openapi.json")) + api.get("/docs"))


def test_a_refused_connection_is_not_called_away(asking: Asking, url: str) -> None:
    """What the server or the library refuses is said so; only silence is called that."""
    for wrong, said in {
        f"{url}&sslmode=perhaps": "sslmode",
        f"{url}&sslmode=timeout": "sslmode",
        f"{url}&connect_timeout=abc": "connect_timeout",
        url.replace("/agentflow", "/nowhere", 1): "nowhere",
        "postgresql://u@127.0.0.1:99999/x": "port",
        "postgresql://u@nowhere.invalid/x": "nowhere.invalid",
        "postgresql://u@timeout.invalid/x": "timeout.invalid",
        f"postgresql://u@127.0.0.1:{asking.port},127.0.0.1:1/x": "no password supplied.*pgpass",
        "postgresql://u@h/x?service=nowhere": "service",
    }.items():
        with pytest.raises(DatabaseAway, match=f"was refused .*{said}"):
            Database(wrong, patience=0).check()
    with pytest.raises(DatabaseAway, match=r"does not answer .*start it"):
        Database("postgresql://u@127.0.0.1:1/x", patience=0).check()
