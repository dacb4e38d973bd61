"""A fault changes no way: what a workflow plans and returns is what it plans and returns when nobody disturbs it."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentflow import Database, Engine, StepFailed, ToolRefused
from agentflow.lab.explorer.explore import explore
from agentflow.lab.explorer.report import Exploration
from agentflow.lab.schedule.stepper import Stepper
from agentflow.model import ToolCall
from tests.lab.explorer.test_own_code import Provider

WAY = "a fault changes no way"
TINY = {"crashes": 0, "expiries": 1, "lost_replies": 0}


class Says(Provider):
    """Says whether the charge is new; each new one has a number and a receipt of its own."""

    def __call__(self, call: ToolCall) -> Any:
        known = len(self.rows)
        super().__call__(call)
        new = len(self.rows) > known
        return {"new": new, "number": len(self.rows), "receipt": uuid.uuid4().hex if new else "see before"}


class RefusesAgain(Says):
    """Refuses what it has done."""

    def __call__(self, call: ToolCall) -> Any:
        answer = super().__call__(call)
        if not answer["new"] and call.action == "charge":
            raise ToolRefused("done before")
        return answer


def ships_if_new(run: Any, given: Any) -> Any:
    if run.side_effect("charge", key="charge")["new"]:
        run.side_effect("ship", key="ship")
    return "done"


def ships_what_it_is_told(run: Any, given: Any) -> Any:
    told = run.side_effect("charge", key="charge")
    return run.side_effect("ship", key="ship", arguments=told["receipt"])["number"]


def returns_by_it(run: Any, given: Any) -> Any:
    return "first" if run.side_effect("charge", key="charge")["new"] else "again"


def hands_on(run: Any, given: Any) -> Any:
    told = run.side_effect("charge", key="charge")
    return {"all": told, "of it": [told["new"], told["receipt"]]}


def ignores_it(run: Any, given: Any) -> Any:
    told = run.side_effect("charge", key="charge")
    run.step("log", lambda: told) if told["new"] else None
    return run.side_effect("ship", key="ship")["number"] > 0


def numbered(run: Any, given: Any) -> Any:
    return run.side_effect("charge", key="charge")["number"]


def by_chance(run: Any, given: Any) -> Any:
    """A step draws, and the arguments and the result follow it."""
    key = run.step("key", lambda: uuid.uuid4().hex + str(random.random()))
    run.side_effect("charge", key="charge", arguments=key)
    if key[0] in "01234567":
        run.side_effect("ship", key="ship")
    return [key, uuid.uuid4().hex]


def makes_up_for_it(run: Any, given: Any) -> Any:
    """Charges, is refused the parcel, and pays back."""
    run.side_effect("charge", key="charge")
    try:
        run.side_effect("ship", key="ship", tool=refuses)
    except StepFailed:
        run.side_effect("refund", key="refund")
        raise
    return "done"


def refuses(call: ToolCall) -> Any:
    raise ToolRefused("no such street")


def sorry_if_refused(run: Any, given: Any) -> Any:
    try:
        run.side_effect("charge", key="charge")
    except StepFailed:
        run.side_effect("apologize", key="apologize")
    return "done"


@pytest.fixture
def explored(url: str) -> Iterator[Callable[..., Exploration]]:
    """Explores a function on the real engine."""
    engine = Engine(Database(url, "unused"))

    def run(function: Any, **options: Any) -> Exploration:
        return explore(engine, workflow=function, inputs=[1, 2], **{"workflows": 1, **TINY, **options})

    yield run
    engine.close()


@pytest.mark.parametrize(
    ("function", "tool", "guilty", "moves"),
    [
        (ships_if_new, Says, "has planned 'charge'; undisturbed it plans 'charge', 'ship'", "A*3 expire B*4"),
        (ships_what_it_is_told, Says, "has planned 'ship' ('ship') with \"see before\"; undisturbed with \"", "A*3 expire B*7"),
        (returns_by_it, Says, 'returns "again"; undisturbed it returns "first"', "A*3 expire B*4"),
        (sorry_if_refused, RefusesAgain, "has planned 'apologize', 'charge'; undisturbed it plans 'charge'", "A*3 expire B*7"),
    ],
)  # fmt: skip
def test_a_workflow_that_goes_another_way_when_its_tool_is_asked_again_is_found(
    explored: Any, function: Any, tool: Any, guilty: str, moves: str
) -> None:
    found = explored(function, tool=tool())
    (finding,) = found.findings
    assert (found.verdict, finding.invariant) == ("harm", WAY) and guilty in finding.guilty, found
    assert finding.sentence.startswith("A fault changes no way: ")
    assert finding.line.partition(" ")[2] == moves


def test_the_schedule_of_the_finding_ends_so_on_lanes_too(engine: Engine, url: str) -> None:
    tool = Says()
    own = Engine(engine.database, workflows={"ships_if_new": ships_if_new}, tool=tool)
    line = explore(own, workflow="ships_if_new", **TINY).findings[0].line
    with Stepper(own) as stepper:
        stepper.play(line)
    assert own.get_workflow("request-1")["status"] == "completed"  # type: ignore[index]
    assert [row[1] for row in tool.rows] == ["charge"]


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (hands_on, {}), (ignores_it, {}), (by_chance, {}), (makes_up_for_it, {"expect": "failed"}),
        (numbered, {"workflows": 2, "expiries": 0}),
    ],
)  # fmt: skip
def test_what_differs_for_another_reason_than_a_fault_is_no_finding(
    explored: Any, function: Any, options: dict[str, Any]
) -> None:
    """A reply that is handed on, what a step drew, a refusal, and the numbers that another order took first."""
    found = explored(function, tool=Says(), **options)
    assert found.ok, found


def test_an_event_s_payload_and_a_model_that_answers_differently_may_lead_another_way(engine: Engine) -> None:
    def as_told(run: Any, given: Any) -> Any:
        told = run.wait_for_event("wait", "number")
        return run.side_effect("charge", key="charge", arguments=told) if told == 2 else told

    own = Engine(engine.database, workflows={"as_told": as_told})
    assert explore(own, workflow="as_told", payloads=3, **TINY).ok
    assert explore(engine, model="varying", **TINY).ok


class Skips(Engine):
    """A worker that takes over completes at once: nothing that was planned is missing, and nothing was done."""

    def load(self, claim: Any) -> Any:
        claim, steps, intents = super().load(claim)
        if not steps and not intents:
            self.complete_workflow(claim, None)
        return claim, steps, intents


def test_an_engine_that_leaves_out_what_a_function_does_is_found(engine: Engine) -> None:
    found = explore(Skips(engine.database), **TINY)
    assert WAY in [one.invariant for one in found.findings], found
    assert "has planned nothing; undisturbed it plans 'resolve-account'" in str(found.findings[0])
