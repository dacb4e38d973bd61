"""The map of an exploration: every state has a place, schedules are drawn where they lead, and harm is where it was found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agentflow import Engine
from agentflow.database import Database
from agentflow.errors import BadSchedule
from agentflow.lab.explorer import state_map
from agentflow.lab.explorer.explore import explore
from agentflow.lab.explorer.map_view import MapView
from agentflow.lab.explorer.report import Exploration
from agentflow.lab.explorer.state_map import StateMap
from agentflow.lab.room.widget import ControlRoom
from agentflow.lab.schedule.grammar import parse
from tests.support.runs import effects

SMALL: dict[str, Any] = {"crashes": 1, "expiries": 1, "lost_replies": 0}
WITHOUT_KEY = ["idempotency_key"]


@pytest.fixture(scope="module")
def small(url: str) -> Exploration:
    """The real engine's whole space within small bounds, explored once."""
    return explore(Engine(Database(url, "unused")), **SMALL)


@pytest.fixture(scope="module")
def harmful(url: str) -> Exploration:
    """Every harm within small bounds of an engine that gives the tool no key."""
    return explore(Engine(Database(url, "unused")), without=WITHOUT_KEY, stop_at="never", **SMALL)


def places(found: Exploration) -> StateMap:
    assert found.graph
    return StateMap(found.graph)


def test_every_state_has_a_place_of_its_own_at_its_number_of_moves(small: Exploration) -> None:
    here = places(small)
    assert len({here.at(number) for number in range(small.states)}) == small.states
    assert here.depth == [len(here.way(number)) for number in range(small.states)]
    assert max(here.depth) == small.depth and 0 < sum(here.gap) < small.states
    assert not here.gap[0] and "no harm was found" in small.map().text


def test_a_schedule_and_its_mirror_image_come_to_the_same_states(small: Exploration, url: str) -> None:
    whole = explore(Engine(Database(url, "unused")), reduce=False, **SMALL)
    assert small.graph and whole.graph
    ways = [places(small).walk(parse(line)) for line in ("A*5 A! expire B*", "B*5 B! expire A*")]
    plain = places(whole).walk(parse("A*5 A! expire B*"))
    assert ways[0] == ways[1] and len(plain[0]) > 10 and not ways[0][1] and not plain[1]
    seen = []
    for graph, way in ((small.graph, ways[0][0]), (whole.graph, plain[0])):
        seen.append([graph.rules.world.outcomes(graph.states[number].rows) for number in way])
        assert not any(move.verb == "go" for move, _ in graph.following[way[-1]])
    assert seen[0] == seen[1]


def test_harm_is_shown_with_the_shortest_way_and_the_search_can_go_on_past_it(harmful: Exploration, url: str) -> None:
    first = explore(Engine(Database(url, "unused")), without=WITHOUT_KEY, **SMALL)
    assert len(places(harmful).harms) > len(places(first).harms) == 1
    for found in (first, harmful):
        said = f"The nearest harm comes after {found.findings[0].moves} moves (dashed): {found.findings[0].line}."
        assert said.replace("without=idempotency_key ", "") in found.map().text


def test_harms_that_are_not_drawn_are_counted(harmful: Exploration, monkeypatch: pytest.MonkeyPatch) -> None:
    harms = len(places(harmful).harms)
    assert harmful.map().svg.count("<title>harm:") == harms and "are drawn" not in harmful.map().text
    monkeypatch.setattr(state_map, "HARMS", 3)
    fewer = harmful.map()
    assert fewer.svg.count("<title>harm:") == 3
    assert f">Of {harms} harms the nearest 3 are drawn.<" in fewer.svg


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("A*2 A! A+ A*2 A! B*", "after 4 moves, at `A!`: the bound of crashes is 1."),
        ("A*3 A/", "after 3 moves, at `A/`: the bound of lost replies is 0."),
        ("A A~", "after 1 move, at `A~`: the bound of renewals is 0."),
    ],
)
def test_a_schedule_that_leaves_the_bounds_is_told_where_and_why(small: Exploration, line: str, why: str) -> None:
    assert f"It leaves the map {why}" in small.map([line]).text


def test_a_schedule_that_does_harm_leaves_the_map_there(harmful: Exploration) -> None:
    line = f"{harmful.findings[0].line} A"
    assert "it does harm, and what follows a harm is not explored" in harmful.map([line]).text


def test_a_schedule_of_another_setting_is_refused(small: Exploration) -> None:
    with pytest.raises(BadSchedule, match="belongs to another setting"):
        small.map(["without=idempotency_key A*"])


def test_many_states_are_a_bar_for_each_level(small: Exploration, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_map, "SINGLY", 100)
    bars = small.map()
    assert bars.svg.count(" states</title>") == small.depth + 1
    assert bars.view is None and set(bars._repr_mimebundle_()) == {"text/html", "text/plain"}


@pytest.fixture
def room(engine: Engine) -> Iterator[ControlRoom]:
    room = ControlRoom(engine, quiet_seconds=0)
    yield room
    room.close()


def played(room: ControlRoom) -> str:
    """The room's line, once its clicks are done."""
    room._clicks.end()
    room._clicks.join(30)
    return str(room.scene().line)


def test_choosing_a_harm_plays_its_shortest_schedule_in_the_room(harmful: Exploration, room: ControlRoom) -> None:
    view: MapView = harmful.map(room=room)
    assert view.choose(harmful.states) == harmful.findings[0].line
    assert harmful.findings[0].line in view._said.value
    assert played(room) == harmful.findings[0].line
    assert len(effects(room.controller.stepper.engine)) == 2
    room.close()
    view.choose(3)
    assert "control room of this map is closed" in view._said.value
    with pytest.raises(IndexError, match="no state 9999"):
        view.choose(9999)


def test_without_a_room_the_field_and_the_button_show_the_schedule(small: Exploration) -> None:
    view = small.map()
    for number in (5, small.states - 1):
        view._field.value = number
        assert view.choose(number) in view._said.value and f"state {number}" in view._said.value
    view._said.value = ""
    view._again.click()
    assert f"state {small.states - 1}" in view._said.value
    view.close()
