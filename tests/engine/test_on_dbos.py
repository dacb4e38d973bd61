"""The same function on DBOS: it ends as on AgentFlow, is carried on after a SIGKILL, and what is wrong is said in a sentence."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentflow import Database, Engine, Policy, on_dbos
from agentflow.agents import WORKFLOWS
from agentflow.errors import AgentFlowError, IdTaken, StatementRefused, StepFailed, ToolRefused, UnknownWorkflow
from agentflow.lab.crashes.carriers import Task
from agentflow.lab.crashes.comparison import RECORD
from agentflow.on_dbos import OnDbos, remove_dbos
from tests.conftest import rows
from tests.support.dbos_executors import eventual, killed_at
from tests.support.helpers import eventually

FAST = Policy(first_delay=0.01)
REQUEST = "I forgot my password."


def refused(call: Any) -> Any:
    raise ToolRefused("The card has expired.")


def no_tool() -> None:
    """Takes no call."""


def charged(run: Any, tool: Any) -> Any:
    return run.side_effect("charge", key="charge", tool=tool, arguments={"total": 300})


def own_error(run: Any, _: Any) -> Any:
    class Unpicklable(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} and {two}")

    raise Unpicklable(1, 2)


def leaves(run: Any, _: Any) -> Any:
    sys.exit("3 of 4")


def fails_always(run: Any, _: Any) -> Any:
    def step() -> None:
        raise ValueError("no")

    return run.step("fails", step)


def goes_on(run: Any, _: Any) -> Any:
    try:
        fails_always(run, None)
    except StepFailed:
        return run.step("instead", lambda: "went on")


def fails_twice(run: Any, _: Any) -> Any:
    def step() -> str:
        fails_twice.tries += 1  # type: ignore[attr-defined]
        if fails_twice.tries < 3:  # type: ignore[attr-defined]
            raise TimeoutError("no answer")
        return "at last"

    return run.step("tries", step)


fails_twice.tries = 0  # type: ignore[attr-defined]


def swallows(run: Any, _: Any) -> Any:
    run.step("one", lambda: 1)
    try:
        run.step("one", lambda: 2)
    except Exception:
        return "swallowed"


def nests(run: Any, _: Any) -> Any:
    return run.step("outer", lambda: run.step("inner", lambda: 1))


def no_json(run: Any, _: Any) -> Any:
    return run.step("set", lambda: {1, 2})


def bad_end(run: Any, _: Any) -> Any:
    return float("nan")


def waits_twice(run: Any, _: Any) -> Any:
    return [run.wait_for_event("first", "news"), run.wait_for_event("second", "news")]


MISUSES = {
    "refused": lambda run, _: charged(run, refused),
    "no_tool": lambda run, _: charged(run, no_tool),
    "own_error": own_error,
    "leaves": leaves,
    "fails_always": fails_always,
    "goes_on": goes_on,
    "fails_twice": fails_twice,
    "swallows": swallows,
    "nests": nests,
    "no_json": no_json,
    "bad_end": bad_end,
    "support_agent": WORKFLOWS["support_agent"],
}


@pytest.fixture(scope="module")
def module_engine(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    from agentflow.lab.laboratory.scratch_schema import new_name, own_schema

    with own_schema(url, new_name("on_dbos")) as database:
        yield Engine(database, workflows={**MISUSES, "waits_twice": waits_twice}, policy=FAST)
        remove_dbos(database)


@pytest.fixture(scope="module")
def on(module_engine: Engine) -> Iterator[OnDbos]:
    """One executor for all tests of this module: starting DBOS takes half a second of processor time."""
    with closing(OnDbos(module_engine.database, module_engine.workflows, policy=FAST)) as started:
        yield started


def begun(run: Any, _: Any) -> Any:
    run.step("one", lambda: 1)
    return run.wait_for_event("go", "go")


def renamed(run: Any, _: Any) -> Any:
    return run.step("uno", lambda: 1)


def test_other_code_leaves_a_workflow_pending_and_a_renamed_step_ends_it(module_engine: Engine) -> None:
    """These executors come before the one of the module: a process can have one at a time."""
    database = module_engine.database
    with closing(OnDbos(database, {"code": begun}, executor="A", version="1")) as on:
        on.submit("coded", "code", None)
        eventually(lambda: len(on.dbos.DBOS.list_workflow_steps("coded")) == 1)
    with closing(OnDbos(database, {"code": renamed}, executor="A", version="2")) as on:
        with pytest.raises(
            AgentFlowError, match=r"has left workflows of version '1', and this is '2'. Nothing was resumed; "
        ):
            on.resume("A")
        assert on.look("coded")["status"] == "pending"
    with closing(OnDbos(database, {"code": renamed}, executor="A", version="1")) as on:
        ended = eventual(on, "coded")
    assert (ended["status"], ended["error"]["type"]) == ("failed", "DBOSUnexpectedStepError")
    assert "one was recorded when uno was expected" in ended["error"]["message"]


def ending(engine: Engine, name: str) -> tuple[str, Any, str, str]:
    """Status, result, type and message of the error, on AgentFlow."""
    workflow_id = f"agentflow-{name}"
    engine.create_workflow(REQUEST, name=name, workflow_id=workflow_id)

    def ended() -> dict[str, Any] | None:
        engine.run_until_idle("w")
        row = engine.get_workflow(workflow_id)
        return row if row and row["status"] in ("completed", "failed") else None

    row = eventually(ended)  # also after a back-off
    assert row
    error = row["error"] or {"type": "", "message": ""}
    return row["status"], row["result"], error["type"], error["message"].replace(workflow_id, "ID")


@pytest.mark.parametrize("name", sorted(MISUSES))
def test_a_workflow_ends_as_on_agentflow_with_the_same_words(module_engine: Engine, on: OnDbos, name: str) -> None:
    fails_twice.tries = 0  # type: ignore[attr-defined]
    expected = ending(module_engine, name)
    fails_twice.tries = 0  # type: ignore[attr-defined]
    on.submit(f"dbos-{name}", name, REQUEST)
    found = eventual(on, f"dbos-{name}")
    error = found["error"] or {"type": "", "message": ""}
    told = error["message"].replace(f"dbos-{name}", "ID")
    assert (found["status"], found["result"], error["type"], told) == expected
    assert found["status"] in ("completed", "failed")


def test_the_first_event_of_a_name_wins_every_wait_before_or_after_it_was_asked_for(on: OnDbos) -> None:
    on.submit("waits", "waits_twice", None)
    assert on.look("waits")["status"] == "pending"
    on.deliver("waits", "news", {"n": 1})
    on.deliver("waits", "news", {"n": 1})
    on.deliver("waits", "news", {"n": 2})
    assert eventual(on, "waits")["result"] == [{"n": 1}, {"n": 1}]
    with pytest.raises(UnknownWorkflow, match=r"No workflow has the id 'nobody'. Submit it first"):
        on.deliver("nobody", "news", 1)


def test_the_tool_gets_our_key_and_a_second_submission_starts_nothing(module_engine: Engine, on: OnDbos) -> None:
    on.submit("keyed", "support_agent", REQUEST)
    assert eventual(on, "keyed")["status"] == "completed"
    on.submit("keyed", "support_agent", REQUEST)
    found = rows(module_engine, "SELECT idempotency_key, attempts FROM {w}.tool_ledger WHERE workflow_id = 'keyed'")
    assert [tuple(row.values()) for row in found] == [("keyed:resolve-account", 1)]
    with pytest.raises(IdTaken, match=r"exists with another name or input. Choose another id"):
        on.submit("keyed", "support_agent", "Something else.")
    with pytest.raises(UnknownWorkflow, match="There is no workflow 'order' here; there is "):
        on.submit("other", "order", REQUEST)


def test_a_second_executor_in_one_process_is_refused(module_engine: Engine, on: OnDbos) -> None:
    with pytest.raises(AgentFlowError, match="DBOS runs in this process already, and cannot twice"):
        OnDbos(module_engine.database, {})


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_nothing_listens_and_nobody_but_postgresql_is_connected(on: OnDbos) -> None:
    mine = {path.readlink().name for path in Path("/proc/self/fd").iterdir() if path.is_symlink() and path.exists()}
    sockets = {name.removeprefix("socket:[").removesuffix("]") for name in mine if name.startswith("socket:")}
    lines = [
        line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/self/net/{kind}").read_text().splitlines()[1:]
    ]
    port = f":{on.database.url.port or 0:04X}"
    opened = [(local, remote, state) for _, local, remote, state, *rest in lines if rest[5] in sockets]
    assert [one for one in opened if not one[1].endswith(port)] == []


def test_without_dbos_the_sentence_names_the_way_out(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dbos", None)
    with pytest.raises(AgentFlowError, match=r"DBOS is not installed here. Run `make dbos` in AgentFlow's folder\."):
        OnDbos(engine.database, {})


def test_a_schema_that_somebody_else_made_is_neither_used_nor_dropped(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_dbos, "_running", [])
    theirs = f"{engine.database.schema}_dbos"
    engine.database.command(f"CREATE SCHEMA {theirs}")
    with pytest.raises(StatementRefused, match=f"Schema {theirs} was not made by AgentFlow"):
        OnDbos(engine.database, {})
    remove_dbos(engine.database)
    assert rows(engine, f"SELECT nspname FROM pg_namespace WHERE nspname = '{theirs}'") != []
    engine.database.command(f"DROP SCHEMA {theirs}")


def world(database: Database) -> tuple[int, int]:
    _, found = database.read_sql("SELECT count(*) AS effects, sum(attempts)::int AS attempts FROM tool_ledger")
    return found[0]["attempts"], found[0]["effects"]


def soaked(engine: Engine, folder: Path, executors: int, workflows: int, kills: int) -> None:
    """Every executor is killed at planned points; the world's rows then tell how often that was in the gap."""
    chance = random.Random(1)
    chosen = chance.sample(range(workflows), kills)
    points = ["after tool", "after classify", *chance.choices(list(RECORD), k=kills)][:kills]
    (notes := folder / "notes").touch()
    stops = {f"w{number}": point for number, point in zip(chosen, points, strict=True)}
    address, schema = engine.database.address, engine.database.schema
    task = Task(address, schema, notes, "support_agent", REQUEST, stops=stops, one_tool=True)
    try:
        killed = Counter(killed_at(task, executors, workflows))
        assert killed == Counter(points)
        attempts, effects = world(engine.database)
        assert effects == workflows
        assert attempts - effects == killed["after tool"] > 0
        executed = sum(len(task.executions(f"w{number}")) for number in range(workflows))
        assert executed - 2 * workflows == killed["after classify"] + killed["after plan"] > 0
        schema = f"{schema}_dbos"
        found = rows(engine, f"SELECT status, count(*) AS n FROM {schema}.workflow_status GROUP BY status")
        assert [(row["status"], row["n"]) for row in found] == [("SUCCESS", workflows)]
    finally:
        remove_dbos(engine.database)
    assert rows(engine, "SELECT nspname FROM pg_namespace WHERE nspname = :name", name=schema) == []


def test_two_executors_three_kills_all_complete_and_only_the_gap_calls_twice(engine: Engine, tmp_path: Path) -> None:
    soaked(engine, tmp_path, executors=2, workflows=6, kills=3)


@pytest.mark.long
def test_four_executors_twenty_kills_two_hundred_workflows(engine: Engine, tmp_path: Path) -> None:
    soaked(engine, tmp_path, executors=4, workflows=200, kills=20)
