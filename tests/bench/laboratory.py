"""How long the laboratory takes for what people wait for: moves, pictures, and trying every schedule."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial

from agentflow import Engine
from agentflow.lab.crashes.atlas import BESIDE, atlas
from agentflow.lab.explorer.report import Exploration
from agentflow.lab.isolation.pair_matrix import AT_ONCE, pair_matrix
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.pictures.timeline import timeline
from agentflow.lab.schedule.stepper import Stepper
from tests.bench.explore import LARGER, Million, exhausted, settled
from tests.bench.lanes import lanes
from tests.bench.place import Place
from tests.bench.result import Result
from tests.bench.room import click_over_bare_update
from tests.bench.yardsticks import Ratio, Raw, at_once, between, by_turns, pure_python, timed

ENTRIES = 60
LONG_LINE = "A*2 " + "A~ " * 44 + "A A! expire B*2 B|| expire A+ A* B> B"
PYTHON = "a fixed piece of pure Python"
RAW, PROCESS = "their statements, raw", "a bare process that sends their statements"


def timeline_over_python(place: Place, *, rounds: int) -> Ratio:
    """Drawing a real history of 60 entries and three workers' starts."""
    engine = Engine(place.laboratory("timeline"), policy=PATIENT)
    try:
        with Stepper(engine) as stepper:
            stepper.play(LONG_LINE)
        entries = engine.history("request-1")[:ENTRIES]
    finally:
        engine.close()
    assert len(entries) == ENTRIES, len(entries)
    return by_turns(timed(lambda: timeline(entries)), timed(pure_python), rounds)


def moved(place: Place, raw: Sequence[Raw], rounds: int, say: Callable[[str], None]) -> list[Result]:
    """Moves and pictures."""
    say("lanes")
    found = lanes(place, raw[0], rounds=rounds)
    drawn = timeline_over_python(place, rounds=rounds)
    return [
        row("20 moves on thread lanes", found["thread"], RAW, 4),
        row("20 moves on process lanes, their start included", found["process"], PROCESS, 5),
        row(f"drawing a timeline of {ENTRIES} entries", drawn, PYTHON, 0.8),
    ]


def waited_for(place: Place, raw: Sequence[Raw], say: Callable[[str], None]) -> list[Result]:
    """A click, the crash atlas and the pair matrix."""
    say("clicks in a real JupyterLab")
    click = click_over_bare_update(place.url)
    say("the crash atlas, the pair matrix")
    processes = timed(lambda: at_once([one.in_a_process for one in raw[:BESIDE]]))
    killed = between(processes, lambda: _atlas_seconds(place))
    threads = timed(lambda: at_once([one.here for one in raw[:AT_ONCE]]))
    pairs = between(threads, lambda: pair_matrix(database=place.laboratory("pairs")).seconds)
    return [
        row("a click to the changed picture in Chromium", click, "a click to a changed `widgets.HTML`", 6),
        row("the crash atlas", killed, f"{BESIDE} bare processes that send the statements of 20 moves", 80),
        row("the pair matrix", pairs, f"the statements of 20 moves in {AT_ONCE} threads, raw", 650),
    ]


def _atlas_seconds(place: Place) -> float:
    """Raises RuntimeError if a cell was not as predicted."""
    found = atlas(place.url, schema=place.name("atlas"))
    if not found.ok or found.seconds is None:
        raise RuntimeError(f"the atlas is not as predicted: {found.problems[0] if found.problems else 'no time'}")
    return found.seconds


def explored(place: Place, say: Callable[[str], None]) -> tuple[list[Result], list[str]]:
    """The explorer and the checker, and what they covered."""
    spaces: list[Exploration] = []
    took: dict[str, float] = {}

    def exhaust(**bounds: int) -> float:
        spaces.append(exhausted(place, **bounds))
        return spaces[-1].seconds

    def settle() -> float:
        took.update(settled(place))
        return statistics.median(took.values())

    python = partial(between, timed(pure_python))
    say("the explorer, within 2, 2, 1, then 3, 3, 2, and on every broken engine")
    results = [
        row("exhausting 2 crashes, 2 expiries, 1 lost reply", python(exhaust), PYTHON, 1000),
        row("exhausting 3 crashes, 3 expiries, 2 lost replies", python(partial(exhaust, **LARGER)), PYTHON, 3000),
        row("settling a broken engine, the median", python(settle), PYTHON, 200),
    ]
    say("the checker")
    million = Million(place)
    checked = between(timed(million.read), timed(million.check))
    results.append(
        row(f"checking {million.entries:,} history entries", checked, "one statement that reads them in order", 65)
    )
    notes = [
        f"Exhausted: {one.states:,} states, {one.transitions:,} transitions, {one.schedules:,} schedules; PostgreSQL was "
        f"asked {one.statements:,} statements."
        for one in spaces
    ]
    slowest = max(took, key=lambda name: took[name])
    return results, [*notes, f"The broken engine that took longest to settle: {slowest}, {took[slowest]:.1f} s."]


def row(what: str, ratio: Ratio, yardstick: str, most: float) -> Result:
    """A row of the table: our time over the yardstick's."""
    here = f"{ratio.seconds:.1f} s" if ratio.seconds >= 1 else f"{ratio.seconds * 1000:.1f} ms"
    return Result(f"{what}, over {yardstick}", ratio.value, "at most", most, here, ratio.unjudged)
