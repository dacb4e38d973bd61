"""`agentflow play`: one line in, one history out, and an exit code that says whether all is well."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from xml.etree import ElementTree

import pytest
from sqlalchemy import text

from agentflow import Database
from agentflow.errors import BadSchedule
from agentflow.evidence import SEMANTICS
from agentflow.lab.broken.catalogue import GUARDS
from agentflow.lab.schedule.capsule import Capsule, first_divergence
from agentflow.lab.schedule.grammar import parse
from agentflow.lab.schedule.play import play, read_line
from tests.support.programs import agentflow, environment, installed, running
from tests.support.signals import INTERRUPTED, interrupt

Run = Callable[..., CompletedProcess[str]]
GAP = "A*5 A! expire B*"


@pytest.fixture
def run(url: str, tmp_path: Path) -> Run:
    def command(*arguments: str, program: Run = agentflow) -> CompletedProcess[str]:
        return program("play", *arguments, env=environment(DATABASE_URL=url), cwd=tmp_path)

    return command


def schemas(url: str, name: str) -> set[str]:
    """Which of the schema and its world's exist."""
    database = Database(url)
    with database.alchemy.connect() as connection:
        sql = text("SELECT nspname FROM pg_namespace WHERE starts_with(nspname, :name)")
        found = set(connection.execute(sql, {"name": name}).scalars())
    database.close()
    return found


def test_the_gap_is_played_printed_drawn_and_kept(run: Run, tmp_path: Path) -> None:
    done = run(GAP, "--svg", "gap.svg", "--capsule", "gap.json", program=installed)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == GAP
    entries = [line for line in lines if re.match(r" *\d+\. ", line)]
    assert len(entries) == 12
    assert "A crashes before acknowledge" in entries[6]
    assert "still one effect" in entries[9]
    for figure, value in (("tool_execution_attempts", 2), ("business_effects", 1), ("duplicate_business_effects", 0)):
        assert re.search(rf"^{figure} +{value}$", done.stdout, re.MULTILINE)
    assert lines[-1] == "1 of 1 workflow completed; 2 attempts left 1 business effect."
    capsule = Capsule.load(tmp_path / "gap.json")
    assert (tmp_path / "gap.svg").read_text().strip() == capsule.picture().svg
    assert "effect exists" in " ".join(ElementTree.parse(tmp_path / "gap.svg").getroot().itertext())


def test_threads_and_processes_print_the_same(run: Run) -> None:
    threads, processes = (
        run("--lanes", lanes, "requests=2 A*5 A! expire@1 B* B*", "--json") for lanes in ("thread", "process")
    )
    assert (threads.returncode, processes.returncode) == (0, 0)
    one, other = (json.loads(done.stdout) for done in (threads, processes))
    assert one["hash"] == other["hash"]
    assert one["business_effects"] == one["workflows_completed"] == 2
    assert {"recovery_latency_ms", "semantics", "workflow_completion_rate"} <= set(one)


@pytest.mark.parametrize(
    ("arguments", "said", "promise"),
    [
        ([GAP, "--without", "idempotency_key"], "1 business effect too many", "broken: 1 business effect too many"),
        (["without=idempotency_key " + GAP], "1 business effect too many", "broken: 1 business effect too many"),
        (["without=idempotency_key A*5 expire B*2 expire C*"], "2 business effects", "broken: 2 business effects too many"),
        ([GAP, "--without", "acknowledge_after_tool"], "resolve-account left no", "broken: 1 business effect lost"),
        (["A! " + "A+ A A! expire " * 6 + "B"], "request-1 has failed: CrashBudgetSpent", SEMANTICS),
    ],
)  # fmt: skip
def test_what_is_not_well_is_exit_code_1_with_the_history(
    run: Run, arguments: list[str], said: str, promise: str
) -> None:
    done = run(*arguments)
    assert re.findall(r"^semantics +(.*)$", done.stdout, re.MULTILINE) == [promise]
    assert done.returncode == 1
    assert done.stderr.startswith("agentflow: ")
    assert said in done.stderr
    assert "1. create" in done.stdout


def test_two_saved_runs_are_compared(run: Run, tmp_path: Path) -> None:
    def diff(*arguments: str) -> tuple[int, str, str]:
        done = agentflow(
            "diff", *arguments, env=environment(DATABASE_URL="postgresql://nobody@nowhere/x"), cwd=tmp_path
        )
        return done.returncode, done.stdout, done.stderr

    run(GAP, "--capsule", "one.json")
    run(GAP, "--capsule", "two.json", "--lanes", "process")
    run("A*4 A! expire B*", "--capsule", "other.json")
    same = f"Both are the same run, with 12 entries and the hash {Capsule.load(tmp_path / 'one.json').hash:.12}.\n"
    assert diff("one.json", "two.json") == (0, same, "")
    code, said, error = diff("one.json", "other.json")
    assert (code, error) == (1, "") and said.startswith('They differ: request-1, entry 6: "A calls the tool;')
    assert len(said.splitlines()) == 1
    code, said, _ = diff("other.json", "one.json", "--json")
    assert (code, json.loads(said)["same"]) == (1, False) and "request-1, entry 6" in json.loads(said)["difference"]
    (tmp_path / "changed.json").write_text((tmp_path / "one.json").read_text().replace("SIM-200", "SIM-404"))
    for unreadable, why in (
        ("nothing.json", "cannot be read"),
        (".", "cannot be read"),
        ("changed.json", "was changed"),
    ):
        code, said, error = diff("one.json", unreadable)
        assert (code, said) == (2, "") and error.startswith("agentflow: ") and why in error
        assert len(error.splitlines()) == 1


def test_an_unfinished_workflow_is_named_and_is_no_error(run: Run) -> None:
    done = run("A*5 A!")
    assert done.returncode == 0
    assert "left unfinished: request-1 (ACTION_PENDING)." in done.stdout


def test_guards_and_workflow_may_stand_in_the_line_or_beside_it() -> None:
    beside = read_line("A*", "approval_agent", ["lease_owner", "fence_token"])
    inside = read_line("workflow=approval_agent without=fence_token,lease_owner A*")
    assert beside == inside == read_line("without=fence_token A*", "approval_agent", ["lease_owner"])
    with pytest.raises(BadSchedule, match="leave one of them out"):
        read_line("workflow=approval_agent A*", "research_agent")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["A*5 A%"], '"%" at 6 is not a move'),
        (["A! A"], '"A" at 4 moves A, which is dead'),
        (["A*2 expire expire"], '"expire": no workflow has a lease that could end. This was move 3 of 3'),
        (["A*3 restart"], "embedded server only"),
        (["A", "--workflow", "nobody"], "--workflow 'nobody' is not known"),
        (["A", "--without", "nothing"], "There is no guard 'nothing'. The guards are " + ", ".join(GUARDS)),
        (["A", "--schema", "public"], "already exists"),
        (["A", "--svg", "no/such/folder.svg"], "No such file or directory"),
    ],
)
def test_what_cannot_be_played_is_one_sentence(run: Run, arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 1
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [[], ["A", "B"], ["A", "--lanes", "fibre"], ["A", "--svg"], ["A", "--svg", "."]])
def test_a_command_line_that_cannot_be_read_is_exit_code_2(run: Run, arguments: list[str]) -> None:
    assert run(*arguments).returncode == 2


@pytest.mark.parametrize("line", ["A*3", "A*2 expire expire"])
def test_its_schema_is_gone_afterwards(run: Run, url: str, line: str) -> None:
    name = f"mine_{os.getpid()}"
    run(line, "--schema", name)
    assert schemas(url, name) == set()


def test_its_schema_is_gone_after_sigterm_too(url: str, tmp_path: Path) -> None:
    name = f"ended_{os.getpid()}"
    line = "requests=9 " + "A*1000 " * 9
    with running("play", line, "--schema", name, env=environment(DATABASE_URL=url), cwd=tmp_path) as process:
        interrupt(process.pid, signal.SIGTERM, amid=lambda: schemas(url, name))
        assert process.wait(60) == INTERRUPTED
    assert schemas(url, name) == set()


def test_a_restart_is_played_on_the_embedded_server(tmp_path: Path) -> None:
    alone = environment(DATABASE_URL=None, AGENTFLOW_HOME=str(tmp_path / "home"))
    try:
        done = [
            agentflow("play", "A*3 restart A*", "--lanes", lanes, "--json", env=alone, cwd=tmp_path)
            for lanes in ("thread", "process")
        ]
        assert [one.returncode for one in done] == [0, 0], done[0].stderr
        figures = [json.loads(one.stdout) for one in done]
        assert figures[0]["hash"] == figures[1]["hash"]
        assert "database_restarted" in [entry["event"] for entry in figures[0]["history"]]
    finally:
        agentflow("stop", env=alone)


def test_a_function_of_its_own_plays_what_the_command_plays(url: str) -> None:
    played: list[Any] = [play(url, parse(GAP), lanes=lanes) for lanes in ("thread", "process")]
    assert first_divergence(played[0].capsule, played[1].capsule) is None
    assert played[0].problems == ()
