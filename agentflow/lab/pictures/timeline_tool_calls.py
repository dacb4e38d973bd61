"""A call of the tool: the request to the world, what it did there, and the reply, if it came."""

from __future__ import annotations

from ..history.faults import FAULTS
from ..history.story import Mark
from .svg import INK, PAPER, num
from .timeline_layout import FULL, Strip, width

ROOM_OF_A_STEP = 60
TOOL_KEYS = {"same": "same key", "no": "no key", "new": "new key", "forgotten": "key forgotten"}
QUIET = {name for name, kind in FAULTS.items() if kind.strikes != "world"}
"""Faults that draw no arrow and write nothing below the row."""


def dot(s: Strip, x: float, y: float, hue: str) -> None:
    """A transaction that is no step."""
    s.out.append(f'<circle cx="{num(x)}" cy="{num(y)}" r="4.5" fill="{hue}" stroke="{PAPER}" stroke-width="1.5"/>')


def ring(s: Strip, x: float) -> None:
    """An answer that the world gives from the key."""
    s.out.append(f'<circle cx="{num(x)}" cy="{s.ledger}" r="8" fill="{PAPER}" stroke="{INK}" stroke-width="2.5"/>')


def beside(s: Strip, x: float) -> list[Mark]:
    """The marks in the columns before and after."""
    column = next(n for n in range(s.first, s.last) if s.xs[n] == x)
    return [s.told.marks[n] for n in (column - 1, column + 1) if s.first <= n < s.last]


def tool(s: Strip, x: float, mark: Mark) -> None:
    """A request to the world, what it did there, and the reply if it came."""
    y, big = s.bar(mark.who), mark.doubled
    effect = 11 if not big else 33 if s.layout is FULL else 24
    tip = s.ledger - {"effect": effect, "repeated": 9, "refused": 13}.get(mark.answer, 10)
    if y is not None:
        hue, edge = s.hue(mark.who), y + s.layout.band[1] - s.layout.bar
        s.line(x, edge, x, tip - 11, PAPER, 6)
        s.line(x, y, x, tip - 8, hue, 2.2)
        s.filled(f"M{num(x)} {num(tip)}l-5.4 -10.8h10.8z", hue)
        dot(s, x, y, hue)
    _in_world(s, x, mark)
    _tool_labels(s, x, mark)
    if y is not None and not big:
        _reply(s, x, y, mark)


def _in_world(s: Strip, x: float, mark: Mark) -> None:
    y = s.ledger
    if mark.answer == "refused":
        s.rect(x - 15, y - 12, 30, 6)
    elif mark.answer == "repeated":
        ring(s, x)
    elif mark.doubled:
        outer, inner, size = (31, 22, 20) if s.layout is FULL else (22, 15, 14)
        s.path(f"M{num(x)} {y - outer}l{outer} {outer}l-{outer} {outer}l-{outer}-{outer}z", INK, 3.5, fill=PAPER)
        s.path(f"M{num(x)} {y - inner}l{inner} {inner}l-{inner} {inner}l-{inner}-{inner}z", INK, 2, fill=INK)
        s.text(x, y + (7 if size == 20 else 5), str(mark.nth), "inv c", size)
    else:
        diamond = f"M{num(x)} {y - 10}l10 10l-10 10l-10 -10z"
        s.path(diamond, PAPER, 4, fill=PAPER)
        s.path(diamond, INK, 0, fill=INK)


def _tool_labels(s: Strip, x: float, mark: Mark) -> None:
    key, effect, down = TOOL_KEYS.get(mark.key, ""), f"effect {mark.effect}", 0
    lines = [f"tool, {key}" if key else "tool"]
    if key and not _has_room(s, x, lines[0]):
        lines[0] = key.removeprefix("key ")
    if mark.doubled:
        down = 20 if s.layout is FULL else 10
    elif s.layout is FULL and mark.attempts and mark.key != "no" and mark.answer != "refused":
        lines.append(f"attempts {mark.attempts}")
    lines.append("refused" if mark.answer == "refused" else effect)
    places = enumerate(zip(lines, s.layout.labels, strict=False))
    kinds = ["c h", "c m h" if mark.doubled else "c h", "c h"]
    s.labels("tool", x, [(s.ledger + at + down, said, kinds[n]) for n, (said, at) in places])


def _has_room(s: Strip, x: float, said: str) -> bool:
    """Whether no neighbour is a call of the tool too."""
    return width(said) <= ROOM_OF_A_STEP or all(one.kind != "tool" for one in beside(s, x))


def _reply(s: Strip, x: float, y: int, mark: Mark) -> None:
    hue, edge = s.hue(mark.who), y + s.layout.band[1] - s.layout.bar
    if mark.reply == "lost":
        _lost_reply(s, x, edge + 4, mark)
    elif mark.reply == "received":
        start = s.ledger - (8 if mark.answer == "repeated" else 10)
        s.line(x + 13, start, x + 13, edge, PAPER, 5)
        s.line(x + 13, start, x + 13, edge - 2, hue, 1.5)
        s.filled(f"M{num(x + 13)} {edge - 10}l-4 8h8z", hue)


def _lost_reply(s: Strip, x: float, goal: float, mark: Mark) -> None:
    """The reply on its way to a worker that never hears it: cut by two strokes, dotted beyond."""
    hue, y = s.hue(mark.who), s.ledger - 12
    reach = min(s.x(mark.reply_to) - x if mark.reply_to is not None else s.pitch, s.pitch) - 3
    dx, dy = reach - 8 if reach > 12 else 10, goal - y
    cut = (x + 8 + dx * 0.6, y + dy * 0.6)
    more = (x + 8 + dx * 0.66, y + dy * 0.66)
    s.line(x + 8, y, *cut, hue, 2.2, halo=6)
    s.line(*more, x + 8 + dx, goal, hue, 2.2, ' stroke-dasharray="2 4"', halo=6)
    for px, py in (cut, more):
        s.path(f"M{num(px - 12)} {num(py - 3)}l24 6", INK, 4, halo=8)
    if _is_quiet(s, mark):
        s.text((cut[0] + more[0]) / 2 + max(13.0, s.pitch - 47), (cut[1] + more[1]) / 2 - 2.5, "reply lost", "b h", 12)


def _is_quiet(s: Strip, mark: Mark) -> bool:
    """Whether the words `reply lost` have room: no arrow in the next column, which they reach into."""
    after = s.told.marks.index(mark) + 1
    beside = s.told.marks[after : after + 2]
    return after + 1 <= s.last and all(one.kind in QUIET for one in beside[:1]) and not s.milliseconds
