"""The secret mission: every engine that may be drawn can be broken in as few moves as is said, and records are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from agentflow import Engine
from agentflow.lab.course import stages
from agentflow.lab.course.checks import CheckFailed
from agentflow.lab.course.exercise import NOT_SOLVED, SOLVED, judged
from agentflow.lab.course.mission import MISSIONS, Mission, broken_by, class_record, draw, keep_record
from agentflow.lab.explorer.explore import explore
from agentflow.lab.laboratory import laboratory
from agentflow.lab.laboratory.scratch_schema import new_name
from agentflow.lab.schedule.grammar import Schedule, parse
from tests.conftest import rows
from tests.solutions import secret_mission

JUDGE = stages.outline("10-secret-mission").exercise("break_it").judge
NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "10-secret-mission.ipynb"
DRAWN = draw(seed=19)  # as in the notebook
KEYLESS = draw(seed=2)


@pytest.fixture
def course(engine: Engine, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A course schema of its own, of which nothing is known yet."""
    schema = new_name("course")
    monkeypatch.setenv("AGENTFLOW_COURSE", schema)
    monkeypatch.setenv("DATABASE_URL", url)
    laboratory.let_go("course", "record")
    yield schema
    laboratory.let_go("course", "record")
    with engine.database.alchemy.begin() as connection:
        connection.execute(text(f'DROP SCHEMA IF EXISTS "{schema}", "{schema}_world" CASCADE'))


def moves_of(mission: Mission, line: str) -> Schedule:
    return replace(parse(line), setting=mission.setting)


@pytest.mark.parametrize("mission", MISSIONS, ids=[mission.name for mission in MISSIONS])
def test_the_line_to_begin_with_breaks_the_engine_and_the_shortest_is_the_explorers(url: str, mission: Mission) -> None:
    assert broken_by(url, moves_of(mission, mission.begin)).moves == mission.begin_moves
    assert broken_by(url, moves_of(mission, mission.begin)).sentence
    found = explore(without=mission.setting.without, names=mission.setting.names, progress=False).findings[0]
    assert found.moves == mission.shortest < mission.begin_moves
    shortest = broken_by(url, found.schedule)
    assert (shortest.moves, shortest.sentence) == (mission.shortest, found.sentence)
    assert not broken_by(url, replace(found.schedule, setting=replace(mission.setting, without=()))).sentence


def test_a_seed_draws_the_same_engine_for_everybody_and_each_is_drawn_by_some_seed() -> None:
    assert (DRAWN.name, KEYLESS.name) == ("claim_reads_first", "idempotency_key")
    assert "mission = draw(seed=19)" in NOTEBOOK.read_text()
    assert {draw(seed).name for seed in range(30)} == {mission.name for mission in MISSIONS}


def test_harm_that_would_need_more_moves_does_not_count(url: str) -> None:
    held = broken_by(url, moves_of(KEYLESS, "A*5 A! expire B"))
    assert (held.moves, held.sentence) == (8, "")
    assert held.ended == "request-1 is ACTION_PENDING, attempts 1, effects 1"


def test_the_record_is_beaten_kept_and_equalled(engine: Engine, course: str) -> None:
    assert judged(JUDGE, stub, engine, DRAWN) == NOT_SOLVED
    assert "10 moves: A B A*5 B*" in str(class_record(DRAWN))
    said = judged(JUDGE, secret_mission.break_it, engine, DRAWN)
    assert said.startswith(f"{SOLVED}: the class record was 10, and is yours now with 7.")
    laboratory.let_go("course", "record")  # another kernel, another day
    assert re.search(r"is 7 moves, since \d{4}-\d\d-\d\d$", str(class_record(DRAWN)))
    said = judged(JUDGE, lambda: "B A B*2 A*3", engine, DRAWN)
    assert said.startswith(f"{SOLVED}: as short as the class record (7 moves: A B A*2 B*3)")  # who was first stays
    assert "9 moves" in str(class_record(draw(seed=1)))
    assert rows(engine, "SELECT * FROM {s}.workflows") == []
    kept = rows(engine, f'SELECT id, status FROM "{course}".workflows')
    assert kept == [{"id": "class record/claim_reads_first", "status": "waiting"}]


def test_a_players_line_is_told_only_to_who_has_found_one_as_short(engine: Engine, course: str) -> None:
    assert keep_record(DRAWN, 8, "A B A*3 B*3") == ""
    assert "A B A*3" not in str(class_record(DRAWN))
    with pytest.raises(CheckFailed, match=r"class record is 8 moves, since .*\. Which") as longer:
        judged(JUDGE, lambda: "A B A*5 B*", engine, DRAWN)
    assert "A B A*3" not in str(longer.value)
    with pytest.raises(CheckFailed, match=r"not in fewer moves.*class record is 8 moves: A B A\*3 B\*3\."):
        judged(JUDGE, lambda: "A B A*3 B*3", engine, DRAWN)


def test_no_advice_for_a_workflows_own_code_is_given_to_who_broke_the_engine(url: str) -> None:
    broke = broken_by(url, moves_of(DRAWN, "A B A*2 B*3"))
    assert "asked for step 'classify' again)" in broke.guilty


def test_a_mission_says_which_engine_and_what_it_does(engine: Engine) -> None:
    assert str(DRAWN).startswith("The engine to break: without=claim_reads_first\nA claim reads")
    assert "<p>A claim reads a runnable row" in DRAWN._repr_html_()


def stub() -> str:
    raise NotImplementedError


LINES: list[tuple[Any, str]] = [
    ("A*5 A! expire B*", r"not in fewer moves.*class record is 9 moves: A\*5 A! expire B\*\."),
    ("A*4 A/ A due A*2", "Broken, but not in fewer moves. .*after 9 moves"),
    ("A*", "holds: after 7 moves request-1 is COMPLETED, attempts 1, effects 1"),
    ("A*5 A! expire B", "holds: after 8 moves request-1 is ACTION_PENDING"),
    ("A*5 forget expire B*2", "The real engine breaks on this line too.*Leave `forget` out"),
    ("without=intent A*", "The mission brings its engine"),
    ("A*5 expire expire B*2", "expire"),
    ("A*5 B?", "B?"),
    (None, "does it end with `return`"),
    (8, "A schedule is a text"),
]


@pytest.mark.parametrize(("line", "hint"), LINES, ids=[str(line) for line, _ in LINES])
def test_a_line_that_breaks_nothing_or_too_late_is_told_so(engine: Engine, course: str, line: Any, hint: str) -> None:
    with pytest.raises(CheckFailed, match=hint):
        judged(JUDGE, lambda: line, engine, KEYLESS)


def test_a_record_that_cannot_be_kept_does_not_hide_the_solution(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/nothing")
    laboratory.let_go("course", "record")
    said = judged(JUDGE, secret_mission.break_it, engine, DRAWN)
    assert said.startswith(SOLVED)
    assert "It could not be kept." in said
    assert "Nobody's record can be read now" in str(class_record(DRAWN))
