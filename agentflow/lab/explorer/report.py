"""The result of an exploration: figures, and findings with their shortest schedules."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ..history.words import brief, counted
from ..pictures.saved import saved
from ..schedule.grammar import Move, Schedule, Setting
from ..verify.invariants import InvariantKind
from .search import Bounds, Graph
from .state_map import draw_map

if TYPE_CHECKING:
    from .map_view import MapView

MOST_SHOWN = 12  # bodies that ran, by name


@dataclass(frozen=True)
class Finding:
    """An invariant that fell: the shortest schedule, the guilty row, and the history up to there.

    `then` are moves that show the consequence, where the schedule itself ends before anybody notices.
    """

    invariant: str
    kind: InvariantKind
    sentence: str
    schedule: Schedule
    guilty: str
    history: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    then: tuple[Move, ...] = ()

    @property
    def line(self) -> str:
        """The schedule as one line, to be played."""
        return str(self.schedule)

    @property
    def moves(self) -> int:
        """How many moves the schedule has; one transaction is one move."""
        return sum(move.times or 1 for move in self.schedule.moves)

    def __str__(self) -> str:
        shows = f"\n  then:     {' '.join(map(str, self.then))}" if self.then else ""
        return f"{self.kind}: {self.sentence}\n  schedule: {self.line}{shows}\n  guilty:   {self.guilty}"


@dataclass(frozen=True)
class Exploration:
    """The result of an exploration. `stopped` names the bound that was hit; if it is empty, the space is exhausted.

    `schedules` counts every different schedule that goes on until no move is possible, over the graph, and `ends` how many of
    them came to which end (transitions.ENDS); None if not known.
    What follows a harm is not explored. One transaction, fault or event is one move.
    `statements` is how many statements PostgreSQL ran; `rows` how many different canonical rows there were.
    `events` arrive with these payloads. `uncertified` is why nothing is certified although no bound was hit, `about` what
    was certified if it was no completed workflow with an effect, each in words. `reduced`: a state and those that an exchange of
    workers makes of it are counted as one; schedules are those of the whole space all the same. `ran` counts the bodies of
    `steps` and of own `tools` that ran for real, by name, and names the tools explored `as_if` they kept their keys; `own`: the
    workflow is yours. `elsewhere`: whether other processes ask for the same, in a sentence.
    """

    setting: Setting
    bounds: Bounds
    workers: int
    states: int
    transitions: int
    schedules: int | None
    depth: int
    seconds: float
    statements: int
    rows: int
    findings: tuple[Finding, ...] = ()
    stopped: str = ""
    graph: Graph | None = field(default=None, repr=False, compare=False)
    ends: Mapping[str, int] | None = None
    events: tuple[tuple[str, Any], ...] = ()
    uncertified: str = ""
    about: str = ""
    reduced: bool = False
    ran: Mapping[str, Any] = field(default_factory=dict)
    own: bool = False
    elsewhere: str = ""

    @property
    def exhausted(self) -> bool:
        """Whether every state within the bounds was reached."""
        return not self.stopped

    @property
    def ok(self) -> bool:
        """Whether the workflows do what is expected undisturbed, the space is exhausted, and no invariant fell."""
        return not self.problem

    @property
    def verdict(self) -> str:
        """harm, authority, holds (nothing fell, all was tried) or unknown (nothing is certified)."""
        kinds = {finding.kind for finding in self.findings}
        if kinds:
            return "harm" if "harm" in kinds else "authority"
        return "holds" if self.ok else "unknown"

    @property
    def problem(self) -> str:
        """Why it is not ok, in a sentence; empty if it is."""
        if self.findings:
            return f"After `{self.findings[0].line}` this does not hold: {self.findings[0].sentence}"
        if self.uncertified:
            return f"Not certified: {self.uncertified}"
        said = f"Not certified: not every schedule was tried; the search was stopped by {self.stopped}."
        return said if self.stopped else ""

    def to_dict(self) -> dict[str, Any]:
        """The figures and findings, as JSON can hold them."""
        return {
            "setting": str(self.setting), "bounds": asdict(self.bounds), "workers": self.workers, "ok": self.ok,
            "verdict": self.verdict, "problem": self.problem, "about": self.about, "exhausted": self.exhausted,
            "stopped": self.stopped, "states": self.states, "reduced": self.reduced, "transitions": self.transitions,
            "schedules": self.schedules, "ends": self.ends, "depth": self.depth,
            "seconds": round(self.seconds, 3), "statements_asked": self.statements, "rows": self.rows,
            "bodies_run": dict(self.ran), "other_processes": self.elsewhere,
            "findings": [
                {
                    "invariant": one.invariant, "kind": one.kind, "sentence": one.sentence, "schedule": one.line,
                    "moves": one.moves, "guilty": one.guilty, "then": " ".join(map(str, one.then)),
                    "history": [{**entry, "at": entry["at"].isoformat()} for entry in one.history],
                }
                for one in self.findings
            ],
        }  # fmt: skip

    def map(self, schedules: Sequence[str | Schedule] = (), room: Any = None) -> MapView:
        """The states by the number of moves, as a picture, with your own schedules and the way to the nearest harm.

        A click on a state gives the shortest schedule to it, and plays it in `room`, an open control room. An exploration with
        `stop_at="never"` shows every harm, else the first. Raises BadSchedule for a schedule of another setting, ValueError if
        there is no graph: the time limit ended the search.
        """
        from .map_view import MapView  # with it come the widgets, which no command needs

        if self.graph is None:
            raise ValueError(
                "The time limit ended this search, so there is no map. Raise time_limit, and explore again."
            )
        less = f", without {', '.join(self.setting.without)}" if self.setting.without else ""
        what = f"Every history of {counted(self.workers, 'worker')} within the bounds{less}"
        if not self.exhausted:
            what = f"The histories up to a depth of {counted(self.depth, 'move')}{less}: stopped by {self.stopped}"
        return MapView(*draw_map(self.graph, what, schedules, self.setting), self.setting, room)

    def lines(self) -> list[str]:
        """The report as sentences that are the same on every machine, the verdict first."""
        who = f"{counted(self.setting.requests, 'workflow')}, {counted(self.workers, 'worker')}"
        what = f"{self.setting.workflow}, {who}; {self.bounds}"
        less = f"; without {', '.join(self.setting.without)}" if self.setting.without else ""
        assumed = ((name, getattr(self.setting, name)) for name in ("model", "names", "retry"))
        less += "".join(f"; {name}={value}" for name, value in assumed if value != getattr(Setting, name))
        moves = counted(self.depth, "move")
        depth = f"searched to a depth of {moves}" if self.stopped else f"{moves} to the farthest state"
        one = " (an exchange of workers makes no new one)" if self.reduced else ""
        figures = f"{self.states:,} states{one}, {self.transitions:,} transitions, {depth}"
        asked = f"PostgreSQL was asked {self.statements:,} statements on {self.rows:,} different sets of rows"
        came = "".join(f"; event {brief(name, 40)!r} brings {json.dumps(payload)}" for name, payload in self.events[:5])
        came += f"; {len(self.events) - 5} more events" if self.events[5:] else ""
        verdict = self.problem or f"Exhausted: every invariant holds. {self.about}".rstrip()
        said = [verdict, f"Bounds: {what}{less}{came}."]
        if not (self.uncertified and self.stopped):
            said += [*self._your_code(), self._counted(), f"{figures}.", f"{asked}.", *map(str, self.findings)]
        return said

    def _your_code(self) -> list[str]:
        """What of the learner's own code ran for real, and which tools could not be put back."""
        tools, steps = self.ran.get("tools"), self.ran.get("steps") if self.own else None
        ran = [f"step {name!r} {counted(times, 'time')}" for name, times in (steps or {}).items()]
        ran += [f"tool {name} {counted(times, 'time')}" for name, times in (tools or {}).items()]
        shown = ", ".join(ran[:MOST_SHOWN]) + f", and {len(ran) - MOST_SHOWN} more" * (len(ran) > MOST_SHOWN)
        said = [f"Your own code ran for real meanwhile: {shown}."] if ran else []
        return (
            said
            + [
                f"{name} was explored as if your tool kept its keys: it offers no snapshot() and restore(state)."
                for name in self.ran.get("as_if", ())
            ]
            + [self.elsewhere] * bool(self.elsewhere)
        )

    def _counted(self) -> str:
        """How many schedules there are, and how many end how."""
        if self.ends is None:
            why = f"the search was stopped by {self.stopped}" if self.stopped else "some go in a circle"
            return f"Schedules not counted: {why}."
        ends = ", ".join(f"{number:,} {end}" for end, number in self.ends.items())
        return f"{self.schedules:,} distinct schedules: {ends.replace('cut_off', 'cut off by the bounds')}."

    def __str__(self) -> str:
        return "\n".join([*self.lines(), f"{self.seconds:.1f} s."])

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{html.escape(line)}</p>" for line in self.lines()[:5])
        rows = ""
        for one in self.findings:
            cells = "".join(f"<td>{html.escape(text)}</td>" for text in (one.sentence, one.line, one.guilty))
            rows += f'<tr><td style="white-space:nowrap">{one.kind}</td>{cells}</tr>'
        head = "<tr><th>kind</th><th>invariant</th><th>shortest schedule</th><th>guilty row</th></tr>"
        return saved(f"{lines}{f'<table>{head}{rows}</table>' if rows else ''}")
