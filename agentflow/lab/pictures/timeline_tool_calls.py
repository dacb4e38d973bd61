"""A call of the tool: the request to the world, what it did there, and what later entries show of its caller and its answer."""

from __future__ import annotations

from ..history.faults import FAULTS
from ..history.story import Mark, ShownAnswer
from .svg import INK, PAPER, num
from .timeline_layout import FULL, Strip

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


def before(s: Strip) -> Mark | None:
    """The mark in the column before; what comes after is no part of a mark."""
    return s.told.marks[s.column - 1] if s.column > s.first else None


def tool(s: Strip, x: float, mark: Mark) -> None:
    """A request to the world, and what it did there; from no lane if several workers may have sent it."""
    y, effect = s.bar(mark.who), 11 if not mark.doubled else 33 if s.layout is FULL else 24
    tip = s.ledger - {"effect": effect, "repeated": 9, "refused": 13}.get(mark.answer, 10)
    hue, edge = (INK, s.floor) if y is None else (s.hue(mark.who), y + s.layout.band[1] - s.layout.bar)
    s.line(x, edge, x, tip - 11, PAPER, 6)
    s.shaft(x, edge if y is None else y, tip - 8, hue, 2.2)
    s.filled(f"M{num(x)} {num(tip)}l-5.4 -10.8h10.8z", hue)
    if y is not None:
        dot(s, x, y, hue)
    _in_world(s, x, mark)
    _tool_labels(s, x, mark)


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
    effect, down = f"effect {mark.effect}", 0
    lines = [TOOL_KEYS.get(mark.key, "tool")]
    if mark.doubled:
        down = 20 if s.layout is FULL else 10
    elif s.layout is FULL and mark.attempts and mark.key != "no" and mark.answer != "refused":
        lines.append(f"attempts {mark.attempts}")
    lines.append("refused" if mark.answer == "refused" else effect)
    places = enumerate(zip(lines, s.layout.labels, strict=False))
    kinds = ["c h", "c m h" if mark.doubled else "c h", "c h"]
    s.labels("tool", x, [(s.ledger + at + down, said, kinds[n]) for n, (said, at) in places])


def answered(s: Strip, x: float, mark: Mark) -> None:
    """What this entry shows of earlier calls: who made them, and what became of their answers."""
    for one in mark.answers:
        y, call = s.bar(one.who), s.told.marks[one.call]
        if y is None:
            continue
        at, hue, edge = s.x(one.call), s.hue(one.who), y + s.layout.band[1] - s.layout.bar
        if one.asked and s.holds(one.call):
            s.line(at, y, at, s.floor, hue, 2.2)
            dot(s, at, y, hue)
        if one.how == "received" and s.holds(one.call) and not call.doubled:
            start = s.ledger - (8 if call.answer == "repeated" else 10)
            s.line(at + 13, start, at + 13, edge, PAPER, 5)
            s.shaft(at + 13, start, edge - 2, hue, 1.5)
            s.filled(f"M{num(at + 13)} {edge - 10}l-4 8h8z", hue)
        elif one.how in {"lost", "died"}:
            _unheard(s, x, y, one)


def _unheard(s: Strip, x: float, y: int, one: ShownAnswer) -> None:
    """The answer on its way: cut by two strokes, dotted beyond; at the worker if it died with it.

    It comes from the call if that is in the column before, else from below.
    """
    hue, died = s.hue(one.who), one.how == "died"
    goal = (x - 8, y + 10) if died else (x - 11, y + s.layout.band[1] - s.layout.bar + 4)
    beside = one.call == s.column - 1 and s.holds(one.call)
    start = (s.x(one.call) + 8, s.ledger - 12) if beside else (x - min(34, s.pitch / 2), goal[1] + 52)
    places = (0.84, 0.89) if died and beside else (0.6, 0.66) if beside else (0.5, 0.64)
    cut, more = ((start[0] + (goal[0] - start[0]) * at, start[1] + (goal[1] - start[1]) * at) for at in places)
    s.line(*start, *cut, hue, 2.2, halo=6)
    s.line(*more, *goal, hue, 2.2, ' stroke-dasharray="2 4"', halo=6)
    for px, py in (cut, more):
        s.path(f"M{num(px - 12)} {num(py - 3)}l24 6", INK, 4, halo=8)
