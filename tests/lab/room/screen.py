"""What the tests of a control room look at: its scene, and the panel that shows it. Nothing private."""

from __future__ import annotations

import html
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agentflow import Engine
from agentflow.lab.room import view
from agentflow.lab.room.scene import Button
from agentflow.lab.room.widget import ControlRoom, control_room
from tests.conftest import rows
from tests.support.helpers import eventually

NEVER = 1e9  # seconds: any second click on one button is a double click
LANE_BUTTONS = {f"{verb} {lane}" for verb in ("Step", "Crash", "Pause", "Recover") for lane in "ABCD"}
OTHERS = {
    "Reset", "Expire lease", "End back-off", "Deliver event", "Lose reply", "Lose answer", "Race", "Back", "Forward",
    "Fork here", "Hide next", "Copy", "Run",
}  # fmt: skip
GAP = "A*5 A! expire B"


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


def press(room: ControlRoom, name: str) -> None:
    """The button was clicked, its move has ended, and the panel shows the scene."""
    room.press(name)
    idle(room)


def idle(room: ControlRoom) -> None:
    """No move is under way, and the panel shows the scene."""
    eventually(lambda: not room.busy)
    assert on_panel(room) == of_scene(room)


def on_panel(room: ControlRoom) -> dict[str, Any]:
    """What the page is told to show: the HTML of each part, and each button of the lanes that are there."""
    there = {lane for lane in "ABCD" if "af-gone" not in room.panel[f"box {lane}"]._dom_classes}
    names = {name for name in LANE_BUTTONS if name[-1] in there} | OTHERS
    gone = {f"lane {lane}" for lane in "ABCD"} - {f"lane {lane}" for lane in there}
    texts = {name: one.value for name, one in room.panel.items() if name in {*PARTS} - gone}
    found = {name: room.panel[name] for name in names}
    return texts | {
        name: Button(one.description, one.tooltip, "af-off" not in one._dom_classes) for name, one in found.items()
    }


PARTS = ("head", "say", "picture", "panes", "of", "more", "lane A", "lane B", "lane C", "lane D")


def of_scene(room: ControlRoom) -> dict[str, Any]:
    """What the scene says that there is to show."""
    return {**view.parts(room.scene()), **room.scene().buttons}


def button(room: ControlRoom, name: str) -> Button:
    """The button of this name, as it is shown."""
    return room.scene().buttons[name]


def part(room: ControlRoom, name: str) -> str:
    """The HTML of one part of the panel."""
    shown: str = room.panel[name].value
    return shown


def parts(room: ControlRoom) -> list[str]:
    """The HTML of every part of the panel, whether it is on screen or not."""
    return [part(room, name) for name in PARTS]


def said(room: ControlRoom) -> str:
    """What the room says, as text."""
    return html.unescape(re.sub(r"<[^>]*>", "", part(room, "say")))


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
