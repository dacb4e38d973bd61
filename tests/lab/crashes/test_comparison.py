"""The same function killed at the same points on several engines: what is left, what is recorded, and what cannot be compared."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentflow import Engine
from agentflow.errors import AgentFlowError
from agentflow.lab.crashes import comparison
from agentflow.lab.crashes.comparison import (
    AGENTFLOW,
    MEMORY,
    NAIVE,
    ON_DBOS,
    RECORD,
    RECORDED,
    EngineComparison,
    compare_engines,
)
from tests.conftest import rows

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "09-beyond-the-lab.ipynb"
POINTS = (
    *("before classify", "after classify", "before plan", "after plan"),
    *("before tool", "after tool", "after record", "before end"),
)


def two_charges(run: Any, order: Any) -> Any:
    """A step between two effects, and an event."""
    run.side_effect("charge", key="first", arguments=order)
    paid = run.wait_for_event("paid", "payment")
    run.step("note", lambda: paid)
    return run.side_effect("charge", key="second", arguments=order)


def raises(run: Any, order: Any) -> Any:
    return order["total"]


def own_tool(run: Any, order: Any) -> Any:
    return run.side_effect("charge", key="charge", tool=lambda call: 1)


@pytest.fixture
def without_dbos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "find_spec", lambda name: None)


@pytest.mark.usefixtures("without_dbos")
def test_a_plain_retry_doubles_the_effect_and_every_record_leaves_one(engine: Engine) -> None:
    found = compare_engines(engine)
    assert found.boundaries == POINTS
    assert found.problems == []
    cells = {column.name: found.column(column) for column in found.guard_sets}
    assert list(cells) == [NAIVE.name, MEMORY.name, AGENTFLOW.name, RECORDED.name]
    assert [cell.effects for cell in cells[NAIVE.name]] == [1, 1, 1, 1, 1, 2, 2, 2]
    assert [cell.executed_again for cell in cells[NAIVE.name]] == [0, 1, 1, 2, 2, 2, 2, 2]
    for name in (MEMORY.name, AGENTFLOW.name, RECORDED.name):
        assert [cell.effects for cell in cells[name]] == [1] * 8
        assert [cell.attempts for cell in cells[name]] == [1, 1, 1, 1, 1, 2, 1, 1]
        assert [cell.executed_again for cell in cells[name]] == [0, 1, 0, 1, 0, 0, 0, 0]
    killed, goes_on = {pid for cell in cells[AGENTFLOW.name] for pid, _ in cell.executions}, found.alone[AGENTFLOW.name]
    assert (len(killed), goes_on, found.kills) == (2, 8, 1)
    assert {cell.exit_code for cell in cells[AGENTFLOW.name]} == {-9}
    said = "DBOS is not installed: its column is recorded (version 3.4.0, 30 November 2026), not measured here. `make dbos`"
    assert said in repr(found)
    assert said.replace("`", "&#x60;") in found.picture().svg or said in found.picture().svg
    assert rows(engine, "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'compared%'") == []


@pytest.mark.usefixtures("without_dbos")
def test_a_function_of_ones_own_has_points_of_its_own_and_no_recorded_column(engine: Engine) -> None:
    found = compare_engines(engine, two_charges, {"total": 3}, events={"payment": {"by": "card"}})
    assert found.boundaries == (
        *("before tool first", "after tool first", "after record first", "before paid", "after paid", "before note"),
        *("after note", "before tool second", "after tool second", "after record second", "before end"),
    )
    assert [column.name for column in found.guard_sets] == [NAIVE.name, MEMORY.name, AGENTFLOW.name]
    assert [cell.effects for cell in found.column(AGENTFLOW)] == [2] * 11
    assert [cell.attempts for cell in found.column(AGENTFLOW)] == [2, 3, 2, 2, 2, 2, 2, 2, 3, 2, 2]
    assert [cell.effects for cell in found.column(NAIVE)] == [2, 3, 3, 3, 3, 3, 3, 3, 4, 4, 4]
    assert "DBOS is not installed: its column is left out." in repr(found)


@pytest.mark.usefixtures("without_dbos")
def test_a_process_that_lives_keeps_its_workflow_and_the_line_of_dbos_is_called_recorded(engine: Engine) -> None:
    told = comparison.resume_the_living(engine)
    lines = ("AgentFlow", "nothing: the lease is renewed", "and completes it", 1, 1), comparison.LIVING
    assert [tuple(row.values()) for row in told] == list(lines)
    assert "DBOS is not installed: its line is recorded (version 3.4.0, 30 November 2026), not measured here." in repr(
        told
    )


@pytest.mark.parametrize(
    ("function", "request_", "said"),
    [
        (raises, {}, "Undisturbed, the workflow ends by KeyError: 'total'. Nothing was compared; correct it."),
        (
            two_charges,
            1,
            "The workflow waits for the event 'payment'. Nothing was compared; give it: events={'payment': ...}.",
        ),
        (own_tool, 1, "Effects are counted in the simulated world: leave out `tool=` to compare engines."),
    ],
)
def test_what_cannot_be_compared_is_said_in_a_sentence(engine: Engine, function: Any, request_: Any, said: str) -> None:
    with pytest.raises(AgentFlowError, match=re.escape(said.removesuffix(". Nothing was compared; correct it."))):
        compare_engines(engine, function, request_)


def test_an_example_is_compared_by_its_name_and_an_unknown_name_is_a_sentence(engine: Engine) -> None:
    with pytest.raises(AgentFlowError, match="There is no workflow 'nobody'"):
        compare_engines(engine, "nobody")


def outputs() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(one["data"]["text/plain"]) for cell in cells for one in cell.get("outputs", ()) if "data" in one]


def test_the_record_is_what_the_notebook_has_measured_on_dbos() -> None:
    """nbval compares that output with DBOS each time; so the record that stands in for it is compared with the output."""
    (measured,) = (text for text in outputs() if "on each of 4 engines" in text)
    recorded = comparison._recorded(EngineComparison((RECORDED,), boundaries=tuple(RECORD)))
    said = [cell.sentence + "; " + cell.figures + "." for cell in recorded.column(RECORDED)]
    (living,) = (text for text in outputs() if text.startswith("Nobody is killed"))
    assert re.split("  +", living.splitlines()[-1])[1:] == [str(value) for value in comparison.LIVING[1:]]
    assert [line.replace(RECORDED.name, ON_DBOS.name) for line in said] == re.findall(
        r"^.*, DBOS: .*$", measured, re.MULTILINE
    )
