"""How long the laboratory takes for what people wait for: moves, pictures, and trying every schedule."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from agentflow import Engine
from agentflow.lab.broken import BROKEN
from agentflow.lab.explore import explore
from agentflow.lab.laboratory import PATIENT
from agentflow.lab.pairs import pair_matrix
from agentflow.lab.schedule import parse
from agentflow.lab.stepper import Stepper
from agentflow.lab.timeline import timeline

from .atlas import atlas_seconds
from .lanes import medians
from .place import Place
from .room import median_click

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


def settled_seconds(say: Callable[[str], None]) -> tuple[float, str]:
    """The median time in s until the explorer has settled a broken engine, and which took longest."""
    took = {}
    for name, broken in BROKEN.items():
        say(f"exploring without {name}")
        setting = parse(broken.setting).setting if broken.setting else parse("").setting
        began = time.perf_counter()
        explore(without=[name], workflow=setting.workflow, names=setting.names, progress=False, time_limit=300)
        took[name] = time.perf_counter() - began
    slowest = max(took, key=lambda name: took[name])
    return statistics.median(took.values()), f"{slowest}, {took[slowest]:.1f} s"


def measured(place: Place, rounds: int, say: Callable[[str], None]) -> list[tuple[str, float, float]]:
    """What was measured, its value, and the most that it may be."""
    say("lanes")
    lanes = medians(place, rounds=rounds)
    found = [
        ("20 moves on thread lanes, in ms", lanes["thread"], 150.0),
        ("20 moves on process lanes, their start included, in ms", lanes["process"], 1000.0),
        (f"drawing a timeline of {ENTRIES} entries, in ms", timeline_milliseconds(place, rounds=rounds), 30.0),
    ]
    say("clicks in a real JupyterLab")
    found.append(("a click to the changed picture in Chromium, the median, in ms", median_click(place.url), 120.0))
    say("the crash atlas")
    found.append(("the crash atlas, in s", atlas_seconds(place), 60.0))
    say("the pair matrix")
    found.append(("the pair matrix, in s", pair_matrix(database=place.laboratory("pairs")).seconds, 20.0))
    return found


def explored(say: Callable[[str], None]) -> tuple[list[tuple[str, float, float]], list[str]]:
    """The explorer's times in s, each with the most that it may be, and what it covered."""
    say("the explorer, within 2, 2, 1")
    small = explore(progress=False)
    say("the explorer, within 3, 3, 2")
    large = explore(crashes=3, expiries=3, lost_replies=2, progress=False)
    if not (small.ok and large.ok):
        raise RuntimeError(f"the real engine did not survive: {small} {large}")
    median, slowest = settled_seconds(say)
    found = [
        ("exhausting 2 crashes, 2 expiries, 1 lost reply, in s", small.seconds, 5.0),
        ("exhausting 3 crashes, 3 expiries, 2 lost replies, in s", large.seconds, 60.0),
        ("settling a broken engine, the median, in s", median, 5.0),
    ]
    notes = [
        f"Exhausted: {one.states:,} states and {one.schedules:,} schedules; PostgreSQL was asked {one.asked:,} statements."
        for one in (small, large)
    ]
    return found, [*notes, f"The broken engine that took longest: {slowest}."]
