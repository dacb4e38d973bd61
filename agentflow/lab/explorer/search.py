"""The search: every state that can be reached within the bounds, breadth first, and the schedules that lead there.

A state is everything that can influence the future: the canonical rows, where each lane's worker stands (a place includes all
answers that the worker has had), and how much of each bound is spent. A state that was seen before is not expanded again, so
the graph is small although its schedules are millions; they are counted over the graph, not walked. Breadth first means that
the first way to a state is a shortest one. A move that changes nothing, such as a claim that finds nothing, is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from psycopg.rows import DictRow

from ..broken.catalogue import BROKEN
from ..history.faults import FAULTS, FaultKind, can_lose
from ..schedule.grammar import LANES, Move, deliver
from ..verify.invariants import Guilty, Invariant
from .exchange import DEAD, Exchange
from .own_process import OutOfTime, SearchProgress, WrongCode
from .replayed_worker import Place
from .transitions import ENDS, Happened, World

_KILL, _EXPIRE, _FORGET = FAULTS["kill"], FAULTS["expire"], FAULTS["forget"]
_LOSING = [kind for kind in FAULTS.values() if kind.loses]
_ASKS = {
    "claim",
    *(broken.name for one in BROKEN.values() for broken in one.adds),
}  # and changes nothing if nothing is found


@dataclass(frozen=True)
class Bounds:
    """How much may go wrong in one schedule. `payloads` is how many different payloads of each event may be delivered."""

    crashes: int = 2
    expiries: int = 2
    lost_replies: int = 1
    renewals: int = 0
    forgettings: int = 0
    payloads: int = 1
    lost_commits: int = 0

    def __str__(self) -> str:
        always, bounds = ("crashes", "expiries", "lost_replies"), asdict(self).items()
        shown = [(name, most) for name, most in bounds if name in always or most != (name == "payloads")]
        return ", ".join(f"{name.replace('_', ' ')} {most}" for name, most in shown)


class ExplorerState(NamedTuple):
    """Numbers of the rows and of each lane's place (DEAD: no worker), and what of the bounds is spent."""

    rows: int
    lanes: tuple[int, ...]
    crashes: int = 0
    expiries: int = 0
    lost_replies: int = 0
    renewals: int = 0
    forgettings: int = 0
    delivered: int = 0
    lost_commits: int = 0


Successor = tuple[Move, ExplorerState, Happened | None]

_move = functools.cache(Move)  # equal moves are one object, in memory and on the way to the parent process


class Rules:
    """The moves that are possible in a state, always in one order, and the state after each."""

    def __init__(self, world: World, bounds: Bounds, workers: int) -> None:
        self.world, self.bounds, self.lanes = world, bounds, LANES[:workers]
        places = tuple(world.started(world.identity(lane, world.first)).number for lane in self.lanes)
        self.first = ExplorerState(world.first, places)

    def steps(self, state: ExplorerState) -> Iterator[Successor]:
        """Go, lose, kill, start, renew, each lane in turn; then expire, due, events, forget, each workflow in turn."""
        places = self.world.player.places
        alive = [(index, places[number]) for index, number in enumerate(state.lanes) if number != DEAD]
        yield from self._going(state, alive)
        yield from self._dying(state, alive)
        for index, number in enumerate(state.lanes):
            if number == DEAD:
                started = self.world.started(self.world.identity(self.lanes[index], state.rows))
                yield _move("start", self.lanes[index]), _at(started.number, state, index, state.rows), None
        yield from self._renewing(state, alive)
        yield from self._outside(state)

    def _going(self, state: ExplorerState, alive: list[tuple[int, Place]]) -> Iterator[Successor]:
        for index, place in alive:
            happened = self.world.go(state.rows, place)
            if happened.rows != state.rows or happened.place.number != place.number:
                after = _at(happened.place.number, state, index, happened.rows)
                yield _move("go", self.lanes[index]), after, happened
        for kind in _LOSING:
            spent = self._spent(state, kind)
            for index, place in alive if spent else ():
                if spent and place.stands and can_lose(kind, place.stands.transaction):
                    happened = self.world.go(state.rows, place, kind.loses)
                    if happened.rows == state.rows and place.stands.transaction in _ASKS:
                        continue  # that nothing was found, nobody needs to hear
                    after = _at(happened.place.number, spent, index, happened.rows)
                    yield _move(kind.name, self.lanes[index]), after, happened

    def _spent(self, state: ExplorerState, kind: FaultKind) -> ExplorerState | None:
        """The state when this fault is counted against its bound; None if the bound is reached."""
        count = getattr(state, kind.bound)
        return state._replace(**{kind.bound: count + 1}) if count < getattr(self.bounds, kind.bound) else None

    def _dying(self, state: ExplorerState, alive: list[tuple[int, Place]]) -> Iterator[Successor]:
        """A worker that holds nothing has nothing to lose: its death would change nothing."""
        spent = self._spent(state, _KILL)
        for index, place in alive:
            if spent and place.answers:
                rows = self.world.killed(state.rows, place.program)
                yield _move("kill", self.lanes[index]), _at(DEAD, spent, index, rows), None

    def _renewing(self, state: ExplorerState, alive: list[tuple[int, Place]]) -> Iterator[Successor]:
        for index, place in alive if state.renewals < self.bounds.renewals else ():
            if place.stands and place.stands.workflow:
                happened = self.world.renewed(state.rows, place)
                if happened.rows != state.rows:
                    after = state._replace(rows=happened.rows, renewals=state.renewals + 1)
                    yield _move("renew", self.lanes[index]), after, happened

    def _outside(self, state: ExplorerState) -> Iterator[Successor]:
        rows = self.world.cache.rows(state.rows)
        yield from self._timely(state, rows.workflows)
        if self.world.events:
            yield from self._delivering(state, rows.workflows)
        if (spent := self._spent(state, _FORGET)) and any(row["remembered"] for row in rows.effects):
            happened = self.world.forgotten(state.rows)
            yield _move("forget"), spent._replace(rows=happened.rows), happened

    def _timely(self, state: ExplorerState, workflows: tuple[DictRow, ...]) -> Iterator[Successor]:
        spent, several = self._spent(state, _EXPIRE), len(workflows) > 1
        alone = sum(row["lease"] == "live" for row in workflows) == 1
        for number, row in enumerate(workflows, 1):
            if row["status"] == "ready" and row["lease"] == "live" and spent:
                happened = self.world.expired(state.rows, row["id"])
                yield _move("expire", request=None if alone else number), spent._replace(rows=happened.rows), happened
            if row["status"] == "ready" and row["lease_owner"] is None and not row["due"]:
                happened = self.world.expired(state.rows, row["id"])
                yield _move("due", request=number if several else None), state._replace(rows=happened.rows), happened

    def _delivering(self, state: ExplorerState, workflows: tuple[DictRow, ...]) -> Iterator[Successor]:
        several, bit = len(workflows) > 1, 1
        for number, row in enumerate(workflows, 1):
            for event, payload in self.world.events:
                for value in (payload, *range(2, self.bounds.payloads + 1))[: self.bounds.payloads]:
                    is_open = row["status"] in ("ready", "waiting") and row["waiting_for"] in (None, event)
                    if is_open and not state.delivered & bit:
                        happened = self.world.delivered(state.rows, row["id"], event, value)
                        after = state._replace(rows=happened.rows, delivered=state.delivered | bit)
                        yield deliver(event, value, number if several else None), after, happened
                    bit <<= 1


def _at(place: int, state: ExplorerState, index: int, rows: int) -> ExplorerState:
    """The state with these rows, and with the worker of one lane at this place."""
    return ExplorerState(rows, (*state.lanes[:index], place, *state.lanes[index + 1 :]), *state[2:])


@dataclass(frozen=True)
class Fall:
    """An invariant that fell: which, the guilty row, and the state and move at which it did."""

    invariant: Invariant
    guilty: Guilty
    state: int
    move: Move | None


class Graph:
    """The states that were reached, breadth first, so the first way to each is a shortest one.

    `following` holds, for each state that was expanded, the moves from it and the states to which they lead. With `exchange`,
    a state stands for its images, too, and a move leads to a state or to an image of it. Images go on alike, so each schedule of
    the whole space is still one way through the graph, and is counted once.
    """

    def __init__(self, rules: Rules, exchange: Exchange | None = None) -> None:
        self.rules = rules
        self._key: Callable[..., Hashable] = exchange.key if exchange else ExplorerState
        self.states: list[ExplorerState] = [rules.first]
        self.following: list[list[tuple[Move, int]]] = []
        self.harms: dict[int, list[Move]] = {}  # the moves from a state that do harm; none if it is stuck itself
        self._numbers: dict[Hashable, int] = {self._key(*rules.first): 0}
        self.came: list[tuple[int, Move]] = [(-1, Move(""))]  # from which state, by which move, each was first reached
        self.falls: dict[str, Fall] = {}
        self.tell: Callable[[Fall], object] | None = None  # of each fall, at once
        self.at, self.looked_at, self.depth, self.transitions, self.stopped = 0, 0, 0, 0, ""
        self.doubt: WrongCode | None = None
        self.doubtful = 0

    def __getstate__(self) -> dict[str, Any]:
        """All that a search does not need alone."""
        return {**vars(self), "_numbers": {}, "_key": None, "tell": None}

    # -- search ------------------------------------------------------------------------------------------------------

    def search(self, moves: int | None, ends: tuple[str, ...]) -> None:
        """Reaches and expands every state within the bounds; `stopped` gives the reason if it could not.

        The first fall of an invariant of a kind in `ends` ends the search; `moves` bounds a schedule's length.
        """
        level_ends, progress = 1, self.rules.world.player.progress
        while self.at < len(self.states):
            if self.at == level_ends:
                self.depth, level_ends = self.depth + 1, len(self.states)
            self._report(progress)
            try:
                progress.check_deadline()
                if self.depth == moves:
                    self.stopped = f"the bound of {moves} moves"
                elif self._expand(self.at, ends):
                    self.stopped = "an invariant that fell"
            except OutOfTime as over:
                self.stopped = str(over)
            if self.stopped:
                break
            self.at += 1
        self._report(progress)

    def _report(self, progress: SearchProgress) -> None:
        progress.states, progress.transitions, progress.depth = self.at, self.transitions, self.depth
        progress.statements, progress.rows = self.rules.world.cache.statements, len(self.rules.world.cache)

    def _expand(self, at: int, ends: tuple[str, ...]) -> bool:
        """Whether an invariant fell that is enough to end the search."""
        self.looked_at = at
        self.following.append([])
        for move, state, happened in self.rules.steps(self.states[at]):
            fallen = happened.violations if happened else ()
            harmful = any(invariant.kind == "harm" for invariant, _ in fallen)
            if harmful:
                self.harms.setdefault(at, []).append(move)
            for invariant, guilty in fallen:
                if self._fell(Fall(invariant, guilty, at, move)) and invariant.kind in ends:
                    return True
            if harmful:
                continue  # what follows a harm is no news
            known = len(self.states)
            target = self._numbers.setdefault(self._key(*state), known)
            self.following[at].append((move, target))
            self.transitions += 1
            if target == known:
                self.states.append(state)
                self.came.append((at, move))
                if not self._fine(target) and "harm" in ends:
                    return True
            self.looked_at = at
        return False

    def _fine(self, number: int) -> bool:
        """Whether a new state's workflows can still be completed; if not, the fall is noted."""
        state, world, self.looked_at = self.states[number], self.rules.world, number
        try:
            if world.can_finish(state.rows):
                return True
            places = [world.player.places[one] for one in state.lanes if one != DEAD]
            guilty = world.stuck(state.rows, places)
        except WrongCode as wrong:  # a schedule may lead there; if none within the bounds does, this one is reported
            if self.doubt is None:
                self.doubt, self.doubtful = wrong, number
            return True
        for invariant, row in guilty:
            self.harms.setdefault(number, [])
            self._fell(Fall(invariant, row, number, None))
        return not guilty

    def _fell(self, fall: Fall) -> bool:
        """Whether this is the first fall of its invariant; later ones are no shorter."""
        is_first = self.falls.setdefault(fall.invariant.name, fall) is fall
        if is_first and self.tell:
            self.tell(fall)
        return is_first

    # -- schedules ---------------------------------------------------------------------------------------------------

    def way(self, number: int) -> list[Move]:
        """The moves of a shortest schedule to a state; of several, the first in the order of Rules.steps()."""
        moves: list[Move] = []
        while number > 0:
            number, move = self.came[number]
            moves.append(move)
        return moves[::-1]

    def counts(self) -> list[int] | None:
        """For each state, how many schedules go on from there until no move is possible, or to a harm; None if for ever."""
        counts, harms = [1] * len(self.states), self._harmful()
        for number in (order := self._order()) or ():
            counts[number] = sum([counts[target] for _, target in self.following[number]], harms[number]) or 1
        return counts if order else None

    def ends(self) -> dict[str, int] | None:
        """How many schedules come to each of ENDS (to the last ones only if there are any); None if some go on for ever."""
        ways, ends, harms = [1] + [0] * (len(self.states) - 1), dict.fromkeys(ENDS, 0), self._harmful()
        for number in reversed((order := self._order()) or ()):
            for _, target in self.following[number]:
                ways[target] += ways[number]
            ends["harmful"] += ways[number] * harms[number]
            if not self.following[number] and not harms[number]:
                ends[self.rules.world.end(self.states[number].rows)] += ways[number]
        return {end: times for end, times in ends.items() if times or end in ENDS[:4]} if order else None

    def _harmful(self) -> list[int]:
        """How many moves of each state do harm."""
        return [len(self.harms.get(number, ())) for number in range(len(self.states))]

    def _order(self) -> list[int] | None:
        """The states, each after those that it leads to; None if some schedules go in a circle."""
        left = [0] * len(self.states)  # how many moves lead to a state from states that are not in the order yet
        for moves in self.following:
            for _, target in moves:
                left[target] += 1
        order = [number for number, moves in enumerate(left) if not moves]
        for number in order:  # which grows
            for _, target in self.following[number]:
                left[target] -= 1
                if not left[target]:
                    order.append(target)
        return order[::-1] if len(order) == len(left) else None
