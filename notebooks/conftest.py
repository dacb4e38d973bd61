"""Notebooks under test run on the tests' own PostgreSQL, never on somebody's laboratory, and answer in no learner's course."""

import os

import pytest

from tests import conftest as tests


def pytest_configure(config: pytest.Config) -> None:
    """The kernels that nbval starts find the tests' server through its home."""
    tests.pytest_configure(config)
    if home := os.environ.get("AGENTFLOW_TEST_HOME"):
        os.environ["AGENTFLOW_HOME"] = home
    os.environ.setdefault("AGENTFLOW_COURSE", "course_under_test")


def pytest_unconfigure(config: pytest.Config) -> None:
    """The server is stopped, if this run started it."""
    tests.pytest_unconfigure(config)
