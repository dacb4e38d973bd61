"""The control room: each button does what its method does, the screen shows the rows, and no error is silent."""

from __future__ import annotations

import html
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agentflow import Database, Engine, migrate
from agentflow.errors import BadSchedule, LaneError, UnfaithfulValue
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.room import clicks
from agentflow.lab.room import widget as rooms
from agentflow.lab.room.statement_text import filled
from agentflow.lab.room.widget import ControlRoom, control_room
from agentflow.lab.schedule.presets import PRESETS
from agentflow.server import Server
from tests.conftest import rows
from tests.support.helpers import eventually

NEVER = 1e9  # seconds: any second click on one button is a double click
LANE_BUTTONS = {f"{verb} {lane}" for verb in ("Step", "Crash", "Pause", "Recover") for lane in "ABCD"}
OTHERS = {
    "Reset", "Expire lease", "End back-off", "Deliver event", "Lose reply", "Race", "Back", "Forward", "Fork here", "Copy",
    "Run",
}  # fmt: skip
GAP = "A*5 A! expire B"


@pytest.fixture
def room(engine: Engine) -> Iterator[ControlRoom]:
    engine.policy, others = PATIENT, ours()
    room = control_room(engine, name="test", quiet_seconds=0)
    yield room
    room.close()
    assert ours() == others


@contextmanager
def control_room_of(engine: Engine, line: str) -> Iterator[ControlRoom]:
    """A second room, closed at the end."""
    room = control_room(engine, line, name="other", quiet_seconds=0)
    try:
        yield room
    finally:
        room.close()


def ours() -> list[str]:
    """Threads of rooms and lanes."""
    return [one.name for one in threading.enumerate() if one.name.startswith(("lane-", "room-"))]


def sessions(engine: Engine) -> list[dict[str, Any]]:
    """What PostgreSQL knows of the connections of lanes' workers."""
    return rows(engine, "SELECT pid FROM pg_stat_activity WHERE application_name ~ '^[A-D][.][0-9a-f]+$'")


def click(room: ControlRoom, key: str) -> None:
    """The button was clicked and its move has ended."""
    room._buttons[key].click()
    idle(room)


def idle(room: ControlRoom) -> None:
    eventually(lambda: not room.busy)


def said(room: ControlRoom) -> str:
    """What the room says, as text."""
    return html.unescape(re.sub(r"<[^>]*>", "", room._say.value))


def canonical(engine: Engine) -> list[dict[str, Any]]:
    """The rows and the history, without times and without what makes a worker's identity new."""
    return rows(
        engine,
        """SELECT w.id, w.state, split_part(w.lease_owner, '.', 1) AS owner, w.fence_token, w.checkpoints,
                  (SELECT array_agg(h.event || coalesce(h.subject, '') ORDER BY n) FROM {s}.history AS h
                   WHERE h.workflow_id = w.id) AS history,
                  (SELECT sum(attempts) FROM {w}.tool_ledger AS l WHERE l.workflow_id = w.id) AS attempts
           FROM {s}.workflows AS w ORDER BY id""",
    )


# --- buttons and methods


def test_every_button_has_a_name_and_says_what_it_does(room: ControlRoom) -> None:
    assert set(room._buttons) == LANE_BUTTONS | OTHERS
    assert all(button.description.strip() and button.tooltip for button in room._buttons.values())


@pytest.mark.parametrize(
    ("key", "method"),
    [("Step A", "step"), ("Crash B", "crash"), ("Pause A", "pause"), ("Recover B", "recover"), ("Race", "race"),
     ("Expire lease", "expire"), ("End back-off", "due"), ("Deliver event", "deliver"), ("Lose reply", "lose"),
     ("Back", "back"), ("Forward", "forward"), ("Fork here", "fork"), ("Reset", "reset"), ("Run", "run"),
     ("Copy", "copy")],
)  # fmt: skip
def test_every_button_calls_a_method_that_a_cell_can_call(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, key: str, method: str
) -> None:
    engine.policy = PATIENT
    called: list[tuple[Any, ...]] = []
    monkeypatch.setattr(ControlRoom, method, lambda self, *told: called.append(told))
    room = ControlRoom(engine, quiet_seconds=0)
    try:
        click(room, key)
        assert called == [(key[-1],)] if key in LANE_BUTTONS else len(called) == 1
    finally:
        room.close()


def test_the_acknowledgment_gap_is_played_by_clicks_and_recovered_by_a_click(room: ControlRoom, engine: Engine) -> None:
    for _ in range(5):
        click(room, "Step A")
    assert room._buttons["Step A"].description == "Step: acknowledge resolve-account"
    assert "6. A calls the tool; the tool commits business effect 1" in said(room)
    click(room, "Crash A")
    assert "7. A is killed" in said(room)
    assert "≠" in room._panes.value
    click(room, "Recover A")
    assert "Recover A stands for: expire B*" in said(room)
    assert room._line.value == PRESETS["acknowledgment gap"].line == room.stepper.line
    assert "=" in room._panes.value and "≠" not in room._panes.value
    assert rows(engine, "SELECT status, fence_token FROM {s}.workflows") == [{"status": "completed", "fence_token": 2}]
    assert rows(engine, "SELECT attempts FROM {w}.tool_ledger") == [{"attempts": 2}]


def test_the_step_button_names_the_next_transaction(room: ControlRoom) -> None:
    names = []
    for _ in range(3):
        names.append(room._buttons["Step B"].description)
        click(room, "Step B")
    assert names == ["Step: claim", "Step: checkpoint classify", "Step: checkpoint plan"]


def test_a_dead_lane_offers_a_new_process(room: ControlRoom) -> None:
    room.step("A")
    room.crash("A")
    assert room._buttons["Step A"].description == "New process"
    click(room, "Step A")
    assert room.stepper.line == "A A! A+"
    assert room._buttons["Step A"].description == "Step: claim"


def test_pause_and_resume_are_one_button(room: ControlRoom) -> None:
    room.step("A")
    click(room, "Pause A")
    assert (room._buttons["Pause A"].description, room._buttons["Step A"].disabled) == ("Resume", True)
    click(room, "Pause A")
    assert room.stepper.line == "A A|| A>"


def test_what_cannot_happen_now_has_no_button_to_press(room: ControlRoom) -> None:
    hidden = {"End back-off", "Deliver event", "Lose reply"}

    def away() -> set[str]:
        return {key for key in hidden if room._buttons[key].layout.display == "none"}

    assert away() == hidden
    assert room._buttons["Expire lease"].disabled and room._buttons["Recover A"].disabled
    room.run("A*4")
    assert away() == hidden - {"Lose reply"}
    assert not room._buttons["Expire lease"].disabled
    room.run("A*4 A/ A")
    assert away() == hidden - {"End back-off"}
    room.run("workflow=approval_agent A*")
    assert away() == hidden - {"Deliver event"}
    assert room._buttons["Deliver event"].description == "Deliver approval"


def test_when_all_is_completed_nothing_can_be_claimed(room: ControlRoom) -> None:
    room.run("A*")
    assert room._buttons["Step A"].disabled
    assert room._buttons["Step A"].description == "Step: nothing to claim"
    assert "COMPLETED" in room._head.value and "none" in room._head.value


def test_a_lane_says_what_its_worker_parked_and_for_which_event_while_it_waits(room: ControlRoom) -> None:
    room.run("workflow=approval_agent A*")
    assert "idle; request-1 waits for event approval" in room._lanes["A"][1].value
    room.deliver()
    assert "idle; parked request-1" in room._lanes["A"][1].value


def test_workers_of_one_name_have_one_lane_in_the_picture_with_all_their_marks(room: ControlRoom) -> None:
    room.run("names=shared A*2 B")
    picture = room.scene().picture
    assert "worker W" in picture and "worker A" not in picture
    assert picture.count('class="ev') == room.length


# --- clicks


@pytest.mark.parametrize(
    ("key", "method"),
    [("Crash B", "crash"), ("Recover A", "recover"), ("Run", "run"), ("Reset", "reset"), ("Race", "race")],
)
def test_five_quick_clicks_make_one_move(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, key: str, method: str
) -> None:
    engine.policy = PATIENT
    moves: list[str] = []
    real: Callable[..., Any] = getattr(ControlRoom, method)
    monkeypatch.setattr(ControlRoom, method, lambda *told: (moves.append(method), real(*told))[-1])
    room = ControlRoom(engine, "A*2 A||" if method != "race" else "A", quiet_seconds=NEVER)
    try:
        for _ in range(5):
            room._buttons[key].click()
        idle(room)
        assert len(moves) == 1
        assert "Too fast: 4 clicks were ignored." in said(room)
        room._clicks.quiet_seconds = 0
        click(room, "Step B")
        assert "Too fast" not in said(room)
    finally:
        room.close()


def test_step_takes_each_click_that_comes_when_the_last_move_has_ended(engine: Engine) -> None:
    engine.policy = PATIENT
    room = ControlRoom(engine, quiet_seconds=NEVER)
    try:
        for _ in range(5):
            click(room, "Step A")
        assert room.stepper.line == "A*5"
        assert "ignored" not in said(room)
    finally:
        room.close()


def test_a_button_pressed_again_after_another_one_is_no_double_click(engine: Engine) -> None:
    """A line, a preset and the line again within a quarter of a second: the last one was lost, once in a run of CI."""
    engine.policy = PATIENT
    room = ControlRoom(engine, "A*2", quiet_seconds=NEVER)
    try:
        for key in ("Reset", "Crash A", "Reset"):
            click(room, key)
        assert room.stepper.line == ""
        assert "ignored" not in said(room)
    finally:
        room.close()


def test_what_is_shown_can_be_clicked_however_long_its_move_took(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clicks, "BUSY_SECONDS", 0.2)
    engine.policy = PATIENT
    room = ControlRoom(engine, quiet_seconds=0)
    real, drawn = room._draw, threading.Event()

    def draw() -> None:
        """The picture is out, and a click on it comes before the move's own thread goes on."""
        real()
        if not drawn.is_set():
            drawn.set()
            room._buttons["Step A"].click()

    def long(*told: object) -> None:
        eventually(lambda: time.monotonic() - room._clicks._since > 0.2)
        ControlRoom.reset(room)

    try:
        monkeypatch.setattr(room, "_draw", draw)
        room._click("Reset", long)
        idle(room)
        assert drawn.is_set() and room.trouble is None
        assert room.stepper.line == "A"
        assert "ignored" not in said(room)
    finally:
        room.close()


def slow_workflow(gate: threading.Event, entered: threading.Event) -> Callable[[Any, Any], Any]:
    def slow(run: Any, _: Any) -> Any:
        """The first call waits at the gate."""
        first = not entered.is_set()
        return run.step("slow", lambda: (entered.set(), gate.wait(60) if first else None, "late")[-1])

    return slow


def test_a_click_while_another_move_is_under_way_returns_at_once_and_says_so(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, entered = threading.Event(), threading.Event()
    monkeypatch.setattr(clicks, "BUSY_SECONDS", 0.01)
    engine.policy, engine.workflows = PATIENT, {"slow": slow_workflow(gate, entered)}
    room = ControlRoom(engine, quiet_seconds=0, patience=60)
    try:
        room._buttons["Step A"].click()  # returns although the step does not
        assert entered.wait(20)
        eventually(lambda: "running" in room._lanes["A"][1].value)
        assert room._buttons["Step A"].disabled and not room._buttons["Step B"].disabled
        room._buttons["Step B"].click()
        eventually(lambda: "1 click was ignored" in said(room))
        gate.set()
        idle(room)
        eventually(lambda: not room._buttons["Step A"].disabled)
        assert "2. A claims it" in said(room)
        assert room._buttons["Step A"].description == "Step: checkpoint slow"
    finally:
        gate.set()
        room.close()


def test_a_step_that_does_not_return_is_reported_and_the_other_lane_goes_on(engine: Engine) -> None:
    gate, entered = threading.Event(), threading.Event()
    engine.policy, engine.workflows = PATIENT, {"slow": slow_workflow(gate, entered)}
    room = ControlRoom(engine, "workflow=slow requests=2", quiet_seconds=0, patience=0.3)
    try:
        click(room, "Step A")
        assert "A has not reached its next transaction" in said(room)
        assert "gate.wait(60)" in said(room)
        assert room._buttons["Step A"].description == "Step: still running"
        assert "worker A" in room._head.value  # what the move has written is on screen
        click(room, "Step B")
        assert "B claims" in said(room)
        gate.set()
        click(room, "Step A")
        assert "A claims" in said(room)
    finally:
        gate.set()
        room.close()


def test_an_unexpected_error_in_a_callback_is_shown_with_its_traceback_closed(
    room: ControlRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Any) -> None:
        raise ZeroDivisionError("by <b>hand</b>")

    monkeypatch.setattr(room.stepper, "move", broken)
    click(room, "Step A")
    assert "<b>ZeroDivisionError</b> by &lt;b&gt;hand&lt;/b&gt;" in room._say.value
    assert "<details><summary>traceback</summary>" in room._say.value
    assert "press Reset" in said(room)
    assert not room._buttons["Step A"].disabled
    monkeypatch.undo()
    click(room, "Step A")
    assert "ZeroDivisionError" not in said(room)


# --- looking back and forking


def test_looking_back_shows_the_rows_as_of_that_entry(room: ControlRoom) -> None:
    room.run(GAP)
    now = room._panes.value
    click(room, "Back")
    assert said(room) == "looking back: 8. A's lease expires."
    room.show(2)
    assert "ACTION_PENDING" not in room._panes.value + room._head.value
    assert "0 rows" in room._panes.value
    assert room._entry.value == 2 and "of 9" in room._of.value
    assert all(room._buttons[f"{verb} {lane}"].disabled for verb in ("Step", "Crash", "Pause") for lane in "AB")
    assert not room._buttons["Forward"].disabled
    while room.entry:
        click(room, "Forward")
    assert room._panes.value == now
    assert room._buttons["Forward"].disabled and not room._buttons["Step B"].disabled


def test_the_first_entry_shows_the_request_before_anybody_claimed_it(room: ControlRoom) -> None:
    room.step("A")
    assert room.back() == "1. create writes the workflow row, token 0."
    assert "PENDING" in room._head.value and "fence token 0" in room._head.value
    assert "last transaction: <b>create</b>" in room._panes.value


def test_the_number_of_an_entry_can_be_typed(room: ControlRoom) -> None:
    room.run(GAP)
    room._entry.value = 4
    idle(room)
    assert room.entry == 4
    assert "looking back: 4." in said(room)


def test_an_entry_that_does_not_exist_is_refused_in_words(room: ControlRoom) -> None:
    room.run("A*2")
    with pytest.raises(BadSchedule, match="no entry 9; request-1 has 3 entries"):
        room.show(9)
    assert room.entry is None


@pytest.mark.parametrize("entry", [-1, 0, 99])
def test_a_fork_at_an_entry_that_does_not_exist_is_refused_in_words(
    room: ControlRoom, engine: Engine, entry: int
) -> None:
    room.run("A*2")
    before = canonical(engine)
    with pytest.raises(BadSchedule, match=f"no entry {entry}; request-1 has 3 entries"):
        room.fork(entry)
    assert (canonical(engine), room.stepper.line) == (before, "A*2")


def test_fork_here_plays_to_the_entry_and_lets_the_learner_go_on_differently(room: ControlRoom, engine: Engine) -> None:
    room.run(GAP)
    before = canonical(engine)[0]["history"]
    room.show(6)
    click(room, "Fork here")
    assert room.stepper.line == "A*5"
    assert canonical(engine)[0]["history"] == before[:5]  # the tool's entry is the world's, not the row's
    assert room.length == 6 and room.entry is None
    room.step("A")
    assert room.stepper.line == "A*6"
    assert rows(engine, "SELECT state FROM {s}.workflows") == [{"state": "ACTION_ACKNOWLEDGED"}]


@pytest.mark.parametrize("name", ["stale worker", "lost reply", "approval", "race", "duplicate effect"])
def test_a_fork_at_any_entry_has_exactly_the_history_up_to_there(room: ControlRoom, name: str) -> None:
    room.preset(name)
    whole, workflow = list(room.sentences), room.workflow
    for entry in range(1, len(whole) + 1):
        room.preset(name)
        room.look_at(workflow)
        if entry < len(whole):
            room.show(entry)
        room.fork()
        room.look_at(workflow)
        assert room.sentences[: entry - 1] == whole[: entry - 1], entry
        together = "reply never arrives" in room.sentences[-2:][0] if room.length > entry else False
        assert room.length == (entry + together if entry > 1 else 0), entry


def test_a_race_is_one_frame_and_its_line_plays_the_same_again(room: ControlRoom, engine: Engine) -> None:
    room.run("requests=2")
    done = room.race("A", "B")
    assert "The database saw them in this order: " in said(room)
    owners = rows(engine, "SELECT id, split_part(lease_owner, '.', 1) AS owner FROM {s}.workflows ORDER BY id")
    assert sorted(row["owner"] for row in owners) == ["A", "B"]
    first = done[0].move.lane
    assert room.stepper.line == f"requests=2 {first} {'B' if first == 'A' else 'A'}"
    before = canonical(engine)
    room.run(room.stepper.line)
    assert canonical(engine) == before


def test_after_a_race_the_changed_cells_have_the_hue_of_the_worker_that_wrote_them(room: ControlRoom) -> None:
    first, second = room.race("A", "B")
    assert second.ended == "idle"
    assert f'<div class="pane {first.move.lane.lower()}">' in room._panes.value
    assert f'<div class="pane {second.move.lane.lower()}">' not in room._panes.value
    assert 'class="ch' in room._panes.value
    room.run("requests=2")
    for moved in room.race("A", "B"):
        room.look_at(moved.workflow)
        assert f'<div class="pane {moved.move.lane.lower()}">' in room._panes.value


def test_a_worker_that_gave_its_work_up_says_whether_another_has_it(room: ControlRoom) -> None:
    room.run("A*2 A|| expire A> A")
    assert "gave request-1 up, its lease has ended" in room._lanes["A"][1].value
    room.step("B")
    assert "gave request-1 up, another has it" in room._lanes["A"][1].value


def test_reset_brings_back_the_setting_the_room_was_opened_with(room: ControlRoom, engine: Engine) -> None:
    room.run("without=idempotency_key A*5")
    click(room, "Reset")
    assert (room.stepper.line, room._line.value) == ("", "")
    assert rows(engine, "SELECT * FROM {s}.workflows") == []
    with control_room_of(engine, "requests=2 A") as other:
        other.run("A*2")
        other.reset()
        assert other.stepper.line == "requests=2"


def test_with_several_requests_the_one_last_worked_on_is_shown_unless_one_is_chosen(room: ControlRoom) -> None:
    room.run("requests=2 A B")
    assert room.workflow == "request-2"
    room._which.value = "request-1"
    idle(room)
    room.step("B")
    assert room.workflow == "request-1" and "<code>request-1</code>" in room._head.value
    room._which.value = "last worked on"
    idle(room)
    assert room.workflow == "request-2"
    assert room._which.layout.display != "none"


def test_expire_names_the_request_where_several_are_leased(room: ControlRoom) -> None:
    room.run("requests=2 A B")
    click(room, "Expire lease")
    assert room.stepper.line == "requests=2 A B expire@2"
    click(room, "Expire lease")
    assert room.stepper.line == "requests=2 A B expire@2 expire@1"


# --- bad input


@pytest.mark.parametrize(
    ("line", "token"),
    [
        ("A*5 A?", '"?" at 6'),
        ("A*5 jump", '"jump" at 5'),
        ("A! A", '"A" at 4'),
        ("A*3 A! A", '"A" at 8'),
        ("A*2 expire expire", '"expire"'),
        ("A* expire", '"expire"'),
        ("A*2 event:approval", '"event:approval"'),
        ("A*2 A/", '"A/"'),
        ("A*2 due", '"due"'),
        ("workflow=nobody A", "workflow=nobody"),
        ("without=nothing A", "nothing"),
        ("requests=2 A B expire", '"expire"'),
        ("A*0", '"A*0" at 1'),
        ("A" * 10_001, "10,001"),
    ],
)
def test_a_bad_line_is_answered_with_a_sentence_and_changes_nothing(
    room: ControlRoom, engine: Engine, line: str, token: str
) -> None:
    room.run(GAP)
    before, panes, picture = canonical(engine), room._panes.value, room._picture.value
    room._line.value = line
    click(room, "Run")
    assert token in said(room)
    assert "as it was before" in said(room) or "without" in line
    assert "traceback" not in room._say.value.lower()
    assert room.stepper.line == GAP
    assert canonical(engine) == before
    assert (room._panes.value, room._picture.value) == (panes, picture)
    click(room, "Step B")
    assert room.stepper.line == "A*5 A! expire B*2"


def test_a_bad_line_stays_in_the_field_to_be_mended(room: ControlRoom) -> None:
    room._line.value = "A*5 A?"
    click(room, "Run")
    assert room._line.value == "A*5 A?"
    room._line.value = "A*5"
    click(room, "Run")
    assert room.stepper.line == "A*5" and "6. A calls the tool" in said(room)


@pytest.mark.parametrize("key", ["Expire lease", "End back-off", "Deliver event", "Lose reply", "Recover B"])
def test_a_button_pressed_where_it_means_nothing_is_answered_with_a_sentence(
    room: ControlRoom, engine: Engine, key: str
) -> None:
    room.run("A*")
    before = canonical(engine)
    click(room, key)
    assert room._say.value.startswith('<div class="say bad">')
    assert canonical(engine) == before
    assert room.stepper.line == "A*"


@pytest.mark.parametrize("requests", ["", "requests=2 "])
@pytest.mark.parametrize(
    "act",
    [
        lambda room: room.expire("request-7"),
        lambda room: room.due("request-7"),
        lambda room: room.deliver("approval", True, "request-7"),
    ],
    ids=["expire", "due", "deliver"],
)
def test_a_move_about_an_unknown_workflow_is_refused_in_words_and_touches_no_other(
    room: ControlRoom, engine: Engine, act: Callable[[ControlRoom], Any], requests: str
) -> None:
    room.run(f"workflow=approval_agent {requests}A*3")
    before, line = canonical(engine), room.stepper.line
    with pytest.raises(BadSchedule, match="There is no workflow 'request-7'; there is request-1"):
        act(room)
    assert "There is no workflow 'request-7'" in said(room)
    assert (canonical(engine), room.stepper.line) == (before, line)


def test_a_payload_that_is_no_json_is_refused_as_the_engine_refuses_it(room: ControlRoom, engine: Engine) -> None:
    room.run("workflow=approval_agent A*")
    before = canonical(engine)
    with pytest.raises(UnfaithfulValue, match="set"):
        room.deliver(payload={1, 2})
    assert "UnfaithfulValue" in said(room)
    assert canonical(engine) == before
    room.deliver(payload={"by": "ada"})
    assert "a person delivers event approval" in said(room)


def test_an_error_is_shown_as_a_sentence_and_raised_to_a_cell(room: ControlRoom) -> None:
    room.crash("A")
    with pytest.raises(BadSchedule, match="A, which is dead"):
        room.step("A")
    assert "A, which is dead" in said(room)
    room.step("B")
    assert "bad" not in room._say.value


def test_values_are_escaped_wherever_they_are_shown(engine: Engine) -> None:
    bad = "<script>alert(1)</script>"

    def hostile(run: Any, request: Any) -> Any:
        run.step(bad, lambda: {bad: bad})
        run.side_effect(bad, key=f"{bad}2", arguments=bad)
        run.step("fails", lambda: (_ for _ in ()).throw(ValueError(bad)))

    engine.policy, engine.workflows = PATIENT, {"hostile": hostile}
    room = ControlRoom(engine, "workflow=hostile A*", quiet_seconds=0)
    try:
        room.run("workflow=hostile A* due A* due A* due A*")
        assert room.frame.rows["request-1"]["status"] == "failed"
        shown = [room._panes.value, room._say.value, room._twin.value, room._head.value, room._picture.value]
        shown += [room.to_html(), *(line.value for _, line in room._lanes.values())]
        for entry in range(1, room.length + 1):
            room.show(entry)
            shown += [room._panes.value, room._say.value, *(line.value for _, line in room._lanes.values())]
        assert any("&lt;script&gt;" in one for one in shown)
        assert [one for one in shown if "<script" in one] == []
    finally:
        room.close()


# --- the database away


@pytest.fixture(scope="module")
def away(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlRoom, Server]]:
    """A room whose worker A stands in the gap, and whose database then went away."""
    server = Server(tmp_path_factory.mktemp("pg") / "home").start()
    engine = Engine(Database(server.url(), "away", patience=1.0), policy=PATIENT)
    migrate(engine.database, laboratory=True)
    room = ControlRoom(engine, "A*5", quiet_seconds=0)
    server.stop()
    yield room, server
    server.start()
    room.close()
    engine.close()
    server.stop()


@pytest.mark.parametrize(
    "key", ["Step A", "Step B", "Crash A", "Pause A", "Expire lease", "Race", "Run", "Reset", "Fork here"]
)
def test_with_the_database_away_every_button_shows_a_sentence_and_the_rows_stay(
    away: tuple[ControlRoom, Server], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, _ = away
    monkeypatch.setenv("DATABASE_URL", "of a server that somebody else starts")
    room.trouble, room._say.value = None, ""
    click(room, key)
    assert "PostgreSQL at" in said(room) and "does not answer" in said(room)
    assert "repeat the move" in said(room)
    assert room._buttons["Step A"].description == "Step: acknowledge resolve-account"
    assert "as of entry 6" in room._panes.value and "request-1" in room._panes.value
    disabled = {name for name in ("Step A", "Step B", "Race", "Expire lease") if room._buttons[name].disabled}
    assert disabled == {"Step A", "Step B", "Race", "Expire lease"}
    assert not room._buttons["Reset"].disabled
    assert room.stepper.line == "A*5"


def test_with_the_database_away_a_room_can_be_made_and_one_can_look_back(away: tuple[ControlRoom, Server]) -> None:
    room, _ = away
    assert room.show(3).startswith("3. A commits checkpoint classify")
    room.show(6)
    other = ControlRoom(room.stepper._given)
    try:
        assert "does not answer" in said(other) and "does not answer" in repr(other)
    finally:
        other.close()


def test_when_the_database_answers_again_the_room_says_so_and_goes_on(
    away: tuple[ControlRoom, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    room, server = away
    monkeypatch.setattr(rooms, "RETRY_SECONDS", 0.05)
    click(room, "Step A")
    server.start()
    try:
        eventually(lambda: "answers again" in said(room))
        click(room, "Step A")
        assert "A commits acknowledge" in said(room)
    finally:
        room.run("A*5")
        server.stop()


# --- opening, closing, and pages without a kernel


def test_opening_a_room_again_closes_the_one_before_and_begins_empty(engine: Engine) -> None:
    engine.policy, others = PATIENT, ours()
    first = control_room(engine, "A*5", name="again")
    second = control_room(engine, name="again")
    try:
        assert ours() == others
        assert first.view.comm is None and first._head.comm is None
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


def test_twenty_rooms_opened_and_closed_leave_no_thread_connection_or_widget(engine: Engine) -> None:
    import ipywidgets

    engine.policy = PATIENT
    control_room(engine, "A", name="leak").close()
    threads, widgets = threading.active_count(), len(ipywidgets.widget._instances)
    for _ in range(20):
        control_room(engine, GAP, name="leak")
    control_room(engine, name="leak").close()
    eventually(lambda: threading.active_count() <= threads)
    assert len(ipywidgets.widget._instances) == widgets
    assert eventually(lambda: sessions(engine) == [])


def test_the_lanes_can_be_processes_and_none_is_left(room: ControlRoom) -> None:
    room.run(GAP)
    before = repr(room)
    room._kind.value = "process"
    eventually(lambda: room.stepper.kind == "process" and not room.busy)
    assert repr(room) == before
    lane = room.stepper._crew.known("B")
    process = lane._process  # type: ignore[union-attr]
    assert process.is_alive()
    room.crash("B")
    assert not process.is_alive()
    room.on("thread")
    assert room.stepper.line == f"{GAP} B!"


def test_lanes_of_an_unknown_kind_are_refused_and_the_room_is_as_it_was(room: ControlRoom) -> None:
    room.run("A*2")
    with pytest.raises(LaneError, match="not 'fiber'"):
        room.on("fiber")  # type: ignore[arg-type]
    assert (room.stepper.kind, room.stepper.line) == ("thread", "A*2")


def test_a_room_can_open_on_a_preset_or_on_a_line(engine: Engine) -> None:
    engine.policy = PATIENT
    for setting in ("stale worker", PRESETS["stale worker"].line):
        room = control_room(engine, setting, name="test")
        assert room.stepper.line == PRESETS["stale worker"].line
        assert room._preset.value == "stale worker"
        assert "refused" in said(room)
    room.close()


def test_a_room_is_a_widget_and_beside_it_a_picture_and_a_text(room: ControlRoom) -> None:
    room.run(GAP)
    bundle = room._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    page, text = bundle["text/html"], bundle["text/plain"]
    for part in ("af-room", "<svg", "<table>", "SKIP LOCKED", "history as text, 9 entries", GAP):
        assert part in page
    assert "Run this cell to use the controls." in page and "<button" not in page and "onload" not in page
    assert "worker B: replays classify, plan; stands before tool resolve-account (token 2)" in text
    assert "9. B claims it: token 2; recovery starts." in text
    room.close()
    assert set(room._repr_mimebundle_()) == {"text/html", "text/plain"}


@pytest.mark.parametrize("name", PRESETS)
def test_what_a_room_shows_is_the_same_in_every_run(engine: Engine, name: str) -> None:
    engine.policy = PATIENT
    seen = set()
    for _ in range(2):
        room = control_room(engine, name, name="test")
        at = [(room.to_html(), repr(room))]
        for entry in range(1, room.length + 1):
            room.show(entry)
            at.append((room.to_html(), repr(room)))
        seen.add(tuple(at))
        page = re.sub(r"<style>.*?</style>", "", at[0][0], flags=re.S)
        assert not re.search(r"\b[0-9a-f]{8,}\b|\d\d:\d\d|20\d\d-", page)
    room.close()
    assert len(seen) == 1


def test_a_cell_shows_the_picture_and_then_the_widget(room: ControlRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr(rooms, "display", lambda bundle, raw: shown.append(bundle))
    room._ipython_display_()
    assert [set(bundle) for bundle in shown] == [
        {"text/html", "text/plain"},
        {"application/vnd.jupyter.widget-view+json", "text/plain"},
    ]


def test_the_schedule_line_can_be_copied(room: ControlRoom) -> None:
    room.run(GAP)
    assert room.copy() == GAP == room._line.value
    assert "in the clipboard" in said(room)


def test_what_a_cell_prints_of_a_move_has_no_identity_that_changes(room: ControlRoom) -> None:
    assert repr(room.step("A")) == "A: claim committed; stands before checkpoint classify"
    assert (
        repr(room.move("A*2")).splitlines()[-1] == "A: checkpoint plan committed; stands before intent resolve-account"
    )


# --- belief, world, and SQL


def test_a_changed_cell_says_what_stood_there_and_an_inserted_row_is_marked_whole(room: ControlRoom) -> None:
    room.run(GAP)
    assert '<td class="ch">2<small>was 1</small></td>' in room._panes.value
    assert '<td class="ch">B<small>was A</small></td>' in room._panes.value
    assert 'class="pane b"' in room._panes.value
    room.show(3)
    assert room._panes.value.count('<td class="ch') == 1 + 4  # the state, and a step of four cells
    room.show(7)
    assert '"ch' not in room._panes.value


def test_a_refused_write_marks_no_cell_and_its_sql_has_no_row(room: ControlRoom) -> None:
    room.preset("stale worker")
    assert "refused, 0 rows, nothing changed" in said(room)
    assert '"ch' not in room._panes.value
    assert "by worker A, 0 rows" in room._panes.value
    assert "<b>fence_token = 1</b>" in room._panes.value


def test_the_sql_is_that_of_the_engine_that_plays(room: ControlRoom) -> None:
    room.run("A*2")
    assert "AND <b>fence_token = 1</b>" in room._panes.value
    room.run("without=fence_token A*2")
    assert "last transaction: <b>checkpoint</b>" in room._panes.value
    assert "AND <b>fence_token" not in room._panes.value


@pytest.mark.parametrize(
    ("line", "sign", "belief", "world"),
    [
        ("", "=", "There is no workflow yet.", "Nothing."),
        ("A*4", "=", "Action planned. Outcome unknown.", "Nothing."),
        ("A*5", "≠", "Action planned. Outcome unknown.", "resolve-account: one effect, asked for once."),
        ("A*", "=", "Completed. Nothing is left to do.", "resolve-account: one effect, asked for once."),
        (PRESETS["acknowledgment gap"].line, "=", "Completed.", "one effect, asked for 2 times."),
        (PRESETS["duplicate effect"].line, "≠", "Completed.", "resolve-account: 2 effects for one planned action."),
        ("without=acknowledge_after_tool A*5", "≠", "Action acknowledged.", "Nothing."),
        ("workflow=approval_agent A*", "=", "Waits for the event approval. Nobody holds it.", "Nothing."),
    ],
)
def test_belief_stands_beside_the_world(room: ControlRoom, line: str, sign: str, belief: str, world: str) -> None:
    room.run(line)
    assert f"<span>{sign}</span>" in room._panes.value
    assert belief in room._panes.value and world in room._panes.value
    assert f" {sign} " in repr(room)


def test_the_sql_is_word_for_word_what_was_asked_each_line_an_element_of_its_own(room: ControlRoom) -> None:
    room.run("A*5 A! expire B")
    scene = room.scene()
    assert scene.statement is not None
    asked = filled(scene.statement.text, scene.schema, scene.statement.asked.params)
    (shown,) = re.findall(r"<pre [^>]*>(.*?)</pre>", room._panes.value, re.DOTALL)
    assert html.unescape(re.sub("<[^>]*>", "", shown)) == asked + "\n"
    lines = re.findall(r'<span style="--hang:(\d+)ch">(.*?)</span>', shown, re.DOTALL)
    assert len(lines) == len(asked.split("\n"))
    deep = [len(line) - len(line.lstrip(" ")) for line in asked.split("\n")]
    assert [int(hang) for hang, _ in lines] == [4 + one for one in deep]
    assert [line for _, line in lines if line.count("<b>") != line.count("</b>")] == []
    assert any("<b>" in line for _, line in lines)
