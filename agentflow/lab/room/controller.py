"""A control room without its buttons: the moves a learner can make, what is looked at, and what there is to say.

What lives here: one method for each button, looking back and forking, and that a line which fails leaves the room as it
was. What does not: buttons (`room`), HTML (`room_view`), the moves themselves (`stepper`). Read `room` next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from ...engine import Engine
from ...errors import BadSchedule, DatabaseAway, LaneError
from ...server import Server
from ...values import to_json
from ..history.sentences import sentences
from ..history.words import counted
from ..pictures.timeline import timeline
from ..schedule.grammar import Move, Schedule, Setting, deliver, parse
from ..schedule.lane_set import SHARED_NAME, Kind, known_kind
from ..schedule.moves import Moved
from ..schedule.presets import PRESETS, as_line
from ..schedule.stepper import Stepper
from .messages import Trouble, in_words, without_entry
from .recording import Frame, Recording, holder
from .view import NOTHING, Scene

Axis = Literal["entry", "milliseconds"]
AXES: tuple[Axis, ...] = ("entry", "milliseconds")


class Moves(list[Moved]):
    """What several moves did, a line for each."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self))


class Stage:
    """Lanes, rows and history of one laboratory, now or as of an earlier entry; it begins empty.

    `setting` is a Setting, a schedule line or a preset's name, played at once. No move waits longer than `patience`
    seconds for a worker. Each method tells `_changed()` when what is on screen is different. Raises BadSchedule for a line
    that cannot be read.
    """

    def __init__(
        self, engine: Engine, setting: Setting | Schedule | str | None = None, *, lanes: Kind = "thread",
        patience: float = 10.0, server: Server | None = None,
    ) -> None:  # fmt: skip
        self._first = parse(as_line(setting, engine.workflows))
        self.stepper = Stepper(
            engine, self._first.setting, lanes=lanes, patience=patience, server=server, watch=self._watch
        )
        self.recording = Recording(self.stepper)
        self.entry: int | None = None  # the entry that is looked at; None: now
        self.chosen: str | None = None  # the workflow that is shown; None: the one that was last worked on
        self.axis: Axis = "entry"
        self.said, self.remark = NOTHING, ""
        self.trouble: Trouble | None = None
        self.away = self.closed = False

    def _watch(self, moved: Moved) -> None:
        self.recording.note(moved)

    def _changed(self) -> None:
        """What is on screen is different now."""

    # -- what a button does, and a cell can do too ---------------------------------------------------------------------

    def step(self, lane: str) -> Moved:
        """The lane's worker has committed its next transaction. Raises like Stepper.move()."""
        return self.move(Move("go", lane))[-1]

    def start(self, lane: str) -> Moved:
        """A new process stands in the lane of a worker that was killed."""
        return self.move(Move("start", lane))[-1]

    def crash(self, lane: str) -> Moved:
        """The lane's worker was killed where it stood."""
        return self.move(Move("kill", lane))[-1]

    def pause(self, lane: str) -> Moved:
        """The lane's worker does nothing until resume()."""
        return self.move(Move("pause", lane))[-1]

    def resume(self, lane: str) -> Moved:
        """The lane's worker goes on from where it was paused."""
        return self.move(Move("resume", lane))[-1]

    def lose(self, lane: str) -> Moved:
        """The lane's worker called the tool and the reply was lost; it must stand before the call."""
        return self.move(Move("lose", lane))[-1]

    def expire(self, workflow: str | None = None) -> Moved:
        """The lease ended: of this workflow, or of the only leased one, or of the shown one."""
        with self._acting():
            number = self._number(workflow, lambda row: bool(holder(row)) and not row["expired"])
            return self._told(self.stepper.move(Move("expire", request=number)))[-1]

    def due(self, workflow: str | None = None) -> Moved:
        """The back-off ended: of this workflow, or of the only one that waits one out, or of the shown one."""
        with self._acting():
            number = self._number(workflow, lambda row: row["postponed"])
            return self._told(self.stepper.move(Move("due", request=number)))[-1]

    def deliver(self, event: str | None = None, payload: Any = True, workflow: str | None = None) -> Moved:
        """The event arrived; without a name, the one that the shown workflow (or the only waiting one) waits for.

        Raises UnfaithfulValue for a payload that is no JSON, and like Stepper.move().
        """
        with self._acting():
            number = self._number(workflow, lambda row: bool(row["waiting_for"]))
            awaited = self.awaited(number)
            if not event and not awaited:
                raise BadSchedule("No workflow waits for an event, so there is nothing to deliver.")
            to_json(payload, workflow=workflow or self.workflow, step=event or awaited)  # refuses what is no JSON
            return self._told(self.stepper.move(deliver(event or awaited, payload, number)))[-1]

    def move(self, move: Move | str) -> Moves:
        """The move, or each move of a line without a setting, was made after those before. Raises like Stepper.move()."""
        with self._acting():
            return self._told(self.stepper.move(move))

    def recover(self, lane: str) -> Moves:
        """What the lane's worker left was finished by another; the room says which moves that were.

        Raises LaneError if nothing was left behind.
        """
        with self._acting():
            before = len(self.stepper.moves)
            done = self._told(self.stepper.recover(lane))
            made = Schedule(moves=tuple(self.stepper.moves[before:]))
            self.remark = f"Recover {lane} stands for: {made}"
            return done

    def race(self, *lanes: str) -> Moves:
        """These workers (all that can move, if none is named) went at the same moment; what each did."""
        with self._acting():
            chosen = lanes or self.movable
            if len(chosen) < 2:
                raise LaneError("A race needs two workers that are alive and not paused. Nothing was moved.")
            with self.recording.together():
                done = self.stepper.race(*chosen)
            self._told(done)
            self.remark = f"The database saw them in this order: {', '.join(moved.move.lane for moved in done)}."
            return Moves(done)

    def run(self, line: str | Schedule = "") -> Moves:
        """The laboratory was emptied and the line played from its beginning.

        Raises BadSchedule or LaneError if it cannot be played to its end, and then the room is as it was before.
        """
        with self._acting():
            return self._play(str(line))

    def preset(self, name: str) -> Moves:
        """The famous history of this name was played. Raises BadSchedule for a name that is none."""
        with self._acting():
            if name not in PRESETS:
                raise BadSchedule(f"There is no preset {name!r}; there are {', '.join(PRESETS)}.")
            done = self._play(PRESETS[name].line)
            self.remark = PRESETS[name].look_at
            return done

    def reset(self) -> None:
        """No worker, workflow or effect is left, and the setting is the one the room was opened with. Raises DatabaseAway."""
        with self._acting():
            self._play(Schedule(self._first.setting))

    def on(self, lanes: Kind) -> Moves:
        """The same schedule was played on lanes of this kind, and so are the moves to come."""
        with self._acting():
            known_kind(lanes)
            was, line = self.stepper.kind, self.stepper.line
            self.stepper.kind = lanes
            try:
                return self._play(line)
            except Exception:
                self.stepper.kind = was
                self._play(line)
                raise

    # -- looking back --------------------------------------------------------------------------------------------------

    def show(self, entry: int) -> str:
        """The room is as of this entry of the shown workflow (the last one: as it is now); the entry in words."""
        with self._looking():
            self._exists(entry)
            self.entry = None if entry == self.length else entry
            return f"{entry}. {self.sentences[entry - 1]}"

    def back(self) -> str:
        """The room is as of one entry earlier."""
        return self.show((self.entry or self.length) - 1)

    def forward(self) -> str:
        """The room is as of one entry later."""
        return self.show((self.entry or self.length) + 1)

    def fork(self, entry: int | None = None) -> Moves:
        """What led to the entry (by default the one that is looked at) was played anew; from there one can go on.

        Raises like run().
        """
        with self._acting():
            if entry is not None:
                self._exists(entry)
            at = entry or self.entry or self.length
            line = self.recording.frames[self.recording.at(self.workflow, at)].line if at else self.stepper.line
            done = self._play(line)
            self.remark = f"Forked at entry {at}: go on differently from here."
            return done

    def _exists(self, entry: int) -> None:
        """Raises BadSchedule if the shown workflow has no such entry."""
        last = self.length
        if not 1 <= entry <= last:
            raise BadSchedule(f"There is no entry {entry}; {self.workflow} has {counted(last, 'entry', 'entries')}.")

    def copy(self) -> str:
        """The schedule so far; the button also puts it into the clipboard."""
        with self._looking():
            self.remark = "The schedule line is in the clipboard."
            return self.stepper.line

    def look_at(self, workflow: str | None) -> None:
        """This workflow is shown; None: the one that was last worked on. Raises BadSchedule for an unknown one."""
        with self._looking():
            self._known(workflow)
            self.chosen, self.entry, self.remark = workflow, None, ""
            self.said = f"{self.length}. {self.sentences[-1]}" if self.length else NOTHING

    def _known(self, workflow: str | None) -> None:
        """Raises BadSchedule if the laboratory has no such workflow."""
        if workflow is not None and workflow not in (there := self.stepper.workflows):
            raise BadSchedule(f"There is no workflow {workflow!r}; there is {', '.join(there)}.")

    def scale(self, axis: Axis) -> None:
        """The timeline's x axis counts entries, or shows milliseconds."""
        with self._looking():
            if axis not in AXES:
                raise BadSchedule(f"The x axis is one of {', '.join(AXES)}, not {axis!r}.")
            self.axis = axis

    def close(self) -> None:
        """No thread, process or connection of the stage is left. Raises LaneError if a step does not return."""
        self.closed = True
        self.stepper.close()

    # -- what can be seen ----------------------------------------------------------------------------------------------

    @property
    def workflow(self) -> str:
        """The id of the workflow that is shown."""
        workflows = self.stepper.workflows
        return self.chosen if self.chosen in workflows else self.recording.last_workflow or workflows[0]

    @property
    def length(self) -> int:
        """How many entries the shown workflow has."""
        return len(self.recording.entries(self.workflow))

    @property
    def sentences(self) -> list[str]:
        """The shown workflow's entries in words."""
        return sentences(self.recording.entries(self.workflow))

    @property
    def movable(self) -> tuple[str, ...]:
        """The lanes whose workers are alive and not paused."""
        return tuple(lane.name for lane in self.frame.lanes if lane.alive and not lane.paused)

    def awaited(self, number: int | None = None) -> str:
        """The event that the workflow of this number waits for, or the first one that waits; empty if none does."""
        rows = self.recording.frames[-1].rows
        chosen = self.stepper.workflows[number - 1 : number] if number else list(rows)
        return next((str(rows[one]["waiting_for"]) for one in chosen if one in rows and rows[one]["waiting_for"]), "")

    @property
    def frame(self) -> Frame:
        """The frame that is looked at."""
        return self.recording.frames[self._position]

    @property
    def _position(self) -> int:
        return len(self.recording.frames) - 1 if self.entry is None else self.recording.at(self.workflow, self.entry)

    def scene(self, *, live: bool = True) -> Scene:
        """Everything that is on screen, as data; `live` with marks that can be focused."""
        frame, told = self.frame, self.sentences
        before = self.recording.frames[max(0, self._position - 1)]
        looking = self.entry is not None
        entries = self.recording.entries(self.workflow)
        shared = self.stepper.setting.names == "shared"  # the history cannot tell them apart
        lanes = [SHARED_NAME] if shared else [lane.name for lane in self.recording.frames[-1].lanes]
        picture = timeline(
            entries, compact=True, live=live, cursor=self.entry or len(entries) or None,
            axis=self.axis if live else "entry", workers=lanes,
        )  # fmt: skip
        return Scene(
            name=self.stepper.setting.workflow,
            setting=str(Setting(**{**vars(self.stepper.setting), "workflow": Setting.workflow})),
            workflow=self.workflow, row=frame.rows.get(self.workflow), before=before.rows.get(self.workflow),
            who=frame.writer(self.workflow), lanes=frame.lanes, history=told, length=len(entries), entry=self.entry,
            statement=frame.statement, schema=self.stepper.engine.database.schema, line=self.stepper.line,
            said=f"looking back: {self.entry}. {told[self.entry - 1]}" if looking and self.entry else self.said,
            remark="" if looking else self.remark, trouble=self.trouble, away=self.away,
            picture=f'<div class="gut">{picture.gutter}</div>{picture.svg}' if live else picture.svg,
        )  # fmt: skip

    # -- how a move is made and told -----------------------------------------------------------------------------------

    def _open(self) -> Moves:
        """The laboratory is empty and the first line played."""
        with self._acting():
            return self._play(self._first)

    def _play(self, line: str | Schedule) -> Moves:
        """The line was played; if it fails on its way, what was there before was played again."""
        old, was, moves = self.recording, self.stepper.line, self.stepper.moves
        schedule = parse(line) if isinstance(line, str) else line
        self.recording = Recording(self.stepper)
        try:
            done = self.stepper.play(schedule)
        except DatabaseAway:
            if self.stepper.moves is moves:
                self.recording = old
            raise
        except BaseException:
            self.recording = old
            if self.stepper.moves is not moves:  # the laboratory was emptied already
                self.recording = Recording(self.stepper)
                self.stepper.play(was)
            raise
        self.recording.frames[0] = Frame(line=str(Schedule(self.stepper.setting)))
        self.said, self.remark, self.chosen = NOTHING, "", None
        return self._told(done)

    def _told(self, done: Iterable[Moved]) -> Moves:
        """What was done is said: the newest entry, or what happened without one."""
        moves = Moves(done)
        if not moves:
            return moves
        last, frames = moves[-1], self.recording.frames
        before = frames[-2].lengths.get(self.workflow, 0)
        known = self.recording.entries(self.workflow)[-1:]
        self.remark = ""
        waited_for = last.passed and known and known[0]["transaction"] == last.passed.transaction and not last.said
        if last.workflow == self.workflow and (self.length > before or (waited_for and last.ended != "idle")):
            self.said = f"{self.length}. {self.sentences[-1]}"
        else:
            self.said = without_entry(last, frames[-1].rows)
        if last.trouble:
            self.trouble = Trouble(
                last.move.lane, last.trouble, "Its lease stays until it ends; look at the rows, or reset."
            )
        return moves

    def _number(self, workflow: str | None, wanted: Callable[[Any], bool]) -> int | None:
        """The number of the workflow that a move is about, where it has to be said. Raises BadSchedule if it is unknown."""
        workflows = self.stepper.workflows
        self._known(workflow)
        if len(workflows) == 1:
            return None
        found = [name for name, row in self.recording.frames[-1].rows.items() if wanted(row)]
        chosen = workflow or (self.workflow if self.workflow in found else next(iter(found), None))
        return workflows.index(chosen) + 1 if chosen in workflows else None

    @contextmanager
    def _acting(self) -> Iterator[None]:
        """A move is made: it is shown, or its error is, and raised."""
        self.trouble = None
        try:
            if self.closed:
                raise LaneError("This control room is closed. Run the cell that made it again.")
            yield
            self.entry, self.away = None, False
        except Exception as error:
            self.away = isinstance(error, DatabaseAway)
            self.trouble = in_words(error)
            if isinstance(error, LaneError) and not self.closed:
                with suppress(DatabaseAway):
                    self.recording.catch_up()
            raise
        finally:
            self._changed()

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Something else is looked at, or it is said why not."""
        self.trouble = None
        try:
            yield
        except Exception as error:
            self.trouble = in_words(error)
            raise
        finally:
            self._changed()
