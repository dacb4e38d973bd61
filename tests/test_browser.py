"""The first lesson as a learner meets it: a real JupyterLab, a real browser, real clicks, in light and dark."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from agentflow import Database, Engine
from tests import chromium
from tests.conftest import rows
from tests.helpers import database_of_its_own, eventually

ROOT = Path(__file__).resolve().parent.parent
SHOTS = ROOT / "artifacts" / "screenshots"
SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension/plugin": {"autosave": False},
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
}
FLAGS = (
    "--no-browser",
    "--allow-root",
    "--ServerApp.ip=127.0.0.1",
    "--ServerApp.port_retries=0",
    "--LabApp.expose_app_in_browser=True",
    "--LabApp.extension_manager=readonly",
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate",
)
PATIENCE = 60_000  # milliseconds for one thing to appear

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium; its absence is a failure that says in one sentence what to install."""
    executable, missing = "", ""
    try:
        executable = chromium.find_chromium()
    except LookupError as error:
        missing = str(error)
    if missing:
        pytest.fail(missing, pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(chromium.ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def own_url(url: str) -> Iterator[str]:
    """A database that no other test's notebook works in."""
    with database_of_its_own(url) as own:
        yield own


@pytest.fixture(scope="module")
def lab(own_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address, with its token, of a JupyterLab on copies of the notebooks, with settings of its own."""
    home = tmp_path_factory.mktemp("lab")
    for folder in ("notebooks", "data"):
        shutil.copytree(ROOT / folder, home / folder, ignore=shutil.ignore_patterns("conftest.py", ".*", "__pycache__"))
    for name, settings in SETTINGS.items():
        place = home / "settings" / f"{name}.jupyterlab-settings"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(settings))
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    own = {f"JUPYTER_{name}_DIR": str(home / name.lower()) for name in ("CONFIG", "RUNTIME", "DATA")}
    environment = {
        **os.environ, **own, "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"), "DATABASE_URL": own_url,
        "IPYTHONDIR": str(home / "ipython"), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    command = [sys.executable, "-m", "jupyterlab", *FLAGS, f"--ServerApp.port={port}"]
    command += [f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={home / 'notebooks'}"]
    with (home / "lab.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            eventually(lambda: _answers(f"http://127.0.0.1:{port}/api/status?token={token}"), 60)
            yield f"http://127.0.0.1:{port}/lab/tree/{{}}?token={token}"
        finally:
            _end(process)


def _answers(address: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(address, timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """JupyterLab and its kernels are gone; kernels have process groups of their own, which it ends when asked."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)


@pytest.fixture
def laboratory(own_url: str) -> Iterator[Engine]:
    """The rows of the first notebook, read from outside."""
    engine = Engine(Database(own_url, "start_here"))
    yield engine
    engine.close()


def _open_and_run_all(page: Page, address: str, theme: str) -> None:
    page.goto(address.format("00-start-here.ipynb"))
    kernel = "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"
    page.wait_for_function(f"() => {kernel}?.status === 'idle'", timeout=PATIENCE)
    page.evaluate("theme => jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
    run_all = "jupyterapp.commands.execute('notebook:run-all-cells')"
    page.evaluate(f"() => {{ {run_all}.then(() => {{ window.done = true; }}); }}")
    page.wait_for_function("() => window.done === true", timeout=PATIENCE)


def _cell_errors(page: Page) -> list[str]:
    """Errors in the outputs, and code cells that never ran."""
    found: list[str] = page.evaluate(
        """() => jupyterapp.shell.currentWidget.content.widgets.filter(c => c.model.type === 'code').flatMap(c => [
            ...(c.model.executionCount ? [] : ['not executed: ' + c.model.sharedModel.source]),
            ...c.model.outputs.toJSON().filter(o => o.output_type === 'error').map(o => o.ename + ': ' + o.evalue)])"""
    )
    return found


def _say(panel: Locator, text: str) -> None:
    expect(panel.locator(".af-say")).to_contain_text(text, timeout=PATIENCE)


@pytest.mark.parametrize(("name", "theme"), [("light", "JupyterLab Light"), ("dark", "JupyterLab Dark")])
def test_a_learner_crashes_a_worker_in_the_gap_and_recovers_one_effect(
    browser: Browser, lab: str, laboratory: Engine, name: str, theme: str
) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 1500})
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    try:
        _open_and_run_all(page, lab, theme)
        assert _cell_errors(page) == []
        panel = page.locator(".af-panel")
        panel.get_by_role("button", name="Reset", exact=True).click()
        _say(panel, "Everything is gone")
        assert rows(laboratory, "SELECT * FROM {s}.workflows") == []
        panel.get_by_role("button", name="New request").click()
        _say(panel, "waits")
        for done in (
            "A claimed",
            "A committed checkpoint classify",
            "A committed checkpoint plan",
            "A committed intent",
            "The tool",
        ):
            panel.get_by_role("button", name="Step A").click()
            _say(panel, done)
        panel.get_by_role("button", name="Crash A").click()
        _say(panel, "A crashed before acknowledge resolve-account")
        expect(panel).to_contain_text("this is the acknowledgment gap")
        assert rows(laboratory, "SELECT status FROM {s}.action_intents") == [{"status": "PENDING"}]
        panel.screenshot(path=_shot(f"panel-in-the-gap-{name}"))
        panel.get_by_role("button", name="Recover A").click()
        _say(panel, "B went on where A had left off: request-1 is completed.")
        expect(panel).to_contain_text("The engine believes what the world did.")
        expect(panel.get_by_role("row", name="resolve-account 1 2")).to_be_visible()
        panel.screenshot(path=_shot(f"panel-recovered-{name}"))
        page.screenshot(path=_shot(f"notebook-{name}"))
        assert rows(laboratory, "SELECT id, status, fence_token FROM {s}.workflows") == [
            {"id": "request-1", "status": "completed", "fence_token": 2}
        ]
        assert rows(laboratory, "SELECT attempts FROM {w}.tool_ledger") == [{"attempts": 2}]
        assert _unnamed(panel) == []
        panel.get_by_role("button", name="New request").click()
        _say(panel, "request-2 waits")
        _five_quick_clicks(page, panel.get_by_role("button", name="Step B"))
        eventually(lambda: _made(panel) + _ignored(panel) == 5)
        assert trouble == []
    finally:
        page.evaluate("() => jupyterapp.shell.currentWidget?.sessionContext.shutdown()")
        page.close()


def _five_quick_clicks(page: Page, button: Locator) -> None:
    """A real mouse, faster than a person's double click."""
    box = button.bounding_box()
    assert box
    for _ in range(5):
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_timeout(80)


def _made(panel: Locator) -> int:
    """How many moves worker B has made, by what its button says comes next."""
    coming = panel.get_by_role("button", name="Step B").inner_text().split(": ")[1]
    order = ("claim", "checkpoint classify", "checkpoint plan", "intent", "tool", "acknowledge")
    return next(number for number, name in enumerate(order) if coming.startswith(name))


def _ignored(panel: Locator) -> int:
    """How many clicks the panel says it has ignored."""
    said = re.search(r"Too fast: (\d+)", panel.locator(".af-say").inner_text())
    return int(said[1]) if said else 0


def _unnamed(panel: Locator) -> list[str]:
    """What can take the focus and has no accessible name, or lets JupyterLab's one-key shortcuts through."""
    found: list[str] = panel.locator("button, input, summary").evaluate_all(
        """all => all.filter(e => !(e.innerText || e.labels?.[0]?.innerText || '').trim()
            || e.getAttribute('data-lm-suppress-shortcuts') !== 'true').map(e => e.outerHTML.slice(0, 200))"""
    )
    return found


def _shot(name: str) -> Path:
    SHOTS.mkdir(parents=True, exist_ok=True)
    return SHOTS / f"{name}.png"
