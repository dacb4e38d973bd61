"""What the notebooks show where nobody trusts them: every picture is an image that can be read, or its words are."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import nbformat
import pytest

from agentflow.lab.pictures.saved import saved
from tests.support.saved_words import on_github, words

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LEAST, WIDE, PHONE = 9.9, 846, 358  # px: the smallest text, JupyterLab with its sidebar, a phone

pytestmark = pytest.mark.notebook


def shown(path: Path) -> list[str]:
    """Every HTML output of the notebook, in order."""
    cells = nbformat.read(path, as_version=4).cells
    return [
        html
        for cell in cells
        for output in cell.get("outputs", [])
        if (html := output.get("data", {}).get("text/html"))
    ]


def images(html: str) -> list[dict[str, str]]:
    """The attributes of each image."""
    return [dict(re.findall(r'([\w-]+)="([^"]*)"', image)) for image in re.findall(r"<img\b[^>]*>", html)]


def drawn(image: dict[str, str]) -> str:
    """The SVG of an image."""
    head, _, svg = image["src"].partition(",")
    assert head == "data:image/svg+xml;charset=utf-8"
    return unquote(svg.replace("&amp;", "&"))


def smallest(svg: str) -> float:
    """The size of its smallest text."""
    return min(float(size) for size in re.findall(r"(?:font-size=['\"]|font: ?(?:\d+ )?)([\d.]+)", svg))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_nothing_that_is_saved_is_lost_where_nobody_trusts_it(path: Path) -> None:
    for html in shown(path):
        assert re.findall(r"<(?:style|svg|script)\b", html) == []
        assert words(on_github(html)) == words(html)
        assert html.count("<summary>The picture in words</summary><pre>") == len(images(html))
        assert all(image["alt"] for image in images(html))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_saved_picture_is_whole_on_paper_of_its_own_and_large_enough_to_read(path: Path) -> None:
    found = [image for html in shown(path) for image in images(html)]
    assert found
    for image in found:
        svg = drawn(image)
        ElementTree.fromstring(svg)  # an image is read as XML
        assert "prefers-color-scheme:dark" in svg and "--jp-" not in svg
        wide = float(image["width"])
        least = float(next(iter(re.findall(r"min-width:(\d+)px", image["style"])), 0))
        for room in (WIDE, PHONE):
            assert smallest(svg) * max(min(1, room / wide), least / wide) >= LEAST - 0.01, image["alt"]


def test_a_picture_as_it_was_saved_before_would_be_found_out() -> None:
    svg = (ROOT / "docs" / "pictures" / "timeline-acknowledgment-gap.svg").read_text(encoding="utf-8")
    assert words(on_github(svg)) != words(svg)
    assert words(on_github("<style>p{}</style><p>x</p>")) == ["p{}", "x"]
    assert words(on_github(saved(svg))) == words(saved(svg))
