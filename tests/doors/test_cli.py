"""The command line as people and programs use it: real processes, exit codes, and what they leave in the tables."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from subprocess import CompletedProcess, Popen
from typing import Any

import click
import httpx
import psutil
import pytest
import typer
from sqlalchemy import text

from agentflow import CrashInjected, Database, Engine, Policy, ToolCall, migrate, migrations, open_engine
from agentflow.cli import app
from agentflow.errors import StatementRefused
from agentflow.server import Server
from tests.conftest import rows
from tests.support.helpers import eventually
from tests.support.programs import (
    ROOT,
    Program,
    agentflow,
    environment,
    installed,
    installed_running,
    running,
)
from tests.support.refusals import refusing
from tests.support.signals import send

COMMANDS: Mapping[str, click.Command] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def run(engine: Engine, url: str, tmp_path: Path) -> Run:
    """Runs a command on the test's laboratory, in an empty folder."""

    def command(
        *arguments: str, stdin: str = "", program: Run = agentflow, **changes: str | None
    ) -> CompletedProcess[str]:
        told = {"DATABASE_URL": url, "AGENTFLOW_SCHEMA": engine.database.schema, **changes}
        return program(*arguments, env=environment(**told), cwd=tmp_path, stdin=stdin)

    return command


@pytest.fixture
def nowhere() -> str:
    """The address of a server that does not listen."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"postgresql://nobody:secret@127.0.0.1:{taken.getsockname()[1]}/nothing"


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment whose embedded server is its own, and is stopped afterwards."""
    home = tmp_path / "home"
    yield environment(DATABASE_URL=None, AGENTFLOW_HOME=str(home))
    Server(home).stop()


def options_of(command: str) -> list[click.Parameter]:
    """The command's options, without its arguments."""
    return [parameter for parameter in COMMANDS[command].params if parameter.param_type_name == "option"]


def refused(done: CompletedProcess[str]) -> str:
    """The one sentence (or two) with which the command refused; nothing of Python's in it."""
    assert done.returncode == 1, done
    assert done.stderr.startswith("agentflow: ")
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "secret" not in done.stderr
    return done.stderr


def line_with(process: Popen[str] | Program, wanted: str) -> str:
    """The process's next line of output that holds the text."""
    assert process.stdout is not None
    for line in process.stdout:
        if wanted in line:
            return line
    raise AssertionError(f"it ended without {wanted!r}: {process.stderr.read() if process.stderr else ''}")


def terminated(process: Popen[str] | Program) -> int:
    """The exit code after SIGTERM."""
    send(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    return process.returncode


# -- help ------------------------------------------------------------------------------------------------------------


def test_help_names_every_command_and_is_what_no_arguments_show(run: Run) -> None:
    asked, bare = run("--help"), run()
    assert asked.returncode == 0
    for name in COMMANDS:
        assert re.search(rf"^  {name} +\S", asked.stdout, re.MULTILINE)
    assert asked.stdout.strip() in {bare.stdout.strip(), bare.stderr.strip()}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_and_takes_a_schema(run: Run, name: str) -> None:
    done = run(name, "--help", program=installed)
    assert done.returncode == 0
    for option in (option for parameter in options_of(name) for option in parameter.opts):
        assert option in done.stdout
    assert "--schema" in done.stdout
    assert ("--json" in done.stdout) == (name not in {"lab", "worker"})


@pytest.mark.parametrize(
    "wrong",
    [
        ["nonsense"],
        ["report", "--nonsense"],
        ["submit"],
        ["worker", "--lease", "0"],
        ["worker", "--poll", "nan"],
        ["api", "--port", "x"],
    ],
)
def test_a_command_line_that_cannot_be_read_is_exit_code_2(run: Run, wrong: list[str]) -> None:
    done = run(*wrong)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "command", [["report"], ["reset", "--yes"], ["migrate"], ["submit", "--requests", "-"], ["lab", "--no-browser"]]
)
def test_a_database_that_is_away_is_one_sentence_without_the_password(
    run: Run, nowhere: str, command: list[str]
) -> None:
    assert "does not answer" in refused(run(*command, DATABASE_URL=nowhere, stdin="a request\n"))


@pytest.mark.parametrize(
    "address", ["nonsense", "mysql://root:secret@localhost/x", "postgresql://u:secret@host:port/x"]
)
def test_an_address_that_is_none_is_one_sentence_without_the_password(run: Run, address: str) -> None:
    assert "DATABASE_URL" in refused(run("report", DATABASE_URL=address))


@pytest.mark.parametrize("name", ["UPPER", "", "a;drop schema x"])
def test_a_schema_name_that_cannot_be_used_is_one_sentence(run: Run, name: str) -> None:
    assert "Schema name" in refused(run("report", "--schema", name))


# -- migrate, doctor, reset ------------------------------------------------------------------------------------------


def test_migrate_makes_the_tables_once_and_marks_a_laboratory_only_when_told(run: Run, schema: Any) -> None:
    database = schema()
    first = run("migrate", "--schema", database.schema, "--json")
    again = run("migrate", "--schema", database.schema)
    assert json.loads(first.stdout) | {"server": ""} == {
        "schema": database.schema, "server": "", "was": "missing", "laboratory": False,
    }  # fmt: skip
    assert again.returncode == 0
    assert "not a laboratory" in again.stdout
    assert Engine(database).create_workflow("x")["state"] == "PENDING"


def test_a_schema_with_workflows_is_not_made_a_laboratory_afterwards(run: Run, schema: Any) -> None:
    database = schema()
    migrate(database)
    kept = Engine(database).create_workflow("not yours to delete")["id"]
    for command in (["migrate", "--laboratory"], ["lab", "--no-browser"], ["reset", "--yes"]):
        assert "laboratory" in refused(run(*command, "--schema", database.schema))
    assert rows(Engine(database), "SELECT id FROM {s}.workflows") == [{"id": kept}]


def test_a_newer_schema_is_refused_in_words_and_left_alone(run: Run, schema: Any) -> None:
    database = schema()
    migrate(database)
    with database.alchemy.connect() as connection:
        connection.execute(text(f"UPDATE \"{database.schema}\".schema_version SET version_num = '9999'"))
    for command in (
        ["migrate"],
        ["api", "--port", "0"],
        ["worker"],
        ["submit", "--requests", "-"],
        ["lab", "--no-browser"],
    ):
        assert "newer AgentFlow" in refused(run(*command, "--schema", database.schema))
    done = run("doctor", "--schema", database.schema)
    assert done.returncode == 1
    assert "newer AgentFlow" in done.stdout
    assert rows(Engine(database), "SELECT version_num FROM {s}.schema_version") == [{"version_num": "9999"}]


def test_a_library_user_and_the_commands_find_the_same_schema(
    engine: Engine, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    monkeypatch.setenv("AGENTFLOW_SCHEMA", engine.database.schema)
    opened = open_engine()
    assert opened.database.schema == engine.database.schema
    assert open_engine(schema=engine.database.schema).create_workflow("x", workflow_id="seen")["created"]
    assert not opened.create_workflow("x", workflow_id="seen")["created"]
    opened.close()


def findings(done: CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {finding["topic"]: finding for finding in json.loads(done.stdout)["findings"]}


def test_doctor_says_what_is_used_and_that_all_is_well(run: Run, engine: Engine) -> None:
    plain, parsed = run("doctor"), run("doctor", "--json")
    assert (plain.returncode, parsed.returncode) == (0, 0)
    version = engine.database.check()["version"]
    assert f"PostgreSQL {version} answers" in plain.stdout
    assert "It is durable" in plain.stdout
    assert json.loads(parsed.stdout)["ok"] is True
    assert {
        "Python",
        "packages",
        "server",
        "PostgreSQL",
        "durability",
        "schema",
        "laboratory",
        "queue",
        "Chromium",
    } == set(findings(parsed))


def test_doctor_without_a_database_says_how_to_mend_it(run: Run, nowhere: str) -> None:
    done = run("doctor", "--json", DATABASE_URL=nowhere)
    assert done.returncode == 1
    assert findings(done)["PostgreSQL"]["ok"] is False
    assert "DATABASE_URL" in findings(done)["PostgreSQL"]["mend"]
    assert "secret" not in done.stdout


def test_doctor_on_an_empty_schema_names_the_command(run: Run, schema: Any) -> None:
    done = run("doctor", "--json", "--schema", schema().schema)
    assert done.returncode == 1
    assert "agentflow migrate" in findings(done)["schema"]["mend"]


@pytest.mark.parametrize("lost", ["{schema}.history", "{schema}_world.tool_ledger"])
@pytest.mark.parametrize("laboratory", [False, True])
def test_a_schema_that_lost_a_table_is_not_well_and_only_a_laboratory_is_made_whole(
    run: Run, schema: Any, lost: str, laboratory: bool
) -> None:
    database: Database = schema()
    migrate(database, laboratory=laboratory)
    database.command(f"DROP TABLE {lost.format(schema=database.schema)} CASCADE")
    finding = findings(run("doctor", "--json", "--schema", database.schema))["schema"]
    assert not finding["ok"] and ("agentflow migrate" in finding["mend"]) == laboratory
    done = run("migrate", "--schema", database.schema)
    if laboratory:
        assert done.returncode == 0
        assert findings(run("doctor", "--json", "--schema", database.schema))["schema"]["ok"] is True
    else:
        assert done.returncode == 1 and "Nothing was changed. Restore them from a backup" in done.stderr
        assert migrations.standing(database) == "damaged"


def test_what_is_not_well_is_one_sentence_on_standard_error(run: Run, schema: Any) -> None:
    bounds = ["--crashes", "0", "--expiries", "1", "--lost-replies", "0"]
    fell = run("explore", "--without", "idempotency_key", *bounds, "--json")
    finding = json.loads(fell.stdout)["findings"][0]
    sentence = f"agentflow: After `{finding['schedule']}` this does not hold: {finding['sentence']}\n"
    assert (fell.returncode, fell.stderr) == (1, sentence)
    held = run("explore", *bounds)
    assert (held.returncode, held.stderr) == (0, "") and held.stdout.startswith("Exhausted: every invariant holds.\n")
    other = run("explore", *bounds, "--expect", "failed")
    assert other.returncode == 1 and other.stderr == f"agentflow: {other.stdout.splitlines()[0]}\n"
    assert other.stdout.startswith(
        "Not certified: undisturbed (schedule `A*`), request-1 completes. Nothing was explored."
    )
    stopped = json.loads(run("explore", "--time-limit", "1", "--crashes", "5", "--expiries", "5", "--json").stdout)
    assert (stopped["ok"], stopped["ends"]) == (False, None) and stopped["problem"].startswith(
        "Not certified: not every"
    )
    done = run("doctor", "--schema", schema().schema)
    assert (done.returncode, done.stderr) == (1, "agentflow: To fix: schema.\n")


def test_doctor_sees_that_commits_are_not_durable(run: Run, url: str) -> None:
    separator = "&" if "?" in url else "?"
    done = run("doctor", "--json", DATABASE_URL=f"{url}{separator}options=-csynchronous_commit%3Doff")
    assert done.returncode == 1
    assert "synchronous_commit off" in findings(done)["durability"]["says"]


def test_reset_asks_says_what_goes_and_keeps_everything_after_a_no(run: Run, engine: Engine) -> None:
    engine.create_workflows(["a", "b", "c"])
    engine.run_once("w")
    for answer in ("n\n", "\n", ""):
        done = run("reset", stdin=answer)
        assert done.returncode == 1
        assert "3 workflows and 1 business effects" in done.stderr
        assert len(rows(engine, "SELECT id FROM {s}.workflows")) == 3
    assert run("reset", stdin="y\n").returncode == 0
    assert rows(engine, "SELECT id FROM {s}.workflows") == []
    assert rows(engine, "SELECT effect_id FROM {w}.tool_ledger") == []


def test_reset_with_yes_does_not_ask_and_tells_programs_what_went(run: Run, engine: Engine) -> None:
    engine.create_workflows(["a", "b"])
    done = run("reset", "--yes", "--json")
    assert json.loads(done.stdout)["deleted"] == {"workflows_total": 2, "business_effects": 0}
    assert rows(engine, "SELECT n FROM {s}.history") == []


@pytest.mark.parametrize("command", [["report"], ["reset", "--yes"]])
def test_a_schema_that_is_not_there_is_one_sentence(run: Run, command: list[str]) -> None:
    assert "Schema 'nowhere' does not exist at" in refused(run(*command, "--schema", "nowhere"))


def test_submit_names_the_worker_that_runs_them_in_this_schema(run: Run, engine: Engine) -> None:
    schema = engine.database.schema
    said = run("submit", "--requests", "-", "--schema", schema, stdin="one\n").stdout
    assert said == f"1 created in schema '{schema}'; `agentflow worker --schema {schema}` runs them.\n"


# -- submit ----------------------------------------------------------------------------------------------------------

AWKWARD = ['Please, "unlock" my account', "two\nlines", "smørrebrød 🙏", "'; drop table workflows; --"]


def as_csv(requests: list[str], column: str) -> str:
    return (
        "\n".join([f"n,{column}", *(f'{n},"{r.replace(chr(34), chr(34) * 2)}"' for n, r in enumerate(requests))]) + "\n"
    )


@pytest.mark.parametrize(
    ("file", "content", "more"),
    [
        ("r.csv", as_csv(AWKWARD, "request"), []),
        ("r.csv", as_csv(AWKWARD, "text"), ["--column", "text"]),
        ("r.jsonl", "".join(json.dumps({"request": r}) + "\n" for r in AWKWARD), []),
        ("r.jsonl", "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in AWKWARD), []),
    ],
)
def test_submit_creates_a_workflow_for_each_request_of_a_file(
    run: Run, engine: Engine, tmp_path: Path, file: str, content: str, more: list[str]
) -> None:
    (tmp_path / file).write_text(content, encoding="utf-8")
    done = run("submit", "--requests", file, "--json", *more)
    assert (done.returncode, json.loads(done.stdout)["created"]) == (0, 4)
    assert [row["input"] for row in rows(engine, "SELECT input FROM {s}.workflows ORDER BY created_at")] == AWKWARD


def test_submit_reads_standard_input_beyond_one_batch_and_for_any_workflow(run: Run, engine: Engine) -> None:
    done = run(
        "submit",
        "--requests",
        "-",
        "--workflow",
        "mine",
        "--progress",
        stdin="".join(f"request {n}\n" for n in range(1201)),
    )
    assert done.returncode == 0
    assert "1,201 created" in done.stdout
    assert "1,000 created" in done.stderr
    found = rows(
        engine, "SELECT name, count(*) AS n, count(DISTINCT input::text) AS texts FROM {s}.workflows GROUP BY name"
    )
    assert found == [{"name": "mine", "n": 1201, "texts": 1201}]


def test_submit_names_the_bad_line_and_says_what_exists(run: Run, engine: Engine) -> None:
    said = refused(run("submit", "--requests", "-", stdin="".join(f"request {n}\n" for n in range(600)) + "a\0b\n"))
    assert "line 601" in said
    assert "500 requests before it are workflows" in said
    assert len(rows(engine, "SELECT id FROM {s}.workflows")) == 500


def test_submit_of_a_file_that_is_not_there_creates_nothing(run: Run, engine: Engine) -> None:
    assert "no-such.csv" in refused(run("submit", "--requests", "no-such.csv"))
    assert rows(engine, "SELECT id FROM {s}.workflows") == []


# -- worker ----------------------------------------------------------------------------------------------------------


def all_completed(engine: Engine) -> bool:
    return all(row["status"] == "completed" for row in rows(engine, "SELECT status FROM {s}.workflows"))


def test_a_worker_runs_what_is_there_and_what_comes_logs_json_and_leaves_with_0(engine: Engine, url: str) -> None:
    engine.create_workflows(["a", "b", "c"])
    with installed_running(
        "worker", "--name", "w1", "--schema", engine.database.schema, env=environment(DATABASE_URL=url)
    ) as process:
        started = json.loads(line_with(process, "worker_started"))
        assert started["worker_id"].startswith("w1.")
        eventually(lambda: all_completed(engine), 60)
        engine.create_workflow("d", workflow_id="late")
        eventually(lambda: all_completed(engine), 60)
        send(process.pid, signal.SIGTERM)
        lines = [json.loads(line) for line in process.communicate(timeout=60)[0].splitlines()]
    assert process.returncode == 0
    assert sum(line["event"] == "workflow_completed" for line in lines) == 4
    assert lines[-1]["event"] == "worker_stopped"
    owners = rows(engine, "SELECT DISTINCT worker FROM {s}.history WHERE event = 'workflow_claimed'")
    assert owners == [{"worker": started["worker_id"]}]


def test_two_workers_of_one_name_are_two_identities(engine: Engine, url: str) -> None:
    env = environment(DATABASE_URL=url, AGENTFLOW_SCHEMA=engine.database.schema)
    with running("worker", env=env) as first, running("worker", env=env) as second:
        ids = {json.loads(line_with(process, "worker_started"))["worker_id"] for process in (first, second)}
        assert len(ids) == 2
        assert terminated(first) == 0
        assert terminated(second) == 0


def test_a_worker_takes_workflows_of_ones_own_and_leaves_others_alone(engine: Engine, url: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def double(run, number):\n    return run.step('double', lambda: number * 2)\n\ntwice = lambda *given: double(*given)\n"
    )
    engine.create_workflow(21, name="twice", workflow_id="a")
    engine.create_workflow(4, name="double", workflow_id="b")
    engine.create_workflow("x", workflow_id="c")
    env = environment(DATABASE_URL=url, AGENTFLOW_SCHEMA=engine.database.schema)
    with running("worker", "--workflow", "mine:twice", "--workflow", "mine:double", env=env, cwd=tmp_path) as process:
        for done in ("a", "b"):
            eventually(lambda wanted=done: (engine.get_workflow(wanted) or {})["status"] == "completed", 60)
        assert terminated(process) == 0
    found = rows(engine, "SELECT id, status, result FROM {s}.workflows ORDER BY id")
    assert [(row["id"], row["status"], row["result"]) for row in found] == [
        ("a", "completed", 42), ("b", "completed", 8), ("c", "ready", None),
    ]  # fmt: skip


@pytest.mark.parametrize("spelled", ["no_such_module:x", "json:__name__", "json", ""])
def test_workflows_that_cannot_be_imported_are_one_sentence(run: Run, spelled: str) -> None:
    said = refused(run("worker", "--workflow", spelled))
    assert "MODULE:ATTRIBUTE" in said or "is no workflow but a value of type str" in said


def test_a_worker_that_waits_for_a_database_still_leaves_with_0(nowhere: str) -> None:
    with running("worker", env=environment(DATABASE_URL=nowhere)) as process:
        assert "secret" not in line_with(process, "database_away")
        assert terminated(process) == 0


def test_a_worker_started_before_its_database_runs_when_it_comes(tmp_path: Path) -> None:
    server = Server(tmp_path / "home").start()
    try:
        database = Database(server.url(), "early")
        migrate(database)
        engine = Engine(database)
        engine.create_workflow("x")
        engine.close()
        server.stop()
        with running("worker", "--schema", "early", env=environment(DATABASE_URL=server.url())) as process:
            line_with(process, "database_away")
            server.start()
            line_with(process, "workflow_completed")
            assert terminated(process) == 0
        assert all_completed(engine)
        engine.close()
    finally:
        server.stop()


# -- api -------------------------------------------------------------------------------------------------------------


def test_the_api_says_where_it_is_with_a_command_that_works_and_leaves_with_0(engine: Engine, url: str) -> None:
    env = environment(DATABASE_URL=url, AGENTFLOW_SCHEMA=engine.database.schema)
    engine.create_workflow("x", workflow_id="seen")
    with installed_running("api", "--port", "0", env=env) as process:
        address = re.search(r"http://127\.0\.0\.1:\d+", line_with(process, "The API is at"))
        assert address is not None
        listed = subprocess.run(line_with(process, "curl"), shell=True, capture_output=True, check=True, timeout=60)
        assert [row["id"] for row in json.loads(listed.stdout)] == ["seen"]
        connections = psutil.Process(process.pid).net_connections()
        assert {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN} == {"127.0.0.1"}
        assert terminated(process) == 0


def test_a_port_that_is_taken_is_one_sentence_and_the_default_goes_to_the_next(
    run: Run, engine: Engine, url: str
) -> None:
    env = environment(DATABASE_URL=url, AGENTFLOW_SCHEMA=engine.database.schema)
    with running("api", "--json", env=env) as first, running("api", "--json", env=env) as second:
        ports = [json.loads(line_with(process, "url"))["url"].rpartition(":")[2] for process in (first, second)]
        assert ports[0] != ports[1]
        assert "--port" in refused(run("api", "--port", ports[0]))


def test_the_api_on_another_address_warns_and_answers_to_the_names_of_its_owner(engine: Engine, url: str) -> None:
    env = environment(DATABASE_URL=url, AGENTFLOW_SCHEMA=engine.database.schema)
    asked = ("api", "--port", "0", "--json", "--host", "0.0.0.0", "--allow-host", "api")
    with running(*asked, env=env) as process:
        address = json.loads(line_with(process, "url"))["url"]
        found = [
            httpx.get(f"{address}/health", headers={"host": host}).status_code for host in ("api:8000", "evil:8000")
        ]
        assert (found, address.startswith("http://127.0.0.1:")) == ([200, 403], True)
        send(process.pid, signal.SIGTERM)
        assert "Warning: whoever reaches 0.0.0.0 and has the token" in process.communicate(timeout=60)[1]


def test_the_api_starts_before_its_database_and_says_503_meanwhile(nowhere: str) -> None:
    with running("api", "--port", "0", "--json", env=environment(DATABASE_URL=nowhere)) as process:
        address = json.loads(line_with(process, "url"))["url"]
        answer = httpx.get(address + "/health", timeout=60)
        assert answer.status_code == 503
        assert "secret" not in answer.text
        assert terminated(process) == 0


# -- report, soak ----------------------------------------------------------------------------------------------------


def test_report_writes_and_prints_the_engines_figures(run: Run, engine: Engine, tmp_path: Path) -> None:
    engine.create_workflows(["a", "b"])
    engine.run_until_idle("w")
    done = run("report", "--json", program=installed)
    assert done.returncode == 0
    figures = engine.reliability_metrics()
    assert json.loads(done.stdout) == {**figures, "stuck_workflows": [], "unsettled": []}
    assert json.loads((tmp_path / "artifacts" / "reliability-report.json").read_text()) == figures
    plain = run("report").stdout
    assert figures.pop("problems") == []
    for name, value in figures.items():
        assert re.search(
            rf"^{name} +{re.escape('not observed' if value is None else str(value))}$", plain, re.MULTILINE
        )


def test_report_on_an_empty_schema_says_where_else_workflows_may_be(run: Run, engine: Engine) -> None:
    said = f"There are no workflows in schema {engine.database.schema}; the notebooks have their own schemas"
    assert said in run("report").stdout
    done = run("report", "--json")
    assert json.loads(done.stdout)["workflows_total"] == 0
    assert said in done.stderr
    engine.create_workflow("a")
    assert "no workflows" not in run("report").stdout


def test_doctor_and_report_name_what_nobody_can_take_and_free_frees_what_a_clock_did(run: Run, engine: Engine) -> None:
    engine.create_workflows(["a", "b"], workflow_ids=["broken", "ahead"])
    with engine.database.alchemy.begin() as connection:
        workflows = f'UPDATE "{engine.database.schema}".workflows SET'
        connection.execute(text(f"{workflows} fence_token = 9223372036854775807 WHERE id = 'broken'"))
        hour = "clock_timestamp() + interval '1 hour'"
        connection.execute(text(f"{workflows} next_run_at = {hour}, updated_at = {hour} WHERE id = 'ahead'"))
    said = ("Workflow 'broken' cannot be claimed", "Workflow 'ahead' is not due until")
    assert all(one in run("report").stdout for one in said)
    stuck = json.loads(run("report", "--json").stdout)["stuck_workflows"]
    assert [one["workflow"] for one in stuck] == ["broken", "ahead"]
    doctor = run("doctor")
    assert doctor.returncode == 1 and all(f"WRONG  {one}" in doctor.stdout for one in said)
    assert json.loads(run("free", "--json").stdout)["freed"] == ["ahead"]
    assert "0 workflows were stranded" in run("free").stdout
    assert said[1] not in run("report").stdout


def test_report_on_a_schema_that_does_not_exist_says_to_check_the_name(run: Run, tmp_path: Path) -> None:
    said = refused(run("report", "--schema", "strat_here"))
    assert "Schema 'strat_here' does not exist at" in said
    assert said.index("Check the name") < said.index("migrate")
    assert not (tmp_path / "artifacts").exists()


def test_report_is_exit_code_1_when_an_effect_is_doubled(run: Run, engine: Engine) -> None:
    workflow = engine.create_workflow("a")["id"]
    engine.run_until_idle("w")
    engine.execute_simulated_tool(f"{workflow}:a-key-made-up-anew")
    done = run("report", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["duplicate_business_effects"] == 1
    assert "doubled" in done.stderr


SHOP = """
charged = []
class Shop:
    def __call__(self, call):
        charged.append((call.idempotency_key, call.action, call.workflow_id, 1))
class OpenShop(Shop):
    def effects(self):
        return [tuple(one) for one in __import__("json").load(open("charged.json"))]
mute, tells = Shop(), OpenShop()
"""


def test_report_and_check_see_an_own_tool_that_is_named_and_tells(run: Run, engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    shop: dict[str, Any] = {"__name__": "shop"}
    exec(SHOP, shop)
    engine.tool = shop["tells"]
    engine.create_workflow("login", workflow_id="w")
    engine.run_until_idle("w.1")
    engine.tool = engine.world
    blind, checked = run("report", "--json"), run("check")
    assert (blind.returncode, json.loads(blind.stdout)["business_effects"]) == (1, None)
    assert "not observed: 1, given to shop:OpenShop" in blind.stderr
    assert "business_effects            not observed" in run("report").stdout
    assert (checked.returncode, checked.stderr) == (0, "")
    assert "no row contradicts another." in checked.stdout
    assert "Not observed: what shop:OpenShop did, in planned actions: 1." in checked.stdout
    told = ["--tool", "shop:mute", "--tool", "shop:tells"]
    assert "raised FileNotFoundError" in run("report", *told).stderr
    for times, code in ((1, 0), (2, 1)):
        (tmp_path / "charged.json").write_text(json.dumps(shop["charged"] * times))
        report, check = run("report", "--json", *told), run("check", "--json", *told)
        assert (report.returncode, check.returncode) == (code, code)
        assert json.loads(report.stdout)["business_effects"] == times
        assert len(json.loads(check.stdout)["mistakes"]) == code
    assert "is no tool but a value of type list" in refused(run("report", "--tool", "shop:charged"))
    assert "--tool 'shop' cannot be imported" in refused(run("check", "--tool", "shop"))


def test_check_names_the_row_that_is_wrong(run: Run, engine: Engine) -> None:
    engine.create_workflow("login", workflow_id="w")
    engine.run_until_idle("w.1")
    assert run("check").stdout == "workflows: 1, rules: 24: no row contradicts another.\n"
    engine.world(ToolCall("w:other", "other", None, "w"))
    done = run("check")
    assert done.returncode == 1
    assert "tool_ledger effect" in done.stdout
    assert "should be: the key of a planned action" in done.stdout


def test_report_says_what_is_no_problem_and_should_be_known(run: Run, engine: Engine) -> None:
    engine.create_workflow("login", workflow_id="gap")
    with pytest.raises(CrashInjected):
        engine.run_once("w.1", crash_after_tool_commit=True)
    engine.cancel_workflow("gap")
    engine.create_workflow("login", name="typo")
    done = run("report")
    assert done.returncode == 0
    assert "ended in the gap: 1." in done.stdout
    assert "no running worker knows: 1." in done.stdout


def test_report_and_doctor_name_calls_of_unknown_outcome_and_runs_that_were_let_go(run: Run, engine: Engine) -> None:
    def broken(call: ToolCall) -> Any:
        raise KeyError("the provider's secret")

    def job(job: Any, action: Any) -> Any:
        return job.side_effect(action, key="k", tool=broken) if action else job.step("a", lambda: 1)

    mine = Engine(engine.database, workflows={"job": job}, policy=Policy(first_delay=3600, max_delay=3600))
    mine.create_workflows(["pay", "pay", None], name="job", workflow_ids=["w-1", "w-2", "w-3"])
    with refusing(engine, "steps"), pytest.raises(StatementRefused):
        mine.run_until_idle("w")
    mine.expire_lease("w-1")
    mine.run_until_idle("w")
    says = [
        "Calls of 'pay' whose outcome nobody knows: 3, in 2 workflows, such as 'w-1'; KeyError: \"the provider's secret\".",
        "Runs that were let go in a row: 1, in 1 workflow, such as 'w-3'; StatementRefused: checkpoint 'a' of workflow 'w-3'",
    ]
    report, doctor = run("report"), run("doctor", "--schema", engine.database.schema)
    for said in says:
        assert said in report.stdout
        assert f"WRONG  {said}" in doctor.stdout
    assert doctor.returncode == 1
    told = json.loads(run("report", "--json").stdout)["unsettled"]
    assert [(row["action"], row["type"], row["tries"], row["workflows"]) for row in told] == [
        ("pay", "KeyError", 3, 2), (None, "StatementRefused", 1, 1),
    ]  # fmt: skip


def test_soak_kills_workers_and_reports_that_nothing_is_lost(run: Run) -> None:
    numbers = ["--workers", "2", "--kills", "3", "--seed", "1", "--schema", f"t_{uuid.uuid4().hex[:12]}"]
    done = run(
        "soak",
        "--requests",
        "-",
        *numbers,
        "--json",
        "--no-progress",
        program=installed,
        stdin="".join(f"request {n}\n" for n in range(20)),
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["workflow_completion_rate"], figures["workflows_completed"]) == (1.0, 20)
    assert (figures["kills_happened"], figures["duplicate_business_effects"], figures["problems"]) == (3, 0, [])


def test_soak_tells_people_each_figure_on_a_line_of_its_own(run: Run) -> None:
    done = run("soak", "--requests", "-", "--workers", "1", "--kills", "1", "--no-progress", stdin="a\nb\n")
    assert done.returncode == 0, done.stderr
    *figures, verdict = done.stdout.splitlines()
    assert verdict == "Nothing is lost, nothing is doubled, and every kill happened."
    names = [line.split("  ")[0] for line in figures]
    told = {
        one for row in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", PAGE, re.MULTILINE) for one in re.findall(r"\w+", row)
    }
    assert [name for name in names if name not in told] == []
    assert re.search(r"^kills +1 of 1 as planned, [01] in the acknowledgment gap$", done.stdout, re.MULTILINE)
    assert re.search(r"^recovery_span_ms +[\d.]+$", done.stdout, re.MULTILINE)
    assert "{" not in done.stdout and "soak_" not in done.stdout


def test_soak_names_the_schema_that_it_keeps(run: Run, engine: Engine) -> None:
    schema = f"t_{uuid.uuid4().hex[:12]}"
    kept = ["--schema", schema, "--keep"]
    done = run("soak", "--requests", "-", "--workers", "1", "--kills", "0", *kept, "--no-progress", stdin="a\n")
    try:
        assert f"The rows are kept in schema {schema!r}." in done.stdout
        assert "Nothing is lost, nothing is doubled, and no worker was killed, so no recovery was tried." in done.stdout
        assert rows(engine, f'SELECT status FROM "{schema}".workflows') == [{"status": "completed"}]
    finally:
        with engine.database.alchemy.begin() as connection:
            connection.execute(text(f'DROP SCHEMA IF EXISTS "{schema}", "{schema}_world" CASCADE'))


def test_soak_takes_one_kind_of_kills(run: Run) -> None:
    assert "--random-kills" in refused(
        run("soak", "--requests", "-", "--kills", "1", "--random-kills", "1", stdin="a\n")
    )


# -- the embedded server, JupyterLab ---------------------------------------------------------------------------------


def test_the_embedded_server_lives_from_the_first_command_to_stop(alone: dict[str, str], tmp_path: Path) -> None:
    home = Path(alone["AGENTFLOW_HOME"])
    before = installed("doctor", "--json", env=alone)
    assert before.returncode == 0
    assert "not running" in findings(before)["server"]["says"]
    assert not home.exists()
    assert "was not running" in agentflow("stop", env=alone).stdout

    made = json.loads(installed("migrate", "--json", env=alone).stdout)
    assert made["laboratory"] is True
    assert installed("submit", "--requests", "-", env=alone, stdin="a\nb\n").returncode == 0
    assert "is running" in findings(agentflow("doctor", "--json", env=alone))["server"]["says"]
    assert installed("reset", "--yes", env=alone).returncode == 0

    assert json.loads(installed("stop", "--json", env=alone).stdout) == {"home": str(home), "was_running": True}
    assert not Server(home).is_running()
    assert "not running" in findings(agentflow("doctor", "--json", env=alone))["server"]["says"]


def test_lab_opens_jupyterlab_on_the_first_notebook_with_its_token_and_the_schema(
    engine: Engine, url: str, tmp_path: Path
) -> None:
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "00-start-here.ipynb").write_text("{}")
    places = {
        name: str(tmp_path / name.lower())
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR")
    }
    env = environment(
        DATABASE_URL=url, JUPYTER_TOKEN=None, JUPYTER_CONFIG_PATH=os.pathsep.join(["/one", "/two"]), **places
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with installed_running(
        "lab", "--no-browser", "--port", port, "--schema", engine.database.schema, env=env, cwd=tmp_path
    ) as process:
        assert "is ready" in line_with(process, "JupyterLab")
        assert process.stderr is not None
        line = next(line for line in process.stderr if "token=" in line)
        address = re.search(rf"http://127\.0\.0\.1:{port}/lab/tree/notebooks/00-start-here\.ipynb\?token=(\w+)", line)
        assert address is not None, line
        api = f"http://127.0.0.1:{port}/api/contents/notebooks"
        assert httpx.get(api, timeout=60).status_code == 403
        found = httpx.get(api, headers={"authorization": f"token {address.group(1)}"}, timeout=60).json()
        assert [entry["name"] for entry in found["content"]] == ["00-start-here.ipynb"]
        page = httpx.get(
            f"http://127.0.0.1:{port}/lab?token={address.group(1)}", timeout=60, follow_redirects=True
        ).text
        config = json.loads(re.search(r'id="jupyter-config-data"[^>]*>(.*?)</script>', page, re.DOTALL)[1])  # type: ignore[index]
        assert "@jupyterlab/apputils-extension:announcements" in config["disabledExtensions"]  # it asks about news
        its = psutil.Process(process.pid).environ()
        assert its["AGENTFLOW_SCHEMA"] == engine.database.schema
        assert its["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
        assert its["JUPYTER_CONFIG_PATH"].split(os.pathsep)[1:] == ["/one", "/two"]
        send(process.pid, signal.SIGTERM)
        eventually(lambda: process.poll() is not None, 60)


# -- docs/commands.md ------------------------------------------------------------------------------------------------


def sections() -> dict[str, str]:
    parts = re.split(r"^## `agentflow ([\w-]+)`$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_page_has_a_section_for_every_command_and_no_other() -> None:
    assert list(sections()) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_section_shows_an_example_and_names_exactly_the_options_there_are(name: str) -> None:
    section = sections().get(name, "")
    assert re.search(rf"^\$ (.*\| )?agentflow {name}\b", section, re.MULTILINE)
    real = {option for parameter in options_of(name) for option in (*parameter.opts, *parameter.secondary_opts)}
    everywhere = {"--help", "-h", "--schema", "--json"}
    named = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", section))
    assert real - everywhere <= named
    assert {option for option in named if option.startswith("--")} <= real | everywhere


@pytest.mark.parametrize("page", ["docs/commands.md", "README.md"])
def test_every_command_line_that_is_shown_exists(page: str) -> None:
    shown = re.findall(
        r"^(?:\$ .*?\b|\.venv/bin/)?agentflow ([a-z-]+)", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE
    )
    assert shown
    assert set(shown) <= set(COMMANDS)


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "agentflow", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Usage: agentflow ")


def test_doctor_says_when_the_servers_folder_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = agentflow(
        "doctor", env={**environment(), "AGENTFLOW_HOME": str(tmp_path / "file" / "home"), "DATABASE_URL": ""}
    )
    assert done.returncode == 1
    assert "is not a folder that this user may write to. Set AGENTFLOW_HOME to a folder that you own." in done.stdout
