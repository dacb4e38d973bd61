"""The benchmark runs, measures everything it promises, and writes only between its markers. No speed is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.bench.pgbench import STATEMENTS
from tests.bench.run import BEGIN, END, Result, table, write

ROOT = Path(__file__).resolve().parents[2]


def test_quick_run_reports_every_ratio_and_at_most_nine_statements(url: str, tmp_path: Path) -> None:
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
    assert results[2]["value"] == len(STATEMENTS)
    assert results[2]["value"] <= 9
    assert document.read_text(encoding="utf-8").count("| at ") == len(subjects)


def test_prose_around_the_generated_part_stays(tmp_path: Path) -> None:
    document = tmp_path / "benchmarks.md"
    document.write_text(f"# Before\n{BEGIN}\nold\n{END}\nAfter.\n", encoding="utf-8")
    write(document, "new")
    assert document.read_text(encoding="utf-8") == f"# Before\n{BEGIN}\nnew\n{END}\nAfter.\n"


def test_missed_bound_is_visible() -> None:
    missed, met = Result("a", 2.9, "at least", 3), Result("b", 1.2, "at most", 1.3)
    assert [missed.met, met.met] == [False, True]
    lines = table([missed, met], [], "a machine", "a command").splitlines()
    assert [line.split("|")[4].strip() for line in lines[4:6]] == ["**no**", "yes"]
