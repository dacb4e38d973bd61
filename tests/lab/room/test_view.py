"""What a room shows: belief beside the world, SQL, changed cells, everything escaped, the same in every run."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from typing import Any
from urllib.parse import unquote

import pytest

from agentflow import Engine
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.room.statement_text import filled, marked
from agentflow.lab.room.widget import ControlRoom, control_room
from agentflow.lab.schedule.presets import PRESETS
from agentflow.statements import TRANSACTIONS, show_sql
from tests.lab.room.screen import GAP, part, parts, said


def test_a_changed_cell_says_what_stood_there_and_an_inserted_row_is_marked_whole(room: ControlRoom) -> None:
    room.run(GAP)
    assert '<td class="ch">2<small>was 1</small></td>' in part(room, "more")
    assert '<td class="ch">B<small>was A</small></td>' in part(room, "more")
    assert 'class="pane b"' in part(room, "panes")
    room.show(3)
    assert part(room, "more").count('<td class="ch') == 1 + 4  # the state, and a step of four cells
    room.show(7)
    assert '"ch' not in part(room, "more")


def test_a_refused_write_marks_no_cell_and_its_sql_has_no_row(room: ControlRoom) -> None:
    room.preset("stale worker")
    assert "refused, 0 rows, nothing changed" in said(room)
    assert '"ch' not in part(room, "more")
    assert "by worker A, 0 rows" in part(room, "more")
    assert "<b>fence_token = 1</b>" in part(room, "more")


def test_the_sql_is_that_of_the_engine_that_plays(room: ControlRoom) -> None:
    room.run("A*2")
    assert "AND <b>fence_token = 1</b>" in part(room, "more")
    room.run("without=fence_token A*2")
    assert "transaction <b>checkpoint</b>" in part(room, "more")
    assert "AND <b>fence_token" not in part(room, "more")


def test_every_text_that_decides_a_race_has_its_clause_in_bold() -> None:
    texts = {name: filled(show_sql(name), {"p_token": 1, "p_subject": "approval"}) for name in TRANSACTIONS}
    assert {name for name, text in texts.items() if "<b>" not in marked(name, text)} == {"cancel", "requeue"}


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
    assert f"<span>{sign}</span>" in part(room, "panes")
    assert belief in part(room, "panes") and world in part(room, "panes")
    assert f" {sign} " in repr(room)


def test_the_sql_is_word_for_word_what_was_asked_each_line_an_element_of_its_own(
    room: ControlRoom, engine: Engine
) -> None:
    room.run("A*5 A! expire B")
    scene = room.scene()
    assert scene.transaction is not None
    asked = scene.transaction.sql
    sent = room.controller.stepper.sql("claim").replace(f'"{engine.database.schema}".', "").replace("%%", "%")
    assert re.fullmatch(".+".join(re.escape(piece) for piece in re.split(r"%\(\w+\)s", sent)), asked)
    (shown,) = re.findall(r"<pre [^>]*>(.*?)</pre>", part(room, "more"), re.DOTALL)
    assert html.unescape(re.sub("<[^>]*>", "", shown)) == asked + "\n"
    lines = re.findall(r'<span style="--hang:(\d+)ch">(.*?)</span>', shown, re.DOTALL)
    assert len(lines) == len(asked.split("\n"))
    deep = [len(line) - len(line.lstrip(" ")) for line in asked.split("\n")]
    assert [int(hang) for hang, _ in lines] == [4 + one for one in deep]
    assert [line for _, line in lines if line.count("<b>") != line.count("</b>")] == []
    assert any("<b>" in line for _, line in lines)


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
        assert room.scene().row["status"] == "failed"  # type: ignore[index]
        shown = [room.to_html(), *parts(room)]
        for entry in range(1, room.scene().length + 1):
            room.show(entry)
            shown += parts(room)
        assert any("&lt;script&gt;" in one for one in shown)
        assert [one for one in shown if "<script" in one] == []
    finally:
        room.close()


@pytest.mark.parametrize("name", PRESETS)
def test_what_a_room_shows_is_the_same_in_every_run(engine: Engine, name: str) -> None:
    engine.policy = PATIENT
    seen = set()
    for _ in range(2):
        room = control_room(engine, name, name="test")
        at = [(room.to_html(), repr(room))]
        for entry in range(1, room.scene().length + 1):
            room.show(entry)
            at.append((room.to_html(), repr(room)))
        seen.add(tuple(at))
        page = unquote(at[0][0])
        assert not re.search(r"\b[0-9a-f]{8,}\b|\d\d:\d\d|20\d\d-", page)
    room.close()
    assert len(seen) == 1


def test_a_cells_moves_show_a_still_of_what_they_came_to_and_keep_it(room: ControlRoom) -> None:
    made = room.run("A*5 A!")
    shown = made._repr_html_()
    assert 'alt="The acknowledgment gap' in shown and "<b>≠</b>" in shown and "schedule <code>A*5 A!</code>" in shown
    room.recover("A")
    assert made._repr_html_() == shown != room.run("A")._repr_html_()
    assert [str(moved.move) for moved in made][-1] == "A!"
    assert "<svg" not in room.to_html() and "<style" not in room.to_html()


def test_workers_of_one_name_have_one_lane_in_the_picture_with_all_their_marks(room: ControlRoom) -> None:
    room.run("names=shared A*2 B")
    picture = part(room, "picture")
    assert "worker W" in picture and "worker A" not in picture
    assert picture.count('class="ev') == room.scene().length


SHOWN_ALONE = """
import sys
before = set(sys.modules)

class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in {*sys.stdlib_module_names, "agentflow"}:
            raise ImportError(f"{name} is not of the standard library")

sys.meta_path.insert(0, Forbidden())
from agentflow.lab.history.story_reader import read_story
from agentflow.lab.room import still, view
from agentflow.lab.room.scene import LastTransaction, LaneView, Scene, Trouble

entries = [
    {"n": 1, "event": "workflow_created", "transaction": "create"},
    {"n": 2, "event": "workflow_claimed", "transaction": "claim", "worker": "A.1", "fence_token": 1},
]
row = {
    "id": "request-1", "status": "ready", "state": "PENDING", "lease_owner": "A.1", "lease_expires_at": "soon",
    "expired": False, "fence_token": 1, "recovery_started_at": None, "error": None, "waiting_for": None,
    "steps": [], "intents": [], "effects": [],
}
scene = Scene(
    "support_agent", "", "request-1", row, None, "A", (LaneView("A", "stands before checkpoint classify"),),
    read_story(entries), transaction=LastTransaction("claim", "SELECT 'a' FOR NO KEY UPDATE SKIP LOCKED", "A"), line="A",
    drawn_lanes=("A", "B"),
)
print(still.kept(scene), *view.parts(scene).values(), view.as_text(scene), scene.buttons["Step A"].label, sep="\\n")
print(sorted({name.split(".")[0] for name in {*sys.modules} - before} - {*sys.stdlib_module_names, "agentflow"}))
"""


def test_what_a_room_shows_is_drawn_by_the_standard_library_alone() -> None:
    done = subprocess.run([sys.executable, "-c", SHOWN_ALONE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *shown, others = done.stdout.splitlines()
    assert others == "[]"
    for one in ("2. A claims it: token 1.", "<b>FOR NO KEY UPDATE SKIP LOCKED</b>", "<svg ", "Step: claim"):
        assert any(one in line for line in shown), one
