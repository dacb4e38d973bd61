"""One's own workflow and tool on the command line: found by name, called for real, counted by the provider's own table."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import httpx
import pytest

from agentflow import Engine
from agentflow.agents import WORKFLOWS
from agentflow.cli import launch
from agentflow.errors import BadName
from agentflow.lab.crashes.atlas import atlas
from agentflow.lab.crashes.atlas_result import GUARD_SETS
from tests.conftest import rows
from tests.support.helpers import eventually
from tests.support.own_shop import books, open_shop, shop_of_the_readme
from tests.support.programs import agentflow, environment, running
from tests.support.signals import send

MINE = ["--workflow", "shop:order", "--tool", "shop:charge"]
Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def run(engine: Engine, url: str, tmp_path: Path) -> Run:
    """Runs a command in a folder with the README's shop."""
    open_shop(tmp_path)
    env = environment(DATABASE_URL=url, AGENTFLOW_SCHEMA=engine.database.schema)
    return lambda *arguments: agentflow(*arguments, env=env, cwd=tmp_path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where we are, as a command would be."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def test_the_readme_s_shop_has_at_most_thirty_lines() -> None:
    assert len(shop_of_the_readme().splitlines()) <= 30


def test_play_kills_a_process_in_the_gap_and_the_provider_s_table_agrees(run: Run, tmp_path: Path) -> None:
    for _ in range(2):  # the provider remembers the first
        done = run("play", "A*4 A! expire B*", *MINE, "--input", '{"total": 300}', "--lanes", "process", "--json")
        assert done.returncode == 0, done.stderr
        figures = json.loads(done.stdout)
        assert (figures["tool_execution_attempts"], figures["business_effects"]) == (2, 1)
    assert [(total, calls) for _, _, total, calls in books(tmp_path)] == [(360, 2), (360, 2)]


def test_a_soak_s_figures_are_those_of_the_provider_s_table(run: Run, tmp_path: Path) -> None:
    done = run("soak", *MINE, "--requests", "orders.jsonl", "--workers", "2", "--kills", "5", "--json")
    assert done.returncode == 0, done.stderr
    figures, charged = json.loads(done.stdout), books(tmp_path)
    assert figures["kills_happened"] == figures["processes_killed"] == 5 and figures["kills_in_gap"] >= 1
    assert (figures["business_effects"], figures["workflows_completed"]) == (len(charged), 12)
    assert figures["tool_execution_attempts"] == sum(calls for *_, calls in charged) >= 12 + figures["kills_in_gap"]
    assert figures["repeated_calls"] == sum(calls - 1 for *_, calls in charged)
    assert sorted(total for _, _, total, _ in charged) == sorted(round(n * 1.2) for n in range(12))


def test_what_a_tool_without_effects_did_is_not_observed_anywhere(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mute.py").write_text("def charge(call):\n    return {}\n")
    mine = ["--workflow", "shop:order", "--tool", "mute:charge", "--input", '{"total": 1}', "--json"]
    for command in (["play", "A*"], ["soak", "--workers", "1", "--kills", "0"]):
        done = run(*command, *mine)
        assert (done.returncode, json.loads(done.stdout)["business_effects"]) == (1, None), command
        assert "not observed" in done.stderr and "effects()" in done.stderr
    found = run("doctor", "--tool", "mute:charge")
    assert "WRONG  mute:charge has no effects(), so what it does is not observed." in found.stdout


KIOSK = """
import sqlite3


class Book:
    def __init__(self, file):
        self.file = file

    def open(self):
        db = sqlite3.connect(self.file, timeout=30)
        db.execute("CREATE TABLE IF NOT EXISTS calls (key TEXT PRIMARY KEY, action TEXT, workflow TEXT, calls INT)")
        return db

    def __call__(self, call):
        with self.open() as db:
            row = (call.idempotency_key, call.action, call.workflow_id)
            db.execute("INSERT INTO calls VALUES (?, ?, ?, 1) ON CONFLICT (key) DO UPDATE SET calls = calls + 1", row)

    def effects(self):
        return self.open().execute("SELECT * FROM calls").fetchall()


pay, mail = Book("pay.sqlite"), Book("mail.sqlite")


def sale(run, total):
    run.side_effect("pay", key="pay", arguments=total, tool=pay)
    run.side_effect("mail", key="mail", arguments=total, tool=mail)
"""
BOTH = ["--tool", "kiosk:pay", "--tool", "kiosk:mail"]


def test_two_tools_that_only_side_effects_name_are_both_observed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "kiosk.py").write_text(KIOSK)
    mine = ["--workflow", "kiosk:sale", "--input", "3", "--json"]
    for command in (["play", "A*"], ["soak", "--workers", "1", "--kills", "2"]):
        done = run(*command, *mine, *BOTH)
        assert (done.returncode, json.loads(done.stdout)["business_effects"]) == (0, 2), done.stderr
        done = run(*command, *mine, *BOTH[:2])
        assert (done.returncode, json.loads(done.stdout)["business_effects"]) == (1, None)
        assert "--tool MODULE:ATTRIBUTE" in done.stderr


def test_an_atlas_counts_the_effects_of_tools_that_only_side_effects_name(url: str, folder: Path) -> None:
    (folder / "kiosk.py").write_text(KIOSK)
    own = launch.Own("kiosk:sale", BOTH[1::2])
    where, naive = ("before tool pay", "after tool pay", "after tool mail"), GUARD_SETS[-1:]
    found = atlas(url, **own.options, inputs=[3], guard_sets=naive, boundaries=where)
    assert found.problems == [] and [cell.effects for cell in found] == [2, 3, 4]


def test_an_event_reaches_a_soak_and_an_atlas(run: Run) -> None:
    mine = ["--workflow", "approval_agent", "--input", '"login"', "--event"]
    done = run("soak", *mine, "approval=false", "--workers", "1", "--kills", "0", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["business_effects"], told["events"]) == (0, 0, {"approval": False}), done.stderr
    done = run("atlas", *mine, "aproval=1")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("agentflow: Undisturbed, no workflow waits for the event 'aproval'"), done.stderr


def test_a_second_tool_is_refused_where_only_one_is_called(run: Run, tmp_path: Path) -> None:
    (tmp_path / "kiosk.py").write_text(KIOSK)
    for command in (["worker"], ["api", "--port", "0"], ["explore", "--input", "3"]):
        done = run(*command, "--workflow", "kiosk:sale", *BOTH)
        assert done.returncode == 1, done
        assert done.stderr.startswith("agentflow: --tool 'kiosk:mail' is the second, and only one can be given here")


def test_submit_worker_report_and_check_on_an_own_workflow(run: Run, engine: Engine, url: str, tmp_path: Path) -> None:
    done = run("submit", "--workflow", "order", "--requests", "orders.jsonl")
    assert "`agentflow worker --workflow MODULE:order" in done.stdout
    assert "If it uses a tool of your own, start the worker with --tool MODULE:ATTRIBUTE too." in done.stdout
    assert rows(engine, "SELECT input FROM {s}.workflows WHERE (input ->> 'total')::int = 3") == [
        {"input": {"total": 3}}
    ]
    env = environment(DATABASE_URL=url, AGENTFLOW_SCHEMA=engine.database.schema)
    with running("worker", *MINE, env=env, cwd=tmp_path) as worker:
        eventually(lambda: len(rows(engine, "SELECT FROM {s}.workflows WHERE status = 'completed'")) == 12, 60)
        send(worker.pid, signal.SIGTERM)
        worker.communicate(timeout=60)
        assert worker.returncode == 0
    report = run("report", "--tool", "shop:charge", "--json")
    assert (report.returncode, json.loads(report.stdout)["business_effects"]) == (0, len(books(tmp_path)) == 12 and 12)
    assert run("check", "--tool", "shop:charge").returncode == 0
    (tmp_path / "other.py").write_text("def pay(call): ...\npay.effects = list\n")
    other = run("report", "--tool", "shop:charge", "--tool", "other:pay")
    idle = [line for line in other.stdout.splitlines() if line.startswith("No action in schema")]
    assert other.returncode == 0 and len(idle) == 1
    assert idle[0].endswith("was given to other:pay; tools of one's own that got one: shop:charge.")
    assert "ok     shop:charge tells of 12 business effects." in run("doctor", "--tool", "shop:charge").stdout


def test_the_api_runs_an_own_workflow_with_its_tool(run: Run, engine: Engine, url: str, tmp_path: Path) -> None:
    env = environment(DATABASE_URL=url, AGENTFLOW_SCHEMA=engine.database.schema, AGENTFLOW_HOME=str(tmp_path / "home"))
    with running("api", *MINE, "--port", "0", "--json", env=env, cwd=tmp_path) as api:
        told = json.loads(api.stdout.readline())  # type: ignore[union-attr]
        with httpx.Client(
            base_url=told["url"], headers={"Authorization": f"Bearer {told['token']}"}, timeout=30
        ) as client:
            made = client.post("/workflows", json={"id": "o-1", "name": "order", "request": {"total": 10}})
            assert made.status_code == 201, made.text
            assert client.post("/workers/w/run-once").json() == {"worked": True}
            assert client.get("/workflows/o-1").json()["result"] == {"receipt": "o-1:charge"}
    assert books(tmp_path) == [("o-1:charge", "o-1", 12, 1)]


# -- bad input -------------------------------------------------------------------------------------------------------

MODULES = {
    "needs": "import nothing_like_this", "raises": "x = 1\ny = x / 0", "syntax": "def f(:", "leaves": "raise SystemExit(3)",
    "random": "def order(run, request): ...",
    "bad": "number = 3\nasync def later(run, value): ...\ndef gen(run, value): yield\ndef one(run): ...\nclass Tool: ...\n",
}  # fmt: skip


@pytest.mark.parametrize(
    ("spelled", "said"),
    [
        ("nothing:x", r"cannot be imported \(No module named 'nothing'\)\. Give MODULE:ATTRIBUTE"),
        ("needs:x", r"needs\.py, line 1, ModuleNotFoundError: No module named 'nothing_like_this'\. Mend that"),
        ("raises:x", r"raises\.py, line 2, ZeroDivisionError: division by zero\. Mend that"),
        ("syntax:x", r"SyntaxError: invalid syntax .*syntax\.py, line 1"),
        ("leaves:x", r"leaves\.py, line 1, SystemExit: 3"),
        ("bad:nobody", r"the module 'bad' .* has no 'nobody'; it has later, gen, one, Tool\."),
        ("random:order", r"random\.py was not read: a module of this folder takes no other's place, so rename it"),
        (":x", "Give MODULE:ATTRIBUTE"), ("bad:", "Give MODULE:ATTRIBUTE"), (".bad:x", "Give MODULE:ATTRIBUTE"),
        ("bad", "'bad' is not known. Choose one of approval_agent, .* as MODULE:ATTRIBUTE"),
        ("bad:number", "is no workflow but a value of type int"), ("bad:later", "is no workflow but an async function"),
        ("bad:gen", "is no workflow but a generator"), ("bad:Tool", "is no workflow but a class"),
        ("bad:one", r"that cannot take a run and its input \(too many positional arguments\)"),
    ],
)  # fmt: skip
def test_what_is_no_workflow_is_one_sentence_with_the_way_out(folder: Path, spelled: str, said: str) -> None:
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    sys.modules.pop("bad", None)
    with pytest.raises(BadName, match=said) as raised:
        launch.own_workflows([spelled])
    assert str(raised.value).startswith("--workflow ") and "\n" not in str(raised.value)
    sys.modules.pop("bad", None)


def test_what_is_no_tool_is_one_sentence(folder: Path) -> None:
    (folder / "notools.py").write_text("number = 3\nclass Tool: ...\nasync def later(call): ...\n")
    for name, said in (("number", "a value of type int"), ("later", "an async function"), ("Tool", "tool = Tool()")):
        with pytest.raises(BadName, match=f"--tool 'notools:{name}' is .*{said.replace('(', '.').replace(')', '.')}"):
            launch.own_tool([f"notools:{name}"])


def test_two_workflows_of_one_name_are_refused_and_examples_go_beside_ones_own(folder: Path) -> None:
    (folder / "twins.py").write_text("def order(run, request): ...\n")
    with pytest.raises(BadName, match="is the second with the name 'order'"):
        launch.own_workflows(["twins:order", "twins:order"])
    assert [*launch.own_workflows(["twins:order", "support_agent"])] == ["order", "support_agent"]
    assert launch.own_workflows(None) == WORKFLOWS


@pytest.mark.parametrize(
    ("given", "requests", "said"),
    [("{total: 3}", None, "is not JSON .*a text has quotes of its own"),
     ("NaN", None, r"cannot be stored \(\$: nan .*Give plain JSON: finite numbers, texts"),
     ("1", "orders.jsonl", "--input and --requests cannot be combined"), (None, None, "needs an input: give --input JSON")],
)  # fmt: skip
def test_an_input_that_cannot_be_used_is_one_sentence(folder: Path, given: Any, requests: Any, said: str) -> None:
    (folder / "flow.py").write_text("def order(run, request): ...\n")
    with pytest.raises(BadName, match=said):
        launch.Own("flow:order", None).inputs(given, requests, None)


def test_what_a_module_prints_does_not_get_into_the_json(run: Run, tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("print('hello')\norder = lambda run, value: run.step('a', lambda: value)\n")
    done = run("play", "A*", "--workflow", "loud:order", "--input", "[1]", "--lanes", "process", "--json")
    assert (done.returncode, json.loads(done.stdout)["outcome"]["workflows"][0]["result"]) == (0, [1])
    assert "hello" in done.stderr and "Traceback" not in done.stderr


def test_an_effects_that_raises_is_named_with_the_tool(run: Run, tmp_path: Path) -> None:
    (tmp_path / "closed.py").write_text(
        "def charge(call): return {}\ndef effects(): raise RuntimeError('books\\nare\\x1b closed')\ncharge.effects = effects\n"
    )
    done = run("play", "A*", "--workflow", "shop:order", "--tool", "closed:charge", "--input", '{"total": 1}')
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "closed:charge.effects() raised RuntimeError: books\\nare\\u001b closed. Mend it" in done.stderr
