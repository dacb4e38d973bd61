"""The rendered course opens from the file system: nothing is fetched, everything is there, in light and dark."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Literal

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from agentflow import AgentFlowError
from agentflow.lab.notebook.live_view import NO_KERNEL
from agentflow.lab.pictures.saved import saved
from agentflow.lab.site.site import POLICY, PROMISE, build
from tests.support.browser import chromium_browser

ROOT = Path(__file__).resolve().parents[3]
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
PICTURE = '<svg role="img" aria-label="A picture" width="90" height="20"><text x="4" y="14">drawn</text></svg>'
TABLE = "<style>.t{color:inherit}</style><table class='t'><tr><th scope='col'>id</th></tr><tr><td>request-1</td></tr></table>"
LINKS = """Back to [the first](01-retry-or-checkpoint.ipynb#Check), to [a document](../docs/architecture.md), to
[PostgreSQL](https://www.postgresql.org/docs/18/explicit-locking.html).

![A dot](dot.svg)

| a | b |
|---|---|
| 1 | 2 |
"""


class Parts(HTMLParser):
    """What a page is made of: elements, their attributes, and what they would fetch."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The pages of a real notebook and of one with a picture, a table, links and an output too wide for a page."""
    folder = tmp_path_factory.mktemp("notebooks")
    real = ROOT / "notebooks" / "01-retry-or-checkpoint.ipynb"
    (folder / real.name).write_bytes(real.read_bytes())
    (folder / "dot.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"><circle r="4"/></svg>')
    outputs = [nbformat.v4.new_output("display_data", data={"text/html": shown}) for shown in (PICTURE, TABLE, TABLE)]
    kept = saved(PICTURE.replace("A picture", "Kept"))
    for data in ({"text/html": kept}, {"text/plain": NO_KERNEL}, {"text/plain": f"{NO_KERNEL} Or not."}):
        outputs.append(nbformat.v4.new_output("display_data", data=data))
    outputs.append(nbformat.v4.new_output("stream", text="wide <&> " * 60))
    cell = nbformat.v4.new_code_cell('if 1 < 2 and "x":  # why\n    draw(3)', execution_count=1, outputs=outputs)
    text = nbformat.v4.new_markdown_cell(f"# Drawn & seen\n\n{LINKS}")
    nbformat.write(nbformat.v4.new_notebook(cells=[text, cell]), folder / "02-drawn.ipynb")
    return build(sorted(folder.glob("*.ipynb")), tmp_path_factory.mktemp("site"))


def test_the_index_begins_with_a_picture_and_no_page_speaks_of_controls_that_it_has_not(site: list[Path]) -> None:
    index, first, drawn = site
    (picture,) = Parts(index).all("img")
    shown = (Parts(first).all("img") or Parts(drawn).all("img"))[0]
    assert picture["alt"] == shown["alt"] and picture["src"] == shown["src"].replace("&#39;", "'")
    assert picture["src"].startswith("data:image/svg+xml")
    assert drawn.read_text(encoding="utf-8").count(NO_KERNEL) == 1  # within another sentence


def test_the_index_leads_to_each_stage_and_each_stage_to_its_neighbours(site: list[Path]) -> None:
    index, first, second = site
    assert index.name == "index.html"
    assert PROMISE in index.read_text(encoding="utf-8")
    assert [link["href"] for link in Parts(index).all("a")][2:4] == [first.name, second.name]
    assert {"index.html", second.name} <= {link.get("href") for link in Parts(first).all("a")}
    assert {"index.html", first.name} <= {link.get("href") for link in Parts(second).all("a")}


def test_no_page_fetches_anything_and_every_local_link_leads_somewhere(site: list[Path]) -> None:
    for page in site:
        parts = Parts(page)
        assert not {tag for tag, _ in parts.elements} & {
            "script",
            "link",
            "iframe",
            "object",
            "embed",
            "video",
            "audio",
        }
        for tag, attributes in parts.elements:
            fetched = [
                value for name, value in attributes.items() if name in ("src", "srcset", "data", "poster", "xlink:href")
            ]
            assert all(value.startswith("data:") for value in fetched), (tag, attributes)
            assert not [name for name in attributes if name.startswith("on")]
        assert not re.search(r"@import|url\((?!data:)", page.read_text(encoding="utf-8"))
        for link in parts.all("a"):
            target, _, place = link.get("href", "").partition("#")
            if target.startswith("https:") or "href" not in link:
                continue
            other = page.parent / target if target else page
            assert other in site
            assert not place or place in {attributes.get("id") for _, attributes in Parts(other).elements}


def test_the_policy_of_each_page_lets_a_browser_fetch_nothing(site: list[Path]) -> None:
    for page in site:
        policies = [
            meta["content"] for meta in Parts(page).all("meta") if meta.get("http-equiv") == "Content-Security-Policy"
        ]
        assert policies == [POLICY]
        assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:;" in POLICY
        first_style = page.read_text(encoding="utf-8").index("<style>")
        assert page.read_text(encoding="utf-8").index("Content-Security-Policy") < first_style


def test_a_cell_that_failed_on_purpose_shows_its_error_and_nothing_of_the_machine(tmp_path: Path) -> None:
    failed = nbformat.v4.new_output("error", ename="LostLease", evalue="1 < 2", traceback=["/home/somebody/x.py"])
    cell = nbformat.v4.new_code_cell("late()", execution_count=1, outputs=[failed])
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "failed.ipynb")
    text = build([tmp_path / "failed.ipynb"], tmp_path / "site")[1].read_text(encoding="utf-8")
    assert "<pre>LostLease: 1 &lt; 2</pre>" in text
    assert "somebody" not in text


def test_a_link_to_a_file_that_is_no_page_leads_nowhere_and_a_source_on_the_web_stays(site: list[Path]) -> None:
    text = site[2].read_text(encoding="utf-8")
    assert "architecture.md" not in text
    assert "a document" in text
    assert 'href="https://www.postgresql.org/docs/18/explicit-locking.html"' in text
    assert 'href="01-retry-or-checkpoint.html#Check"' in text


def test_code_pictures_tables_and_text_are_all_there(site: list[Path]) -> None:
    text = site[2].read_text(encoding="utf-8")
    assert PICTURE in text
    assert len(Parts(site[2]).all("table")) == 3
    assert 'alt="A dot"' in text
    assert text.count("<style>.t{") == 1
    assert "wide &lt;&amp;&gt; wide" in text
    assert '<span class="k">if</span> <span class="m">1</span> &lt; ' in text
    committed = nbformat.read(ROOT / "notebooks" / "01-retry-or-checkpoint.ipynb", as_version=4)
    shown = [output for cell in committed.cells for output in cell.get("outputs", [])]
    tables = sum("<table" in output.get("data", {}).get("text/html", "") for output in shown)
    assert len(Parts(site[1]).all("table")) == tables > 0


def test_a_page_is_whole_for_those_who_do_not_see_it(site: list[Path]) -> None:
    for page in site:
        parts = Parts(page)
        assert parts.all("html") == [{"lang": "en"}]
        head = page.read_text(encoding="utf-8").partition("</head>")[0]  # a picture has titles of its own
        assert len(parts.all("h1")) == len(parts.all("main")) == head.count("<title>") == 1
        levels = [int(tag[1]) for tag, _ in parts.elements if re.fullmatch(r"h[1-6]", tag)]
        assert all(after <= before + 1 for before, after in pairwise(levels))
        assert all(picture.get("alt") for picture in parts.all("img"))
        assert all(nav.get("aria-label") for nav in parts.all("nav"))
        ids = Counter(attributes["id"] for _, attributes in parts.elements if "id" in attributes)
        assert [name for name, count in ids.items() if count > 1] == []


def test_building_again_leaves_no_page_of_a_notebook_that_is_gone(site: list[Path], tmp_path: Path) -> None:
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# X")]), tmp_path / "gone.ipynb")
    build([tmp_path / "gone.ipynb"], tmp_path)
    (tmp_path / "gone.ipynb").unlink()
    written = build([ROOT / "notebooks" / "01-retry-or-checkpoint.ipynb"], tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(written)


@pytest.mark.parametrize("source", ["https://example.org/x.png", "//example.org/x.png", "missing.svg"])
def test_a_picture_from_elsewhere_is_refused(source: str, tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(f"# X\n\n![a picture]({source})")])
    nbformat.write(notebook, tmp_path / "x.ipynb")
    with pytest.raises(AgentFlowError, match="no such picture in its folder"):
        build([tmp_path / "x.ipynb"], tmp_path / "site")


def test_a_notebook_that_was_not_executed_is_refused(tmp_path: Path) -> None:
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")]), tmp_path / "x.ipynb")
    with pytest.raises(AgentFlowError, match="was not executed to the end: the cell `1` never ran"):
        build([tmp_path / "x.ipynb"], tmp_path / "site")


def test_the_empty_cell_that_jupyterlab_adds_at_the_end_is_no_part_of_a_page(tmp_path: Path) -> None:
    """Shift+Enter on the last cell adds one, so whoever has finished the course has one in the last notebook."""
    title, empty = nbformat.v4.new_markdown_cell("# X"), nbformat.v4.new_code_cell("")
    nbformat.write(nbformat.v4.new_notebook(cells=[title, empty]), tmp_path / "x.ipynb")
    build([tmp_path / "x.ipynb"], tmp_path / "site")
    assert 'class="source"' not in (tmp_path / "site" / "x.html").read_text()


# --- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium_browser() as browser:
        yield browser


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that may ask nobody."""
    context = browser.new_context(offline=True)
    yield context.new_page()
    context.close()


@pytest.mark.browser
def test_every_page_opens_without_a_network_with_nothing_to_complain_of(site: list[Path], page: Page) -> None:
    asked: list[str] = []
    trouble: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    for file in site:
        asked.clear()
        page.goto(file.as_uri())
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), (
                f"{file.name} scrolls sideways"
            )
            found = Axe().run(page)
            assert found.violations_count == 0, f"{file.name}, {scheme}: {found.generate_report()}"
        assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]
    assert page.get_by_role("img", name="A picture").is_visible()
    assert page.get_by_role("img", name="A dot").evaluate("e => e.naturalWidth > 0")
    page.get_by_role("link", name="Before: Retry or checkpoint").first.click()
    assert page.url == site[1].as_uri()
    assert trouble == []


@pytest.mark.browser
def test_a_page_is_read_with_the_keyboard_alone(site: list[Path], page: Page) -> None:
    page.goto(site[1].as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.hash === '#main'")
    hint = page.get_by_text("Hint 1", exact=True)
    hint.focus()
    page.keyboard.press("Enter")
    assert page.get_by_text("random.randrange").is_visible()
    assert not page.get_by_text("recorded before it is used").is_visible()
