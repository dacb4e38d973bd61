"""The course as nbval compares it, again and again, and on a machine that has no time for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (
    *(
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.support.no_rfc3987",
        "-n",
        "2",
        "--dist",
        "loadfile",
        "-p",
        "no:cacheprovider",
    ),
    *("--nbval", "--nbval-current-env", "--nbval-cell-timeout=60"),
    *("--nbval-sanitize-with", "tests/support/nbval-sanitize.cfg", "notebooks"),
)
OWN = ("AGENTFLOW_TEST_HOME", "AGENTFLOW_TEST_URL", "AGENTFLOW_HOME", "AGENTFLOW_COURSE", "PYTEST_XDIST_WORKER")

pytestmark = [pytest.mark.long, pytest.mark.notebook, pytest.mark.timeout(3600)]


def course() -> None:
    """Every notebook was run and shows what is committed, on a server that this run started for itself."""
    environment = {name: value for name, value in os.environ.items() if name not in OWN}
    done = subprocess.run(COMMAND, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.fixture
def busy() -> Iterator[None]:
    """As many processes as there are cores compute for nothing."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.parametrize("time", range(1, 6))
def test_the_course_shows_the_same_five_times_in_a_row(time: int) -> None:
    course()


@pytest.mark.usefixtures("busy")
def test_the_course_shows_the_same_while_all_cores_are_busy() -> None:
    course()
