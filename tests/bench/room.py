"""How long a click in the control room takes until everything that it changes is on screen, in a real JupyterLab."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.support import chromium
from tests.support.browser import jupyter_lab, open_notebook, run_all, shut, write_notebook
from tests.support.helpers import database_of_its_own

CELLS = (
    "from agentflow.lab.laboratory.laboratory import fresh_laboratory\nfrom agentflow.lab.room.widget import control_room\n"
    'engine = fresh_laboratory("bench_room")',
    "room = control_room(engine)\nroom",
)
# From the click event to the first frame after the last thing that a move draws: the page's own clock, no round trip of ours.
MEASURE = """\
() => new Promise((done, fail) => {
  const room = document.querySelector('.af-room:not(.still)');
  const line = () => room.querySelector('.twin').dataset.line, before = line();
  const step = [...room.querySelectorAll('.af-lane-A .af-step')][0];
  const began = performance.now();
  const seen = new MutationObserver(() => { if (line() !== before) {
    seen.disconnect(); requestAnimationFrame(() => done(performance.now() - began)); } });
  seen.observe(room, {childList: true, subtree: true, attributes: true});
  setTimeout(() => fail(new Error('nothing has changed within 20 s')), 20000);
  step.click();
})"""


def click_to_picture(url: str, rounds: int = 5) -> list[float]:
    """Milliseconds of each Step of the happy path (seven clicks a round) in Chromium, the database at `url`."""
    with (
        database_of_its_own(url) as own,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,
        jupyter_lab(Path(home), own) as lab,
        sync_playwright() as playwright,
    ):
        write_notebook(lab, "bench.ipynb", *CELLS)
        browser = playwright.chromium.launch(executable_path=chromium.find_chromium(), args=list(chromium.ARGUMENTS))
        page = browser.new_page(viewport={"width": 1400, "height": 1500})
        try:
            open_notebook(page, lab, "bench.ipynb")
            run_all(page)
            page.wait_for_selector(".af-room:not(.still) .af-step")
            return [took for _ in range(rounds) for took in _round(page)]
        finally:
            shut(page)
            browser.close()


def _round(page: Page) -> list[float]:
    took = [float(page.evaluate(MEASURE)) for _ in range(7)]
    page.get_by_role("button", name="Reset").click()
    page.wait_for_function("() => document.querySelector('.af-room:not(.still) .twin').dataset.line === ''")
    return took


def median_click(url: str, rounds: int = 5) -> float:
    """The median of click_to_picture(), in ms."""
    return statistics.median(click_to_picture(url, rounds))
