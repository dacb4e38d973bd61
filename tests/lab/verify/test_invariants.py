"""Each invariant falls for the transition that breaks it, holds for the same one done right, and all hold for the real engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentflow import Engine
from agentflow.errors import BadSchedule, LaneError
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.schedule.grammar import Move, Roll, Setting, deliver
from agentflow.lab.schedule.moves import Moved
from agentflow.lab.schedule.stepper import Stepper
from agentflow.lab.verify.invariants import ALL_THAT_A_WORKER_CAN_DO, INVARIANTS, Mover, Transition, violations
from agentflow.lab.verify.snapshot import Rows, read_rows
from tests.conftest import rows

RESULT = '{"account_unlocked": true}'


def workflow(**told: Any) -> dict[str, Any]:
    row = {
        "id": "request-1", "name": "support_agent", "input": '"help"', "status": "ready", "state": "PLANNED", "result": None,
        "error": None, "lease_owner": "B.1", "fence_token": 2, "lease": "live", "due": True, "turn": 1, "checkpoints": 1,
        "entries": 5, "waiting_for": None, "events": "{}", "attempts": 0, "crashes": 0,
    }  # fmt: skip
    return {**row, **told}


def step(step_id: str, value: str | None = "1", kind: str = "step", **told: Any) -> dict[str, Any]:
    row = {
        "workflow_id": "request-1", "step_id": step_id, "position": 1, "kind": kind, "state": "X", "value": value, "error": None,
        "waited_for": None, "fence_token": 1, "worker": "A.1",
    }  # fmt: skip
    return {**row, **told}


def intent(**told: Any) -> dict[str, Any]:
    row = {
        "workflow_id": "request-1", "key": "pay", "idempotency_key": "request-1:pay", "action": "pay", "arguments": "null",
        "status": "ACKNOWLEDGED", "tool_result": RESULT, "error": None, "fence_token": 1, "worker": "A.1",
    }  # fmt: skip
    return {**row, **told}


def effect(number: int = 1, key: str | None = "request-1:pay", result: str = RESULT) -> dict[str, Any]:
    return {
        "effect_id": number, "idempotency_key": key, "remembered": True, "workflow_id": "request-1", "action": "pay",
        "arguments": "null", "result": result, "attempts": 1,
    }  # fmt: skip


def entry(event: str, transaction: str, token: int | None = 2, n: int = 6) -> dict[str, Any]:
    return {
        "workflow_id": "request-1", "n": n, "event": event, "transaction": transaction, "subject": None, "worker": "B.1",
        "fence_token": token, "detail": None,
    }  # fmt: skip


READY = Rows((workflow(),), (step("plan"),), (intent(status="PENDING", tool_result=None),))
PAID = step("pay", RESULT, "side_effect", position=2)
DONE = Rows(
    (workflow(status="completed", result="1", lease_owner=None, lease=None, entries=6),),
    (step("plan"), PAID), (intent(),), (effect(),),
    history=(entry("workflow_completed", "complete"),),
)  # fmt: skip
OUTSIDE = Mover()
B = Mover("B.1", 2, "request-1", "complete", "completed")
ACKNOWLEDGED = replace(READY, steps=(step("plan"), PAID), intents=(intent(),), effects=(effect(),))


def done(**other: Any) -> Transition:
    return Transition(ACKNOWLEDGED, replace(DONE, **other), B)


def from_ready(mover: Mover = OUTSIDE, **other: Any) -> Transition:
    return Transition(READY, replace(READY, **other), mover)


@dataclass(frozen=True)
class Case:
    """A transition, the invariant that falls, and a word of what is said about the guilty row."""

    name: str
    transition: Transition
    falls: str
    says: str


WAITED = step("asked", "true", "wait", position=2, waited_for="answer")
OLD = Mover("A.1", 1, "request-1", "checkpoint")
STUCK = Mover(transaction=ALL_THAT_A_WORKER_CAN_DO)
CASES = [
    Case("a second key", from_ready(effects=(effect(), effect(2, "other"))), "one effect per action", "effect 2 of action 'pay'"),
    Case("no key at all", from_ready(effects=(effect(1, None), effect(2, None))), "one effect per action", "effect 2"),
    Case(
        "the same key, forgotten",
        Transition(replace(READY, effects=(effect(),)), replace(READY, effects=(effect(), effect(2)))),
        "one effect per action", "effect 2",
    ),
    Case("pending", done(intents=(intent(status="PENDING", tool_result=None),)), "completed means done", "PENDING"),
    Case("never planned", done(intents=()), "completed means done", "is missing"),
    Case("no effect", done(effects=()), "completed means done", "has no effect"),
    Case("the world did otherwise", done(effects=(effect(result="0"),)), "the result is the tools", "the tool answered 0"),
    Case(
        "recorded otherwise", done(steps=(step("plan"), {**PAID, "value": "0"})), "the result is the tools", "the acknowledgment",
    ),
    Case("another value", from_ready(steps=(step("plan", "2"),)), "checkpoint never changes", "value was 1 and is 2"),
    Case("another place", from_ready(steps=(step("plan", position=2),)), "checkpoint never changes", "position was 1"),
    Case("gone", from_ready(steps=()), "checkpoint never changes", "is gone"),
    Case(
        "completed again", Transition(replace(DONE, history=()), DONE, B), "one completion", "completed a second time",
    ),
    Case("a second report", Transition(DONE, DONE, B), "one completion", "a worker reports"),
    Case(
        "another result",
        Transition(DONE, replace(DONE, workflows=(workflow(status="completed", result="2", lease_owner=None, lease=None),))),
        "one completion", "result was 1 and is 2",
    ),
    Case(
        "another payload than the row's",
        from_ready(steps=(step("plan"), WAITED), workflows=(workflow(events='{"answer": "false"}'),)),
        "one payload per name", "got True for event 'answer'",
    ),
    Case(
        "two payloads",
        from_ready(steps=(step("plan"), WAITED, {**WAITED, "step_id": "again", "value": "2", "position": 3})),
        "one payload per name", "got 2",
    ),
    Case("nobody can", Transition(READY, READY, STUCK), "no workflow is stuck", "stays ready in state PLANNED"),
    Case(
        "fails whoever works on it",
        from_ready(STUCK, workflows=(workflow(status="failed", error='{"type": "TypeError", "message": "None"}'),)),
        "no workflow is stuck", "TypeError: None",
    ),
    Case("a token that falls", from_ready(workflows=(workflow(fence_token=1),)), "tokens only rise", "was 2 and is 1"),
    Case(
        "a claim that raises none", from_ready(history=(entry("workflow_claimed", "claim"),)),
        "tokens only rise", "after a claim",
    ),
    Case(
        "a stale worker writes", from_ready(OLD, steps=(step("plan"), step("late", position=2))),
        "nothing under an older token", "A.1 wrote checkpoint with token 1, and the row held 2",
    ),
    Case(
        "a stale renewal", from_ready(replace(OLD, transaction="renew"), workflows=(workflow(lease_owner="A.1"),)),
        "nothing under an older token", "wrote renew",
    ),
    Case(
        "an entry under an older token", from_ready(history=(entry("checkpoint_committed", "checkpoint", 1),)),
        "nothing under an older token", "has token 1, the row 2",
    ),
]  # fmt: skip
RIGHT = [
    done(),
    from_ready(effects=(effect(),)),
    from_ready(
        replace(OLD, ended="lost"), history=(entry("write_refused", "checkpoint", 1),), workflows=(workflow(entries=6),)
    ),
    from_ready(steps=(step("plan"), WAITED), workflows=(workflow(events='{"answer": "true"}'),)),
    from_ready(workflows=(workflow(fence_token=3),), history=(entry("workflow_claimed", "claim", 3),)),
    Transition(ACKNOWLEDGED, DONE, replace(STUCK, ended=None)),
    from_ready(STUCK, workflows=(workflow(status="failed", error='{"type": "CrashBudgetSpent", "message": "5"}'),)),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_an_invariant_falls_and_names_the_guilty_row(case: Case) -> None:
    fell = [(one.name, str(guilty)) for one, guilty in violations(case.transition)]
    assert any(name == case.falls and case.says in guilty for name, guilty in fell), fell


@pytest.mark.parametrize("transition", RIGHT)
def test_what_is_done_right_breaks_no_invariant(transition: Transition) -> None:
    assert [(one.name, str(guilty)) for one, guilty in violations(transition)] == []


def test_every_invariant_has_a_kind_a_sentence_and_a_case_in_which_it_falls() -> None:
    assert {case.falls for case in CASES} == set(INVARIANTS)
    assert {one.kind for one in INVARIANTS.values()} == {"harm", "authority"}
    assert all(one.sentence.endswith(".") and one.sentence[0].isupper() for one in INVARIANTS.values())


def test_a_requeue_takes_the_last_failure_away_and_breaks_nothing() -> None:
    failed = step("plan", None, error='{"type": "Boom", "message": ""}')
    before = replace(READY, steps=(failed,))
    requeued = replace(READY, steps=(), history=(entry("workflow_requeued", "requeue", None),))
    assert violations(Transition(before, requeued)) == []
    assert violations(Transition(replace(READY, steps=(step("plan"),)), requeued)) != []


# -- the real engine ---------------------------------------------------------------------------------------------------


@pytest.fixture
def lab(engine: Engine) -> Iterator[Engine]:
    own = Engine(engine.database, policy=PATIENT)
    yield own
    own.world.database.close()


def test_the_record_is_what_stands_in_the_tables(lab: Engine) -> None:
    with Stepper(lab) as stepper:
        stepper.play("A*5 A! expire B*")
        found = read_rows(lab)
        (row,) = rows(lab, "SELECT * FROM {s}.workflows")
        assert found.workflows[0]["fence_token"] == row["fence_token"] == 2
        assert json.loads(found.workflows[0]["result"]) == row["result"]
        assert (found.workflows[0]["lease"], found.workflows[0]["due"]) == (None, True)
        assert len(found.history) == rows(lab, "SELECT count(*) AS n FROM {s}.history")[0]["n"]
        assert [one["outcome"] for one in found.attempts] == ["effect", "repeated"]
        assert [one["value"] for one in found.of("steps", "request-1")] == [
            one["value"] for one in rows(lab, "SELECT value::text FROM {s}.steps ORDER BY position")
        ]


def test_leases_and_back_offs_are_live_expired_and_due_in_the_record(lab: Engine) -> None:
    with Stepper(lab) as stepper:
        seen = []
        for move in ("A", "expire", "B*4", "B/", "B", "due"):
            stepper.move(move)
            row = read_rows(lab).workflows[0]
            seen.append((row["lease"], row["due"]))
    assert seen == [("live", True), ("expired", True), ("live", True), ("live", True), (None, False), (None, True)]


def mover_of(moved: Moved) -> Mover:
    at = moved.passed
    return Mover(at.worker, at.token, at.workflow, at.transaction, moved.ended) if at else Mover()


MOVES = [
    *[Move(verb, lane) for verb in ("go", "go", "go", "lose", "kill", "start", "renew") for lane in "AB"],  # type: ignore[arg-type]
    Move("expire"), Move("due"), Move("expire", request=1), deliver("approval", True), deliver("approval", False),
]  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    chosen=st.lists(st.sampled_from(MOVES), min_size=8, max_size=30),
    workflow=st.sampled_from(["support_agent", "approval_agent"]),
    names=st.sampled_from(["unique", "shared"]),
)
def test_no_sequence_of_moves_on_the_real_engine_breaks_an_invariant(
    lab: Engine, chosen: list[Move], workflow: str, names: Any
) -> None:
    with Stepper(lab, Setting(workflow=workflow, names=names)) as stepper:
        stepper.reset()
        before = read_rows(lab)
        for move in chosen:
            if Roll(stepper.moves).refuses(move):
                continue
            try:
                moved = stepper.move(move)
            except (BadSchedule, LaneError):  # it cannot come now; nothing was moved
                continue
            after = read_rows(lab)
            fell = violations(Transition(before, after, mover_of(moved[-1]))) if before.workflows else []
            assert [(one.name, str(guilty)) for one, guilty in fell] == [], stepper.line
            before = after


def test_the_same_check_sees_an_engine_without_keys_double_an_effect(lab: Engine) -> None:
    with Stepper(lab) as stepper:
        stepper.play("without=idempotency_key A*5 expire B")
        before = read_rows(lab)
        moved = stepper.move(Move("go", "B"))
        assert [one.name for one, _ in violations(Transition(before, read_rows(lab), mover_of(moved[-1])))] == [
            "one effect per action"
        ]
