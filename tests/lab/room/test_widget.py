"""The panel of a control room: each button does what its method does, rooms open and close, pages work without a kernel."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import pytest
from ipywidgets import Widget

from agentflow import Engine
from agentflow.errors import LaneError
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.notebook import live_view
from agentflow.lab.room.controller import Controller
from agentflow.lab.room.widget import ControlRoom, control_room
from agentflow.lab.schedule.presets import PRESETS
from tests.conftest import rows
from tests.lab.room.screen import GAP, LANE_BUTTONS, OTHERS, button, control_room_of, ours, part, parts, press, said
from tests.support.helpers import eventually


def sessions(engine: Engine) -> list[dict[str, Any]]:
    """The connections of lanes' workers that last asked something of this engine's schema; other tests have lanes, too."""
    named = "application_name ~ '^[A-D][.][0-9a-f]+$' AND strpos(query, :schema) > 0"
    return rows(engine, f"SELECT pid FROM pg_stat_activity WHERE {named}", schema=engine.database.schema)


def test_every_button_has_a_name_and_says_what_it_does(room: ControlRoom) -> None:
    assert set(room.scene().buttons) == {name for name in LANE_BUTTONS if name[-1] in "AB"} | OTHERS
    room.run("requests=4 A B C D")
    assert set(room.scene().buttons) == LANE_BUTTONS | OTHERS
    assert set(room.panel) >= LANE_BUTTONS | OTHERS
    assert all(button.label.strip() and button.tooltip for button in room.scene().buttons.values())


@pytest.mark.parametrize(
    ("key", "method"),
    [("Step A", "step"), ("Crash B", "crash"), ("Pause A", "pause"), ("Recover B", "recover"), ("Race", "race"),
     ("Expire lease", "expire"), ("End back-off", "due"), ("Deliver event", "deliver"), ("Lose reply", "lose"),
     ("Lose answer", "move"), ("Hide next", "hide"),
     ("Back", "back"), ("Forward", "forward"), ("Fork here", "fork"), ("Reset", "reset"), ("Run", "run"),
     ("Copy", "copy")],
)  # fmt: skip
def test_every_button_calls_a_method_that_a_cell_can_call(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, key: str, method: str
) -> None:
    engine.policy = PATIENT
    called: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Controller, method, lambda self, *told: called.append(told))
    room = ControlRoom(engine, quiet_seconds=0)
    try:
        press(room, key)
        assert called == [(key[-1],)] if key in LANE_BUTTONS else len(called) == 1
        getattr(room, method)(*called[0])
        assert called[1:] == called[:1]
    finally:
        room.close()


def test_the_acknowledgment_gap_is_played_by_clicks_and_recovered_by_a_click(room: ControlRoom, engine: Engine) -> None:
    for _ in range(5):
        press(room, "Step A")
    assert button(room, "Step A").label == "Step: acknowledge resolve-account"
    assert "6. A calls the tool; the tool commits business effect 1" in said(room)
    press(room, "Crash A")
    assert "7. A crashes" in said(room)
    assert "≠" in part(room, "panes")
    press(room, "Recover A")
    assert "Recover A stands for: expire B*" in said(room)
    assert room.panel["schedule"].value == PRESETS["acknowledgment gap"].line == room.scene().line
    assert "=" in part(room, "panes") and "≠" not in part(room, "panes")
    assert rows(engine, "SELECT status, fence_token FROM {s}.workflows") == [{"status": "completed", "fence_token": 2}]
    assert rows(engine, "SELECT attempts FROM {w}.tool_ledger") == [{"attempts": 2}]


def test_the_step_button_names_the_next_transaction(room: ControlRoom) -> None:
    names = []
    for _ in range(3):
        names.append(button(room, "Step B").label)
        press(room, "Step B")
    assert names == ["Step: claim", "Step: checkpoint classify", "Step: checkpoint plan"]


def test_a_dead_lane_offers_a_new_process(room: ControlRoom) -> None:
    room.step("A")
    room.crash("A")
    assert button(room, "Step A").label == "New process"
    press(room, "Step A")
    assert room.scene().line == "A A! A+"
    assert button(room, "Step A").label == "Step: claim"


def test_pause_and_resume_are_one_button(room: ControlRoom) -> None:
    room.step("A")
    press(room, "Pause A")
    assert (button(room, "Pause A").label, not button(room, "Step A").enabled) == ("Resume", True)
    press(room, "Pause A")
    assert room.scene().line == "A A|| A>"


def test_what_cannot_happen_now_stands_in_its_place_and_cannot_be_pressed(room: ControlRoom) -> None:
    hidden = {"End back-off", "Deliver event", "Lose reply"}

    def away() -> set[str]:
        return {key for key in hidden if not button(room, key).enabled}

    assert away() == hidden
    assert not button(room, "Expire lease").enabled and not button(room, "Recover A").enabled
    room.run("A*4")
    assert away() == hidden - {"Lose reply"}
    assert button(room, "Expire lease").enabled
    room.run("A*4 A/ A")
    assert away() == hidden - {"End back-off"}
    room.run("workflow=approval_agent A*")
    assert away() == hidden - {"Deliver event"}
    assert button(room, "Deliver event").label == "Deliver approval"


def test_when_all_is_completed_nothing_can_be_claimed(room: ControlRoom) -> None:
    room.run("A*")
    assert not button(room, "Step A").enabled
    assert button(room, "Step A").label == "Step: nothing to claim"
    assert "COMPLETED" in part(room, "head") and "no lease" in part(room, "head")


def test_a_lane_says_what_its_worker_parked_and_for_which_event_while_it_waits(room: ControlRoom) -> None:
    room.run("workflow=approval_agent A*")
    assert "idle; request-1 waits for event approval" in part(room, "lane A")
    room.deliver()
    assert "idle; parked request-1" in part(room, "lane A")


def test_a_lost_answer_is_a_click_and_belongs_to_the_worker_that_moved_last(room: ControlRoom) -> None:
    press(room, "Lose answer")
    assert room.scene().line == "A?"
    room.run("A*2 B")
    room.run("A*3")
    assert button(room, "Lose answer").label == "Lose answer to A"
    press(room, "Lose answer")
    assert room.scene().line == "A*3 A?"
    assert "PostgreSQL's answer to A's" in said(room)
    room.run("A*4")  # before the tool: its reply can be lost, and no answer of PostgreSQL's
    assert button(room, "Lose reply").enabled and button(room, "Lose answer").label == "Lose answer to B"


def test_hiding_what_comes_next_leaves_a_class_to_be_asked(room: ControlRoom) -> None:
    room.run(GAP)
    room.show(6)
    press(room, "Hide next")
    assert button(room, "Hide next").label == "Show next"
    assert (room.scene().length, len(room.scene().history)) == (6, 6)
    assert {button(room, f"Step {lane}").label for lane in "AB"} == {"Step"}
    assert room.panel["schedule"].value == ""
    shown = " ".join(parts(room))
    assert "crashes" not in shown and "acknowledge" not in shown
    press(room, "Forward")
    assert room.scene().length == 7 and "7. A crashes" in said(room)
    press(room, "Hide next")
    assert (room.scene().length, room.panel["schedule"].value) == (9, GAP)


def test_a_room_has_few_widgets(room: ControlRoom, engine: Engine) -> None:
    """One layout for all of them, and one style for each kind: a third of what there would be."""
    before = widgets_there()
    with control_room_of(engine, ""):
        assert widgets_there() - before <= 70


def test_opening_a_room_again_closes_the_one_before_and_begins_empty(engine: Engine) -> None:
    engine.policy, others = PATIENT, ours()
    first = control_room(engine, "A*5", name="again")
    assert sessions(engine)
    second = control_room(engine, name="again")
    try:
        assert ours() == others
        assert first.view.comm is None and first.panel["head"].comm is None
        assert eventually(lambda: sessions(engine) == [])
        with pytest.raises(LaneError, match="closed"):
            first.step("A")
        with pytest.raises(LaneError, match="closed"):
            first.reset()
        assert rows(engine, "SELECT id FROM {s}.workflows") == []
        assert second.step("B").passed.outcome == "committed"  # type: ignore[union-attr]
    finally:
        second.close()
    assert ours() == others


def widgets_there() -> int:
    """How many widgets this process has, as a saved notebook would keep them."""
    return len(Widget.get_manager_state()["state"])


def test_twenty_rooms_opened_and_closed_leave_no_thread_connection_or_widget(engine: Engine) -> None:
    engine.policy = PATIENT
    control_room(engine, "A", name="leak").close()
    threads, widgets = threading.active_count(), widgets_there()
    for _ in range(20):
        control_room(engine, GAP, name="leak")
    control_room(engine, name="leak").close()
    eventually(lambda: threading.active_count() <= threads)
    assert widgets_there() == widgets
    assert eventually(lambda: sessions(engine) == [])


def test_the_lanes_can_be_processes_and_none_is_left(room: ControlRoom) -> None:
    room.run(GAP)
    before = repr(room)
    room.panel["lanes"].value = "process"
    eventually(lambda: room.scene().kind == "process" and not room.busy)
    assert repr(room) == before.replace("crashes", "killed", 1).replace("A crashes", "A is killed (SIGKILL)")
    (process,) = [child for child in multiprocessing.active_children() if child.name == "lane-B"]
    assert process.is_alive()
    room.crash("B")
    assert not process.is_alive()
    room.on("thread")
    assert room.scene().line == f"{GAP} B!"


def test_lanes_of_an_unknown_kind_are_refused_and_the_room_is_as_it_was(room: ControlRoom) -> None:
    room.run("A*2")
    with pytest.raises(LaneError, match="not 'fiber'"):
        room.on("fiber")  # type: ignore[arg-type]
    assert (room.scene().kind, room.scene().line) == ("thread", "A*2")


def test_a_room_can_open_on_a_preset_or_on_a_line(engine: Engine) -> None:
    engine.policy = PATIENT
    for setting in ("stale worker", PRESETS["stale worker"].line):
        room = control_room(engine, setting, name="test")
        assert room.scene().line == PRESETS["stale worker"].line
        assert room.panel["preset"].value == "stale worker"
        assert "refused" in said(room)
    room.close()


def test_a_room_is_a_widget_and_beside_it_a_picture_and_a_text(room: ControlRoom) -> None:
    room.run(GAP)
    bundle = room._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    page, text = bundle["text/html"], bundle["text/plain"]
    for shown in ("<img alt=", "<table ", "rows</summary>", "9. B claims it: token 2; recovery starts", GAP):
        assert shown in page
    assert "<svg" not in page and "<style" not in page and "<button" not in page and "onload" not in page
    assert "worker B: replays classify, plan; stands before tool resolve-account (token 2)" in text
    assert "9. B claims it: token 2; recovery starts." in text
    room.close()
    assert set(room._repr_mimebundle_()) == {"text/html", "text/plain"}


def test_a_cell_shows_what_is_kept_and_the_widget_and_a_click_replaces_what_is_kept(
    room: ControlRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[dict[str, Any]] = []

    class Handle:
        def update(self, bundle: dict[str, Any], raw: bool) -> None:
            shown.append(bundle)

    monkeypatch.setattr(live_view, "display", lambda bundle, **_: shown.append(bundle) or Handle())
    room._ipython_display_()
    assert [set(bundle) for bundle in shown] == [
        {"text/html", "text/plain"},
        {"application/vnd.jupyter.widget-view+json", "text/plain"},
    ]
    room.step("A")  # what a cell's moves come to stands at that cell
    assert len(shown) == 2
    press(room, "Step A")
    eventually(lambda: len(shown) == 3)
    assert "3. A commits checkpoint classify" in shown[2]["text/html"]


def test_the_schedule_line_can_be_copied(room: ControlRoom) -> None:
    room.run(GAP)
    assert room.copy() == GAP == room.panel["schedule"].value
    assert "in the clipboard" in said(room)


def test_what_a_cell_prints_of_a_move_has_no_identity_that_changes(room: ControlRoom) -> None:
    assert repr(room.step("A")) == "A: claim committed; stands before checkpoint classify"
    assert (
        repr(room.move("A*2")).splitlines()[-1] == "A: checkpoint plan committed; stands before intent resolve-account"
    )
