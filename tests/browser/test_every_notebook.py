"""Every notebook in a real JupyterLab, run from the top: no cell, no page and no accessibility rule complains."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from tests.support.browser import Lab, open_notebook, overheard, run_all, shut
from tests.support.execute_notebooks import NOTEBOOKS

COURSE = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa"]}}

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", COURSE)
def test_a_notebook_runs_from_top_to_bottom_and_nothing_complains(browser: Browser, lab: Lab, name: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 1500})
    trouble = overheard(page)
    try:
        open_notebook(page, lab, name)
        run_all(page)
        found = Axe().run(page, context=".jp-Notebook .jp-OutputArea", options=RULES)
        assert found.violations_count == 0, found.generate_report()
        assert trouble == []
    finally:
        shut(page)
        page.close()
