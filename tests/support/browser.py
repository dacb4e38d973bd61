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
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, sync_playwright

from agentflow.cli.launch import JUPYTER
from tests.support import chromium
from tests.support.helpers import eventually

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
FACTORY = "jupyterapp.docRegistry.getWidgetFactory('Notebook')"
OPEN_UNRUN = """async path => {
    window.opened = await jupyterapp.commands.execute('docmanager:open', {path});
    await window.opened.revealed;
    jupyterapp.shell.activateById(window.opened.id);
}"""
TRUSTED = """() => [...new Set(window.opened.content.widgets.filter(cell => cell.model.type === 'code')
    .map(cell => cell.model.trusted))]"""
READY = "() => !!window.jupyterapp && !document.querySelector('.jp-Dialog')"
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


@contextmanager
def chromium_browser() -> Iterator[Browser]:
    """A Chromium runs; its absence is a failure that says in one sentence what to install."""
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


@contextmanager
def overheard(page: Page) -> Iterator[list[str]]:
    """What the page's console complains about meanwhile."""
    trouble: list[str] = []

    def said(message: ConsoleMessage) -> None:
        if message.type == "error":
            trouble.append(message.text)

    def raised(error: Error) -> None:
        trouble.append(str(error))

    page.on("console", said)
    page.on("pageerror", raised)
    yield trouble
    page.remove_listener("console", said)
    page.remove_listener("pageerror", raised)


@contextmanager
def at_notebook(page: Page, lab: Lab, name: str, theme: str = THEMES[0][1], width: int = 1280) -> Iterator[list[str]]:
    """The notebook is open, and closed afterwards; the list is of what the console complains of meanwhile."""
    page.set_viewport_size({"width": width, "height": 1500})
    with overheard(page) as trouble:
        try:
            open_notebook(page, lab, name, theme)
            yield trouble
        finally:
            shut(page)


@contextmanager
def at_unrun(page: Page, lab: Lab, name: str, width: int = 1280) -> Iterator[list[str]]:
    """The notebook is open as its file has it: without a kernel, and trusted by nobody; else as at_notebook."""
    if not page.evaluate(READY):
        page.goto(lab.address("").replace("/tree/", ""))
        wait_until(page, f"() => !!window.jupyterapp && !!{FACTORY}")
    page.evaluate(f"() => {{ {FACTORY}._preferKernel = false; }}")
    page.set_viewport_size({"width": width, "height": 1500})
    with overheard(page) as trouble:
        try:
            page.evaluate(OPEN_UNRUN, name)
            assert page.evaluate(TRUSTED) == [False]
            yield trouble
        finally:
            page.evaluate(f"() => {{ {FACTORY}._preferKernel = true; }}")
            shut(page)


def open_notebook(page: Page, lab: Lab, name: str, theme: str = THEMES[0][1]) -> None:
    """The notebook alone is open in this theme, and its kernel is idle; a page that shows JupyterLab loads it no second time."""
    if page.evaluate(READY):
        shut(page)
        page.evaluate(
            """async path => {
                const opened = await jupyterapp.commands.execute('docmanager:open', {path});
                for (const other of [...jupyterapp.shell.widgets('main')]) if (other !== opened) other.dispose();
            }""",
            name,
        )
    else:
        page.goto(lab.address(name))
    wait_until(page, IDLE)
    change_theme(page, theme)


def change_theme(page: Page, theme: str) -> None:
    """JupyterLab is drawn in this theme, and the splash that covers the change, and hides all text from axe, is gone."""
    page.evaluate("theme => jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
    drawn = "document.body.dataset.jpThemeName === theme && !document.getElementById('jupyterlab-splash')"
    wait_until(page, f"theme => {drawn}", theme)


def in_each_theme(page: Page) -> Iterator[str]:
    """The page is in each theme in turn, whose name this is, and in the light one afterwards."""
    for name, theme in reversed(THEMES):
        change_theme(page, theme)
        yield name


def run_all(page: Page) -> None:
    """Every cell has run; an error in one of them fails the test."""
    run = "jupyterapp.commands.execute('notebook:run-all-cells')"
    page.evaluate(f"() => {{ window.done = false; {run}.then(() => {{ window.done = true; }}); }}")
    wait_until(page, "() => window.done === true", patience=4 * PATIENCE)
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


def wait_until(page: Page, condition: str, argument: Any = None, patience: int = PATIENCE) -> None:
    """The page meets the condition; it is asked 50 times a second, as to ask at every frame makes it draw every frame."""
    page.wait_for_function(condition, arg=argument, polling=20, timeout=patience)


def shut(page: Page) -> None:
    """The notebook is closed, unsaved, and its kernel gone."""
    page.evaluate(
        """async () => {
            for (const one of [...jupyterapp.shell.widgets('main')].filter(one => one.sessionContext)) {
                if (one.sessionContext.session) await one.sessionContext.shutdown();
                one.dispose();
            }
        }"""
    )


def shot(name: str) -> Path:
    """Where a screenshot of this name is kept."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    return SHOTS / f"{name}.png"
