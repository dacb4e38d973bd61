"""Own workflows, inputs and tools on lanes: in a Stepper, a control room, a played line and a capsule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from agentflow import Engine, ToolCall
from agentflow.errors import AgentFlowError, BadSchedule, LaneError, UnfaithfulValue
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.room.controller import Controller
from agentflow.lab.schedule.capsule import capture
from agentflow.lab.schedule.grammar import Setting
from agentflow.lab.schedule.play import play, read_line
from agentflow.lab.schedule.presets import inputs_for
from agentflow.lab.schedule.stepper import Stepper
from tests.support.lane_workflows import cautious, declines

LINE = "A*4 A! expire B*"


def order(run: Any, request: Mapping[str, Any]) -> Any:
    price = run.step("price", lambda: {"total": request["total"] * 2})
    return run.side_effect("charge", key="charge", arguments=price)


class Provider:
    """A provider that heeds keys for ever, whatever becomes of the laboratory."""

    def __init__(self) -> None:
        self.calls: dict[str | None, list[Any]] = {}

    def __call__(self, call: ToolCall) -> Any:
        made = self.calls.setdefault(call.idempotency_key, [call.action, call.workflow_id, 0])
        made[2] += 1
        return call.arguments

    def effects(self) -> list[Any]:
        return [(key, *rest) for key, rest in self.calls.items()]


@pytest.fixture
def mine(engine: Engine) -> Engine:
    """An engine that knows one workflow, with a provider."""
    engine.policy, engine.workflows, engine.tool = PATIENT, {"order": order}, Provider()
    return engine


def test_a_line_without_a_name_means_the_engines_own_workflow_with_its_own_input(mine: Engine) -> None:
    with Stepper(mine, inputs=[{"total": 4}]) as stepper:
        stepper.play(LINE)
        assert stepper.line == f"workflow=order {LINE}"
        (row,) = [mine.get_workflow(one) for one in stepper.workflows]
        assert row and (row["status"], row["input"], row["result"]) == ("completed", {"total": 4}, {"total": 8})
        assert mine.reliability_metrics()["tool_execution_attempts"] == 2
        assert mine.reliability_metrics()["business_effects"] == 1


def test_after_a_reset_a_tool_that_remembers_is_not_asked_under_the_old_key(mine: Engine) -> None:
    with Stepper(mine, inputs=[{"total": 4}]) as stepper:
        stepper.play(LINE)
        assert stepper.workflows == ["request-1"]
        stepper.play("A*")
        assert stepper.workflows == ["2.request-1"]
        found = mine.reliability_metrics()
        assert (found["tool_execution_attempts"], found["business_effects"]) == (1, 1)
    mine.tool = mine.world
    with Stepper(mine, inputs=[{"total": 4}]) as stepper:
        stepper.play("A*")
        stepper.play("A*")
        assert stepper.workflows == ["request-1"]  # its ledger was emptied


def test_a_control_room_plays_presets_on_ones_own_workflow_and_goes_back(mine: Engine) -> None:
    controller = Controller(mine, inputs=[{"total": 4}])
    try:
        controller.open()
        controller.preset("acknowledgment gap")
        assert controller.scene().name == "order" and controller.scene().trouble is None
        assert controller.recording.frames[0].line == "workflow=order"
        with pytest.raises(BadSchedule, match="must stand before the tool call"):
            controller.run("A*4 A/")
        assert controller.stepper.line == "workflow=order A*5 A! expire B*"
        controller.reset()
        controller.step("A")
        assert controller.scene().lanes[0].next == "checkpoint price"
    finally:
        controller.close()


def test_a_capsule_is_played_again_on_the_inputs_that_it_holds(engine: Engine) -> None:
    engine.policy, engine.workflows = PATIENT, {"order": order}
    with Stepper(engine, Setting("order", requests=2), inputs=[{"total": 4}, {"total": 5}]) as stepper:
        stepper.play("workflow=order requests=2 A* B*")
        first = capture(stepper)
    assert [one["result"] for one in first.outcome["workflows"]] == [{"done": "charge"}] * 2
    again = first.play_again(engine)
    assert again.requests == first.requests and again.hash == first.hash


@pytest.mark.parametrize(
    ("inputs", "error", "said"),
    [([], BadSchedule, "Given: 0"), ("text", BadSchedule, "Given: a str"),
     ({"total": 1}, BadSchedule, "Given: a dict"), ([float("nan")], UnfaithfulValue, "nan is not a JSON"),
     ([{"total": {1}}], UnfaithfulValue, r"path \$\.total: set is not a JSON value")],
)  # fmt: skip
def test_inputs_that_cannot_be_used_are_refused_before_anything_is_touched(
    mine: Engine, inputs: Any, error: type[AgentFlowError], said: str
) -> None:
    mine.create_workflow("mine", name="order", workflow_id="kept")
    with pytest.raises(error, match=said):
        Stepper(mine, inputs=inputs)
    with pytest.raises(error, match=said):
        inputs_for(Setting("order"), mine.workflows, inputs)
    assert mine.get_workflow("kept") is not None


def test_what_is_no_workflow_or_no_tool_is_refused_by_name(mine: Engine) -> None:
    async def later(run: Any, request: Any) -> None: ...

    mine.workflows = {"later": later}
    with pytest.raises(BadSchedule, match="workflow=later is no workflow but an async function"):
        Stepper(mine, inputs=[1])
    mine.workflows, mine.tool = {"order": order}, Provider  # type: ignore[assignment]
    with pytest.raises(LaneError, match=r"The engine's tool is a class\. Name an object of it"):
        Stepper(mine, inputs=[1])


def test_play_says_why_a_workflow_is_unfinished_and_what_was_not_observed(url: str) -> None:
    own = {"order": order}
    schedule = read_line("A*", "order", own=own, inputs=["text"])
    played = play(url, schedule, workflows=own, inputs=["text"])
    assert "(PENDING; its last try: TypeError: string indices" in played.capsule.outcome["sentence"]
    blind = play(url, schedule, workflows=own, tool=lambda call: {}, inputs=[{"total": 1}])
    assert blind.figures["business_effects"] is None
    (said,) = (
        one for one in blind.problems if one.startswith("What a tool of your own did is not observed: let it tell")
    )
    assert "name it, also if only a side effect does (--tool MODULE:ATTRIBUTE, or engine.asked = (tool,))" in said


def test_a_recorded_refusal_is_called_by_its_name_in_words_and_picture(url: str) -> None:
    own = {"cautious": cautious}
    played = play(url, read_line("A*", "cautious", own=own, inputs=[1]), workflows=own, asked=[declines], inputs=[1])
    assert played.problems == ()
    said = "\n".join(played.capsule.lines())
    assert "A commits the tool's refusal of card with token 1" in said and "acknowledge card" not in said
    assert ">refusal</text>" in played.capsule.picture().svg
