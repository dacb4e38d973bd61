"""The secret mission: every engine that may be drawn can be broken in as few moves as it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentflow import Engine
from agentflow.lab.course import stages
from agentflow.lab.course.checks import CheckFailed
from agentflow.lab.course.judging import NOT_SOLVED, judged
from agentflow.lab.course.mission import MISSIONS, Mission, broken_by, draw
from agentflow.lab.explorer.explore import explore
from agentflow.lab.schedule.grammar import Schedule, parse
from tests.conftest import rows
from tests.solutions import secret_mission

JUDGE = stages.outline("10-secret-mission").exercise("break_it").judge
NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "10-secret-mission.ipynb"
DRAWN = draw(seed=19)  # as in the notebook
KEYLESS = draw(seed=2)


def moves_of(mission: Mission, line: str) -> Schedule:
    return replace(parse(line), setting=mission.setting)


@pytest.mark.parametrize("mission", MISSIONS, ids=[str(mission.setting) for mission in MISSIONS])
def test_the_line_to_begin_with_breaks_the_engine_and_the_shortest_is_the_explorers(
    engine: Engine, mission: Mission
) -> None:
    assert broken_by(engine, moves_of(mission, mission.line)).moves == mission.moves
    assert broken_by(engine, moves_of(mission, mission.line)).sentence
    found = explore(without=mission.setting.without, names=mission.setting.names, progress=False).findings[0]
    assert found.moves == mission.shortest < mission.moves
    shortest = broken_by(engine, found.schedule)
    assert (shortest.moves, shortest.sentence) == (mission.shortest, found.sentence)
    assert not broken_by(engine, replace(found.schedule, setting=replace(mission.setting, without=()))).sentence


def test_a_seed_draws_the_same_engine_for_everybody_and_each_is_drawn_by_some_seed() -> None:
    assert (DRAWN.setting.without, KEYLESS.setting.without) == (("claim_reads_first",), ("idempotency_key",))
    assert "mission = draw(seed=19)" in NOTEBOOK.read_text()
    assert {draw(seed).setting for seed in range(30)} == {mission.setting for mission in MISSIONS}


def test_harm_that_would_need_more_moves_does_not_count(engine: Engine) -> None:
    held = broken_by(engine, moves_of(KEYLESS, "A*5 A! expire B"))
    assert (held.moves, held.sentence) == (8, "")
    assert held.ended == "request-1 is ACTION_PENDING, attempts 1, effects 1"


def test_the_line_to_beat_is_beaten_and_one_that_is_as_long_is_not_enough(engine: Engine) -> None:
    assert judged(JUDGE, stub, engine, DRAWN) == NOT_SOLVED
    said = judged(JUDGE, secret_mission.break_it, engine, DRAWN)
    assert said.startswith("Solved: 7 moves where the line to beat needs 10, and nobody can do it in fewer. ")
    assert judged(JUDGE, lambda: "A B A*3 B*3", engine, DRAWN).startswith(
        "Solved: 8 moves where the line to beat needs 10. "
    )
    with pytest.raises(CheckFailed, match=r"not in fewer moves.*line to beat is 10 moves, A B A\*5 B\*\. Which"):
        judged(JUDGE, lambda: DRAWN.line, engine, DRAWN)
    assert rows(engine, "SELECT * FROM {s}.workflows") == []


def test_who_broke_the_engine_gets_no_advice_for_a_workflows_own_code(engine: Engine) -> None:
    broke = broken_by(engine, moves_of(DRAWN, "A B A*2 B*3"))
    assert broke.guilty.endswith("asked for step 'classify' again)")


def test_a_mission_says_which_engine_and_what_it_does(engine: Engine) -> None:
    assert str(DRAWN).startswith("The engine to break: without=claim_reads_first\nA claim reads")
    assert "<p>A claim reads a runnable row" in DRAWN._repr_html_()


def stub() -> str:
    raise NotImplementedError


LINES: list[tuple[Any, str]] = [
    ("A*5 A! expire B*", r"not in fewer moves.*line to beat is 9 moves, A\*5 A! expire B\*\."),
    ("A*4 A/ A due A*2", "Broken, but not in fewer moves. .*after 9 moves"),
    ("A*", "holds: after 7 moves request-1 is COMPLETED, attempts 1, effects 1"),
    ("A*5 A! expire B", "holds: after 8 moves request-1 is ACTION_PENDING"),
    ("A*5 forget expire B*2", "The real engine breaks on this line too.*Leave `forget` out"),
    ("without=intent A*", "The mission sets the engine"),
    ("A*5 expire expire B*2", "expire"),
    ("A*5 B?", "B?"),
    (None, "does it end with `return`"),
    (8, "Return a schedule"),
]


@pytest.mark.parametrize(("line", "hint"), LINES, ids=[str(line) for line, _ in LINES])
def test_a_line_that_breaks_nothing_or_too_late_is_told_so(engine: Engine, line: Any, hint: str) -> None:
    with pytest.raises(CheckFailed, match=hint):
        judged(JUDGE, lambda: line, engine, KEYLESS)
