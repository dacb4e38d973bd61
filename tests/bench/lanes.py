"""How long a schedule of 20 moves takes on lanes: from an empty laboratory to the last move, workers started and ended."""

from __future__ import annotations

import statistics
import time

from agentflow import Engine
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.schedule.lane_set import LaneKind
from agentflow.lab.schedule.stepper import Stepper
from tests.bench.place import Place

LINE = "requests=2 A*7 B*5 B! expire@2 B+ B*4 A"
MOVES = 20


def milliseconds(place: Place, *, rounds: int) -> dict[LaneKind, list[float]]:
    """For each kind of lanes the time of LINE in ms, in so many rounds, the kinds taking turns.

    Each time includes making the stepper, emptying the laboratory, starting the workers, all moves, and ending them. The
    first process also starts the fork server, once for a session; that round is not counted.
    """
    engine = Engine(place.laboratory("lanes"), policy=PATIENT)
    took: dict[LaneKind, list[float]] = {"thread": [], "process": []}
    try:
        for number in range(rounds + 1):
            for kind in took if number % 2 else reversed(took):
                one = _once(engine, kind)
                if number:
                    took[kind].append(one)
    finally:
        engine.close()
    return took


def medians(place: Place, *, rounds: int) -> dict[LaneKind, float]:
    """The median time of LINE in ms, by kind of lanes."""
    return {kind: statistics.median(times) for kind, times in milliseconds(place, rounds=rounds).items()}


def _once(engine: Engine, kind: LaneKind) -> float:
    began = time.perf_counter()
    with Stepper(engine, lanes=kind) as stepper:
        assert len(stepper.play(LINE)) == MOVES
    return (time.perf_counter() - began) * 1000
