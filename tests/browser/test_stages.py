"""Two stages as a learner goes through them, from the first cell to the last: predictions, workers and exercises by clicks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from agentflow import Database, Engine
from tests.conftest import rows
from tests.solutions import secret_mission, the_acknowledgment_gap
from tests.support.browser import PATIENCE, THEMES, Lab, at_notebook, cell_errors, cell_of, run, shot
from tests.support.helpers import eventually

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]


@dataclass
class Learner:
    """Somebody who sits before one notebook; `at` is the cell that comes next."""

    page: Page
    engine: Engine
    at: int = 0

    def run_to(self, text: str) -> None:
        """The cells up to the first one with this text were run."""
        last = cell_of(self.page, text)
        assert last >= 0, text
        run(self.page, self.at, last)
        self.at = last + 1

    def predicts(self, name: str, option: str) -> None:
        """The question was reached and answered by a click on an option, and one on how sure."""
        self.run_to(f'stage.predict("{name}")')
        question = self.page.locator(".af-ask").last
        question.get_by_text(option).click()
        question.get_by_role("button", name="I am certain").click()
        expect(question).to_contain_text(f"You answered {option[0]} (certain)", timeout=PATIENCE)

    @property
    def room(self) -> Locator:
        return self.page.locator(".af-room:not(.still)").first

    def click(self, name: str, lane: str = "") -> None:
        """The button was clicked, and the schedule has grown."""
        before = self.line
        self.button(name, lane).click()
        expect(self.room.get_by_label("schedule")).not_to_have_value(before, timeout=PATIENCE)

    def button(self, name: str, lane: str = "") -> Locator:
        place = self.room.get_by_role("group", name=f"worker {lane}") if lane else self.room
        return place.get_by_role("button", name=re.compile(f"^{name}"))

    @property
    def line(self) -> str:
        return self.room.get_by_label("schedule").input_value()

    def says(self, text: str) -> None:
        expect(self.room.locator(".af-say")).to_contain_text(text, timeout=PATIENCE)

    def sees(self, text: str) -> None:
        expect(self.page.get_by_text(text).last).to_be_visible(timeout=PATIENCE)

    def solves(self, function: Callable[..., Any]) -> None:
        """The stub holds the solution, and the check after it says so."""
        self.run_to("stage.exercise(")
        place = cell_of(self.page, f"def {function.__name__}(")
        self.page.evaluate(
            "([n, text]) => jupyterapp.shell.currentWidget.content.widgets[n].model.sharedModel.setSource(text)",
            [place, inspect.getsource(function)],
        )
        self.run_to("stage.check(")
        self.sees("Solved: ")

    def ends(self) -> None:
        """The rest was run; no cell of the notebook shows an error, and none was left out."""
        run(self.page, self.at)
        assert cell_errors(self.page) == []

    def world(self) -> dict[str, Any]:
        """What the laboratory holds, read from outside."""
        effects = rows(self.engine, "SELECT attempts FROM {w}.tool_ledger")
        intents = [row["status"] for row in rows(self.engine, "SELECT status FROM {s}.action_intents")]
        state = [row["state"] for row in rows(self.engine, "SELECT state FROM {s}.workflows")]
        return {
            "state": state,
            "intents": intents,
            "effects": len(effects),
            "attempts": [e["attempts"] for e in effects],
        }


@pytest.fixture
def sits(tab: Page, lab: Lab, own_url: str) -> Iterator[Callable[[str, str], Learner]]:
    """A learner before a notebook, in a theme; what the page complains of fails the test."""
    heard: list[list[str]] = []
    with ExitStack() as opened:

        def sit(stem: str, theme: str) -> Learner:
            schema = stem.split("-", 1)[1].replace("-", "_")
            engine = opened.enter_context(closing(Engine(Database(own_url, schema))))
            heard.append(opened.enter_context(at_notebook(tab, lab, f"{stem}.ipynb", theme)))
            tab.evaluate(
                "() => jupyterapp.commands.execute('notebook:clear-all-cell-outputs')"
            )  # what is seen is of this run
            return Learner(tab, engine)

        yield sit
    assert [trouble for trouble in heard if trouble] == []


def test_the_gap_is_opened_closed_and_understood_by_clicks(sits: Callable[[str, str], Learner]) -> None:
    learner = sits("04-the-acknowledgment-gap", THEMES[0][1])
    learner.predicts("after-the-crash", "2. ACTION_PENDING")
    learner.run_to("control_room(")
    learner.click("Step: tool", "A")
    learner.says("business effect 1")
    learner.click("Crash", "A")
    learner.says("the effect exists, the engine does not know")
    gap = {"state": ["ACTION_PENDING"], "intents": ["PENDING"], "effects": 1, "attempts": [1]}
    assert learner.world() == gap
    learner.page.screenshot(path=shot("stage-04-in-the-gap"))
    learner.run_to("stage.reveal(")
    learner.sees("You predicted it (certain).")
    assert learner.world() == gap
    learner.click("Recover", "A")
    learner.says("Recover A stands for: expire B*")
    closed = {"state": ["COMPLETED"], "intents": ["ACKNOWLEDGED"], "effects": 1, "attempts": [2]}
    assert learner.world() == closed
    learner.predicts("forgotten-key", "2. two effects")
    learner.predicts("without-an-intent", "1. the effect is doubled")
    learner.run_to('stage.reveal("without-an-intent")')
    learner.sees("the intent protected the effect")
    learner.run_to("stage.summary(")
    learner.sees("Predicted: 3 of 3. Right: 2.")
    assert learner.world() == closed
    learner.solves(the_acknowledgment_gap.key_for)
    learner.ends()
    found = Axe().run(learner.page, context=".jp-Notebook .jp-OutputArea-output")
    assert found.violations_count == 0, found.generate_report()


def test_the_race_is_won_once_and_the_line_to_beat_is_beaten_by_clicks(sits: Callable[[str, str], Learner]) -> None:
    learner = sits("10-secret-mission", THEMES[1][1])
    learner.predicts("two-recoverers", "4. one, one effect")
    learner.run_to('stage.reveal("two-recoverers")')
    learner.predicts("late-acknowledgment", "2. it is refused, and nothing changes")
    learner.run_to("control_room(")
    learner.click("Step: acknowledge", "B")
    learner.says("refused, 0 rows, nothing changed")
    done = {"state": ["COMPLETED"], "intents": ["ACKNOWLEDGED"], "effects": 1}
    assert learner.world() == {**done, "attempts": [3]}
    learner.page.screenshot(path=shot("stage-10-refused"))
    learner.room.get_by_label("schedule").fill("A*5 A! A+ expire")
    learner.button("Run").click()
    eventually(lambda: learner.world()["state"] == ["ACTION_PENDING"] and learner.line == "A*5 A! A+ expire")
    learner.click("Race")
    claimed = rows(
        learner.engine, "SELECT worker FROM {s}.history WHERE fence_token = 2 AND event = 'workflow_claimed'"
    )
    assert len(claimed) == 1
    winner = claimed[0]["worker"][0]
    for coming in ("tool", "acknowledge", "complete"):
        learner.click(f"Step: {coming}", winner)
    assert learner.world() == {**done, "attempts": [2]}
    learner.run_to("mission = draw(")
    learner.sees("The line to beat: 10 moves, A B A*5 B*")
    learner.solves(secret_mission.break_it)
    learner.sees("7 moves where the line to beat needs 10, and nobody can do it in fewer")
    learner.ends()
    learner.sees("Kept: PostgreSQL keeps running")
    found = Axe().run(learner.page, context=".jp-Notebook .jp-OutputArea-output")
    assert found.violations_count == 0, found.generate_report()
