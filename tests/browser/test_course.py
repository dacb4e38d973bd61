"""A question in a real JupyterLab: answered by clicks, kept before the reveal, and still there after the kernel is gone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from agentflow import Database, Engine
from agentflow.lab.course.record import predicted
from tests.support.browser import IDLE, PATIENCE, Lab, at_notebook, cell_of, run, shot, wait_until
from tests.support.helpers import eventually

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

NOTEBOOK, ASKED, TASK = "01-retry-or-checkpoint", "over-both-runs", "help_desk"


@pytest.fixture
def kept(own_url: str) -> Iterator[Engine]:
    """The course's rows, read from outside."""
    engine = Engine(Database(own_url, "course"))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def page(tab: Page, lab: Lab) -> Iterator[Page]:
    """The notebook, opened once and not run; what the page complains of fails the test."""
    with at_notebook(tab, lab, f"{NOTEBOOK}.ipynb") as trouble:
        yield tab
    assert trouble == []


def test_a_prediction_is_clicked_kept_and_compared_also_by_the_next_kernel(page: Page, kept: Engine) -> None:
    asked = cell_of(page, "stage.predict")
    run(page, 0, asked)
    question = page.locator(".af-ask").first
    question.get_by_role("button", name="I am certain").click()
    expect(question).to_contain_text("Choose an option first")
    question.get_by_text("2. 5 steps, 1 e-mail").click()
    question.get_by_role("button", name="I am certain").click()
    expect(question).to_contain_text("You answered 2 (certain): 5 steps, 1 e-mail.")
    question.screenshot(path=shot("question-answered"))
    found = Axe().run(page, context=".af-ask")
    assert found.violations_count == 0, found.generate_report()
    row = kept.get_workflow(f"{NOTEBOOK}:1") or {}
    assert row["events"] == {predicted(ASKED): {"answer": 2, "sure": "certain"}}
    assert question.get_by_role("radio").evaluate_all("all => all.every(e => e.disabled)")
    assert question.locator("button, input").evaluate_all("all => all.every(e => e.dataset.lmSuppressShortcuts)")
    page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    wait_until(page, IDLE)
    run(page, 0, cell_of(page, "stage.reveal"))
    revealed = page.get_by_text("You answered 2 (certain): 5 steps, 1 e-mail. That would be true if finished steps")
    expect(revealed).to_be_visible(timeout=PATIENCE)
    expect(page.locator(".af-ask").first).to_contain_text("You answered 2 (certain)")


def test_hints_are_clicked_one_at_a_time_and_kept(page: Page, kept: Engine) -> None:
    run(page, 0, 1)
    place = cell_of(page, "stage.exercise")
    run(page, place, place)
    hints = page.locator(".af-ask").last
    expect(hints).to_contain_text("Hints shown: 0 of 3.", timeout=PATIENCE)
    for number in (1, 2, 3):
        hints.get_by_role("button", name="Show the next hint").click()
        expect(hints).to_contain_text(f"Hints shown: {number} of 3.")
        assert f"Hint {number + 1}:" not in hints.inner_text()
    hints.screenshot(path=shot("hints"))
    eventually(lambda: len((kept.get_workflow(f"{NOTEBOOK}/{TASK}") or {})["events"]) == 3)
