"""Load at the API: connections that say nothing, bodies that never end, answers that nobody takes, long histories."""

from __future__ import annotations

import asyncio
import json
import logging
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import psutil
import pytest
import uvicorn

from agentflow import Engine, api
from tests.conftest import rows
from tests.support.programs import environment, running

BEARER = {"authorization": "Bearer the-token"}


@pytest.fixture
def hasty(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """The API as it is served, with less patience and for fewer connections; a client that has its token."""
    monkeypatch.setattr(api, "READ_SECONDS", 0.5)
    monkeypatch.setattr(api, "MAX_CONNECTIONS", 8)
    server = uvicorn.Server(api.server_config(api.create_app(engine, token="the-token")))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
        thread.start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with httpx.Client(base_url=address, headers=BEARER, timeout=20, trust_env=False) as client:
            assert client.get("/health").json() == {"status": "up"}
            yield client
        server.should_exit = True
        thread.join(20)


def connected(client: httpx.Client, sent: bytes = b"") -> socket.socket:
    wire = socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=20)
    wire.sendall(sent)
    return wire


def is_closed(wire: socket.socket) -> bool:
    """Whether the API has closed the connection; what it answered before is read."""
    try:
        while select.select([wire], [], [], 0)[0]:
            if not wire.recv(65_536):
                return True
    except ConnectionError:
        return True
    return False


def until_closed(wire: socket.socket, drop: bytes = b"") -> float:
    """How long the API keeps the connection, to which it is sent a little again and again."""
    begun = time.monotonic()
    while not is_closed(wire) and time.monotonic() < begun + 15:
        try:
            wire.sendall(drop)
        except OSError:
            break
        time.sleep(0.02)
    return time.monotonic() - begun


HEAD = b"POST /workflows HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer the-token\r\nContent-Type: application/json\r\n"
SLOW = {
    "nothing": (b"", b""),
    "half a line": (b"GET /hea", b""),
    "headers without end": (b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"x: y\r\n"),
    "a body without end": (HEAD + b"Content-Length: 1000000\r\n\r\n{", b" "),
    "chunks without end": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "a body that was refused": (HEAD.replace(b"the-token", b"none") + b"Content-Length: 1000000\r\n\r\n{", b" "),
    "a second request": (b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /hea", b""),
}


@pytest.mark.parametrize("sent", SLOW.values(), ids=SLOW)
def test_a_request_that_does_not_come_to_an_end_is_not_waited_for(
    hasty: httpx.Client, sent: tuple[bytes, bytes]
) -> None:
    with connected(hasty, sent[0]) as wire:
        assert 0.3 < until_closed(wire, sent[1]) < 4
    assert hasty.get("/health").status_code == 200


def test_a_request_that_waits_for_its_answer_is_not_cut_off(
    hasty: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "list_workflows", lambda *_, **__: time.sleep(1.2) or [])
    assert hasty.get("/workflows").json() == []


def test_what_a_proxy_or_a_websocket_would_say_changes_and_prints_nothing(
    hasty: httpx.Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
    pretended = {"x-forwarded-proto": "https", "x-forwarded-for": "192.0.2.1", "origin": "http://127.0.0.1"}
    asked = {"host": "127.0.0.1", "connection": "upgrade", "upgrade": "websocket"}
    assert hasty.get("/workflows", headers=pretended | asked).status_code == 200
    assert hasty.get("/workflows", headers=asked | {"authorization": ""}).status_code == 401
    assert not [one for one in caplog.records if one.name.startswith("uvicorn")]


def test_an_answer_that_nobody_takes_is_not_kept(hasty: httpx.Client, engine: Engine) -> None:
    engine.create_workflow("x" * 15_000_000, workflow_id="large")
    with connected(
        hasty, b"GET /workflows/large HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer the-token\r\n\r\n"
    ) as wire:
        time.sleep(0.3)
        closed = time.monotonic() + 15
        while time.monotonic() < closed and not _reset(wire):
            time.sleep(0.05)
        assert time.monotonic() < closed
    assert len(hasty.get("/workflows/large").content) > 15_000_000


def _reset(wire: socket.socket) -> bool:
    try:
        wire.sendall(b" ")  # it is read by nobody; a connection that was reset refuses it
    except OSError:
        return True
    return False


def test_those_who_say_nothing_keep_nobody_out(hasty: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "READ_SECONDS", 60)
    with ExitStack() as stack:
        silent = [stack.enter_context(connected(hasty, b"GET /hea")) for _ in range(40)]
        for _ in range(5):
            assert httpx.get(f"{hasty.base_url}/health", trust_env=False, timeout=20).status_code == 200
        assert sum(map(is_closed, silent)) >= 32
        assert is_closed(silent[0]) and not is_closed(silent[-1])


def lengthened(engine: Engine, entries: int) -> None:
    """A workflow has so many entries."""
    engine.create_workflow("x", workflow_id="long")
    rows(
        engine,
        "INSERT INTO {s}.history (workflow_id, n, event, transaction, detail) SELECT 'long', g, 'workflow_requeued', 'requeue', "
        "'{{}}' FROM generate_series(2, :n) AS g RETURNING 1 AS one",
        n=entries,
    )


def test_the_pages_of_a_history_are_the_whole_history(hasty: httpx.Client, engine: Engine) -> None:
    engine.create_workflow("I cannot login", workflow_id="long")
    engine.run_once("a")
    whole = hasty.get("/workflows/long/history").json()
    assert len(whole) == len(engine.history("long")) == 8
    assert [entry["event"] for entry in whole].count("tool_attempt_committed") == 1
    pages = [
        hasty.get("/workflows/long/history", params={"after": n, "limit": 1}).json() for n in range(len(whole) + 1)
    ]
    assert [entry for page in pages for entry in page] == whole
    for query in ("limit=501", "limit=0", "after=-1", "after=99999999999999999999", "limit=x"):
        assert hasty.get(f"/workflows/long/history?{query}").status_code == 422
    assert hasty.get("/workflows/nobody/history?after=5").status_code == 404


@pytest.mark.parametrize("entries", [20_000, pytest.param(300_000, marks=pytest.mark.long)])
def test_a_long_history_takes_no_more_memory_than_a_page(engine: Engine, url: str, entries: int) -> None:
    lengthened(engine, entries)
    env = environment(DATABASE_URL=url, AGENTFLOW_SCHEMA=engine.database.schema)
    with running("api", "--port", "0", "--json", env=env) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        bearer = {"authorization": f"Bearer {told['token']}"}
        with httpx.Client(base_url=told["url"], headers=bearer, timeout=60, trust_env=False) as client:
            asked = [client.get("/workflows/long/history", params={"after": 500})]
            before = psutil.Process(process.pid).memory_info().rss
            asked += [
                client.get("/workflows/long/history", params={"after": after})
                for after in (0, entries // 2, entries - 1)
            ]
            firsts = [501, 1, entries // 2 + 1, entries]
            assert [page.json()[0]["n"] for page in asked] == firsts
            assert [page.content.count(b'"n"') for page in asked] == [500, 500, 500, 1]
            assert psutil.Process(process.pid).memory_info().rss - before < 8 * 2**20
