"""`A?`: a transaction is committed and PostgreSQL's answer is lost, so the worker stands before it again and asks again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agentflow import Engine
from agentflow.errors import BadSchedule
from agentflow.lab.explorer.explore import explore
from agentflow.lab.explorer.report import Exploration
from agentflow.lab.history.sentences import sentences
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.pictures.timeline import timeline
from agentflow.lab.schedule.grammar import Move
from agentflow.lab.schedule.lane_set import LaneKind
from agentflow.lab.schedule.stepper import Stepper
from agentflow.lab.verify.checker import find_mistakes
from agentflow.lab.verify.snapshot import read_rows
from tests.conftest import rows

COMMITS = {"claim": 0, "checkpoint classify": 1, "checkpoint plan": 2, "intent resolve-account": 3,
           "acknowledge resolve-account": 5, "complete": 6}  # fmt: skip
"""Each transaction of the support agent but the tool's, and how many come before it."""
AFTER = {"the same worker asks again": "A* expire A*", "it dies before it asks again": "A! expire B*",
         "another takes over before it asks again": "expire B* A*"}  # fmt: skip


@pytest.fixture
def lab(engine: Engine) -> Iterator[Engine]:
    """An engine whose leases end only by a move."""
    own = Engine(engine.database, policy=PATIENT)
    yield own
    own.close()


def played(lab: Engine, line: str, lanes: LaneKind = "thread") -> list[Any]:
    """The moves of a line on lanes, with what the checker says afterwards."""
    with Stepper(lab, lanes=lanes) as stepper:
        moves = stepper.play(line)
    assert find_mistakes(lab.database) == []
    return moves


@pytest.mark.parametrize("name", COMMITS)
@pytest.mark.parametrize("then", AFTER)
def test_nothing_is_lost_and_nothing_doubled_whatever_comes_before_it_is_asked_again(
    lab: Engine, name: str, then: str
) -> None:
    before = f"A*{COMMITS[name]} " * bool(COMMITS[name])
    ended = name == "complete"  # nobody holds a lease that could end
    rest = {"A* expire A*": "A", "expire B* A*": "B A"}.get(AFTER[then], "A!") if ended else AFTER[then]
    rest = "A*" if then.startswith("the same") and name not in ("claim", "complete") else rest
    played(lab, f"{before}A? {rest}")
    history, figures = lab.history("request-1"), lab.reliability_metrics()
    assert [entry["subject"] for entry in history if entry["event"] == "answer_lost"] == [name]
    assert (figures["workflows_completed"], figures["business_effects"]) == (1, 1)
    assert figures["duplicate_business_effects"] == 0


@pytest.mark.parametrize("lanes", ["thread", "process"])
def test_the_worker_stands_before_the_same_transaction_on_another_connection(lab: Engine, lanes: LaneKind) -> None:
    def connections() -> set[int]:
        found = rows(lab, "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'A.%'")
        return {row["pid"] for row in found}

    with Stepper(lab, lanes=lanes) as stepper:
        stepper.play("A*2")
        before, (moved,) = connections(), stepper.move(Move("lose_answer", "A"))
        assert str(moved) == "A?: checkpoint plan unknown; stands before checkpoint plan"
        assert [one["step_id"] for one in read_rows(lab).steps] == [
            "classify",
            "plan",
        ]
        stepper.move(Move("go", "A"))
        assert before and not before & connections()
        assert stepper.line == "A*2 A? A"


def test_it_is_told_in_words_and_drawn(lab: Engine) -> None:
    played(lab, "A? A expire B*")
    history = lab.history("request-1")
    said = "PostgreSQL's answer to A's claim is lost; A cannot know what came of it"
    assert f"{said}." in sentences(history)
    picture = timeline(history)
    assert ">unheard<" in picture.svg and said in picture.text


def test_a_worker_that_does_not_know_of_its_claim_replays_nothing(lab: Engine) -> None:
    played(lab, "A*3 A! expire B? B expire A+ A*")
    told = timeline(lab.history("request-1")).text
    assert "A replays plan from its checkpoint" in told and "B replays" not in told


def test_the_tools_answer_is_lost_by_another_move(lab: Engine) -> None:
    with (
        Stepper(lab) as stepper,
        pytest.raises(BadSchedule, match=r'"A\?" loses PostgreSQL\'s answer, so A must stand'),
    ):
        stepper.play("A*4 A?")


# -- every schedule with it --------------------------------------------------------------------------------------------


def explored(lab: Engine, **options: Any) -> Exploration:
    return explore(lab, crashes=1, expiries=1, lost_replies=0, lost_commits=1, **options)


def test_the_engine_survives_every_schedule_with_one(lab: Engine) -> None:
    found = explored(lab)
    assert (
        found.ok
        and found.schedules
        and found.schedules > 5 * (explore(lab, crashes=1, expiries=1, lost_replies=0).schedules or 0)
    )
    assert "lost commits 1" in str(found)


def test_the_count_of_checkpoints_is_what_keeps_a_repeat_from_being_written_twice(lab: Engine) -> None:
    """No schedule without a lost answer shows what this guard is for."""
    finding = explored(lab, without=["checkpoint_count"]).findings[0]
    assert finding.line == "without=checkpoint_count A A? A*2"
    assert finding.invariant == "no workflow is stuck"


def test_a_lost_answer_costs_no_time(lab: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second in a row would make a worker wait before it asks again, each time that its run is played."""
    waited, real = list[float | None](), threading.Event.wait

    def noted(event: threading.Event, timeout: float | None = None) -> bool:
        waited.append(timeout)
        return real(event, timeout)

    monkeypatch.setattr("agentflow.lab.explorer.own_process.CAN_FORK", False)
    monkeypatch.setattr(threading.Event, "wait", noted)
    assert explore(lab, crashes=0, expiries=0, lost_replies=0, lost_commits=2).ok
    assert not [one for one in waited if one and one <= 1]  # the progress bar has a thread that waits longer
