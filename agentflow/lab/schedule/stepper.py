"""Moves over lanes: a laboratory in which workers commit one transaction at a time, and the schedule of what was done.

A standing worker holds no transaction, and its lease does not end by itself, so one may read for an hour between two moves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ...driver_errors import is_full
from ...engine import Engine, is_embedded
from ...errors import AgentFlowError, BadSchedule, DatabaseAway, LaneError
from ...model import Boundary
from ...server import Server
from ...tools import own_name
from ..history.entries import Row
from ..laboratory.laboratory import emptied
from .commit_order import Commit, sorted_by_commit
from .grammar import LANE_VERBS, MAX_TIMES, Move, Roll, Schedule, Setting, parse
from .lane_set import LaneKind, LaneSet, known_kind, known_lane, weakened
from .lane_worker import watched
from .lanes import Lane
from .moves import Maker, Moved
from .presets import inputs_for, meant

FIRST_CELL = "Run the first cell again, which starts it, and then the cells after it."


class Stepper:
    """Lanes over one laboratory, and the moves that were made.

    Each move is shown to `watch` when it is done, and before the first the creation of the workflows.

    `engine` gives the database, the workflows and the tool; the setting takes guards away. `inputs` are what the workflows
    are given, one each (JSON values); without them the presets' requests. If the engine does not know the default workflow,
    its first is meant. No move waits longer than `patience` seconds for a worker. `server` is what the move `restart`
    restarts, if it is not the embedded one.

    The workflows are `request-1` and so on, after `prefix`. A tool of one's own remembers the keys of what was played before,
    so with one, or with a prefix, they are `2.request-1` after a reset.
    """

    def __init__(
        self, engine: Engine, setting: Setting | None = None, *, inputs: Sequence[Any] | None = None,
        lanes: LaneKind = "thread", patience: float = 10.0, server: Server | None = None,
        watch: Callable[[Moved], None] | None = None, prefix: str = "",
    ) -> None:  # fmt: skip
        known_kind(lanes)
        self.kind, self.patience, self.server, self.watch = lanes, patience, server, watch
        self._given, self._offered, self._prefix, self._played = engine, inputs, prefix, 1
        self.engine: Engine = engine.with_hook(None)
        self.engine.database = watched(engine.database, min(3.0, patience), engine.database.application_name)
        self._busy = threading.RLock()  # a thread that plays a line makes its moves
        self._closed = False
        self._begin(setting or Setting())

    def _begin(self, setting: Setting) -> None:
        self.setting = setting = meant(setting, self._given.workflows)
        self._inputs = inputs_for(setting, self._given.workflows, self._offered)
        self._lanes = LaneSet(weakened(self._given, setting), setting, self.kind, self.patience)
        remembers = self._prefix or own_name(self.engine.tool, self.engine.database.schema)
        again = f"{self._played}." if self._played > 1 and remembers else ""
        self._maker = Maker(self.engine, self._lanes, setting, self.server, self._prefix + again)
        self.moves: list[Move] = []
        self._created = False

    # -- moves -------------------------------------------------------------------------------------------------------

    def play(self, line: str | Schedule) -> list[Moved]:
        """Empties the laboratory and plays the line from its beginning; returns what each transaction and fault did.

        Raises BadSchedule before anything is touched if the line or its setting cannot be read; BadSchedule, LaneError
        or DatabaseAway at the move that cannot be made: what came before it stays.
        """
        schedule = parse(line) if isinstance(line, str) else line
        done: list[Moved] = []
        with self._moving():
            self.reset(schedule.setting)
            for number, move in enumerate(schedule.moves, 1):
                try:
                    done += self.move(move)
                except AgentFlowError as error:
                    cause = _cause(error, done)
                    cause.add_note(f'This was move {number} of {len(schedule.moves)}, "{move}", of {schedule!s:.200}')
                    raise cause from cause.__cause__ or error
        return done

    def move(self, move: Move | str) -> list[Moved]:
        """Makes the move (or each move of a line); returns what it did, one result for each transaction or fault.

        Raises BadSchedule if it cannot come now, and then nothing was moved; LaneError; DatabaseAway.
        """
        with self._moving():
            if isinstance(move, str):
                return [moved for one in self._read(move) for moved in self.move(one)]
            self._allow(move)
            return list(self._make(move))

    def step(self, lane: str) -> Moved:
        """Lets the lane's worker commit its next transaction; it then stands before the one after."""
        return self.move(Move("go", lane))[-1]

    def crash(self, lane: str) -> Moved:
        """Kills the lane's worker where it stands."""
        return self.move(Move("kill", lane))[-1]

    def recover(self, lane: str) -> list[Moved]:
        """Lets another worker finish (or park) what the lane's worker left; `line` has the moves.

        Leases and back-offs end, and the next living lane plays to the end, also through other work it claims on the
        way; a new process in this lane does, if no other lives. Raises LaneError if nothing was left behind.
        """
        with self._moving():
            self._notice()
            left, moves = self.left_by(lane), self.recovery(lane)
            done = [moved for move in moves for moved in self.move(move)]
            while done[-1].ended in ("completed", "failed", "waiting", "lost"):
                if all(row["status"] != "ready" for row in self._maker.rows(left).values()):
                    break
                done += self.move(moves[-1])
            return done

    def recovery(self, lane: str) -> list[Move]:
        """The moves that recover(lane) begins with. Raises LaneError if the lane left nothing behind."""
        left = self.left_by(lane)
        if not left:
            raise LaneError(f"{lane} left nothing behind, so there is nothing to recover. Nothing was moved.")
        rows = self._maker.rows(left)
        moves = [Move("expire", request=self._number(one)) for one, row in rows.items() if row["leased"]]
        moves += [Move("due", request=self._number(one)) for one, row in rows.items() if row["postponed"]]
        others = [name for name in self.lanes if name != lane and self.is_alive(name) and not self.is_paused(name)]
        if not others and not self.is_alive(lane):
            moves, others = [*moves, Move("start", lane)], [lane]
        return [*moves, Move("go", (others or [lane])[0], None)]

    def race(self, *lanes: str) -> list[Moved]:
        """Lets these workers go at the same moment; returns what each did, in the order in which the database saw it.

        That order is written into `line`, so it can be played again. Raises LaneError (also if one does not come to its
        next transaction; what the others did is noted), DatabaseAway, BadSchedule.
        """
        for lane in lanes:
            known_lane(lane)
        if len(set(lanes)) < len(lanes):
            raise LaneError(f"A race needs different workers, not {', '.join(lanes)}. Nothing was moved.")
        moves = [Move("go", lane) for lane in lanes]
        with self._moving():
            for move in moves:
                self._allow(move)
                self._lanes.lane(move.lane)
            for move in moves:
                self._lanes.lane(move.lane).begin("go")
            done, late = self._settled(moves)
            noted = [self._note(moved) for moved in self._in_order(done)]
            if late:
                for moved in noted:
                    late[0].add_note(f"The race went on without it: {moved}")
                raise late[0]
            return noted

    def reset(self, setting: Setting | None = None) -> None:
        """Ends all workers and empties the laboratory; the next move begins anew.

        Raises BadSchedule before anything is touched if the setting cannot be played; DatabaseAway, NotALaboratory.
        """
        chosen = meant(setting or self.setting, self._given.workflows)
        inputs_for(chosen, self._given.workflows, self._offered)
        weakened(self._given, chosen)
        with self._moving():
            self._answers()
            self._lanes.end()
            self.engine.reset_database()
            self._played += self._created
            self._begin(chosen)

    def create(self) -> None:
        """Writes the workflows down, if the first move has not. Raises LaneError, DatabaseAway."""
        with self._moving():
            self._allow(Move("go", "A"))

    def close(self) -> None:
        """Ends the threads, processes and connections of the stepper. Raises LaneError if a step does not return."""
        self._closed = True
        try:
            self._lanes.end()
        finally:
            self.engine.database.close()

    def __enter__(self) -> Stepper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what can be seen --------------------------------------------------------------------------------------------

    @property
    def line(self) -> str:
        """The schedule so far, in its shortest form."""
        return str(Schedule(self.setting, tuple(self.moves)))

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes there are: A and B, and those up to the last that took part."""
        return Schedule(self.setting, tuple(self.moves)).lanes

    @property
    def workflows(self) -> list[str]:
        """The ids of the setting's workflows, whether they were created yet or not."""
        return self._maker.workflows

    def is_alive(self, lane: str) -> bool:
        """Whether the lane has a worker; one that has not moved yet counts."""
        known = self._lanes.known(lane)
        return lane not in Roll(self.moves).dead and (known is None or known.alive)

    def is_paused(self, lane: str) -> bool:
        """Whether the lane's worker is paused."""
        return lane in Roll(self.moves).paused

    def lane(self, name: str) -> Lane:
        """The lane itself, in which a worker stands; the first starts when it is asked for. Raises LaneError."""
        return self._lanes.lane(name)

    def standing(self, lane: str) -> Boundary | None:
        """The boundary where the lane's worker stands; None while it runs, or if it is dead or has not moved yet."""
        return self._lanes.standing(lane)

    def next_transaction(self, lane: str) -> str:
        """What a step of this lane commits next, such as `checkpoint classify`; empty if it has no worker.

        Directly after a transaction nobody knows what its code will ask for: then `what comes next`.
        """
        known, at = self._lanes.known(lane), self.standing(lane)
        if not self.is_alive(lane):
            return ""
        if known is not None and known.busy:
            return "still running"
        return "claim" if at is None else at.name if at.edge == "before" else "what comes next"

    def sql(self, name: str) -> str:
        """The text of a transaction as the setting's engine asks it, guards taken away."""
        return self._lanes.engine.database.sql(name)

    def left_by(self, lane: str) -> list[str]:
        """The open workflows that the lane's dead or paused workers hold, and those that wait out a back-off."""
        if self._closed or not self._created:
            return []
        gone = self._lanes.gone(lane)
        return [
            name
            for name, row in self._maker.rows().items()
            if row["status"] == "ready" and (row["lease_owner"] in gone or row["postponed"])
        ]

    # -- how a move is made ------------------------------------------------------------------------------------------

    def _read(self, text: str) -> tuple[Move, ...]:
        """The moves of a line without a setting, as they follow what was made so far. Raises BadSchedule."""
        before = str(Schedule(self.setting)) + " " if self.setting != Setting() else ""
        self._notice()
        schedule = parse(before + text, Roll(self.moves))
        if schedule.setting != self.setting:
            raise BadSchedule(
                f'"{schedule.setting}" begins a new line; play the whole line, or reset to that setting first.'
            )
        return schedule.moves

    def _allow(self, move: Move) -> None:
        """Checks that the move can come now, and creates the workflows before the first. Raises BadSchedule, DatabaseAway."""
        self._notice()
        if move.lane or move.verb in LANE_VERBS:
            known_lane(move.lane)
        if why := Roll(self.moves).refuses(move):
            raise BadSchedule(f'"{move}" {why}.')
        if not self._created:
            if held := len(self.engine.list_workflows()):
                raise LaneError(
                    f"The laboratory {self.engine.database.schema!r} already holds {held} workflows, and a schedule begins "
                    "with an empty one. Reset it, then repeat the move."
                )
            self.engine.create_workflows(self._inputs, name=self.setting.workflow, workflow_ids=self.workflows)
            self._created = True
            if self.watch:
                self.watch(self._maker.created(move))

    def _notice(self) -> None:
        """Checks that PostgreSQL answers, and notes in the line which workers were killed from outside. Raises LaneError."""
        if self._closed:
            raise LaneError("This stepper is closed. Run the cell that made it again.")
        self._answers()
        if self._created and (said := emptied(self.engine)):
            raise LaneError(said)
        for lane in self._lanes.lost():
            if lane.name not in Roll(self.moves).dead:
                self._note(self._maker.mourn(Move("kill", lane.name), self._maker.place(lane), lane.busy))
                lane.standing = None

    def _make(self, move: Move) -> Iterator[Moved]:
        """Makes and notes each transaction or fault of the move, one after the other.

        All transactions to the end of what the worker works on are noted as one move.
        """
        if move.verb != "go" or move.times == 1:
            yield self._note(self._maker.make(move))
            return
        before = len(self.moves)
        for _ in range(move.times or MAX_TIMES):
            moved = self._note(self._maker.make(Move("go", move.lane)))
            yield moved
            if move.times is None and moved.ended:
                self.moves[before:] = [move]
                return
        if move.times is None:
            raise LaneError(f"{move.lane} made {MAX_TIMES:,} moves without finishing; look at the history, or reset.")

    def _settled(self, moves: Sequence[Move]) -> tuple[list[Moved], list[LaneError]]:
        """What the workers of a race did, and the errors of those that are still on their way."""
        reports, late = [], []
        for move in moves:
            try:
                reports.append((move, self._lanes.lane(move.lane).settle()))
            except LaneError as error:
                late.append(error)
        # Only now is the winner's claim committed that an empty one has passed over.
        return [self._maker.moved(move, report) for move, report in reports], late

    def _note(self, moved: Moved) -> Moved:
        self.moves.append(moved.move)
        if self.watch:
            self.watch(moved)
        return moved

    def _number(self, workflow_id: str) -> int | None:
        """The workflow's number, where a move has to say it."""
        return self.workflows.index(workflow_id) + 1 if self.setting.requests > 1 else None

    def _in_order(self, done: Sequence[Moved]) -> list[Moved]:
        """What the workers of a race did, in the order in which the database saw it; what wrote no entry comes last."""
        queue = sorted(self.workflows, key=lambda name: self._maker.row(name)["next_run_at"])
        entries = [self._commit(entry) for name in queue for entry in self.engine.history(name)]

        def commit(moved: Moved) -> Commit | None:
            passed = moved.passed or Boundary("", "after")
            its = [one for one in entries if (one.workflow, one.transaction) == (passed.workflow, passed.transaction)]
            its = [one for one in its if one.token in (passed.token, None)]  # the world's entries have no token
            return its[-1] if its else None

        return sorted_by_commit(done, commit, entries)

    def _commit(self, entry: Row) -> Commit:
        who, token = entry["worker"], entry["fence_token"]
        if who and self.setting.names == "shared":
            who = f"{who}, token {token}"  # two workers of one name commit independently
        at = entry["at"].timestamp()
        return Commit(who, entry["workflow_id"], entry["event"], entry["transaction"], entry["subject"], token, at)

    # -- the database --------------------------------------------------------------------------------------------------

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """One move at a time. Raises LaneError if another is under way."""
        if not self._busy.acquire(blocking=False):
            raise LaneError("The last move is still under way; wait until it has ended, then try again.")
        try:
            yield
        finally:
            self._busy.release()

    def _answers(self) -> None:
        """Checks before a move that PostgreSQL answers, so that a worker never leaves its place for nothing."""
        try:
            with suppress(DatabaseAway):
                self.engine.database.check()
                return
            self.engine.database.check()  # a kept connection may be from before a restart
        except DatabaseAway as away:
            if is_full(away.__cause__):
                raise
            mend = "Start it again (`agentflow doctor` says which one is meant), then repeat the move."
            raise DatabaseAway(
                f"PostgreSQL at {self.engine.database.where} does not answer. No worker has moved. "
                f"{FIRST_CELL if is_embedded() else mend}"
            ) from away


def _cause(error: AgentFlowError, done: Sequence[Moved]) -> AgentFlowError:
    """The error; or, if a worker did not reach PostgreSQL before it, DatabaseAway, since the error follows from that."""
    away = [moved.trouble for moved in done if moved.ended == "away"]
    return DatabaseAway(away[0]) if away and isinstance(error, BadSchedule) else error
