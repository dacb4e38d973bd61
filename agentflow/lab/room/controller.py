"""The moves that a learner can make in a control room, what is looked at, and the scene of what there is to show.

A line that cannot be played to its end leaves the room as it was. It knows nothing of buttons and HTML.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ...engine import Engine
from ...errors import AgentFlowError, BadSchedule, DatabaseAway, LaneError
from ...server import Server
from ...values import to_json
from ..history.entries import Row
from ..history.sentences import sentences
from ..history.story_reader import read_story
from ..history.words import counted
from ..pictures.timeline import NOTHING
from ..schedule.grammar import Move, Schedule, Setting, deliver, parse
from ..schedule.lane_set import SHARED_NAME, LaneKind, known_kind
from ..schedule.moves import Moved
from ..schedule.presets import PRESETS, as_line, meant
from ..schedule.stepper import Stepper
from .messages import trouble_of, without_entry
from .observed import observe
from .recording import Recording
from .row_tables import holder
from .scene import AXES, Axis, Scene, Trouble


class Moves(list[Moved]):
    """What several moves did, a line for each."""

    def __repr__(self) -> str:
        return "\n".join(map(str, self))


class Controller:
    """Lanes, rows and history of one laboratory, now or as of an earlier entry; open() begins it.

    `setting` is a Setting, a schedule line or a preset's name. `inputs` as for Stepper; no move waits longer than `patience`
    seconds for a worker. `scene()` is what there is to show, also after a method that raised. Raises BadSchedule for a line
    that cannot be read.
    """

    def __init__(
        self, engine: Engine, setting: Setting | Schedule | str | None = None, *, lanes: LaneKind = "thread",
        patience: float = 10.0, server: Server | None = None, inputs: Sequence[Any] | None = None,
    ) -> None:  # fmt: skip
        self._first = parse(as_line(setting))
        self.stepper = Stepper(
            engine, self._first.setting, inputs=inputs, lanes=lanes, patience=patience, server=server, watch=self._note
        )
        self.recording = Recording(self.stepper.line)
        self._racing: list[Moved] | None = None  # the moves of a race that goes on
        self.entry: int | None = None  # the entry that is looked at; None: now
        self.chosen: str | None = None  # the workflow that is shown; None: the one that was last worked on
        self.axis: Axis = "entry"
        self.sentence, self.remark = NOTHING, ""
        self.trouble: Trouble | None = None
        self.away = self.closed = self.hidden = False
        self.changed: Callable[[], object] = lambda: None  # called after every method, also after one that raised

    # -- what a button does, and a cell can do too ---------------------------------------------------------------------

    def open(self) -> Moves:
        """Empties the laboratory and plays the first line. Raises like run()."""
        with self._acting():
            return self._play(self._first)

    def step(self, lane: str) -> Moved:
        """Lets the lane's worker commit its next transaction. Raises like Stepper.move()."""
        return self.move(Move("go", lane))[-1]

    def start(self, lane: str) -> Moved:
        """Starts a new process in the lane of a worker that was killed."""
        return self.move(Move("start", lane))[-1]

    def crash(self, lane: str) -> Moved:
        """Kills the lane's worker."""
        return self.move(Move("kill", lane))[-1]

    def pause(self, lane: str) -> Moved:
        """Stops the lane's worker until resume()."""
        return self.move(Move("pause", lane))[-1]

    def resume(self, lane: str) -> Moved:
        """Lets the lane's worker go on from where it was paused."""
        return self.move(Move("resume", lane))[-1]

    def lose(self, lane: str) -> Moved:
        """Lets the lane's worker call the tool and loses the reply; the worker must stand before the call."""
        return self.move(Move("lose", lane))[-1]

    def expire(self, workflow: str | None = None) -> Moved:
        """Ends the lease of this workflow, or of the only leased one, or of the shown one."""
        with self._acting():
            number = self._number(workflow, lambda row: bool(holder(row)) and not row["expired"])
            return self._say(self.stepper.move(Move("expire", request=number)))[-1]

    def due(self, workflow: str | None = None) -> Moved:
        """Ends the back-off of this workflow, or of the only one that waits one out, or of the shown one."""
        with self._acting():
            number = self._number(workflow, lambda row: row["postponed"])
            return self._say(self.stepper.move(Move("due", request=number)))[-1]

    def deliver(self, event: str | None = None, payload: Any = True, workflow: str | None = None) -> Moved:
        """Delivers the event; without a name, the one that the shown workflow (or the only waiting one) waits for.

        Raises UnfaithfulValue for a payload that JSON cannot hold, and like Stepper.move().
        """
        with self._acting():
            number = self._number(workflow, lambda row: bool(row["waiting_for"]))
            awaited = self.awaited(number)
            if not event and not awaited:
                raise BadSchedule("No workflow waits for an event, so there is nothing to deliver.")
            to_json(payload, workflow=workflow or self.workflow, step=event or awaited)  # raises if JSON cannot hold it
            return self._say(self.stepper.move(deliver(event or awaited, payload, number)))[-1]

    def move(self, move: Move | str) -> Moves:
        """Makes the move, or each move of a line without a setting, after those before. Raises like Stepper.move()."""
        with self._acting():
            return self._say(self.stepper.move(move))

    def recover(self, lane: str) -> Moves:
        """Lets another worker finish what the lane's worker left; the room says which moves that were.

        Raises LaneError if nothing was left behind.
        """
        with self._acting():
            before = len(self.stepper.moves)
            done = self._say(self.stepper.recover(lane))
            self.remark = f"Recover {lane} stands for: {Schedule(moves=tuple(self.stepper.moves[before:]))}"
            return done

    def race(self, *lanes: str) -> Moves:
        """Lets these workers (all that can move, if none is named) go at the same moment."""
        with self._acting():
            chosen = lanes or [lane.name for lane in self.recording.frames[-1].lanes if lane.alive and not lane.paused]
            if len(chosen) < 2:
                raise LaneError("A race needs two workers that are alive and not paused. Nothing was moved.")
            self._racing = moves = list[Moved]()
            try:
                done = self.stepper.race(*chosen)
            finally:  # one frame shows them all, since they went at the same time
                self._racing = None
                if moves:
                    self.recording.note(observe(self.stepper, moves[-1].asked), *moves)
            self._say(done)
            told = range(max(1, self.length - len(done) + 1), self.length + 1)
            self.sentence = " ".join(f"{n}. {self.sentences[n - 1]}" for n in told)
            self.remark = f"The database saw them in this order: {', '.join(moved.move.lane for moved in done)}."
            return Moves(done)

    def run(self, line: str | Schedule = "") -> Moves:
        """Empties the laboratory and plays the line from its beginning.

        Raises BadSchedule or LaneError if it cannot be played to its end, and then the room is as it was before.
        """
        with self._acting():
            return self._play(str(line))

    def preset(self, name: str) -> Moves:
        """Plays the famous history of this name. Raises BadSchedule for an unknown name."""
        with self._acting():
            if name not in PRESETS:
                raise BadSchedule(f"There is no preset {name!r}. Choose one of {', '.join(PRESETS)}.")
            done = self._play(PRESETS[name].line)
            self.remark = PRESETS[name].look_at
            return done

    def reset(self) -> None:
        """Clears the laboratory and goes back to the setting that the room was opened with. Raises DatabaseAway."""
        with self._acting():
            self._play(Schedule(self._first.setting))

    def on(self, lanes: LaneKind) -> Moves:
        """Plays the same schedule on lanes of this kind, and makes the moves to come there too."""
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

    def close(self) -> None:
        """Ends every thread, process and connection of the room. Raises LaneError if a step does not return."""
        self.closed = True
        self.stepper.close()

    # -- looking back --------------------------------------------------------------------------------------------------

    def show(self, entry: int) -> str:
        """Shows the room as it was at this entry (the last entry means now). Returns the entry as a sentence."""
        with self._looking():
            self._exists(entry)
            self.entry = None if entry == self.length else entry
            return f"{entry}. {self.sentences[entry - 1]}"

    def back(self) -> str:
        """Shows the room one entry earlier."""
        return self.show((self.entry or self.length) - 1)

    def forward(self) -> str:
        """Shows the room one entry later."""
        return self.show((self.entry or self.length) + 1)

    def fork(self, entry: int | None = None) -> Moves:
        """Plays anew what led to the entry (by default the one that is looked at), so that one can go on differently.

        Raises like run().
        """
        with self._acting():
            if entry is not None:
                self._exists(entry)
            at = entry or self.entry or self.length
            line = self.recording.frames[self.recording.at(at)].line if at else self.stepper.line
            done = self._play(line)
            self.remark = f"Forked at entry {at}. From here you can go on differently."
            return done

    def copy(self) -> str:
        """Returns the schedule so far; the button also puts it into the clipboard."""
        with self._looking():
            self.remark = "The schedule line is in the clipboard."
            return self.stepper.line

    def look_at(self, workflow: str | None) -> None:
        """Shows this workflow; None: the one that was last worked on. Raises BadSchedule for an unknown one."""
        with self._looking():
            self._known(workflow)
            self.chosen, self.entry, self.remark = workflow, None, ""
            self.sentence = f"{self.length}. {self.sentences[-1]}" if self.length else NOTHING

    def scale(self, axis: Axis) -> None:
        """Lets the timeline's x axis count entries, or show milliseconds."""
        with self._looking():
            if axis not in AXES:
                raise BadSchedule(f"The x axis can be {' or '.join(AXES)}, not {axis!r}.")
            self.axis = axis

    def hide(self, hidden: bool | None = None) -> None:
        """Hides the next move, what came later and the line, so that a class can be asked; again shows them."""
        with self._looking():
            self.hidden = not self.hidden if hidden is None else hidden

    def answers_again(self) -> bool:
        """Asks PostgreSQL, after it was away; if it answers, that is what there is to say."""
        with suppress(AgentFlowError):
            self.stepper.engine.database.check()
            self.away, self.trouble, self.remark = False, None, ""
            self.sentence = "PostgreSQL answers again. The next move continues from the rows below."
        return not self.away

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
        return sentences(self.recording.story(self.workflow))

    def awaited(self, number: int | None = None) -> str:
        """The event that the workflow of this number waits for, or the first that waits; empty if none does."""
        rows = self.recording.frames[-1].rows
        chosen = self.stepper.workflows[number - 1 : number] if number else rows
        return next((str(rows[one]["waiting_for"]) for one in chosen if rows.get(one, {}).get("waiting_for")), "")

    def scene(self) -> Scene:
        """Everything that there is to show, as data."""
        frames, setting = self.recording.frames, self.stepper.setting
        at = self.recording.at(self.entry) if self.entry else len(frames) - 1
        frame, before, now = frames[at], frames[max(0, at - 1)], frames[-1]
        looking = f"looking back: {self.entry}. {self.sentences[self.entry - 1]}" if self.entry else ""
        shared = setting.names == "shared"  # the history cannot tell its workers apart
        story = self.recording.story(self.workflow)
        if self.hidden and self.entry:
            story = read_story(self.recording.entries(self.workflow)[: self.entry])
        return Scene(
            name=setting.workflow, setting=str(Setting(**{**vars(setting), "workflow": Setting.workflow})),
            workflow=self.workflow, row=frame.rows.get(self.workflow), before=before.rows.get(self.workflow),
            who=frame.writer(self.workflow), lanes=frame.lanes, story=story,
            entry=self.entry, transaction=frame.transaction, line=self.stepper.line, sentence=looking or self.sentence,
            remark="" if looking else self.remark, trouble=self.trouble, away=self.away, axis=self.axis,
            drawn_lanes=(SHARED_NAME,) if shared else tuple(lane.name for lane in now.lanes),
            kind=self.stepper.kind, workflows=tuple(self.stepper.workflows), chosen=self.chosen,
            leased=any(row["lease_owner"] and not row["expired"] for row in now.rows.values()),
            postponed=any(row["postponed"] for row in now.rows.values()), awaited=self.awaited(), hidden=self.hidden,
        )  # fmt: skip

    # -- how a move is made and what is said of it -----------------------------------------------------------------------

    def _note(self, moved: Moved) -> None:
        """Records what the move did, or keeps it until the race is over."""
        if self._racing is None:
            self.recording.note(observe(self.stepper, moved.asked), moved)
        else:
            self._racing.append(moved)

    def _play(self, line: str | Schedule) -> Moves:
        """Plays the line; if it fails on its way, plays again what was there before."""
        old, was, moves = self.recording, self.stepper.line, self.stepper.moves
        schedule = parse(line) if isinstance(line, str) else line
        self.recording = Recording(str(Schedule(meant(schedule.setting, self.stepper.engine.workflows))))
        try:
            done = self.stepper.play(schedule)
        except BaseException as error:
            if self.stepper.moves is moves:  # the laboratory was not emptied yet
                self.recording = old
            elif not isinstance(error, DatabaseAway):
                self.recording = Recording(str(Schedule(parse(was).setting)))
                self.stepper.play(was)
            raise
        self.sentence, self.remark, self.chosen = NOTHING, "", None
        return self._say(done)

    def _say(self, done: Iterable[Moved]) -> Moves:
        """Says what was done: the newest entry, or what happened without one."""
        if not (moves := Moves(done)):
            return moves
        last, frames = moves[-1], self.recording.frames
        before = sum(frames[-2].lengths.values())
        entries = self.recording.entries(self.workflow)
        at = next((n for n in range(len(entries), 0, -1) if entries[n - 1]["workflow_id"] == last.workflow), 0)
        self.remark = ""
        waited_for = last.passed and at and entries[at - 1]["transaction"] == last.passed.transaction and not last.said
        if last.workflow == self.workflow and (self.length > before or (waited_for and last.ended != "idle")):
            self.sentence = f"{at}. {self.sentences[at - 1]}"
        else:
            self.sentence = without_entry(last, frames[-1].rows)
        if last.trouble:
            self.trouble = Trouble(
                last.move.lane, last.trouble, "Its lease stays until it ends. Look at the rows, or Reset."
            )
        return moves

    def _exists(self, entry: int) -> None:
        """Raises BadSchedule if the shown workflow has no such entry."""
        if not 1 <= entry <= self.length:
            there = counted(self.length, "entry", "entries")
            raise BadSchedule(f"There is no entry {entry}; {self.workflow} has {there}.")

    def _known(self, workflow: str | None) -> None:
        """Raises BadSchedule if the laboratory has no such workflow."""
        if workflow is not None and workflow not in (there := self.stepper.workflows):
            raise BadSchedule(f"There is no workflow {workflow!r} here, only {', '.join(there)}.")

    def _number(self, workflow: str | None, wanted: Callable[[Row], bool]) -> int | None:
        """The number of the workflow that a move is about, where it has to be given. Raises BadSchedule if it is unknown."""
        workflows = self.stepper.workflows
        self._known(workflow)
        if len(workflows) == 1:
            return None
        found = (name for name, row in self.recording.frames[-1].rows.items() if wanted(row))
        chosen = workflow or min(found, key=lambda name: name != self.workflow, default=None)
        return workflows.index(chosen) + 1 if chosen in workflows else None

    @contextmanager
    def _acting(self) -> Iterator[None]:
        """Makes a move: it is what is shown next; or its error is, which is raised."""
        with self._looking():
            if self.closed:
                raise LaneError("This control room is closed. Run its cell again to open a new one.")
            try:
                yield
                self.entry, self.away = None, False
            except Exception as error:
                self.away = isinstance(error, DatabaseAway)
                if isinstance(error, LaneError) and not self.closed:
                    with suppress(DatabaseAway):
                        self.recording.catch_up(observe(self.stepper))
                raise

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Looks at something else, or says why not."""
        self.trouble = None
        try:
            yield
        except Exception as error:
            self.trouble = trouble_of(error)
            raise
        finally:
            self.changed()
