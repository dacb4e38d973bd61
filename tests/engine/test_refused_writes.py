"""A write that PostgreSQL refuses, although it is not away: no workflow fails by it, none goes on from it, no worker spins."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from agentflow import Database, Engine, Policy, StepStore, ToolCall, migrate
from agentflow.errors import AgentFlowError, DatabaseAway, PoolerInBetween, StatementRefused
from agentflow.run import DurableRunner
from tests.conftest import rows
from tests.support.helpers import eventually, working
from tests.support.isolation import Session
from tests.support.pooler import Pooler
from tests.support.refusals import RAISES, refusing, ruling
from tests.support.runs import effects, settle, start, steps, turn, workflow

Lines = list[dict[str, Any]]


def history(engine: Engine, workflow_id: str, event: str) -> list[dict[str, Any]]:
    return [entry for entry in engine.history(workflow_id) if entry["event"] == event]


def swallowing(run: Any, _: Any) -> Any:
    """The function of the report: it goes on with a value that is recorded nowhere, and acts on it."""
    try:
        found = run.step("a", lambda: "recorded")
    except Exception:
        found = "made up"
    run.side_effect("pay", key="k", arguments=found)
    return found


def let_go(engine: Engine, workflow_id: str, kind: str, attempts: int = 0) -> None:
    """The workflow has not failed, nobody holds it, it is due later, and its row says why."""
    row = workflow(engine, workflow_id)
    assert (row["status"], row["lease_owner"], row["later"], row["result"]) == ("ready", None, True, None)
    assert (row["attempts"], row["crashes"]) == (attempts, 0)
    assert (row["error"]["type"], row["error"]["troubles"]) == (kind, 1)
    assert history(engine, workflow_id, "workflow_failed") == []
    assert kind in history(engine, workflow_id, "lease_released")[-1]["detail"]["trouble"]


# -- every reason that is no outage

REASONS = {
    "a trigger": RAISES,
    "a trigger with a code of its own": "RAISE EXCEPTION 'no' USING ERRCODE = 'AB123'",
    "a trigger that says that a right is missing": "RAISE insufficient_privilege",
    "a trigger that sounds like an outage": "RAISE object_not_in_prerequisite_state",
    "a trigger that needs a table that is gone": "PERFORM FROM no_such_table",
    "a number out of range": "NEW.position := 2147483647 + NEW.position",
    "a division by zero": "NEW.position := 1 / 0",
    "a text that is no number": "NEW.position := 'x'",
    "a character that the encoding lacks": "PERFORM convert_to('😀', 'LATIN1')",
    "a value that must not be null": "NEW.worker := NULL",
    "a check of the engine's own": "NEW.kind := 'other'",
    "an assertion": "ASSERT false",
}


@pytest.mark.parametrize("reason", REASONS)
def test_refused_checkpoint_is_no_failure_and_the_function_cannot_swallow_it(engine: Engine, reason: str) -> None:
    workflow_id = start(engine, swallowing)
    mine = Engine(engine.database.twin(patience=0), workflows=engine.workflows)
    with (
        refusing(engine, "steps", body=REASONS[reason]),
        pytest.raises(StatementRefused, match=f"checkpoint 'a' of workflow '{workflow_id}'"),
    ):
        turn(mine)
    let_go(engine, workflow_id, "StatementRefused")
    assert (steps(engine, workflow_id), effects(engine)) == ([], [])
    row = settle(engine, workflow_id)
    assert (row["status"], row["result"], row["error"]) == ("completed", "recorded", None)
    assert [(effect["arguments"], effect["attempts"]) for effect in effects(engine)] == [("recorded", 1)]
    mine.close()


CONSTRAINTS = {
    "check": (
        "ALTER TABLE {s}.steps ADD CONSTRAINT ours CHECK (step_id <> 'a')",
        "ALTER TABLE {s}.steps DROP CONSTRAINT ours",
    ),
    "unique index": ("CREATE UNIQUE INDEX ours ON {s}.steps ((value::text))", "DROP INDEX {s}.ours"),
    "index that cannot hold it": (
        # built also over deleted rows that somebody's snapshot may still see, so it names what no other test writes
        "CREATE INDEX ours ON {s}.steps ((1 / (workflow_id <> 'index that cannot hold it')::int))",
        "DROP INDEX {s}.ours",
    ),
    "column": ("ALTER TABLE {s}.steps ADD ours int CHECK (ours > 0) DEFAULT 0", "ALTER TABLE {s}.steps DROP ours"),
}


@pytest.mark.parametrize("kind", CONSTRAINTS)
def test_an_operators_own_constraint_is_no_failure_of_a_workflow(engine: Engine, kind: str) -> None:
    settle(
        engine, start(engine, lambda run, _: run.step("first", lambda: "recorded"))
    ) if kind == "unique index" else None
    with ruling(engine, *CONSTRAINTS[kind]):
        workflow_id = start(engine, swallowing, workflow_id=kind)
        with pytest.raises(StatementRefused):
            turn(engine)
        let_go(engine, workflow_id, "StatementRefused")
    assert settle(engine, workflow_id)["result"] == "recorded"


# -- every write

WRITES: dict[str, tuple[str, str, Callable[[Any, Any], Any]]] = {
    "checkpoint": ("steps", "true", swallowing),
    "checkpoint of a failure": ("steps", "NEW.error IS NOT NULL", lambda run, _: run.step("a", lambda: object())),
    "intent": ("action_intents", "NEW.status = 'PENDING'", swallowing),
    "acknowledge": ("action_intents", "NEW.status <> 'PENDING'", swallowing),
    "wait": ("workflows", "NEW.waiting_for IS NOT NULL", lambda run, _: run.wait_for_event("w", "go")),
    "postpone": ("workflows", "NEW.attempts > 0", lambda run, _: run.step("a", lambda: 1 / 0)),
    "complete": ("workflows", "NEW.status = 'completed'", swallowing),
    "fail": ("workflows", "NEW.status = 'failed'", lambda run, _: 1 / 0),
    "history": ("history", "NEW.event NOT IN ('workflow_claimed', 'lease_released')", swallowing),
}


@pytest.mark.parametrize("write", WRITES)
def test_whichever_write_is_refused_the_workflow_is_let_go_and_ends_as_if_nothing_had_been(
    engine: Engine, write: str
) -> None:
    table, when, function = WRITES[write]
    workflow_id = start(engine, function)
    for troubles in (1, 2):
        with refusing(engine, table, when), pytest.raises(StatementRefused, match="the auditor says no"):
            turn(engine)
        row = workflow(engine, workflow_id)
        assert (row["status"], row["lease_owner"], row["later"], row["crashes"]) == ("ready", None, True, 0)
        assert row["error"]["troubles"] == troubles
        assert history(engine, workflow_id, "workflow_failed") == []
        engine.expire_lease(workflow_id)
    row = settle(engine, workflow_id)
    ended = {"wait": "waiting", "postpone": "failed", "fail": "failed", "checkpoint of a failure": "failed"}
    assert row["status"] == ended.get(write, "completed")
    assert len(effects(engine)) == (row["status"] == "completed")
    assert engine.reliability_metrics()["duplicate_business_effects"] == 0


def test_load_that_cannot_count_is_no_failure_either(engine: Engine) -> None:
    """Somebody has deleted a checkpoint by hand; when it is back, the workflow goes on."""
    workflow_id = start(engine, lambda run, _: [run.step("a", lambda: "kept"), run.wait_for_event("w", "go")])
    assert turn(engine) == "waiting"
    schema = f'"{engine.database.schema}"'
    with engine.database.session() as session:
        session.execute(f"CREATE TEMP TABLE kept AS TABLE {schema}.steps; DELETE FROM {schema}.steps".encode())
        engine.deliver_event(workflow_id, "go")
        with pytest.raises(AgentFlowError, match="should have 1 checkpoints, but has 0"):
            turn(engine)
        let_go(engine, workflow_id, "AgentFlowError")
        session.execute(f"INSERT INTO {schema}.steps TABLE kept".encode())
    assert settle(engine, workflow_id)["result"] == ["kept", None]


def test_what_no_class_of_ours_names_ends_the_run_as_well(engine: Engine) -> None:
    """An error inside the record, of whatever kind, is neither the function's to catch nor the workflow's to fail by."""

    def broken(boundary: Any) -> None:
        if (boundary.transaction, boundary.edge) == ("checkpoint", "before"):
            raise OverflowError("date value out of range")

    workflow_id = start(engine, swallowing)
    with pytest.raises(OverflowError):
        engine.with_hook(broken).worker("w").run_once()
    let_go(engine, workflow_id, "OverflowError")
    assert settle(engine, workflow_id)["result"] == "recorded"


def test_the_run_object_refuses_everything_after_a_refused_write(engine: Engine) -> None:
    seen: list[BaseException] = []

    def stubborn(run: Any, _: Any) -> str:
        for call in (
            lambda: run.step("a", lambda: 1), lambda: run.step("b", lambda: 1), lambda: run.side_effect("pay", key="k"),
            lambda: run.wait_for_event("w", "go"),
        ):  # fmt: skip
            try:
                call()
            except BaseException as error:
                seen.append(error)
        return "done"

    workflow_id = start(engine, stubborn)
    with refusing(engine, "steps"), pytest.raises(StatementRefused):
        turn(engine)
    assert len(seen) == 4
    assert len({*map(id, seen)}) == 1
    let_go(engine, workflow_id, "StatementRefused")


def test_a_run_in_memory_ends_with_its_store_and_not_with_its_step() -> None:
    class Full(StepStore):
        def put(self, run_id: str, step_id: str, value: Any) -> None:
            raise OSError("no space left")

    run = DurableRunner("run", Full())
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            run.step(f"fails {_}", lambda: 1 / 0)
    with pytest.raises(OSError, match="no space"):
        run.step("a", lambda: 1)
    with pytest.raises(OSError, match="no space"):
        run.side_effect("pay", key="k")


# -- it is neither a try of the step nor a crash of the worker


def test_refused_writes_use_up_no_try_of_a_step_and_no_crash_budget(engine: Engine) -> None:
    engine.policy = Policy(max_attempts=2, crash_budget=0)
    failures = [1]
    workflow_id = start(engine, lambda run, _: run.step("a", lambda: 1 / 0 if failures and failures.pop() else "fine"))
    failures.clear()
    with refusing(engine, "steps"):
        for troubles in range(1, 8):
            with pytest.raises(StatementRefused):
                turn(engine)
            assert workflow(engine, workflow_id)["error"]["troubles"] == troubles
            engine.expire_lease(workflow_id)
    failures.append(1)
    assert turn(engine) == "postponed"  # the first try of two
    assert settle(engine, workflow_id)["result"] == "fine"


def test_each_run_that_is_let_go_is_due_after_twice_as_long(engine: Engine) -> None:
    engine.policy = Policy(first_delay=10, max_delay=100)
    workflow_id = start(engine, swallowing)
    delays = []
    with refusing(engine, "steps"):
        for _ in range(6):
            with pytest.raises(StatementRefused):
                turn(engine)
            query = "SELECT extract(epoch FROM next_run_at - updated_at)::float8 AS s FROM {s}.workflows"
            delays.append(rows(engine, query)[0]["s"])
            engine.expire_lease(workflow_id)
    assert all(at <= delay <= 1.26 * at for delay, at in zip(delays, [10, 20, 40, 80, 100, 100], strict=True)), delays


def test_a_worker_does_not_spin_on_it_and_carries_its_neighbours(engine: Engine, lines: Lines) -> None:
    engine.policy = Policy(first_delay=3600, max_delay=3600)
    engine.workflows["tested"] = lambda run, given: run.step("a", lambda: given)
    engine.create_workflows(["good", "bad", "good", "bad", "good"], name="tested")
    mine = Engine(engine.database, workflows=engine.workflows, policy=engine.policy)
    done = "SELECT count(*) AS n FROM {s}.workflows WHERE status = 'completed'"
    with refusing(engine, "steps", "NEW.value::text = '\"bad\"'"), working(mine.worker("A"), mine.worker("B")):
        eventually(lambda: rows(engine, done) == [{"n": 3}])
        eventually(lambda: len([line for line in lines if line["event"] == "run_let_go"]) == 2)
    claims = rows(engine, "SELECT id, fence_token FROM {s}.workflows WHERE input::text = '\"bad\"' ORDER BY id")
    assert [row["fence_token"] for row in claims] == [1, 1]
    told = sorted((line for line in lines if line["event"] == "run_let_go"), key=lambda line: line["workflow_id"])
    assert [line["workflow_id"] for line in told] == [row["id"] for row in claims]
    for line in told:
        assert "the auditor says no" in line["error"]
        assert line["next_try_seconds"] >= 3600
    assert [
        line for line in lines if line["event"] == "worker_in_trouble"
    ] == []  # it went on at once, and others saw it run


def test_a_release_that_is_refused_too_leaves_the_lease_to_end_by_itself(engine: Engine, lines: Lines) -> None:
    workflow_id = start(engine, swallowing)
    with (
        refusing(engine, "workflows", "NEW.checkpoints > 0 OR NEW.lease_owner IS NULL"),
        pytest.raises(StatementRefused),
    ):
        turn(engine, "A")
    row = workflow(engine, workflow_id)
    assert (row["status"], row["lease_owner"], row["error"]) == ("ready", "A", None)
    (told,) = [line for line in lines if line["event"] == "run_let_go"]
    assert (told["workflow_id"], told["worker_id"], "next_try_seconds" in told) == (workflow_id, "A", False)
    assert settle(engine, workflow_id)["result"] == "recorded"


def test_an_outage_of_one_table_spends_no_crash_budget(engine: Engine) -> None:
    """Somebody holds a lock on `steps` for longer than a worker is patient: the lease can still be released."""
    mine = Engine(engine.database.twin(patience=0), workflows=engine.workflows, policy=Policy(crash_budget=0))
    workflow_id = start(mine, swallowing)
    with Session(engine.database) as other:
        other.run("BEGIN")
        other.run(f'LOCK TABLE "{engine.database.schema}".steps IN EXCLUSIVE MODE')
        with pytest.raises(DatabaseAway):
            turn(mine)
        other.run("COMMIT")
    engine.expire_lease(workflow_id)
    assert settle(mine, workflow_id)["result"] == "recorded"
    mine.close()


def test_a_worker_that_is_told_to_stop_ends_although_its_release_is_refused(engine: Engine) -> None:
    def stopped(run: Any, _: Any) -> None:
        worker.stop()
        run.step("a", lambda: 1)

    start(engine, stopped)
    worker = engine.worker("A")
    with refusing(engine, "workflows", "NEW.lease_owner IS NULL"):
        thread = threading.Thread(target=worker.run_forever)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()


# -- a pooler in transaction mode


def test_behind_a_pooler_in_transaction_mode_no_workflow_fails_and_nothing_is_doubled(
    own_database: Any, lines: Lines
) -> None:
    """Four workers share three connections; what one of them has prepared, the next does not know."""
    direct = Engine(own_database(), workflows={"job": swallowing})
    migrate(direct.database, laboratory=True)
    direct.create_workflows([None] * 40, name="job")
    with Pooler(direct.database, 3) as pooler:
        pooled = [Engine(Database(pooler.url, "lab", patience=1), workflows={"job": swallowing}) for _ in range(4)]

        def work(engine: Engine, name: str) -> None:
            for _ in range(25):
                with suppress(Exception):
                    engine.worker(name).run_once()

        threads = [threading.Thread(target=work, args=(one, f"w{n}")) for n, one in enumerate(pooled)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for one in pooled:
            one.close()
    told = [line["error"] for line in lines if line["event"] == "run_let_go"]
    assert any("a pooler in transaction mode" in said for said in told), told
    found = rows(direct, "SELECT status, count(*) AS n FROM {s}.workflows GROUP BY status ORDER BY status")
    assert "failed" not in {row["status"] for row in found}, found
    for row in rows(direct, "SELECT id FROM {s}.workflows WHERE status = 'ready'"):
        assert settle(direct, row["id"])["status"] == "completed"
    assert len(effects(direct)) == 40
    assert rows(direct, "SELECT DISTINCT arguments::text AS a FROM {w}.tool_ledger") == [{"a": '"recorded"'}]
    assert direct.reliability_metrics()["duplicate_business_effects"] == 0
    direct.close()


TRANSACTIONS = ("load", "checkpoint", "intent", "acknowledge", "complete")


@pytest.mark.parametrize("name", TRANSACTIONS)
def test_prepared_statements_that_are_forgotten_in_mid_run_are_no_failure(engine: Engine, name: str) -> None:
    mine = Engine(engine.database.twin(), workflows=engine.workflows)
    for _ in range(2):  # the connection has prepared everything
        settle(mine, start(mine, swallowing))
    body = "BEGIN EXECUTE 'DEALLOCATE ALL'; END"  # in a function, so that psycopg does not see it
    schema = f'"{engine.database.schema}"'
    forgetful = mine.database.with_texts({"forget": f"SELECT {schema}.forget()"})
    made = f"CREATE FUNCTION {{s}}.forget() RETURNS void LANGUAGE plpgsql AS $${body}$$"

    def forget(boundary: Any) -> None:
        if (boundary.transaction, boundary.edge) == (name, "before"):
            forgetful.execute("forget", {})

    before = len(effects(engine))
    workflow_id = start(mine, swallowing)
    if name == "load":  # that is skipped by the first claim
        claim = mine.claim_workflow("other")
        assert claim is not None
        mine.release_lease(claim)
    with ruling(engine, made, "DROP FUNCTION {s}.forget()"), pytest.raises(PoolerInBetween, match="a pooler"):
        mine.with_hook(forget).worker("w").run_once()
    let_go(engine, workflow_id, "PoolerInBetween")
    assert settle(mine, workflow_id)["result"] == "recorded"
    assert len(effects(engine)) == before + 1
    mine.close()


# -- a tool that takes no call, and one whose outcome nobody knows


class Silent:
    """A tool that takes nothing."""

    def __call__(self) -> None:
        raise AssertionError("it was called")


def takes_two(call: ToolCall, more: str) -> None:
    raise AssertionError("it was called")


def takes_a_name(*, call: ToolCall) -> None:
    raise AssertionError("it was called")


TAKE_NO_CALL = {
    "lambda": lambda: None, "two": takes_two, "a name": takes_a_name, "object": Silent(), "class": Silent,
    "text": "no tool", "5": 5,
}  # fmt: skip


@pytest.mark.parametrize("tool", TAKE_NO_CALL.values(), ids=TAKE_NO_CALL)
def test_a_tool_that_takes_no_call_is_a_definite_refusal(engine: Engine, tool: Any) -> None:
    caught: list[str] = []

    def careful(run: Any, _: Any) -> str:
        for _ in range(2):
            try:
                run.side_effect("pay", key="k", tool=tool)
            except Exception as refused:
                caught.append(str(refused))
        return "went on"

    workflow_id = start(engine, careful)
    assert turn(engine) == "completed"
    assert len(caught) == 2
    assert "was not called, since it cannot take a ToolCall" in caught[0] and "<function" not in caught[0]
    (action,) = rows(engine, "SELECT status, error FROM {s}.action_intents")
    assert (action["status"], action["error"]["type"]) == ("REFUSED", "ToolRefused")
    assert json.dumps(action["error"])
    assert [step["error"]["type"] for step in steps(engine, workflow_id)] == ["ToolRefused"]


@pytest.mark.parametrize("tool", [lambda call: 1, lambda *all: 1, lambda call, more=2: 1, lambda call=None: 1, repr])
def test_a_tool_that_takes_a_call_is_called(engine: Engine, tool: Any) -> None:
    assert settle(engine, start(engine, lambda run, _: bool(run.side_effect("pay", key="k", tool=tool))))["result"]


def test_a_tool_that_changes_what_it_takes_after_a_lost_answer_is_not_said_to_have_done_nothing(engine: Engine) -> None:
    """The first call has acted; a refusal of the second would be recorded as if there were no effect."""
    tools: list[Any] = [lambda: None, engine.world]
    engine.world.fault = lambda call: "lose_reply" if len(tools) == 2 else None
    workflow_id = start(engine, lambda run, _: run.side_effect("pay", key="k", tool=tools[-1]))
    assert turn(engine) == "postponed"
    tools.pop()
    engine.expire_lease(workflow_id)
    assert turn(engine) == "postponed"
    row = workflow(engine, workflow_id)
    assert (row["attempts"], row["error"]["type"], len(effects(engine))) == (2, "TypeError", 1)
    tools.append(engine.world)
    engine.world.fault = None
    assert settle(engine, workflow_id)["status"] == "completed"
    assert [effect["attempts"] for effect in effects(engine)] == [2]
