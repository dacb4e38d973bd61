"""The new fault of new_fault.diff, tried: a request that is lost on its way to the tool. Arguments: database URL, schema."""

from __future__ import annotations

import sys

from agentflow import Engine
from agentflow.lab.explorer.explore import explore
from agentflow.lab.history.sentences import sentences
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.laboratory.scratch_schema import own_schema
from agentflow.lab.pictures.timeline import timeline
from agentflow.lab.schedule.lane_set import LaneKind
from agentflow.lab.schedule.stepper import Stepper
from agentflow.lab.verify.checker import find_mistakes

LINE = "A*4 A% A due A*"
SENTENCE = "A's request to the tool is lost; nobody knows the outcome until it is called again"


def play(url: str, schema: str, lanes: LaneKind) -> None:
    """The schedule plays; the history, its sentences, its picture and the picture's text have the fault; the promise holds."""
    with own_schema(url, f"{schema}_fault") as database:
        engine = Engine(database, policy=PATIENT)
        with Stepper(engine, lanes=lanes) as stepper:
            moves = stepper.play(LINE)
            assert stepper.line == LINE
        assert [str(moved) for moved in moves if moved.move.verb == "lose_request"] == ["A%: the request of A is lost"]
        history, figures = engine.history("request-1"), engine.reliability_metrics()
        assert [entry["subject"] for entry in history if entry["event"] == "request_lost"] == ["resolve-account"]
        assert sum(entry["event"] == "tool_attempt_committed" for entry in history) == 1
        assert f"{SENTENCE}." in sentences(history)
        picture = timeline(history, schedule=LINE)
        assert ">lose call</text>" in picture.svg
        assert f". {SENTENCE}" in picture.text
        assert (figures["workflows_completed"], figures["business_effects"]) == (1, 1)
        assert figures["duplicate_business_effects"] == 0
        assert not find_mistakes(database)
        engine.close()


def main() -> None:
    """Plays it on both kinds of lanes and explores every schedule with it."""
    url, schema = sys.argv[1:]
    for lanes in ("thread", "process"):
        play(url, schema, lanes)  # type: ignore[arg-type]
    found = explore(crashes=1, expiries=1, lost_replies=0, lost_requests=1, progress=False)
    assert found.exhausted and not found.findings, found
    assert "lost requests 1" in str(found.bounds)
    print(f"{found.states} states, {found.schedules} schedules with a lost request: the promise holds.")


if __name__ == "__main__":
    main()
