"""How long a click in the control room takes until everything that it changes is on screen, over the bare update of a
`widgets.HTML` in the same page of a real JupyterLab."""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.bench.yardsticks import Ratio, of_pairs
from tests.support import chromium
from tests.support.browser import jupyter_lab, open_notebook, run_all, shut, write_notebook
from tests.support.helpers import database_of_its_own

CELLS = (
    "from agentflow.lab.laboratory.laboratory import fresh_laboratory\nfrom agentflow.lab.room.widget import control_room\n"
    'engine = fresh_laboratory("bench_room")',
    "room = control_room(engine)\nroom",
    """\
import ipywidgets
bare, button = ipywidgets.HTML("0"), ipywidgets.Button(description="bare")
bare.add_class("bare"), button.add_class("bare-click")
button.on_click(lambda _: setattr(bare, "value", str(int(bare.value) + 1)))
ipywidgets.VBox([button, bare])""",
)
ROOM = (".af-room:not(.still)", ".af-lane-A .af-step", ".twin")
BARE = (".widget-vbox:has(> .bare)", ".bare-click", ".bare .widget-html-content")
# From the click event to the first frame after the last thing that a move draws: the page's own clock, no round trip of ours.
MEASURE = """\
([where, click, shown]) => new Promise((done, fail) => {
  const root = document.querySelector(where);
  const now = () => { const it = root.querySelector(shown); return it.dataset.line ?? it.textContent; }, before = now();
  const button = root.querySelector(click);
  const began = performance.now();
  const seen = new MutationObserver(() => { if (now() !== before) {
    seen.disconnect(); requestAnimationFrame(() => done((performance.now() - began) / 1000)); } });
  seen.observe(root, {childList: true, subtree: true, attributes: true});
  setTimeout(() => fail(new Error('nothing has changed within 20 s')), 20000);
  button.click();
})"""


def click_over_bare_update(url: str, rounds: int = 5) -> Ratio:
    """Each Step of the happy path (seven clicks a round) over a bare update, by turns in Chromium, the database at `url`."""
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
            page.wait_for_selector(".bare-click")
            return of_pairs([pair for _ in range(rounds) for pair in _round(page)])
        finally:
            shut(page)
            browser.close()


def _round(page: Page) -> list[tuple[float, float]]:
    took = [(float(page.evaluate(MEASURE, ROOM)), float(page.evaluate(MEASURE, BARE))) for _ in range(7)]
    page.get_by_role("button", name="Reset").click()
    page.wait_for_function("() => document.querySelector('.af-room:not(.still) .twin').dataset.line === ''")
    return took
