"""The panel: each button does what its method does, double clicks do it once, and no error is silent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agentflow import Database, Engine, migrate
from agentflow.errors import LaneError
from agentflow.lab.laboratory import PATIENT
from agentflow.lab.panel import Panel, control_panel
from agentflow.server import Server
from tests.conftest import rows
from tests.helpers import eventually
from tests.test_stepper import connections, lane_threads

NEVER = 1e9  # seconds: any second click on one button is a double click
BUTTONS = {"New request", "Reset", "Step A", "Crash A", "Recover A", "Step B", "Crash B", "Recover B"}


@pytest.fixture
def panel(engine: Engine) -> Iterator[Panel]:
    engine.policy = PATIENT
    panel = control_panel(engine, "test", quiet_seconds=0)
    yield panel
    panel.close()


def click(panel: Panel, text: str) -> None:
    """The button was clicked and its move has ended."""
    panel._buttons[text].click()
    idle(panel)


def idle(panel: Panel) -> None:
    eventually(lambda: not panel._busy.locked())


def into_the_gap(panel: Panel) -> None:
    click(panel, "New request")
    for _ in range(5):
        click(panel, "Step A")


def test_the_buttons_are_step_crash_and_recover_for_two_workers(panel: Panel) -> None:
    assert set(panel._buttons) == BUTTONS
    assert all(button.description.strip() and button.tooltip for button in panel._buttons.values())


def test_a_worker_crashed_in_the_gap_by_clicks_is_recovered_by_a_click(panel: Panel, engine: Engine) -> None:
    into_the_gap(panel)
    assert panel._buttons["Step A"].description == "Step A: acknowledge resolve-account"
    assert "the effect exists, and only A knows" in panel._say.value
    click(panel, "Crash A")
    assert "A crashed before acknowledge resolve-account" in panel._say.value
    assert "acknowledgment gap" in panel._rows.value
    click(panel, "Recover A")
    assert "the workflow is completed" in panel._say.value
    assert rows(engine, "SELECT status, fence_token FROM {s}.workflows") == [{"status": "completed", "fence_token": 2}]
    assert rows(engine, "SELECT attempts FROM {w}.tool_ledger") == [{"attempts": 2}]


def test_the_step_button_names_the_next_transaction(panel: Panel) -> None:
    click(panel, "New request")
    names = []
    for _ in range(3):
        names.append(panel._buttons["Step B"].description)
        click(panel, "Step B")
    assert names == ["Step B: claim", "Step B: checkpoint classify", "Step B: checkpoint plan"]


@pytest.mark.parametrize("text", sorted(BUTTONS))
def test_five_quick_clicks_make_one_move(engine: Engine, text: str) -> None:
    engine.policy = PATIENT
    panel = Panel(engine, quiet_seconds=0)
    try:
        into_the_gap(panel)
        moves: list[str] = []
        name = "submit" if text == "New request" else text.split()[0].lower()
        real = getattr(panel.stepper, name)
        setattr(panel.stepper, name, lambda *args: (moves.append(name), real(*args))[-1])
        panel.quiet_seconds = NEVER
        panel._clicked.clear()
        for _ in range(5):
            panel._buttons[text].click()
        idle(panel)
        assert len(moves) == 1
    finally:
        panel.close()


def test_a_click_while_another_move_is_under_way_does_nothing_and_returns_at_once(engine: Engine) -> None:
    gate, entered = threading.Event(), threading.Event()

    def slow(run: Any, _: Any) -> Any:
        return run.step("slow", lambda: (entered.set(), gate.wait(60), "late")[-1])

    engine.workflows = {"support_agent": slow}
    panel = Panel(engine, quiet_seconds=0, patience=60)
    try:
        panel.submit("x")
        panel._buttons["Step A"].click()  # returns although the step does not
        assert entered.wait(30)
        panel._buttons["New request"].click()
        panel._buttons["Step A"].click()
        gate.set()
        idle(panel)
        assert panel.stepper.next_transaction("A") == "checkpoint slow"
        assert len(rows(engine, "SELECT id FROM {s}.workflows")) == 1
    finally:
        gate.set()
        panel.close()


@pytest.fixture(scope="module")
def away(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Panel, Server]]:
    """A panel whose worker A stands in the gap, and whose database then went away."""
    server = Server(tmp_path_factory.mktemp("pg") / "home").start()
    engine = Engine(Database(server.url(), "away", patience=1.0), policy=PATIENT)
    migrate(engine.database, laboratory=True)
    panel = Panel(engine, quiet_seconds=0)
    into_the_gap(panel)
    server.stop()
    yield panel, server
    server.start()
    panel.close()
    engine.close()
    server.stop()


@pytest.mark.parametrize("text", sorted(BUTTONS))
def test_with_the_database_away_every_button_shows_a_sentence(away: tuple[Panel, Server], text: str) -> None:
    panel, _ = away
    panel.trouble, panel._say.value = "", ""
    click(panel, text)
    if text == "Crash B":  # there is no worker, whatever the database does
        assert "LaneError: B has no worker to crash" in panel._say.value
    else:
        assert "DatabaseAway: PostgreSQL at" in panel._say.value
        assert "repeat the move" in panel._say.value
    assert 'role="alert"' in panel._say.value
    assert panel._buttons["Step A"].description == "Step A: acknowledge resolve-account"
    assert "request-1" in panel._rows.value


def test_a_panel_can_be_made_while_the_database_is_away(away: tuple[Panel, Server]) -> None:
    panel, _ = away
    other = Panel(panel.engine)
    try:
        assert "DatabaseAway" in other._say.value
        assert "DatabaseAway" in repr(other)
    finally:
        other.close()


def test_an_error_is_shown_with_its_type_and_raised_to_a_cell(panel: Panel) -> None:
    with pytest.raises(LaneError):
        panel.crash("A")
    assert "LaneError: A has no worker to crash: step it first" in panel._say.value
    click(panel, "New request")
    assert "alert" not in panel._say.value


def test_an_unexpected_error_in_a_callback_is_shown(panel: Panel, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: str) -> None:
        raise ZeroDivisionError("by <b>hand</b>")

    monkeypatch.setattr(panel.stepper, "step", broken)
    click(panel, "Step A")
    assert "ZeroDivisionError: by &lt;b&gt;hand&lt;/b&gt;" in panel._say.value


def test_values_are_escaped_wherever_they_are_shown(panel: Panel, engine: Engine) -> None:
    engine.create_workflow("x", workflow_id="<script>alert(1)</script>")
    click(panel, "Step A")
    assert "&lt;script&gt;" in panel._rows.value
    for shown in (panel._rows.value, panel._say.value, panel.to_html()):
        assert "<script>" not in shown


def test_a_request_that_loses_every_worker_is_failed_and_the_panel_says_so(panel: Panel, engine: Engine) -> None:
    panel.submit()
    for _ in range(engine.policy.crash_budget + 1):
        panel.step("A")
        panel.crash("A")
        panel.stepper.expire()
    panel.step("A")
    assert "claim failed request-1: too many workers were lost there in a row" in panel._say.value
    panel.step("A")
    assert "nothing to claim: request-1 is failed: 6 workers in a row" in panel._say.value
    assert rows(engine, "SELECT status FROM {s}.workflows") == [{"status": "failed"}]


def test_opening_a_panel_again_closes_the_one_before(engine: Engine) -> None:
    others = lane_threads()
    first = control_panel(engine, "again", quiet_seconds=0)
    into_the_gap(first)
    assert len(lane_threads()) == len(others) + 1
    second = control_panel(engine, "again")
    try:
        assert lane_threads() == others
        assert connections(first.stepper.engine) == 0
        assert first.view.comm is None
        with pytest.raises(LaneError, match="closed"):
            first.step("A")
        assert second.snapshot.in_gap  # the rows are still there
        assert second.step("B").ended == "idle"
        assert "still leased to A. Recover it." in second._say.value
        assert second.recover("A")[-1].ended == "completed"
    finally:
        second.close()


def test_a_panel_is_a_widget_and_beside_it_a_picture_and_a_text(panel: Panel) -> None:
    into_the_gap(panel)
    bundle = panel._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "<table>" in bundle["text/html"]
    assert "Run this cell to use the controls." in bundle["text/html"]
    assert "worker A, next: acknowledge resolve-account" in bundle["text/plain"]
    assert "6. The tool carries out resolve-account: the effect exists." in bundle["text/plain"]


def test_what_a_panel_shows_is_the_same_in_every_run(engine: Engine) -> None:
    engine.policy = PATIENT
    seen = []
    for _ in range(2):
        panel = Panel(engine, quiet_seconds=0)
        panel.reset()
        into_the_gap(panel)
        panel.crash("A")
        panel.recover("A")
        seen.append((panel.to_html(), repr(panel)))
        panel.close()
    assert seen[0] == seen[1]
