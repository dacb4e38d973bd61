"""`python -m tests.bench.first_page BEFORE AFTER`: how long a newcomer waits, from a clone to the first notebook on the screen.

Each turn clones this repository at a revision into a new folder, with a home of its own: no cache, no server, no settings.
Then it does what `make lab` does, with our Chromium for a browser. Turns alternate (A B, B A, ...), and the medians count.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.support import chromium

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 600  # seconds for anything
IDLE = ".jp-Notebook-ExecutionIndicator[data-status='idle']"
ROWS = {
    "installed": "`make setup`, s",
    "served": "from there until `/lab` answers, s",
    "shown": "from there until the notebook is drawn and its kernel idle, s",
    "all": "from the clone to the first page, s",
    "cpu": "processor time until then, without the browser and PostgreSQL, s",
    "disk": "on disk after that, `.venv` and what is left in the home, MB",
}


@contextmanager
def fresh(revision: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """A clone at the revision, and the environment of somebody who has nothing yet; both are gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="first-page-"))
    folder.chmod(0o755)  # as root, the embedded server runs as another user
    mine = ("AGENTFLOW_", "DATABASE_URL", "JUPYTER", "PIP_CACHE", "PYTHON", "UV_", "VIRTUAL_ENV", "XDG_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    environment |= {"HOME": str(folder / "home"), "AGENTFLOW_HOME": str(folder / "data")}
    (folder / "home").mkdir()
    clone = folder / "clone"
    try:
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", ROOT, clone], check=True)
        subprocess.run(["git", "-C", clone, "checkout", "--quiet", revision], check=True)
        yield clone, environment
    finally:
        if (program := clone / ".venv/bin/agentflow").exists():
            subprocess.run([program, "stop"], cwd=clone, env=environment, check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def turn(revision: str, browser: Browser) -> dict[str, float]:
    """What `ROWS` says, once."""
    with fresh(revision) as (clone, environment):
        spent, start = _spent(), time.monotonic()
        python = f"PYTHON={sys.base_prefix}/bin/python3"
        subprocess.run(["make", "setup", python], cwd=clone, env=environment, check=True, stdout=sys.stderr)
        installed = time.monotonic()
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        log = clone.parent / "lab.log"
        with log.open("w") as sink:
            command = [".venv/bin/agentflow", "lab", "--no-browser", f"--port={port}"]
            lab = subprocess.Popen(
                command, cwd=clone, env=environment, stdout=sink, stderr=sink, start_new_session=True
            )
        try:
            address = _until(lambda: _address(log, lab))
            served = time.monotonic()
            page = browser.new_page()
            page.goto(address, timeout=PATIENCE * 1000)
            page.wait_for_selector(IDLE, timeout=PATIENCE * 1000, state="attached")
            shown = time.monotonic()
            page.close()
        finally:
            lab.send_signal(signal.SIGTERM)
            try:
                lab.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(lab.pid, signal.SIGKILL)
                lab.wait()
        return {
            "installed": installed - start, "served": served - installed, "shown": shown - served, "all": shown - start,
            "cpu": _spent() - spent, "disk": _megabytes(clone / ".venv", clone.parent / "home"),
        }  # fmt: skip


def _address(log: Path, lab: subprocess.Popen[bytes]) -> str | None:
    """The link with the token, once JupyterLab has printed it and answers there."""
    if lab.poll() is not None:
        raise RuntimeError(f"JupyterLab ended: {log.read_text()}")
    found = re.search(r"http://127\.0\.0\.1:\d+/lab\S*token=\w+", log.read_text())
    try:
        return (
            found.group() if found and urllib.request.urlopen(found.group(), timeout=PATIENCE).status == 200 else None
        )
    except OSError:
        return None


def _until(there: Callable[[], str | None]) -> str:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := there():
            return found
        time.sleep(0.05)
    raise TimeoutError(f"Nothing after {PATIENCE} s.")


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _megabytes(*folders: Path) -> float:
    """What the files take on disk; a file with two names counts once."""
    found = (path.lstat() for folder in folders for path in (folder, *folder.rglob("*")))
    return sum({(one.st_dev, one.st_ino): one.st_blocks * 512 for one in found}.values()) / 2**20


def main() -> None:
    """Prints a table of medians in Markdown, and each turn on standard error."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.first_page", description=__doc__)
    parser.add_argument("revisions", nargs="+", metavar="REVISION", help="for example a commit before, and HEAD")
    parser.add_argument("--turns", type=int, default=3)
    told = parser.parse_args()
    seen: dict[str, list[dict[str, float]]] = {revision: [] for revision in told.revisions}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.find_chromium(), args=list(chromium.ARGUMENTS))
        for number in range(told.turns):
            for revision in seen if number % 2 == 0 else reversed(seen):
                seen[revision].append(turn(revision, browser))
                values = ", ".join(f"{name} {value:.1f}" for name, value in seen[revision][-1].items())
                print(f"{revision}: {values}; load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        browser.close()
    print(f"| median of {told.turns} turns | {' | '.join(seen)} |")
    print(f"|---|{'--:|' * len(seen)}")
    for name, says in ROWS.items():
        print(
            f"| {says} | {' | '.join(f'{statistics.median(one[name] for one in turns):.1f}' for turns in seen.values())} |"
        )


if __name__ == "__main__":
    main()
