"""The first lesson as a learner meets it: a real JupyterLab, a real browser, real clicks, in light and dark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from agentflow import Database, Engine
from tests.conftest import rows
from tests.support.browser import PATIENCE, Lab, at_notebook, in_each_theme, run_all, shot

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.fixture
def laboratory(own_url: str) -> Iterator[Engine]:
    """The rows of the first notebook, read from outside."""
    engine = Engine(Database(own_url, "start_here"))
    yield engine
    engine.close()


def _says(room: Locator, text: str) -> None:
    expect(room.locator(".af-say")).to_contain_text(text, timeout=PATIENCE)


def test_a_learner_crashes_a_worker_in_the_gap_and_recovers_one_effect(tab: Page, lab: Lab, laboratory: Engine) -> None:
    with at_notebook(tab, lab, "00-start-here.ipynb") as trouble:
        run_all(tab)
        expect(tab.get_by_text("official Jupyter news")).to_have_count(0)
        room = tab.locator(".af-room:not(.still)")
        worker = room.get_by_role("group", name="worker A")
        room.get_by_role("button", name="Reset").click()
        _says(room, "Nothing has happened yet")
        assert rows(laboratory, "SELECT * FROM {s}.workflows") == []
        for done in (
            "2. A claims it",
            "3. A commits checkpoint classify",
            "4. A commits",
            "5. A commits",
            "6. A calls",
        ):
            worker.get_by_role("button", name="Step").click()
            _says(room, done)
        worker.get_by_role("button", name="Crash").click()
        _says(room, "7. A crashes before acknowledge resolve-account")
        assert rows(laboratory, "SELECT status FROM {s}.action_intents") == [{"status": "PENDING"}]
        for name in in_each_theme(tab):
            room.screenshot(path=shot(f"start-here-in-the-gap-{name}"))
        worker.get_by_role("button", name="Recover").click()
        _says(room, "12. B commits complete with token 2.")
        for name in in_each_theme(tab):
            room.screenshot(path=shot(f"start-here-recovered-{name}"))
            tab.screenshot(path=shot(f"notebook-{name}"))
        assert rows(laboratory, "SELECT id, status, fence_token FROM {s}.workflows") == [
            {"id": "request-1", "status": "completed", "fence_token": 2}
        ]
        assert rows(laboratory, "SELECT attempts FROM {w}.tool_ledger") == [{"attempts": 2}]
    assert trouble == []
