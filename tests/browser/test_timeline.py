"""Pictures as a browser really draws them: with its own font, no two texts touch and none leaves the paper; contrast holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from agentflow import Database, Engine
from agentflow.lab.pictures.timeline import timeline
from tests.support.histories import ALL

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

TOUCHING = """() => {
  const found = [];
  for (const svg of document.querySelectorAll('svg')) {
    const texts = [...svg.querySelectorAll('text')].map(t => [t, t.getBBox(), t.getScreenCTM().f]);
    texts.forEach(([a, A, f], i) => {
      if (A.x < 0 || A.x + A.width > svg.viewBox.baseVal.width) found.push([svg.dataset.name, a.textContent, 'off']);
      for (const [b, B, g] of texts.slice(i + 1)) {
        if (f !== g) continue;
        const wide = Math.min(A.x + A.width, B.x + B.width) - Math.max(A.x, B.x);
        const tall = Math.min(A.y + A.height, B.y + B.height) - Math.max(A.y, B.y);
        if (wide > 0.5 && tall > 2.5) found.push([svg.dataset.name, a.textContent, b.textContent, wide]);
      }
    });
  }
  return found;
}"""

CONTRAST = """() => {
  const parts = css => css.match(/[\\d.]+/g).map(Number);
  const over = (c, p) => c.length < 4 ? c : [0, 1, 2].map(i => c[i] * c[3] + p[i] * (1 - c[3]));
  const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + .05) / (y + .05); };
  const svg = document.querySelector('svg'), paper = parts(getComputedStyle(svg.querySelector('rect')).fill).slice(0, 3);
  const ink = parts(getComputedStyle(svg).color);
  const seen = { text: 99, marks: 99 };
  for (const t of svg.querySelectorAll('text')) {
    const fill = over(parts(getComputedStyle(t).fill), paper);
    const on = t.classList.contains('inv') ? over(ink, paper) : paper;
    seen.text = Math.min(seen.text, ratio(fill, on));
  }
  for (const m of svg.querySelectorAll('[stroke^="var(--"],[fill^="var(--"]')) {
    for (const name of ['stroke', 'fill']) {
      const said = m.getAttribute(name) || '';
      if (/--[ABC]\\)/.test(said) && !m.hasAttribute('opacity'))
        seen.marks = Math.min(seen.marks, ratio(parts(getComputedStyle(m)[name]), paper));
    }
  }
  return seen;
}"""

JUPYTER = {
    "light": {"layout-color1": "#fff", "border-color2": "#e0e0e0", "ui-font-color1": "rgba(0,0,0,.87)"},
    "dark": {"layout-color1": "#212121", "border-color2": "#424242", "ui-font-color1": "rgba(255,255,255,.87)"},
}
MUTED = {"light": "rgba(0,0,0,.54)", "dark": "rgba(255,255,255,.54)"}


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    yield page
    page.close()


@pytest.fixture(scope="module")
def histories(shared_database: Database) -> Iterator[dict[str, Any]]:
    engine, made = Engine(shared_database), {}
    for name, make in ALL.items():
        engine.reset_database()
        made[name] = make(engine)
    engine.reset_database()
    yield made
    engine.world.database.close()


def body(histories: dict[str, Any], **options: Any) -> str:
    drawn = {name: timeline(rows, **options).svg for name, rows in histories.items()}
    return "".join(svg.replace("<svg ", f'<svg data-name="{name}" ', 1) for name, svg in drawn.items())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compact": True},
        {"compact": True, "live": True},
        {"axis": "milliseconds"},
        {"fold": True},
        {"seconds": True},
    ],
    ids=str,
)
def test_no_two_texts_touch_as_the_browser_draws_them(
    page: Page, histories: dict[str, Any], options: dict[str, Any]
) -> None:
    page.set_content(f"<meta charset='utf-8'><body>{body(histories, **options)}")
    assert page.evaluate(TOUCHING) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("jupyter", [True, False], ids=["in JupyterLab", "elsewhere"])
def test_text_and_marks_keep_their_contrast(page: Page, histories: dict[str, Any], theme: str, jupyter: bool) -> None:
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    tokens = {**JUPYTER[theme], "ui-font-color2": MUTED[theme]} if jupyter else {}
    style = "".join(f"--jp-{name}:{value};" for name, value in tokens.items())
    page.set_content(f"<meta charset='utf-8'><body style='{style}'>{timeline(histories['three_workers']).svg}")
    seen = page.evaluate(CONTRAST)
    assert seen["text"] >= 4.5
    assert seen["marks"] >= 3.0
    page.emulate_media(color_scheme="light")


@pytest.mark.parametrize("narrow", [828, 948, 1448])
def test_a_static_picture_fits_a_page_of_jupyterlab_and_its_text_is_nine_pixels_high(
    page: Page, histories: dict[str, Any], narrow: int
) -> None:
    """The widths that JupyterLab leaves a picture at 1,280, 1,400 and 1,900 px, with its file browser open."""
    for name in ("acknowledgment_gap", "forgotten_key", "stale_worker", "three_workers", "sixty_entries"):
        html = timeline(histories[name]).html
        page.set_content(f"<meta charset='utf-8'><body style='margin:0;width:{narrow}px'>{html}")
        scrolls, drawn, whole = page.evaluate(
            """() => { const box = document.querySelector('.af-timeline > div'), svg = box.querySelector('svg');
              return [box.scrollWidth - box.clientWidth, svg.getBoundingClientRect().width, +svg.getAttribute('width')]; }"""
        )
        assert scrolls <= 0, name
        assert 11 * drawn / whole >= 9, name
        assert drawn <= whole, name


def test_the_live_picture_keeps_its_size_and_its_gutter_in_view(page: Page, histories: dict[str, Any]) -> None:
    """JupyterLab lets every svg shrink to its cell; this one scrolls instead, under the names of its lanes."""
    drawn = timeline(histories["sixty_entries"], compact=True, live=True)
    rule = "<style>svg{max-width:100%;height:auto}</style>"
    page.set_content(f"<meta charset='utf-8'>{rule}<body style='width:900px'>{drawn.html}")
    measured = """() => { const [names, all] = document.querySelectorAll('svg');
      const box = all.parentElement.parentElement, seen = box.getBoundingClientRect();
      const newest = Math.abs(all.getBoundingClientRect().right - seen.right) < 1;
      box.scrollLeft = -300;
      return [all.getBoundingClientRect().width, names.getBoundingClientRect().left - seen.left,
        names.getBoundingClientRect().width, box.scrollHeight <= box.clientHeight, newest]; }"""
    wide = float(drawn.svg.split(' width="')[1].split('"')[0])
    assert wide > 2000
    assert page.evaluate(measured) == [wide, 0, 106, True, True]


def test_a_live_picture_that_looks_back_opens_at_the_cursor(page: Page, histories: dict[str, Any]) -> None:
    drawn = timeline(histories["sixty_entries"], compact=True, live=True, cursor=30)
    page.set_content(f"<meta charset='utf-8'><body style='width:900px'>{drawn.html}")
    seen = """() => { const mark = document.querySelector('[data-n="30"] text').getBoundingClientRect();
      const box = document.querySelector('.af-timeline > div').getBoundingClientRect();
      return mark.left > box.left + 112 && mark.right < box.right; }"""
    assert page.evaluate("CSS.supports('scroll-initial-target', 'nearest')")
    page.wait_for_function(seen)


def test_a_short_live_picture_begins_at_the_left(page: Page, histories: dict[str, Any]) -> None:
    drawn = timeline(histories["cancelled"], compact=True, live=True)
    page.set_content(f"<meta charset='utf-8'><body style='width:1200px;margin:0'>{drawn.html}")
    assert page.evaluate("[...document.querySelectorAll('svg')].map(one => one.getBoundingClientRect().left)") == [0, 0]


def test_the_measuring_sees_a_planted_fault(page: Page, histories: dict[str, Any]) -> None:
    svg = timeline(histories["happy_path"]).svg
    planted = svg.replace(
        "</svg>", '<text x="130" y="22">over</text><text x="600" y="22" fill="#ccc" style="fill:#ccc">x</text></svg>'
    )
    page.set_content(f"<meta charset='utf-8'><body>{planted}")
    assert [found[2] for found in page.evaluate(TOUCHING)] == ["over"]
    assert page.evaluate(CONTRAST)["text"] < 2
