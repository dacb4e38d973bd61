"""The stand-in model, the simulated world and its faults, and whether the evidence shows what they did."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentflow import CrashInjected, DurableRunner, Engine, NaiveRunner, StepFailed, StepStore, ToolRefused, evidence
from agentflow.agents import research_agent_with, support_agent_with
from agentflow.errors import BadName
from agentflow.model import ToolCall
from agentflow.tools import StandInModel, mock_llm_classify, mock_llm_plan
from tests.conftest import rows
from tests.support.runs import crash, effects, settle, start, workflow

CALL = ToolCall("w:resolve-account", "resolve-account", {"n": 1}, "w")
ANSWER = {"account_unlocked": True, "resolution_code": "SIM-200"}


def attempts(engine: Engine) -> list[dict[str, Any]]:
    return rows(engine, "SELECT * FROM {w}.tool_attempts ORDER BY attempt_id")


# -- the stand-in model


@pytest.mark.parametrize(
    ("request_text", "category"),
    [
        ("My PASSWORD is gone", "account_access"),
        ("cannot Login", "account_access"),
        ("pass word", "general_support"),
        ("", "general_support"),
    ],
)
def test_model_answers_by_the_tutorials_rule(request_text: str, category: str) -> None:
    model = StandInModel()
    assert (
        model.classify(request_text) == mock_llm_classify(request_text) == {"category": category, "priority": "normal"}
    )


def test_model_plans_the_tutorials_three_steps_for_each_category() -> None:
    model = StandInModel()
    plans = [model.plan({"category": category})["steps"] for category in ("account_access", "general_support")]
    assert plans == [mock_llm_plan({"category": c})["steps"] for c in ("account_access", "general_support")]
    assert [len(plan) for plan in plans] == [3, 3]
    assert plans[0] != plans[1]


def test_model_fails_the_calls_it_is_told_to_as_often_as_it_is_told_and_counts_them() -> None:
    model = StandInModel(fail_on=("plan",), failures=2)
    model.classify("x")
    for _ in range(2):
        with pytest.raises(TimeoutError, match="plan timed out"):
            model.plan({"category": "account_access"})
    assert model.plan({"category": "account_access"})["steps"]
    assert model.calls == 4


def test_model_takes_as_long_as_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("agentflow.tools.time.sleep", slept.append)
    model = StandInModel(seconds=2.5)
    model.classify("x")
    model.ask("drafting", "prompt", "answer")
    StandInModel().classify("x")
    assert slept == [2.5, 2.5]


def test_model_that_varies_answers_differently_each_time_and_the_same_for_one_seed() -> None:
    def drafts(**options: Any) -> list[str]:
        model = StandInModel(**options)
        return [model.ask("drafting", "prompt", "draft") for _ in range(5)]

    assert drafts() == ["draft"] * 5
    assert len(set(drafts(varying=True, seed=1))) == 5
    assert drafts(varying=True, seed=1) == drafts(varying=True, seed=1)
    assert drafts(varying=True, seed=1) != drafts(varying=True, seed=2)


def test_model_charges_one_for_a_call_and_one_for_each_hundred_characters() -> None:
    model = StandInModel()
    model.ask("a", "", "")
    assert (model.calls, model.cost) == (1, 1)
    model.ask("a", "x" * 150, "y" * 50)
    assert (model.calls, model.cost) == (2, 4)


def test_recovery_costs_only_the_calls_that_were_not_recorded(engine: Engine) -> None:
    model = StandInModel()
    engine.workflows["research_agent"] = research_agent_with(model)
    workflow_id = engine.create_workflow(None, name="research_agent")["id"]
    crash(engine, "checkpoint", "before", "deliver")
    assert settle(engine, workflow_id)["status"] == "completed"
    assert model.calls == 5  # four steps, one of them twice
    naive = StandInModel()
    for _ in range(2):
        research_agent_with(naive)(NaiveRunner(), None)
    assert naive.calls == 8
    assert naive.cost > model.cost


def test_model_that_fails_once_costs_an_attempt_and_not_the_workflow(engine: Engine) -> None:
    model = StandInModel(fail_on=("plan",))
    engine.workflows["support_agent"] = support_agent_with(model)
    workflow_id = engine.create_workflow("login")["id"]
    assert settle(engine, workflow_id)["status"] == "completed"
    assert model.calls == 3
    failed = rows(engine, "SELECT subject FROM {s}.history WHERE event = 'attempt_failed'")
    assert failed == [{"subject": "plan"}]


def test_varying_answer_is_recorded_once_and_replayed(engine: Engine) -> None:
    engine.workflows["research_agent"] = research_agent_with(StandInModel(varying=True))
    workflow_id = engine.create_workflow(None, name="research_agent")["id"]
    crash(engine, "checkpoint", "after", "drafting")
    (draft,) = rows(engine, "SELECT value FROM {s}.steps WHERE step_id = 'drafting'")
    result = settle(engine, workflow_id)["result"]
    assert result.startswith(f"delivered:{draft['value']}#")


# -- the world


def test_second_call_with_a_key_gets_the_first_result_and_has_no_effect(engine: Engine) -> None:
    assert engine.world(CALL) == ANSWER
    engine.world.answers = {"resolve-account": "another answer"}
    assert engine.world(CALL) == ANSWER
    (effect,) = effects(engine)
    assert [effect[name] for name in ("idempotency_key", "workflow_id", "action", "arguments", "result")] == [
        "w:resolve-account", "w", "resolve-account", {"n": 1}, ANSWER,
    ]  # fmt: skip
    assert effect["attempts"] == 2
    assert [(a["attempt"], a["outcome"], a["effect_id"]) for a in attempts(engine)] == [
        (1, "effect", effect["effect_id"]), (2, "repeated", effect["effect_id"]),
    ]  # fmt: skip


def test_concurrent_calls_with_one_key_leave_one_effect_and_all_get_its_result(engine: Engine) -> None:
    with ThreadPoolExecutor(max_workers=8) as executor:
        results = list(executor.map(engine.world, [CALL] * 40))
    assert results == [ANSWER] * 40
    assert [effect["attempts"] for effect in effects(engine)] == [40]
    assert sorted(a["attempt"] for a in attempts(engine)) == list(range(1, 41))
    assert [a["outcome"] for a in attempts(engine)].count("effect") == 1


def test_call_without_a_key_has_an_effect_each_time(engine: Engine) -> None:
    for _ in range(3):
        engine.world(replace(CALL, idempotency_key=None))
    assert [(effect["idempotency_key"], effect["attempts"]) for effect in effects(engine)] == [(None, 1)] * 3


def test_action_without_an_answer_of_its_own_is_done(engine: Engine) -> None:
    assert engine.world(ToolCall("w:x", "water the plants", None, "w")) == {"done": "water the plants"}


def test_tutorials_name_calls_the_world_for_the_workflow_in_the_key(engine: Engine) -> None:
    assert (
        engine.execute_simulated_tool("a:b:resolve-account")
        == engine.execute_simulated_tool("a:b:resolve-account")
        == ANSWER
    )
    assert [(effect["workflow_id"], effect["attempts"]) for effect in effects(engine)] == [("a:b", 2)]


FAULTS: dict[Any, tuple[type[BaseException] | None, list[int], list[str]]] = {
    "refuse": (ToolRefused, [], ["refused"]),
    "lose_request": (TimeoutError, [], []),
    "lose_reply": (TimeoutError, [1], ["effect"]),
    "forget": (None, [1], ["effect"]),
    None: (None, [1], ["effect"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_leaves_in_the_world_what_it_says_and_tells_the_caller_no_more(engine: Engine, fault: Any) -> None:
    raises, left, outcomes = FAULTS[fault]
    engine.world.fault = lambda call: fault
    if raises:
        with pytest.raises(raises):
            engine.world(CALL)
    else:
        assert engine.world(CALL) == ANSWER
    assert [effect["attempts"] for effect in effects(engine)] == left
    assert [attempt["outcome"] for attempt in attempts(engine)] == outcomes


def test_two_lost_answers_look_alike_to_the_caller(engine: Engine) -> None:
    def said(fault: Any) -> type[BaseException]:
        engine.world.fault = lambda call: fault
        with pytest.raises(TimeoutError) as error:
            engine.world(CALL)
        return error.type

    assert said("lose_request") is said("lose_reply")


def test_world_forgets_one_key_or_all_and_says_how_many(engine: Engine) -> None:
    for name in "abc":
        engine.world(replace(CALL, idempotency_key=name))
    assert engine.world.look_up("a") == (True, ANSWER)
    assert engine.world.forget_keys("a") == 1
    assert engine.world.look_up("a") == (False, None)
    assert engine.world.look_up("b") == (True, ANSWER)
    assert engine.world.forget_keys() == 2
    assert engine.world.forget_keys() == 0
    assert len(effects(engine)) == 3


LONG = "k" * 3_000
DOORS: dict[str, tuple[Callable[[Engine], Any], str]] = {
    "key": (lambda e: e.execute_simulated_tool(LONG), "Idempotency key must have 1 to 801 characters, but has 3,000"),
    "no text": (lambda e: e.execute_simulated_tool(7), "Idempotency key must be text, not int"),  # type: ignore[arg-type]
    "no key": (lambda e: e.execute_simulated_tool(""), "Idempotency key must have 1 to 801 characters, but has 0"),
    "NUL": (lambda e: e.execute_simulated_tool("a\0b"), "Idempotency key 'a.*NUL"),
    "action": (lambda e: e.execute_simulated_tool("w:k", LONG), "Action must have 1 to 200 characters, but has 3,000"),
    "workflow": (lambda e: e.execute_simulated_tool("w" * 201 + ":k"), "Workflow id must have 1 to 200 characters"),
    "call": (lambda e: e.world(ToolCall(LONG, "pay", None, "w")), "Idempotency key must have 1 to 801"),
    "look up": (lambda e: e.world.look_up(LONG), "Idempotency key must have 1 to 801"),
    "forget": (lambda e: e.world.forget_keys(LONG), "Idempotency key must have 1 to 801"),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_of_the_world_names_the_limit_of_what_it_takes(engine: Engine, door: str) -> None:
    ask, said = DOORS[door]
    with pytest.raises(BadName, match=said):
        ask(engine)
    assert rows(engine, "SELECT * FROM {w}.tool_attempts") == []


def test_the_longest_key_that_a_workflow_can_make_passes_every_door(engine: Engine) -> None:
    name, key = "\U0001f600" * 200, ":" * 200
    engine.workflows["tested"] = lambda run, _: run.side_effect("pay" * 66, key=key)
    engine.create_workflow(None, name="tested", workflow_id=name)
    assert engine.run_until_idle("w") == 1
    ((effect,),) = [rows(engine, "SELECT idempotency_key FROM {w}.tool_ledger")]
    assert len(effect["idempotency_key"]) == 801
    assert engine.world.look_up(effect["idempotency_key"])[0]
    engine.execute_simulated_tool(effect["idempotency_key"])
    assert rows(engine, "SELECT attempts FROM {w}.tool_ledger") == [{"attempts": 2}]


def test_unfaithful_arguments_are_refused_before_the_world_acts(engine: Engine) -> None:
    with pytest.raises(TypeError, match=r"path \$\.n"):
        engine.world(replace(CALL, arguments={"n": math.nan}))
    assert (effects(engine), attempts(engine)) == ([], [])


# -- what the evidence says of it


def figures(engine: Engine) -> tuple[int, int, int]:
    """Attempts, effects, duplicates."""
    found = engine.reliability_metrics()
    return found["tool_execution_attempts"], found["business_effects"], found["duplicate_business_effects"]


def test_recovered_gap_is_two_attempts_one_effect_and_no_duplicate(engine: Engine) -> None:
    workflow_id = engine.create_workflow("login")["id"]
    crash(engine, "tool")
    assert settle(engine, workflow_id)["status"] == "completed"
    assert figures(engine) == (2, 1, 0)


def test_forgotten_key_doubles_the_effect_and_the_report_shows_it(engine: Engine) -> None:
    workflow_id = engine.create_workflow("login")["id"]
    crash(engine, "tool")
    engine.world.forget_keys()
    assert settle(engine, workflow_id)["status"] == "completed"
    assert [(effect["idempotency_key"], effect["remembered"]) for effect in effects(engine)] == [
        (f"{workflow_id}:resolve-account", False), (f"{workflow_id}:resolve-account", True),
    ]  # fmt: skip
    assert figures(engine) == (2, 2, 1)


def new_key(engine: Engine) -> Callable[[ToolCall], Any]:
    """A tool behind an engine that makes up a new key for each call."""
    return lambda call: engine.world(replace(call, idempotency_key=uuid.uuid4().hex))


def no_key(engine: Engine) -> Callable[[ToolCall], Any]:
    """A tool behind an engine that sends no key."""
    return lambda call: engine.world(replace(call, idempotency_key=None))


def in_the_ledger(engine: Engine, tool: Any) -> Any:
    """The tool, which says that the world's ledger has all that it does."""
    tool.ledger = engine.world.ledger
    return tool


@pytest.mark.parametrize("broken", [new_key, no_key])
def test_second_effect_under_a_key_made_up_anew_or_none_is_found(engine: Engine, broken: Any) -> None:
    engine.tool = in_the_ledger(engine, broken(engine))
    lost, fine = engine.create_workflows(["login"] * 2)
    crash(engine, "tool")
    assert [settle(engine, i)["status"] for i in (lost, fine)] == ["completed"] * 2
    assert len({effect["idempotency_key"] for effect in effects(engine)}) == (3 if broken is new_key else 1)
    assert figures(engine) == (3, 3, 1)


def test_two_planned_actions_of_one_name_are_no_duplicate(engine: Engine) -> None:
    workflow_id = start(engine, lambda run, _: [run.side_effect("pay", key=key) for key in ("k1", "k2")])
    assert settle(engine, workflow_id)["status"] == "completed"
    assert figures(engine) == (2, 2, 0)


def test_doubled_effect_is_found_although_another_action_of_its_name_has_none_yet(engine: Engine) -> None:
    workflow_id = start(engine, lambda run, _: [run.side_effect("pay", key=key) for key in ("k1", "k2")])
    crash(engine, "tool", "after", "k1")
    engine.world.forget_keys()
    crash(engine, "tool", "before", "k2")
    assert workflow(engine, workflow_id)["checkpoints"] == 1
    assert figures(engine) == (2, 2, 1)


def test_doubled_effect_is_found_although_another_action_of_its_name_was_refused(engine: Engine) -> None:
    def careful(run: Any, _: Any) -> None:
        try:
            run.side_effect("pay", key="k1", tool=in_the_ledger(engine, refuses))
        except Exception:
            run.side_effect("pay", key="k2", tool=in_the_ledger(engine, new_key(engine)))

    def refuses(call: ToolCall) -> Any:
        raise ToolRefused("no")

    workflow_id = start(engine, careful)
    crash(engine, "tool", "after", "k2")
    assert settle(engine, workflow_id)["status"] == "completed"
    assert figures(engine) == (2, 2, 1)


def test_a_refusal_reaches_the_function_of_a_naive_runner_as_it_does_in_the_engine(engine: Engine) -> None:
    engine.world.fault = lambda call: "refuse"
    with pytest.raises(StepFailed, match="step 'k' failed for good: ToolRefused: Action 'email' was refused"):
        NaiveRunner(tool=engine.world).side_effect("email", key="k")


def test_naive_retry_doubles_the_effect_and_a_durable_one_does_not(engine: Engine) -> None:
    for _ in range(2):
        NaiveRunner(tool=engine.world).side_effect("email", key="k")
    assert figures(engine) == (2, 2, 1)
    store = StepStore()
    for _ in range(2):
        DurableRunner("run", store, tool=engine.world).side_effect("letter", key="k")
    assert figures(engine) == (3, 3, 1)


def test_figures_of_an_empty_laboratory_are_zero_and_of_the_right_names(engine: Engine) -> None:
    assert engine.reliability_metrics() == {
        "workflow_completion_rate": 0.0, "workflows_total": 0, "workflows_completed": 0, "tool_execution_attempts": 0,
        "business_effects": 0, "duplicate_business_effects": 0, "missing_business_effects": 0, "unacknowledged_effects": 0,
        "effects_not_observed": 0, "recovery_latency_ms": None, "recovery_latency_p50_ms": None,
        "recovery_latency_p95_ms": None, "recovery_latency_max_ms": None, "ready_unknown_to_workers": 0,
        "ready_due_later": 0, "problems": [],
        "semantics": "at-least-once execution, exactly-once business effect per idempotency key",
    }  # fmt: skip


def test_report_holds_the_figures_of_the_rows(engine: Engine, tmp_path: Path) -> None:
    engine.create_workflows(["login", {"not": "text"}, "hello"])
    engine.run_until_idle("worker")
    where = tmp_path / "deep" / "report.json"
    figures_told = engine.write_reliability_report(where)
    assert json.loads(where.read_text()) == figures_told == engine.reliability_metrics()
    assert figures_told["workflow_completion_rate"] == pytest.approx(2 / 3)
    assert (figures_told["workflows_total"], figures_told["workflows_completed"]) == (3, 2)


# -- recoveries


def crash_after_tool(engine: Engine, workflow_id: str, worker: str) -> None:
    """A worker crashed in the acknowledgment gap, and the laboratory noted when."""
    with pytest.raises(CrashInjected):
        engine.run_once(worker, crash_after_tool_commit=True)
    engine.expire_lease(workflow_id)


def test_split_of_a_recovery_adds_up_to_its_span(engine: Engine) -> None:
    workflow_id = engine.create_workflow("login")["id"]
    crash_after_tool(engine, workflow_id, "lost")
    assert engine.run_once("rescuer")
    (found,) = evidence.recoveries(engine.database)
    assert (found["workflow_id"], found["worker"], found["held_by"], found["fence_token"]) == (
        workflow_id,
        "rescuer",
        "lost",
        2,
    )
    assert found["replayed"] == 2
    parts = [found[name] for name in ("detect_ms", "claim_ms", "replay_ms", "re_execute_ms")]
    assert all(part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(found["span_ms"], abs=0.01)
    assert found["claim_ms"] + found["recovery_ms"] + found["detect_ms"] == pytest.approx(found["span_ms"], abs=0.01)
    latency = engine.reliability_metrics()["recovery_latency_ms"]
    assert found["recovery_ms"] - 0.01 <= latency <= found["recovery_ms"] + found["claim_ms"] + 0.01


def test_each_take_over_of_one_workflow_is_a_recovery_of_its_own(engine: Engine) -> None:
    workflow_id = engine.create_workflow("login")["id"]
    for worker in ("first", "second"):
        crash_after_tool(engine, workflow_id, worker)
    assert engine.run_once("third")
    found = evidence.recoveries(engine.database)
    assert [(f["held_by"], f["worker"], f["fence_token"]) for f in found] == [
        ("first", "second", 2),
        ("second", "third", 3),
    ]
    assert found[0]["crashed_at"] < found[0]["claimed_at"] < found[1]["crashed_at"] < found[1]["claimed_at"]
    assert found[0]["span_ms"] > found[1]["span_ms"] > 0
    assert (found[0]["replay_ms"], found[0]["re_execute_ms"]) == (None, None)  # it was lost before it wrote anything
    assert sum(found[1][name] for name in ("detect_ms", "claim_ms", "replay_ms", "re_execute_ms")) == pytest.approx(
        found[1]["span_ms"], abs=0.01
    )


def test_recovery_whose_crash_nobody_saw_has_no_span_and_one_that_is_not_over_has_no_end(engine: Engine) -> None:
    engine.create_workflow("login")
    crash(engine, "tool")
    claim = engine.claim_workflow("rescuer")
    assert claim is not None
    (found,) = evidence.recoveries(engine.database)
    assert (found["crashed_at"], found["detect_ms"], found["span_ms"]) == (None, None, None)
    assert (found["completed_at"], found["recovery_ms"]) == (None, None)
    assert found["claim_ms"] >= 0


def test_undisturbed_workflows_and_releases_are_no_recoveries(engine: Engine) -> None:
    engine.create_workflows(["login"] * 3)
    claim = engine.claim_workflow("worker")
    assert claim is not None
    engine.release_lease(claim)
    assert engine.run_until_idle("other") == 3
    assert evidence.recoveries(engine.database) == []
    assert engine.reliability_metrics()["recovery_latency_ms"] is None
