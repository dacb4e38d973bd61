"""The controller of a room: looking back, forking, racing, and answers in words to what cannot be done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentflow import Engine
from agentflow.errors import BadSchedule, UnfaithfulValue
from agentflow.lab.room.widget import ControlRoom
from tests.conftest import rows
from tests.lab.room.screen import GAP, button, canonical, control_room_of, idle, part, press, said


def test_looking_back_shows_the_rows_as_of_that_entry(room: ControlRoom) -> None:
    room.run(GAP)
    now = part(room, "panes")
    press(room, "Back")
    assert said(room) == "looking back: 8. A's lease expires."
    room.show(2)
    assert "ACTION_PENDING" not in part(room, "panes") + part(room, "head")
    assert "0 rows" in part(room, "panes")
    assert room.panel["entry"].value == 2 and "of 9" in part(room, "of")
    assert all(not button(room, f"{verb} {lane}").enabled for verb in ("Step", "Crash", "Pause") for lane in "AB")
    assert button(room, "Forward").enabled
    while room.scene().entry:
        press(room, "Forward")
    assert part(room, "panes") == now
    assert not button(room, "Forward").enabled and button(room, "Step B").enabled


def test_the_first_entry_shows_the_request_before_anybody_claimed_it(room: ControlRoom) -> None:
    room.step("A")
    assert room.back() == "1. create writes the workflow row, token 0."
    assert "PENDING" in part(room, "head") and "fence token 0" in part(room, "head")
    assert "transaction <b>create</b>" in part(room, "more")


def test_the_number_of_an_entry_can_be_typed(room: ControlRoom) -> None:
    room.run(GAP)
    room.panel["entry"].value = 4
    idle(room)
    assert room.scene().entry == 4
    assert "looking back: 4." in said(room)


def test_an_entry_that_does_not_exist_is_refused_in_words(room: ControlRoom) -> None:
    room.run("A*2")
    with pytest.raises(BadSchedule, match="no entry 9; request-1 has 3 entries"):
        room.show(9)
    assert room.scene().entry is None


@pytest.mark.parametrize("entry", [-1, 0, 99])
def test_a_fork_at_an_entry_that_does_not_exist_is_refused_in_words(
    room: ControlRoom, engine: Engine, entry: int
) -> None:
    room.run("A*2")
    before = canonical(engine)
    with pytest.raises(BadSchedule, match=f"no entry {entry}; request-1 has 3 entries"):
        room.fork(entry)
    assert (canonical(engine), room.scene().line) == (before, "A*2")


def test_fork_here_plays_to_the_entry_and_lets_the_learner_go_on_differently(room: ControlRoom, engine: Engine) -> None:
    room.run(GAP)
    before = canonical(engine)[0]["history"]
    room.show(6)
    press(room, "Fork here")
    assert room.scene().line == "A*5"
    assert canonical(engine)[0]["history"] == before[:5]  # the tool's entry is the world's, not the row's
    assert room.scene().length == 6 and room.scene().entry is None
    room.step("A")
    assert room.scene().line == "A*6"
    assert rows(engine, "SELECT state FROM {s}.workflows") == [{"state": "ACTION_ACKNOWLEDGED"}]


@pytest.mark.parametrize("name", ["stale worker", "lost reply", "approval", "race", "duplicate effect"])
def test_a_fork_at_any_entry_has_exactly_the_history_up_to_there(room: ControlRoom, name: str) -> None:
    room.preset(name)
    whole, workflow = list(room.scene().history), room.scene().workflow
    for entry in range(1, len(whole) + 1):
        room.preset(name)
        room.look_at(workflow)
        if entry < len(whole):
            room.show(entry)
        room.fork()
        room.look_at(workflow)
        made = len(room.scene().workflows)
        if entry <= made:
            assert room.scene().length == 0, entry
            continue
        assert room.scene().history[: entry - 1] == whole[: entry - 1], entry
        together = room.scene().length > entry and "reply to A is lost" in room.scene().history[-1]
        assert room.scene().length == entry + together, entry


def test_a_race_is_one_frame_and_its_line_plays_the_same_again(room: ControlRoom, engine: Engine) -> None:
    room.run("requests=2")
    done = room.race("A", "B")
    assert "The database saw them in this order: " in said(room)
    owners = rows(engine, "SELECT id, split_part(lease_owner, '.', 1) AS owner FROM {s}.workflows ORDER BY id")
    assert sorted(row["owner"] for row in owners) == ["A", "B"]
    first = done[0].move.lane
    assert room.scene().line == f"requests=2 {first} {'B' if first == 'A' else 'A'}"
    before = canonical(engine)
    room.run(room.scene().line)
    assert canonical(engine) == before


def test_after_a_race_the_changed_cells_have_the_hue_of_the_worker_that_wrote_them(room: ControlRoom) -> None:
    first, second = room.race("A", "B")
    assert second.ended == "idle"
    assert f'<div class="pane {first.move.lane.lower()}">' in part(room, "panes")
    assert f'<div class="pane {second.move.lane.lower()}">' not in part(room, "panes")
    assert 'class="ch' in part(room, "panes")
    room.run("requests=2")
    for moved in room.race("A", "B"):
        room.look_at(moved.workflow)
        assert f'<div class="pane {moved.move.lane.lower()}">' in part(room, "panes")


def test_a_worker_that_gave_its_work_up_says_whether_another_has_it(room: ControlRoom) -> None:
    room.run("A*2 A|| expire A> A")
    assert "gave request-1 up, its lease has ended" in part(room, "lane A")
    room.step("B")
    assert "gave request-1 up, another has it" in part(room, "lane A")


def test_a_refused_write_to_a_workflow_that_is_not_shown_is_not_called_unknown(room: ControlRoom) -> None:
    room.run("requests=2 A*2 A|| expire B*2 A>")
    room.look_at("request-2")
    for _ in range(3):
        if (last := room.step("A")).ended == "lost":
            break
    assert last.ended == "lost" and last.workflow == "request-1"
    assert said(room) == f"A tries {last.passed.transaction} request-1: refused, nothing changed."


def test_reset_brings_back_the_setting_the_room_was_opened_with(room: ControlRoom, engine: Engine) -> None:
    room.run("without=idempotency_key A*5")
    press(room, "Reset")
    assert (room.scene().line, room.panel["schedule"].value) == ("", "")
    assert rows(engine, "SELECT * FROM {s}.workflows") == []
    with control_room_of(engine, "requests=2 A") as other:
        other.run("A*2")
        other.reset()
        assert other.scene().line == "requests=2"


def test_with_several_requests_the_one_last_worked_on_is_shown_unless_one_is_chosen(room: ControlRoom) -> None:
    room.run("requests=2 A B")
    assert room.scene().workflow == "request-2"
    room.panel["workflow"].value = "request-1"
    idle(room)
    room.step("B")
    assert room.scene().workflow == "request-1" and "<code>request-1</code>" in part(room, "head")
    room.panel["workflow"].value = "last worked on"
    idle(room)
    assert room.scene().workflow == "request-2"
    assert room.panel["workflow"].layout.display != "none"


def test_expire_names_the_request_where_several_are_leased(room: ControlRoom) -> None:
    room.run("requests=2 A B")
    press(room, "Expire lease")
    assert room.scene().line == "requests=2 A B expire@2"
    press(room, "Expire lease")
    assert room.scene().line == "requests=2 A B expire@2 expire@1"


@pytest.mark.parametrize(
    ("line", "token"),
    [
        ("A*5 A%", '"%" at 6'),
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
    before, panes, picture = canonical(engine), part(room, "panes"), part(room, "picture")
    room.panel["schedule"].value = line
    press(room, "Run")
    assert token in said(room)
    assert "as it was before" in said(room) or "without" in line
    assert "traceback" not in part(room, "say").lower()
    assert room.scene().line == GAP
    assert canonical(engine) == before
    assert (part(room, "panes"), part(room, "picture")) == (panes, picture)
    press(room, "Step B")
    assert room.scene().line == "A*5 A! expire B*2"


def test_a_bad_line_stays_in_the_field_to_be_mended(room: ControlRoom) -> None:
    room.panel["schedule"].value = "A*5 A%"
    press(room, "Run")
    assert room.panel["schedule"].value == "A*5 A%"
    room.panel["schedule"].value = "A*5"
    press(room, "Run")
    assert room.scene().line == "A*5" and "6. A calls the tool" in said(room)


@pytest.mark.parametrize("key", ["Expire lease", "End back-off", "Deliver event", "Lose reply", "Recover B"])
def test_a_button_pressed_where_it_means_nothing_is_answered_with_a_sentence(
    room: ControlRoom, engine: Engine, key: str
) -> None:
    room.run("A*")
    before = canonical(engine)
    press(room, key)
    assert part(room, "say").startswith('<div class="say bad">')
    assert canonical(engine) == before
    assert room.scene().line == "A*"


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
    before, line = canonical(engine), room.scene().line
    with pytest.raises(BadSchedule, match="There is no workflow 'request-7' here, only request-1"):
        act(room)
    assert "There is no workflow 'request-7'" in said(room)
    assert (canonical(engine), room.scene().line) == (before, line)


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
    assert "bad" not in part(room, "say")


def test_a_race_shows_both_workers_and_says_what_each_did(room: ControlRoom) -> None:
    room.run("requests=2")
    room.race()
    told = room.scene().story
    assert {(mark.who, mark.row) for mark in told.marks if mark.kind == "claim"} in (
        {("A", 0), ("B", 1)},
        {("B", 0), ("A", 1)},
    )
    assert all(f"{who} claims it" in room.scene().sentence for who in "AB")
    assert part(room, "picture").count(">request-2<") >= 1


def test_the_loser_of_a_race_for_one_workflow_leaves_a_ring(room: ControlRoom) -> None:
    for _ in range(3):
        room.run("")
        room.race()
        winner, loser = [mark for mark in room.scene().story.marks if mark.kind in {"claim", "pass_over"}]
        assert (winner.kind, loser.kind, {winner.who, loser.who}) == ("claim", "pass_over", {"A", "B"})
        assert room.scene().sentence.endswith(f"3. {loser.who} asks for work and passes over request-1.")
