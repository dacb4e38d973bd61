"""Events: before, during and after a wait; the first payload of a name wins."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agentflow import AgentFlowError, Database, Engine, migrate
from agentflow.errors import DatabaseAway, EventRefused, UnfaithfulValue, UnknownWorkflow
from agentflow.model import Boundary
from tests.conftest import rows
from tests.support.helpers import eventually, working
from tests.support.isolation import Session, gapless, rows_of


def approval(run: Any, request: Any) -> Any:
    """Asks once, then once more for the same event, then for another one."""
    first = run.wait_for_event("first", "go")
    again = run.wait_for_event("again", "go")
    other = run.wait_for_event("other", "pay") if request == "both" else None
    return [first, again, other]


@pytest.fixture
def flow(engine: Engine) -> Engine:
    return Engine(engine.database, workflows={"approval": approval})


def start(engine: Engine, workflow_id: str = "w", request: Any = None) -> str:
    engine.create_workflow(request, name="approval", workflow_id=workflow_id)
    return workflow_id


def row(engine: Engine, workflow_id: str = "w") -> dict[str, Any]:
    return rows(engine, "SELECT * FROM {s}.workflows WHERE id = :i", i=workflow_id)[0]


def events(engine: Engine, workflow_id: str = "w") -> list[str]:
    return [e["event"] for e in rows_of(engine.database, workflow_id)["history"]]


def test_an_event_before_the_wait_is_kept_and_nobody_waits(flow: Engine) -> None:
    flow.deliver_event(start(flow), "go", {"by": "editor"})
    assert flow.worker("A").run_once() == "completed"
    assert row(flow)["result"] == [{"by": "editor"}, {"by": "editor"}, None]
    assert "workflow_waiting" not in events(flow)
    assert row(flow)["fence_token"] == 1


@pytest.mark.parametrize("edge", ["before", "after"])
def test_an_event_at_either_edge_of_the_wait_is_received_once(flow: Engine, edge: str) -> None:
    start(flow)
    delivered: list[str] = []

    def deliver(boundary: Boundary) -> None:
        if (boundary.transaction, boundary.edge) == ("wait", edge) and not delivered:
            flow.deliver_event("w", "go", edge)
            delivered.append(edge)

    worker = Engine(flow.database, workflows=flow.workflows, hook=deliver).worker("A")
    assert worker.run_once() == ("completed" if edge == "before" else "waiting")
    assert flow.worker("B").run_until_idle() == (edge == "after")
    assert row(flow)["result"] == [edge, edge, None]
    assert [s["value"] for s in rows(flow, "SELECT value FROM {s}.steps ORDER BY position")] == [edge, edge]


def test_an_event_after_the_wait_wakes_the_workflow_once(flow: Engine) -> None:
    assert flow.run_once(start(flow)) is False
    parked = row(flow)
    assert (parked["status"], parked["waiting_for"], parked["lease_owner"], parked["lease_expires_at"]) == (
        "waiting",
        "go",
        None,
        None,
    )
    assert flow.worker("B").run_once() is None
    flow.deliver_event("w", "go", 1)
    assert flow.worker("B").run_until_idle() == 1
    assert (row(flow)["fence_token"], row(flow)["recovery_started_at"], row(flow)["crashes"]) == (2, None, 0)


def test_an_event_of_another_name_wakes_nobody_and_is_kept(flow: Engine) -> None:
    start(flow, request="both")
    flow.worker("A").run_once()
    flow.deliver_event("w", "pay", 7)
    assert (row(flow)["status"], row(flow)["waiting_for"]) == ("waiting", "go")
    assert flow.worker("A").run_once() is None
    flow.deliver_event("w", "go", 1)
    assert flow.worker("A").run_once() == "completed"
    assert row(flow)["result"] == [1, 1, 7]


def test_the_same_delivery_again_gets_the_same_answer_and_changes_nothing(flow: Engine) -> None:
    start(flow)
    for number in range(3):
        flow.deliver_event("w", "go", {"b": 1, "a": [number * 0, None]})
    assert flow.worker("A").run_once() == "completed"
    flow.deliver_event("w", "go", {"a": [0, None], "b": 1})  # also after the end, and with its keys in another order
    assert events(flow).count("event_delivered") == 1
    assert events(flow).count("event_repeated") == 3
    assert gapless(rows_of(flow.database, "w"))


@pytest.mark.parametrize("payload", [None, 2, "1", [1], {"n": 1}])
def test_another_payload_is_refused_and_the_first_one_stays_for_every_wait(flow: Engine, payload: Any) -> None:
    start(flow)
    flow.worker("A").run_once()
    flow.deliver_event("w", "go", 1)
    with pytest.raises(EventRefused, match="another payload came first and stays"):
        flow.deliver_event("w", "go", payload)
    assert flow.worker("A").run_once() == "completed"
    assert row(flow)["result"] == [1, 1, None]
    with pytest.raises(EventRefused, match="another payload came first and stays"):
        flow.deliver_event("w", "go", payload)
    assert events(flow).count("event_refused") == 2


def test_a_payload_of_none_is_a_payload(flow: Engine) -> None:
    start(flow)
    assert flow.worker("A").run_once() == "waiting"
    flow.deliver_event("w", "go", None)
    flow.deliver_event("w", "go", None)
    with pytest.raises(EventRefused):
        flow.deliver_event("w", "go", 0)
    assert flow.worker("A").run_once() == "completed"
    assert row(flow)["result"] == [None, None, None]
    assert rows(flow, "SELECT value IS NULL AS sql_null FROM {s}.steps") == [{"sql_null": False}] * 2


def test_one_event_for_two_workflows_is_received_by_each(flow: Engine) -> None:
    for workflow in ("w", "x"):
        start(flow, workflow)
    flow.worker("A").run_once()
    for workflow in ("w", "x"):
        flow.deliver_event(workflow, "go", "same key")
    assert flow.run_until_idle("A") == 2
    assert [row(flow, w)["result"][0] for w in ("w", "x")] == ["same key"] * 2


@pytest.mark.parametrize("end", ["completed", "cancelled", "failed"])
def test_a_finished_workflow_takes_no_event(flow: Engine, end: str) -> None:
    start(flow)
    claim = flow.claim_workflow("A")
    assert claim
    {
        "completed": lambda: flow.complete_workflow(claim, 1), "cancelled": lambda: flow.cancel_workflow("w"),
        "failed": lambda: flow.fail_workflow(claim, {"type": "T", "message": "m"}),
    }[end]()  # fmt: skip
    before = row(flow)
    with pytest.raises(EventRefused, match=f"the workflow is {end}"):
        flow.deliver_event("w", "go", 1)
    assert row(flow) | {"entries": 0} == before | {"entries": 0}


def test_an_event_for_nobody_and_a_payload_that_would_change_are_refused_by_name(flow: Engine) -> None:
    with pytest.raises(UnknownWorkflow, match="There is no workflow 'nobody'"):
        flow.deliver_event("nobody", "go")
    start(flow)
    for payload, path in [
        (float("nan"), r"\$"),
        ({"a": [float("inf")]}, r"\$.a\[0\]"),
        ({"a": "x\0"}, r"\$.a"),
        ([b"1"], r"\$\[0\]"),
    ]:
        with pytest.raises(UnfaithfulValue, match=f"path {path}"):
            flow.deliver_event("w", "go", payload)
    assert row(flow)["events"] == {}


def test_a_payload_comes_back_exactly_at_once_and_in_replay(flow: Engine) -> None:
    payload = {"z": -0.0, "a": [1e22, 1.0, 10**25, None, True, "é😀"], "": {}}
    start(flow)
    flow.worker("A").run_once()
    flow.deliver_event("w", "go", payload)
    flow.worker("A").run_once()
    for result in row(flow)["result"][:2]:
        assert repr(result) == repr(payload)


def test_large_names_and_payloads_are_delivered(flow: Engine) -> None:
    """The notification carries nothing, so its limit of 8,000 bytes does not matter."""
    name = "n" * 8_000
    engine = Engine(flow.database, workflows={"approval": lambda run, _: run.wait_for_event("one", name)})
    start(engine)
    engine.worker("A").run_once()
    engine.deliver_event("w", name, "x" * 9_000)
    assert engine.worker("A").run_once() == "completed"
    assert row(engine)["result"] == "x" * 9_000


def test_many_deliverers_at_once_have_one_winner_and_each_knows_whether_it_was(flow: Engine) -> None:
    start(flow)
    flow.worker("A").run_once()
    gate = threading.Barrier(12)

    def deliver(number: int) -> int | None:
        gate.wait(20)
        try:
            flow.deliver_event("w", "go", number % 4)
        except EventRefused:
            return None
        return number % 4

    with ThreadPoolExecutor(12) as pool:
        accepted = {payload for payload in pool.map(deliver, range(12)) if payload is not None}
    assert flow.worker("A").run_once() == "completed"
    assert accepted == {row(flow)["result"][0]}
    assert gapless(rows_of(flow.database, "w"))


def test_an_event_while_the_listener_is_cut_off_wakes_the_workflow(own_database: Any) -> None:
    """The worker polls every ten minutes only, so what wakes it is that it notices the lost connection."""
    migrate(database := own_database(), laboratory=True)
    flow = Engine(database, workflows={"approval": approval})
    start(flow)
    listening = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%_lock_shared(%' "
        "AND pid <> pg_backend_pid()"
    )
    with Session(database) as session, working(flow.worker("A", poll_seconds=600)):
        eventually(lambda: row(flow)["status"] == "waiting" and session.run(listening))
        for _ in range(2):
            (listener,) = eventually(lambda: session.run(listening))
            session.run(f"SELECT pg_terminate_backend({listener['pid']})")
            eventually(lambda gone=listener: gone not in session.run(listening))
        flow.deliver_event("w", "go", 1)
        eventually(lambda: row(flow)["status"] == "completed")
    flow.close()


def test_a_worker_that_cannot_listen_at_all_finds_the_event_by_its_poll(flow: Engine, url: str) -> None:
    """The poll is the safety net."""

    class Deaf(Database):
        def listen(self) -> Any:
            raise DatabaseAway("no connection is left for a listener")

    deaf = Engine(Deaf(url, flow.database.schema), workflows=flow.workflows)
    start(flow)
    with working(deaf.worker("A", poll_seconds=0.1)):
        eventually(lambda: row(flow)["status"] == "waiting")
        flow.deliver_event("w", "go", 1)
        eventually(lambda: row(flow)["status"] == "completed")
    deaf.close()


def test_a_notification_wakes_an_idle_worker_long_before_its_poll(flow: Engine) -> None:
    looks: list[str] = []
    engine = Engine(
        flow.database,
        workflows=flow.workflows,
        hook=lambda b: looks.append(b.edge) if b.transaction == "claim" else None,
    )
    with working(engine.worker("A", poll_seconds=600)):
        eventually(lambda: len(looks) >= 2)  # it listens, and found nothing
        start(flow)
        eventually(lambda: row(flow)["status"] == "waiting")
        flow.deliver_event("w", "go", 1)
        eventually(lambda: row(flow)["status"] == "completed")


def test_a_cancelled_wait_is_over(flow: Engine) -> None:
    start(flow)
    flow.worker("A").run_once()
    flow.cancel_workflow("w")
    assert (row(flow)["status"], row(flow)["waiting_for"]) == ("cancelled", None)
    with pytest.raises(AgentFlowError):
        flow.deliver_event("w", "go", 1)
    assert flow.worker("A").run_once() is None
