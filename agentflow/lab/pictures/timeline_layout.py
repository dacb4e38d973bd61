"""The paper that a timeline is drawn on: sizes, where a column and a lane lie, and what fits beside what.

Layout goes from left to right and never back. Every label asks whether its line is still free at its place (`taken` holds,
for each line, how far to the right it is written on) and is shortened, moved to the next line or left out if it is not. So
marks are drawn in the order of their columns, and nothing has to be measured twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ..history.story import Position, Story
from .svg import CODE_FONT, HUES, INK, PAPER, PICTURE_CSS, escaped, num

GUTTER, PITCH, MARGIN = 96, 65, 2
CLOSE = 26  # columns of a scale of milliseconds come no closer: their numbers fit, and their names on three lines
ROOM = 62  # what a label may be wide in a column

TIMELINE_CSS = f"{PICTURE_CSS}.af .k{{font-family:{CODE_FONT}}}"


@dataclass(frozen=True)
class Layout:
    """Sizes in px. `lanes` is where the first lane begins; `row` and what follows it are measured downwards.

    Lane, band and bar are relative to a lane's top; `row` to the bottom of the last lane; the rest to the row's line at
    token 0, and from `labels` on to the line of the tool ledger. Rows of several workflows are `between` apart.
    """

    numbers: int
    seconds: int
    faults: int
    rule: int
    lanes: int
    lane: int
    band: tuple[int, int]
    bar: int
    row: int
    names: tuple[int, ...]
    zone: int
    ledger: int
    labels: tuple[int, ...]
    bracket: int
    leg: int
    box: int
    end: int
    width: int
    between: int


FULL = Layout(22, 37, 54, 62, 66, 72, (18, 62), 46, 50, (24, 37, 50), 42, 94, (25, 38, 51), 66, 10, 46, 72, 500, 70)
COMPACT = Layout(14, 28, 43, 49, 51, 78, (21, 70), 53, 40, (19, 31, 44), 34, 66, (22, 35), 50, 9, 25, 82, 918, 60)
PERSON, FAULT = 44, 13


def flat(said: str) -> str:
    """The text on one line."""
    return said.replace("\n", " ").replace("\r", " ")


@lru_cache(maxsize=2048)
def one_line(said: str) -> str:
    """The text, escaped, on one line."""
    return escaped(flat(said))


@lru_cache(maxsize=2048)
def width(said: str, size: float = 11, bold: bool = False) -> float:
    """About how wide a text is in a wide font (DejaVu Sans), in px."""
    units = 0.0
    for letter in said:
        if letter in "iljI.,:;'|!":
            units += 0.33
        elif letter in ' ftr()-/"·*':
            units += 0.41
        elif letter in "mwMW@%":
            units += 0.94
        elif letter < "\u0300":
            units += 0.70 if letter.isupper() else 0.62
        else:
            units += 1.3 if letter >= "\u1100" else 0.72
    return units * size * (1.1 if bold else 1.0)


@lru_cache(maxsize=2048)
def shortened(said: str, room: float = ROOM, size: float = 11, bold: bool = False) -> str:
    """The text, cut with an ellipsis where it would be wider than `room`."""
    if width(said, size, bold) <= room:
        return said
    kept = said[:60]
    while kept and width(kept + "…", size, bold) > room:
        kept = kept[:-1]
    return kept.rstrip(" -_:./") + "…"


@lru_cache(maxsize=2048)
def wrapped(said: str, room: float = ROOM, lines: int = 2) -> tuple[str, ...]:
    """The text on at most `lines` lines, broken behind its own signs where it can be: `resolve-`, `account`."""
    parts = re.findall(r"[^-_:./\s]*[-_:./\s]+|[^-_:./\s]+", said[:200]) or [""]
    found = [parts[0]]
    for part in parts[1:]:
        if width((found[-1] + part).rstrip()) <= room:
            found[-1] += part
        else:
            found.append(part)
    if len(found) > lines:
        found = [*found[: lines - 1], "".join(found[lines - 1 :])]
    return tuple(shortened(one.strip(), room) for one in found)


@dataclass
class Strip:
    """One strip: columns from `first` up to `last` (not included), on lanes for `workers`.

    `xs` holds the middle of every column, `pitch` is how wide one is; `right` is where now is, `edge` where the
    scaffolding ends, `strips` the columns of all strips, `cuts` where an idle stretch was shortened. `out` is what has
    been drawn; `taken` keeps, for each line of labels, how far to the right it is written on; `leases` where a lane's top is
    written on. `column` is the one that is drawn now. `whole` is the story that gives the places, of which `told` is the
    beginning; `lines` are those of the text twin.
    """

    told: Story
    layout: Layout
    workers: Sequence[str]
    first: int
    last: int
    xs: Mapping[int, float]
    right: float
    edge: float
    seconds: bool = True
    milliseconds: bool = False
    cuts: Sequence[float] = ()
    strips: Sequence[tuple[int, int]] = ((0, 0),)
    pitch: float = PITCH
    out: list[str] = field(default_factory=list)
    taken: dict[str, float] = field(default_factory=dict)
    leases: list[tuple[float, float, str]] = field(default_factory=list)
    column: int = 0
    whole: Story | None = None
    room_for_box: int = 0
    lines: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        layout, told = self.layout, self.whole or self.told
        self.lift = 0 if self.seconds else layout.seconds - layout.numbers
        if self.milliseconds:
            self.lift -= FAULT  # the names of faults have two lines
        self.rule = layout.rule - self.lift
        self.faults = layout.faults - self.lift
        self.lanes = layout.lanes - self.lift
        self.floor = self.lanes + layout.lane * len(self.workers)
        self.boxed = told.marks[int(told.box.span.start)].row if told.box and self.room_for_box else 0
        self.rows = [self._row(number) for number in range(max(1, len(told.rows)))]
        self.row = self.rows[0]
        self.zone = self.rows[-1] + layout.zone
        self.ledger = self._row(len(self.rows)) - layout.between + layout.ledger
        self.drop = 14 if told.doubled else 0
        self.person = self.ledger + self.drop + layout.labels[-1] + 25
        self.below = self.drop + (PERSON if told.person else 0)
        self.bracket = self.ledger + layout.bracket + self.below
        top = max((token for row in told.rows for _, token in row.tokens), default=0)
        self.rise = min(10.0, (30 if len(self.rows) == 1 else 15) / max(top, 1))

    def _row(self, number: int) -> int:
        """Where the line of this row lies at token 0, below the box if that needs room above it."""
        return self.floor + self.layout.row + self.layout.between * number + self.room_for_box * (number > self.boxed)

    # -- where things are ----------------------------------------------------------------------------------------------

    def x(self, where: Position) -> float:
        """A position on this strip; the strip's edge for what lies before or behind it."""
        if where <= self.first - 0.5:
            return GUTTER
        if where >= self.last - 0.5:
            return self.right
        column = int(where + 0.5)
        return self.xs[column] + (where - column) * (CLOSE if self.milliseconds else self.pitch)

    @property
    def room(self) -> float:
        """How wide a label may be in a column."""
        return min(ROOM, self.pitch - 3)

    def holds(self, where: Position) -> bool:
        """Whether a position lies on this strip."""
        return self.first - 0.5 <= where < self.last - 0.5

    def crosses(self, start: Position, end: Position) -> bool:
        """Whether something from start to end is seen on this strip."""
        return start < self.last - 0.5 and end > self.first - 0.5

    def lane(self, who: str | None) -> int | None:
        """The top of a worker's lane; None if it has none."""
        return self.lanes + self.layout.lane * self.workers.index(who) if who in self.workers else None

    def bar(self, who: str | None) -> int | None:
        """Where a worker's bar lies."""
        top = self.lane(who)
        return None if top is None else top + self.layout.bar

    def hue(self, who: str | None) -> str:
        """The colour of a worker: its own letter's, else that of its place."""
        place = self.workers.index(who) if who in self.workers else 2
        return HUES.get(who or "") or HUES["ABC"[min(place, 2)]]

    def level(self, token: int, row: int = 0) -> float:
        """How high the row's line is under a token."""
        return self.rows[row] - token * self.rise

    # -- drawing -------------------------------------------------------------------------------------------------------

    def path(
        self, d: str, stroke: str = INK, width: float = 1.5, more: str = "", fill: str = "none", halo: float = 0
    ) -> None:
        """A stroked path, on a wider one of paper if `halo` gives it a width."""
        if halo:
            self.path(d, PAPER, halo, fill=fill)
        self.out.append(f'<path d="{d}" stroke="{stroke}" stroke-width="{width:g}" fill="{fill}"{more}/>')

    def line(
        self, x1: float, y1: float, x2: float, y2: float, stroke: str, width: float, more: str = "", halo: float = 0
    ) -> None:
        """A straight line."""
        self.path(f"M{num(x1)} {num(y1)}L{num(x2)} {num(y2)}", stroke, width, more, halo=halo)

    def shaft(self, x: float, y1: float, y2: float, stroke: str, width_: float, more: str = "") -> None:
        """A line up or down that leaves out the words of leases, which it would strike through."""
        here, bottom, d = min(y1, y2), max(y1, y2), ""
        struck = [y for left, y, said in self.leases if left - 3 < x and y + 3 < bottom and x < left + width(said) + 3]
        for y in sorted(struck):
            if here < y - 10:
                d, here = f"{d}M{num(x)} {num(here)}V{num(y - 10)}", y + 3
        self.path(f"{d}M{num(x)} {num(here)}V{num(bottom)}", stroke, width_, more)

    def filled(self, d: str, hue: str) -> None:
        """A filled shape without an outline."""
        self.out.append(f'<path d="{d}" fill="{hue}"/>')

    def rect(self, x: float, y: float, w: float, h: float, fill: str = INK, more: str = "") -> None:
        """A filled rectangle."""
        self.out.append(f'<rect x="{num(x)}" y="{num(y)}" width="{num(w)}" height="{num(h)}" fill="{fill}"{more}/>')

    def text(self, x: float, y: float, said: str, kind: str = "", size: int = 0) -> None:
        """A text, escaped."""
        big = f' font-size="{size}"' if size else ""
        cls = f' class="{kind}"' if kind else ""
        self.out.append(f'<text x="{num(x)}" y="{num(y)}"{cls}{big}>{one_line(said)}</text>')

    def fits(self, row: str, left: float, right: float) -> bool:
        """Whether a line of labels is free there; then it is taken."""
        if left < self.taken.get(row, -1e9) + 1:
            return False
        self.taken[row] = right
        return True

    def label(self, row: str, x: float, y: float, said: str, kind: str) -> bool:
        """A centred label, unless it would touch the one before it on its line."""
        half = width(said, 11, " b" in f" {kind}") / 2
        if not said or not self.fits(row, x - half, x + half):
            return False
        self.text(x, y, said, kind)
        return True

    def staggered(self, row: str, x: float, lines: Sequence[float], said: str, kind: str) -> bool:
        """A centred label on the first of these lines (their y) where it touches none; on one line only if columns are even."""
        places = enumerate(lines if self.milliseconds else lines[:1])
        return any(self.label(f"{row} {n}", x, y, said, kind) for n, y in places)

    def crowded(self, x: float) -> bool:
        """Whether another column is closer than it would if columns were even."""
        return any(0 < abs(x - other) < PITCH for other in self.xs.values())

    def labels(self, row: str, x: float, lines: Sequence[tuple[float, str, str]]) -> bool:
        """Centred lines below each other (y, text, class), all of them or none."""
        halves = [width(said, 11, " b" in f" {kind}") / 2 for _, said, kind in lines]
        free = [x - half >= self.taken.get(f"{row} {n}", -1e9) + 1 for n, half in enumerate(halves)]
        if all(free):
            for n, (y, said, kind) in enumerate(lines):
                self.taken[f"{row} {n}"] = x + halves[n]
                self.text(x, y, said, kind)
        return all(free)
