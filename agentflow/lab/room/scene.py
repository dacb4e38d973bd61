"""What a control room shows, as plain data: lanes, rows, history, the last transaction, and which buttons can be pressed.

It needs the standard library alone, and so does everything that draws it (`view`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ..history.entries import Row
from ..history.sentences import sentences
from ..history.story import Story
from ..history.story_reader import read_story
from ..pictures.timeline import NOTHING
from .row_tables import Grid, grids

Axis = Literal["entry", "milliseconds"]
AXES: tuple[Axis, ...] = ("entry", "milliseconds")
NO_STORY = read_story(())


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
    before_commit: bool = False


@dataclass(frozen=True)
class LastTransaction:
    """The last transaction: its SQL with the values filled in, the lane that asked for it (empty: none), rows changed."""

    name: str
    sql: str
    who: str = ""
    rows: int = 1


@dataclass(frozen=True)
class Trouble:
    """What went wrong: the kind of error, one sentence, what to do next, and the traceback of an unexpected error."""

    kind: str
    sentence: str
    next_step: str = ""
    traceback: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (f"{self.kind}:", self.sentence, self.next_step) if part)


@dataclass(frozen=True)
class Button:
    """A button as it is shown, always in its place: its text, its tooltip, and whether it can be pressed."""

    label: str
    tooltip: str
    enabled: bool = True


TOOLTIPS: Mapping[str, str] = {
    "Crash": "Kill the worker now",
    "Pause": "Stop the worker until it is resumed",
    "Recover": "Let another worker finish what this one left, and print the moves",
    "Reset": "Clear this history and go back to the setting that the room was opened with",
    "Expire lease": "End the lease in the database now",
    "End back-off": "End the wait before the next try",
    "Deliver event": "Deliver the event, as somebody outside would",
    "Lose reply": "Let the tool act, and lose its reply",
    "Lose answer": "Let PostgreSQL commit the next transaction, and lose its answer",
    "Race": "Step all workers at the same moment",
    "Back": "Show the room one entry earlier",
    "Forward": "Show the room one entry later",
    "Fork here": "Play up to this entry, then go on differently",
    "Hide next": "Hide the next move, what came later and the line, so that a class can be asked",
    "Copy": "Copy the line to the clipboard",
    "Run": "Play this line from its beginning",
}


@dataclass(frozen=True)
class Scene:
    """Everything that is on screen. `row` is the shown workflow, `before` the same workflow one move earlier.

    `entry` is the number of the entry that is looked at (None: now), `who` the lane whose commit changed `row` last,
    `chosen` the workflow that somebody chose to see (None: the one last worked on). `leased`, `postponed` and `awaited`
    (an event's name) say what could happen next to any workflow. `busy` is a lane whose move takes its time, `ignored`
    how many clicks came too fast. `hidden` keeps to itself what comes next; `story` then ends at the entry that is shown.
    """

    name: str
    setting: str
    workflow: str
    row: Row | None = None
    before: Row | None = None
    who: str = ""
    lanes: Sequence[LaneView] = ()
    story: Story = NO_STORY
    entry: int | None = None
    transaction: LastTransaction | None = None
    line: str = ""
    sentence: str = NOTHING
    remark: str = ""
    trouble: Trouble | None = None
    away: bool = False
    axis: Axis = "entry"
    drawn_lanes: Sequence[str] = ()
    kind: str = "thread"
    workflows: Sequence[str] = ()
    chosen: str | None = None
    leased: bool = False
    postponed: bool = False
    awaited: str = ""
    busy: str = ""
    ignored: int = 0
    hidden: bool = False

    @cached_property
    def history(self) -> Sequence[str]:
        """The entries in words."""
        return sentences(self.story)

    @property
    def length(self) -> int:
        """How many entries there are."""
        return len(self.history)

    @property
    def at(self) -> int:
        """The number of the entry that is shown; 0 if there is none."""
        return self.entry or self.length

    @cached_property
    def grids(self) -> Mapping[str, Grid]:
        """The four tables with what changed."""
        return grids(self.row, self.before)

    @property
    def buttons(self) -> Mapping[str, Button]:
        """Every button by its name: `Step A`, `Crash A`, `Reset`, ..."""
        looking = self.entry is not None
        live = not looking and not self.away
        loser, unheard = self.first("before_tool"), self.first("before_commit")
        racers = [lane for lane in self.lanes if lane.alive and not lane.paused and not lane.nothing_to_claim]
        enabled = {
            "Reset": True, "Copy": True, "Run": True, "Back": self.at > 1, "Forward": looking, "Fork here": looking,
            "Expire lease": live and self.leased, "End back-off": live and self.postponed,
            "Deliver event": live and bool(self.awaited), "Lose reply": live and bool(loser),
            "Lose answer": live and bool(unheard), "Race": live and len(racers) > 1, "Hide next": True,
        }  # fmt: skip
        labels = {
            "Deliver event": f"Deliver {self.awaited or 'event'}", "Lose reply": f"Lose reply of {loser or 'A'}",
            "Lose answer": f"Lose answer to {unheard or 'A'}", "Hide next": "Show next" if self.hidden else "Hide next",
        }  # fmt: skip
        free = {name: Button(labels.get(name, name), TOOLTIPS[name], can) for name, can in enabled.items()}
        return free | {name: button for lane in self.lanes for name, button in self._of_lane(lane, live).items()}

    def first(self, place: str) -> str:
        """A lane whose worker stands in such a place, the one that moved last before others; empty if none does."""
        ordered = sorted(self.lanes, key=lambda lane: lane.name != self.who)
        return next((lane.name for lane in ordered if getattr(lane, place)), "")

    def _of_lane(self, lane: LaneView, live: bool) -> Mapping[str, Button]:
        can = live and self.busy != lane.name
        coming = "nothing to claim" if lane.nothing_to_claim else lane.next
        label = ("Step" if self.hidden else f"Step: {coming}") if lane.alive else "New process"
        tooltip = "Start a new process in this lane" if not lane.alive else "" if self.hidden else f"Commit {lane.next}"
        return {
            f"Step {lane.name}": Button(label, tooltip, can and not lane.paused and not lane.nothing_to_claim),
            f"Crash {lane.name}": Button("Crash", TOOLTIPS["Crash"], can and lane.alive),
            f"Pause {lane.name}": Button("Resume" if lane.paused else "Pause", TOOLTIPS["Pause"], can and lane.alive),
            f"Recover {lane.name}": Button("Recover", TOOLTIPS["Recover"], can and lane.left_something),
        }
