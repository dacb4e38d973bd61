"""Notebooks under test run on the tests' own PostgreSQL, never on somebody's laboratory, and answer in no learner's course."""

import os
from pathlib import Path

import jupyter_client.launcher
import pytest

from tests import conftest as tests
from tests.support import programs
from tests.support.notebook_again import NotebookAgain


def pytest_configure(config: pytest.Config) -> None:
    """The kernels that nbval starts find the tests' server, and are forks."""
    tests.pytest_configure(config)
    os.environ.setdefault("AGENTFLOW_COURSE", "course_under_test")
    jupyter_client.launcher.Popen = programs.Kernel


def pytest_unconfigure(config: pytest.Config) -> None:
    """The server is stopped, if this run started it."""
    tests.pytest_unconfigure(config)


@pytest.hookimpl(trylast=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Where nbval runs the notebooks, each is run once more afterwards."""
    if parent.config.getoption("nbval") and file_path.suffix == ".ipynb":
        return NotebookAgain.from_parent(parent, path=file_path)
    return None
