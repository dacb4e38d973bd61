"""The secret mission: break a weakened engine in few moves. Draws one, and plays a line until an invariant falls.

The line is played in its own schema, and all rows are looked at after each move.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from ...engine import Engine
from ..broken.catalogue import BROKEN
from ..history.words import counted
from ..notebook.notes import Notes
from ..schedule.grammar import LANES, Move, Schedule, Setting, deliver, parse
from ..schedule.moves import Moved
from ..schedule.presets import PLAYABLE
from ..schedule.stepper import Stepper
from ..verify.invariants import ALL_THAT_A_WORKER_CAN_DO, Mover, Transition, violations
from ..verify.snapshot import Rows, read_rows
from .judging import engine_aside

TAKE_OVERS = 9  # so often a fresh worker goes on, before a workflow counts as stuck


@dataclass(frozen=True)
class Mission:
    """An engine to be broken: what it lacks, a line to beat with its moves, and how many moves the shortest line has."""

    setting: Setting
    line: str
    moves: int
    shortest: int

    @property
    def to_beat(self) -> str:
        """The line to beat, after its number of moves."""
        return f"{counted(self.moves, 'move')}, {self.line}"

    def __repr__(self) -> str:
        forgets = " ".join(BROKEN[one].forgets for one in self.setting.without)
        return f"The engine to break: {self.setting}\n{forgets}\nThe line to beat: {self.to_beat}"

    def _repr_html_(self) -> str:
        """The same as text that breaks between words."""
        return Notes(str(self).split("\n"))._repr_html_()


def _mission(setting: str, line: str, moves: int, shortest: int) -> Mission:
    return Mission(parse(setting).setting, line, moves, shortest)


MISSIONS = (
    _mission("without=idempotency_key", "A*5 A! expire B*", 9, 8),
    _mission("without=acknowledge_after_tool", "A*5 A! expire B*", 9, 7),
    _mission("without=checkpoint_after_step", "A*3 A! expire B*", 7, 3),
    _mission("without=name_is_owner names=shared", "A*2 expire B A B*", 7, 6),
    _mission("without=lease_never_expires", "A*5 A! expire B*", 8, 2),
    _mission("without=claim_reads_first", "A B A*5 B*", 10, 7),
)
"""What may be drawn. A test holds the figures of each: it plays the line and asks the explorer for the shortest."""


def draw(seed: int) -> Mission:
    """The mission of this seed: the same number gives everybody the same one."""
    return random.Random(seed).choice(MISSIONS)


# -- playing a line ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Broke:
    """What a line led to: after how many moves which invariant fell, and by which row. No sentence: the engine held."""

    moves: int
    sentence: str = ""
    guilty: str = ""
    ended: str = ""


class _Fell(Exception):
    """An invariant of harm no longer holds."""


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
                self.sentence, self.guilty = invariant.sentence, str(guilty)
                raise _Fell


def broken_by(near: Engine, schedule: Schedule) -> Broke:
    """Plays the line on the server of `near`, in a schema that is dropped afterwards. Returns what the line led to.

    After its last move a fresh worker does all it can; what it cannot finish is stuck, and then every move counts. Raises
    AgentFlowError for a line that cannot be played.
    """
    with engine_aside(near) as engine, Stepper(engine) as stepper:
        watch = _Watch(stepper)
        stepper.reset(schedule.setting)
        stepper.watch = watch
        try:
            for move in schedule.moves:
                stepper.move(move)
            ended = _in_words(watch.rows)
            _finish(stepper, watch)
        except _Fell:
            return Broke(watch.moves, watch.sentence, watch.guilty)
        return Broke(watch.moves, ended=ended)


def _finish(stepper: Stepper, watch: _Watch) -> None:
    """Lets a fresh worker do all it can. Raises _Fell if a workflow is stuck; other harm would need these moves."""
    stepper.watch = None
    spare = min(set(LANES) - {move.lane for move in stepper.moves}, default="D")
    rows = watch.rows
    for _ in range(TAKE_OVERS):
        unfinished = [row for row in rows.workflows if row["status"] in ("ready", "waiting")]
        if not unfinished:
            break
        for row in unfinished:
            _help(stepper, row)
        stepper.move(Move("go", spare, None))
        rows = read_rows(stepper.engine)
    watch.judge(Transition(rows, rows, Mover(transaction=ALL_THAT_A_WORKER_CAN_DO)))


def _help(stepper: Stepper, row: Any) -> None:
    """Makes the one move from outside that a worker needs before it can go on."""
    number = int(row["id"].rpartition("-")[2]) if stepper.setting.requests > 1 else None
    if row["status"] == "waiting":
        for event in PLAYABLE[stepper.setting.workflow].events:
            stepper.move(deliver(event, True, number))
    elif row["lease"] == "live":
        stepper.move(Move("expire", request=number))
    elif row["lease_owner"] is None and not row["due"]:
        stepper.move(Move("due", request=number))


def _in_words(rows: Rows) -> str:
    """The state, calls and effects of each workflow, in words."""
    found = []
    for row in rows.workflows:
        effects = rows.of("effects", row["id"])
        calls = sum(effect["attempts"] for effect in effects)
        found.append(f"{row['id']} is {row['state']}, attempts {calls}, effects {len(effects)}")
    return "; ".join(found) or "nothing was played"
