"""The API: what it answers, what it refuses, and that nothing it is sent makes it fall over."""

from __future__ import annotations

import http.client
import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import psutil
import pytest
from fastapi.testclient import TestClient
from playwright.sync_api import sync_playwright

from agentflow import Database, Engine
from agentflow.api import create_app
from agentflow.gate import MAX_BODY
from tests.conftest import rows
from tests.support.chromium import ARGUMENTS, find_chromium
from tests.support.programs import environment, running
from tests.support.refusals import refusing

HERE = "http://127.0.0.1"
BEARER = {"authorization": "Bearer a-token"}
ODD_IDS = [
    "user:12_3",
    "user:1_",
    "50%",
    "\\",
    "'",
    "a/b",
    "%2F",
    "a%2Fb",
    "history",
    "ü 😀",
    "?x=1",
    "#",
    "...",
    " ",
    "a//b/",
]
BAD_VALUES = {
    "NUL": rb'"\u0000"',
    "a NUL inside": rb'{"k": ["a\u0000b"]}',
    "a NUL in a key": rb'{"\u0000": 1}',
    "a lone surrogate": rb'"\ud800"',
    "a lone surrogate in a key": rb'{"\udfff": 1}',
    "NaN": b"NaN",
    "Infinity": b"-Infinity",
    "NaN inside": b'{"loss": NaN}',
    "a float beyond all": b'{"loss": 1e999}',
    "a number of 5,000 digits": b"9" * 5000,
    "300 levels": b"[" * 300 + b"]" * 300,
    "100,000 levels": b"[" * 100_000,
    "half a text": b'"half',
    "no UTF-8": b'"\xff"',
}


def client_of(engine: Engine) -> TestClient:
    app = create_app(engine, token="a-token")
    return TestClient(app, base_url=HERE, headers=BEARER, raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client_of_all(shared_database: Database) -> TestClient:
    """Making an application takes longer than most requests to it, so the tests of this module share one."""
    return client_of(Engine(shared_database))


@pytest.fixture
def client(engine: Engine, client_of_all: TestClient) -> TestClient:
    """A client of an API whose laboratory is empty."""
    return client_of_all


@pytest.fixture
def server(engine: Engine, url: str) -> Iterator[tuple[httpx.Client, int]]:
    """A real `agentflow api` process on the test's schema: who asks it with its token, and its process id."""
    with running(
        "api", "--port", "0", "--json", "--schema", engine.database.schema, env=environment(DATABASE_URL=url)
    ) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        bearer = {"authorization": f"Bearer {told['token']}"}
        with httpx.Client(base_url=told["url"], headers=bearer, timeout=60, trust_env=False) as client:
            yield client, process.pid


def wire_to(server: tuple[httpx.Client, int]) -> tuple[socket.socket, str]:
    """A connection to the API, and the first lines of any request on it after the one with its path."""
    where = server[0].base_url
    lines = [f"Host: {where.netloc.decode()}", f"Authorization: {server[0].headers['authorization']}"]
    return socket.create_connection((where.host, where.port or 0), timeout=60), "\r\n".join(lines)


def path_of(workflow_id: str, *more: str) -> str:
    return "/".join(["/workflows", quote(workflow_id, safe=""), *(quote(part, safe="") for part in more)])


def sentence(response: httpx.Response) -> str:
    """The refusal's one sentence; no traceback in it."""
    detail = response.json()["detail"]
    assert isinstance(detail, str)
    assert detail.endswith(".") or "/docs" in detail
    assert "Traceback" not in response.text and 'File "' not in response.text
    return str(detail)


def post_raw(client: TestClient, path: str, body: bytes, **headers: str) -> httpx.Response:
    return client.post(path, content=body, headers={"content-type": "application/json", **headers})


# -- the tutorial's road ---------------------------------------------------------------------------------------------


def test_normal_api_workflow_completes(client: TestClient) -> None:
    created = client.post("/workflows", json={"request": "I cannot login after a password reset"}).json()
    response = client.post("/workers/api-worker/run-once").json()
    finished = client.get(f"/workflows/{created['id']}").json()
    assert response == {"worked": True}
    assert finished["state"] == "COMPLETED"
    assert finished["result"]["account_unlocked"] is True
    assert finished["classification"] == {"category": "account_access", "priority": "normal"}
    assert [step["step_id"] for step in finished["steps"]] == ["classify", "plan", "resolve-account"]
    assert [action["status"] for action in finished["actions"]] == ["ACKNOWLEDGED"]
    assert client.post("/workers/api-worker/run-once").json() == {"worked": False}


def test_a_refused_write_is_503_with_a_sentence_and_the_workflow_goes_on_later(
    client: TestClient, engine: Engine
) -> None:
    created = client.post("/workflows", json={"request": "login"}).json()
    with refusing(engine, "steps"):
        refused = client.post("/workers/w/run-once")
    assert refused.status_code == 503
    assert "the auditor says no" in sentence(refused)
    row = client.get(f"/workflows/{created['id']}").json()
    assert (row["status"], row["lease_owner"], row["error"]["troubles"]) == ("ready", None, 1)
    engine.expire_lease(created["id"])
    assert client.post("/workers/w/run-once").json() == {"worked": True}


def test_the_history_tells_everything_in_order_with_the_worlds_entry_inside(client: TestClient) -> None:
    created = client.post("/workflows", json={"request": "hello"}).json()
    client.post("/workers/w/run-once")
    entries = client.get(f"/workflows/{created['id']}/history").json()
    assert [entry["n"] for entry in entries] == list(range(1, len(entries) + 1))
    events = [entry["event"] for entry in entries]
    assert events[0] == "workflow_created" and events[-1] == "workflow_completed"
    assert (
        events.index("action_intent_committed")
        < events.index("tool_attempt_committed")
        < events.index("action_acknowledged")
    )


def test_metrics_are_the_engines_own_figures(client: TestClient, engine: Engine) -> None:
    client.post("/workflows", json={"request": "hello"})
    client.post("/workers/w/run-once")
    assert client.get("/metrics").json() == engine.reliability_metrics()
    assert client.get("/metrics").json()["business_effects"] == 1


def test_health_says_up_and_no_more(client: TestClient) -> None:
    answer = client.get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "up"})


# -- creating --------------------------------------------------------------------------------------------------------


def test_creating_again_is_200_and_another_request_or_name_under_the_id_is_409(
    client: TestClient, engine: Engine
) -> None:
    first = client.post("/workflows", json={"request": "A", "id": "ticket-1"})
    again = client.post("/workflows", json={"request": "A", "id": "ticket-1"})
    other = client.post("/workflows", json={"request": "B", "id": "ticket-1"})
    renamed = client.post("/workflows", json={"request": "A", "id": "ticket-1", "name": "research_agent"})
    assert [r.status_code for r in (first, again, other, renamed)] == [201, 200, 409, 409]
    assert first.json() == again.json()
    assert "ticket-1" in sentence(other)
    assert rows(engine, "SELECT id, input FROM {s}.workflows") == [{"id": "ticket-1", "input": "A"}]


def test_twenty_callers_with_one_id_make_one_workflow_and_one_is_told_so(
    server: tuple[httpx.Client, int], engine: Engine
) -> None:
    def create(_: int) -> int:
        return server[0].post("/workflows", json={"request": "same", "id": "X"}).status_code

    with ThreadPoolExecutor(20) as pool:
        codes = sorted(pool.map(create, range(20)))
    assert codes == [200] * 19 + [201]
    assert rows(engine, "SELECT id FROM {s}.workflows") == [{"id": "X"}]


def test_the_support_agent_takes_text_and_other_workflows_take_objects(client: TestClient) -> None:
    assert "text" in sentence(refused := client.post("/workflows", json={"request": {"a": 1}}))
    assert refused.status_code == 422
    made = client.post("/workflows", json={"request": {"nonce": 3}, "name": "research_agent"})
    assert (made.status_code, made.json()["request"]) == (201, {"nonce": 3})


NO_WORKFLOW = [
    *(b"", b"{}", b"null", b"[]", b'"text"'),
    *(b'{"request": 5}', b'{"request": null}', b'{"request": ["a"]}', b'{"request": "a", "surprise": 1}'),
    *(b'{"request": "a", "id": ""}', b'{"request": "a", "id": 5}', b'{"request": "a", "name": ""}'),
]


@pytest.mark.parametrize("body", NO_WORKFLOW)
def test_a_body_that_is_no_new_workflow_is_422_and_creates_nothing(
    client: TestClient, engine: Engine, body: bytes
) -> None:
    response = post_raw(client, "/workflows", body)
    assert response.status_code == 422
    sentence(response)
    assert rows(engine, "SELECT id FROM {s}.workflows") == []


@pytest.mark.parametrize("value", BAD_VALUES.values(), ids=BAD_VALUES)
def test_an_input_that_cannot_be_kept_faithfully_is_422_and_the_neighbours_run(
    client: TestClient, engine: Engine, value: bytes
) -> None:
    client.post("/workflows", json={"request": "a neighbour", "id": "neighbour"})
    for body in (
        b'{"request": ' + value + b"}",
        b'{"name": "research_agent", "request": {"inside": ' + value + b"}}",
        value,
    ):
        response = post_raw(client, "/workflows", body)
        assert response.status_code == 422
        sentence(response)
    for body in (b'{"request": "a", "id": ' + value + b"}", b'{"request": "a", "name": ' + value + b"}"):
        assert post_raw(client, "/workflows", body).status_code == 422
    client.post("/workers/w/run-once")
    assert rows(engine, "SELECT id, status FROM {s}.workflows") == [{"id": "neighbour", "status": "completed"}]


def test_a_bad_request_is_not_told_an_id_that_nobody_gave(client: TestClient) -> None:
    said = sentence(post_raw(client, "/workflows", rb'{"request": "\u0000"}'))
    assert said.startswith("Workflow '(new)', step 'input', path $: the text holds a NUL character")
    assert "'mine'" in sentence(post_raw(client, "/workflows", rb'{"id": "mine", "request": "\u0000"}'))


def test_a_request_of_many_alphabets_comes_back_as_it_went_in(client: TestClient) -> None:
    text = '¿Dónde está mi factura? 请帮忙 🙏 "quoted" \\ line\nbreak\ttab \u2028 \x7f'
    created = client.post("/workflows", json={"request": text}).json()
    assert client.get(f"/workflows/{created['id']}").json()["request"] == text


# -- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workflow_id", ODD_IDS)
def test_an_odd_id_is_literal_everywhere(client: TestClient, workflow_id: str) -> None:
    for decoy in ("user:123", "userX12Y3", "50", "500%", "a", "b", "x"):
        client.post("/workflows", json={"request": "decoy", "id": decoy})
    assert client.post("/workflows", json={"request": "me", "id": workflow_id}).status_code == 201
    assert client.get(path_of(workflow_id)).json()["request"] == "me"
    assert client.get(path_of(workflow_id, "history")).json()[0]["event"] == "workflow_created"
    assert client.post(path_of(workflow_id, "events", workflow_id), json=1).json() == {
        "workflow_id": workflow_id,
        "event": workflow_id,
    }
    listed = client.get("/workflows", params={"prefix": workflow_id}).json()
    assert workflow_id in {row["id"] for row in listed}
    assert all(row["id"].startswith(workflow_id) for row in listed)
    assert client.post(path_of(workflow_id, "cancel")).json()["status"] == "cancelled"


@pytest.mark.parametrize("tail", ["", "/history", "/cancel", "/requeue", "/events/e"])
def test_an_unknown_workflow_is_404(client: TestClient, tail: str) -> None:
    method = "GET" if tail in ("", "/history") else "POST"
    response = client.request(method, f"/workflows/not-a-uuid{tail}")
    assert response.status_code == 404
    assert "not-a-uuid" in sentence(response)


@pytest.mark.parametrize("segment", ["%00", "x" * 4000, "%ED%A0%80", "%FF", "%", "%zz"])
@pytest.mark.parametrize("tail", ["", "/history", "/cancel", "/requeue", "/events/e"])
def test_an_impossible_id_is_404_or_422_in_a_sentence(client: TestClient, segment: str, tail: str) -> None:
    method = "GET" if tail in ("", "/history") else "POST"
    response = client.request(method, f"/workflows/{segment}{tail}")
    assert response.status_code in (404, 422)
    sentence(response)


@pytest.mark.parametrize("worker", ["%00", "x" * 4000, "%FF"])
def test_an_impossible_worker_name_is_422_and_takes_nothing(client: TestClient, engine: Engine, worker: str) -> None:
    client.post("/workflows", json={"request": "hello"})
    response = client.post(f"/workers/{worker}/run-once")
    assert response.status_code == 422
    sentence(response)
    assert rows(engine, "SELECT fence_token FROM {s}.workflows") == [{"fence_token": 0}]


def test_a_path_without_meaning_is_404_and_a_wrong_method_405(client: TestClient) -> None:
    assert (found := client.get("/nothing/here")).status_code == 404 and "/docs" in sentence(found)
    assert (found := client.delete("/workflows/x")).status_code == 405 and "/docs" in sentence(found)


def test_pages_follow_each_other_and_hold_at_most_500(client: TestClient, engine: Engine) -> None:
    engine.create_workflows(["r"] * 7, workflow_ids=[f"n{i}" for i in range(7)])
    pages = [client.get("/workflows", params={"limit": 3, "offset": offset}).json() for offset in (0, 3, 6)]
    assert [row["id"] for page in pages for row in page] == [f"n{i}" for i in reversed(range(7))]
    for query in (
        "limit=501",
        "limit=0",
        "offset=-1",
        "offset=99999999999999999999",
        "status=asleep",
        "prefix=%00",
        "limit=x",
    ):
        response = client.get(f"/workflows?{query}")
        assert response.status_code == 422
        sentence(response)


def test_the_list_is_filtered_by_status(client: TestClient, engine: Engine) -> None:
    engine.create_workflows(["r", "r"], workflow_ids=["a", "b"])
    client.post("/workers/w/run-once")
    assert [row["id"] for row in client.get("/workflows?status=completed").json()] == ["a"]
    assert [row["id"] for row in client.get("/workflows?status=ready").json()] == ["b"]


# -- events, cancel, requeue -----------------------------------------------------------------------------------------


def wait_for(name: str) -> Any:
    return lambda run, given: run.wait_for_event("answer", name)


@pytest.mark.parametrize("payload", [None, False, 0, "", [], {}, {"deep": [1, {"x": None}]}])
def test_any_json_payload_ends_the_wait_and_is_the_result(engine: Engine, payload: Any) -> None:
    client = client_of(Engine(engine.database, workflows={"asks": wait_for("go")}))
    client.post("/workflows", json={"request": "x", "name": "asks", "id": "w"})
    assert client.post("/workers/a/run-once").json() == {"worked": False}
    assert client.get("/workflows/w").json()["waiting_for"] == "go"
    assert client.post("/workflows/w/events/go", json=payload).status_code == 200
    assert client.post("/workers/a/run-once").json() == {"worked": True}
    finished = client.get("/workflows/w").json()
    assert (finished["status"], finished["result"]) == ("completed", payload)


def test_the_first_payload_of_an_event_stays_and_repeating_it_is_answered_alike(client: TestClient) -> None:
    client.post("/workflows", json={"request": "x", "id": "w"})
    first = client.post("/workflows/w/events/go", json={"by": "A"})
    again = client.post("/workflows/w/events/go", json={"by": "A"})
    other = client.post("/workflows/w/events/go", json={"by": "B"})
    assert [r.status_code for r in (first, again, other)] == [200, 200, 409]
    assert first.json() == again.json()
    sentence(other)
    assert client.get("/workflows/w").json()["events"] == {"go": {"by": "A"}}


def test_a_payload_that_cannot_be_kept_faithfully_is_422_and_the_event_has_not_come(
    client: TestClient, engine: Engine
) -> None:
    """All bad values were tried at the other door; each body is read by the same function."""
    value = BAD_VALUES["a lone surrogate"]
    client.post("/workflows", json={"request": "x", "id": "w"})
    for body in (value, b'{"inside": ' + value + b"}"):
        response = post_raw(client, "/workflows/w/events/go", body)
        assert response.status_code == 422
        sentence(response)
    assert rows(engine, "SELECT events FROM {s}.workflows") == [{"events": {}}]


@pytest.mark.parametrize("letter", ["n", "%", "/", "😀"])
def test_an_event_name_of_10000_characters_and_a_large_payload_wake_the_workflow(
    server: tuple[httpx.Client, int], engine: Engine, letter: str
) -> None:
    name = letter * 10_000
    waiting = Engine(engine.database, workflows={"asks": wait_for(name)})
    waiting.create_workflow("x", name="asks", workflow_id="w")
    waiting.run_once("a")
    wire = http.client.HTTPConnection(
        server[0].base_url.netloc.decode(), timeout=60
    )  # httpx itself refuses longer URLs
    headers = {"Content-Type": "application/json", **server[0].headers}
    wire.request("POST", path_of("w", "events", name), json.dumps("p" * 8000), headers)
    answer = wire.getresponse()
    assert (answer.status, json.load(answer)["event"]) == (200, name)
    wire.close()
    assert waiting.run_once("b")
    assert rows(engine, "SELECT status, result FROM {s}.workflows") == [{"status": "completed", "result": "p" * 8000}]


def test_an_event_name_beyond_10000_characters_is_422(client: TestClient) -> None:
    client.post("/workflows", json={"request": "x", "id": "w"})
    for name in ("n" * 10_001, "n" * 40_000, "%00"):
        response = client.post(f"/workflows/w/events/{name}", json=1)
        assert response.status_code == 422
        sentence(response)


def test_cancel_has_one_winner_and_the_loser_is_told(client: TestClient) -> None:
    client.post("/workflows", json={"request": "x", "id": "done"})
    client.post("/workers/w/run-once")
    assert (late := client.post("/workflows/done/cancel")).status_code == 409
    assert "completed" in sentence(late)
    client.post("/workflows", json={"request": "x", "id": "open"})
    assert client.post("/workflows/open/cancel").json()["status"] == "cancelled"
    assert client.post("/workflows/open/cancel").json()["status"] == "cancelled"
    assert client.post("/workers/w/run-once").json() == {"worked": False}
    assert client.post("/workflows/open/events/go").status_code == 409


def test_a_failed_workflow_keeps_its_reason_and_can_be_requeued(engine: Engine) -> None:
    class Awkward(Exception):
        def __init__(self, *, response: Any) -> None:
            self.response = response

        def __str__(self) -> str:
            raise ValueError("no text")

    broken = [True]

    def fails(run: Any, given: Any) -> Any:
        if broken:
            raise Awkward(response=object())
        return "mended"

    client = client_of(Engine(engine.database, workflows={"fails": fails}))
    client.post("/workflows", json={"request": "x", "name": "fails", "id": "w"})
    assert client.post("/workflows/w/requeue").status_code == 409
    assert client.post("/workers/a/run-once").json() == {"worked": False}
    failed = client.get("/workflows/w").json()
    assert (failed["status"], failed["error"]["type"]) == ("failed", "Awkward")
    broken.clear()
    assert client.post("/workflows/w/requeue").json()["status"] == "ready"
    assert client.post("/workers/a/run-once").json() == {"worked": True}
    assert client.get("/workflows/w").json()["result"] == "mended"


def test_deep_large_and_precise_results_are_answered(engine: Engine) -> None:
    deep: Any = "bottom"
    for _ in range(190):
        deep = [deep]
    result = {"deep": deep, "big": 10**4000, "small": -0.0, "huge": 1e300, "text": "x" * 300_000}
    client = client_of(Engine(engine.database, workflows={"gives": lambda run, given: result}))
    client.post("/workflows", json={"request": "x", "name": "gives", "id": "w"})
    assert client.post("/workers/a/run-once").json() == {"worked": True}
    answer = client.get("/workflows/w")
    assert answer.status_code == 200
    assert answer.json()["result"] == result


# -- who may come in, and with how much ------------------------------------------------------------------------------

WRITES = ["/workflows", "/workflows/w/events/go", "/workflows/w/cancel", "/workflows/w/requeue", "/workers/w/run-once"]


@pytest.mark.parametrize("path", WRITES)
@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "json"]
)
def test_a_body_that_does_not_say_it_is_json_is_415(client: TestClient, engine: Engine, path: str, kind: str) -> None:
    client.post("/workflows", json={"request": "x", "id": "w"})
    before = rows(engine, "SELECT id, entries FROM {s}.workflows")
    response = post_raw(client, path, b'{"request": "hello"}', **{"content-type": kind})
    assert response.status_code == 415
    sentence(response)
    assert rows(engine, "SELECT id, entries FROM {s}.workflows") == before


@pytest.mark.parametrize("path", WRITES)
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://127.0.0.1.evil.example", "null", "http://127.0.0.1:9999", ""]
)
def test_a_foreign_page_can_change_nothing(client: TestClient, engine: Engine, path: str, origin: str) -> None:
    client.post("/workflows", json={"request": "x", "id": "w"})
    before = rows(engine, "SELECT id, entries FROM {s}.workflows")
    for headers in ({"content-type": "text/plain"}, {"content-type": "application/json"}):
        response = client.post(path, content=b'{"request": "hello"}', headers={**headers, "origin": origin})
        assert response.status_code == 403
        sentence(response)
    assert client.post(path, headers={"origin": origin}).status_code == 403
    assert rows(engine, "SELECT id, entries FROM {s}.workflows") == before


def test_the_apis_own_page_may_change_things_and_a_foreign_name_for_it_may_not_even_read(client: TestClient) -> None:
    assert client.post("/workflows", json={"request": "x"}, headers={"origin": HERE}).status_code == 201
    for name in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::1", ""):
        response = client.get("/workflows", headers={"host": name, "origin": f"http://{name}"})
        assert response.status_code == 403
        sentence(response)
    for name in ("localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000"):
        assert client.get("/workflows", headers={"host": name}).status_code == 200


def test_a_body_of_one_mebibyte_is_taken_and_one_byte_more_is_413(client: TestClient, engine: Engine) -> None:
    frame = len(b'{"request": ""}')
    fits = post_raw(client, "/workflows", b'{"request": "' + b"x" * (MAX_BODY - frame) + b'"}')
    larger = post_raw(client, "/workflows", b'{"request": "' + b"x" * (MAX_BODY - frame + 1) + b'"}')
    assert (fits.status_code, larger.status_code) == (201, 413)
    sentence(larger)
    assert len(rows(engine, "SELECT id FROM {s}.workflows")) == 1


@pytest.mark.parametrize("path", ["/workflows", "/workflows/w/events/go"])
@pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "declared"])
def test_an_endless_body_is_413_and_is_never_held_in_memory(
    server: tuple[httpx.Client, int], engine: Engine, path: str, chunked: bool
) -> None:
    engine.create_workflow("x", workflow_id="w")
    process = psutil.Process(server[1])
    assert server[0].get("/health").status_code == 200
    before = peak = process.memory_info().rss
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {2**30}"
    chunk = b"x" * 65_536
    wire, sender = wire_to(server)
    with wire:
        head = [f"POST {path} HTTP/1.1", sender, "Content-Type: application/json", length, "", ""]
        wire.sendall("\r\n".join(head).encode())
        try:
            for _ in range(2**30 // len(chunk)):
                wire.sendall(b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk)
                peak = max(peak, process.memory_info().rss)
        except OSError:
            pass  # it no longer listens: the answer is there
        try:
            answer = wire.recv(65_536)
        except ConnectionError:
            answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 413 ")
    assert peak - before < 64 * 2**20
    assert len(rows(engine, "SELECT id FROM {s}.workflows WHERE events = '{{}}'::jsonb")) == 1
    assert server[0].get("/health").status_code == 200


def test_a_patient_client_hears_why_its_chunked_body_is_refused(
    server: tuple[httpx.Client, int], engine: Engine
) -> None:
    response = server[0].post(
        "/workflows", content=iter([b"x" * 2**20] * 3), headers={"content-type": "application/json"}
    )
    assert response.status_code == 413
    sentence(response)


def test_half_a_body_whose_sender_went_away_changes_nothing(server: tuple[httpx.Client, int], engine: Engine) -> None:
    engine.create_workflow("x", workflow_id="w")
    wire, sender = wire_to(server)
    with wire:
        wire.sendall(
            f"POST /workflows/w/events/go HTTP/1.1\r\n{sender}\r\nContent-Type: application/json\r\n"
            "Transfer-Encoding: chunked\r\n\r\n3\r\n123\r\n".encode()
        )
        wire.shutdown(socket.SHUT_WR)
        while wire.recv(65_536):
            pass
    assert server[0].post(path_of("w", "events", "go"), json=123456).status_code == 200
    assert rows(engine, "SELECT events FROM {s}.workflows") == [{"events": {"go": "123456"}}]


# -- when something is wrong on our side -----------------------------------------------------------------------------

READS = ["/metrics", "/workflows", "/workflows/w", "/workflows/w/history"]
ALL = [*(("GET", path) for path in READS), *(("POST", path) for path in WRITES[1:])]


@pytest.fixture(scope="module")
def away() -> TestClient:
    """The API on a port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    return client_of(Engine(Database(f"postgresql://nobody:secret@127.0.0.1:{port}/nothing", patience=0.2)))


@pytest.mark.parametrize(("method", "path"), ALL)
def test_a_database_that_is_away_is_503_in_a_sentence_without_the_password(
    away: TestClient, method: str, path: str
) -> None:
    response = away.request(method, path)
    assert response.status_code == 503
    assert "does not answer" in sentence(response)
    assert "secret" not in response.text


def test_a_server_that_takes_the_call_and_never_answers_is_503() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/nothing"
        response = client_of(Engine(Database(address, patience=0.2))).get("/metrics")
    assert response.status_code == 503
    sentence(response)


def test_health_says_down_and_no_more(away: TestClient, schema: Any) -> None:
    for client in (away, client_of(Engine(schema()))):
        answer = client.get("/health")
        assert (answer.status_code, answer.json()) == (503, {"status": "down"})


def test_the_tool_waits_no_longer_for_its_database_than_the_engine(away: TestClient) -> None:
    engine = away.app.state.engine  # type: ignore[attr-defined]
    assert engine.world.database.patience == engine.database.patience == 0.2


def test_creating_while_the_database_is_away_is_503(away: TestClient) -> None:
    assert away.post("/workflows", json={"request": "x"}).status_code == 503


@pytest.mark.parametrize(("method", "path"), ALL)
def test_a_schema_that_is_not_migrated_is_503_and_names_the_command(schema: Any, method: str, path: str) -> None:
    response = client_of(Engine(schema())).request(method, path)
    assert response.status_code == 503
    assert "agentflow migrate" in sentence(response)


def test_an_unexpected_error_is_a_sentence_without_its_inside(engine: Engine) -> None:
    class Broken(Engine):
        def list_workflows(self, **_: Any) -> Any:
            raise RuntimeError("a secret of the inside")

    response = client_of(Broken(engine.database)).get("/workflows")
    assert response.status_code == 500
    assert "RuntimeError" in sentence(response)
    assert "secret" not in response.text


# -- documentation ---------------------------------------------------------------------------------------------------


def test_the_documentation_names_no_foreign_host_and_its_files_are_here(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.status_code == 200
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+", page.text) == []
    named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(named) >= 3
    for path in (*named, "/openapi.json", "/docs/files/swagger-ui.css"):
        assert client.get(path).status_code == 200


@pytest.mark.browser
def test_a_browser_that_shows_the_documentation_asks_nobody_else(server: tuple[httpx.Client, int]) -> None:
    asked: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(ARGUMENTS))
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{server[0].base_url}/docs")
        page.wait_for_selector(".opblock")
        shown = page.locator(".opblock").count()
        browser.close()
    described = server[0].get("/openapi.json").json()["paths"]
    assert shown == sum(len(methods) for methods in described.values())
    assert {urlsplit(url).netloc for url in asked if not url.startswith("data:")} == {
        server[0].base_url.netloc.decode()
    }
