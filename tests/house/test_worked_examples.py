"""The worked examples of docs/architecture.md: each applies, touches few modules, and what it adds really works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentflow import Engine

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
TRIALS = Path(__file__).parent / "examples"
AT_MOST = {"new_broken_engine": 3, "new_fault": 7, "new_transaction": 6}


def examples() -> dict[str, str]:
    """The diffs that the page prints, each by the name of its heading."""
    sections = re.split(r"^### A ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    diffs = {section.partition("\n")[0]: section.partition("```diff\n")[2].partition("```")[0] for section in sections}
    return {heading.replace(" ", "_"): diff for heading, diff in diffs.items()}


def applied(diff: str, folder: Path) -> list[str]:
    """The modules that a worked example touched in a copy of the package, which is now in the folder."""
    shutil.copytree(ROOT / "agentflow", folder / "agentflow", ignore=shutil.ignore_patterns("__pycache__"))
    alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    subprocess.run(["git", "apply", "-"], input=diff, cwd=folder, env=alone, check=True, text=True)
    return re.findall(r"^\+\+\+ b/(.+\.py)$", diff, re.MULTILINE)


def test_the_page_prints_one_example_of_each_kind() -> None:
    assert set(examples()) == set(AT_MOST)


@pytest.mark.parametrize("name", AT_MOST)
def test_a_worked_example_touches_few_modules_and_works(name: str, tmp_path: Path, engine: Engine) -> None:
    touched = applied(examples()[name], tmp_path)
    assert 0 < len(set(touched)) <= AT_MOST[name]
    assert all(module.startswith("agentflow/") for module in touched)
    where = engine.database.url.render_as_string(hide_password=False)
    command = [sys.executable, str(TRIALS / f"{name}.py"), where, engine.database.schema]
    patched = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=patched, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
