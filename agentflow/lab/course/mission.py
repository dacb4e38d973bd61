"""The secret mission: break a weakened engine in few moves. Drawing one, and playing a line until an invariant falls.

What lives here: the missions, and a line played on a laboratory of its own with all rows looked at after each move. What does
not: the invariants (`invariants`), the shortest line that there is (`explore`), what a learner is told (`stages`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from ...engine import Engine
from ...errors import AgentFlowError
from ..broken.catalogue import BROKEN
from ..history.words import counted
from ..laboratory.laboratory import PATIENT
from ..laboratory.scratch_schema import new_name, own_schema
from ..notebook.notes import Said
from ..schedule.grammar import LANES, Move, Schedule, Setting, deliver, parse
from ..schedule.moves import Moved
from ..schedule.presets import PLAYABLE
from ..schedule.stepper import Stepper
from ..verify.invariants import ALL_THAT_A_WORKER_CAN_DO, Mover, Transition, violations
from ..verify.snapshot import Rows, read_rows
from .record import the_record

ROUNDS = 9


@dataclass(frozen=True)
class Mission:
    """An engine to be broken: what it lacks, the line that the class begins with, and how many moves the shortest has."""

    setting: Setting
    begin: str
    begin_moves: int
    shortest: int

    @property
    def name(self) -> str:
        """What the engine lacks, or does instead."""
        return ",".join(self.setting.without)

    def __repr__(self) -> str:
        forgets = " ".join(BROKEN[one].forgets for one in self.setting.without)
        return f"The engine to break: {self.setting}\n{forgets}"

    def _repr_html_(self) -> str:
        """The same as text that breaks between words."""
        return Said(str(self).split("\n"))._repr_html_()


def _mission(setting: str, begin: str, begin_moves: int, shortest: int) -> Mission:
    return Mission(parse(setting).setting, begin, begin_moves, shortest)


MISSIONS = (
    _mission("without=idempotency_key", "A*5 A! expire B*", 9, 8),
    _mission("without=acknowledge_after_tool", "A*5 A! expire B*", 9, 7),
    _mission("without=checkpoint_after_step", "A*3 A! expire B*", 7, 3),
    _mission("without=name_is_owner names=shared", "A*2 expire B A B*", 7, 6),
    _mission("without=lease_never_expires", "A*5 A! expire B*", 8, 2),
    _mission("without=claim_reads_first", "A B A*5 B*", 10, 7),
)
"""What may be drawn. The figures of each are held by a test, which plays the line and asks the explorer."""


def draw(seed: int) -> Mission:
    """The mission of this seed: the same number gives the same one to everybody."""
    return random.Random(seed).choice(MISSIONS)


# -- playing a line ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Broke:
    """What a line came to: after how many moves which sentence fell, by which row. No sentence: the engine held."""

    moves: int
    sentence: str = ""
    guilty: str = ""
    ended: str = ""


class _Fell(Exception):
    """An invariant of harm does not hold any more."""


class _Watch:
    """Looks at all rows after each transaction or fault."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper, self.rows, self.moves = stepper, Rows(), 0
        self.sentence = self.guilty = ""

    def __call__(self, moved: Moved) -> None:
        before, self.rows = self.rows, read_rows(self.stepper.engine)
        passed = moved.passed
        self.moves += not (passed and passed.transaction == "create")
        ended = moved.ended if passed and passed.transaction == "complete" else None
        mover = Mover(passed.worker, passed.token, passed.workflow, passed.transaction, ended) if passed else Mover()
        self.judge(Transition(before, self.rows, mover))

    def judge(self, transition: Transition) -> None:
        """Raises _Fell if the transition harmed somebody; authority alone is no harm."""
        for invariant, guilty in violations(transition):
            if invariant.kind == "harm":
                said, advice, _ = str(guilty).partition(" (put a counter")  # that is for a workflow's own code
                self.sentence, self.guilty = invariant.sentence, f"{said})" if advice else said
                raise _Fell


def broken_by(url: str, schedule: Schedule) -> Broke:
    """What the line came to on a laboratory of its own, which is gone.

    After its last move a fresh worker does all it can; what it cannot finish is stuck, and then every move counts. Raises
    AgentFlowError for a line that cannot be played.
    """
    with own_schema(url, new_name("mission")) as database:
        engine = Engine(database, policy=PATIENT)
        try:
            with Stepper(engine) as stepper:
                return _played(stepper, schedule)
        finally:
            engine.close()


def _played(stepper: Stepper, schedule: Schedule) -> Broke:
    watch = _Watch(stepper)
    stepper.reset(schedule.setting)
    stepper.watch = watch
    try:
        for move in schedule.moves:
            stepper.move(move)
    except _Fell:
        return Broke(watch.moves, watch.sentence, watch.guilty)
    ended = _standing(watch.rows)
    try:
        _finish(stepper, watch)
    except _Fell:
        return Broke(watch.moves, watch.sentence, watch.guilty)
    return Broke(watch.moves, ended=ended)


def _finish(stepper: Stepper, watch: _Watch) -> None:
    """All that a fresh worker can do was done. Raises _Fell if a workflow is stuck; other harm would need these moves."""
    stepper.watch = None
    spare = min(set(LANES) - {move.lane for move in stepper.moves}, default="D")
    rows = watch.rows
    for _ in range(ROUNDS):
        unfinished = [row for row in rows.workflows if row["status"] in ("ready", "waiting")]
        if not unfinished:
            break
        for row in unfinished:
            _help(stepper, row)
        stepper.move(Move("go", spare, None))
        rows = read_rows(stepper.engine)
    watch.judge(Transition(rows, rows, Mover(transaction=ALL_THAT_A_WORKER_CAN_DO)))


def _help(stepper: Stepper, row: Any) -> None:
    """What has to come from outside before a worker can go on has come."""
    number = int(row["id"].rpartition("-")[2]) if stepper.setting.requests > 1 else None
    if row["status"] == "waiting":
        for event in PLAYABLE[stepper.setting.workflow].events:
            stepper.move(deliver(event, True, number))
    elif row["lease"] == "live":
        stepper.move(Move("expire", request=number))
    elif row["lease_owner"] is None and not row["due"]:
        stepper.move(Move("due", request=number))


def _standing(rows: Rows) -> str:
    """How the workflows stand, in words."""
    said = []
    for row in rows.workflows:
        effects = rows.of("effects", row["id"])
        calls = sum(effect["attempts"] for effect in effects)
        said.append(f"{row['id']} is {row['state']}, attempts {calls}, effects {len(effects)}")
    return "; ".join(said) or "nothing was played"


# -- the class record --------------------------------------------------------------------------------------------------


def class_record(mission: Mission) -> Said:
    """The shortest line that anybody of this class has found for the mission, kept in the course's own schema."""
    best = record_of(mission)
    return Said([f"The class record for this engine is {best.told()}", *([best.trouble] if best.trouble else [])])


@dataclass(frozen=True)
class Best:
    """The record: its moves, its line, since which day it stands (none: it is ours), and why nobody's can be read."""

    moves: int
    line: str
    since: str = ""
    trouble: str = ""

    def told(self, found: int | None = None) -> str:
        """Its length. Its line only if that is ours, or to somebody who `found` one in as few moves."""
        length = counted(self.moves, "move")
        if self.since and (found is None or found > self.moves):
            return f"{length}, since {self.since}"
        return f"{length}: {self.line}"


def record_of(mission: Mission) -> Best:
    """The shortest line that is kept for the mission, or else the one to begin with."""
    ours = Best(mission.begin_moves, mission.begin)
    try:
        kept = the_record().read(_where(mission)).events
        moves = min(map(int, kept), default=ours.moves)
        if moves >= ours.moves:
            return ours
        return Best(moves, kept[str(moves)], the_record().since(_where(mission), str(moves)))
    except AgentFlowError as error:
        return replace(ours, trouble=f"Nobody's record can be read now, so this is the one to begin with. {error}")


def keep_record(mission: Mission, moves: int, line: str) -> str:
    """The line is kept; who was first with so many moves stays. A sentence if it could not be kept, or nothing."""
    try:
        the_record().note(_where(mission), str(moves), line)
    except AgentFlowError as error:
        return f" It could not be kept. {error}"
    return ""


def _where(mission: Mission) -> str:
    return f"class record/{mission.name}"
