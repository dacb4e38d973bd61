"""The picture of a race: a lane for each worker, a bar for each workflow that it held, left to right as they committed.

By default each commit has a column, so that a picture has the same shape on a fast and on a slow machine; milliseconds on
request. The hue tells the worker. A filled bar is a workflow held, a hollow one a claim that waits for a neighbour's
commit, an arc a claim that passes over a locked row, a short stroke a claim that found nothing, and a wall a refused write.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from ..history.sentences import sentence
from ..history.story import Mark, named, refusal
from ..history.words import counted
from ..notebook.tables import Table
from ..pictures.svg import DASHED, HUES, INK, PAPER, RULE, Picture, escaped, frame
from .result import DIFFERS, SAID, Held, Look, RaceResult

GUTTER, MARGIN, WIDTH = 96, 16, 960
TOP, LANE, BAR, WAIT = 50, 52, 18, 10
LETTER = 5.8  # px, a bit more than a letter of 11 px takes on average


class _Axis:
    """Where a commit, or a moment, stands: columns of commits, or milliseconds."""

    def __init__(self, race: RaceResult, milliseconds: bool) -> None:
        self.race, self.milliseconds = race, milliseconds
        self.times = [commit.at for commit in race.commits]
        room = WIDTH - GUTTER - MARGIN
        self.end = max([*self.times, *(look.got for look in race.looks)])
        self.pitch = room / self.end if milliseconds else min(16.0, max(4.0, room / (len(self.times) + 1)))
        self.width = GUTTER + MARGIN + (room if milliseconds else max(room, (len(self.times) + 1) * self.pitch))

    def commit(self, n: int) -> float:
        """The middle of the commit's column."""
        return GUTTER + self.pitch * (self.times[n] if self.milliseconds else n + 0.5)

    def moment(self, at: float) -> float:
        """The moment, or the edge between the commits before and after it."""
        return GUTTER + self.pitch * (at if self.milliseconds else bisect_left(sorted(self.times), at))

    def bar(self, held: Held) -> tuple[float, float]:
        """Left and right edge of a bar: half a column around its first and last commit."""
        half = 0.0 if self.milliseconds else 0.5 * self.pitch - 0.5
        left = self.commit(held.first) - half
        return left, max(left + 2, self.commit(held.last) + half)

    def marks(self) -> list[tuple[float, str]]:
        """Five to ten places with round numbers."""
        most = self.end if self.milliseconds else len(self.times)
        step = next(one for one in (size * 10**p for p in range(9) for size in (1, 2, 5)) if most / one <= 10)
        first, shift, unit = (0, 0.0, " ms") if self.milliseconds else (step, 0.5, "")
        return [(GUTTER + self.pitch * (n - shift), f"{n}{unit}") for n in range(first, int(most) + 1, step)]


def draw_race(race: RaceResult, milliseconds: bool = False) -> Picture:
    """The race as a picture with its text twin."""
    axis = _Axis(race, milliseconds)
    height = TOP + LANE * len(race.workers) + 30
    marks = [_held(axis, held) for held in race.held] + [_empty(axis, look) for look in race.empty]
    marks += [_refused(axis, n) for n, entry in enumerate(race.commits) if entry.event == "write_refused"]
    body = [
        _head(axis), *_scale(axis, height), *(_gutter(race, worker) for worker in race.workers),
        *(mark for _, mark in sorted(marks, key=lambda each: each[0])), *_words(axis),
    ]  # fmt: skip
    label = (
        f"{counted(len(race.workers), 'worker')} race for {counted(race.requests, 'request')} with {SAID[race.claim]}: "
        f"{counted(len(race.waited), 'claim')} waited, {len(race.passed_over)} passed over a locked row"
    )
    return Picture(frame("\n".join(body), width=axis.width, height=height, label=label, text=race.text()), race.text())


def _head(axis: _Axis) -> str:
    columns = "milliseconds" if axis.milliseconds else "commits in their order, a column each"
    return (
        f'<text x="10" y="22" class="b" font-size="13">a race with {SAID[axis.race.claim]}</text>'
        f'<text x="10" y="38" class="m">{columns} · a bar is a workflow held · {DIFFERS}</text>'
    )


def _scale(axis: _Axis, height: float) -> list[str]:
    bottom = height - 26
    lines = [f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="{RULE}" fill="none"/>' for x, _ in axis.marks()]
    return lines + [f'<text x="{x:.1f}" y="{height - 10}" class="c m">{text}</text>' for x, text in axis.marks()]


def _top(race: RaceResult, worker: str) -> float:
    """The upper edge of a worker's bars."""
    return TOP + LANE * race.workers.index(worker) + 22


def _gutter(race: RaceResult, worker: str) -> str:
    y = TOP + LANE * race.workers.index(worker)
    return (
        f'<path d="M12 {y + 16}v28" stroke="{HUES[worker]}" stroke-width="4"{_dash(worker)} fill="none"/>'
        f'<text x="22" y="{y + 28}" class="b" font-size="12">worker {worker}</text>'
        f'<text x="22" y="{y + 42}" class="m">{sum(look.worker == worker for look in race.claims)} claimed</text>'
        f'<path d="M10 {y + LANE - 0.5}H{GUTTER - 6}" stroke="{RULE}" fill="none"/>'
    )


def _dash(worker: str) -> str:
    return f' stroke-dasharray="{DASHED[worker]}"' if worker in DASHED else ""


def _mark(n: float, said: str, parts: str, **data: object) -> tuple[float, str]:
    """One thing that happened: named for a screen reader and as a tooltip."""
    more = "".join(f' data-{name}="{escaped(value)}"' for name, value in data.items() if value is not None)
    mark = f'<g class="ev" data-n="{n:g}"{more} aria-label="{escaped(said)}"><title>{escaped(said)}</title>{parts}</g>'
    return n, mark


def _held(axis: _Axis, held: Held) -> tuple[float, str]:
    race, look, worker = axis.race, held.look, held.look.worker
    left, right = axis.bar(held)
    y, hue = _top(race, worker), HUES[worker]
    waits = look in race.waited
    said = f"{worker} claims {look.workflow} with token {look.token}"
    if waits:
        said += f", after waiting for {_names(look, ' and ')}"
    elif look.met:
        said += f", passing over what {_names(look, ' and ')} held locked"
    bar = f'<rect x="{left:.1f}" y="{y}" width="{right - left:.1f}" height="{BAR}"'
    edge = f'stroke="{hue}" stroke-width="1.5"{_dash(worker)}/>'
    parts = [f'{bar} fill="{PAPER}"/>', f'{bar} fill="{hue}" fill-opacity=".2" {edge}']
    parts += [
        f'<path d="M{axis.commit(n):.1f} {y + BAR - 5}v5" stroke="{INK}" fill="none"/>'
        for n, commit in enumerate(race.commits)
        if (commit.worker, commit.workflow, commit.token) == (worker, look.workflow, look.token)
    ]
    if waits:
        start = _wait_from(axis, held)
        parts.append(
            f'<rect class="wait" x="{start:.1f}" y="{y + (BAR - WAIT) / 2}" width="{left - start:.1f}" height="{WAIT}" '
            f'fill="{PAPER}" {edge}'
        )
    elif look.met:
        parts.append(
            f'<path class="over" d="M{left - 5:.1f} {y - 1}q5 -9 10 0" stroke="{INK}" stroke-width="1.5" fill="none"/>'
        )
    number = str(look.workflow).rpartition("-")[2]
    if right - left >= LETTER * len(number) + 4:
        parts.append(f'<text x="{(left + right) / 2:.1f}" y="{y + 12}" class="c b h">{number}</text>')
    said += f"; {held.ended}."
    return _mark(held.first + 1, said, "".join(parts), worker=worker, workflow=look.workflow, last=held.last + 1)


def _names(look: Look, between: str = ", ") -> str:
    """The neighbours that it met, each once."""
    return between.join(dict.fromkeys(look.met))


def _wait_from(axis: _Axis, held: Held) -> float:
    """Where the claim was asked for, and before the claims that it waited for, but after all else of this worker."""
    look, left = held.look, axis.bar(held)[0]
    if axis.milliseconds:
        return min(axis.moment(look.asked), left - 2)
    before = axis.race.commits[: held.first]
    claims = {commit.worker: n for n, commit in enumerate(before) if commit.transaction == "claim"}
    asked = min([axis.moment(look.asked), *(axis.commit(claims[other]) for other in look.met if other in claims)])
    mine = [axis.commit(n) + axis.pitch / 2 for n, commit in enumerate(before) if commit.worker == look.worker]
    return min(max(asked, *mine[-1:], GUTTER), left - 3)


def _empty(axis: _Axis, look: Look) -> tuple[float, str]:
    y, x = _top(axis.race, look.worker), _empty_at(axis, look)
    although = ", although a row looks runnable right afterwards" if look.work_left else ""
    said = f"{look.worker} finds nothing{although}."
    stroke = f'<path class="empty" d="M{x:.1f} {y + 4}v10" stroke="{INK}" stroke-width="2" fill="none"/>'
    more = f'<circle cx="{x:.1f}" cy="{y}" r="2.5" fill="{PAPER}" stroke="{INK}"/>' if look.work_left else ""
    return _mark(_after(axis.race, look) + 0.5, said, stroke + more, worker=look.worker, work=look.work_left)


def _after(race: RaceResult, look: Look) -> int:
    """How many commits stand before an empty claim, its worker's own among them."""
    mine = [n + 1 for n, commit in enumerate(race.commits) if commit.worker == look.worker and commit.at <= look.got]
    return max([sum(commit.at <= look.got for commit in race.commits), *mine[-1:]])


def _empty_at(axis: _Axis, look: Look) -> float:
    return axis.moment(look.got) if axis.milliseconds else GUTTER + axis.pitch * (_after(axis.race, look) + 0.25)


def _refused(axis: _Axis, n: int) -> tuple[float, str]:
    """A wall, and for the first one the picture's one box."""
    race, entry = axis.race, axis.race.commits[n]
    y, x = _top(race, str(entry.worker)), axis.commit(n)
    mark = Mark(
        str(n + 1), "refused", who=entry.worker, subject=entry.subject or "", token=entry.token,
        transaction=entry.transaction, detail=entry.detail,
    )  # fmt: skip
    wall = f'<path class="wall" d="M{x - 6:.1f} {y + BAR + 3}h12" stroke="{INK}" stroke-width="4" fill="none"/>'
    if n == [commit.event for commit in race.commits].index("write_refused"):
        words = named(refusal(mark), mark.guards)
        wide = LETTER * len(words) + 16
        wall += (
            f'<rect x="{x - wide / 2:.1f}" y="{y + BAR + 1}" width="{wide:.1f}" height="15" rx="3" fill="{INK}"/>'
            f'<text x="{x:.1f}" y="{y + BAR + 12}" class="c inv">{words}</text>'
        )
    return _mark(n + 1, f"{sentence(mark)}.", wall, worker=entry.worker, workflow=entry.workflow)


def _words(axis: _Axis) -> list[str]:
    """What stands above the bars: as many words as there is room for; all are in the tooltips and in the text twin."""
    race, found = axis.race, []
    for worker in race.workers:
        bars = [held for held in race.held if held.look.worker == worker]
        waits = [held for held in bars if held.look in race.waited]
        overs = [held for held in bars if held.look in race.passed_over]
        empty = [look for look in race.empty if look.worker == worker]
        said = [(_wait_from(axis, held), f"waits for {_names(held.look)}") for held in waits]
        said += [(axis.bar(held)[0] - 5, f"passes over {_names(held.look)}") for held in overs]
        said += [(_empty_at(axis, look), "nothing, work left" if look.work_left else "nothing") for look in empty]
        free = float(GUTTER)
        for x, words in sorted(said):
            at = min(x, axis.width - 4 - LETTER * len(words))
            if at >= free:
                found.append(f'<text x="{at:.1f}" y="{_top(race, worker) - 11}" class="m h">{escaped(words)}</text>')
                free = at + LETTER * len(words) + 8
    return found


class Race(RaceResult):
    """What workers on one queue did. A notebook shows it as a picture, and as text where there is none."""

    def picture(self, milliseconds: bool = False) -> Picture:
        """The race as a picture: a lane for each worker; from left to right the commits, or milliseconds."""
        return draw_race(self, milliseconds)

    def _repr_html_(self) -> str:
        return self.picture()._repr_html_()


@dataclass(frozen=True)
class Comparison:
    """The same requests, once with SKIP LOCKED and once with a plain lock."""

    skip_locked: Race
    plain_lock: Race

    def table(self) -> Table:
        """Both side by side, a row for each figure."""
        figures: list[tuple[str, Callable[[Race], object]]] = [
            ("workflows completed", lambda race: race.completed),
            ("business effects", lambda race: race.effects),
            ("claims that met an uncommitted claim", lambda race: sum(bool(look.met) for look in race.claims)),
            ("claims that passed over a locked row", lambda race: len(race.passed_over)),
            ("claims that waited", lambda race: len(race.waited)),
            ("longest wait, in neighbours", lambda race: max((len(look.met) for look in race.waited), default=0)),
            ("share of the workers' time spent waiting", lambda race: f"{race.waiting:.1%}"),
            ("empty claims although work was left", lambda race: len(race.empty_with_work)),
        ]
        rows = [
            {"figure": name, "SKIP LOCKED": of(self.skip_locked), "plain lock": of(self.plain_lock)}
            for name, of in figures
        ]
        return Table(rows, f"The same requests, two claims ({DIFFERS}; completed and effects never do)")

    def __repr__(self) -> str:
        return repr(self.table())

    def _repr_html_(self) -> str:
        return self.table()._repr_html_() + self.skip_locked._repr_html_() + self.plain_lock._repr_html_()
