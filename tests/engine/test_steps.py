"""Steps and tools that fail, exit, lie or are misused: what is recorded, who goes on, and what a replay says."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from agentflow import DurableRunner, Engine, LostLease, Policy, StepFailed, StepStore, Suspend, ToolRefused
from agentflow.errors import (
    AlreadyFinished,
    CrashInjected,
    DatabaseAway,
    Postponed,
    StepMisuse,
    describe_failure,
    printable,
)
from agentflow.model import Boundary, ToolCall
from tests.conftest import rows
from tests.support.runs import address, counts, crash, deploy, effects, elsewhere, settle, start, steps, turn, workflow


class Needs(Exception):
    """Cannot be built again from its arguments."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


class Locked(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Exits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Bare(BaseException):
    pass


def raiser(error: BaseException | type[BaseException]) -> Callable[[], Any]:
    def raises() -> Any:
        raise error

    return raises


def history(engine: Engine, workflow_id: str, event: str) -> list[dict[str, Any]]:
    return rows(
        engine, "SELECT * FROM {s}.history WHERE workflow_id = :i AND event = :e ORDER BY n", i=workflow_id, e=event
    )


# -- a step raises


def test_failing_step_is_tried_as_often_as_the_policy_says_then_its_failure_is_its_result(engine: Engine) -> None:
    tried: list[str] = []
    workflow_id = start(engine, lambda run, _: run.step("flaky", lambda: tried.append("x") or 1 / 0))
    row = settle(engine, workflow_id)
    assert (row["status"], row["state"], len(tried)) == ("failed", "FAILED", engine.policy.max_attempts)
    assert len(history(engine, workflow_id, "attempt_failed")) == engine.policy.max_attempts - 1
    (step,) = steps(engine, workflow_id)
    assert (step["value"], step["error"]["type"], step["error"]["message"]) == (
        None,
        "ZeroDivisionError",
        "division by zero",
    )
    assert "1 / 0" in step["error"]["traceback"]
    assert row["error"]["type"] == "StepFailed"
    assert "flaky" in row["error"]["message"]


def test_step_that_succeeds_at_last_leaves_no_failure(engine: Engine) -> None:
    left = [1, 1, 1]
    workflow_id = start(engine, lambda run, _: run.step("flaky", lambda: 1 / 0 if left and left.pop() else "fine"))
    row = settle(engine, workflow_id)
    assert (row["status"], row["result"], row["error"], row["attempts"]) == ("completed", "fine", None, 0)
    assert [step["error"] for step in steps(engine, workflow_id)] == [None]


def test_failed_attempt_gives_the_lease_back_and_is_due_later(engine: Engine) -> None:
    engine.policy = Policy(first_delay=3600)
    workflow_id = start(engine, lambda run, _: run.step("flaky", raiser(ValueError("no"))))
    assert turn(engine) == "postponed"
    row = workflow(engine, workflow_id)
    assert (row["status"], row["lease_owner"], row["attempts"], row["later"]) == ("ready", None, 1, True)
    assert row["error"]["message"] == "no"
    assert turn(engine) is None


def test_backoff_doubles_is_bounded_and_has_jitter() -> None:
    policy = Policy(first_delay=1, max_delay=60)
    for tries, least in ((1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (1_000, 60), (10**9, 60)):
        delays = [policy.delay(tries) for _ in range(50)]
        assert all(least <= delay <= least * 1.25 for delay in delays)
        assert len(set(delays)) > 1


def test_failure_that_the_function_catches_is_raised_again_by_a_replay(engine: Engine) -> None:
    engine.policy = Policy(max_attempts=2)
    tried, caught = [], []

    def careful(run: Any, _: Any) -> str:
        try:
            run.step("first", lambda: tried.append("x") or 1 / 0)
        except StepFailed as failed:
            caught.append((failed.step, failed.error["type"], str(failed)))
        return str(run.step("second", lambda: "went on"))

    workflow_id = start(engine, careful)
    assert turn(engine) == "postponed"
    engine.expire_lease(workflow_id)
    crash(engine, "checkpoint", "before", "second")
    row = settle(engine, workflow_id)
    assert (row["status"], row["result"], len(tried)) == ("completed", "went on", 2)
    assert len(caught) == 2
    assert caught[0] == caught[1]
    assert [step["error"] is None for step in steps(engine, workflow_id)] == [False, True]


def test_attempts_of_one_step_are_not_charged_to_the_next(engine: Engine) -> None:
    left = {"a": 3, "b": 3}

    def fails(name: str) -> str:
        left[name] -= 1
        if left[name] >= 0:
            raise OSError(name)
        return name

    workflow_id = start(engine, lambda run, _: [run.step(name, lambda name=name: fails(name)) for name in "ab"])
    assert settle(engine, workflow_id)["result"] == ["a", "b"]


def test_tries_go_on_from_the_stored_count_after_a_crash(engine: Engine) -> None:
    tried: list[str] = []
    workflow_id = start(engine, lambda run, _: run.step("flaky", lambda: tried.append("x") or 1 / 0))
    for lost in (1, 2):
        assert turn(engine) == "postponed"
        engine.expire_lease(workflow_id)
        crash(engine, "postpone", "before")
        assert workflow(engine, workflow_id)["attempts"] == lost
    assert settle(engine, workflow_id)["status"] == "failed"
    assert len(tried) == engine.policy.max_attempts + 2
    assert len(history(engine, workflow_id, "attempt_failed")) == engine.policy.max_attempts - 1


KILLED_WHILE_BACKING_OFF = """
import json, os, signal, sys
from agentflow import open_engine
engine = open_engine(**json.load(sys.stdin))
engine.workflows["tested"] = lambda run, _: run.step("flaky", lambda: 1 / 0)
assert engine.worker("killed").run_once() == "postponed"
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_tries_go_on_from_the_stored_count_after_sigkill_during_backoff(engine: Engine) -> None:
    tried: list[str] = []
    workflow_id = start(engine, lambda run, _: run.step("flaky", lambda: tried.append("x") or 1 / 0))
    for failed in (1, 2):
        elsewhere(KILLED_WHILE_BACKING_OFF, address(engine), returncode=-signal.SIGKILL)
        row = workflow(engine, workflow_id)
        assert (row["attempts"], row["lease_owner"], row["crashes"]) == (failed, None, 0)
        if row["later"]:
            engine.expire_lease(workflow_id)
    assert settle(engine, workflow_id)["status"] == "failed"
    assert len(tried) == engine.policy.max_attempts - 2


# -- what a step may raise

ODD: dict[str, BaseException | type[BaseException]] = {
    "SystemExit": SystemExit(0),
    "GeneratorExit": GeneratorExit(),
    "BaseException": BaseException("bare"),
    "own BaseException": Bare("bare"),
    "MemoryError": MemoryError(),
    "RecursionError": RecursionError("deep"),
    "StopIteration": StopIteration(1),
    "CancelledError": asyncio.CancelledError(),
    "keyword arguments": Needs(code=7),
    "lock": Locked(),
    "speechless": Speechless(),
    "exits when printed": Exits(),
    "NUL": ValueError("a\0b"),
    "surrogate": ValueError("\ud800"),
    "group": ExceptionGroup("several", [ValueError("a"), KeyError("b")]),
    "long": ValueError("x" * 100_000),
    "SystemExit class": SystemExit,
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("where", ["step", "function", "tool"])
def test_whatever_is_raised_is_kept_as_text_and_no_neighbour_is_touched(engine: Engine, name: str, where: str) -> None:
    error, healed = ODD[name], []

    def tool(call: ToolCall) -> Any:
        if not healed:
            healed.append(True)
            raise error
        return engine.world(call)

    def odd(run: Any, _: Any) -> Any:
        if where == "function":
            raise error
        return run.step("odd", raiser(error)) if where == "step" else run.side_effect("pay", key="k", tool=tool)

    workflow_id = start(engine, odd)
    neighbour = engine.create_workflow("hello")["id"]
    assert engine.worker("worker").run_until_idle() == 1
    assert workflow(engine, neighbour)["status"] == "completed"
    before = workflow(engine, workflow_id)
    assert before["lease_owner"] is None
    type_name = error.__name__ if isinstance(error, type) else type(error).__name__
    assert before["error"]["type"] == type_name
    row = settle(engine, workflow_id)
    assert row["status"] == ("completed" if where == "tool" else "failed")
    assert engine.get_workflow(workflow_id) is not None
    if where == "step":
        assert [step["error"]["type"] for step in steps(engine, workflow_id)] == [type_name]


def test_keyboard_interrupt_that_code_raises_is_a_failure_in_a_worker_thread(engine: Engine) -> None:
    workflow_id = start(engine, lambda run, _: run.step("odd", raiser(KeyboardInterrupt())))
    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(turn(engine)))
    thread.start()
    thread.join(30)
    assert outcomes == ["postponed"]
    assert workflow(engine, workflow_id)["error"]["type"] == "KeyboardInterrupt"


@pytest.mark.parametrize("where", ["step", "function", "tool"])
def test_ctrl_c_stops_the_call_and_leaves_the_workflow_free(engine: Engine, where: str) -> None:
    interrupt = raiser(KeyboardInterrupt())

    def pressed(run: Any, _: Any) -> Any:
        if where == "function":
            interrupt()
        return (
            run.step("s", interrupt)
            if where == "step"
            else run.side_effect("a", key="k", tool=lambda call: interrupt())
        )

    workflow_id = start(engine, pressed)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        turn(engine)
    row = workflow(engine, workflow_id)
    assert (row["status"], row["lease_owner"], row["attempts"], steps(engine, workflow_id)) == ("ready", None, 0, [])
    deploy(engine, lambda run, _: run.side_effect("a", key="k") if where == "tool" else "done")
    assert settle(engine, workflow_id)["status"] == "completed"


def test_crash_inside_a_step_is_a_crash_and_no_failure_of_the_step(engine: Engine) -> None:
    workflow_id = start(engine, lambda run, _: run.step("s", raiser(CrashInjected("in the middle"))))
    with pytest.raises(CrashInjected):
        turn(engine, "crasher")
    row = workflow(engine, workflow_id)
    assert (row["lease_owner"], row["attempts"], steps(engine, workflow_id)) == ("crasher", 0, [])


def test_allocating_a_terabyte_is_an_ordinary_failure(engine: Engine) -> None:
    workflow_id = start(engine, lambda run, _: run.step("huge", lambda: len(bytearray(10**15))))
    assert settle(engine, workflow_id)["error"]["type"] == "StepFailed"
    assert steps(engine, workflow_id)[0]["error"]["type"] == "MemoryError"


def test_description_of_a_failure_is_text_that_postgresql_holds_whatever_the_error_is() -> None:
    for error in ODD.values():
        told = describe_failure(error() if isinstance(error, type) else error)
        assert set(told) == {"type", "message", "traceback"}
        assert all(type(text) is str and "\0" not in text and text.encode() is not None for text in told.values())
        assert len(told["message"]) <= 4_000
    assert printable("a\0b\ud800é") == "a\\u0000b\\ud800é"


# -- what is no step


async def coroutine() -> int:
    return 1


async def stream() -> Any:
    yield 1


def generator() -> Any:
    yield 1


class AsyncCall:
    async def __call__(self) -> int:
        return 1


@pytest.mark.parametrize(
    "fn", [coroutine, stream, generator, lambda: coroutine(), lambda: generator(), AsyncCall(), lambda: stream()]
)
def test_step_that_is_async_or_a_generator_is_refused_in_a_sentence(engine: Engine, fn: Any) -> None:
    workflow_id = start(engine, lambda run, _: run.step("odd", fn))
    assert turn(engine) == "failed"
    (step,) = steps(engine, workflow_id)
    assert step["value"] is None
    assert step["error"]["type"] in ("StepMisuse", "UnfaithfulValue")
    assert "plain" in step["error"]["message"]


@pytest.mark.parametrize("fn", [coroutine, generator])
def test_worker_refuses_a_workflow_that_is_async_or_a_generator(engine: Engine, fn: Any) -> None:
    deploy(engine, fn)
    with pytest.raises(StepMisuse, match="pass a plain function"):
        engine.worker("worker")


INSIDE: dict[str, Callable[[Any], Any]] = {
    "step": lambda run: run.step("inner", lambda: 1),
    "side_effect": lambda run: run.side_effect("pay", key="inner"),
    "wait": lambda run: run.wait_for_event("inner", "go"),
}


@pytest.mark.parametrize("kind", INSIDE)
def test_call_inside_a_step_is_refused_and_nothing_of_it_is_recorded(engine: Engine, kind: str) -> None:
    workflow_id = start(engine, lambda run, _: run.step("outer", lambda: INSIDE[kind](run)))
    assert turn(engine) == "failed"
    assert [(step["step_id"], step["error"]["type"]) for step in steps(engine, workflow_id)] == [
        ("outer", "StepMisuse")
    ]
    assert effects(engine) == []


@pytest.mark.parametrize("kind", INSIDE)
def test_call_from_another_thread_is_refused(engine: Engine, kind: str) -> None:
    refused: list[BaseException] = []

    def threaded(run: Any, _: Any) -> str:
        def call() -> None:
            try:
                INSIDE[kind](run)
            except BaseException as error:
                refused.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join(30)
        return "done"

    workflow_id = start(engine, threaded)
    assert settle(engine, workflow_id)["result"] == "done"
    assert [type(error) for error in refused] == [StepMisuse]
    assert "another thread" in str(refused[0])
    assert (steps(engine, workflow_id), effects(engine)) == ([], [])


# -- the tool refuses; its answer is lost


def test_refusal_is_the_actions_recorded_result_and_a_replay_raises_it_again(engine: Engine) -> None:
    engine.world.fault = lambda call: "refuse"
    caught: list[str] = []

    def careful(run: Any, _: Any) -> str:
        for _ in range(2):  # the same action, so the same refusal
            try:
                run.side_effect("pay", key="k")
            except StepFailed as failed:
                caught.append(failed.error["type"])
        return str(run.step("last", lambda: "went on"))

    workflow_id = start(engine, careful)
    crash(engine, "checkpoint", "before", "last")
    assert settle(engine, workflow_id)["result"] == "went on"
    assert caught == ["ToolRefused"] * 4
    (action,) = rows(engine, "SELECT * FROM {s}.action_intents")
    assert (action["status"], action["tool_result"], action["error"]["type"]) == ("REFUSED", None, "ToolRefused")
    attempts = rows(engine, "SELECT outcome, effect_id FROM {w}.tool_attempts")
    assert attempts == [{"outcome": "refused", "effect_id": None}]


def test_refusal_that_nobody_catches_fails_the_workflow(engine: Engine) -> None:
    engine.world.fault = lambda call: "refuse"
    workflow_id = engine.create_workflow("login")["id"]
    assert turn(engine) == "failed"
    row = workflow(engine, workflow_id)
    assert "resolve-account" in row["error"]["message"]
    assert effects(engine) == []


@pytest.mark.parametrize(("fault", "attempts"), [("lose_reply", 2), ("lose_request", 1)])
def test_lost_answer_is_no_failure_the_tool_is_called_again_with_the_same_key(
    engine: Engine, fault: Any, attempts: int
) -> None:
    keys: list[str | None] = []

    def once(call: ToolCall) -> Any:
        keys.append(call.idempotency_key)
        return fault if len(keys) == 1 else None

    engine.world.fault = once
    workflow_id = engine.create_workflow("login")["id"]
    assert turn(engine) == "postponed"
    assert [action["status"] for action in engine.get_workflow(workflow_id)["actions"]] == ["PENDING"]  # type: ignore[index]
    assert [step["step_id"] for step in steps(engine, workflow_id)] == ["classify", "plan"]
    assert settle(engine, workflow_id)["status"] == "completed"
    assert keys == [f"{workflow_id}:resolve-account"] * 2
    assert [effect["attempts"] for effect in effects(engine)] == [attempts]


def test_answer_lost_more_often_than_a_step_may_fail_is_still_no_failure(engine: Engine) -> None:
    lost = engine.policy.max_attempts * 2
    engine.world.fault = lambda call: (
        "lose_reply" if (effects(engine) or [{"attempts": 0}])[0]["attempts"] < lost else None
    )
    workflow_id = engine.create_workflow("login")["id"]
    assert settle(engine, workflow_id)["status"] == "completed"
    assert [effect["attempts"] for effect in effects(engine)] == [lost + 1]
    assert len(history(engine, workflow_id, "attempt_failed")) == lost
    assert engine.reliability_metrics()["duplicate_business_effects"] == 0


def test_look_up_asks_the_world_first_and_does_not_call_again_when_it_remembers(engine: Engine) -> None:
    engine.policy = Policy(unknown_outcome="look_up")
    engine.world.fault = lambda call: "lose_reply"
    workflow_id = engine.create_workflow("login")["id"]
    assert turn(engine) == "postponed"
    row = settle(engine, workflow_id)
    assert (row["status"], row["result"]) == ("completed", {"account_unlocked": True, "resolution_code": "SIM-200"})
    assert [effect["attempts"] for effect in effects(engine)] == [1]


@pytest.mark.parametrize("fault", ["lose_request", "lose_reply"])
def test_look_up_calls_with_the_key_when_the_world_does_not_remember(engine: Engine, fault: Any) -> None:
    engine.policy = Policy(unknown_outcome="look_up")
    faults = [fault]
    engine.world.fault = lambda call: faults.pop() if faults else None
    workflow_id = engine.create_workflow("login")["id"]
    assert turn(engine) == "postponed"
    engine.world.forget_keys()
    assert settle(engine, workflow_id)["status"] == "completed"
    assert [effect["idempotency_key"] for effect in effects(engine)] == [f"{workflow_id}:resolve-account"] * (
        1 if fault == "lose_request" else 2
    )


def test_look_up_finds_an_effect_whose_result_is_null(engine: Engine) -> None:
    engine.policy = Policy(unknown_outcome="look_up")
    engine.world.answers = {"pay": None}
    workflow_id = start(engine, lambda run, _: [run.side_effect("pay", key="k")])
    crash(engine, "tool", "after")
    assert settle(engine, workflow_id)["result"] == [None]
    assert [effect["attempts"] for effect in effects(engine)] == [1]


def test_look_up_policy_serves_a_tool_that_cannot_be_asked(engine: Engine) -> None:
    engine.policy = Policy(unknown_outcome="look_up")
    workflow_id = start(engine, lambda run, _: run.side_effect("pay", key="k", tool=lambda call: engine.world(call)))
    crash(engine, "tool", "after")
    assert settle(engine, workflow_id)["status"] == "completed"
    assert [effect["attempts"] for effect in effects(engine)] == [2]


# -- requeue by hand


def test_requeue_keeps_earlier_checkpoints_and_forgets_the_failure(engine: Engine) -> None:
    engine.policy = Policy(max_attempts=1)
    ran: list[str] = []
    broken = [True]

    def fails() -> str:
        ran.append("second")
        if broken:
            raise ValueError("not yet")
        return "mended"

    def two(run: Any, _: Any) -> Any:
        run.step("first", lambda: ran.append("first"))
        return run.step("second", fails)

    workflow_id = start(engine, two)
    assert turn(engine) == "failed"
    broken.clear()
    engine.requeue_workflow(workflow_id)
    row = workflow(engine, workflow_id)
    assert (row["status"], row["state"], row["error"], row["attempts"], row["checkpoints"]) == (
        "ready",
        "FIRST",
        None,
        0,
        1,
    )
    assert [step["step_id"] for step in steps(engine, workflow_id)] == ["first"]
    assert settle(engine, workflow_id)["result"] == "mended"
    assert ran == ["first", "second", "second"]


def test_requeue_plans_a_refused_action_again_under_the_same_key(engine: Engine) -> None:
    faults: list[Any] = ["refuse"]
    engine.world.fault = lambda call: faults.pop() if faults else None
    workflow_id = engine.create_workflow("login")["id"]
    assert turn(engine) == "failed"
    engine.requeue_workflow(workflow_id)
    (action,) = rows(engine, "SELECT * FROM {s}.action_intents")
    assert (action["status"], action["error"], action["acknowledged_at"]) == ("PENDING", None, None)
    assert workflow(engine, workflow_id)["state"] == "PLANNED"
    assert settle(engine, workflow_id)["status"] == "completed"
    assert [effect["idempotency_key"] for effect in effects(engine)] == [f"{workflow_id}:resolve-account"]


def test_requeue_of_a_failure_outside_any_step_keeps_every_checkpoint(engine: Engine) -> None:
    broken = [True]

    def function(run: Any, _: Any) -> str:
        run.step("first", lambda: 1)
        if broken:
            raise ValueError("in the function itself")
        return "done"

    workflow_id = start(engine, function)
    assert turn(engine) == "failed"
    broken.clear()
    engine.requeue_workflow(workflow_id)
    assert workflow(engine, workflow_id)["checkpoints"] == 1
    assert settle(engine, workflow_id)["result"] == "done"


# -- what ended a run, ended it


def swallowing(run: Any, call: Callable[[], Any], then: Callable[[], Any]) -> Any:
    with contextlib.suppress(BaseException):
        call()
    return then()


THEN: dict[str, Callable[[Any, list[BaseException]], Any]] = {
    "returns": lambda run, seen: "done",
    "raises": lambda run, seen: 1 / 0,
    "goes on": lambda run, seen: refusals(run, seen),
}


def refusals(run: Any, seen: list[BaseException]) -> str:
    """What every call of the run raises from now on."""
    calls = [lambda: run.step("later", lambda: 1), lambda: run.side_effect("pay", key="later"),
             lambda: run.wait_for_event("later", "go"), lambda: run.side_effect("pay", key="before")]  # fmt: skip
    for call in calls:
        try:
            call()
        except BaseException as error:
            seen.append(error)
    return "done"


@pytest.mark.parametrize("then", THEN)
def test_function_that_swallows_its_suspension_still_waits(engine: Engine, then: str) -> None:
    seen: list[BaseException] = []

    def function(run: Any, _: Any) -> Any:
        run.side_effect("pay", key="before")
        return swallowing(run, lambda: run.wait_for_event("gate", "go"), lambda: THEN[then](run, seen))

    workflow_id = start(engine, function)
    assert turn(engine) == "waiting"
    row = workflow(engine, workflow_id)
    assert (row["status"], row["waiting_for"], row["error"]) == ("waiting", "go", None)
    assert [step["step_id"] for step in steps(engine, workflow_id)] == ["before"]
    assert history(engine, workflow_id, "write_refused") == []
    assert [type(error) for error in seen] == ([Suspend] * 4 if then == "goes on" else [])


@pytest.mark.parametrize("then", THEN)
def test_function_that_swallows_its_lost_lease_writes_nothing_more(engine: Engine, then: str) -> None:
    seen: list[BaseException] = []

    def function(run: Any, _: Any) -> Any:
        run.side_effect("pay", key="before")
        engine.expire_lease(workflow_id)
        return swallowing(run, lambda: run.step("stale", lambda: 1), lambda: THEN[then](run, seen))

    workflow_id = start(engine, function)
    assert turn(engine) == "lost"
    row = workflow(engine, workflow_id)
    assert (row["status"], row["result"], row["error"], row["checkpoints"]) == ("ready", None, None, 1)
    assert [entry["transaction"] for entry in history(engine, workflow_id, "write_refused")] == ["checkpoint"]
    assert len(effects(engine)) == 1
    assert [type(error) for error in seen] == ([LostLease] * 4 if then == "goes on" else [])


@pytest.mark.parametrize("then", THEN)
def test_function_that_swallows_a_postponement_is_tried_again_later(engine: Engine, then: str) -> None:
    seen: list[BaseException] = []

    def function(run: Any, _: Any) -> Any:
        run.side_effect("pay", key="before")
        return swallowing(run, lambda: run.step("flaky", raiser(OSError("away"))), lambda: THEN[then](run, seen))

    workflow_id = start(engine, function)
    assert turn(engine) == "postponed"
    row = workflow(engine, workflow_id)
    assert (row["status"], row["attempts"], row["lease_owner"]) == ("ready", 1, None)
    assert history(engine, workflow_id, "write_refused") == []
    assert [type(error) for error in seen] == ([Postponed] * 4 if then == "goes on" else [])


def test_run_in_memory_refuses_everything_after_a_suspension_too() -> None:
    seen: list[BaseException] = []
    store = StepStore()
    run = DurableRunner("run", store)
    run.side_effect("pay", key="before")
    with pytest.raises(Suspend):
        run.wait_for_event("gate", "go")
    refusals(run, seen)
    assert [type(error) for error in seen] == [Suspend] * 4
    assert list(store.memo) == [("run", "__effect__before")]


# -- neighbours


def test_failing_neighbours_stop_no_worker(engine: Engine) -> None:
    odd: list[Callable[[Any], Any]] = [
        lambda run: 1 / 0,
        lambda run: run.step("s", raiser(SystemExit(1))),
        lambda run: run.step("s", lambda: object()),
        lambda run: run.side_effect("a", key="k", tool=raiser(OSError())),  # type: ignore[arg-type]
        lambda run: run.side_effect("a", key="k", tool=refusing),
        lambda run: run.wait_for_event("gate", "never"),
        lambda run: object(),
        lambda run: run.step("\0", lambda: 1),
        lambda run: run.nothing(),
    ]
    deploy(engine, lambda run, which: odd[which](run))
    before = counts(engine)["{s}.workflows"]
    for which in range(len(odd)):
        engine.create_workflow(which, name="tested")
        engine.create_workflow(f"request {which}")
    assert engine.worker("worker").run_until_idle() == len(odd)
    statuses = rows(engine, "SELECT status, count(*) AS n FROM {s}.workflows WHERE name <> 'tested' GROUP BY status")
    assert statuses == [{"status": "completed", "n": len(odd)}]
    assert before == 0
    assert rows(engine, "SELECT id FROM {s}.workflows WHERE lease_owner IS NOT NULL") == []


def refusing(call: ToolCall) -> Any:
    raise ToolRefused(f"{call.action}: no")


def test_boundary_after_a_tool_says_what_is_known(engine: Engine) -> None:
    told: list[tuple[str, str | None]] = []

    def hook(boundary: Boundary) -> None:
        if boundary.transaction == "tool" and boundary.edge == "after":
            told.append((boundary.subject or "", boundary.outcome))

    def exits(call: ToolCall) -> Any:
        raise SystemExit(1)

    faults: list[Any] = ["refuse", "lose_reply", None]
    engine.world.fault = lambda call: faults.pop()
    deploy(engine, lambda run, key: run.side_effect("pay", key=key, tool=exits if key == "exits" else None))
    watched = engine.with_hook(hook)
    for key in ("fine", "lost", "refused", "exits"):
        engine.create_workflow(key, name="tested")
    watched.worker("worker").run_until_idle()
    assert told == [("fine", "committed"), ("lost", "unknown"), ("refused", "refused"), ("exits", "unknown")]


# -- errors of our own classes that come from somebody else's code ----------------------------------------------------------


@pytest.mark.parametrize(
    "theirs",
    [lambda: LostLease("w", "step", "mine"), lambda: DatabaseAway("my own database"), lambda: Suspend("s", "e")],
)
def test_control_flow_raised_by_the_function_itself_fails_the_workflow_and_the_worker_lives(
    engine: Engine, theirs: Callable[[], BaseException]
) -> None:
    def function(run: Any, _: Any) -> None:
        run.step("one", lambda: 1)
        raise theirs()

    bad = start(engine, function)
    assert turn(engine) == "failed"
    row = workflow(engine, bad)
    assert (row["status"], row["lease_owner"], row["error"]["type"]) == ("failed", None, type(theirs()).__name__)


def test_a_tool_that_raises_a_lost_lease_of_its_own_is_an_unknown_outcome(engine: Engine) -> None:
    def tool(call: ToolCall) -> Any:
        raise LostLease("other", "tool", "not this engine's")

    unsure = start(engine, lambda run, _: run.side_effect("pay", key="pay", tool=tool))
    assert turn(engine) == "postponed"
    assert (workflow(engine, unsure)["status"], workflow(engine, unsure)["lease_owner"]) == ("ready", None)


def test_a_step_that_meets_a_serialization_failure_twice_is_retried_and_its_success_kept(engine: Engine) -> None:
    troubles = [psycopg.errors.SerializationFailure("again"), psycopg.errors.DeadlockDetected("again")]

    def own_database() -> str:
        if troubles:
            raise troubles.pop()
        return "stored"

    job = start(engine, lambda run, _: run.step("query", own_database))
    assert settle(engine, job)["result"] == "stored"
    assert [entry["event"] for entry in engine.history(job)].count("attempt_failed") == 2


def test_an_effect_before_a_wait_in_a_nested_call_is_not_repeated(engine: Engine) -> None:
    def ask_editor(run: Any) -> Any:
        run.side_effect("email", key="email")
        return run.wait_for_event("approval", "approved")

    job = start(engine, lambda run, _: [run.step("draft", lambda: "text"), ask_editor(run)])
    assert turn(engine) == "waiting"
    engine.deliver_event(job, "approved", "yes")
    assert settle(engine, job)["result"] == ["text", "yes"]
    assert rows(engine, "SELECT attempts FROM {w}.tool_ledger") == [{"attempts": 1}]


class _Evil(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise SystemExit("the class's own name")


class _Unspeakable(Exception, metaclass=_Evil):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class _EvilText(str):
    def encode(self, *_: Any) -> bytes:
        raise RuntimeError("no")


class _SpeaksEvil(Exception):
    def __str__(self) -> str:
        return _EvilText("what happened")


_EVIL = {"class without a name": _Unspeakable, "text that bites": _SpeaksEvil}


@pytest.mark.parametrize("kind", list(_EVIL))
def test_an_error_that_cannot_be_described_is_a_failure_all_the_same(engine: Engine, kind: str) -> None:
    def function(run: Any, _: Any) -> None:
        raise _EVIL[kind]()

    bad = start(engine, function)
    assert turn(engine) == "failed"
    assert workflow(engine, bad)["status"] == "failed"


def test_a_result_that_the_function_changes_is_the_recorded_one_the_next_time(engine: Engine) -> None:
    def function(run: Any, _: Any) -> Any:
        run.side_effect("pay", key="pay").clear()
        return run.side_effect("pay", key="pay")

    assert settle(engine, start(engine, function))["result"] == {"done": "pay"}


def test_nothing_follows_an_effect_whose_result_cannot_be_recorded(engine: Engine) -> None:
    def function(run: Any, _: Any) -> str:
        with contextlib.suppress(Exception):
            run.side_effect("pay", key="pay", tool=lambda call: (1, 2))
        return run.step("next", lambda: "went on")

    bad = start(engine, function)
    assert settle(engine, bad)["error"]["type"] == "UnfaithfulValue"
    assert rows(engine, "SELECT step_id FROM {s}.steps") == []


def test_a_compensated_failure_that_is_raised_again_cannot_be_requeued_and_the_refusal_says_why(engine: Engine) -> None:
    def saga(run: Any, request: Any) -> Any:
        try:
            run.step("charge", lambda: 1 / 0)
        except StepFailed:
            run.step("refund", lambda: "refunded")
            raise

    engine.policy, engine.workflows = Policy(max_attempts=1), {"saga": saga}
    engine.create_workflow(None, name="saga", workflow_id="w")
    assert turn(engine) == "failed"
    with pytest.raises(
        AlreadyFinished, match=r"the failure that it raised \('refund'\) stands, .*create another workflow"
    ):
        engine.requeue_workflow("w")
    assert [step["step_id"] for step in engine.get_workflow("w")["steps"]] == ["charge", "refund"]  # type: ignore[index]
