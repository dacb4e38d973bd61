"""What a history tells: who held which lease, which worker was lost, what the world did, what went wrong.

This is the frozen model that `story_reader.read_story()` fills. It has a column for each entry and for each replay (which
has no entry), and counts positions in columns.

The past is never repainted: what is known of an entry is known when it is read. What shows itself later, such as whether an
answer came, belongs to the later entry that shows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from ...statements import BY_PERSON
from .entries import Entry, worker_name
from .words import EFFECT_LOST, IN_THE_GAP, REFUSED, doubled

A_DAY = 86_400.0  # seconds: a lease that lasts so long ends by a move only
Position = float
"""In columns: 3 is the middle of the fourth column, 3.5 its right edge."""


@dataclass(frozen=True)
class ShownAnswer:
    """What an entry shows of an earlier call of the tool, in column `call`.

    `how` is what became of the answer: received, lost, died (with its worker), or empty if only the caller, `who`, is known now
    (`asked`: it was not known before).
    """

    call: int
    who: str
    how: str = ""
    asked: bool = False


@dataclass(frozen=True)
class Mark:
    """One column: an entry, a replay (`9a`), the end of a run that lost its lease, or several alike.

    `at` is in seconds since the first entry, `row` the place of its workflow among several, of which all but the first
    are named. A call of the tool has `answer`
    (effect, repeated or refused), `effect` (its number), `nth` (which effect of its own action that is), `attempts` and `key`
    (same, no, new, forgotten). `why` is what a refused write met first, or what a write without authority should have met, whose
    `lacks` names the guard that did not compare it. `closes` says that an acknowledgment ends a gap; `answers` is what the entry
    shows of earlier calls.
    """

    label: str
    kind: str
    event: str = ""
    who: str | None = None
    subject: str = ""
    token: int | None = None
    row_token: int = 0
    at: float | None = None
    transaction: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    answer: str = ""
    effect: int = 0
    attempts: int = 0
    key: str = ""
    nth: int = 0
    in_gap: bool = False
    closes: bool = False
    lacks: str = ""
    answers: tuple[ShownAnswer, ...] = ()
    row: int = 0
    workflow: str = ""
    folded: tuple[Mark, ...] = ()
    n: int = 0

    @property
    def guards(self) -> tuple[str, ...]:
        """The guards that refused a write, by name; none in an entry of an older AgentFlow."""
        return tuple(self.detail.get("guards") or ())

    @property
    def doubled(self) -> bool:
        """Whether its action had left an effect already."""
        return self.nth > 1

    @property
    def entries(self) -> set[int]:
        """The numbers of the entries in this column; a replay has none of its own."""
        return {self.n} if self.event else {one.n for one in self.folded if one.event}


@dataclass(frozen=True)
class Band:
    """A lease; `how` is held, expired or released. Until `hollow` its worker lives without authority."""

    who: str
    token: int
    start: Position
    end: Position | None = None
    how: str = "held"
    hollow: Position | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class ProcessRun:
    """A process runs; `how` is runs, killed, paused or stopped."""

    who: str
    start: Position
    end: Position | None = None
    how: str = "runs"
    resumed: bool = False


@dataclass(frozen=True)
class Span:
    """From one column to another: a wait, a gap, a doubled or a lost effect, a sleep. `what` is its name."""

    start: Position
    end: Position
    closed: bool = True
    what: str = ""


@dataclass(frozen=True)
class WorkflowRow:
    """A workflow's row: where its fencing token rose, and to what."""

    name: str
    tokens: tuple[tuple[Position, int], ...] = ()


@dataclass(frozen=True)
class Box:
    """The one thing to see; `kind` is unauthorised, duplicate, lost, refused or gap."""

    kind: str
    span: Span
    title: str
    text: str


@dataclass(frozen=True)
class Story:
    """Everything that a picture or a text of one history needs."""

    marks: tuple[Mark, ...] = ()
    workers: tuple[str, ...] = ()
    bands: tuple[Band, ...] = ()
    runs: tuple[ProcessRun, ...] = ()
    sleeps: tuple[Span, ...] = ()
    waits: tuple[Span, ...] = ()
    gaps: tuple[Span, ...] = ()
    doubled: tuple[Span, ...] = ()
    lost: tuple[Span, ...] = ()
    rows: tuple[WorkflowRow, ...] = ()
    box: Box | None = None
    entries: tuple[Entry, ...] = field(default=(), repr=False, compare=False)

    @property
    def now(self) -> Position:
        """Where the last column ends."""
        return len(self.marks) - 0.5

    @property
    def effects(self) -> tuple[int, ...]:
        """The columns in which the world acted."""
        return tuple(n for n, mark in enumerate(self.marks) if mark.answer == "effect")

    @property
    def attempts(self) -> int:
        """How often the world heard a call."""
        return sum(mark.kind == "tool" and mark.answer != "refused" for mark in self.marks)

    @property
    def person(self) -> bool:
        """Whether somebody outside took part."""
        return any(mark.kind in BY_PERSON for mark in self.marks)


def refusal(refused: Entry | Mark) -> str:
    """What a refused write met first, as a picture says it: `1 ≠ 2`, `A ≠ B`, `lease ended`, `completed`."""
    row, status = refused.detail, str(refused.detail.get("row_status"))
    ended = "" if status == "ready" else status
    # An older AgentFlow wrote what the row held, and no guard.
    first = (
        *row.get("guards", ()),
        "token" if refused.token not in (None, row.get("row_token")) else ended or "refused",
    )[0]
    met = {
        "token": f"{refused.token} ≠ {row.get('row_token')}" if refused.token else "another failure",
        "owner": ended or f"{refused.who} ≠ {worker_name(row.get('row_owner'))}",
        "lease": "lease ended" if row.get("row_owner") else "no lease",
        "checkpoints": f"{row.get('checkpoints')} ≠ {row.get('row_checkpoints')}",
        "status": status,
    }
    return met.get(str(first), str(first))


def named(why: str, guards: Sequence[str]) -> str:
    """What a refused write met, with the names of its guards where the words do not say them: `1 ≠ 2: token, owner`."""
    return why if list(guards) in ([], ["lease"], ["status"]) else f"{why}: {', '.join(guards)}"


def box_of(told: Story) -> Box | None:
    """The one thing to see: a write without authority, else a duplicate, a lost effect, a refused write, the gap."""
    if (found := next((n for n, mark in enumerate(told.marks) if mark.lacks), None)) is not None:
        mark = told.marks[found]
        return Box(
            "unauthorised", Span(found, found), f"{mark.why}, and written", f"no guard compares the {mark.lacks}"
        )
    if told.doubled:
        last = told.marks[int(told.doubled[0].end)]
        return Box("duplicate", told.doubled[0], "duplicate effect", doubled(last.nth))
    if told.lost:
        return Box("lost", told.lost[0], *EFFECT_LOST)
    for column, mark in enumerate(told.marks):
        if mark.kind == "refused":
            return Box("refused", Span(column, column), named(mark.why, mark.guards), REFUSED)
    return Box("gap", told.gaps[0], *IN_THE_GAP) if told.gaps else None


FOLDABLE, ALWAYS_FOLDED, LEAST = frozenset({"renew", "checkpoint", "replay"}), frozenset({"replay"}), 4


def folded(told: Story, kinds: frozenset[str] = FOLDABLE) -> Story:
    """The same story with runs of four or more like marks of one worker in one column each."""

    if sum(mark.kind in kinds for mark in told.marks) < LEAST:
        return told

    def alike(column: int) -> object:
        mark = told.marks[column]
        return (mark.kind, mark.who) if mark.kind in kinds else column

    groups = [list(group) for _, group in groupby(range(len(told.marks)), alike)]
    parts = [part for group in groups for part in ([group] if len(group) >= LEAST else [[one] for one in group])]
    if len(parts) == len(told.marks):
        return told
    place: dict[int, int] = {column: new for new, part in enumerate(parts) for column in part}
    return _moved(told, place, tuple(_together([told.marks[column] for column in part]) for part in parts))


def _together(marks: Sequence[Mark]) -> Mark:
    first, last = marks[0], marks[-1]
    if len(marks) == 1:
        return first
    return replace(first, label=f"{first.label}–{last.label}", event="", at=last.at, n=last.n, folded=tuple(marks))


def _moved(told: Story, place: Mapping[int, int], marks: tuple[Mark, ...]) -> Story:
    def to(position: Position) -> Position:
        column = round(position + 0.25)
        return place.get(column, len(marks)) + (position - column)

    def maybe(position: Position | None) -> Position | None:
        return None if position is None else to(position)

    def spans(old: Sequence[Span]) -> tuple[Span, ...]:
        return tuple(replace(span, start=to(span.start), end=to(span.end)) for span in old)

    return replace(
        told,
        marks=tuple(
            replace(mark, answers=tuple(replace(one, call=place[one.call]) for one in mark.answers)) if mark.answers else mark
            for mark in marks
        ),
        bands=tuple(
            replace(band, start=to(band.start), end=maybe(band.end), hollow=maybe(band.hollow)) for band in told.bands
        ),
        runs=tuple(replace(run, start=to(run.start), end=maybe(run.end)) for run in told.runs),
        sleeps=spans(told.sleeps), waits=spans(told.waits), gaps=spans(told.gaps), doubled=spans(told.doubled),
        lost=spans(told.lost),
        rows=tuple(replace(row, tokens=tuple((to(start), token) for start, token in row.tokens)) for row in told.rows),
        box=told.box and replace(told.box, span=spans([told.box.span])[0]),
    )  # fmt: skip
