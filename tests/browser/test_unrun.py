"""Every notebook as it lies in a clone: never run here, so not trusted, without a kernel; the first look is a picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Page

from tests.support.browser import Lab, at_unrun, shot, wait_until
from tests.support.execute_notebooks import NOTEBOOKS
from tests.support.saved_words import words

FIRST, *REST = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
COURSE = [FIRST, *(pytest.param(name, marks=pytest.mark.long) for name in REST)]
NO_KERNEL = (
    "Cannot read properties of null (reading 'kernel')"  # what JupyterLab itself says of every notebook without one
)
PICTURES = "[...document.querySelectorAll('.jp-OutputArea-output img[src^=\"data:image/svg\"]')]"
SEEN = """() => [...document.querySelectorAll('.jp-OutputArea-output[data-mime-type="text/html"]')].map(output => {
    for (const folded of output.querySelectorAll('details')) folded.open = true;
    for (const image of output.querySelectorAll('img')) image.after(image.alt + ' ');
    return output.innerText;
})"""

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]


def saved_html(path: Path) -> Iterator[str]:
    """The HTML outputs of the notebook."""
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", []):
            if html := output.get("data", {}).get("text/html"):
                yield html


@pytest.mark.parametrize("name", COURSE)
def test_a_notebook_that_was_never_run_here_shows_its_pictures_and_all_its_words(
    tab: Page, lab: Lab, name: str
) -> None:
    saved = list(saved_html(NOTEBOOKS / name))
    with at_unrun(tab, lab, name) as trouble:
        wait_until(tab, f"count => {PICTURES}.length === count", sum(html.count("<img ") for html in saved))
        wait_until(tab, f"() => {PICTURES}.every(image => image.complete && image.naturalWidth > 0)")
        assert tab.locator(".jp-OutputArea-output svg").count() == 0
        tab.locator(".jp-OutputArea-output img").first.screenshot(path=shot(f"unrun-{name[:2]}"))
        assert [text.split() for text in tab.evaluate(SEEN)] == [words(html) for html in saved]
    assert set(trouble) <= {NO_KERNEL}
