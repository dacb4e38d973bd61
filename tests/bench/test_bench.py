"""The benchmark runs, measures everything it promises, and writes only between its markers. No speed is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.pgbench import STATEMENTS
from tests.bench.result import Result, exit_code, table
from tests.bench.run import BEGIN, END, write

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_quick_run_reports_every_ratio(url: str, tmp_path: Path) -> None:
    document = tmp_path / "benchmarks.md"
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--quick", "--json", "--document", document],
        cwd=ROOT, env={**os.environ, "DATABASE_URL": url}, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    subjects = (
        "tutorial",
        "tutorial",
        "statements",
        "pgbench",
        "pgbench",
        "claim",
        "submit",
        "thread",
        "process",
        "timeline",
    )
    assert len(results) == len(subjects)
    for result, subject in zip(results, subjects, strict=True):
        assert subject in result["what"]
        assert result["value"] > 0
        assert result["met"] is None, "too short to judge"
    assert results[2]["value"] == len(STATEMENTS)
    assert document.read_text(encoding="utf-8").count("| not judged: a quick run is too short |") == len(subjects)


def test_a_request_takes_at_most_nine_statements() -> None:
    assert len(STATEMENTS) <= 9


def test_prose_around_the_generated_part_stays(tmp_path: Path) -> None:
    document = tmp_path / "benchmarks.md"
    document.write_text(f"# Before\n{BEGIN}\nold\n{END}\nAfter.\n", encoding="utf-8")
    write(document, "new")
    assert document.read_text(encoding="utf-8") == f"# Before\n{BEGIN}\nnew\n{END}\nAfter.\n"


def test_what_was_missed_or_not_judged_is_visible_and_never_called_fine() -> None:
    missed, met = Result("a", 2.9, "at least", 3), Result("b", 1.2, "at most", 1.3)
    unjudged = [Result(name, value, "at least", 3, unjudged="it rained") for name, value in (("c", 9.0), ("d", 0.1))]
    assert [one.met for one in (missed, met, *unjudged)] == [False, True, None, None]
    lines = table([missed, met, *unjudged], [], "a machine", "a command").splitlines()
    assert lines[2] == "Of 4 bounds 1 are met and 1 missed. 2 could not be judged, and nothing is known of them."
    said = [line.split("|")[4].strip() for line in lines[6:10]]
    assert said == ["**no**", "yes", "not judged: it rained", "not judged: it rained"]
    assert [exit_code([missed, met, *unjudged]), exit_code([met, *unjudged]), exit_code([met])] == [1, 0, 0]
