"""The picture of a history: `timeline(entries)` draws static SVG with a text twin, and nothing else is needed to see it.

The same entries give the same bytes. `docs/pictures.md` says what each mark means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Literal

from ..history.entries import Row
from ..history.sentences import summary, twin
from ..history.story import ALWAYS_FOLDED, FOLDABLE, Mark, Story, folded
from ..history.story_reader import read_story, story_of
from . import timeline_spans
from .saved import scrolling
from .svg import INK, PAPER, SMALLEST, Picture, described, escaped, num, svg
from .timeline_layout import CLOSE, COMPACT, FULL, GUTTER, MARGIN, PITCH, TIMELINE_CSS, Layout, Strip, flat, width
from .timeline_marks import clock, columns

STRIP = 12  # columns; so a strip is drawn at full size where JupyterLab has its sidebar open, in 846 px
LIVE_PITCH = 52  # the same however many columns there are: a mark of the past keeps its place, and its words
MOST_LANES = 4
NOTHING = "Nothing has happened yet. Step a worker, or run a preset."


@dataclass(frozen=True, repr=False)
class Timeline(Picture):
    """A picture with its twin (`text`, a line for each column) and `sentence`, which says what happened."""

    sentence: str = ""
    gutter: str = ""
    look_at: float | None = None

    @property
    def html(self) -> str:
        """The picture in a container that scrolls when it is wide, and its text twin, closed.

        A live picture opens at its newest entry (a container that runs from right to left begins at its right end), or at
        the cursor where the browser knows `scroll-initial-target`; the names of its lanes stay in view.
        """
        text = "\n".join(escaped(flat(line)) for line in self.text.split("\n"))
        inner, scrolls = self.svg, "overflow-x:auto;overflow-y:hidden"
        if self.gutter:
            stays = "position:sticky;left:0;width:0;height:0;z-index:1"
            inner = f'<div style="{stays}">{self.gutter}</div>{inner}{self._target()}'
            inner = f'<div style="direction:ltr;position:relative;width:max-content;min-width:100%">{inner}</div>'
            scrolls += ";direction:rtl" if self.look_at is None else ""
        as_text = f"<details><summary>History as text</summary><pre>{text}</pre></details>"
        return f'<div class="af-timeline">{scrolling("Timeline", scrolls, inner)}{as_text}</div>'

    def _target(self) -> str:
        if self.look_at is None:
            return ""
        left = max(0.0, self.look_at - 300)  # the target comes to the left edge, where the names of the lanes are
        place = f"position:absolute;top:0;left:{num(left)}px;width:1px;height:1px"
        return f'<div style="{place};scroll-initial-target:nearest"></div>'


def timeline(
    entries: Sequence[Row] | Story, *, compact: bool = False, axis: Literal["entry", "milliseconds"] = "entry",
    seconds: bool = False, cursor: int | None = None, fold: bool = False, live: bool = False, schedule: str = "",
    workers: Sequence[str] | None = None,
) -> Timeline:  # fmt: skip
    """The picture of one history, drawn from what `engine.history()` returned, or from the story of it.

    `compact` is the control room's size, `cursor` the number of an entry to mark (what came later fades), `fold` puts four
    or more like entries into one column, `live` gives one long picture whose marks can be focused, `workers` says which
    lanes are drawn. Without `seconds` no time is shown, so that the picture is the same on every machine.
    """
    told = read_story(entries)
    text, said = twin(told), summary(told)
    lines = dict(zip((mark.label for mark in told.marks), text, strict=True))
    kinds = FOLDABLE if fold else ALWAYS_FOLDED
    drawn = folded(told, kinds)
    lanes, left_out = lanes_of(told, workers)
    text += [f"Not drawn: worker {name}" for name in left_out]
    layout = COMPACT if compact else FULL
    timed = axis == "milliseconds" and bool(drawn.marks) and all(mark.at is not None for mark in drawn.marks)
    strips = _strips(drawn, lines, layout, lanes, seconds, timed, live)
    body, height, wide = [], 0, 0.0
    past = _past(drawn, cursor, kinds) if cursor is not None else None
    for strip in strips:
        tall = _draw(
            strip, cursor, past, schedule if strip is strips[-1] else "", _focus(drawn, cursor) if live else ""
        )
        body.append(f'<g transform="translate(0 {height})">{"".join(strip.out)}</g>' if height else "".join(strip.out))
        height, wide = height + tall, max(wide, strip.edge + MARGIN)
    whole = _whole("\n".join(body), wide, height, said, text, live)
    drawing = Timeline(whole, "\n".join(text), sentence=said)
    return replace(drawing, gutter=_gutter(strips[0], height), look_at=_look_at(strips[0], cursor)) if live else drawing


def lanes_of(told: Story, wanted: Sequence[str] | None = None) -> tuple[list[str], list[str]]:
    """The workers that get a lane, and those that are left out: four at most, A and B always if names are letters."""
    lettered = {*told.workers} <= {"A", "B", "C", "D"}
    names = sorted({*told.workers, "A", "B"} if lettered else told.workers) if wanted is None else list(wanted)
    return names[:MOST_LANES], [name for name in told.workers if name not in names[:MOST_LANES]]


def _focus(told: Story, cursor: int | None) -> str:
    """The one mark that the Tab key reaches; arrow keys go on from there."""
    labels = [mark.label for mark in told.marks]
    return str(cursor) if str(cursor) in labels else (labels or [""])[-1]


def _look_at(s: Strip, cursor: int | None) -> float | None:
    """Where the cursor's column begins; None if it is the newest entry, or there is none."""
    marks = s.told.marks
    later = cursor is not None and bool(marks) and marks[-1].n > cursor
    return next((s.xs[n] - PITCH / 2 for n, mark in enumerate(marks) if later and cursor in mark.entries), None)


# -- layout --------------------------------------------------------------------------------------------------------------


def _strips(
    told: Story, lines: Mapping[str, str], layout: Layout, lanes: Sequence[str], seconds: bool, timed: bool, live: bool
) -> list[Strip]:  # fmt: skip
    count = len(told.marks)
    size = max(count, 1) if live or timed else _strip_size(count)
    spans = [(first, min(first + size, count)) for first in range(0, count, size)] or [(0, 0)]
    scale, cuts = _milliseconds(told) if timed else ([], [])
    pitch = PITCH * STRIP / count if count == size > STRIP and not live and not timed else PITCH
    lead = pitch / 2
    if live and layout is COMPACT and not timed:
        pitch = LIVE_PITCH
        lead = (PITCH + 13) / 2  # behind the names of the lanes, which reach beyond the gutter
    common, made = (seconds or timed, timed, cuts, spans, pitch), []
    for first, last in spans:
        even = {n: GUTTER + lead + pitch * (n - first) for n in range(first, last)}
        xs = dict(enumerate(scale)) if timed else even
        right = max(xs.values(), default=0) + pitch / 2 if last else GUTTER
        if last and told.marks[last - 1].doubled and layout is FULL:
            right += 28
        whole = GUTTER + PITCH * size if len(spans) > 1 else 0
        over = _overhang(told.marks[first:last]) + (PITCH - pitch) / 2 * live
        edge = max(right + over, whole, layout.width - MARGIN)
        made.append(Strip(told, layout, lanes, first, last, xs, right, edge, *common, lines=lines))
        timeline_spans.make_room(made[-1])
    return made


def _overhang(marks: Sequence[Mark]) -> float:
    """How far words reach beyond the last column."""
    last = marks[-1] if marks else None
    return 0 if last is None or last.kind not in {"tool", "acknowledge"} else 16 if last.doubled else 13


def _strip_size(count: int) -> int:
    """All columns on one strip, if two too many at most have to come closer together; else strips that are equally long."""
    return max(count, 1) if count <= STRIP + 2 else ceil(count / ceil(count / STRIP))


def _milliseconds(told: Story) -> tuple[list[float], list[float]]:
    """The middle of each column on a true scale, and where an idle stretch is cut.

    Each column is at least CLOSE px behind the one before; a stretch that would take more than a third is cut to a column.
    """
    times = [mark.at or 0.0 for mark in told.marks]
    gaps = [max(0.0, later - earlier) for earlier, later in pairwise(times)]
    room = float(PITCH * max(len(gaps), 1))
    cut: set[int] = set()
    while True:
        left = sum(gap for n, gap in enumerate(gaps) if n not in cut)
        scale = max(room - PITCH * len(cut), PITCH) / left if left else 0.0
        long = [n for n, gap in enumerate(gaps) if n not in cut and gap * scale > room / 3 and len(gaps) > 1]
        if not long:
            break
        cut.add(max(long, key=lambda n: gaps[n]))
    xs, true, cuts = [GUTTER + PITCH / 2], GUTTER + PITCH / 2, []
    for n, gap in enumerate(gaps):
        true += PITCH if n in cut else gap * scale
        xs.append(max(xs[-1] + CLOSE, true))
        if n in cut:
            cuts.append((xs[-2] + xs[-1]) / 2)
    return xs, cuts


def _past(told: Story, cursor: int, kinds: frozenset[str]) -> Story | None:
    """The story as it was at an entry, if more came later: its columns are the first of those that are drawn."""
    past = folded(story_of([entry for entry in told.entries if entry.n <= cursor]), kinds)
    begins = all(ours.label == theirs.label for ours, theirs in zip(past.marks, told.marks, strict=False))
    return past if begins and len(past.marks) < len(told.marks) else None


def _draw(s: Strip, cursor: int | None, past: Story | None, schedule: str, focus: str) -> int:
    """Draws the strip; returns its height. What came after the cursor is faint, and what had come is as it was then."""
    tall = _height(s, schedule)
    back = [f'<rect width="{num(s.edge + MARGIN)}" height="{tall}" fill="{PAPER}"/>']
    if past is not None:
        then = min(max(len(past.marks), s.first), s.last)
        rest = replace(s.told, box=None)  # a box of what came later is not there yet
        later = replace(s, told=rest, whole=s.told, first=then, out=[], taken={"brackets": 1e9}, leases=[])
        _layers(later, then, s.last, focus)
        seen = s.x(then - 0.5)
        back.append(f'<g opacity=".35">{"".join(later.out)}</g>')
        back.append(f'<rect width="{num(seen)}" height="{tall}" fill="{PAPER}"/>' if then > s.first else "")
        written, s.out = s.out, []
        now = replace(s, told=past, whole=s.told, right=seen, taken={}, leases=[])
        timeline_spans.scaffold(now)
        if then > s.first:
            _layers(now, s.first, then, focus)
        s.out = written + now.out
    else:
        timeline_spans.scaffold(s)
        _layers(s, s.first, s.last, focus)
    if not s.told.marks:
        s.text(GUTTER + PITCH / 2, s.lanes + s.layout.lane + 4, NOTHING, "h", 12)
    if cursor is not None:
        size = f'y="2" width="{num(s.pitch)}" height="{tall - 4}"'
        back += [
            f'<rect x="{num(s.xs[n] - s.pitch / 2)}" {size} fill="{INK}" opacity=".04"/>'
            for n in range(s.first, s.last)
            if cursor in s.told.marks[n].entries
        ]
    s.out[:0] = back
    return tall


def _layers(s: Strip, first: int, last: int, focus: str) -> None:
    """Draws what the marks stand on, the marks of these columns, and what lies over them."""
    for n in range(first, last):
        clock(s, s.xs[n], s.told.marks[n])
    timeline_spans.behind(s)
    columns(s, first, last, focus)
    timeline_spans.before(s)


def _height(s: Strip, schedule: str) -> int:
    """The height of a strip; the schedule is written beside the box if there is room, else below everything."""
    bottom = s.ledger + s.layout.end + s.below
    if s.layout is FULL and timeline_spans.has_bracket(s):
        bottom = s.bracket + s.layout.box + 18
    if schedule and s.layout is FULL:
        y, room = bottom - 34, timeline_spans.room_for_schedule(s)
        if s.told.person or width(schedule, 13.2) > room:
            y, bottom = bottom + 12, bottom + 44
        s.text(10, y, "schedule", "m")
        s.text(10, y + 16, schedule, "k", 12)
    return bottom


# -- the file ------------------------------------------------------------------------------------------------------------


def _whole(body: str, wide: float, tall: int, said: str, text: Sequence[str], live: bool) -> str:
    # Beside a gutter that stays in view it must not shrink, which JupyterLab would let every svg do.
    shrinks = "max-width:none" if live else f"max-width:100%;min-width:{ceil(wide * SMALLEST)}px"
    about = described(flat(said), "\n".join(map(flat, text)), TIMELINE_CSS)
    named = f'role="{"group" if live else "img"}" aria-label="{escaped(flat(said))}"'
    return svg(about + body, num(wide), str(tall), f"display:block;{shrinks};height:auto", named)


def _gutter(s: Strip, tall: int) -> str:
    """The names of the lanes once more, to stay in view while the long picture scrolls."""
    alone = Strip(s.told, s.layout, s.workers, 0, 0, {}, GUTTER, GUTTER, s.seconds, s.milliseconds)
    timeline_spans.scaffold(alone)
    inner = f'<rect width="{timeline_spans.WORDS}" height="{tall}" fill="{PAPER}"/>' + "".join(alone.out)
    return svg(inner, str(timeline_spans.WORDS), str(tall), "display:block;max-width:none", 'aria-hidden="true"')
