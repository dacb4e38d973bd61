"""How long a schedule of 20 moves takes on lanes: from an empty laboratory to the last move, workers started and ended."""

from __future__ import annotations

from agentflow import Database, Engine
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.schedule.lane_set import LaneKind
from agentflow.lab.schedule.stepper import Stepper
from tests.bench.place import Place
from tests.bench.yardsticks import Ratio, Raw, by_turns, timed

LINE = "requests=2 A*7 B*5 B! expire@2 B+ B*4 A"
MOVES = 20


def raw_moves(place: Place, copies: int = 3) -> list[Raw]:
    """The statements of LINE, raw, so many times in schemas of their own, so that they can be sent side by side."""
    return [Raw(place.laboratory(f"raw_{n}"), lambda database: _play(database, "thread")) for n in range(copies)]


def lanes(place: Place, raw: Raw, *, rounds: int) -> dict[LaneKind, Ratio]:
    """For each kind of lanes the time of LINE over that of its statements, raw, from one process for each process lane.

    Each time includes making the stepper, emptying the laboratory, starting the workers, all moves, and ending them. The
    first process also starts the fork server, once for a session; that round is not counted.
    """
    database = place.laboratory("lanes")
    return {
        "thread": by_turns(timed(lambda: _play(database, "thread")), timed(raw.here), rounds),
        "process": by_turns(timed(lambda: _play(database, "process")), timed(raw.in_a_process), rounds),
    }


def _play(database: Database, kind: LaneKind) -> None:
    engine = Engine(database, policy=PATIENT)
    with Stepper(engine, lanes=kind) as stepper:
        assert len(stepper.play(LINE)) == MOVES
    engine.close()
