"""docs/security.md names an attack for each promise, and each of them is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_promise_names_attacks_that_are_there_and_each_file_of_attacks_is_named() -> None:
    promises = [
        line.split(" | ")
        for line in (ROOT / "docs" / "security.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and line.count(" | ") == 3 and not line.startswith("| promise")
    ]
    assert len(promises) > 30
    attacks = [*Path(__file__).parent.glob("test_*.py"), ROOT / "tests" / "house" / "test_compose.py"]
    files = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in attacks}
    named: set[str] = set()
    for promise in promises:
        tests = re.findall(r"`((?:[\w/]+/)?test_\w+(?:\.py)?)`", promise[2])
        assert tests, f"no test for: {promise[0]}"
        for test in tests:
            homes = {name for name, text in files.items() if test == name or f"def {test}(" in text}
            assert homes, f"{test} is not there"
            named |= homes
    assert named | {Path(__file__).relative_to(ROOT).as_posix()} == set(files)
