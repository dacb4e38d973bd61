"""History, pictures and what a control room shows need the standard library alone: they run where nothing is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentflow.lab.pictures.timeline import timeline
from tests.support.histories import Entries

LAB = Path(__file__).resolve().parents[3] / "agentflow" / "lab"
ALONE = ["agentflow.lab.room.view"] + [
    ".".join(["agentflow", "lab", package, *([] if path.stem == "__init__" else [path.stem])])
    for package in ("history", "pictures")
    for path in sorted((LAB / package).glob("*.py"))
]
FENCE = """
import importlib, json, sys

class Fence:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "agentflow"}:
            raise ImportError(f"{name} is not of the standard library")

sys.meta_path.insert(0, Fence())
"""
DRAW = """
from agentflow.lab.pictures.timeline import timeline
picture = timeline(json.load(sys.stdin))
print(json.dumps({"svg": picture.svg, "text": picture.text, "sentence": picture.sentence}))
"""


def alone(program: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", FENCE + program]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", ALONE)
def test_it_needs_the_standard_library_alone(module: str) -> None:
    done = alone(f"importlib.import_module({module!r})")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["duplicate_effect", "lost_reply", "stale_worker"])
def test_a_timeline_and_its_text_are_drawn_with_the_standard_library_alone(
    entries: Callable[[str], Entries], name: str
) -> None:
    rows = json.dumps(entries(name), default=str)
    done = alone(DRAW, rows)
    assert done.returncode == 0, done.stderr
    drawn, here = json.loads(done.stdout), timeline(json.loads(rows))
    assert drawn == {"svg": here.svg, "text": here.text, "sentence": here.sentence}


def test_the_fence_stops_what_is_installed() -> None:
    assert "psycopg is not of the standard library" in alone("import agentflow.database").stderr
