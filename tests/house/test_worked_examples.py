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
EXAMPLES = Path(__file__).parent / "examples"
AT_MOST = {"new_fault": 7, "new_transaction": 6, "new_broken_engine": 3}


def applied(diff: Path, folder: Path) -> list[str]:
    """The modules that a worked example touched in a copy of the package, which is now in the folder."""
    shutil.copytree(ROOT / "agentflow", folder / "agentflow", ignore=shutil.ignore_patterns("__pycache__"))
    alone = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    subprocess.run(["git", "apply", str(diff)], cwd=folder, env=alone, check=True)
    return re.findall(r"^\+\+\+ b/(.+\.py)$", diff.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("diff", sorted(EXAMPLES.glob("*.diff")), ids=lambda diff: str(diff.stem))
def test_a_worked_example_touches_few_modules_and_works(diff: Path, tmp_path: Path, engine: Engine) -> None:
    touched = applied(diff, tmp_path)
    assert len(set(touched)) <= AT_MOST[diff.stem]
    assert all(module.startswith("agentflow/") for module in touched)
    where = engine.database.url.render_as_string(hide_password=False)
    command = [sys.executable, str(diff.with_suffix(".py")), where, engine.database.schema]
    patched = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=patched, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
