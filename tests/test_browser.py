"""The first lesson as a learner meets it: a real JupyterLab, a real browser, real clicks, in light and dark."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from agentflow import Database, Engine
from tests.browser import (  # noqa: F401
    PATIENCE,
    THEMES,
    Lab,
    browser,
    lab,
    open_notebook,
    overheard,
    own_url,
    run_all,
    shot,
    shut,
)
from tests.conftest import rows
from tests.helpers import eventually

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.fixture
def laboratory(own_url: str) -> Iterator[Engine]:  # noqa: F811
    """The rows of the first notebook, read from outside."""
    engine = Engine(Database(own_url, "start_here"))
    yield engine
    engine.close()


def _say(panel: Locator, text: str) -> None:
    expect(panel.locator(".af-say")).to_contain_text(text, timeout=PATIENCE)


@pytest.mark.parametrize(("name", "theme"), THEMES)
def test_a_learner_crashes_a_worker_in_the_gap_and_recovers_one_effect(
    browser: Browser,
    lab: Lab,
    laboratory: Engine,
    name: str,
    theme: str,
) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 1500})
    trouble = overheard(page)
    try:
        open_notebook(page, lab, "00-start-here.ipynb", theme)
        run_all(page)
        panel = page.locator(".af-panel")
        panel.get_by_role("button", name="Reset", exact=True).click()
        _say(panel, "Everything is gone")
        assert rows(laboratory, "SELECT * FROM {s}.workflows") == []
        panel.get_by_role("button", name="New request").click()
        _say(panel, "waits")
        for done in (
            "A claimed",
            "A committed checkpoint classify",
            "A committed checkpoint plan",
            "A committed intent",
            "The tool",
        ):
            panel.get_by_role("button", name="Step A").click()
            _say(panel, done)
        panel.get_by_role("button", name="Crash A").click()
        _say(panel, "A crashed before acknowledge resolve-account")
        expect(panel).to_contain_text("this is the acknowledgment gap")
        assert rows(laboratory, "SELECT status FROM {s}.action_intents") == [{"status": "PENDING"}]
        panel.screenshot(path=shot(f"panel-in-the-gap-{name}"))
        panel.get_by_role("button", name="Recover A").click()
        _say(panel, "B went on where A had left off: request-1 is completed.")
        expect(panel).to_contain_text("The engine believes what the world did.")
        expect(panel.get_by_role("row", name="resolve-account 1 2")).to_be_visible()
        panel.screenshot(path=shot(f"panel-recovered-{name}"))
        page.screenshot(path=shot(f"notebook-{name}"))
        assert rows(laboratory, "SELECT id, status, fence_token FROM {s}.workflows") == [
            {"id": "request-1", "status": "completed", "fence_token": 2}
        ]
        assert rows(laboratory, "SELECT attempts FROM {w}.tool_ledger") == [{"attempts": 2}]
        assert _unnamed(panel) == []
        panel.get_by_role("button", name="New request").click()
        _say(panel, "request-2 waits")
        _five_quick_clicks(page, panel.get_by_role("button", name="Step B"))
        eventually(lambda: _made(panel) + _ignored(panel) == 5)
        assert trouble == []
    finally:
        shut(page)


def _five_quick_clicks(page: Page, button: Locator) -> None:
    """A real mouse, faster than a person's double click."""
    box = button.bounding_box()
    assert box
    for _ in range(5):
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_timeout(80)


def _made(panel: Locator) -> int:
    """How many moves worker B has made, by what its button says comes next."""
    coming = panel.get_by_role("button", name="Step B").inner_text().split(": ")[1]
    order = ("claim", "checkpoint classify", "checkpoint plan", "intent", "tool", "acknowledge")
    return next(number for number, name in enumerate(order) if coming.startswith(name))


def _ignored(panel: Locator) -> int:
    """How many clicks the panel says it has ignored."""
    said = re.search(r"Too fast: (\d+)", panel.locator(".af-say").inner_text())
    return int(said[1]) if said else 0


def _unnamed(panel: Locator) -> list[str]:
    """What can take the focus and has no accessible name, or lets JupyterLab's one-key shortcuts through."""
    found: list[str] = panel.locator("button, input, summary").evaluate_all(
        """all => all.filter(e => !(e.innerText || e.labels?.[0]?.innerText || '').trim()
            || e.getAttribute('data-lm-suppress-shortcuts') !== 'true').map(e => e.outerHTML.slice(0, 200))"""
    )
    return found
