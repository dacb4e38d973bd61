"""Who may use the API: a foreign name, a foreign page, a neighbour without the token, and a token that is not ours alone."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from playwright.sync_api import sync_playwright

from agentflow import Database, Engine
from agentflow.api import create_app
from agentflow.errors import AgentFlowError
from agentflow.gate import authorization
from agentflow.home import MARK, make
from agentflow.lab.notebook.live_api import live_api
from tests.conftest import rows
from tests.support.chromium import ARGUMENTS, find_chromium
from tests.support.programs import environment, running

HERE = "http://127.0.0.1:8000"
TOKEN = "the-token"
BEARER = {"authorization": f"Bearer {TOKEN}"}
OPEN = ["/health", "/docs", "/docs/page.js", "/docs/files/swagger-ui.css", "/openapi.json"]
CLOSED = [
    ("GET", "/workflows"), ("GET", "/workflows/w"), ("GET", "/workflows/w/history"), ("GET", "/metrics"),
    ("POST", "/workflows"), ("POST", "/workflows/w/events/go"), ("POST", "/workflows/w/cancel"),
    ("POST", "/workflows/w/requeue"), ("POST", "/workers/w/run-once"), ("GET", "/nothing"), ("DELETE", "/workflows/w"),
    ("GET", "/docs/..%2fworkflows"), ("GET", "//workflows"),
]  # fmt: skip


@pytest.fixture(scope="module")
def api(shared_database: Database) -> TestClient:
    """The API of the laboratory, made once."""
    return TestClient(create_app(Engine(shared_database), token=TOKEN), base_url=HERE, raise_server_exceptions=False)


@pytest.fixture
def client(engine: Engine, api: TestClient) -> TestClient:
    """A browser or program of somebody else: it knows the address and no token."""
    engine.create_workflow("a secret request", workflow_id="w")
    return api


def asked(attack: Any, *more: tuple[str, str]) -> list[tuple[str, str]]:
    """What is asked: all of it by the first attack of each list, a read, a change and one of the rest by the others."""
    every = [*CLOSED, *more]
    if attack in (None, NAMES[0], PAGES[0]):
        return every
    return [every[0], every[4], every[len(str(attack)) % len(every)]]


def unchanged(engine: Engine) -> bool:
    return rows(engine, "SELECT id, status, entries FROM {s}.workflows") == [
        {"id": "w", "status": "ready", "entries": 1}
    ]


@pytest.mark.parametrize("sent", [None, "", "Bearer", "Bearer ", "Bearer the-toke", "Bearer the-token2", TOKEN, "Basic x",
                                  f"bearer {TOKEN}", "Bearer \xff"])  # fmt: skip
def test_nobody_reads_or_changes_anything_without_the_token(
    client: TestClient, engine: Engine, sent: str | None
) -> None:
    headers = {} if sent is None else {"authorization": sent.encode("latin-1")}
    for method, path in asked(sent):
        found = client.request(method, path, headers=headers)  # type: ignore[arg-type]
        assert (found.status_code in (401, 404), "secret" in found.text) == (True, False), (method, path)
        assert found.status_code == 401 or path.startswith("/docs/"), path
    assert unchanged(engine)
    assert client.get("/workflows", headers=BEARER).json()[0]["id"] == "w"


def test_what_needs_no_token_holds_no_data(client: TestClient) -> None:
    for path in OPEN:
        found = client.get(path)
        assert (found.status_code, "secret" in found.text, TOKEN in found.text) == (200, False, False), path
    assert client.get("/health").json() == {"status": "up"}


NAMES = [
    "evil.example", "evil.example:8000", "127.0.0.1.evil.example", "evil@localhost", "localhost/evil", "localhost#@evil",
    "localhost.", "localhost:", "localhost:999999", "0.0.0.0:8000", "[::1", "[evil]", "", "127.1", "LOCALHOST@evil",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_foreign_name_that_points_here_reads_and_changes_nothing(
    client: TestClient, engine: Engine, name: str
) -> None:
    """DNS rebinding: the page's own name leads to this computer, so its Origin and its Host agree."""
    headers = {**BEARER, "host": name, "origin": f"http://{name}"}
    for method, path in asked(name, *(("GET", path) for path in OPEN)):
        assert client.request(method, path, headers=headers).status_code == 403
    assert unchanged(engine)


def test_the_owner_names_further_hosts_and_these_alone_are_added(engine: Engine) -> None:
    client = TestClient(
        create_app(engine, token=TOKEN, hosts={"localhost", "API.example"}), base_url=HERE, headers=BEARER
    )
    hosts = ("api.example", "Api.Example:8000", "localhost", "127.0.0.1", "evil.example")
    assert [client.get("/metrics", headers={"host": host}).status_code for host in hosts] == [200, 200, 200, 403, 403]


def test_also_on_every_address_a_foreign_name_is_refused(engine: Engine, url: str, tmp_path: Path) -> None:
    env = environment(DATABASE_URL=url, AGENTFLOW_SCHEMA=engine.database.schema, AGENTFLOW_HOME=str(tmp_path / "home"))
    with running("api", "--port", "0", "--json", "--host", "0.0.0.0", env=env) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        bearer = {"authorization": f"Bearer {told['token']}"}
        body = {"request": "rebound"}
        evil = {**bearer, "host": "evil.example:8000", "origin": "http://evil.example:8000"}
        assert httpx.post(f"{told['url']}/workflows", json=body, headers=evil, trust_env=False).status_code == 403
        assert httpx.post(f"{told['url']}/workflows", json=body, headers=bearer, trust_env=False).status_code == 201


PAGES = [
    {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"sec-fetch-site": "unheard-of"},
    {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, {"origin": "http://evil.example"}, {"origin": "null"},
    {"origin": "https://127.0.0.1:8000"}, {"origin": "http://127.0.0.1:9999"}, {"origin": "http://localhost:8000"},
    {"origin": "127.0.0.1:8000"}, {"origin": "file://127.0.0.1:8000"}, {"origin": ""},
]  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_a_foreign_page_may_not_ask_anything(client: TestClient, engine: Engine, page: dict[str, str]) -> None:
    for method, path in asked(page):
        assert client.request(method, path, headers={**BEARER, **page}).status_code == 403
    assert unchanged(engine)


def test_our_own_page_and_a_link_to_it_work(client: TestClient) -> None:
    own = {**BEARER, "origin": HERE, "sec-fetch-site": "same-origin"}
    assert client.post("/workflows", json={"request": "x"}, headers=own).status_code == 201
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/docs", headers=followed).status_code == 200
    assert client.get("/docs", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}).status_code == 403


def test_no_page_frames_an_answer_guesses_its_type_or_keeps_it(client: TestClient) -> None:
    for path in (*OPEN, "/workflows", "/nothing"):
        told = client.get(path).headers
        assert (
            "frame-ancestors 'none'" in told["content-security-policy"]
            and "default-src 'none'" in told["content-security-policy"]
        )
        assert (told["x-content-type-options"], told["cache-control"]) == ("nosniff", "no-store")


# -- the token's file --------------------------------------------------------------------------------------------------


def test_the_token_is_made_once_for_us_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        file, token = authorization(tmp_path / "home")
    finally:
        os.umask(before)
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)
    assert authorization(tmp_path / "home") == (file, token) and len(token) == 43
    assert authorization(tmp_path / "other")[1] != token
    assert {one.name for one in file.parent.iterdir()} == {file.name, MARK}


def test_a_token_that_others_can_read_choose_or_redirect_is_refused_and_left_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text(f"Authorization: Bearer {'x' * 43}\n")
    theirs.chmod(0o600)
    file = tmp_path / "home" / "api-authorization"
    make(file.parent)
    file.symlink_to(theirs)
    refuses(file)
    assert file.is_symlink() and "x" * 43 in theirs.read_text()
    file.unlink()
    for text, mode in (
        (theirs.read_text(), 0o644),
        (theirs.read_text(), 0o620),
        ("", 0o600),
        ("Authorization: Bearer \n", 0o600),
    ):
        file.write_text(text)
        file.chmod(mode)
        refuses(file)
        assert file.read_text() == text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_token_that_another_user_put_there_is_refused(tmp_path: Path) -> None:
    file, _ = authorization(tmp_path)
    os.chown(file, 65534, 65534)
    refuses(file)


def refuses(file: Path) -> None:
    with pytest.raises(AgentFlowError, match=r"api-authorization should hold the API's token, readable by you alone"):
        authorization(file.parent)


# -- unnoticed ---------------------------------------------------------------------------------------------------------


def test_a_cell_asks_with_the_token_and_shows_it_nowhere(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTFLOW_HOME", str(tmp_path / "home"))
    with live_api(engine) as api:
        token = authorization(tmp_path / "home")[1]
        assert api.get("/workflows") == []
        with pytest.raises(AgentFlowError) as refused:
            api.get("/workflows/nobody")
    assert token == api.token and token not in f"{api!r}{api}{refused.value}"


@pytest.mark.browser
def test_a_browser_that_follows_the_printed_link_uses_the_token_and_hides_it(
    engine: Engine, url: str, tmp_path: Path
) -> None:
    engine.create_workflow("a secret request", workflow_id="w")
    env = environment(DATABASE_URL=url, AGENTFLOW_SCHEMA=engine.database.schema, AGENTFLOW_HOME=str(tmp_path / "home"))
    with running("api", "--port", "0", env=env) as process, sync_playwright() as playwright:
        assert process.stdout is not None
        link = process.stdout.readline().split()[-1]
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=list(ARGUMENTS))
        page = browser.new_page()
        for address in (link, link.partition("#")[0]):
            page.goto("about:blank")  # (an address that differs behind # alone would load nothing)
            page.goto(address)
            page.locator(".opblock-get", has_text="/workflows").first.click()
            page.get_by_text("Try it out").click()
            page.get_by_text("Execute", exact=True).click()
            page.wait_for_selector(".live-responses-table .response-col_status:has-text('200')")
            assert "#" not in page.url
        browser.close()
