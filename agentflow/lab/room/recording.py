"""What a control room showed after each move, so that one can look back: a list of frames, made from what was observed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...model import Boundary
from ..history.entries import Row, merged
from ..history.faults import fault
from ..history.story import Story
from ..history.story_reader import read_story
from ..schedule.moves import Moved
from .observed import Observed
from .scene import LaneView, LastTransaction


@dataclass(frozen=True)
class Frame:
    """The laboratory after one move, or after the moves of a race (none: before the first). `line` leads here.

    `rows` are the workflows by id, each with its steps, intents and effects; `lengths` how many entries each had.
    """

    moves: tuple[Moved, ...] = ()
    line: str = ""
    rows: Mapping[str, Row] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)
    lanes: tuple[LaneView, ...] = (LaneView("A"), LaneView("B"))
    transaction: LastTransaction | None = None

    def writer(self, workflow: str) -> str:
        """The lane whose commit changed the workflow's rows last; empty for the laboratory itself."""
        mine = (one for one in self.moves if one.workflow == workflow)
        wrote = (one for one in mine if one.passed and one.passed.outcome == "committed" and one.ended != "idle")
        last = next(reversed((*self.moves, *wrote)), None)
        return last.move.lane if last and not fault(last.move.verb).worker else ""


class Recording:
    """The frames of one laboratory from its empty beginning, and the histories of its workflows."""

    def __init__(self, line: str) -> None:
        self.frames = [Frame(line=line)]
        self._histories: Mapping[str, Sequence[Row]] = {}
        self._together: list[Row] = []  # those of several workflows in the order in which they came
        self._stories: dict[str, Story] = {}
        self._last: dict[str, Moved] = {}
        self._held: dict[str, int] = {}

    def note(self, observed: Observed, *moves: Moved) -> None:
        """Adds a frame: what was observed after these moves, which happened at the same time."""
        for moved in moves:
            if moved.move.lane and not _is_creation(moved):
                self._remember(moved)
        transaction = _transaction(moves[-1], observed.sql) or self.frames[-1].transaction
        self.frames.append(self._frame(Frame(moves, observed.line, transaction=transaction), observed))

    def catch_up(self, observed: Observed) -> None:
        """Adds a frame if rows or lanes have changed without a move: a move that did not end can have written."""
        frame = self._frame(replace(self.frames[-1], moves=()), observed)
        if (frame.rows, frame.lanes) != (self.frames[-1].rows, self.frames[-1].lanes):
            self.frames.append(frame)

    # -- what can be asked ---------------------------------------------------------------------------------------------

    def story(self, workflow: str) -> Story:
        """The history of a workflow as far as it was recorded, read once; of several workflows that of all."""
        if workflow not in self._stories:
            self._stories[workflow] = read_story(self.entries(workflow))
        return self._stories[workflow]

    def entries(self, workflow: str) -> Sequence[Row]:
        """The entries of a workflow as far as they were recorded; of several workflows those of all, numbered together."""
        return self._together if len(self._histories) > 1 else self._histories.get(workflow, [])

    def at(self, entry: int) -> int:
        """The number of the first frame in which there is this entry; the last frame if no frame has it."""
        found = (n for n, frame in enumerate(self.frames) if sum(frame.lengths.values()) >= entry)
        return next(found, len(self.frames) - 1)

    @property
    def last_workflow(self) -> str | None:
        """The workflow of the last move that was about one."""
        about = (frame.moves[-1].workflow for frame in reversed(self.frames) if frame.moves)
        return next(filter(None, about), None)

    # -- how a frame is made -------------------------------------------------------------------------------------------

    def _frame(self, frame: Frame, observed: Observed) -> Frame:
        """The frame with the rows and lanes that were observed."""
        new = [row for name, rows in observed.histories.items() for row in rows[len(self._histories.get(name, ())) :]]
        self._together += merged(new)
        self._histories, self._stories = {**self._histories, **observed.histories}, {}
        lengths, rows = {name: len(entries) for name, entries in self._histories.items()}, observed.rows
        lanes = tuple(
            replace(lane, line=self._line(lane, observed.standing[lane.name], rows), held=self._token(lane, rows))
            for lane in observed.lanes
        )
        return replace(frame, rows=rows, lengths=lengths, lanes=lanes)

    def _remember(self, moved: Moved) -> None:
        lane = moved.move.lane
        if moved.standing and moved.standing.token is not None:
            self._held[lane] = moved.standing.token
        elif moved.standing or moved.move.verb == "start":
            self._held.pop(lane, None)
        self._last[lane] = moved

    def _line(self, lane: LaneView, at: Boundary | None, rows: Mapping[str, Row]) -> str:
        """Where the worker is, in words."""
        last = self._last.get(lane.name)
        if not lane.alive:
            return last.said.removeprefix(f"{lane.name} ").removeprefix("is ") if last else "gone"
        if last is None or at is None:
            return "idle"
        if at.transaction == "claim" and at.edge == "before":
            return _idle(last, rows)
        place = f"stands {at.place}"
        if lane.paused:
            return f"paused; {place}"
        row = rows.get(at.workflow or "")
        if row and row["steps"] and last.passed and last.passed.transaction == "claim":
            return f"replays {', '.join(step['step_id'] for step in row['steps'])}; {place}"
        return place

    def _token(self, lane: LaneView, rows: Mapping[str, Row]) -> str:
        """The fencing token that the lane's worker holds or held, in words."""
        token, last = self._held.get(lane.name), self._last.get(lane.name)
        if token is None or last is None:
            return ""
        row = rows.get(last.workflow or "")
        stale = ", stale" if row and row["fence_token"] > token else ""
        return f"{'' if lane.alive else 'held '}token {token}{stale}"


def _is_creation(moved: Moved) -> bool:
    return bool(moved.passed and moved.passed.transaction == "create")


def _transaction(moved: Moved, sql: str) -> LastTransaction | None:
    """The transaction that the move asked for; None if it asked for none."""
    if moved.asked is None:
        return None
    passed, lane = moved.passed, "" if _is_creation(moved) else moved.move.lane
    nothing = passed and (passed.outcome != "committed" or passed.workflow is None)
    return LastTransaction(moved.asked.name, sql, lane, 0 if nothing else 1)


def _idle(last: Moved, rows: Mapping[str, Row]) -> str:
    """What a worker that works on nothing did last."""
    about = last.workflow or ""
    row = rows.get(about)
    if last.ended == "waiting":
        event = (row or {}).get("waiting_for")
        return f"idle; {about} waits for event {event}" if event else f"idle; parked {about}"
    taken = row and (row["status"] != "ready" or (row["lease_owner"] and not row["expired"]))
    lines = {
        "completed": f"idle; {about} is completed",
        "failed": f"idle; {about} is failed",
        "postponed": f"idle; {about} is postponed",
        "lost": f"idle; gave {about} up, {'another has it' if taken else 'its lease has ended'}",
        "idle": "idle; found nothing to claim",
        "released": f"idle; {about} is released",
    }
    return lines.get(last.ended or "", "idle")
