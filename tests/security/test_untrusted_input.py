"""Text of others on the terminal and in the shell: lines, files, capsules, rows, options. And the course that is opened."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentflow import Engine
from agentflow.cli import launch
from agentflow.errors import AgentFlowError, BadCapsule, BadRequestFile, BadSchedule, UnknownWorkflow, printable
from agentflow.lab.schedule.capsule import Capsule
from agentflow.lab.schedule.grammar import MAX_TIMES, parse
from agentflow.lab.schedule.play import play
from agentflow.requests import read_requests
from tests.support.programs import Shell, agentflow, environment

TITLE = "\x1b]0;owned\x07"  # sets the window's title; others move the cursor, answer as if typed, or turn text around
OBEYED = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
EVIL = f"a{TITLE}b\x9b2Jc\u202ed\re\x08f\x00g\u200bh\ufeff"


@pytest.fixture(scope="module")
def capsule(url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The capsule of a run."""
    file = tmp_path_factory.mktemp("capsules") / "run.json"
    return play(url, parse("A*")).capsule.save(file)


def altered(capsule: Path, to: Path, *, sealed: bool = True, **changes: Any) -> Path:
    """A copy of the capsule with other contents, and the hash that belongs to them."""
    data = {**json.loads(capsule.read_text()), **changes}
    if sealed:
        data["hash"] = Capsule(*(data[name] for name in ("schedule", "engine", "requests", "history", "outcome"))).hash
        data["setting"] = Capsule(
            *(data[name] for name in ("schedule", "engine", "requests", "history", "outcome"))
        ).to_dict()["setting"]
    to.write_text(json.dumps(data))
    return to


@pytest.fixture
def shell(engine: Engine, url: str, tmp_path: Path) -> Iterator[Shell]:
    """Where commands are started, in an empty laboratory."""
    with Shell(environment(DATABASE_URL=url, AGENTFLOW_SCHEMA=engine.database.schema), tmp_path) as shell:
        yield shell


def printed(shell: Shell, *arguments: str) -> str:
    done = shell.run(*arguments)
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    assert OBEYED.findall(said) == [], said
    return said


def test_a_terminal_obeys_nothing_that_came_from_a_file_a_row_or_an_option(
    engine: Engine, shell: Shell, tmp_path: Path, capsule: Path
) -> None:
    history = json.loads(capsule.read_text())["history"]
    history[2]["subject"] = EVIL
    outcome = json.loads(capsule.read_text())["outcome"] | {"sentence": EVIL}
    (tmp_path / "a.csv").write_text(f'"{TITLE}","b"\nx,y\n')
    (tmp_path / f"{TITLE}.jsonl").write_text("nonsense")
    altered(capsule, tmp_path / "sentence.json", outcome=outcome)
    altered(capsule, tmp_path / "history.json", history=history)
    altered(capsule, tmp_path / "broken.json", sealed=False, schedule=f"A* {TITLE}")
    said = [
        printed(shell, *command)
        for command in (
            ["play", f"A*5 {TITLE}"], ["submit", "--requests", "a.csv"], ["submit", "--requests", f"{TITLE}.jsonl"],
            ["diff", str(capsule), "sentence.json"], ["diff", str(capsule), "history.json"],
            ["diff", "broken.json", "broken.json"], [TITLE],
        )
    ]  # fmt: skip
    assert sum("\\u001b" in one or "\\x1b" in one for one in said) >= 6
    workflow_id = EVIL.replace("\0", "")
    engine.create_workflow("x", workflow_id=workflow_id)
    assert "\\u009b2J" in printed(shell, "check", "--json")
    told = json.loads(shell.run("check", "--json").stdout)
    assert [mistake["row"] for mistake in told["unfinished"]] == [workflow_id]  # JSON keeps its meaning


@pytest.mark.parametrize(
    "error",
    [
        AgentFlowError(EVIL), BadSchedule(EVIL), BadCapsule(EVIL), UnknownWorkflow(EVIL), BadRequestFile(EVIL, 1, EVIL),
        AgentFlowError(EVIL, EVIL), AgentFlowError(),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_what_an_error_says_is_harmless_where_python_prints_it_too(error: AgentFlowError) -> None:
    assert OBEYED.findall(str(error)) == []


def test_what_cannot_be_seen_is_written_as_an_escape_that_json_reads() -> None:
    hidden = [
        c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) in ("Cf", "Cc", "Cs", "Zl", "Zp")
    ]
    assert {"\ufeff", "\u200b", "\u2060", "\U000e0041"} < set(hidden)
    assert [c for c in hidden if printable(c) == c] == ["\t", "\n"]
    assert [c for c in hidden if c not in "\t\n" and json.loads(f'"{printable(c)}"') != c] == []
    assert printable(seen := "é\xa0汉ก\u0301😀") == seen


def test_a_capsule_is_harmless_to_look_at_and_an_entry_stays_one_line(capsule: Path, tmp_path: Path) -> None:
    data = json.loads(capsule.read_text())
    data["history"][2]["subject"] = f"classify{EVIL}"
    intent = next(entry for entry in data["history"] if entry["event"] == "action_intent_committed")
    intent["detail"] = {"tool": f"{EVIL}\n  9. the workflow completes"}
    loaded = Capsule.load(altered(capsule, tmp_path / "c.json", history=data["history"]))
    assert OBEYED.findall(repr(loaded)) == []
    assert [line for line in repr(loaded).splitlines() if line.startswith("  9. the workflow completes")] == []


@pytest.mark.parametrize("kind", ["pipe", "device", "endless", "large", "folder", "none"])
def test_what_is_no_file_of_a_bounded_size_is_refused_before_it_is_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "c.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind in ("device", "endless"):
        path.symlink_to("/dev/tty" if kind == "device" else "/dev/zero")
    elif kind == "large":
        path.touch()
        os.truncate(path, 2**40)
    elif kind == "folder":
        path.mkdir()
    done = agentflow("diff", str(path), str(path), env=environment(), cwd=tmp_path, seconds=20)
    assert done.returncode == 2 and "Give a file that Capsule.save()" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("workflow_id", ["../../evil", "/evil", "a\0b", "\ud800"])
def test_the_id_of_a_workflow_leads_a_picture_nowhere_else(capsule: Path, tmp_path: Path, workflow_id: str) -> None:
    (tmp_path / "a" / "gap-").mkdir(parents=True)
    requests = [*json.loads(capsule.read_text())["requests"], {"workflow_id": workflow_id, "input": "x"}]
    loaded = Capsule.load(altered(capsule, tmp_path / "c.json", requests=requests))
    with pytest.raises(BadCapsule, match="cannot be part of a file's name"):
        loaded.draw(tmp_path / "a" / "gap.svg")
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["a", "c.json", "gap-"]


LINES = [
    "A*5 event:x=\"';touch${IFS}PWNED;'\"", "A* event:$(touch${IFS}PWNED)", "A* event:`touch${IFS}PWNED`",
    "event:;touch${IFS}PWNED;",
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_a_command_that_a_tampered_capsule_suggests_runs_nothing_but_ours(
    capsule: Path, tmp_path: Path, line: str
) -> None:
    with pytest.raises(BadCapsule) as refused:
        Capsule.load(altered(capsule, tmp_path / "c.json", sealed=False, schedule=line))
    suggested = re.search(r"agentflow play .*", str(refused.value))
    assert suggested is not None
    assert shlex.split(suggested.group())[:2] == ["agentflow", "play"] and len(shlex.split(suggested.group())) == 3
    shell = f'agentflow() {{ printf %s "$2"; }}\n{suggested.group()}'
    done = subprocess.run(["sh", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == line and not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize("digits", ["9" * 5000, "1" + "0" * 9000, "0" * 5000, str(MAX_TIMES + 1), "000"])
def test_too_many_digits_are_a_bad_schedule(digits: str) -> None:
    with pytest.raises(BadSchedule, match=r"must repeat 1 to 1,000 times"):
        parse(f"A*{digits}")
    assert str(parse(f"A*{'0' * 5000}7")) == "A*7"


# -- a field of a file -------------------------------------------------------------------------------------------------


def test_a_long_field_of_a_csv_file_is_read_like_a_long_line_of_text(tmp_path: Path) -> None:
    long = "x" * 131_073 + '"' + "y" * 300_000
    file = tmp_path / "a.csv"
    file.write_text('request\n"' + long.replace('"', '""') + '"\nnext\n')
    assert list(read_requests(file)) == [long, "next"]


# -- whose course it is ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("theirs", ["notebooks/00-start-here.ipynb", "notebooks", ".", "notebooks/07-other.ipynb"])
def test_a_course_that_somebody_else_put_above_us_is_not_opened(
    theirs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = tmp_path / launch.FIRST_NOTEBOOK
    first.parent.mkdir()
    first.write_text("{}")
    first.with_name("07-other.ipynb").write_text("{}")
    (tmp_path / "mine" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "mine" / "deep")
    assert launch.course_folder() == tmp_path
    os.chown(tmp_path / theirs, 65534, 65534)
    assert launch.course_folder() == Path(launch.__file__).resolve().parents[2]
    assert f"{first} belongs to somebody else" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_course_behind_a_link_of_somebody_else_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = tmp_path / "real"
    (real / "notebooks").mkdir(parents=True)
    (real / launch.FIRST_NOTEBOOK).write_text("{}")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "notebooks").symlink_to(real / "notebooks")
    monkeypatch.chdir(tmp_path / "here")
    assert launch.course_folder() == tmp_path / "here"
    os.lchown(tmp_path / "here" / "notebooks", 65534, 65534)
    assert launch.course_folder() != tmp_path / "here"
