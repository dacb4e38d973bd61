"""The map of an exploration: every state has a place, schedules are drawn where they lead, and harm is where it was found."""

from __future__ import annotations

import pytest

from agentflow import Engine
from agentflow.errors import BadSchedule
from agentflow.lab.explorer import state_map
from agentflow.lab.explorer.explore import explore
from agentflow.lab.explorer.state_map import StateMap
from agentflow.lab.schedule.grammar import parse

SMALL = {"crashes": 1, "expiries": 1, "lost_replies": 0}


def test_every_state_has_a_place_of_its_own_at_its_number_of_moves(engine: Engine) -> None:
    found = explore(engine, **SMALL)
    assert found.graph
    here = StateMap(found.graph)
    assert len({here.at(number) for number in range(found.states)}) == found.states
    assert here.depth == [len(found.graph.way(number)) for number in range(found.states)]
    assert max(here.depth) == found.depth and 0 < sum(here.gap) < found.states
    assert not here.gap[0] and "no harm was found" in found.map().text


def test_a_schedule_and_its_mirror_image_come_to_the_same_states(engine: Engine) -> None:
    reduced, whole = explore(engine, **SMALL), explore(engine, reduce=False, **SMALL)
    assert reduced.graph and whole.graph
    ways = [StateMap(reduced.graph).walk(parse(line)) for line in ("A*5 A! expire B*", "B*5 B! expire A*")]
    assert ways[0] == ways[1]
    plain = StateMap(whole.graph).walk(parse("A*5 A! expire B*"))
    rows = [[graph.states[one].rows for one in way] for graph, way in ((reduced.graph, ways[0]), (whole.graph, plain))]
    texts = [
        [graph.rules.world.outcomes(number) for number in numbers]
        for graph, numbers in zip((reduced.graph, whole.graph), rows, strict=True)
    ]
    assert texts[0] == texts[1] and len(plain) > 10
    assert not any(move.verb == "go" for move, _ in whole.graph.following[plain[-1]])


def test_harm_is_shown_with_the_shortest_way_and_the_search_can_go_on_past_it(engine: Engine) -> None:
    first = explore(engine, without=["idempotency_key"], **SMALL)
    every = explore(engine, without=["idempotency_key"], stop_at="never", **SMALL)
    assert first.graph and every.graph
    assert len(StateMap(every.graph).harms) > len(StateMap(first.graph).harms) == 1
    for found in (first, every):
        assert f"The nearest harm comes after {found.findings[0].moves} moves" in found.map().text


def test_a_schedule_of_another_setting_is_refused(engine: Engine) -> None:
    found = explore(engine, **SMALL)
    with pytest.raises(BadSchedule, match="belongs to another setting"):
        found.map(["without=idempotency_key A*"])


def test_many_states_are_a_bar_for_each_level(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    found = explore(engine, **SMALL)
    monkeypatch.setattr(state_map, "SINGLY", 100)
    assert found.map().svg.count(" states</title>") == found.depth + 1
