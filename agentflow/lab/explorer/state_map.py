"""A map of every history: the states of an exploration by the number of moves, and schedules drawn over them.

It needs nothing but the graph that the exploration keeps. Few states are drawn one by one; many are one bar for each level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from math import ceil
from textwrap import wrap

from ...errors import BadSchedule
from ..history.faults import FAULTS
from ..history.words import counted
from ..pictures.svg import HUES, INK, MUTE, PAPER, Picture, escaped, frame, num
from ..schedule.grammar import LANES, Move, Schedule, parse
from .search import ExplorerState, Graph

SINGLY, LINES, HARMS = 6000, 1500, 500  # so many states are drawn one by one, transitions as lines, and harms
WIDE, LEFT, TOP, HIGH, MOST = 980, 40, 66, 330, 7.2
_Way = list[int]


class StateMap:
    """Where each state stands: `x` and `y` in pixels, `depth` in moves, `gap` where an effect is there and no row says so."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.singly = len(graph.states) <= SINGLY
        self.harms = sorted(graph.harms, key=lambda number: (len(self._harmed(number)), number))
        self.shown = self.harms[: HARMS if self.singly else 1]
        came = [before for before, _ in graph.came] + self.harms  # a harm has a place of its own, after its state
        self.depth = [0] * len(came)
        for number, before in enumerate(came[1:], 1):
            self.depth[number] = self.depth[before] + 1
        self.levels: list[list[int]] = [[] for _ in range(max(self.depth) + 1)]
        for number, depth in enumerate(self.depth):
            self.levels[depth].append(number)
        gaps = {number for number in {state.rows for state in graph.states} if _in_gap(graph, number)}
        self.gap = [state.rows in gaps for state in graph.states]
        self.step, most = (WIDE - LEFT - 60) / len(self.levels), max(map(len, self.levels))
        self.pitch = min(MOST, max(HIGH / most, (HIGH * 0.7 * self.step / most) ** 0.5 if most > 100 else 0))
        self.across = ceil(most * self.pitch / HIGH)  # how many stand side by side
        self.place = [(0.0, TOP + HIGH / 2)] * len(came)
        for level in self.levels[1:]:  # each near the state from which it was first reached
            level.sort(key=lambda number: (self.place[came[number]][1], number))
            rows = ceil(len(level) / self.across)
            for n, number in enumerate(level):
                x = (n % self.across - (min(self.across, len(level)) - 1) / 2) * self.pitch
                self.place[number] = x, TOP + HIGH / 2 + (n // self.across - (rows - 1) / 2) * self.pitch

    def at(self, number: int) -> tuple[float, float]:
        """The place of a state."""
        x, y = self.place[number]
        return LEFT + self.depth[number] * self.step + x, y

    def way(self, number: int) -> list[Move]:
        """The moves of a shortest schedule to this place; those after the states are the harms."""
        states = len(self.graph.states)
        return self.graph.way(number) if number < states else self._harmed(self.harms[number - states])

    def _harmed(self, number: int) -> list[Move]:
        return self.graph.way(number) + self.graph.harms[number][:1]

    def walk(self, schedule: Schedule) -> tuple[_Way, str]:
        """The states that a schedule comes to, and in a sentence where and why it leaves the map, if it does."""
        moves = [one for move in schedule.moves for one in _single(move)]
        first = [0], tuple(range(len(self.graph.states[0].lanes))), 0
        best: tuple[_Way, tuple[int, ...], int] = first
        open_ways = [first]
        while open_ways:
            way, names, at = open_ways.pop()
            best = max(best, (way, names, at), key=lambda one: (one[2], len(one[0])))
            if at == len(moves):
                return way, ""
            following = self._taken(way[-1], moves[at], names)
            harms = any(_alike(one, moves[at], names) for one in self.graph.harms.get(way[-1], ()))
            if not following and moves[at].verb == "go" and not harms and way[-1] < len(self.graph.following):
                open_ways.append((way, names, at + 1))  # it finds nothing, or its worker has come to its end
            again = moves[at].times is None
            open_ways += [([*way, target], swapped, at + (not again)) for target, swapped in following][::-1]
        way, names, at = best
        where = f"It leaves the map after {counted(len(way) - 1, 'move')}, at `{moves[at]}`"
        return way, f"{where}: {self._why(way[-1], moves[at], names)}."

    def _why(self, number: int, move: Move, names: tuple[int, ...]) -> str:
        """Why a move does not lead from a state to another."""
        if any(_alike(one, move, names) for one in self.graph.harms.get(number, ())):
            return "it does harm, and what follows a harm is not explored"
        if number >= len(self.graph.following):
            return "the search was stopped there"
        name = "renewals" if move.verb == "renew" else FAULTS[move.verb].bound if move.verb in FAULTS else ""
        if name and getattr(self.graph.states[number], name) >= (most := getattr(self.graph.rules.bounds, name)):
            return f"the bound of {name.replace('_', ' ')} is {most}"
        return "the explorer makes no such move there; it leaves out what changes nothing"

    def _taken(self, number: int, move: Move, names: tuple[int, ...]) -> list[tuple[int, tuple[int, ...]]]:
        """Where the move leads; `names[i]` is which lane of the state the schedule's lane i is, since workers are exchanged."""
        found = []
        for one, target in self.graph.following[number] if number < len(self.graph.following) else ():
            if _alike(one, move, names):
                states = self.graph.states[number], self.graph.states[target]
                found += [(target, tuple(swap[name] for name in names)) for swap in _swaps(*states, one.lane)]
        return found


def _alike(one: Move, move: Move, names: tuple[int, ...]) -> bool:
    """Whether a move of the graph is the schedule's."""
    lane = LANES[names[LANES.index(move.lane)]] if move.lane and LANES.index(move.lane) < len(names) else ""
    said = move.verb, lane, move.event, move.payload_text, move.request or 1
    return (one.verb, one.lane, one.event, one.payload_text, one.request or 1) == said


def _swaps(before: ExplorerState, after: ExplorerState, lane: str) -> Iterator[tuple[int, ...]]:
    """How lanes may have been exchanged on the way: not at all if the others stand where they stood, else in any way."""
    same = tuple(range(len(before.lanes)))
    if all(before.lanes[n] == after.lanes[n] for n in same if LANES[n] != lane):
        yield same
    else:
        yield from (order for order in permutations(same) if order != same)


def _single(move: Move) -> Iterator[Move]:
    yield from [Move(**{**vars(move), "times": 1})] * move.times if move.times else [move]


def _in_gap(graph: Graph, rows: int) -> bool:
    """Whether a workflow has more effects than acknowledged actions."""
    here = graph.rules.world.cache.rows(rows)
    for workflow in here.workflows:
        known = sum(row["status"] == "ACKNOWLEDGED" for row in here.of("intents", workflow["id"]))
        if len(here.of("effects", workflow["id"])) > known:
            return True
    return False


def draw_map(graph: Graph, what: str, schedules: Sequence[str | Schedule], setting: object) -> tuple[StateMap, Picture]:
    """The map of a graph and its picture. Raises BadSchedule for a schedule of another setting."""
    lines = [parse(one) if isinstance(one, str) else one for one in schedules]
    for line in lines:
        if line.setting != setting:
            raise BadSchedule(f"`{line}` belongs to another setting; this map shows `{setting}`. Nothing was drawn.")
    here = StateMap(graph)
    parts, said, on_top = [*(_singly(here) if here.singly else _by_level(here)), *_axis(here)], [], ""
    if here.harms:
        parts += [_harm(here, n) for n in range(len(here.shown))][::-1]
        way, first = here.way(len(here.gap)), here.harms[0]
        parts.append(_drawn(here, [*_way(graph, first), len(here.gap)], INK, "5 3"))
        x, y = here.at(len(here.gap))
        after = counted(len(way), "move")
        said.append(f"The nearest harm comes after {after} (dashed): {Schedule(moves=tuple(way))}.")
        on_top = f'<text class="b h e" x="{num(x - 12)}" y="{num(y - 8)}">harm after {after}</text>'
        if len(here.shown) < len(here.harms):
            said.append(
                f"Of {len(here.harms):,} harms the nearest {len(here.shown):,} are drawn.".replace(
                    "nearest 1 are", "nearest is"
                )
            )
    for number, line in enumerate(lines):
        walked, left = here.walk(line)
        parts.append(_drawn(here, walked, list(HUES.values())[number % len(HUES)], ""))
        comes = counted(len(set(walked)), "of these states", "of these states")
        said.append(f"Your schedule `{line}` comes to {comes}. {left}".strip())
    parts.append(on_top)  # no line crosses it
    label, high = _counted(here, what), TOP + HIGH + 74
    parts.append(f'<text class="b" x="16" y="22" font-size="15">{escaped(what)}</text>')
    below = [row for one in said for row in wrap(one, 150, max_lines=4)]
    for y, words in [(42, label), *((high + 6 + 16 * n, row) for n, row in enumerate(below))]:
        parts.append(f'<text class="m" x="16" y="{y}">{escaped(words)}</text>')
    states = [sum(one < len(here.gap) for one in level) for level in here.levels]
    levels = [f"after {counted(n, 'move')}: {counted(many, 'state')}" for n, many in enumerate(states)]
    text = "\n".join([label, *said, *levels])
    high += 16 * len(below) + 8 * bool(below)
    return here, Picture(frame("".join(parts), width=WIDE, height=high, label=label, text=text), text)


def _counted(here: StateMap, what: str) -> str:
    states, gaps = len(here.gap), sum(here.gap)
    harms = f"{len(here.harms):,} from which a move does harm" if here.harms else "no harm was found"
    said = f"{states:,} states, {here.graph.transitions:,} moves between them;"
    return f"{said} in {gaps:,} an effect exists and no row says so; {harms}."


def _way(graph: Graph, number: int) -> _Way:
    way = [number]
    while way[-1]:
        way.append(graph.came[way[-1]][0])
    return way[::-1]


def _singly(here: StateMap) -> Iterator[str]:
    """Each state a dot, or a diamond in the gap; few transitions are lines."""
    if here.graph.transitions <= LINES:
        for lane, hue in [*((lane, HUES[lane]) for lane in LANES if lane in HUES), ("", MUTE)]:
            drawn = [
                f"M{_xy(here.at(number))}L{_xy(here.at(target))}"
                for number, moves in enumerate(here.graph.following)
                for move, target in moves
                if (move.lane if move.verb == "go" else "") == lane
            ]
            dash = "" if lane else ' stroke-dasharray="2 2"'
            yield f'<path d="{"".join(drawn)}" fill="none" stroke="{hue}" stroke-width=".6" opacity=".6"{dash}/>'
    size = max(0.7, min(2.2, here.pitch * 0.36))
    plain = "".join(f"M{_xy(here.at(number))}h0" for number, gap in enumerate(here.gap) if not gap)
    yield f'<path d="{plain}" stroke="{MUTE}" stroke-width="{2 * size:.1f}" stroke-linecap="round"/>'
    size = max(1.1, size * 1.5)
    marks = (here.at(number) for number, gap in enumerate(here.gap) if gap)
    diamonds = "".join(
        f"M{num(x - size)} {num(y)}l{size:.1f} -{size:.1f} {size:.1f} {size:.1f} -{size:.1f} {size:.1f}z"
        for x, y in marks
    )
    yield f'<path d="{diamonds}" fill="{INK}"/>'


def _by_level(here: StateMap) -> Iterator[str]:
    """A bar for each number of moves, as high as there are states; the inked part are those in the gap."""
    pitch = HIGH / max(map(len, here.levels))
    for n, level in enumerate(here.levels):
        x, high = LEFT + n * here.step, len(level) * pitch
        inked = sum(here.gap[number] for number in level if number < len(here.gap)) * pitch
        wide, middle = here.step * 0.6, TOP + HIGH / 2
        title = f"<title>after {counted(n, 'move')}: {len(level):,} states</title>"
        for tall, look, inner in ((high, f'{MUTE}" opacity=".45', title), (inked, INK, "")):
            size = f'y="{middle - tall / 2:.2f}" width="{num(wide)}" height="{tall:.2f}"'
            yield f'<rect x="{num(x - wide / 2)}" {size} fill="{look}">{inner}</rect>'


def _axis(here: StateMap) -> Iterator[str]:
    every = 1 if len(here.levels) <= 24 else 5
    for n in range(0, len(here.levels), every):
        yield f'<text class="m c" x="{num(LEFT + n * here.step)}" y="{TOP + HIGH + 22}">{n}</text>'
    bars = not here.singly
    one = (
        "bars: states, inked part: those in the gap"
        if bars
        else "a dot is a state, a diamond: an effect exists and no row says so"
    )
    lines = (
        ""
        if bars or here.graph.transitions > LINES
        else "; blue and orange: A and B go on, dashed grey: a fault or an end of a lease"
    )
    yield f'<text class="m" x="16" y="{TOP + HIGH + 44}">moves from the start · {one}{lines}</text>'
    yield f'<text class="m" x="16" y="{TOP + HIGH + 62}">double diamond: a harm · thick: your schedules</text>'


def _harm(here: StateMap, n: int) -> str:
    """The nth harm, a double diamond; the nearest is large."""
    x, y = here.at(len(here.gap) + n)
    said = f"<title>harm: {escaped(Schedule(moves=tuple(here.way(len(here.gap) + n))))}</title>"
    size = max(2.0, min(6.0, here.pitch)) if n else 8

    def diamond(r: float, fill: str) -> str:
        path = f"M{num(x - r)} {num(y)}l{r:g} -{r:g} {r:g} {r:g} -{r:g} {r:g}z"
        return f'<path d="{path}" fill="{fill}" stroke="{INK}" stroke-width="1.4"/>'

    return f'<g class="ev">{said}{diamond(size, PAPER)}{diamond(size / 2, INK)}</g>'


def _drawn(here: StateMap, way: _Way, hue: str, dash: str) -> str:
    """A way through the states, thick."""
    path = "M" + "L".join(_xy(here.at(number)) for number in way)
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    under = f'<path d="{path}" fill="none" stroke="{PAPER}" stroke-width="5" opacity=".8"/>'
    return f'{under}<path d="{path}" fill="none" stroke="{hue}" stroke-width="{2 if dash else 3}"{dashed}/>'


def _xy(point: tuple[float, float]) -> str:
    return f"{num(round(point[0], 1))} {num(round(point[1], 1))}"
