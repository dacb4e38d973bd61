"""One id, one workflow; one key, one action; one place in the function, one recorded result."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import text

from agentflow import Claim, CrashInjected, Engine, Policy, open_engine
from agentflow.errors import ActionMismatch, BadName, DeterminismError, DuplicateStep, IdTaken
from agentflow.model import ToolCall
from agentflow.server import Server, ensure_running
from agentflow.values import MAX_ID, idempotency_key
from tests.conftest import rows
from tests.support.helpers import eventually
from tests.support.runs import (
    NAME,
    address,
    counts,
    crash,
    deploy,
    effects,
    elsewhere,
    process,
    settle,
    start,
    steps,
    turn,
    workflow,
)

Call = tuple[Any, ...]
APPROVED, REJECTED = ("wait", "gate", "approved"), ("wait", "gate", "rejected")
A, B, C, D = (("step", name) for name in "abcd")
PAY: Call = ("act", "k", "pay", {"n": 1})


def calling(calls: list[Call], seen: list[tuple[Call, Any]] | None = None) -> Callable[[Any, Any], str]:
    """A workflow that makes these calls in order, and notes what each gave."""

    def function(run: Any, _: Any) -> str:
        for call in calls:
            if call[0] == "step":
                value = run.step(call[1], lambda call=call: f"value of {call[1]}")
            elif call[0] == "wait":
                value = run.wait_for_event(call[1], call[2])
            else:
                value = run.side_effect(call[2], key=call[1], arguments=call[3])
            if seen is not None:
                seen.append((call, value))
        return "done"

    return function


def recorded_then(engine: Engine, calls: list[Call], lost_at: tuple[str, str, str]) -> str:
    """A workflow whose worker was lost at the boundary, in a function that makes these calls."""
    workflow_id = start(engine, calling(calls))
    engine.deliver_event(workflow_id, "approved", "by the editor")
    engine.deliver_event(workflow_id, "rejected", "by nobody")
    crash(engine, *lost_at)
    return workflow_id


# -- the code changes under a running workflow

RECORDED = [A, B, PAY, APPROVED, C]
LOST_BEFORE_C = ("checkpoint", "before", "c")
CHANGED: dict[str, tuple[list[Call], str, str]] = {
    "first renamed": ([("step", "a2"), B, PAY, APPROVED, C], "step 'a'", "step 'a2'"),
    "middle renamed": ([A, ("step", "b2"), PAY, APPROVED, C], "step 'b'", "step 'b2'"),
    "reordered": ([B, A, PAY, APPROVED, C], "step 'a'", "step 'b'"),
    "inserted first": ([D, A, B, PAY, APPROVED, C], "step 'a'", "step 'd'"),
    "inserted in the middle": ([A, D, B, PAY, APPROVED, C], "step 'b'", "step 'd'"),
    "first removed": ([B, PAY, APPROVED, C], "step 'a'", "step 'b'"),
    "middle removed": ([A, PAY, APPROVED, C], "step 'b'", "side_effect 'k'"),
    "all after the first removed": ([A], "step 'b'", "the end of the workflow"),
    "all removed": ([], "step 'a'", "the end of the workflow"),
    "step became a wait": (
        [A, ("wait", "b", "approved"), PAY, APPROVED, C],
        "step 'b'",
        "wait 'b' for event 'approved'",
    ),
    "step became an action": ([A, ("act", "b", "pay", None), PAY, APPROVED, C], "step 'b'", "side_effect 'b'"),
    "action became a step": ([A, B, ("step", "k"), APPROVED, C], "side_effect 'k'", "step 'k'"),
    "action renamed": ([A, B, ("act", "k", "refund", {"n": 1}), APPROVED, C], "pay {'n': 1}", "refund {'n': 1}"),
    "key renamed": ([A, B, ("act", "k2", "pay", {"n": 1}), APPROVED, C], "side_effect 'k'", "side_effect 'k2'"),
    "arguments changed": ([A, B, ("act", "k", "pay", {"n": 2}), APPROVED, C], "{'n': 1}", "{'n': 2}"),
    "argument became a float": ([A, B, ("act", "k", "pay", {"n": 1.0}), APPROVED, C], "{'n': 1}", "{'n': 1.0}"),
    "argument became a bool": ([A, B, ("act", "k", "pay", {"n": True}), APPROVED, C], "{'n': 1}", "{'n': True}"),
    "argument added": ([A, B, ("act", "k", "pay", {"n": 1, "m": None}), APPROVED, C], "{'n': 1}", "'m': None"),
    "arguments removed": ([A, B, ("act", "k", "pay", None), APPROVED, C], "{'n': 1}", "pay None"),
    "waits for another event": ([A, B, PAY, REJECTED, C], "for event 'approved'", "for event 'rejected'"),
    "wait renamed": ([A, B, PAY, ("wait", "gate2", "approved"), C], "wait 'gate'", "wait 'gate2'"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_changed_code_gets_no_stored_result_of_another_call_and_is_told_recorded_and_asked(
    engine: Engine, name: str
) -> None:
    calls, recorded, asked = CHANGED[name]
    workflow_id = recorded_then(engine, RECORDED, LOST_BEFORE_C)
    before = [(step["step_id"], step["value"]) for step in steps(engine, workflow_id)]
    seen: list[tuple[Call, Any]] = []
    deploy(engine, calling(calls, seen))
    assert turn(engine) == "failed"
    row = workflow(engine, workflow_id)
    assert row["error"]["type"] == "DeterminismError"
    found = row["error"]["message"].split(": recorded ")[1].split(", asked for ")
    assert recorded in found[0]
    assert asked in found[1]
    assert [call for call, _ in seen] == RECORDED[: len(seen)]
    assert all(value == f"value of {call[1]}" for call, value in seen if call[0] == "step")
    assert [(step["step_id"], step["value"]) for step in steps(engine, workflow_id)] == before
    assert [effect["attempts"] for effect in effects(engine)] == [1]


@pytest.mark.parametrize("name", ["first renamed", "arguments changed", "all removed", "waits for another event"])
def test_workflow_goes_on_when_the_code_that_began_it_is_back(engine: Engine, name: str) -> None:
    workflow_id = recorded_then(engine, RECORDED, LOST_BEFORE_C)
    deploy(engine, calling(CHANGED[name][0]))
    assert turn(engine) == "failed"
    deploy(engine, calling(RECORDED))
    engine.requeue_workflow(workflow_id)
    assert settle(engine, workflow_id)["result"] == "done"
    assert [effect["attempts"] for effect in effects(engine)] == [1]


@pytest.mark.parametrize("tail", [[], [D], [C, D], [D, C]])
def test_what_is_not_yet_recorded_may_change(engine: Engine, tail: list[Call]) -> None:
    workflow_id = recorded_then(engine, RECORDED, LOST_BEFORE_C)
    deploy(engine, calling([*RECORDED[:-1], *tail]))
    assert settle(engine, workflow_id)["result"] == "done"
    assert [step["step_id"] for step in steps(engine, workflow_id)] == [
        "a",
        "b",
        "k",
        "gate",
        *(call[1] for call in tail),
    ]


BETWEEN: dict[str, tuple[list[Call], str]] = {
    "removed": ([A, B, C], "step 'c'"),
    "all after it removed": ([A, B], "the end of the workflow"),
    "a step inserted": ([A, B, D, PAY, C], "step 'd'"),
    "a wait inserted": ([A, B, APPROVED, PAY, C], "wait 'gate'"),
    "another action first": ([A, B, ("act", "k0", "pay", None), PAY, C], "side_effect 'k0'"),
    "key renamed": ([A, B, ("act", "k2", "pay", {"n": 1}), C], "side_effect 'k2'"),
    "action renamed": ([A, B, ("act", "k", "refund", {"n": 1}), C], "refund"),
    "arguments changed": ([A, B, ("act", "k", "pay", {"n": 2}), C], "{'n': 2}"),
    "argument became a bool": ([A, B, ("act", "k", "pay", {"n": True}), C], "{'n': True}"),
    "became a step": ([A, B, ("step", "k"), C], "step 'k'"),
}


@pytest.mark.parametrize("name", BETWEEN)
@pytest.mark.parametrize(("lost_at", "attempts"), [(("intent", "after", "k"), 0), (("tool", "after", "k"), 1)])
def test_code_changed_between_intent_and_acknowledgment_is_refused_and_the_plan_kept(
    engine: Engine, name: str, lost_at: tuple[str, str, str], attempts: int
) -> None:
    calls, asked = BETWEEN[name]
    workflow_id = recorded_then(engine, [A, B, PAY, C], lost_at)
    deploy(engine, calling(calls))
    assert turn(engine) == "failed"
    row = workflow(engine, workflow_id)
    assert row["error"]["type"] == "DeterminismError"
    assert "action 'k'" in row["error"]["message"]
    assert asked in row["error"]["message"].split(", asked for ")[1]
    plans = rows(engine, "SELECT key, action, arguments, status FROM {s}.action_intents")
    assert plans == [{"key": "k", "action": "pay", "arguments": {"n": 1}, "status": "PENDING"}]
    assert [effect["attempts"] for effect in effects(engine)] == [1] * attempts
    deploy(engine, calling([A, B, PAY, C]))
    engine.requeue_workflow(workflow_id)
    assert settle(engine, workflow_id)["status"] == "completed"
    assert [effect["attempts"] for effect in effects(engine)] == [attempts + 1]


@pytest.mark.parametrize("after", ["returns", "raises"])
def test_function_cannot_swallow_a_determinism_error(engine: Engine, after: str) -> None:
    workflow_id = recorded_then(engine, RECORDED, LOST_BEFORE_C)
    seen: list[BaseException] = []

    def swallows(run: Any, _: Any) -> str:
        for name in ("a2", "a"):
            try:
                run.step(name, lambda: 1)
            except Exception as error:
                seen.append(error)
        return "done" if after == "returns" else f"{1 / 0}"

    deploy(engine, swallows)
    assert turn(engine) == "failed"
    assert workflow(engine, workflow_id)["error"]["type"] == "DeterminismError"
    assert [type(error) for error in seen] == [DeterminismError] * 2


# -- the same id twice in one run


@pytest.mark.parametrize(
    ("first", "second"),
    [(A, A), (APPROVED, APPROVED), (APPROVED, REJECTED), (A, ("wait", "a", "approved")), (A, ("act", "a", "pay", None)),
     (PAY, ("step", "k")), (PAY, ("wait", "k", "approved"))],
)  # fmt: skip
def test_same_id_twice_in_one_run_is_refused_and_the_second_call_records_nothing(
    engine: Engine, first: Call, second: Call
) -> None:
    workflow_id = start(engine, calling([first, second]))
    engine.deliver_event(workflow_id, "approved")
    assert turn(engine) == "failed"
    row = workflow(engine, workflow_id)
    assert row["error"]["type"] == "DuplicateStep"
    assert "Add a counter to the id" in row["error"]["message"]
    assert [step["step_id"] for step in steps(engine, workflow_id)] == [first[1]]
    assert len(effects(engine)) == (first[0] == "act")


def test_same_step_id_in_a_loop_is_refused_and_a_counter_in_the_id_runs_each_body_once(engine: Engine) -> None:
    ran: list[int] = []

    def loop(run: Any, template: str) -> list[int]:
        return [run.step(template.format(n=n), lambda n=n: ran.append(n) or n * n) for n in range(5)]

    deploy(engine, loop)
    same = engine.create_workflow("square", name=NAME)["id"]
    assert turn(engine) == "failed"
    assert workflow(engine, same)["error"]["type"] == DuplicateStep.__name__
    assert ran == [0]
    counted = engine.create_workflow("square-{n}", name=NAME)["id"]
    crash(engine, "checkpoint", "after", "square-3")
    assert settle(engine, counted)["result"] == [0, 1, 4, 9, 16]
    assert ran == [0, 0, 1, 2, 3, 4]


def test_first_payload_of_an_event_is_every_waits_payload(engine: Engine) -> None:
    waits: list[Call] = [("wait", f"gate-{n}", "approved") for n in range(5)]
    seen: list[tuple[Call, Any]] = []
    workflow_id = start(engine, calling(waits, seen))
    engine.deliver_event(workflow_id, "approved", "once")
    assert settle(engine, workflow_id)["status"] == "completed"
    assert [value for _, value in seen] == ["once"] * 5


# -- one key, one action


def test_same_action_key_twice_in_one_run_is_one_action(engine: Engine) -> None:
    seen: list[tuple[Call, Any]] = []
    workflow_id = start(engine, calling([PAY, PAY, A, PAY], seen))
    crash(engine, "checkpoint", "after", "a")
    assert settle(engine, workflow_id)["status"] == "completed"
    assert [effect["attempts"] for effect in effects(engine)] == [1]
    assert len({str(value) for call, value in seen if call is PAY}) == 1
    assert [step["step_id"] for step in steps(engine, workflow_id)] == ["k", "a"]


@pytest.mark.parametrize(
    "second",
    [
        ("act", "k", "refund", {"n": 1}),
        *(("act", "k", "pay", other) for other in (None, {"n": 2}, {"n": True}, {"n": 1.0})),
    ],
)
def test_same_action_key_for_another_action_is_refused(engine: Engine, second: Call) -> None:
    workflow_id = start(engine, calling([PAY, second]))
    assert turn(engine) == "failed"
    assert workflow(engine, workflow_id)["error"]["type"] == ActionMismatch.__name__
    assert [(effect["action"], effect["attempts"]) for effect in effects(engine)] == [("pay", 1)]


def test_same_action_key_with_arguments_changed_in_place_is_refused(engine: Engine) -> None:
    def function(run: Any, _: Any) -> None:
        arguments = {"n": 1}
        run.side_effect("pay", key="k", arguments=arguments)
        arguments["n"] = 1_000
        run.side_effect("pay", key="k", arguments=arguments)

    workflow_id = start(engine, function)
    assert turn(engine) == "failed"
    assert workflow(engine, workflow_id)["error"]["type"] == ActionMismatch.__name__


def test_key_planned_for_another_action_is_refused_by_the_statement_itself(engine: Engine) -> None:
    start(engine, calling([]))
    claim = engine.claim_workflow("worker")
    assert claim is not None
    engine.create_action_intent(claim, "k", "pay", {"n": 1})
    engine.create_action_intent(claim, "k", "pay", {"n": 1})
    before = counts(engine)
    for action, arguments in (("refund", {"n": 1}), ("pay", {"n": 2}), ("pay", None)):
        with pytest.raises(ActionMismatch, match="give each planned action its own key"):
            engine.create_action_intent(claim, "k", action, arguments)
    assert counts(engine) | {"{s}.history": 0} == before | {"{s}.history": 0}
    query = "SELECT event, transaction, subject FROM {s}.history ORDER BY n OFFSET :before"
    refusals = rows(engine, query, before=before["{s}.history"])
    assert len(refusals) >= 3  # one that might have waited for a renewal is issued, and refused, again
    assert {tuple(entry.values()) for entry in refusals} == {("write_refused", "intent", "k")}
    assert rows(engine, "SELECT action, arguments FROM {s}.action_intents") == [
        {"action": "pay", "arguments": {"n": 1}}
    ]


PIECES = st.text(st.sampled_from("ab:%2538A-é"), min_size=1, max_size=8)


@given(first=st.tuples(PIECES, PIECES), second=st.tuples(PIECES, PIECES))
@example(("a", "b:c"), ("a:b", "c"))
@example(("a", "b%3Ac"), ("a", "b:c"))
@example(("a%3Ab", "c"), ("a:b", "c"))
def test_idempotency_keys_of_two_pairs_never_collide(first: tuple[str, str], second: tuple[str, str]) -> None:
    assert (idempotency_key(*first) == idempotency_key(*second)) == (first == second)
    assert idempotency_key(*first).rpartition(":")[0] == first[0]


def test_odd_ids_and_keys_have_one_effect_each_under_a_key_of_their_own(engine: Engine) -> None:
    pairs = [
        ("a", "b:c"),
        ("a:b", "c"),
        ("a%3Ab", "c"),
        ("50%", "25%"),
        ("user:12_3", "'"),
        ("\\", '"'),
        ("😀" * MAX_ID, "😀" * MAX_ID),
    ]
    deploy(engine, lambda run, key: run.side_effect("pay", key=key))
    for workflow_id, key in [*pairs, *pairs]:
        engine.create_workflow(key, name=NAME, workflow_id=workflow_id)
    assert engine.run_until_idle("worker") == len(pairs)
    keys = [(effect["workflow_id"], effect["idempotency_key"]) for effect in effects(engine)]
    assert len({key for _, key in keys}) == len(pairs)
    assert all(key.startswith(f"{workflow_id}:") for workflow_id, key in keys)
    assert "a:b%3Ac" in {key for _, key in keys}


# -- one id, one workflow


def test_creating_again_with_the_same_id_and_input_gives_the_first_workflow(engine: Engine) -> None:
    first = engine.create_workflow({"a": 1, "b": [2]}, name=NAME, workflow_id="X")
    before = counts(engine)
    again = engine.create_workflow({"b": [2], "a": 1}, name=NAME, workflow_id="X")
    assert (first.pop("created"), again.pop("created")) == (True, False)
    assert again == first
    assert counts(engine) == before
    assert workflow(engine, "X")["fence_token"] == 0


@pytest.mark.parametrize("other", [("another", NAME), ({"a": True}, NAME), (None, NAME), ({"a": 1}, "support_agent")])
@pytest.mark.parametrize("when", ["ready", "claimed", "completed"])
def test_id_that_is_taken_by_another_name_or_input_is_refused_and_the_first_finishes(
    engine: Engine, other: Any, when: str
) -> None:
    start(engine, calling([A, PAY]), {"a": 1}, workflow_id="X")
    if when == "claimed":
        crash(engine, "tool")
    elif when == "completed":
        assert turn(engine) == "completed"
    before, row = counts(engine), workflow(engine, "X")
    request, name = other
    with pytest.raises(IdTaken, match="choose another id"):
        engine.create_workflow(request, name=name, workflow_id="X")
    assert counts(engine) == before
    assert {**workflow(engine, "X"), "later": None} == {**row, "later": None}
    assert settle(engine, "X")["status"] == "completed"
    assert len(effects(engine)) == 1


def test_batch_is_created_in_its_order_and_again_changes_nothing(engine: Engine) -> None:
    ids = [f"id-{n}" for n in range(50)]
    assert engine.create_workflows(list(range(50)), name=NAME, workflow_ids=ids) == ids
    before = counts(engine)
    assert engine.create_workflows(list(range(50)), name=NAME, workflow_ids=ids) == ids
    assert counts(engine) == before
    deploy(engine, lambda run, n: n)
    claimed = []
    while claim := engine.claim_workflow("worker"):
        claimed.append(claim.workflow_id)
    assert claimed == ids
    assert engine.create_workflows([], name=NAME) == []


def test_batch_with_an_id_twice_is_refused_whole(engine: Engine) -> None:
    before = counts(engine)
    with pytest.raises(BadName, match="twice in one batch"):
        engine.create_workflows([1, 1], workflow_ids=["X", "X"])
    assert counts(engine) == before


def test_batch_with_a_taken_id_says_which_item_and_creates_the_others(engine: Engine) -> None:
    engine.create_workflow("first", workflow_id="X")
    with pytest.raises(IdTaken, match=r"'X' .* Item 1 is the first of 1; the other items exist"):
        engine.create_workflows(["a", "other", "c"], workflow_ids=["P", "X", "Q"])
    assert rows(engine, "SELECT id, input FROM {s}.workflows ORDER BY id") == [
        {"id": "P", "input": "a"}, {"id": "Q", "input": "c"}, {"id": "X", "input": "first"},
    ]  # fmt: skip


def test_list_takes_a_prefix_literally(engine: Engine) -> None:
    ids = ["user:12_3", "user:1_", "user:1_x", "50%", "500", "\\", "\\\\", "'", "''", "%", "_"]
    engine.create_workflows(["x"] * len(ids), workflow_ids=ids)
    for prefix in ids:
        expected = sorted(i for i in ids if i.startswith(prefix))
        assert sorted(row["id"] for row in engine.list_workflows(prefix=prefix)) == expected
    assert len(engine.list_workflows()) == len(ids)


START_X = """
import json, sys
from sqlalchemy import text
from agentflow import open_engine
given = json.load(sys.stdin)
engine = open_engine(given["url"], given["schema"])
with engine.database.alchemy.connect() as connection:
    connection.execute(text("SELECT pg_advisory_lock_shared(hashtext(:gun))"), {"gun": given["schema"]})
created = engine.create_workflow("login", workflow_id="X")["id"]
print(json.dumps({"created": created, "completed": engine.run_until_idle(given["worker"])}))
engine.close()
"""


def test_twenty_threads_and_four_processes_that_start_one_id_execute_it_once(engine: Engine) -> None:
    where, gun = address(engine), {"gun": engine.database.schema}
    found: list[int] = []

    def start_x(number: int) -> None:
        barrier.wait(60)
        assert engine.create_workflow("login", workflow_id="X")["id"] == "X"
        found.append(engine.run_until_idle(f"thread-{number}"))

    barrier = threading.Barrier(21)
    threads = [threading.Thread(target=start_x, args=(number,)) for number in range(20)]
    waiting = text(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = hashtext(:gun)::oid"
    )
    with engine.database.alchemy.connect() as connection, engine.database.alchemy.connect() as watcher:
        connection.execute(text("SELECT pg_advisory_lock(hashtext(:gun))"), gun)
        processes = [process(START_X, {**where, "worker": f"process-{number}"}) for number in range(4)]
        try:
            for thread in threads:
                thread.start()
            eventually(lambda: watcher.execute(waiting, gun).scalar() == 4, 60)
            connection.execute(text("SELECT pg_advisory_unlock(hashtext(:gun))"), gun)
            barrier.wait(60)
            outs = [running.communicate(timeout=60) for running in processes]
            for thread in threads:
                thread.join(60)
        finally:
            for running in processes:
                running.kill()
    assert [err for _, err in outs if err] == []
    assert sum(found) + sum(json.loads(out)["completed"] for out, _ in outs) == 1
    assert len(found) == 20
    entries = rows(engine, "SELECT event, count(*) AS n FROM {s}.history WHERE workflow_id = 'X' GROUP BY event")
    assert {entry["event"]: entry["n"] for entry in entries} == {
        "workflow_created": 1, "workflow_claimed": 1, "checkpoint_committed": 2, "action_intent_committed": 1,
        "action_acknowledged": 1, "workflow_completed": 1,
    }  # fmt: skip
    assert [effect["attempts"] for effect in effects(engine)] == [1]


# -- the crash budget


def crashed(engine: Engine, workflow_id: str, times: int) -> None:
    """So many workers were lost in the same step."""
    for _ in range(times):
        crash(engine, "checkpoint", "before", "a")


def test_as_many_crashes_as_the_budget_allows_are_recovered(engine: Engine) -> None:
    workflow_id = start(engine, calling([A, PAY]))
    crashed(engine, workflow_id, engine.policy.crash_budget)
    assert settle(engine, workflow_id)["status"] == "completed"


def poisoned(run: Any, _: Any) -> None:
    raise CrashInjected("this function kills every worker that touches it")


def test_one_crash_more_fails_the_workflow_with_the_reason_and_the_neighbours_run(engine: Engine) -> None:
    engine.policy = Policy(crash_budget=2)
    workflow_id = start(engine, calling([A]), workflow_id="poison")
    neighbours = engine.create_workflows(["hello"] * 3)
    deploy(engine, poisoned)
    lost, completed = 0, 0
    for number in range(10):
        try:
            completed += engine.run_until_idle(f"worker-{number}")
        except CrashInjected:
            lost += 1
            engine.expire_lease(workflow_id)
    row = workflow(engine, workflow_id)
    assert (lost, completed) == (3, len(neighbours))
    assert (row["status"], row["crashes"], row["error"]["type"], row["lease_owner"]) == (
        "failed",
        3,
        "CrashBudgetSpent",
        None,
    )
    assert "3 workers in a row lost their lease" in row["error"]["message"]
    last = rows(
        engine, "SELECT event, transaction FROM {s}.history WHERE workflow_id = 'poison' ORDER BY n DESC LIMIT 1"
    )
    assert last == [{"event": "workflow_failed", "transaction": "claim"}]


def test_neighbours_run_while_the_poisoned_workflow_is_leased(engine: Engine) -> None:
    start(engine, calling([A]), workflow_id="poison")
    engine.create_workflows(["hello"] * 5)
    deploy(engine, poisoned)
    with pytest.raises(CrashInjected):
        turn(engine)
    assert engine.run_until_idle("worker") == 5


def test_workflow_that_spent_its_budget_can_be_requeued_with_a_fresh_one(engine: Engine) -> None:
    engine.policy = Policy(crash_budget=1)
    workflow_id = start(engine, calling([A, PAY]))
    crashed(engine, workflow_id, 2)
    assert turn(engine) is None
    assert workflow(engine, workflow_id)["status"] == "failed"
    engine.requeue_workflow(workflow_id)
    crashed(engine, workflow_id, 1)
    assert settle(engine, workflow_id)["status"] == "completed"


def test_a_checkpoint_makes_the_budget_fresh(engine: Engine) -> None:
    engine.policy = Policy(crash_budget=1)
    workflow_id = start(engine, calling([A, B, C]))
    for name in "abc":
        crash(engine, "checkpoint", "before", name)
    assert settle(engine, workflow_id)["status"] == "completed"
    assert workflow(engine, workflow_id)["fence_token"] == 4


def test_releases_are_no_crashes(engine: Engine) -> None:
    engine.policy = Policy(crash_budget=0)
    workflow_id = start(engine, calling([A]))
    for number in range(10):
        claim = engine.claim_workflow(f"worker-{number}")
        assert isinstance(claim, Claim)
        assert not claim.recovered
        engine.release_lease(claim)
    assert workflow(engine, workflow_id)["crashes"] == 0
    assert settle(engine, workflow_id)["status"] == "completed"


def test_failed_tries_are_no_crashes(engine: Engine) -> None:
    engine.policy = Policy(crash_budget=0, max_attempts=10)
    left = [1] * 9
    workflow_id = start(engine, lambda run, _: run.step("flaky", lambda: 1 / 0 if left and left.pop() else "fine"))
    assert settle(engine, workflow_id)["result"] == "fine"
    assert workflow(engine, workflow_id)["crashes"] == 0


def test_lost_answers_are_no_crashes(engine: Engine) -> None:
    engine.policy = Policy(crash_budget=0)
    faults: list[Any] = ["lose_reply"] * 9
    engine.world.fault = lambda call: faults.pop() if faults else None
    workflow_id = start(engine, calling([PAY]))
    assert settle(engine, workflow_id)["status"] == "completed"
    assert [effect["attempts"] for effect in effects(engine)] == [10]


def test_take_over_after_a_database_restart_is_no_crash(tmp_path: Path) -> None:
    engine = open_engine(ensure_running(tmp_path).url(), policy=Policy(crash_budget=0))
    try:
        workflow_id = start(engine, calling([A, PAY]))
        for _ in range(2):
            assert engine.claim_workflow("worker", 0.1) is not None
            Server(tmp_path).stop()
            ensure_running(tmp_path)
            assert engine.get_workflow(workflow_id)["crashes"] == 0  # type: ignore[index]
        assert eventually(lambda: turn(engine)) == "completed"
        assert [effect["attempts"] for effect in effects(engine)] == [1]
    finally:
        engine.close()
        Server(tmp_path).stop()


KILLED_IN_A_STEP = """
import json, os, signal, sys
from agentflow import open_engine
engine = open_engine(**json.load(sys.stdin))
engine.workflows["tested"] = lambda run, _: run.step("a", lambda: os.kill(os.getpid(), signal.SIGKILL))
engine.worker(f"killed-{os.getpid()}").run_once()
"""


def test_five_sigkills_in_one_healthy_step_spend_the_crash_budget_and_no_try(engine: Engine) -> None:
    workflow_id = start(engine, calling([A, PAY]))
    for number in range(1, 6):
        elsewhere(KILLED_IN_A_STEP, address(engine), returncode=-signal.SIGKILL)
        row = workflow(engine, workflow_id)
        assert (row["status"], row["crashes"], row["attempts"]) == ("ready", number - 1, 0)
        assert row["lease_owner"].startswith("killed-")
        engine.expire_lease(workflow_id)
    assert turn(engine) == "completed"
    assert [effect["attempts"] for effect in effects(engine)] == [1]


def test_function_that_a_worker_does_not_know_is_left_to_workers_that_do(engine: Engine) -> None:
    stranger = engine.create_workflow(1, name="stranger")["id"]
    known = start(engine, calling([PAY]))
    assert engine.run_until_idle("worker") == 1
    assert (workflow(engine, known)["status"], workflow(engine, stranger)["fence_token"]) == ("completed", 0)
    engine.workflows["stranger"] = lambda run, given: given
    assert engine.run_until_idle("worker") == 1


def test_tool_is_told_which_workflow_and_action_it_serves(engine: Engine) -> None:
    told: list[ToolCall] = []
    workflow_id = start(engine, lambda run, _: run.side_effect("pay", key="k:1", tool=told.append, arguments={"n": 1}))
    assert settle(engine, workflow_id)["status"] == "completed"
    assert told == [ToolCall(f"{workflow_id}:k%3A1", "pay", {"n": 1}, workflow_id)]
