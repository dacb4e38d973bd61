"""Every check of durable-py, figure for figure; then the same functions on PostgreSQL."""

from __future__ import annotations

import os
from typing import Any

import pytest

from agentflow import DurableRunner, Engine, Ledger, NaiveRunner, StepStore, Suspend, research_agent, support_agent
from agentflow.agents import research_agent_with
from agentflow.errors import UnfaithfulValue
from agentflow.tools import StandInModel
from tests.support.runs import address, effects, elsewhere, observed, settle, steps, workflow

EMAIL = "email:extraction-complete"
DELIVERED = "delivered:draft(DOC-A+DOC-B+DOC-C)#0"
APPROVAL = {"by": "editor@example.com"}


def failed_run(runner: NaiveRunner | DurableRunner, **options: Any) -> Ledger:
    """The ledger of a run whose `fail_on` step raised."""
    with pytest.raises(RuntimeError, match=f"{options['fail_on']} timed out"):
        research_agent(runner, options)
    return runner.ledger


def failed_then_finished() -> tuple[StepStore, Ledger, DurableRunner, str]:
    """Run-1 of durable-py: dies on drafting, is run again."""
    store = StepStore()
    first = failed_run(DurableRunner("run-1", store), fail_on="drafting")
    second = DurableRunner("run-1", store)
    return store, first, second, research_agent(second, {"fail_on": None})


# -- 1. naive retry: the failure erases finished work


def test_naive_attempt_runs_three_steps_and_has_sent_the_email_when_it_dies() -> None:
    ledger = failed_run(NaiveRunner(), fail_on="drafting")
    assert ledger.executed == ["retrieval", "extraction", "drafting"]
    assert ledger.side_effects == [EMAIL]


def test_naive_retry_runs_everything_again_seven_executions_and_two_emails() -> None:
    first = failed_run(NaiveRunner(), fail_on="drafting")
    again = NaiveRunner()
    assert research_agent(again, {"fail_on": None}) == DELIVERED
    assert again.ledger.executed == ["retrieval", "extraction", "drafting", "deliver"]
    assert first.cost + again.ledger.cost == 7
    assert first.side_effects + again.ledger.side_effects == [EMAIL, EMAIL]


# -- 2. durable execution: only the gap runs again


def test_durable_attempt_records_two_results_and_one_effect_key() -> None:
    store = StepStore()
    assert failed_run(DurableRunner("run-1", store), fail_on="drafting").executed == [
        "retrieval",
        "extraction",
        "drafting",
    ]
    assert sorted(step for _, step in store.memo) == ["__effect__extraction-complete", "extraction", "retrieval"]


def test_durable_retry_replays_two_executes_two_and_sends_no_second_email() -> None:
    _, first, second, result = failed_then_finished()
    assert second.ledger.replayed == ["retrieval", "extraction"]
    assert second.ledger.executed == ["drafting", "deliver"]
    assert first.side_effects + second.ledger.side_effects == [EMAIL]
    assert result == DELIVERED


def test_durable_execution_costs_five_where_naive_retry_costs_seven() -> None:
    _, first, second, _ = failed_then_finished()
    naive = failed_run(NaiveRunner(), fail_on="drafting").cost
    again = NaiveRunner()
    research_agent(again)
    assert first.cost + second.ledger.cost == 5
    assert naive + again.ledger.cost - (first.cost + second.ledger.cost) == 2


# -- 3. replay is not execution once more


def test_draft_keeps_generation_one_although_the_nonce_changed() -> None:
    store = StepStore()
    failed_run(DurableRunner("run-2", store), fail_on="deliver", nonce=1)
    first_draft = store.memo["run-2", "drafting"]
    again = DurableRunner("run-2", store)
    result = research_agent(again, {"fail_on": None, "nonce": 999})
    assert store.memo["run-2", "drafting"] == first_draft
    assert "#1" in first_draft
    assert result == f"delivered:{first_draft}"
    assert again.ledger.executed == ["deliver"]


def test_a_model_that_varies_is_asked_once_by_a_durable_run_and_twice_by_a_naive_one() -> None:
    varying = research_agent_with(StandInModel(seed=7, varying=True))
    store = StepStore()
    first, replayed = (varying(DurableRunner("run", store), None) for _ in range(2))
    assert first == replayed
    assert varying(NaiveRunner(), None) != varying(NaiveRunner(), None)


# -- 4. suspend here, resume in another process

RESUME = """
import json, os, sys
from agentflow import DurableRunner, StepStore, research_agent
given = json.load(sys.stdin)
run = DurableRunner("run-3", StepStore.restore(given["snapshot"]), events=given["events"])
result = research_agent(run, {"with_wait": True})
print(json.dumps({"pid": os.getpid(), "result": result, **vars(run.ledger)}))
"""


def parked() -> tuple[StepStore, DurableRunner]:
    """Run-3 of durable-py, waiting for its editor."""
    store = StepStore()
    run = DurableRunner("run-3", store, events={})
    with pytest.raises(Suspend) as suspended:
        research_agent(run, {"with_wait": True})
    assert suspended.value.waiting_for == "editor.approved"
    assert suspended.value.step_id == "approval"
    return store, run


def test_run_parks_on_the_approval_with_the_work_before_it_saved() -> None:
    store, run = parked()
    assert run.ledger.executed == ["retrieval", "extraction"]
    assert store.get("run-3", "extraction") == (True, ["DOC-A", "DOC-B", "DOC-C"])


def test_parked_run_is_resumed_from_its_snapshot_in_another_process() -> None:
    store, _ = parked()
    resumed = elsewhere(RESUME, {"snapshot": store.snapshot(), "events": {"editor.approved": APPROVAL}})
    assert resumed["pid"] != os.getpid()
    assert resumed["replayed"] == ["retrieval", "extraction"]
    assert resumed["executed"] == ["approval", "drafting", "deliver"]
    assert resumed["side_effects"] == []
    assert resumed["result"] == DELIVERED


def test_suspend_passes_a_functions_own_except_exception() -> None:
    def broad(run: Any) -> str:
        try:
            return str(run.wait_for_event("approval", "editor.approved"))
        except Exception:
            return "swallowed"

    with pytest.raises(Suspend):
        broad(DurableRunner("run-3", StepStore()))


def test_completed_wait_is_replayed_without_its_event() -> None:
    store = StepStore()
    first = DurableRunner("run", store, events={"go": None})
    again = DurableRunner("run", store)
    assert first.wait_for_event("gate", "go") is None
    assert again.wait_for_event("gate", "go") is None
    assert (first.ledger.executed, again.ledger.replayed) == (["gate"], ["gate"])


# -- 5. the key is what makes it one effect, not the number of runs


def test_fifty_attempts_leave_one_delivery_and_one_write() -> None:
    store, sends = StepStore(), 0
    for _ in range(10):
        run = DurableRunner("run-4", store)
        for _ in range(5):
            before = len(run.ledger.side_effects)
            run.side_effect("email:welcome", key="welcome-user-42")
            sends += len(run.ledger.side_effects) - before
    assert sends == 1
    assert store.writes == 1


def test_memory_runner_has_the_gap_a_crash_between_effect_and_write_sends_again() -> None:
    sent: list[str | None] = []

    class Dying(StepStore):
        def put(self, run_id: str, step_id: str, value: Any) -> None:
            if len(sent) == 1:
                raise OSError("the process died before the write")
            super().put(run_id, step_id, value)

    store = Dying()
    for _ in range(2):
        run = DurableRunner("run", store, tool=lambda call: sent.append(call.idempotency_key))
        if not sent:
            with pytest.raises(OSError, match="died"):
                run.side_effect("email", key="welcome")
        else:
            run.side_effect("email", key="welcome")
    assert sent == ["run:welcome", "run:welcome"]


# -- 6. the store is the unit of durability


def test_run_one_wrote_four_results_and_one_effect_key() -> None:
    store, *_ = failed_then_finished()
    assert store.writes == 5


def test_store_survives_snapshot_and_restore() -> None:
    store, *_ = failed_then_finished()
    restored = StepStore.restore(store.snapshot())
    assert restored.memo == store.memo
    assert restored.writes == 0


def test_snapshot_keeps_runs_and_steps_apart_whatever_their_names_hold() -> None:
    store = StepStore()
    for run, step in (("a::b", "c"), ("a", "b::c"), ("a:", ":b::c")):
        store.put(run, step, f"{run}|{step}")
    assert StepStore.restore(store.snapshot()).memo == store.memo
    assert len(store.memo) == 3


def test_function_that_changes_a_replayed_value_does_not_change_the_store() -> None:
    store = StepStore()

    def grow(run: DurableRunner) -> list[int]:
        found: list[int] = run.step("numbers", lambda: [1])
        found.append(2)
        return found

    assert [grow(DurableRunner("run", store)) for _ in range(3)] == [[1, 2]] * 3
    assert store.memo["run", "numbers"] == [1]


def test_store_refuses_what_would_not_come_back_and_keeps_nothing() -> None:
    store = StepStore()
    with pytest.raises(UnfaithfulValue, match=r"path \$\.loss"):
        store.put("run", "train", {"loss": float("nan")})
    assert (store.memo, store.writes) == ({}, 0)


def test_a_step_id_cannot_pass_for_an_action() -> None:
    run = DurableRunner("run", StepStore())
    run.side_effect("email", key="welcome")
    with pytest.raises(ValueError, match="choose another id"):
        run.step("__effect__welcome", lambda: "not the e-mail")


# -- the same functions on PostgreSQL


def test_research_agent_fails_once_and_costs_five_on_postgresql_too(engine: Engine) -> None:
    failing = {"drafting": 1}

    class Model(StandInModel):
        def ask(self, name: str, prompt: str, answer: Any) -> Any:
            if failing.pop(name, 0):
                raise RuntimeError(f"{name} timed out")
            return super().ask(name, prompt, answer)

    engine.workflows["research_agent"] = research_agent_with(Model())
    runs = observed(engine, "research_agent")
    workflow_id = engine.create_workflow(None, name="research_agent")["id"]
    assert settle(engine, workflow_id)["result"] == DELIVERED
    _, first, second, _ = failed_then_finished()
    assert [run.ledger for run in runs] == [first, second.ledger]
    assert sum(run.ledger.cost for run in runs) == 5
    assert [effect["action"] for effect in effects(engine)] == [EMAIL]
    assert [step["step_id"] for step in steps(engine, workflow_id)] == [
        "retrieval", "extraction", "extraction-complete", "drafting", "deliver",
    ]  # fmt: skip


RESUME_ON_POSTGRESQL = """
import json, os, sys
from agentflow import open_engine
engine = open_engine(**json.load(sys.stdin))
print(json.dumps({"pid": os.getpid(), "completed": engine.run_until_idle("elsewhere")}))
"""


def test_parked_workflow_holds_no_worker_and_is_resumed_by_another_process(engine: Engine) -> None:
    workflow_id = engine.create_workflow({"with_wait": True}, name="research_agent")["id"]
    assert engine.worker("here").run_once() == "waiting"
    assert (workflow(engine, workflow_id)["waiting_for"], workflow(engine, workflow_id)["lease_owner"]) == (
        "editor.approved",
        None,
    )
    engine.deliver_event(workflow_id, "editor.approved", APPROVAL)
    other = elsewhere(RESUME_ON_POSTGRESQL, address(engine))
    assert other["pid"] != os.getpid()
    assert other["completed"] == 1
    assert workflow(engine, workflow_id)["result"] == DELIVERED
    assert [(step["step_id"], step["worker"]) for step in steps(engine, workflow_id)] == [
        ("retrieval", "here"), ("extraction", "here"), ("extraction-complete", "here"),
        ("approval", "elsewhere"), ("drafting", "elsewhere"), ("deliver", "elsewhere"),
    ]  # fmt: skip
    assert len(effects(engine)) == 1


@pytest.mark.parametrize(
    ("name", "function", "given"),
    [
        ("support_agent", support_agent, "My password no longer works"),
        ("support_agent", support_agent, "Where is my invoice?"),
        ("research_agent", research_agent, None),
        ("research_agent", research_agent, {"nonce": 3}),
        ("research_agent", research_agent, {"with_wait": True}),
    ],
)
def test_same_function_gives_the_same_result_and_ledger_in_memory_and_on_postgresql(
    engine: Engine, name: str, function: Any, given: Any
) -> None:
    events = {"editor.approved": APPROVAL}
    memory = DurableRunner("mem", StepStore(), events, tool=engine.world)
    result = function(memory, given)
    runs = observed(engine, name)
    workflow_id = engine.create_workflow(given, name=name)["id"]
    engine.deliver_event(workflow_id, *events.popitem())
    assert settle(engine, workflow_id)["result"] == result
    assert [run.ledger for run in runs] == [memory.ledger]
    assert [effect["result"] for effect in effects(engine)] == [effects(engine)[0]["result"]] * 2


def test_two_research_runs_send_two_emails(engine: Engine) -> None:
    ids = engine.create_workflows([None, None], name="research_agent")
    assert engine.run_until_idle("worker") == 2
    assert [(e["workflow_id"], e["action"], e["attempts"]) for e in effects(engine)] == [(i, EMAIL, 1) for i in ids]
    assert engine.reliability_metrics()["duplicate_business_effects"] == 0


def test_support_agent_shows_the_tutorials_states_in_order(engine: Engine) -> None:
    workflow_id = engine.create_workflow("login fails")["id"]
    seen = [engine.get_workflow(workflow_id)["state"]]  # type: ignore[index]
    claim = engine.claim_workflow("worker")
    while claim and workflow(engine, workflow_id)["status"] == "ready":
        seen.append(engine.advance_one_step(claim))
    assert seen == ["PENDING", "CLASSIFIED", "PLANNED", "ACTION_PENDING", "ACTION_ACKNOWLEDGED", "COMPLETED"]
