"""The control room in a real JupyterLab: clicks, keys, names and contrast, light and dark, and pages without a kernel."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from agentflow import Database, Engine
from agentflow.lab.schedule.grammar import Move, Schedule, parse
from agentflow.lab.schedule.presets import PRESETS
from tests.conftest import rows
from tests.support.browser import (
    IDLE,
    PATIENCE,
    Lab,
    at_notebook,
    in_each_theme,
    run,
    run_all,
    shot,
    wait_until,
    write_notebook,
)
from tests.support.helpers import eventually

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

FIRST = """\
from agentflow.lab import control_room, fresh_laboratory
engine = fresh_laboratory("{}")"""
SECOND = """\
room = control_room(engine)
room"""
GAP = "A*5 A! expire B"
DISCONNECTED = "jupyter-widgets-disconnected"
LINE = "document.querySelector('.af-room:not(.still) .twin')?.dataset.line"
FAR = "element => { const box = element.getBoundingClientRect(); return [box.x, box.y, box.width, box.height].map(Math.round); }"
CUT_OFF = """room => {
    const edges = room.getBoundingClientRect(), shown = [...room.querySelectorAll('button, input, select, .af-lane')];
    const out = shown.filter(one => one.offsetParent).filter(one => {
        const box = one.getBoundingClientRect(), cell = room.parentElement.closest('.jp-OutputArea-output, .jp-Notebook');
        return box.right > edges.right || box.right > cell.getBoundingClientRect().right || (one.matches('button') &&
            one.closest('.af-lane') && box.right > one.closest('.af-lane').getBoundingClientRect().right); });
    const words = [...room.querySelectorAll('.af-side button')].filter(one => one.offsetParent &&
        (one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1));
    return [...out, ...words].map(one => one.outerHTML.slice(0, 160));
}"""
LECTURE = """room => {
    const seen = selector => [...room.querySelectorAll(selector)].filter(one => one.getClientRects().length);
    const zoom = one => one.closest('.tl')?.currentCSSZoom ?? 1;
    const sizes = seen('.tl text, .say b, .pane > p').map(one => [one.textContent,
        parseFloat(getComputedStyle(one).fontSize) * zoom(one)]);
    const low = seen('.tl, .say, .pane > p').filter(one => one.getBoundingClientRect().bottom > innerHeight);
    return [sizes.filter(([, px]) => px < 28), low.length];
}"""
PARTED = """room => {
    const before = one => getComputedStyle(one, '::before');
    const line = before(room), all = [...room.querySelectorAll('*')];
    const icons = all.filter(one => one.offsetParent && !['none', 'normal'].includes(before(one).content)
        && before(one).display !== 'none');
    const buttons = [...room.querySelectorAll('button, input, select')].filter(one => one.offsetParent);
    const pressable = buttons.filter(one => getComputedStyle(one).pointerEvents !== 'none').map(one => one.outerHTML);
    const focused = buttons.filter(one => { one.focus(); return document.activeElement === one; }).map(one => one.outerHTML);
    return [line.display === 'none' ? '' : line.content, icons.length, pressable, focused];
}"""


@dataclass
class Shown:
    """A room on a page, and what the console complained about."""

    page: Page
    trouble: list[str]

    @property
    def room(self) -> Locator:
        return self.page.locator(".af-room:not(.still)").first

    def button(self, name: str, lane: str = "") -> Locator:
        """The button with this name, in a lane or anywhere."""
        place = self.room.get_by_role("group", name=f"worker {lane}") if lane else self.room
        return place.get_by_role("button", name=re.compile(f"^{re.escape(name)}"))

    @property
    def line(self) -> str:
        """The schedule of what is on screen."""
        return self.room.locator(".twin").get_attribute("data-line") or ""

    @property
    def twin(self) -> list[str]:
        return self.room.locator(".twin li").all_inner_texts()

    def click(self, name: str, lane: str = "") -> None:
        """The button was clicked and the schedule has grown."""
        before = self.line
        self.button(name, lane).click()
        wait_until(self.page, f"before => {LINE} !== before", before)

    def shows(self, line: str) -> None:
        """The schedule of what is on screen has become this line."""
        wait_until(self.page, f"line => {LINE} === line", line)

    def says(self, text: str) -> None:
        expect(self.room.locator(".af-say")).to_contain_text(text, timeout=PATIENCE)

    def run(self, line: str) -> None:
        """The line was typed and played."""
        self.room.get_by_label("schedule").fill(line)
        self.room.get_by_label("schedule").press("Enter")
        self.shows(str(parse(line)))

    def choose(self, label: str, option: str) -> None:
        self.room.get_by_label(label).select_option(option)


@pytest.fixture(scope="module")
def shown(tab: Page, lab: Lab) -> Iterator[Shown]:
    """A room on an empty laboratory."""
    write_notebook(lab, "room.ipynb", FIRST.format("room"), SECOND, "import os\nos.getpid()", "2")
    with at_notebook(tab, lab, "room.ipynb", width=1400) as trouble:
        run_all(tab)
        shown = Shown(tab, trouble)
        shown.room.wait_for()
        yield shown


@pytest.fixture
def clean(shown: Shown) -> Shown:
    """The room, emptied."""
    if shown.line:
        shown.run("A")
        shown.button("Reset").click()
        shown.shows("")
    return shown


def play_by_clicking(shown: Shown, schedule: Schedule) -> None:
    """Every move of the schedule was made by a click on the button that a learner would take."""
    single = {
        "kill": "Crash",
        "pause": "Pause",
        "resume": "Resume",
        "start": "New process",
    }
    free = {"expire": "Expire lease", "due": "End back-off", "deliver": "Deliver", "lose": "Lose reply"}
    for move in schedule.moves:
        if move.verb == "go":
            _steps(shown, move)
        elif move.verb in single:
            shown.click(single[move.verb], move.lane)
        else:
            shown.click(free[move.verb])


def _steps(shown: Shown, move: Move) -> None:
    if move.times is not None:
        for _ in range(move.times):
            shown.click("Step", move.lane)
        return
    lane = shown.room.get_by_role("group", name=f"worker {move.lane}")
    shown.click("Step", move.lane)
    while "idle" not in lane.locator(".where").inner_text():
        shown.click("Step", move.lane)


def contrast_and_names(page: Page) -> list[str]:
    """What axe complains about inside the room, in one theme and the other."""
    return [f"{name}: {found}" for name in in_each_theme(page) for found in _axe(page)]


def _axe(page: Page) -> list[str]:
    if not page.evaluate("() => !!window.axe"):
        page.add_script_tag(content=files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    # JupyterLab's body is 0 px high and cuts off what overflows: axe would take all text for hidden, and say nothing.
    found: list[str] = page.evaluate(
        """async () => { document.body.style.overflow = 'visible';
            const {violations} = await axe.run({include: ['.af-room']}, {resultTypes: ['violations'], preload: false});
            document.body.style.overflow = '';
            return violations.flatMap(v => v.nodes.map(
                n => v.id + ': ' + n.html.slice(0, 160) + ' ' + n.failureSummary.slice(0, 200))); }"""
    )
    return found


@pytest.mark.parametrize("name", PRESETS)
def test_every_famous_history_can_be_played_by_clicking(clean: Shown, name: str) -> None:
    schedule = parse(PRESETS[name].line)
    if setting := str(schedule.setting):
        clean.run(setting)
    play_by_clicking(clean, schedule)
    clicked, by_hand = clean.twin, clean.line
    clean.room.screenshot(path=shot(f"room-{name.replace(' ', '-')}"))
    clean.run("A")
    clean.choose("preset", name)
    clean.shows(PRESETS[name].line)
    clean.says(PRESETS[name].look_at)
    assert clean.twin == clicked
    assert parse(by_hand).setting == schedule.setting


def test_the_acknowledgment_gap_is_recovered_by_one_click_and_the_rows_agree(clean: Shown, own_url: str) -> None:
    play_by_clicking(clean, parse("A*5 A!"))
    expect(clean.room).to_contain_text("≠")
    clean.click("Recover", "A")
    clean.says("Recover A stands for: expire B*")
    expect(clean.room).to_contain_text("one effect, asked for 2 times.")
    engine = Engine(Database(own_url, "room"))
    try:
        assert rows(engine, "SELECT status, fence_token FROM {s}.workflows") == [
            {"status": "completed", "fence_token": 2}
        ]
        assert rows(engine, "SELECT attempts FROM {w}.tool_ledger") == [{"attempts": 2}]
    finally:
        engine.close()


def test_looking_back_and_forking_by_clicks(clean: Shown) -> None:
    clean.run(GAP)
    for _ in range(3):
        clean.button("Back").click()
    clean.says("looking back: 6. A calls the tool")
    expect(clean.button("Step", "A")).to_have_attribute("aria-disabled", "true")
    for name in in_each_theme(clean.page):
        clean.room.screenshot(path=shot(f"room-looking-back-{name}"))
    clean.button("Fork here").click()
    clean.shows("A*5")
    clean.says("Forked at entry 6")
    clean.click("Step", "A")
    clean.says("7. A commits acknowledge")


def test_the_keyboard_alone_plays_looks_back_and_types_a_line(clean: Shown) -> None:
    page, cells = clean.page, clean.page.locator(".jp-Notebook .jp-Cell").count()
    clean.button("Race").focus()
    page.keyboard.press("Tab")
    expect(clean.button("Step", "A")).to_be_focused()
    for n in range(2, 5):
        page.keyboard.press("Enter" if n % 2 else "Space")
        clean.says(f"{n}. A ")
    for key in ("x", "b", "a", "d", "d", "Escape"):
        page.keyboard.press(key)
    expect(clean.button("Step", "A")).to_be_focused()
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    clean.says("5. A crashes")
    focused = "document.activeElement.closest('.af-schedule') !== null"
    _tab_until(page, focused)
    page.keyboard.press("Control+a")
    page.keyboard.type(GAP)
    page.keyboard.press("Enter")
    clean.says("9. B claims")
    _tab_until(page, "document.activeElement.closest('.ev') !== null", "Shift+Tab")
    page.keyboard.press("Home")
    clean.says("looking back: 1. create")
    page.keyboard.press("ArrowRight")
    clean.says("looking back: 2. A claims it")
    assert page.evaluate("document.activeElement.dataset.n") == "2"
    page.keyboard.press("End")
    clean.says("9. B claims")
    page.keyboard.press("ArrowLeft")
    clean.says("looking back: 8. A's lease expires")
    expect(clean.room.locator(".fold.rows")).to_contain_text("passed")
    assert page.locator(".jp-Notebook .jp-Cell").count() == cells


def _tab_until(page: Page, condition: str, key: str = "Tab") -> None:
    """The Tab key was pressed until the condition holds, at most forty times."""
    for _ in range(40):
        page.keyboard.press(key)
        if page.evaluate(condition):
            return
    raise AssertionError(f"the Tab key never reaches: {condition}")


def test_everything_that_takes_the_focus_keeps_the_notebooks_shortcuts_away(clean: Shown) -> None:
    clean.run(GAP)
    loose: list[str] = clean.room.locator("button, input, select, summary, pre, [tabindex]").evaluate_all(
        "all => all.filter(e => e.getAttribute('data-lm-suppress-shortcuts') !== 'true').map(e => e.outerHTML.slice(0, 120))"
    )
    assert loose == []


def test_axe_finds_no_control_without_a_name_and_no_text_without_contrast(clean: Shown) -> None:
    assert contrast_and_names(clean.page) == []
    clean.run(GAP)
    assert contrast_and_names(clean.page) == []
    clean.button("Back").click()
    clean.says("looking back: 8.")
    assert contrast_and_names(clean.page) == []
    clean.button("Forward").click()
    clean.room.get_by_label("schedule").fill("A*5 A%")
    clean.button("Run").click()
    clean.says('"%" at 6 is not a move')
    assert contrast_and_names(clean.page) == []
    clean.run("without=idempotency_key requests=2 A*5 C B*2 C*2 A! expire@1")
    assert contrast_and_names(clean.page) == []


def test_axe_would_find_a_control_without_a_name_and_text_without_contrast(clean: Shown) -> None:
    clean.room.evaluate(
        """room => room.insertAdjacentHTML('beforeend', '<div class="planted"><button></button>' +
            '<p style="background:#fff;color:#bbb">hard to read</p></div>')"""
    )
    try:
        found = " ".join(contrast_and_names(clean.page))
        assert "button-name" in found and "color-contrast" in found
    finally:
        clean.room.evaluate("room => room.querySelector('.planted').remove()")


def test_a_bad_line_is_answered_in_the_room_and_stays_to_be_mended(clean: Shown) -> None:
    clean.run(GAP)
    before = clean.twin
    clean.room.get_by_label("schedule").fill("A* expire")
    clean.button("Run").click()
    clean.says("no workflow has a lease that could end")
    assert clean.twin == before
    assert clean.room.get_by_label("schedule").input_value() == "A* expire"
    for name in in_each_theme(clean.page):
        clean.room.screenshot(path=shot(f"room-bad-line-{name}"))


def test_five_quick_clicks_are_made_or_counted(clean: Shown) -> None:
    box = clean.button("Step", "B").bounding_box()
    assert box
    for _ in range(5):
        clean.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        clean.page.wait_for_timeout(60)

    def made() -> int:
        moves = parse(clean.line).moves
        ignored = re.search(r"Too fast: (\d+)", clean.room.locator(".af-say").inner_text())
        return (moves[0].times or 0 if moves else 0) + (int(ignored[1]) if ignored else 0)

    eventually(lambda: made() == 5)


def test_copy_puts_the_line_into_the_clipboard(clean: Shown) -> None:
    clean.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    clean.run(GAP)
    clean.button("Copy").click()
    clean.says("in the clipboard")
    assert clean.page.evaluate("navigator.clipboard.readText()") == GAP


def test_the_newest_entry_of_a_long_history_is_in_view(clean: Shown) -> None:
    clean.choose("preset", "stale worker")
    clean.shows(PRESETS["stale worker"].line)
    last: Any = clean.room.locator(".af-tl .ev[data-n='13']").bounding_box()
    frame: Any = clean.room.locator(".af-tl .tl").bounding_box()
    assert frame["x"] <= last["x"] and last["x"] + last["width"] <= frame["x"] + frame["width"]


def test_no_statement_is_wider_than_its_pane_on_a_small_screen_and_its_lines_hang(clean: Shown) -> None:
    """A broken line goes on further to the right than it began."""
    before = clean.page.viewport_size
    clean.run("A*5 A! expire B")
    clean.page.set_viewport_size({"width": 1280, "height": 1500})
    clean.room.locator(".f-sql summary").click()
    sql = clean.room.locator("pre[role=region]")
    seen = """one => { const box = one.getBoundingClientRect(), all = [...one.children];
        const broken = all.filter(line => { const range = document.createRange(); range.selectNodeContents(line);
            const rows = [...range.getClientRects()].filter(part => part.width > 0);
            return rows.length > 1 && Math.max(...rows.slice(1).map(part => part.left)) > rows[0].left; });
        return [one.scrollWidth <= one.clientWidth, one.scrollHeight > 0, broken.length > 3,
            all.every(line => line.getBoundingClientRect().right <= box.right)]; }"""
    try:
        eventually(lambda: (clean.room.bounding_box() or {"width": 0})["width"] < 1000)
        assert sql.evaluate(seen) == [True, True, True, True]
        assert sql.evaluate("one => getComputedStyle(one).wordBreak") == "normal"
        assert sql.evaluate("one => one.scrollHeight - one.clientHeight") == 0  # a wheel over it moves the page
        sql.focus()
        expect(sql).to_be_focused()
        assert contrast_and_names(clean.page) == []
    finally:
        clean.room.locator(".f-sql summary").click()
        clean.page.set_viewport_size(before or {"width": 1400, "height": 1500})


def test_every_control_can_be_reached_on_a_small_screen_beside_the_file_browser(clean: Shown) -> None:
    clean.run("requests=2 workflow=approval_agent A* B*4 C")
    page, before = clean.page, clean.page.viewport_size
    page.evaluate("() => jupyterapp.commands.execute('filebrowser:activate')")
    page.set_viewport_size({"width": 1280, "height": 800})
    try:
        eventually(lambda: (clean.room.bounding_box() or {"width": 0})["width"] < 880)
        assert clean.room.evaluate(CUT_OFF) == []
        assert clean.room.evaluate("room => room.scrollWidth - room.clientWidth") == 0
        clean.run(GAP)
        clean.room.evaluate("room => room.scrollIntoView({block: 'start'})")
        page.screenshot(path=shot("room-beside-the-file-browser"))
        notebook: Any = page.locator(".jp-NotebookPanel-notebook").bounding_box()
        for seen in (
            clean.room.locator(".af-lane-A .af-step"),
            clean.button("Crash", "A"),
            clean.room.locator(".tl"),
            clean.room.locator(".panes"),
        ):
            box: Any = seen.bounding_box()
            assert notebook["y"] - 1 <= box["y"] and box["y"] + box["height"] <= notebook["y"] + notebook["height"]
    finally:
        page.evaluate("() => jupyterapp.commands.execute('application:toggle-left-area')")
        page.set_viewport_size(before or {"width": 1400, "height": 1500})


@pytest.mark.parametrize("wide", [590, 419, 300])
def test_no_control_is_cut_off_where_the_room_is_narrow(clean: Shown, wide: int) -> None:
    """What JupyterLab leaves of 1,024 px beside its file browser, of 1,280 px at 150 %, and of a phone."""
    clean.run("requests=2 workflow=approval_agent A* B*4 C")
    clean.room.evaluate("(room, wide) => { room.style.width = wide + 'px'; }", wide)
    try:
        assert clean.room.evaluate(CUT_OFF) == []
        assert clean.room.evaluate("room => room.scrollWidth - room.clientWidth") == 0
        if wide < 520:
            low: list[str] = clean.room.locator("button, input, select, summary").evaluate_all(
                "all => all.filter(e => e.offsetParent && e.getBoundingClientRect().height < 44).map(e => e.outerHTML)"
            )
            assert low == []
    finally:
        clean.room.evaluate("room => { room.style.width = ''; }")


@pytest.mark.parametrize("wide", ["846px", "980px", ""])
def test_five_clicks_on_one_spot_are_five_moves_and_nothing_above_the_pointer_moves(clean: Shown, wide: str) -> None:
    """Beside the file browser at 1,280 px, between, and on a page of 1,400 px."""
    clean.room.evaluate("(room, wide) => { room.style.width = wide; }", wide)
    try:
        step = clean.button("Step", "A")
        before, box = step.evaluate(FAR), step.bounding_box()
        assert box
        for n in range(1, 6):
            clean.page.mouse.click(box["x"] + 40, box["y"] + 12)
            clean.shows("A" if n == 1 else f"A*{n}")
            assert step.evaluate(FAR) == before
            assert clean.room.evaluate(CUT_OFF) == []
        clean.run("workflow=approval_agent requests=2 A* B*4")
        assert step.evaluate(FAR) == before
    finally:
        clean.room.evaluate("room => { room.style.width = ''; }")


def test_the_second_half_of_a_double_click_on_step_is_no_move(clean: Shown) -> None:
    clean.button("Step", "A").dblclick(delay=10)
    clean.shows("A")
    clean.click("Step", "A")
    assert clean.line == "A*2"


def test_the_focus_stays_in_the_room_whatever_a_click_takes_away(clean: Shown) -> None:
    within = "document.activeElement.closest('.af-room') !== null"
    clean.run("A*5")
    for name, lane, line in (("Crash", "A", "A*5 A!"), ("Expire lease", "", "A*5 A! expire")):
        clean.button(name, lane).focus()
        clean.page.keyboard.press("Enter")
        clean.shows(line)
        expect(clean.button(name, lane)).to_have_attribute("aria-disabled", "true")
        expect(clean.button(name, lane)).to_be_focused()
        clean.page.keyboard.press("Enter")  # and again: nothing happens
    clean.room.locator(".af-tl .ev[data-n='7']").focus()
    clean.says("looking back: 7.")
    clean.button("Reset").evaluate("button => button.click()")
    clean.shows("")
    assert clean.page.evaluate(within)
    assert clean.trouble == []


def test_a_mark_is_as_wide_as_its_column_and_shows_that_it_can_be_clicked(clean: Shown) -> None:
    clean.run(GAP)
    hit = clean.room.locator(".af-tl .ev[data-n='5'] .hit")
    box: Any = hit.bounding_box()
    assert box["width"] >= 44 and hit.evaluate("one => getComputedStyle(one).cursor") == "pointer"
    clean.page.mouse.click(box["x"] + 5, box["y"] + box["height"] - 60)  # nothing is painted there
    clean.says("looking back: 5.")
    assert clean.page.evaluate("document.activeElement.dataset.n") == "5"


def test_what_is_folded_stays_as_it_is_while_the_room_moves(clean: Shown) -> None:
    rows, legend = clean.room.locator(".fold.rows"), clean.room.locator(".f-legend dl")
    expect(rows).not_to_be_visible()
    for name in ("rows", "legend", "settings"):
        clean.room.locator(f".f-{name} summary").click()
    expect(legend).to_be_visible()
    clean.click("Step", "A")
    expect(rows).to_be_visible()
    expect(clean.room.get_by_label("x axis")).to_be_visible()
    assert clean.room.evaluate(CUT_OFF) == []
    assert contrast_and_names(clean.page) == []
    for name in ("rows", "legend", "settings"):
        clean.room.locator(f".f-{name} summary").click()
    expect(rows).not_to_be_visible()


def test_a_click_that_the_kernel_has_not_heard_is_shown_as_waiting(clean: Shown) -> None:
    kernel = int(clean.page.locator(".jp-OutputArea-output pre").get_by_text(re.compile(r"^\d{2,}$")).inner_text())
    waiting = clean.room.locator(".af-say[data-waiting]")
    os.kill(kernel, signal.SIGSTOP)
    try:
        clean.button("Step", "A").click()
        expect(waiting).to_have_attribute("data-waiting", "the kernel is busy; waiting: 1 click", timeout=PATIENCE)
        assert clean.line == ""
    finally:
        os.kill(kernel, signal.SIGCONT)
    clean.shows("A")
    expect(waiting).to_have_count(0)


def test_a_lecture_is_the_room_alone_in_large_type_and_a_clicker_moves_it(clean: Shown) -> None:
    page, before = clean.page, clean.page.viewport_size
    clean.run("A*5 A!")
    clean.room.locator(".af-tl .ev[data-n='7']").focus()
    page.keyboard.press("Home")
    clean.says("looking back: 1.")
    page.set_viewport_size({"width": 1920, "height": 1080})
    try:
        page.keyboard.press("l")
        wait_until(page, "() => document.fullscreenElement?.classList.contains('af-lecturing')")
        page.keyboard.press("PageDown")
        clean.says("looking back: 2.")
        page.keyboard.press("Space")
        clean.says("looking back: 3.")
        page.keyboard.press("PageUp")
        clean.says("looking back: 2.")
        page.keyboard.press("h")
        expect(clean.room.locator(".af-tl .ev")).to_have_count(2)
        page.keyboard.press("PageDown")
        expect(clean.room.locator(".af-tl .ev")).to_have_count(3)
        page.keyboard.press("h")
        expect(clean.room.locator(".af-tl .ev")).to_have_count(7)
        for n in range(4, 7):
            page.keyboard.press("PageDown")
            clean.says(f"looking back: {n}.")
        page.keyboard.press("PageDown")
        clean.says("7. A crashes")
        page.screenshot(path=shot("room-lecture"))
        small, out = clean.room.evaluate(LECTURE)
        assert (small, out) == ([], 0)
        page.keyboard.press("PageDown")  # at the end a worker that can move goes on
        clean.says("B asks for work and passes over request-1")
        page.keyboard.press("Escape")
        expect(clean.room).not_to_have_class(re.compile("af-lecturing"))
    finally:
        page.set_viewport_size(before or {"width": 1400, "height": 1500})


def test_on_paper_the_room_fits_a_page_of_a4(clean: Shown) -> None:
    clean.run(PRESETS["stale worker"].line)
    clean.page.emulate_media(media="print")
    try:
        clean.room.evaluate("room => { room.style.width = '690px'; }")  # A4 less its margins, at 96 px an inch
        cut: list[str] = clean.room.evaluate(
            """room => [...room.querySelectorAll('svg, p, dd, .tl')].filter(e => e.getClientRects().length &&
                e.getBoundingClientRect().right > room.getBoundingClientRect().right + 1).map(e => e.outerHTML.slice(0, 90))"""
        )
        assert cut == []
        assert clean.room.locator(".tl").evaluate("one => one.scrollWidth - one.clientWidth") == 0
        expect(clean.room.locator(".af-side")).not_to_be_visible()
    finally:
        clean.room.evaluate("room => { room.style.width = ''; }")
        clean.page.emulate_media(media="screen")


def test_where_no_inline_script_runs_buttons_and_fields_work_and_keys_do_no_harm(clean: Shown) -> None:
    page, cells = clean.page, clean.page.locator(".jp-Notebook .jp-Cell").count()
    blocked = "event => { if (event.target.matches?.('.af-style img')) event.stopImmediatePropagation(); }"
    page.evaluate(f"() => {{ window.blocked = {blocked}; document.addEventListener('load', window.blocked, true); }}")
    try:
        run(page, 1, 1)
        expect(page.locator(".af-room:not(.still):not(.af-scripted)")).to_have_count(1, timeout=PATIENCE)
        expect(clean.room.locator(".af-lecture")).not_to_be_visible()
        clean.room.locator(".af-lane-A .af-step").click()  # the lane's name for screen readers is the script's
        clean.shows("A")
        field = clean.room.get_by_label("schedule")
        expect(field).to_be_focused()
        for key in ("x", "b", "a", "d", "d"):
            page.keyboard.press(key)
        assert page.locator(".jp-Notebook .jp-Cell").count() == cells
        assert clean.room.locator(".af-step").first.get_attribute("tabindex") == "-1"
        clean.run("A*3")
        field.fill("A*2 B")
        clean.button("Run").click()
        clean.shows("A*2 B")
        clean.room.locator(".f-rows summary").click()
        expect(clean.room.locator(".fold.rows")).to_be_visible()
    finally:
        page.evaluate("() => document.removeEventListener('load', window.blocked, true)")
        run(page, 1, 1)
        expect(page.locator(".af-room.af-scripted")).to_have_count(1, timeout=PATIENCE)


def test_at_the_end_the_console_has_nothing_to_say(shown: Shown) -> None:
    assert shown.trouble == []


# --- the page and the kernel come and go


@pytest.fixture(scope="module")
def kept(tab: Page, lab: Lab) -> Iterator[Shown]:
    """A page with a room that is driven into the gap, shown by two cells."""
    write_notebook(lab, "saved.ipynb", FIRST.format("room_saved"), SECOND, "room.run('A*5 A!'); room")
    with at_notebook(tab, lab, "saved.ipynb", width=1400) as trouble:
        yield Shown(tab, trouble)


@pytest.fixture
def saved(kept: Shown, lab: Lab) -> Shown:
    """The page, run and saved."""
    run_all(kept.page)
    kept.page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    eventually(lambda: "af-saved" in (lab.folder / "saved.ipynb").read_text())
    return kept


def test_a_room_shown_twice_moves_in_both_and_a_reloaded_page_is_live_again(saved: Shown) -> None:
    both = saved.page.locator(".af-room:not(.still)")
    expect(both).to_have_count(2)
    saved.click("Expire lease")
    for n in (0, 1):
        expect(both.nth(n).locator(".af-say")).to_contain_text("8. A's lease expires")
    saved.page.reload()
    wait_until(saved.page, "() => document.querySelectorAll('.af-room:not(.still) button').length > 40")
    saved.says("8. A's lease expires")
    saved.click("Step", "B")
    saved.says("9. B claims")
    assert saved.trouble == []


def test_without_a_kernel_the_page_shows_what_the_last_click_came_to(saved: Shown, lab: Lab) -> None:
    page = saved.page
    assert page.locator(".af-saved").locator("visible=true").count() == 0  # beside a live room it rests
    saved.click("Expire lease")
    saved.says("8. A's lease expires")
    eventually(lambda: "8. A's lease expires" in (page.locator(".af-saved").last.text_content() or ""))
    page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    page.reload()
    wait_until(page, IDLE)
    kept = page.locator(".af-saved").last
    expect(kept).to_contain_text("8. A's lease expires", timeout=PATIENCE)
    expect(kept).to_contain_text("schedule A*5 A! expire")
    picture = kept.locator("img").first
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.naturalWidth") > 0
    kept.screenshot(path=shot("room-without-kernel"))
    run_all(page)
    expect(page.locator(".af-room:not(.still)")).to_have_count(2, timeout=PATIENCE)


def test_after_a_kernel_restart_the_last_picture_stays_and_running_the_cells_again_gives_a_live_room(
    saved: Shown,
) -> None:
    page = saved.page
    page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    wait_until(page, IDLE)
    eventually(lambda: DISCONNECTED in page.evaluate("() => document.querySelector('.af-room:not(.still)').className"))
    assert "A crashes" in page.locator(".jp-Notebook").inner_text()
    said, icons, pressable, focused = saved.room.evaluate(PARTED)
    assert said == '"The kernel was restarted. Run this cell to use the controls."'
    assert (icons, pressable, focused) == (0, [], [])
    saved.room.screenshot(path=shot("room-after-a-restart"))
    run_all(page)
    expect(page.locator(".af-room:not(.still)")).to_have_count(2, timeout=PATIENCE)
    assert DISCONNECTED not in (saved.room.get_attribute("class") or "")
    saved.click("Expire lease")
    saved.says("8. A's lease expires")
