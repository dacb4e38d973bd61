"""The marks of a timeline, one function for each kind of column: shape says what, hue says who, fill says how sure.

No mark needs an id, a marker or a pattern, so that any number of pictures can share a page.
"""

from __future__ import annotations

from ...statements import BY_PERSON, GUARDED
from ..history.faults import FAULTS
from ..history.sentences import line
from ..history.story import Mark
from .svg import INK, PAPER, num
from .timeline_layout import CLOSE, FAULT, FULL, PITCH, Strip, one_line, shortened, width, wrapped
from .timeline_tool_calls import ROOM_OF_A_STEP, answered, before, dot, ring, tool

NAMES = {"create": "create", "claim": "claim", "receive": "wait", **{name: name for name in (*GUARDED, *BY_PERSON)}}
SYLLABLES = {"checkpoint": ("check-", "point"), "acknowledge": ("acknow-", "ledge")}
NAMED_SUBJECTS = {"checkpoint", "intent", "wait", "receive", "deliver", "postpone"}


# -- parts of marks ------------------------------------------------------------------------------------------------------


def _arrow(s: Strip, mark: Mark, x: float, tip: float) -> None:
    """From the worker's bar down to the row; through a broken wall if nothing stopped what should have been refused."""
    y, hue = s.bar(mark.who), s.hue(mark.who)
    if y is not None:
        s.line(x, y + s.layout.band[1] - s.layout.bar, x, tip - 8, PAPER, 5)
        s.shaft(x, y, tip - 7, hue, 3 if mark.lacks else 1.5)
        s.filled(f"M{num(x)} {num(tip)}l{'-7 -12h14' if mark.lacks else '-4 -8h8'}z", hue)
    if mark.lacks:
        for side in (-1, 1):
            s.path(f"M{num(x + 28 * side)} {num(tip - 38)}v19h{-19 * side}", PAPER, 10)
            s.path(f"M{num(x + 27 * side)} {num(tip - 38)}v18", INK, 2.5)
            s.rect(x + (8 if side > 0 else -28), tip - 22, 20, 6)


def _level(s: Strip, mark: Mark) -> float:
    return s.level(mark.row_token, mark.row)


def _tick(s: Strip, x: float, mark: Mark) -> None:
    s.path(f"M{num(x)} {num(_level(s, mark) - 1)}v9", INK, 3)


def _square(s: Strip, x: float, y: float, hue: str, how: str) -> None:
    """A step: run (hollow), committed (solid) or replayed (dotted)."""
    s.rect(x - 9.5, y - 9.5, 19, 19, PAPER, ' rx="5"')
    size = {"run": 14, "committed": 16, "replayed": 15}[how]
    edge = "" if how == "committed" else f' stroke="{hue}" stroke-width="2"'
    dotted = ' stroke-dasharray="2 2.4"' if how == "replayed" else ""
    s.rect(x - size / 2, y - size / 2, size, size, PAPER if edge else hue, f' rx="4"{edge}{dotted}')


def _names(s: Strip, x: float, mark: Mark) -> None:
    """The transaction's name below the row, and what it is about."""
    name, *rest = [NAMES[mark.kind]] if mark.kind in NAMES else wrapped(mark.event.replace("_", " "), s.room)
    refusal = mark.kind == "acknowledge" and mark.detail.get("refused")
    name = "refusal" if refusal else name
    lines: tuple[str, ...] = tuple(rest)
    if mark.folded:
        name = f"{'check' if mark.kind == 'checkpoint' else name} ×{len(mark.folded)}"
    elif mark.kind in NAMED_SUBJECTS or (mark.kind == "acknowledge" and _several_actions(s)):
        lines = wrapped(mark.subject, s.room, 2)
    if mark.event in {"event_repeated", "event_refused"}:
        about = ", ".join(mark.guards) if mark.event == "event_refused" and mark.guards else mark.subject
        lines = (mark.event.removeprefix("event_"), shortened(about, s.room))
    if mark.kind == "fail" and mark.transaction == "claim":
        lines = ("crash", "budget")
    said = [(name, "c h"), *[(one, "c m h") for one in lines]]
    if mark.kind in SYLLABLES and not refusal and (s.pitch < PITCH or _is_wide(s, mark)) and not mark.folded:
        said = [(part, "c h") for part in SYLLABLES[mark.kind]]
        said += [(shortened(mark.subject, s.room), "c m h")] if lines else []
    _below(s, x, mark, said)


def _below(s: Strip, x: float, mark: Mark, said: list[tuple[str, str]]) -> None:
    """Words below the row; where columns of a scale of time come close, the first of them alone, on a line that is free."""
    places = [s.rows[mark.row] + down for down in s.layout.names]
    lines = [(y, one, kind) for (one, kind), y in zip(said, places, strict=False)]
    alone, line = s.milliseconds and s.crowded(x), f"names {mark.row}"
    if (alone or not s.labels(line, x, lines)) and s.milliseconds:
        s.staggered(line, x, places, *said[0])


def _is_wide(s: Strip, mark: Mark) -> bool:
    """Whether the name would touch the one before it."""
    neighbour = before(s)
    wide = {"acknowledge"} | ({"checkpoint"} if mark.kind == "acknowledge" else set())
    return neighbour is not None and neighbour.kind in wide


def _is_action(s: Strip, mark: Mark) -> bool:
    return any(one.kind == "intent" and one.subject == mark.subject for one in s.told.marks)


def _several_actions(s: Strip) -> bool:
    so_far = s.told.marks[: s.column + 1]
    return len({mark.subject for mark in so_far if mark.kind in {"intent", "acknowledge"}}) > 1


def _over(s: Strip, x: float, y: float, mark: Mark, said: str = "") -> None:
    """Words, or what the mark is about, above a worker's bar, or below it where a scale of time leaves no room."""
    said = said or shortened(mark.subject, min(ROOM_OF_A_STEP, s.room))
    s.staggered(f"steps {mark.who}", x, (y - 14, y + 20 if s.layout is FULL else y + 18), said, "c h")


def _fault(s: Strip, x: float, mark: Mark, down_to: float) -> None:
    """The fault's name on the clock, and the dotted line that ties it to what it does."""
    words, lines = FAULTS[mark.kind].words(mark.detail)[1].format(who=mark.who or ""), (s.faults, s.faults - FAULT)
    any(s.staggered("faults", x, lines, shortened(words, room, 11, True), "c b") for room in (64, s.pitch - 1))
    s.shaft(x, s.faults + 5, down_to, INK, 1.2, ' stroke-dasharray="2 3"')


# -- the columns ---------------------------------------------------------------------------------------------------------


def create(s: Strip, x: float, mark: Mark) -> None:
    """The workflow's row begins."""
    s.path(f"M{num(x)} {s.rows[mark.row] - 6}v13", INK, 3)
    _names(s, x, mark)


def claim(s: Strip, x: float, mark: Mark) -> None:
    """A shield with the new token; the line has risen to it."""
    level, y = _level(s, mark), s.bar(mark.who)
    _arrow(s, mark, x, level - 10)
    if y is not None:
        dot(s, x, y, s.hue(mark.who))
    s.path(f"M{num(x - 10)} {num(level - 9)}h20v9c0 8-6 11-10 13c-4-2-10-5-10-13z", INK, 1.8, fill=PAPER)
    s.text(x, level + 5.5, str(mark.row_token), "c b", 13 if mark.row_token < 100 else 9)
    _names(s, x, mark)


def transaction(s: Strip, x: float, mark: Mark) -> None:
    """A commit: from its worker to a tick on the row; a step has squares, anything else a dot."""
    y, level = s.bar(mark.who), _level(s, mark)
    _arrow(s, mark, x, level - 1)
    _tick(s, x, mark)
    if y is not None:
        hue = s.hue(mark.who)
        step = mark.kind == "checkpoint" or (mark.kind == "postpone" and not _is_action(s, mark))
        if step and _is_free(s, x, 34):
            _square(s, x - 22, y, hue, "run")
        if mark.kind == "checkpoint":
            _square(s, x, y, hue, "committed")
        else:
            dot(s, x, y, hue)
        if step and not mark.folded:
            _over(s, x, y, mark)
        if mark.kind == "renew":
            bottom = (s.lane(mark.who) or 0) + s.layout.band[1]
            s.filled(f"M{num(x - 6)} {bottom}h12l-6 6z", hue)
    _names(s, x, mark)


def by_person(s: Strip, x: float, mark: Mark) -> None:
    """Somebody outside acts on the row: from below, through the world, with no worker's hue."""
    level, refused = _level(s, mark), mark.event == "event_refused"
    foot = level + ((6 if s.layout is FULL else 3) if refused else 8)
    words = s.rows[mark.row] + s.layout.names[-1] + 4  # below them it begins, or it would strike them through
    s.line(x, s.person, x, words, PAPER, 6)
    s.line(x, s.person, x, words, INK, 1.5)
    if refused:
        s.rect(x - 12, foot + 2, 24, 5)
    else:
        s.filled(f"M{num(x)} {num(foot)}l-4 8h8z", INK)
        _tick(s, x, mark)
    dot(s, x, s.person, INK)
    _names(s, x, mark)


def replay(s: Strip, x: float, mark: Mark) -> None:
    """A step that gets its recorded result: dotted, with a hook, and nothing is written below it."""
    y = s.bar(mark.who)
    if y is None:
        return
    hue = s.hue(mark.who)
    _square(s, x, y, hue, "replayed")
    if _is_free(s, x, 29):
        s.path(f"M{num(x)} {y + 10}c0 9-17 9-17 0", hue, 1.5)
        s.filled(f"M{num(x - 17)} {y + 3}l-3.8 7h7.6z", hue)
    _over(s, x, y, mark, f"replay ×{len(mark.folded)}" if mark.folded else "")


def fault(s: Strip, x: float, mark: Mark) -> None:
    """What was done to a worker, its lease, the row or the world, tied to its name on the clock."""
    kind, y, top = FAULTS[mark.kind], s.bar(mark.who), s.lane(mark.who)
    if kind.mark == "open":
        return _passes_over(s, x, mark)
    if kind.strikes == "world":
        _fault(s, x, mark, s.ledger - 12)
        _struck_ring(s, x)
    elif kind.strikes == "row" or y is None or top is None:
        level = _level(s, mark)
        _fault(s, x, mark, level - (12 if kind.mark == "cut" else 4))
        if kind.mark == "cut":
            s.line(x - 5, level, x + 5, level, PAPER, 4)
            s.path(f"M{num(x - 5)} {num(level - 8)}v16m10 0v-16", INK, 3)
    else:
        _fault(s, x, mark, top + s.layout.band[0] - 6 if kind.strikes == "lease" else y - 12)
        _on_bar(s, x, y, kind.mark, s.hue(mark.who))
        fates = {one.how for one in mark.answers}
        if "died" in fates:
            _below(s, x, mark, [("its answer", "c h"), ("dies too", "c h")])
        elif "lost" in fates:
            _below(s, x, mark, [("reply lost", "c b h")])


def _passes_over(s: Strip, x: float, mark: Mark) -> None:
    """A claim that found nothing: an open ring, and nothing is written."""
    y = s.bar(mark.who)
    if y is not None:
        s.out.append(
            f'<circle cx="{num(x)}" cy="{y}" r="5" fill="{PAPER}" stroke="{s.hue(mark.who)}" stroke-width="2"/>'
        )
        for down, said in ((-24, "passes over"), (-12, mark.subject)):
            s.label(f"over {mark.who} {down}", x, y + down, shortened(said, max(s.pitch + 6, 40)), "c h")


def _is_free(s: Strip, x: float, room: float) -> bool:
    """Whether a mark may reach so far to the left of its column, which on a scale of time may stand close to another."""
    return not s.milliseconds or all(other >= x or x - other >= room for other in s.xs.values())


def _on_bar(s: Strip, x: float, y: int, shape: str, hue: str) -> None:
    if shape == "cross":
        s.path(f"M{num(x - 8)} {y - 8}l16 16m0-16l-16 16", hue, 4.5, halo=8)
    elif shape == "bar":
        s.line(x, y - 8, x, y + 8, hue, 3)
    elif shape == "dot":
        dot(s, x, y, hue)


def _struck_ring(s: Strip, x: float) -> None:
    """The ring of an answer from the key, struck out: the world has lost its memory, not what it did."""
    ring(s, x)
    s.path(f"M{num(x - 10)} {s.ledger + 10}l20 -20", INK, 2.5, halo=6)
    places = zip(("keys", "forgotten"), s.layout.labels, strict=False)
    s.labels("tool", x, [(s.ledger + down, said, "c h") for said, down in places])


def stop(s: Strip, x: float, mark: Mark) -> None:
    """A worker ends its run by itself."""
    y = s.bar(mark.who)
    if y is not None:
        s.line(x, y - 8, x, y + 8, s.hue(mark.who), 3)
        _over(s, min(x, s.edge - width("LostLease") / 2 - 2), y, mark, "LostLease")


def refused(s: Strip, x: float, mark: Mark) -> None:
    """A write that ends at a wall above the row."""
    y, level = s.bar(mark.who), _level(s, mark)
    if y is not None:
        hue = s.hue(mark.who)
        s.line(x, y + s.layout.band[1] - s.layout.bar, x, level - 14, PAPER, 5)
        s.shaft(x, y, level - 14, hue, 2.2)
        s.rect(x - 24, level - 15, 48, 6)
        if mark.transaction in {"checkpoint", "postpone"}:
            _square(s, x, y, hue, "run")
            _over(s, x, y, mark)
        else:
            dot(s, x, y, hue)
            _over(s, x, y, mark, shortened(mark.transaction, 76))
    box = s.told.box
    if box is None or box.kind != "refused" or box.span.start != s.column:
        said = [shortened(one, s.room) for one in (mark.why, "refused", ", ".join(mark.guards)) if one]
        _below(s, x, mark, list(zip(said, ("c b h", "c m h", "c m h"), strict=False)))


def other(s: Strip, x: float, mark: Mark) -> None:
    """An entry of a kind without a mark: a tick with its name."""
    _tick(s, x, mark)
    _names(s, x, mark)


DRAWN = {
    "create": create, "claim": claim, "replay": replay, "stop": stop, "refused": refused, "tool": tool,
    **dict.fromkeys(FAULTS, fault), **dict.fromkeys(BY_PERSON, by_person),
    **dict.fromkeys((*GUARDED, "receive"), transaction),
}  # fmt: skip


def clock(s: Strip, x: float, mark: Mark) -> None:
    """The entry's number, and its time if the picture shows times."""
    s.label("numbers", x, s.layout.numbers, mark.label, "c b" if mark.event else "c m")
    if s.seconds and mark.at is not None:
        said = f"{mark.at * 1000:.0f}" if s.milliseconds else f"{mark.at:.2f}"
        s.label("seconds", x, s.layout.seconds, said, "c m")


def columns(s: Strip, first: int, last: int, focus: str = "") -> None:
    """Draws each entry of these columns as a separate group, in causal order, with its sentence as name and tooltip."""
    for column in range(first, last):
        s.column, mark, x = column, s.told.marks[column], s.xs[column]
        said = one_line(s.lines.get(mark.label) or line(mark))
        reach = 0 if focus == mark.label else -1
        tab = f' tabindex="{reach}" role="img" data-lm-suppress-shortcuts="true"' if focus else ""
        s.out.append(f'<g class="ev" data-n="{one_line(mark.label)}"{tab} aria-label="{said}"><title>{said}</title>')
        if mark.answers:
            answered(s, x, mark)
        if focus:  # what a finger has to hit: the whole column
            wide, tall = (CLOSE if s.milliseconds else s.pitch), s.bracket + s.layout.end - s.layout.bracket
            s.rect(x - wide / 2, 0, wide, tall, "none", ' class="hit" pointer-events="all"')
        spent = mark.kind == "fail" and mark.transaction == "claim"
        (claim if spent else DRAWN.get(mark.kind, other))(s, x, mark)
        s.out.append("</g>")
