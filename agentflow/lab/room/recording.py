"""What was on stage after each move: the rows, the lanes and the statement, so that one can look back.

What lives here: `Recording`, a list of frames, one read of the database for each move; and which frame shows an entry of
a history. What does not: making moves (`stepper`), what a frame looks like (`room_view`). Read `stage` next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ..history.entries import worker_name
from ..history.faults import fault
from ..schedule.lane_worker import Asked
from ..schedule.moves import Moved
from ..schedule.stepper import Stepper

Row = Mapping[str, Any]
FINISHED = ("completed", "failed", "cancelled")


@dataclass(frozen=True)
class LaneView:
    """One lane as it is shown: where its worker is, what it holds, and what a step would do."""

    name: str
    line: str = "idle"
    held: str = ""
    next: str = "claim"
    alive: bool = True
    paused: bool = False
    left_something: bool = False
    nothing_to_claim: bool = False
    before_tool: bool = False


@dataclass(frozen=True)
class Statement:
    """The last transaction: its text, what was bound, who asked (a lane, or empty) and how many rows it changed."""

    name: str
    text: str
    asked: Asked
    who: str = ""
    rows: int = 1


@dataclass(frozen=True)
class Frame:
    """The laboratory after one move (None: before the first). `line` is the schedule that leads here.

    `rows` are the workflows by id, each with its steps, intents and effects; `lengths` how many entries each had. In a
    race several moves led here at once: `moved` is the last of them, `raced` are all.
    """

    moved: Moved | None = None
    line: str = ""
    rows: Mapping[str, Row] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)
    lanes: tuple[LaneView, ...] = (LaneView("A"), LaneView("B"))
    statement: Statement | None = None
    raced: tuple[Moved, ...] = ()

    def writer(self, workflow: str) -> str:
        """The lane whose commit changed the workflow's rows last; empty for the laboratory itself."""
        wrote = [
            one for one in self.raced if one.workflow == workflow and one.passed and one.passed.outcome == "committed"
        ]
        moved = wrote[-1] if wrote else self.moved
        return moved.move.lane if moved and not fault(moved.move.verb).worker else ""


class Recording:
    """The frames of one laboratory from its empty beginning, and the entries of its workflows."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper = stepper
        self.frames = [Frame(line=stepper.line)]
        self._entries: dict[str, list[Row]] = {}
        self._last: dict[str, Moved] = {}
        self._held: dict[str, int] = {}
        self._waiting: list[Moved] | None = None

    def note(self, moved: Moved) -> None:
        """A frame shows what the move did. Raises DatabaseAway."""
        if self._waiting is not None:
            self._waiting.append(moved)
            return
        rows = self._read()
        if moved.move.lane and not self._is_creation(moved):
            self._remember(moved)
        lengths = {name: len(entries) for name, entries in self._entries.items()}
        statement = self._statement(moved) or self.frames[-1].statement
        lanes = tuple(self._lane(name, rows) for name in self._stepper.lanes)
        self.frames.append(Frame(moved, self._stepper.line, rows, lengths, lanes, statement))

    def catch_up(self) -> None:
        """A last frame shows what is written now, although no move was told: one that did not end wrote it."""
        rows, last = self._read(), self.frames[-1]
        lengths = {name: len(entries) for name, entries in self._entries.items()}
        lanes = tuple(self._lane(name, rows) for name in self._stepper.lanes)
        if (rows, lanes) != (last.rows, last.lanes):
            self.frames.append(replace(last, moved=None, rows=rows, lengths=lengths, lanes=lanes))

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is noted meanwhile happened at once: one frame shows it."""
        self._waiting = []
        try:
            yield
        finally:
            noted, self._waiting = self._waiting, None
            for moved in noted[:-1]:
                self._remember(moved)
            if noted:
                self.note(noted[-1])
                self.frames[-1] = replace(self.frames[-1], raced=tuple(noted))

    # -- what can be asked ---------------------------------------------------------------------------------------------

    def entries(self, workflow: str) -> Sequence[Row]:
        """The history of a workflow, as far as it was recorded."""
        return self._entries.get(workflow, [])

    def at(self, workflow: str, entry: int) -> int:
        """The number of the first frame in which the workflow has this entry; the last frame if none has."""
        found = (n for n, frame in enumerate(self.frames) if frame.lengths.get(workflow, 0) >= entry)
        return next(found, len(self.frames) - 1)

    @property
    def last_workflow(self) -> str | None:
        """The workflow of the last move that was about one."""
        about = (frame.moved.workflow for frame in reversed(self.frames) if frame.moved and frame.moved.workflow)
        return next(about, None)

    # -- how a frame is made -------------------------------------------------------------------------------------------

    def _read(self) -> dict[str, Row]:
        found = self._stepper.engine.database.read("frame", {"p_workflows": self._stepper.workflows})
        rows: dict[str, Row] = {}
        for row in sorted(found, key=lambda row: self._stepper.workflows.index(row["id"])):
            history = row.pop("history")
            self._entries[row["id"]] = [{**entry, "n": n} for n, entry in enumerate(history, 1)]
            rows[row["id"]] = row
        return rows

    def _is_creation(self, moved: Moved) -> bool:
        return bool(moved.passed and moved.passed.transaction == "create")

    def _remember(self, moved: Moved) -> None:
        lane = moved.move.lane
        if moved.move.verb == "start":
            self._held.pop(lane, None)
        if moved.standing:
            if moved.standing.token is None:
                self._held.pop(lane, None)
            else:
                self._held[lane] = moved.standing.token
        self._last[lane] = moved

    def _statement(self, moved: Moved) -> Statement | None:
        if moved.asked is None:
            return None
        passed, lane = moved.passed, "" if self._is_creation(moved) else moved.move.lane
        none = passed and (passed.outcome != "committed" or passed.workflow is None)
        return Statement(moved.asked.name, self._stepper.sql(moved.asked.name), moved.asked, lane, 0 if none else 1)

    def _lane(self, name: str, rows: Mapping[str, Row]) -> LaneView:
        stepper, at = self._stepper, self._stepper.standing(name)
        alive, paused = stepper.is_alive(name), stepper.is_paused(name)
        lost = not alive or paused or any(row["postponed"] for row in rows.values())
        before = at is None or (at.transaction == "claim" and at.edge == "before")
        over = bool(rows) and all(row["status"] in FINISHED for row in rows.values())
        return LaneView(
            name,
            self._line(name, rows),
            self._token(name, rows),
            stepper.next_transaction(name),
            alive,
            paused,
            lost and bool(stepper.left_by(name)),
            alive and not paused and before and over,
            alive and not paused and at is not None and (at.transaction, at.edge) == ("tool", "before"),
        )

    def _line(self, name: str, rows: Mapping[str, Row]) -> str:
        """Where the worker is, in words."""
        last, at = self._last.get(name), self._stepper.standing(name)
        if not self._stepper.is_alive(name):
            return last.said.removeprefix(f"{name} is ") if last else "gone"
        if last is None or at is None:
            return "idle"
        if at.transaction == "claim" and at.edge == "before":
            return _idle(last, rows)
        place = f"stands {at.place}"
        if self._stepper.is_paused(name):
            return f"paused; {place}"
        row = rows.get(at.workflow or "")
        if row and row["steps"] and last.passed and last.passed.transaction == "claim":
            return f"replays {', '.join(step['step_id'] for step in row['steps'])}; {place}"
        return place

    def _token(self, name: str, rows: Mapping[str, Row]) -> str:
        token, last = self._held.get(name), self._last.get(name)
        if token is None or last is None:
            return ""
        row = rows.get(last.workflow or "")
        stale = ", stale" if row and row["fence_token"] > token else ""
        return f"{'' if self._stepper.is_alive(name) else 'held '}token {token}{stale}"


def _idle(last: Moved, rows: Mapping[str, Row]) -> str:
    """What a worker that works on nothing did last."""
    about = last.workflow or ""
    if last.ended == "waiting":
        event = (rows.get(about) or {}).get("waiting_for")
        return f"idle; {about} waits for event {event}" if event else f"idle; parked {about}"
    row = rows.get(about)
    taken = row and (row["status"] != "ready" or (row["lease_owner"] and not row["expired"]))
    said = {
        "completed": f"idle; {about} is completed",
        "failed": f"idle; {about} is failed",
        "postponed": f"idle; {about} is put off",
        "lost": f"idle; gave {about} up, {'another has it' if taken else 'its lease has ended'}",
        "idle": "idle; found nothing to claim",
        "released": f"idle; {about} is released",
    }
    return said.get(last.ended or "", "idle")


def holder(row: Row | None) -> str:
    """The lane whose worker holds the workflow's lease, expired or not; empty if nobody does."""
    return worker_name(row["lease_owner"]) if row and row["lease_owner"] else ""
