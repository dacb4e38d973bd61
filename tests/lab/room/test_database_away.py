"""A control room whose database is away: every button answers in words, and the rows stay on screen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentflow import Database, Engine, migrate
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.room import widget as rooms
from agentflow.lab.room.widget import ControlRoom
from agentflow.server import Server
from tests.lab.room.screen import button, part, press, said
from tests.support.helpers import eventually


@pytest.fixture(scope="module")
def away(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlRoom, Server, Engine]]:
    """A room whose worker A stands in the gap, and whose database then went away."""
    server = Server(tmp_path_factory.mktemp("pg") / "home").start()
    engine = Engine(Database(server.url(), "away", patience=1.0), policy=PATIENT)
    migrate(engine.database, laboratory=True)
    room = ControlRoom(engine, "A*5", quiet_seconds=0)
    server.stop()
    yield room, server, engine
    server.start()
    room.close()
    engine.close()
    server.stop()


@pytest.mark.parametrize(
    "key", ["Step A", "Step B", "Crash A", "Pause A", "Expire lease", "Race", "Run", "Reset", "Fork here"]
)
def test_with_the_database_away_every_button_shows_a_sentence_and_the_rows_stay(
    away: tuple[ControlRoom, Server, Engine], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, _, _ = away
    monkeypatch.setenv("DATABASE_URL", "of a server that somebody else starts")
    room.scale("entry")  # looking at something takes the last sentence away
    assert "does not answer" not in said(room)
    press(room, key)
    assert "PostgreSQL at" in said(room) and "does not answer" in said(room)
    assert "repeat the move" in said(room)
    assert button(room, "Step A").label == "Step: acknowledge resolve-account"
    assert "as of entry 6" in part(room, "panes") and "resolve-account: one effect" in part(room, "panes")
    disabled = {name for name in ("Step A", "Step B", "Race", "Expire lease") if not button(room, name).enabled}
    assert disabled == {"Step A", "Step B", "Race", "Expire lease"}
    assert button(room, "Reset").enabled
    assert room.scene().line == "A*5"


def test_with_the_database_away_a_room_can_be_made_and_one_can_look_back(
    away: tuple[ControlRoom, Server, Engine],
) -> None:
    room, _, engine = away
    assert room.show(3).startswith("3. A commits checkpoint classify")
    room.show(6)
    other = ControlRoom(engine)
    try:
        assert "does not answer" in said(other) and "does not answer" in repr(other)
    finally:
        other.close()


def test_when_the_database_answers_again_the_room_says_so_and_goes_on(
    away: tuple[ControlRoom, Server, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    room, server, _ = away
    monkeypatch.setattr(rooms, "RETRY_SECONDS", 0.05)
    press(room, "Step A")
    server.start()
    try:
        eventually(lambda: "answers again" in said(room))
        press(room, "Step A")
        assert "A commits acknowledge" in said(room)
    finally:
        room.run("A*5")
        server.stop()
