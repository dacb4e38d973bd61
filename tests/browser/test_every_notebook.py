"""Every notebook in a real JupyterLab, run from the top: no cell, no page and no accessibility rule complains."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.support.browser import Lab, at_notebook, run_all
from tests.support.execute_notebooks import NOTEBOOKS

COURSE = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa"]}}

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", COURSE)
def test_a_notebook_runs_from_top_to_bottom_and_nothing_complains(tab: Page, lab: Lab, name: str) -> None:
    with at_notebook(tab, lab, name) as trouble:
        run_all(tab)
        found = Axe().run(tab, context=".jp-Notebook .jp-OutputArea", options=RULES)
        assert found.violations_count == 0, found.generate_report()
    assert trouble == []
