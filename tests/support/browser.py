"""What tests in a real browser share: a Chromium, a JupyterLab on its own notebooks, and the messages of its console."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from agentflow.cli.launch import JUPYTER
from tests.support import chromium
from tests.support.helpers import database_of_its_own, eventually

ROOT = Path(__file__).resolve().parents[2]
SHOTS = ROOT / "artifacts" / "screenshots"
THEMES = [("light", "JupyterLab Light"), ("dark", "JupyterLab Dark")]
SETTINGS = {
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
)
IDLE = "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
PATIENCE = 30_000  # milliseconds for one thing to appear


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab: the folder of its notebooks, and the address of one."""

    folder: Path
    port: int
    token: str

    def address(self, notebook: str) -> str:
        """Where a notebook opens, in a separate workspace."""
        workspace = secrets.token_hex(4)
        return f"http://127.0.0.1:{self.port}/lab/workspaces/{workspace}/tree/{notebook}?token={self.token}"


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
def lab(own_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A JupyterLab on copies of the notebooks, with its own settings."""
    with jupyter_lab(tmp_path_factory.mktemp("lab"), own_url) as lab:
        yield lab


@contextmanager
def jupyter_lab(home: Path, url: str) -> Iterator[Lab]:
    """A JupyterLab runs on copies of the notebooks in this folder, its kernels on the database of this URL."""
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
        **os.environ, **own, "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"), "DATABASE_URL": url, "AGENTFLOW_COURSE": "course",
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"), "IPYTHONDIR": str(home / "ipython"),
        "JUPYTER_CONFIG_PATH": str(JUPYTER),
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    command = [sys.executable, "-m", "jupyterlab", *FLAGS, f"--ServerApp.port={port}"]
    command += [f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={home / 'notebooks'}"]
    with (home / "lab.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            eventually(lambda: _answers(f"http://127.0.0.1:{port}/api/status?token={token}"), 60)
            yield Lab(home / "notebooks", port, token)
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


def write_notebook(lab: Lab, name: str, *cells: str) -> None:
    """A notebook of these code cells lies in the lab's folder."""
    code = [
        {
            "cell_type": "code",
            "id": f"cell-{n}",
            "metadata": {},
            "source": source,
            "outputs": [],
            "execution_count": None,
        }
        for n, source in enumerate(cells)
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook: dict[str, Any] = {"cells": code, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    (lab.folder / name).write_text(json.dumps(notebook))


def overheard(page: Page) -> list[str]:
    """What the page's console complains about, from now on."""
    trouble: list[str] = []
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    return trouble


def open_notebook(page: Page, lab: Lab, name: str, theme: str = THEMES[0][1]) -> None:
    """The notebook is open in this theme, and its kernel is idle."""
    page.goto(lab.address(name))
    page.wait_for_function(IDLE, timeout=PATIENCE)
    page.evaluate("theme => jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)


def run_all(page: Page) -> None:
    """Every cell has run; an error in one of them fails the test."""
    run = "jupyterapp.commands.execute('notebook:run-all-cells')"
    page.evaluate(f"() => {{ window.done = false; {run}.then(() => {{ window.done = true; }}); }}")
    page.wait_for_function("() => window.done === true", timeout=PATIENCE)
    assert cell_errors(page) == []


def run(page: Page, first: int, last: int | None = None) -> None:
    """The cells from `first` to `last` were run, as with Shift+Enter."""
    page.evaluate(
        """async ([first, last]) => {
            const content = jupyterapp.shell.currentWidget.content;
            content.deselectAll();
            for (let n = first; n <= Math.min(last ?? 999, content.widgets.length - 1); n++) {
                content.activeCellIndex = n;
                await jupyterapp.commands.execute('notebook:run-cell');
            }
        }""",
        [first, last],
    )


def cell_of(page: Page, text: str) -> int:
    """The number of the first code cell that holds this text."""
    found: int = page.evaluate(
        """text => jupyterapp.shell.currentWidget.content.widgets.findIndex(
            c => c.model.type === 'code' && c.model.sharedModel.source.includes(text))""",
        text,
    )
    return found


def cell_errors(page: Page) -> list[str]:
    """Errors in the outputs, and code cells that never ran."""
    found: list[str] = page.evaluate(
        """() => jupyterapp.shell.currentWidget.content.widgets.filter(c => c.model.type === 'code').flatMap(c => [
            ...(c.model.executionCount ? [] : ['not executed: ' + c.model.sharedModel.source]),
            ...c.model.outputs.toJSON().filter(o => o.output_type === 'error').map(o => o.ename + ': ' + o.evalue)])"""
    )
    return found


def shut(page: Page) -> None:
    """The notebook's kernel is gone, and the page closed."""
    page.evaluate("() => jupyterapp.shell.currentWidget?.sessionContext.shutdown()")
    page.close()


def shot(name: str) -> Path:
    """Where a screenshot of this name is kept."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    return SHOTS / f"{name}.png"
