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
    assert "B went on where A had left off: request-1 is completed." in panel._say.value
    assert rows(engine, "SELECT status, fence_token FROM {s}.workflows") == [{"status": "completed", "fence_token": 2}]
    assert rows(engine, "SELECT attempts FROM {w}.tool_ledger") == [{"attempts": 2}]


def test_the_step_button_names_the_next_transaction(panel: Panel) -> None:
    click(panel, "New request")
    names = []
    for _ in range(3):
        names.append(panel._buttons["Step B"].description)
        click(panel, "Step B")
    assert names == ["Step B: claim", "Step B: checkpoint classify", "Step B: checkpoint plan"]


@pytest.mark.parametrize("text", sorted(BUTTONS - {"Step A", "Step B"}))
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
        assert "Too fast: 4 clicks were ignored." in panel._say.value
        panel.quiet_seconds = 0
        click(panel, "Step B")
        assert "Too fast" not in panel._say.value
    finally:
        panel.close()


def test_step_takes_each_click_that_comes_when_the_last_move_has_ended(engine: Engine) -> None:
    engine.policy = PATIENT
    panel = Panel(engine, quiet_seconds=NEVER)
    try:
        into_the_gap(panel)
        assert panel._buttons["Step A"].description == "Step A: acknowledge resolve-account"
        assert "ignored" not in panel._say.value
    finally:
        panel.close()


def test_a_click_while_another_move_is_under_way_does_nothing_says_so_and_returns_at_once(engine: Engine) -> None:
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
        assert "Too fast: 1 click was ignored." in panel._say.value
        panel._buttons["Step A"].click()
        gate.set()
        idle(panel)
        assert "Too fast: 2 clicks were ignored." in panel._say.value
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
def test_with_the_database_away_every_button_shows_a_sentence(
    away: tuple[Panel, Server], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel, _ = away
    monkeypatch.setenv("DATABASE_URL", "of a server that somebody else starts")
    panel.trouble, panel._say.value = "", ""
    click(panel, text)
    if text == "Crash B":  # there is no worker, whatever the database does
        assert ">B has no worker to crash" in panel._say.value
    else:
        assert ">PostgreSQL at" in panel._say.value
        assert "repeat the move" in panel._say.value
    assert 'role="alert"' in panel._say.value
    assert panel._buttons["Step A"].description == "Step A: acknowledge resolve-account"
    assert "request-1" in panel._rows.value


def test_with_the_embedded_database_away_the_learner_is_sent_to_the_first_cell(
    away: tuple[Panel, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    panel, _ = away
    monkeypatch.delenv("DATABASE_URL", raising=False)
    click(panel, "Step A")
    assert "does not answer. No worker has moved. Run the first cell again" in panel._say.value
    assert "doctor" not in panel._say.value


def test_a_panel_can_be_made_while_the_database_is_away(away: tuple[Panel, Server]) -> None:
    panel, _ = away
    other = Panel(panel.engine)
    try:
        assert "does not answer" in other._say.value
        assert "does not answer" in repr(other)
    finally:
        other.close()


def test_an_error_is_shown_as_a_sentence_and_raised_to_a_cell(panel: Panel) -> None:
    with pytest.raises(LaneError):
        panel.crash("A")
    assert ">A has no worker to crash: step it first" in panel._say.value
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


def test_recover_names_the_workflow_that_was_left_and_what_else_the_other_worker_did(panel: Panel) -> None:
    for text in ("New request", "New request", "Step B", "Step A", "Crash B", "Recover B"):
        click(panel, text)
    assert (
        "A went on where B had left off: request-1 is completed. On its way it worked on others: request-2 is completed."
        in panel._say.value
    )


def test_recover_without_anything_left_behind_says_so(panel: Panel) -> None:
    into_the_gap(panel)
    click(panel, "Crash A")
    click(panel, "Recover B")
    assert (
        ">B left nothing behind, so there is nothing to recover. It was A that was lost: recover A.<"
        in panel._say.value
    )


def test_a_worker_without_work_says_what_to_do_next(panel: Panel) -> None:
    panel.step("A")
    assert "there is no request. Make a new one." in panel._say.value
    panel.submit()
    panel.submit()
    panel.step("B")
    panel.stepper.run("A")
    panel.step("A")
    assert "A found nothing to claim: request-1 is still leased to B. Step B, or recover it." in panel._say.value
    panel.stepper.run("B")
    panel.step("A")
    assert "request-1 is completed. Press New request (or Reset) to begin again." in panel._say.value


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
        assert "request-1 is still leased to A. Recover A." in second._say.value
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
