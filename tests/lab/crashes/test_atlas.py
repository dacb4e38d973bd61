"""The crash atlas: each cell a process that was really killed, the world's rows counted, and a picture that says the same."""

from __future__ import annotations

import json
import signal
import threading
import uuid
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from playwright.sync_api import sync_playwright
from sqlalchemy import text
from typer.testing import CliRunner

from agentflow import Database, Engine
from agentflow.cli import app
from agentflow.errors import AgentFlowError, DatabaseAway, LaneError, NotALaboratory
from agentflow.lab.crashes import atlas as playing
from agentflow.lab.crashes.atlas import AtlasBench, atlas, atlas_bench
from agentflow.lab.crashes.atlas_picture import Atlas, draw_atlas
from agentflow.lab.crashes.atlas_result import BOUNDARIES, GUARD_SETS, STALE_WORKER, TWO_CLAIMS, AtlasCell, GuardSet
from agentflow.lab.crashes.atlas_view import AtlasView
from agentflow.lab.history.canonical import agreed, canonical
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.schedule.stepper import Stepper
from tests.conftest import rows
from tests.support import chromium
from tests.support.helpers import database_of_its_own, eventually
from tests.support.lane_workflows import approved, declines, for_ever, mute, trip
from tests.support.programs import ROOT, environment, running
from tests.support.signals import INTERRUPTED, interrupt

SVG = "{http://www.w3.org/2000/svg}"
ALL, NO_FENCE, READS, NO_KEY, ACKNOWLEDGES, NAIVE = (guards.name for guards in GUARD_SETS)
PLAYED_BY_NAIVE = ("before claim", "after claim", "before tool", "after tool", "before complete", "after complete")
WRONG = {
    (NO_KEY, "after tool"): 2,
    (NO_KEY, "before acknowledge"): 2,
    (ACKNOWLEDGES, "before tool"): 0,
    (ACKNOWLEDGES, "after acknowledge"): 0,
    (NAIVE, "after tool"): 2,
    (NAIVE, "before complete"): 2,
}
"""Every cell that is not one effect, written down here a second time."""

Counts = dict[tuple[str, str], dict[str, Any]]


def counted_in(engine: Engine) -> dict[str, Any]:
    """What the tables say of the one workflow in a laboratory, by a query that the atlas does not use."""
    (world,) = rows(
        engine,
        """SELECT (SELECT count(DISTINCT effect_id) FROM {w}.tool_ledger) AS effects,
                  (SELECT count(attempt_id) FROM {w}.tool_attempts) AS attempts""",
    )
    killed = rows(engine, "SELECT subject, worker FROM {s}.history WHERE event = 'worker_killed'")
    status = [row["status"] for row in rows(engine, "SELECT status FROM {s}.workflows")]
    return {**world, "killed": killed, "status": status}


@pytest.fixture(scope="module")
def counts() -> Counts:
    return {}


@pytest.fixture(scope="module")
def whole(url: str, counts: Counts) -> Atlas:
    """The whole atlas, and beside it what the tables held after each cell."""

    class Counting(AtlasBench):
        def play(self, guards: GuardSet, boundary: str) -> AtlasCell:
            cell = super().play(guards, boundary)
            counts[guards.name, boundary] = counted_in(self.engine)
            return cell

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(playing, "AtlasBench", Counting)
        return atlas(url)


@pytest.fixture
def one(url: str) -> Iterator[AtlasBench]:
    """A bench of the test's own."""
    with atlas_bench(url, f"t_{uuid.uuid4().hex[:12]}") as made:
        yield made


def played(found: Atlas) -> list[AtlasCell]:
    return [cell for cell in found if cell.state == "done"]


# -- killed, recovered, counted --------------------------------------------------------------------------------------


def test_every_cell_was_played_and_is_as_predicted(whole: Atlas) -> None:
    assert whole.problems == []
    assert whole.ok
    assert len(list(whole)) == 84
    assert Counter(cell.state for cell in whole) == {"done": 76, "missing": 8}
    assert whole.kills == 76


def test_every_process_was_killed_by_sigkill_at_its_boundary(whole: Atlas, counts: Counts) -> None:
    for cell in played(whole):
        assert cell.exit_code == -signal.SIGKILL, cell.sentence
        killed = counts[cell.guards, cell.boundary]["killed"]
        if cell.guards == NAIVE:
            assert f"A is killed {cell.boundary}." in cell.lines()
        elif cell.boundary == "before claim":
            assert killed == []  # it had no workflow yet, so there is no history to write it into
        else:
            ((subject, worker),) = [(row["subject"], row["worker"]) for row in killed]
            assert subject.startswith(cell.boundary), cell.sentence
            assert worker.startswith("A."), cell.sentence


def test_another_process_completed_it(whole: Atlas, counts: Counts) -> None:
    for cell in played(whole):
        assert cell.completed, cell.sentence
        if cell.guards != NAIVE:
            assert counts[cell.guards, cell.boundary]["status"] == ["completed"]
            (last,) = [entry["worker"] for entry in cell.history if entry["event"] == "workflow_completed"]
            assert last.startswith("A." if cell.boundary == "after complete" else "B."), cell.sentence


def test_each_engine_leaves_as_many_effects_as_it_forgets(whole: Atlas) -> None:
    expected = {(cell.guards, cell.boundary): WRONG.get((cell.guards, cell.boundary), 1) for cell in played(whole)}
    assert {(cell.guards, cell.boundary): cell.effects for cell in played(whole)} == expected


def test_effects_and_attempts_are_the_worlds_rows(whole: Atlas, counts: Counts) -> None:
    for cell in played(whole):
        found = counts[cell.guards, cell.boundary]
        assert (cell.effects, cell.attempts) == (found["effects"], found["attempts"]), cell.sentence


def test_with_all_guards_the_gap_costs_a_second_call_and_nothing_else(whole: Atlas) -> None:
    attempts = {cell.boundary: cell.attempts for cell in whole if cell.guards == ALL}
    assert attempts == {**dict.fromkeys(BOUNDARIES, 1), "after tool": 2, "before acknowledge": 2}


def test_naive_runner_has_no_boundary_where_it_records_nothing(whole: Atlas) -> None:
    assert [cell.boundary for cell in whole if cell.guards == NAIVE and cell.state == "done"] == list(PLAYED_BY_NAIVE)


def test_executions_are_counted_across_both_processes(whole: Atlas) -> None:
    again = {(cell.guards, cell.boundary): cell.executed_again for cell in played(whole)}
    for (guards, boundary), times in again.items():
        if guards == NAIVE:
            expected = 2 if boundary in ("before tool", "after tool", "before complete") else 0
        else:
            expected = 1 if boundary in ("before checkpoint classify", "before checkpoint plan") else 0
        assert times == expected, (guards, boundary)
    for cell in played(whole):
        by_process = Counter(pid for pid, _ in cell.executions)
        assert len(by_process) <= 2
        if cell.executed_again:
            assert len(by_process) == 2, cell.sentence


def test_recovery_latency_is_known_where_something_was_taken_over(whole: Atlas) -> None:
    for cell in played(whole):
        taken_over = cell.boundary != "after complete" and (cell.guards == NAIVE or cell.boundary != "before claim")
        assert (cell.recovery_ms is not None) == taken_over, cell.sentence
        assert cell.recovery_ms is None or cell.recovery_ms > 0


def agreed_on(history: Any) -> list[Any]:
    return [agreed(entry) for entry in canonical(history)]


@pytest.mark.parametrize("guards", [ALL, NO_KEY, ACKNOWLEDGES, READS])
def test_a_cells_schedule_gives_its_history_on_thread_lanes_too(whole: Atlas, engine: Engine, guards: str) -> None:
    engine.policy = PATIENT
    with Stepper(engine) as stepper:
        for boundary in ("before claim", "before tool", "after tool", "before acknowledge", "after acknowledge"):
            cell = whole.cell(boundary, guards)
            stepper.play(cell.line)
            assert agreed_on(engine.history("request-1")) == agreed_on(cell.history), cell.line
            assert counted_in(engine)["effects"] == cell.effects


def test_what_a_kill_cannot_show_the_two_named_schedules_do(engine: Engine, whole: Atlas) -> None:
    assert whole.notes() == [note for note in whole.notes() if STALE_WORKER in note or TWO_CLAIMS in note]
    assert len(whole.notes()) == 2
    engine.policy = PATIENT
    with Stepper(engine) as stepper:
        stepper.play(STALE_WORKER)
        (refused,) = [entry for entry in engine.history("request-1") if entry["event"] == "write_refused"]
        assert refused["fence_token"] < refused["detail"]["row_token"]
        stepper.play(TWO_CLAIMS)
        claims = [entry for entry in engine.history("request-1") if entry["event"] == "workflow_claimed"]
        assert [(claim["worker"].split(".")[0], claim["fence_token"]) for claim in claims] == [("A", 1), ("B", 1)]


# -- what goes wrong -------------------------------------------------------------------------------------------------


def test_a_cell_that_cannot_be_played_says_why_and_the_next_one_is_played(
    one: AtlasBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: AtlasBench, boundary: str) -> bool:
        raise LaneError("A is nowhere.")

    with monkeypatch.context() as patch:
        patch.setattr(AtlasBench, "_bring", fails)
        cell = one.play(GUARD_SETS[0], "after tool")
    assert (cell.state, cell.error) == ("failed", "A is nowhere.")
    assert Atlas().with_cell(cell).problems[0] == "before claim, all guards: not played yet"
    assert cell.sentence in Atlas().with_cell(cell).problems
    assert one.play(GUARD_SETS[0], "after tool").effects == 1


def test_a_workflow_that_nobody_takes_over_is_a_problem_and_not_quiet(one: AtlasBench) -> None:
    guards = GuardSet(("leases never", "expire"), ("lease_never_expires",))
    cell = one.play(guards, "after tool")
    assert (cell.effects, cell.completed) == (1, False)
    found = Atlas((guards,), boundaries=("after tool",)).with_cell(cell)
    assert found.problems == ["after tool, leases never expire: no worker completed it"]
    assert words(drawn(found)[cell.boundary, cell.guards]) == ["1", "stuck"]


def test_a_lost_database_ends_the_atlas(one: AtlasBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> None:
        raise DatabaseAway("gone")

    monkeypatch.setattr(one.stepper, "reset", away)
    with pytest.raises(DatabaseAway):
        one.play(GUARD_SETS[0], "after tool")


@pytest.mark.parametrize(
    ("guard_sets", "boundaries"),
    [([], BOUNDARIES), ([GuardSet(("x",), ("no_such_guard",))], BOUNDARIES), (GUARD_SETS[:1] * 2, BOUNDARIES),
     (GUARD_SETS, ["before lunch"]), (GUARD_SETS, [])],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused_before_anything_starts(url: str, guard_sets: Any, boundaries: Any) -> None:
    with pytest.raises(AgentFlowError):
        atlas(url, guard_sets=guard_sets, boundaries=boundaries)


def test_a_prediction_that_is_wrong_is_a_problem(whole: Atlas) -> None:
    optimist = GuardSet(GUARD_SETS[3].lines, GUARD_SETS[3].without)
    found = Atlas((GUARD_SETS[0], optimist), whole.cells)
    assert found.problems == [
        "after tool, no idempotency key: 2 effects, where 1 effect was predicted",
        "before acknowledge, no idempotency key: 2 effects, where 1 effect was predicted",
    ]
    naive = GuardSet(GUARD_SETS[5].lines, naive=True, predicted={"after tool": 2, "before complete": 2})
    assert len(Atlas((naive,), whole.cells).problems) == 8  # boundaries that were said to exist
    unkilled = AtlasCell("after tool", ALL, "done", 1, 2, True, exit_code=0)
    assert "exit code 0" in Atlas((GUARD_SETS[0],), whole.cells).with_cell(unkilled).problems[0]


# -- nothing is left -------------------------------------------------------------------------------------------------


def left_in(database: Database) -> tuple[list[str], list[str]]:
    """Schemas of an atlas, and connections of anybody else to this database."""
    with database.alchemy.connect() as connection:
        schemas = connection.execute(text("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'atlas%'")).scalars()
        names = list(schemas)
        asked = "SELECT application_name FROM pg_stat_activity WHERE datname = current_database()"
        others = connection.execute(text(f"{asked} AND pid <> pg_backend_pid()")).scalars()
        return names, list(others)


def test_an_atlas_without_cells_is_not_well_and_a_wrong_cell_is_said_where_it_is_printed(whole: Atlas) -> None:
    nothing = replace(whole, boundaries=(), cells={})
    assert not nothing.ok and nothing.problems == ["no cell was played"]
    assert "all guards: nothing was played." in nothing.text() and "always 1 effect" not in nothing.text()
    alive = whole.with_cell(replace(whole.cell("after tool", "all guards"), exit_code=0))
    assert "Not as predicted: after tool, all guards: 1 effect, but the killed process ended with exit code 0" in repr(
        alive
    )
    assert "Not as predicted" not in repr(whole)


def test_nothing_is_left_afterwards(own_database: Any) -> None:
    database = own_database()
    seen: list[Atlas] = []
    where = database.url.render_as_string(hide_password=False)
    found = atlas(where, guard_sets=GUARD_SETS[4:], boundaries=("before tool", "after tool"), watch=seen.append)
    assert found.ok
    assert [len(one.cells) for one in seen] == [1, 2, 3, 4]
    eventually(lambda: left_in(database) == ([], []))
    assert [
        child.name() for child in psutil.Process().children(recursive=True) if "lane-" in " ".join(child.cmdline())
    ] == []


def test_a_watcher_that_fails_ends_the_atlas_and_leaves_nothing(own_database: Any) -> None:
    database = own_database()
    seen: list[Atlas] = []

    def fail(found: Atlas) -> None:
        seen.append(found)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        atlas(database.url.render_as_string(hide_password=False), guard_sets=GUARD_SETS[:2], watch=fail)
    assert left_in(database)[0] == []  # also while the error still holds the frames in which it happened
    assert caught.tb is not None
    assert len(seen) == 1
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("atlas")] == []
    eventually(lambda: left_in(database) == ([], []))


def test_a_schema_that_exists_is_refused_and_stays(own_database: Any) -> None:
    database = own_database()
    with database.alchemy.connect() as connection:
        connection.execute(text("CREATE SCHEMA atlas_mine_2"))
    with pytest.raises(NotALaboratory):
        atlas(database.url.render_as_string(hide_password=False), schema="atlas_mine")
    assert left_in(database)[0] == ["atlas_mine_2"]


def test_ctrl_c_leaves_no_schema_no_process_and_no_connection(url: str) -> None:
    with database_of_its_own(url) as own:
        database = Database(own)
        with running("atlas", "--progress", env=environment(DATABASE_URL=own)) as process:
            family: list[psutil.Process] = []

            def at_work() -> bool:
                family[:] = psutil.Process(process.pid).children(recursive=True)
                return bool(family) and all(left_in(database))

            interrupt(process.pid, signal.SIGINT, amid=at_work)
            assert process.wait(60) == INTERRUPTED
        eventually(lambda: left_in(database) == ([], []), 60)
        eventually(lambda: not [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE], 60)
        database.close()


# -- the picture says what the data says -----------------------------------------------------------------------------


def drawn(found: Atlas, live: bool = False) -> dict[tuple[str, str], ET.Element]:
    root = ET.fromstring(draw_atlas(found, live=live).svg)
    cells = root.findall(f"{SVG}g[@class='cell']")
    return {(cell.attrib["data-boundary"], cell.attrib["data-guards"]): cell for cell in cells}


def words(element: ET.Element) -> list[str]:
    return [str(text_.text) for text_ in element.findall(f"{SVG}text")]


def kind(cell: ET.Element) -> str:
    """What a cell looks like, by its marks."""
    fills = [rect.attrib.get("fill") for rect in cell.findall(f"{SVG}rect")]
    said = cell.find(f"{SVG}text")
    if said is None:
        return "stroke"
    if "inv" in said.attrib["class"] and fills == ["currentColor"]:
        return "filled"
    if len(fills) == 3:
        return "hatched"
    return "quiet" if "b" not in said.attrib["class"].split() and not fills else "bold"


def test_the_picture_shows_each_cell_as_it_was_counted(whole: Atlas) -> None:
    cells = drawn(whole)
    assert set(cells) == {(cell.boundary, cell.guards) for cell in whole}
    for cell in whole:
        mark = cells[cell.boundary, cell.guards]
        assert mark.attrib["aria-label"] == mark.findtext(f"{SVG}title") == cell.sentence
        if cell.state == "missing":
            assert (kind(mark), words(mark)) == ("stroke", [])
        else:
            assert words(mark) == [str(cell.effects)]
            assert kind(mark) == {0: "hatched", 1: "quiet", 2: "filled"}[cell.effects or 0]


def test_rows_and_columns_stand_in_the_order_of_the_atlas(whole: Atlas) -> None:
    place = {
        key: [
            float(number) for number in mark.attrib["d"].removeprefix("M").split("l")[0].replace("L", " ").split()[:2]
        ]
        for key, cell in drawn(whole).items()
        for mark in cell.findall(f"{SVG}path")[-1:]
    }
    for guards in whole.guard_sets:
        column = [place[boundary, guards.name][1] for boundary in whole.boundaries]
        assert column == sorted(column)
    for boundary in whole.boundaries:
        row = [place[boundary, guards.name][0] for guards in whole.guard_sets]
        assert row == sorted(row)


def test_the_picture_has_a_name_and_its_text_twin_and_nothing_that_clashes_in_a_notebook(whole: Atlas) -> None:
    picture = whole.picture()
    root = ET.fromstring(picture.svg)
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == root.findtext(f"{SVG}title")
    assert root.findtext(f"{SVG}desc") == picture.text == whole.text()
    for element in root.iter():
        assert "id" not in element.attrib
        assert element.tag.removeprefix(SVG) not in ("defs", "marker", "pattern", "clipPath", "script")
    assert sum("acknowledgment gap" in (text_.text or "") for text_ in root.findall(f"{SVG}text")) == 1
    shown = " ".join(words(root))
    assert STALE_WORKER in shown
    assert "76 processes killed" in shown


def test_the_page_shows_the_picture_as_it_is_drawn_today(whole: Atlas) -> None:
    kept = ROOT / "docs" / "pictures" / "crash-atlas.svg"
    assert kept.read_text(encoding="utf-8") == whole.picture().svg + "\n", (
        "agentflow atlas --svg docs/pictures/crash-atlas.svg"
    )
    assert "pictures/crash-atlas.svg" in (ROOT / "docs" / "pictures.md").read_text(encoding="utf-8")


def test_the_text_twin_says_each_column(whole: Atlas) -> None:
    lines = whole.text().splitlines()
    assert "all guards: always 1 effect." in lines
    assert "no fence: always 1 effect." in lines
    assert "claim reads, then writes: always 1 effect." in lines
    assert "no idempotency key: 2 effects after tool and before acknowledge; 1 effect everywhere else." in lines
    assert (
        "acknowledge before the tool: 0 effects before tool and after acknowledge; 1 effect everywhere else." in lines
    )
    assert (
        "NaiveRunner (no checkpoints): 2 effects after tool and before complete; no such boundary around checkpoint "
        "classify, around checkpoint plan, around intent and around acknowledge; 1 effect everywhere else." in lines
    )


def test_an_atlas_that_has_not_begun_and_a_cell_that_failed_are_drawn_as_such() -> None:
    failed = AtlasCell("after tool", ALL, "failed", error="A is <nowhere>.")
    cells = drawn(Atlas().with_cell(failed))
    assert words(cells["after tool", ALL]) == ["?"]
    assert (
        cells["after tool", ALL].attrib["aria-label"] == "after tool, all guards: could not be played: A is <nowhere>."
    )
    assert {tuple(words(cell)) for key, cell in cells.items() if key != ("after tool", ALL)} == {("...",)}
    assert not Atlas().ok
    assert len(Atlas().problems) == 84


def test_more_than_eight_columns_scroll_under_their_row_names(whole: Atlas) -> None:
    assert "sticky" not in whole.picture().html
    many = tuple(GuardSet((f"set {number}",)) for number in range(9))
    page = Atlas(many).picture().html
    assert "position:sticky" in page
    assert page.count(">checkpoint classify<") == 4  # both names, in the picture and over it


def test_a_notebook_gets_the_picture_and_a_terminal_the_table(whole: Atlas) -> None:
    bundle = whole._repr_mimebundle_()
    assert bundle["text/html"].count("<img ") == 1
    assert bundle["text/plain"] == f"{whole.grid()}\n\n{whole.text()}"
    grid = {line[:26].strip(): line for line in whole.grid().splitlines()[1:]}
    assert grid["before tool"].split()[2:] == ["1", "1", "1", "1", "0", "1"]
    assert grid["after tool"].split()[2:8] == ["1", "1", "1", "2", "1", "2"]
    assert grid["before intent"].split()[2:] == ["1", "1", "1", "1", "1", "-"]


def test_the_effects_of_each_column_add_up_and_a_missing_boundary_has_none(whole: Atlas) -> None:
    assert len(list(whole)) == 84
    assert {guards.name: sum(cell.effects or 0 for cell in whole.column(guards)) for guards in whole.guard_sets} == {
        ALL: 14, NO_FENCE: 14, READS: 14, NO_KEY: 16, ACKNOWLEDGES: 12, NAIVE: 8,
    }  # fmt: skip
    missing = [cell for cell in whole if cell.state == "missing"]
    assert missing and all((cell.effects, cell.attempts, cell.executions) == (None, None, ()) for cell in missing)


# -- clicking --------------------------------------------------------------------------------------------------------


def test_a_chosen_cell_shows_its_timeline_and_its_schedule(whole: Atlas) -> None:
    view = AtlasView(whole)
    assert view.cell is whole.cell("after tool", ALL)
    view.choose("before acknowledge", NO_KEY)
    shown = view._detail.value
    assert "without=idempotency_key A*5 A! expire B*" in shown
    assert "af-timeline" in shown
    assert "duplicate effect" in shown
    view.choose("after tool", NAIVE)
    assert "<li>B has run the steps before it from the top.</li>" in view._detail.value
    assert "<svg" not in view._detail.value
    view.choose("before intent", NAIVE)
    assert "no such boundary" in view._detail.value
    with pytest.raises(KeyError):
        view.choose("before lunch", ALL)
    view.close()


def test_a_view_follows_an_atlas_while_it_is_played(whole: Atlas) -> None:
    view = AtlasView(Atlas())
    assert "not played yet" in view._detail.value
    assert view._map.value.count(">...<") == 84
    view.show(Atlas().with_cell(whole.cell("after tool", ALL)))
    assert view._map.value.count(">...<") == 83
    assert "A*4 A. A! expire B*" in view._detail.value
    view.close()


def test_without_a_kernel_the_view_is_the_picture_and_the_chosen_timeline(whole: Atlas) -> None:
    view = AtlasView(whole)
    bundle = view._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["text/html"].count("<img ") == 2
    assert "<script" not in bundle["text/html"]
    assert bundle["text/plain"].startswith(whole.grid())
    assert "A*4 A. A! expire B*" in bundle["text/plain"]
    view.close()


@pytest.mark.browser
def test_keys_and_clicks_in_the_picture_choose_in_the_list(whole: Atlas) -> None:
    view = AtlasView(whole)
    options = "".join(f"<option>{label.replace(' ', '&nbsp;')}</option>" for label, _ in view._list.options)
    carrier, _, map_, *_ = view.view.children
    page_ = (
        f'<div class="af-atlas">{carrier.value}<div class="af-map">{map_.value}</div>'
        f'<div class="af-choice"><select>{options}</select></div></div>'
    )
    view.close()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.find_chromium(), args=list(chromium.ARGUMENTS))
        page = browser.new_page()
        page.set_content(page_)
        page.wait_for_selector(".af-atlas[data-ready]")
        chosen = (
            "() => document.querySelector('.af-choice select').selectedOptions[0].textContent.replace(/\\u00a0/g, ' ')"
        )

        def expect(label: str) -> None:
            page.wait_for_function(f"label => ({chosen})() === label", arg=label)

        page.locator(f'.cell[data-boundary="after tool"][data-guards="{NO_KEY}"]').click()
        expect("after tool, no idempotency key")
        for key, boundary, guards in (
            ("ArrowDown", "before acknowledge", NO_KEY),
            ("ArrowRight", "before acknowledge", ACKNOWLEDGES),
            ("PageUp", "before claim", ACKNOWLEDGES),
            ("End", "before claim", NAIVE),
            ("ArrowRight", "before claim", NAIVE),
            ("Home", "before claim", ALL),
            ("ArrowUp", "before claim", ALL),
        ):
            page.keyboard.press(key)
            expect(f"{boundary}, {guards}")
        assert page.locator(".cell[tabindex='0']").count() == 1
        assert page.locator(".cell:not([data-lm-suppress-shortcuts='true'])").count() == 0
        assert page.locator("select").get_attribute("data-lm-suppress-shortcuts") == "true"
        browser.close()


# -- the command -----------------------------------------------------------------------------------------------------


def run_with(found: Atlas, monkeypatch: pytest.MonkeyPatch, url: str, *arguments: str) -> Any:
    """The command line on an atlas that was played before."""
    told: dict[str, Any] = {}

    def give(where: str, **options: Any) -> Atlas:
        told.update(options, where=where)
        return found

    monkeypatch.setattr("agentflow.lab.crashes.atlas.atlas", give)
    before = signal.getsignal(signal.SIGTERM)
    try:
        done = CliRunner().invoke(app, ["atlas", *arguments], env={"DATABASE_URL": url})
    finally:
        signal.signal(signal.SIGTERM, before)
    return done, told


def test_the_command_prints_the_table_writes_the_picture_and_is_0(
    whole: Atlas, monkeypatch: pytest.MonkeyPatch, url: str, tmp_path: Path
) -> None:
    target = tmp_path / "atlas.svg"
    done, told = run_with(whole, monkeypatch, url, "--svg", str(target), "--schema", "mine")
    assert done.exit_code == 0
    assert whole.grid() in done.stdout
    assert "76 processes were killed with SIGKILL" in done.stdout
    assert told["schema"] == "mine"
    assert target.read_text(encoding="utf-8") == whole.picture().svg + "\n"


def test_the_command_gives_programs_every_cell(whole: Atlas, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    done, _ = run_with(whole, monkeypatch, url, "--json")
    said = json.loads(done.stdout)
    assert (said["ok"], said["problems"], said["kills"], len(said["cells"])) == (True, [], 76, 84)
    (cell,) = [c for c in said["cells"] if (c["boundary"], c["guards"]) == ("after tool", ALL)]
    assert (cell["effects"], cell["attempts"], cell["executed_again"], cell["exit_code"]) == (1, 2, 0, -9)
    assert cell["line"] == "A*4 A. A! expire B*"
    assert [entry["n"] for entry in cell["history"]] == list(range(1, len(cell["history"]) + 1))
    assert {entry["worker"] for entry in cell["history"]} == {None, "A", "B"}


def test_the_command_is_1_when_a_cell_is_not_as_predicted(
    whole: Atlas, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    doubled = AtlasCell("after tool", ALL, "done", 2, 2, True, exit_code=-9)
    done, _ = run_with(whole.with_cell(doubled), monkeypatch, url)
    assert done.exit_code == 1
    assert done.stderr == "agentflow: after tool, all guards: 2 effects, where 1 effect was predicted.\n"


@pytest.mark.long
def test_the_command_plays_the_whole_atlas_in_a_process_of_its_own(url: str, tmp_path: Path) -> None:
    with running("atlas", "--json", "--no-progress", env=environment(DATABASE_URL=url), cwd=tmp_path) as process:
        out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    assert json.loads(out)["kills"] == 76


# -- a workflow of one's own -------------------------------------------------------------------------------------------


def test_the_rows_are_the_boundaries_of_ones_own_workflow_and_right_is_what_it_does_undisturbed(url: str) -> None:
    names = [guards.name for guards in GUARD_SETS]
    columns = [GUARD_SETS[names.index(name)] for name in (NO_KEY, NAIVE)]
    rows_ = ("after tool hotel", "before acknowledge hotel", "before complete")
    found = atlas(url, workflow=trip, inputs=[{"actions": ["flight", "hotel"]}], guard_sets=columns, boundaries=rows_)
    assert found.problems == []
    assert {(cell.guards, cell.boundary): cell.effects for cell in found} == {
        (NO_KEY, "after tool hotel"): 3, (NO_KEY, "before acknowledge hotel"): 3, (NO_KEY, "before complete"): 2,
        (NAIVE, "after tool hotel"): 4, (NAIVE, "before acknowledge hotel"): None, (NAIVE, "before complete"): 4,
    }  # fmt: skip
    assert {kind(cell) for cell in drawn(found).values()} == {"filled", "quiet", "stroke"}
    with pytest.raises(
        AgentFlowError, match=r"There is no boundary 'after checkpoint plan'\. Choose from before claim"
    ):
        atlas(url, workflow=trip, inputs=[{"actions": ["flight"]}], boundaries=["after checkpoint plan"])


def test_what_an_own_tool_did_is_not_observed_and_no_cell_is_green(url: str) -> None:
    where = ("after tool", "before complete")
    found = atlas(
        url, workflow=trip, inputs=[{"actions": ["x"]}], tool=mute, guard_sets=GUARD_SETS[:1], boundaries=where
    )
    assert [cell.what for cell in found] == ["not observed"] * 2
    assert found.problems[0].startswith("2 cells are not observed: let the tool tell its effects in effects()")
    assert "unseen" in found.grid() and "all guards: not observed." in found.text()
    assert [words(cell) for cell in drawn(found).values()] == [["unseen"]] * 2


def test_a_workflow_that_does_not_complete_undisturbed_is_refused_before_a_kill(url: str) -> None:
    for workflow, value, said in (
        (for_ever, "x", "waits for the event 'event-20'"),
        (trip, {"actions": None}, "fails: ValueError: no such trip"),
    ):
        with pytest.raises(AgentFlowError, match=f"{said}.*Nothing was killed"):
            atlas(url, workflow=workflow, inputs=[value])


def test_events_are_there_a_refusal_is_no_effect_and_a_lost_result_has_no_prediction(url: str) -> None:
    where = ("before acknowledge card", "after tool cash", "after acknowledge cash")
    columns = [guards for guards in GUARD_SETS if guards.name in (NO_KEY, ACKNOWLEDGES, NAIVE)]
    given: Any = {
        "workflow": approved,
        "inputs": ["x"],
        "asked": [declines],
        "guard_sets": columns,
        "boundaries": where,
    }
    found = atlas(url, **given, events={"approval": {"by": "Ada"}})
    assert found.problems == []
    assert {(cell.guards, cell.boundary): cell.effects for cell in found if cell.guards != ACKNOWLEDGES} == {
        (NO_KEY, "before acknowledge card"): 1, (NO_KEY, "after tool cash"): 2, (NO_KEY, "after acknowledge cash"): 1,
        (NAIVE, "before acknowledge card"): None, (NAIVE, "after tool cash"): 2, (NAIVE, "after acknowledge cash"): None,
    }  # fmt: skip
    (note,) = found.notes()
    assert note.startswith("No prediction: acknowledge before the tool loses what the tool answered") and note in repr(
        found
    )
    with pytest.raises(
        AgentFlowError, match=r"it fails: TypeError: 'bool' object is not subscriptable.*Nothing was killed"
    ):
        atlas(url, **given)
    with pytest.raises(
        AgentFlowError, match=r"no workflow waits for the event 'approve', .* they wait for approval\. Nothing"
    ):
        atlas(url, **given, events={"approve": 1, "approval": {"by": "Ada"}})
