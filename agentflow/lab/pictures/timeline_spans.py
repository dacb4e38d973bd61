"""Everything of a timeline that has a length: leases, processes, the row's token, the world's record, gaps, and the one box.

A span may begin before a strip or end behind it; `Strip.x` cuts it off at the strip's edge, and `Strip.holds` says whether
an end of it is on this strip and gets its mark.
"""

from __future__ import annotations

from ..history.sentences import lease_of
from ..history.story import Band, Box, Mark, Position, ProcessRun, Span
from ..history.words import EFFECT_LOST, IN_THE_GAP
from .svg import DASHED, HUES, INK, PAPER, RULE, num
from .timeline_layout import COMPACT, FULL, GUTTER, Strip, shortened, width
from .timeline_tool_calls import QUIET

WORDS = GUTTER + 10  # `outside world` is longer than the gutter in a wide font
SILENT = {*QUIET, "stop", "replay"}
NARROW = {"unauthorised", "refused"}
"""Boxes of one write, which hang under its wall; the others are those of a bracket."""
DASHES = f' stroke-dasharray="{DASHED["C"]}"'


def behind(s: Strip) -> None:
    """Everything that the marks stand on."""
    for span in s.told.gaps:
        gap(s, span)
    ledger(s)
    row(s)
    for lease in s.told.bands:
        band(s, lease)
    for run in s.told.runs:
        bar(s, run)
    lease_labels(s)


def before(s: Strip) -> None:
    """What lies over the marks: waits, brackets, the box, and the names of the leases."""
    for span in s.told.waits:
        waits(s, span)
    brackets(s)
    box(s)
    for x, y, said in s.leases:
        if x + width(said) <= max(s.edge, s.right):
            s.text(x, y, said, "h")
    state_texts(s)
    for x in s.cuts:
        s.line(x - 4, s.rule + 0.5, x + 4, s.rule + 0.5, PAPER, 4)
        s.path(f"M{num(x - 6)} {s.rule + 7}l4 -13m4 13l4 -13", INK, 1.5)


def scaffold(s: Strip) -> None:
    """The clock's head, the lanes and their names, the row, the world, and the person if one takes part."""
    layout = s.layout
    s.text(10, layout.numbers, "entry", "m")
    if s.seconds:
        s.text(10, layout.seconds, "milliseconds" if s.milliseconds else "seconds", "m")
    s.text(10, s.faults, "faults", "m")
    s.line(10, s.rule + 0.5, s.edge - 2, s.rule + 0.5, RULE, 1)
    for who in s.workers:
        top, bar = s.lane(who) or 0, s.bar(who) or 0
        y, h = top + layout.band[0], layout.band[1] - layout.band[0]
        if s.hue(who) == HUES["C"]:
            s.line(12, y, 12, y + h, s.hue(who), 4, DASHES)
        else:
            s.rect(10, y, 4, h, s.hue(who))
        room, name = GUTTER - 24, f"worker {who}"
        name = name if width(name, 12, True) <= room else shortened(who, room, 12, True)
        s.text(22, bar - 4, name, "b", 12)
        s.line(GUTTER, bar, s.edge, bar, RULE, 1)
    s.line(10, s.floor + 0.5, s.edge - 2, s.floor + 0.5, RULE, 1)
    s.text(10, s.row - 12, "PostgreSQL", "b", 12)
    for y, one in zip(s.rows, s.told.rows or [None], strict=False):
        name = one.name if one and len(s.rows) > 1 else "workflow row"
        s.text(10, y + 3, shortened(name, GUTTER - 14), "m")
    if not s.told.marks:
        s.line(WORDS, s.row, s.edge, s.row, RULE, 1)
        s.line(WORDS, s.ledger, s.edge, s.ledger, RULE, 1)
    s.text(10, s.ledger - 3, "outside world", "b", 12)
    s.text(10, s.ledger + 12, "tool ledger", "m")
    if s.told.person:
        s.text(10, s.person + 4, "a person", "b", 12)
        s.line(GUTTER, s.person, s.edge, s.person, RULE, 1)


def gap(s: Strip, span: Span) -> None:
    """The hatch over the time in which the engine does not know the outcome; an edge where it came to know."""
    if not s.crosses(span.start, span.end):
        return
    left, right, top, bottom = max(s.x(span.start), WORDS), s.x(span.end), s.zone, s.ledger - 1
    wide, high = right - left, bottom - top
    s.rect(left, top, wide, high, more=' opacity=".07"')
    parts = []
    for reach in range(7, int(wide + high), 7):
        x1, y1 = (left, top + reach) if reach <= high else (left + reach - high, bottom)
        x2, y2 = (left + reach, top) if reach <= wide else (right, top + reach - wide)
        parts.append(f"M{num(x1)} {num(y1)}L{num(x2)} {num(y2)}")
    s.path("".join(parts), INK, 1.3, ' opacity="0.6"')


def ledger(s: Strip) -> None:
    """The world's record: a rule, then ink once an effect exists, doubled after a duplicate."""
    now = s.told.now
    first = next(iter(s.told.effects), now)
    second = next((column for column, mark in enumerate(s.told.marks) if mark.doubled), now)
    if s.crosses(0, first):
        s.line(max(s.x(0), WORDS), s.ledger, s.x(first), s.ledger, RULE, 1.5)
    if first < now and s.crosses(first, second):
        s.line(max(s.x(first), WORDS), s.ledger, s.x(second), s.ledger, INK, 3)
    if second < now and s.crosses(second, now):
        s.line(max(s.x(second), WORDS), s.ledger, s.right, s.ledger, INK, 9)
        s.line(max(s.x(second), WORDS), s.ledger, s.right, s.ledger, PAPER, 3)


def row(s: Strip) -> None:
    """The line of each workflow's row; each claim lifts it, since its height is the fencing token."""
    for number, one in enumerate(s.told.rows):
        if not one.tokens or one.tokens[0][0] >= s.last - 0.5:
            continue
        before = [token for where, token in one.tokens if where < s.first - 0.5]
        d = f"M{num(s.x(one.tokens[0][0]))} {num(s.level(before[-1] if before else one.tokens[0][1], number))}"
        for where, token in one.tokens:
            if s.holds(where) and where != one.tokens[0][0]:
                d += f"H{num(s.x(where))}V{num(s.level(token, number))}"
        s.path(d + f"H{num(s.right)}", INK, 1.8)


def band(s: Strip, lease: Band) -> None:
    """A lease behind its worker's lane, and hollow where the worker lives on without it."""
    top, end = s.lane(lease.who), s.told.now if lease.end is None else lease.end
    if top is None:
        return
    hue, y1, y2 = s.hue(lease.who), top + s.layout.band[0], top + s.layout.band[1]
    if s.crosses(lease.start, end):
        left, right = s.x(lease.start), s.x(end)
        s.rect(left, y1, right - left, y2 - y1, hue, ' opacity=".2"')
        if hue == HUES["C"]:
            s.path(f"M{num(left)} {y1}H{num(right)}M{num(left)} {y2}H{num(right)}", hue, 1, DASHES)
    if lease.how == "expired" and s.holds(end):
        s.line(s.x(end), y1 - 4, s.x(end), y2 + 4, hue, 3)
    if lease.hollow is not None and s.crosses(end, lease.hollow):
        left, right = s.x(end), s.x(lease.hollow)
        s.path(f"M{num(left)} {y1}H{num(right)}M{num(left)} {y2}H{num(right)}", hue, 1.5, ' stroke-dasharray="5 4"')


def bar(s: Strip, run: ProcessRun) -> None:
    """A process, from a little before its first entry to its end."""
    y, end = s.bar(run.who), s.told.now if run.end is None else run.end
    if y is None or not s.crosses(run.start, end + 0.01):
        return
    before = 0 if run.resumed or not s.holds(run.start) else (9 if s.milliseconds else 20)
    left, right = s.x(run.start) - before, s.x(end)
    s.line(left, y, right, y, s.hue(run.who), 3, DASHES if s.hue(run.who) == HUES["C"] else "", halo=6)


def unauthorised(s: Strip) -> list[tuple[str, Position, Position]]:
    """Where each worker lives without authority."""
    return [(b.who, b.end or 0.0, b.hollow) for b in s.told.bands if b.hollow is not None and b.end is not None]


def state_texts(s: Strip) -> None:
    """`paused` and `without authority`, as soon as the lane has room for the words."""
    for sleep in s.told.sleeps:
        y, end = s.bar(sleep.what), sleep.end
        if y is None or not s.crosses(sleep.start, end):
            continue
        out = [
            max(a, sleep.start) for who, a, b in unauthorised(s) if who == sleep.what and sleep.start < b and a < end
        ]
        if s.holds(sleep.start):
            _between(s, s.x(sleep.start), s.x(out[0] if out else end), y + 4, "paused")
        if out:
            _between(s, s.x(out[0]), s.x(end), y + 4, "paused, without authority")
    for who, begin, hollow in unauthorised(s):
        own = [n for n, m in enumerate(s.told.marks) if m.who == who and m.kind != "expire" and begin <= n <= hollow]
        asleep = any(sleep.what == who and sleep.start <= begin < sleep.end for sleep in s.told.sleeps)
        y, until = s.bar(who), float(own[0]) if own else hollow
        if y is not None and not asleep and s.crosses(begin, until):
            _between(s, s.x(begin), s.x(until), y - 8, "alive without authority")


def _between(s: Strip, left: float, right: float, y: float, said: str) -> None:
    if right - left >= width(said) + 14:
        s.text(left + 9, y, said, "m h")


def lease_labels(s: Strip) -> None:
    """Where `lease 3 s · token 1` stands above each band: behind the words of the lease before, shorter if there are such."""
    for lease in sorted(s.told.bands, key=lambda band: band.start):
        top, end = s.lane(lease.who), s.told.now if lease.end is None else lease.end
        if top is None or not s.crosses(lease.start, max(end, lease.start + 0.1)):
            continue
        x, y, row = s.x(lease.start), top + s.layout.band[0] - 5, f"lease {lease.who}"
        free = s.taken.get(row, -1e9) + 5
        said = f"token {lease.token}" if free > x else f"{lease_of(lease.seconds)} · token {lease.token}"
        x = max(x, free)
        # also where the picture does not reach yet: lines leave it out from the first on
        if s.fits(row, x, x + width(said)):
            s.leases.append((x, y, said))


def waits(s: Strip, span: Span) -> None:
    """A pair of parentheses on the row's line, from the wait to what ended it."""
    for where, side in ((span.start, 1), (span.end, -1)):
        if s.holds(where) and (side == 1 or span.closed):
            x = s.x(where) - 9 * side  # outside of the arrow that begins or ends the wait
            mark = s.told.marks[int(where)]
            y = s.level(mark.row_token, mark.row) - 10
            s.path(f"M{num(x + 3 * side)} {num(y)}c{-7 * side} 6 {-7 * side} 14 0 20", INK, 2.5, halo=6)


# -- below: brackets and the box -----------------------------------------------------------------------------------------


def brackets(s: Strip) -> None:
    """Below the world: a bracket for each gap, doubled for a duplicate, dotted for an effect that never came."""
    for span in s.told.gaps:
        if span.closed and s.holds(span.end):
            s.line(s.x(span.end), s.zone - 3, s.x(span.end), s.ledger, INK, 1.8)
        if not any(double.start < span.end and span.start < double.end for double in s.told.doubled):
            _bracket(s, span, span.closed, IN_THE_GAP[0])
    for span in s.told.doubled:
        _bracket(s, span, True, "duplicate effect", doubled=True)
    for span in s.told.lost:
        _bracket(s, span, span.closed, EFFECT_LOST[0])
        if s.holds(span.start):
            d = f"M{num(s.x(span.start))} {s.ledger - 10}l10 10l-10 10l-10 -10z"
            s.path(d, INK, 2, ' stroke-dasharray="2 2.4"', PAPER, halo=6)


def _bracket(s: Strip, span: Span, closed: bool, name: str, doubled: bool = False) -> None:
    if not s.crosses(span.start, span.end):
        return
    y, leg = s.bracket, s.layout.leg + (4 if doubled else 0)
    d = f"M{num(s.x(span.start))} {y - leg}v{leg}" if s.holds(span.start) else f"M{num(s.x(span.start))} {y}"
    d += f"H{num(s.x(span.end))}"
    if closed and s.holds(span.end):
        d += f"v-{leg}"
    s.path(d, INK, 6.5 if doubled else 3)
    if doubled:
        s.path(d, PAPER, 2)
    found = s.told.box
    if found is None or found.span != span or found.kind in NARROW or (s.first, s.last) != _best(s, span):
        middle, short = (
            (s.x(span.start) + s.x(span.end)) / 2,
            name.rpartition(" ")[2] if name == IN_THE_GAP[0] else name,
        )
        for said in (name, short):
            x = max(GUTTER + width(said, 11, True) / 2, min(middle, s.edge - width(said, 11, True) / 2))
            if s.label("brackets", x, y + 15, said, "c b h"):
                break


def box(s: Strip) -> None:
    """The one inverted box: on this strip if what it tells is seen here best."""
    found = s.told.box
    if found and found.kind in NARROW:
        _box_below(s, found)
    elif found and (s.first, s.last) == _best(s, found.span):
        middle = (s.x(found.span.start) + s.x(found.span.end)) / 2
        s.path(f"M{num(middle)} {s.bracket}v8", INK, 3)
        _inverted(s, middle, s.bracket + (7 if s.layout is FULL else 6), found)


def _best(s: Strip, span: Span) -> tuple[int, int]:
    """The strip on which most of a span is seen."""
    return max(s.strips, key=lambda strip: min(strip[1] - 0.5, span.end) - max(strip[0] - 0.5, span.start))


def has_bracket(s: Strip) -> bool:
    """Whether something hangs below the world on this strip."""
    return any(s.crosses(span.start, span.end) for span in (*s.told.gaps, *s.told.doubled, *s.told.lost))


def room_for_schedule(s: Strip) -> float:
    """How wide a text may be in the lower left corner."""
    taken = [s.x(n) - 40 for n in range(s.first, s.last) if s.told.marks[n].kind == "tool"]
    found = s.told.box
    if found is not None and found.kind not in NARROW and (s.first, s.last) == _best(s, found.span):
        middle = (s.x(found.span.start) + s.x(found.span.end)) / 2
        taken.append(_left(s, middle, _box_width(s, found)))
    spans = (*s.told.gaps, *s.told.doubled, *s.told.lost)
    taken += [s.x(span.start) - 40 for span in spans if s.crosses(span.start, span.end)]
    return min([*taken, s.edge]) - 20


def make_room(s: Strip) -> None:
    """Moves what lies below the row down if the box of a write would hang over what others write beside it."""
    found = s.told.box
    if found is None or found.kind not in NARROW or not s.holds(found.span.start):
        return
    column, wide = int(found.span.start), _box_width(s, found)
    left = _left(s, s.xs[column], wide)
    written = [(s.xs[n], half_of(s.told.marks[n])) for n in range(s.first, s.last) if n != column]
    beside = any(half and left - half < x < left + wide + half for x, half in written)
    gap = any(gap.start <= column <= gap.end for gap in s.told.gaps)
    above = s.told.marks[column].row < len(s.told.rows) - 1
    if found.kind == "unauthorised" or beside or gap or above:
        s.room_for_box = s.layout.box + 22
        s.__post_init__()


def half_of(mark: Mark) -> float:
    """Half the width of what is drawn below the row in this column; 0 if nothing is."""
    return 0.0 if mark.kind in SILENT else 18.0 if mark.kind == "tool" else width(mark.kind) / 2


def _box_below(s: Strip, found: Box) -> None:
    """The box of one write hangs under its wall; below the names if others write beside it."""
    if not s.holds(found.span.start):
        return
    mark = s.told.marks[int(found.span.start)]
    x, line, row = s.x(found.span.start), s.level(mark.row_token, mark.row), s.rows[mark.row]
    named = found.kind == "unauthorised"
    y = row + s.layout.names[2] + 12 if s.room_for_box else line + 30
    top = y - 7 if named else line + 1
    s.line(x, top, x, y, PAPER, 7)
    s.path(f"M{num(x)} {num(top)}V{num(y + 1)}", INK, 3)
    after = [s.xs[n] for n in range(int(found.span.start) + 1, s.last) if s.told.marks[n].kind == "tool"]
    wide = _box_width(s, found)
    if after and x > after[0] - 14 - wide + 10:
        x = min(x, after[0] - 14 - wide / 2)  # it hides no call of the tool if it need not
    _inverted(s, x, y, found)


def _box_width(s: Strip, found: Box) -> float:
    if s.layout is COMPACT:
        return width(_in_one_line(found), 12, True) + 20
    least = {"gap": 320, "duplicate": 300, "lost": 300}.get(found.kind, 196)
    return max(width(found.text, 12, True) + 20, width(found.title, 16, True) + 24, least)


def _in_one_line(found: Box) -> str:
    return f"{found.title}: {found.text.split(',')[0] if found.kind == 'refused' else found.text}"


def _inverted(s: Strip, middle: float, y: float, found: Box) -> None:
    wide = _box_width(s, found)
    x = _left(s, middle, wide)
    s.rect(x, y, wide, s.layout.box, more=' rx="3"')
    if s.layout is COMPACT:
        s.text(x + wide / 2, y + 17, _in_one_line(found), "inv c", 12)
    else:
        s.text(x + wide / 2, y + 20, found.title, "inv c", 16)
        s.text(x + wide / 2, y + 37, found.text, "inv c", 12)


def _left(s: Strip, middle: float, wide: float) -> float:
    return max(GUTTER, min(middle - wide / 2, max(s.right, s.edge if s.layout is FULL else 0) - wide - 1))
