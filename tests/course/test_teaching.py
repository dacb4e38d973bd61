"""The page for teachers is true: it names every stage, and each schedule in it can be played and comes out as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentflow import Engine
from agentflow.lab.course import stages
from agentflow.lab.laboratory.laboratory import PATIENT, schema_of
from agentflow.lab.notebook.tables import query
from agentflow.lab.schedule.grammar import parse
from agentflow.lab.schedule.stepper import Stepper

PAGE = Path(__file__).resolve().parents[2] / "docs" / "teaching.md"
TEXT = PAGE.read_text(encoding="utf-8")
SCHEDULES = re.findall(r"^- `([^`]+)` \((\w+), attempts (\d+), effects (\d+)\):", TEXT, re.MULTILINE)


def test_it_names_every_stage_with_its_minutes_in_order() -> None:
    told = re.findall(r"^\| (\d\d-[a-z-]+) \| (\d+) \|", TEXT, re.MULTILINE)
    assert told == [(stage.name, str(stage.minutes)) for stage in stages.COURSE]


def test_each_question_of_the_tutorial_is_asked_where_the_page_says() -> None:
    part = TEXT.split("## The tutorial's questions")[1].split("\n## ")[0]
    told = re.findall(r"^\| .+ \| (\d\d) \| `([a-z-]+)` \|$", part, re.MULTILINE)
    asked = {(stage.name[:2], question.name) for stage in stages.COURSE for question in stage.questions}
    assert len(told) == 7
    assert set(told) <= asked


def test_every_line_of_the_list_is_a_schedule_with_what_comes_of_it() -> None:
    part = TEXT.split("## Schedules to hand out")[1].split("\n## ")[0]
    assert len(SCHEDULES) == len(re.findall("^- ", part, re.MULTILINE)) >= 15
    assert [line for line, *_ in SCHEDULES if str(parse(line)) != line] == []


@pytest.mark.parametrize(("line", "status", "attempts", "effects"), SCHEDULES, ids=[line for line, *_ in SCHEDULES])
def test_a_schedule_comes_out_as_the_page_says(
    engine: Engine, line: str, status: str, attempts: str, effects: str
) -> None:
    engine.policy = PATIENT
    with Stepper(engine) as stepper:
        stepper.play(line)
    (world,) = query(engine, "SELECT coalesce(sum(attempts), 0)::int AS attempts, count(*) AS effects FROM tool_ledger")
    assert {row["status"] for row in engine.list_workflows()} == {status}
    assert world == {"attempts": int(attempts), "effects": int(effects)}


def test_a_person_s_schema_leaves_room_for_every_laboratory(monkeypatch: pytest.MonkeyPatch) -> None:
    """27 characters before the longest name are what a schema's name can hold."""
    found = re.search(r"at most (\d+) characters", TEXT)
    assert found
    monkeypatch.setenv("AGENTFLOW_SCHEMA", "a" * int(found[1]))
    longest = max(len(schema_of(stage.name[3:].replace("-", "_"))) for stage in stages.COURSE)
    assert longest == 50
