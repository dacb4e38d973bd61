"""AgentFlow's command line as real processes: run to the end, or running while a test looks. None outlives its test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def environment(**changes: str | None) -> dict[str, str]:
    """This process's environment with changes; None takes a variable out. No schema is named unless a test does."""
    merged: dict[str, str | None] = {**os.environ, "PYTHONPATH": str(ROOT), "AGENTFLOW_SCHEMA": None, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def agentflow(
    *arguments: str, env: Mapping[str, str], cwd: Path = ROOT, stdin: str = "", seconds: float = 60
) -> subprocess.CompletedProcess[str]:
    """`python -m agentflow ...` has ended within `seconds`; its exit code and output."""
    return subprocess.run(
        [sys.executable, "-m", "agentflow", *arguments], env=env, cwd=cwd, input=stdin, timeout=seconds,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@contextmanager
def running(*arguments: str, env: Mapping[str, str], cwd: Path = ROOT) -> Iterator[subprocess.Popen[str]]:
    """The command runs while this is open, and is killed afterwards if it still does."""
    process = subprocess.Popen(
        [sys.executable, "-m", "agentflow", *arguments], env=env, cwd=cwd, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)
