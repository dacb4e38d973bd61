"""What crosses on the way: a reset and a write in flight, a lost answer and what others did meanwhile, a renewal and the end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from agentflow import Database, Engine, LostLease, Policy
from agentflow.errors import AlreadyFinished
from agentflow.worker import carry
from tests.conftest import rows
from tests.engine.test_rules import call
from tests.support.helpers import eventually
from tests.support.isolation import Session
from tests.support.proxy import Proxy
from tests.support.runs import turn

EVERY_TABLE = (
    "{s}.workflows",
    "{s}.steps",
    "{s}.action_intents",
    "{s}.history",
    "{w}.tool_ledger",
    "{w}.tool_attempts",
)


def fails(run: Any, request: Any) -> Any:
    raise RuntimeError("a mistake in the workflow")


def events(engine: Engine, workflow_id: str) -> list[str]:
    return [entry["event"] for entry in engine.history(workflow_id)]


# -- reset -------------------------------------------------------------------------------------------------------------


def test_a_reset_beside_a_write_in_flight_leaves_no_orphan_in_any_table(engine: Engine) -> None:
    engine.create_workflow("I cannot login", workflow_id="w")
    claim = engine.claim_workflow("A")
    assert claim
    with Session(engine.database) as worker, ThreadPoolExecutor(1) as thread:
        worker.run("BEGIN")
        assert worker.run(call(engine, "checkpoint", claim))[0]["outcome"] == "committed"
        reset = thread.submit(engine.reset_database)
        eventually(lambda: rows(engine, "SELECT 1 FROM pg_locks WHERE NOT granted"))
        worker.run("COMMIT")
        reset.result(20)
    assert {table: rows(engine, f"SELECT * FROM {table}") for table in EVERY_TABLE} == {
        table: [] for table in EVERY_TABLE
    }
    engine.create_workflow("I cannot login", workflow_id="w")
    assert turn(engine) == "completed"


# -- answers that were lost ----------------------------------------------------------------------------------------------


def through(proxy: Proxy, engine: Engine) -> Engine:
    return Engine(Database(proxy.url, engine.database.schema, patience=20))


@pytest.mark.parametrize(("wanted", "created"), [(None, True), ("w", None)])
def test_a_lost_answer_to_create_never_says_that_another_call_made_it(
    engine: Engine, wanted: str | None, created: bool | None
) -> None:
    with Proxy(engine.database) as proxy, closing(through(proxy, engine)) as mine:
        proxy.lose(engine.database.sql("create"), "committed")
        made = mine.create_workflow("I cannot login", workflow_id=wanted)
    assert (proxy.lost, made["created"], len(rows(engine, "SELECT 1 FROM {s}.workflows"))) == (1, created, 1)
    assert engine.create_workflow("I cannot login", workflow_id=made["id"])["created"] is False


@pytest.mark.parametrize("mended", [False, True])
def test_a_requeue_whose_answer_was_lost_is_not_done_twice_whatever_became_of_the_workflow(
    engine: Engine, mended: bool
) -> None:
    engine.workflows = {"job": fails}
    engine.create_workflow(None, name="job", workflow_id="w")
    assert turn(engine) == "failed"
    if mended:
        engine.workflows = {"job": lambda run, request: "mended"}
    with Proxy(engine.database) as proxy, closing(through(proxy, engine)) as mine:
        proxy.lose(engine.database.sql("requeue"), "committed", after=lambda _: turn(engine))
        mine.requeue_workflow("w")
    assert proxy.lost == 1
    assert events(engine, "w").count("workflow_requeued") == 1
    assert engine.get_workflow("w")["status"] == ("completed" if mended else "failed")  # type: ignore[index]


def test_a_failure_that_the_caller_has_not_seen_is_not_requeued(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.workflows = {"job": fails}
    engine.create_workflow(None, name="job", workflow_id="w")
    turn(engine)
    seen = engine.get_workflow("w")
    engine.requeue_workflow("w")
    turn(engine)
    monkeypatch.setattr(engine, "get_workflow", lambda _: seen)
    with pytest.raises(AlreadyFinished, match="requeued by somebody else, and this is another failure: it is failed"):
        engine.requeue_workflow("w")
    assert events(engine, "w")[-1] == "write_refused"


# -- a renewal -----------------------------------------------------------------------------------------------------------


def test_a_renewal_that_crosses_its_workers_own_end_is_no_refused_write(engine: Engine) -> None:
    engine.policy = Policy(max_attempts=1)
    engine.workflows = {
        "ends": lambda run, _: 1, "fails": fails, "waits": lambda run, _: run.wait_for_event("e", "go")
    }  # fmt: skip
    for name in engine.workflows:
        engine.create_workflow(None, name=name, workflow_id=name)
        claim = engine.claim_workflow("A")
        assert claim
        carry(engine, claim, engine.workflows[name], engine.tool)
        with pytest.raises(LostLease):
            engine.renew_lease(claim)
        assert "write_refused" not in events(engine, name)


def test_a_renewal_after_a_cancel_or_a_take_over_is_refused_and_recorded(engine: Engine) -> None:
    engine.workflows = {"job": lambda run, _: 1}
    for workflow_id, ends in (("cancelled", engine.cancel_workflow), ("taken", engine.expire_lease)):
        engine.create_workflow(None, name="job", workflow_id=workflow_id)
        claim = engine.claim_workflow("A")
        assert claim
        ends(workflow_id)
        if workflow_id == "taken":
            turn(engine)
        with pytest.raises(LostLease):
            engine.renew_lease(claim)
        assert events(engine, workflow_id)[-1] == "write_refused"
