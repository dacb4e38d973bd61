"""How long the laboratory takes for what people wait for: moves, pictures, and trying every schedule."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from agentflow import Engine
from agentflow.lab.isolation.pair_matrix import pair_matrix
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.pictures.timeline import timeline
from agentflow.lab.schedule.stepper import Stepper
from tests.bench.atlas import atlas_seconds
from tests.bench.explore import LARGER, checked, exhausted, settled
from tests.bench.lanes import medians
from tests.bench.place import Place
from tests.bench.room import median_click

ENTRIES = 60
LONG_LINE = "A*2 " + "A~ " * 44 + "A A! expire B*2 B|| expire A+ A* B> B"


def timeline_milliseconds(place: Place, *, rounds: int) -> float:
    """The median time in ms to draw a real history of 60 entries and three workers' starts."""
    engine = Engine(place.laboratory("timeline"), policy=PATIENT)
    try:
        with Stepper(engine) as stepper:
            stepper.play(LONG_LINE)
        entries = engine.history("request-1")[:ENTRIES]
    finally:
        engine.close()
    assert len(entries) == ENTRIES, len(entries)
    took = []
    for _ in range(rounds):
        began = time.perf_counter()
        timeline(entries)
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


def moved(place: Place, rounds: int, say: Callable[[str], None]) -> list[tuple[str, float, float]]:
    """The times of moves and pictures in ms, each with the most that it may be."""
    say("lanes")
    lanes = medians(place, rounds=rounds)
    return [
        ("20 moves on thread lanes, in ms", lanes["thread"], 150.0),
        ("20 moves on process lanes, their start included, in ms", lanes["process"], 1000.0),
        (f"drawing a timeline of {ENTRIES} entries, in ms", timeline_milliseconds(place, rounds=rounds), 30.0),
    ]


def waited_for(place: Place, say: Callable[[str], None]) -> list[tuple[str, float, float]]:
    """The times of a click (ms), the crash atlas and the pair matrix (s), each with the most that it may be."""
    say("clicks in a real JupyterLab")
    click = median_click(place.url)
    say("the crash atlas, the pair matrix")
    matrix = pair_matrix(database=place.laboratory("pairs"))
    return [
        ("a click to the changed picture in Chromium, the median, in ms", click, 120.0),
        ("the crash atlas, in s", atlas_seconds(place), 60.0),
        ("the pair matrix, in s", matrix.seconds, 20.0),
    ]


def explored(place: Place, say: Callable[[str], None]) -> tuple[list[tuple[str, float, float]], list[str]]:
    """The explorer's and the checker's times in s, each with the most that it may be, and what they covered."""
    say("the explorer, within 2, 2, 1, then 3, 3, 2")
    spaces = [exhausted(place), exhausted(place, **LARGER)]
    say("the explorer, on every broken engine")
    took = settled(place)
    say("the checker")
    entries, seconds = checked(place)
    found = [
        ("exhausting 2 crashes, 2 expiries, 1 lost reply, in s", spaces[0].seconds, 5.0),
        ("exhausting 3 crashes, 3 expiries, 2 lost replies, in s", spaces[1].seconds, 60.0),
        ("settling a broken engine, the median, in s", statistics.median(took.values()), 5.0),
        (f"checking {entries:,} history entries, in s", seconds, 60.0),
    ]
    slowest = max(took, key=lambda name: took[name])
    notes = [
        f"Exhausted: {one.states:,} states, {one.transitions:,} transitions, {one.schedules:,} schedules; PostgreSQL was "
        f"asked {one.statements:,} statements."
        for one in spaces
    ]
    return found, [*notes, f"The broken engine that took longest to settle: {slowest}, {took[slowest]:.1f} s."]
