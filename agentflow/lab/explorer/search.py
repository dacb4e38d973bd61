"""The search: every state that can be reached within the bounds, breadth first, and the schedules that lead there.

A state is everything that can influence the future: the canonical rows, where each lane's worker stands (a place includes all
answers that the worker has had), and how much of each bound is spent. A state that was seen before is not expanded again, so
the graph is small although its schedules are millions; they are counted over the graph, not walked. Breadth first means that
the first way to a state is a shortest one. A move that changes nothing, such as a claim that finds nothing, is left out.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from ...database import Row
from ..history.faults import FAULTS, FaultKind
from ..schedule.grammar import LANES, Move, deliver
from ..verify.invariants import Guilty, Invariant
from .own_process import OutOfTime, Progress
from .replayed_worker import Place, WrongCode
from .transitions import Happened, World

DEAD = -1
_LOSING = [kind for kind in FAULTS.values() if kind.loses]


@dataclass(frozen=True)
class Bounds:
    """How much may go wrong in one schedule. `payloads` is how many different payloads of each event may be delivered."""

    crashes: int = 2
    expiries: int = 2
    lost_replies: int = 1
    renewals: int = 0
    forgettings: int = 0
    payloads: int = 1

    def __str__(self) -> str:
        return ", ".join(
            f"{one.name.replace('_', ' ')} {getattr(self, one.name)}"
            for one in fields(self)
            if self._is_shown(one.name)
        )

    def _is_shown(self, name: str) -> bool:
        return name in ("crashes", "expiries", "lost_replies") or getattr(self, name) > (name == "payloads")


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


Successor = tuple[Move, ExplorerState, Happened | None]


class Rules:
    """The moves that are possible in a state, always in one order, and the state after each."""

    def __init__(self, world: World, bounds: Bounds, workers: int) -> None:
        self.world, self.bounds, self.lanes = world, bounds, LANES[:workers]
        places = tuple(world.started(world.identity(lane, world.first)).number for lane in self.lanes)
        self.first = ExplorerState(world.first, places)
        self._go = [Move("go", lane) for lane in self.lanes]
        self._kill = [Move("kill", lane) for lane in self.lanes]
        self._start = [Move("start", lane) for lane in self.lanes]
        self._renew = [Move("renew", lane) for lane in self.lanes]

    def steps(self, state: ExplorerState) -> Iterator[Successor]:
        """Go, lose, kill, start, renew, each lane in turn; then expire, due, events, forget, each workflow in turn."""
        places = self.world.player.places
        alive = [(index, places[number]) for index, number in enumerate(state.lanes) if number != DEAD]
        yield from self._going(state, alive)
        yield from self._dying(state, alive)
        for index, number in enumerate(state.lanes):
            if number == DEAD:
                started = self.world.started(self.world.identity(self.lanes[index], state.rows))
                yield self._start[index], state._replace(lanes=_put(state.lanes, index, started.number)), None
        yield from self._renewing(state, alive)
        yield from self._outside(state)

    def _going(self, state: ExplorerState, alive: list[tuple[int, Place]]) -> Iterator[Successor]:
        for index, place in alive:
            happened = self.world.go(state.rows, place)
            if happened.rows != state.rows or happened.place.number != place.number:
                yield self._go[index], _after(state, index, happened), happened
        for kind in _LOSING:
            spent = self._spent(state, kind)
            for index, place in alive:
                if spent and place.stands and place.stands.transaction == "tool":
                    happened = self.world.go(state.rows, place, kind.loses)
                    yield Move(kind.name, self.lanes[index]), _after(spent, index, happened), happened

    def _spent(self, state: ExplorerState, kind: FaultKind) -> ExplorerState | None:
        """The state when this fault is counted against its bound; None if the bound is reached."""
        count = getattr(state, kind.bound)
        return state._replace(**{kind.bound: count + 1}) if count < getattr(self.bounds, kind.bound) else None

    def _dying(self, state: ExplorerState, alive: list[tuple[int, Place]]) -> Iterator[Successor]:
        """A worker that holds nothing has nothing to lose: its death would change nothing."""
        spent = self._spent(state, FAULTS["kill"])
        for index, place in alive:
            if spent and place.answers:
                rows = self.world.killed(state.rows, place.program)
                yield self._kill[index], spent._replace(rows=rows, lanes=_put(state.lanes, index, DEAD)), None

    def _renewing(self, state: ExplorerState, alive: list[tuple[int, Place]]) -> Iterator[Successor]:
        if state.renewals < self.bounds.renewals:
            for index, place in alive:
                if place.stands and place.stands.workflow:
                    happened = self.world.renewed(state.rows, place)
                    if happened.rows != state.rows:
                        yield (
                            self._renew[index],
                            state._replace(rows=happened.rows, renewals=state.renewals + 1),
                            happened,
                        )

    def _outside(self, state: ExplorerState) -> Iterator[Successor]:
        rows = self.world.cache.rows(state.rows)
        yield from self._timely(state, rows.workflows)
        if self.world.events:
            yield from self._delivering(state, rows.workflows)
        spent = self._spent(state, FAULTS["forget"])
        if spent and any(row["remembered"] for row in rows.effects):
            happened = self.world.forgotten(state.rows)
            yield Move("forget"), spent._replace(rows=happened.rows), happened

    def _timely(self, state: ExplorerState, workflows: tuple[Row, ...]) -> Iterator[Successor]:
        several, spent = len(workflows) > 1, self._spent(state, FAULTS["expire"])
        for number, row in enumerate(workflows, 1):
            if row["status"] != "ready":
                continue
            if row["lease"] == "live" and spent:
                happened = self.world.expired(state.rows, row["id"])
                alone = sum(other["lease"] == "live" for other in workflows) == 1
                move = Move("expire", request=None if alone else number)
                yield move, spent._replace(rows=happened.rows), happened
            if row["lease_owner"] is None and not row["due"]:
                happened = self.world.expired(state.rows, row["id"])
                yield Move("due", request=number if several else None), state._replace(rows=happened.rows), happened

    def _delivering(self, state: ExplorerState, workflows: tuple[Row, ...]) -> Iterator[Successor]:
        several, bit = len(workflows) > 1, 1
        for number, row in enumerate(workflows, 1):
            for event, payload in self.world.events:
                for value in _payloads(payload, self.bounds.payloads):
                    is_open = row["status"] in ("ready", "waiting") and row["waiting_for"] in (None, event)
                    if is_open and not state.delivered & bit:
                        happened = self.world.delivered(state.rows, row["id"], event, value)
                        after = state._replace(rows=happened.rows, delivered=state.delivered | bit)
                        yield deliver(event, value, number if several else None), after, happened
                    bit <<= 1


def _payloads(first: object, count: int) -> list[object]:
    return [first, *range(2, count + 1)]


def _put(lanes: tuple[int, ...], index: int, number: int) -> tuple[int, ...]:
    return (*lanes[:index], number, *lanes[index + 1 :])


def _after(state: ExplorerState, index: int, happened: Happened) -> ExplorerState:
    return state._replace(rows=happened.rows, lanes=_put(state.lanes, index, happened.place.number))


@dataclass(frozen=True)
class Fall:
    """An invariant that fell: which, the guilty row, and the state and move at which it did."""

    invariant: Invariant
    guilty: Guilty
    state: int
    move: Move | None


class Graph:
    """The states that were reached, in the order in which they were: breadth first, so the first way is a shortest one."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.states: list[ExplorerState] = [rules.first]
        self._numbers: dict[ExplorerState, int] = {rules.first: 0}
        self._came = array("i", [-1])
        self._by = array("i", [-1])
        self._moves: list[Move] = []
        self._move_numbers: dict[Move, int] = {}
        self._begins = array("q", [0])
        self._targets = array("i")
        self._labels = array("i")
        self.falls: dict[str, Fall] = {}
        self.at, self.looked_at, self.depth, self.stopped = 0, 0, 0, ""
        self.doubt: WrongCode | None = None
        self.doubtful = 0

    def __getstate__(self) -> dict[str, Any]:
        """All but the numbers of the states, which only a search needs."""
        return {**vars(self), "_numbers": {}}

    # -- search ------------------------------------------------------------------------------------------------------

    def search(self, moves: int | None, enough: Callable[[Fall], bool]) -> None:
        """Reaches and expands every state within the bounds; `stopped` gives the reason if it could not.

        `enough` is called with each first fall of an invariant, and may end the search; `moves` bounds a schedule's length.
        """
        level_ends, progress = 1, self.rules.world.player.progress
        while self.at < len(self.states):
            if self.at == level_ends:
                self.depth, level_ends = self.depth + 1, len(self.states)
            if self.depth == moves:
                self.stopped = f"the bound of {moves} moves"
                break
            self._report(progress)
            try:
                progress.check_deadline()
                fell = self._expand(self.at, enough)
            except OutOfTime as over:
                self.stopped = str(over)
                break
            if fell:
                self.stopped = "an invariant that fell"
                break
            self._begins.append(len(self._targets))
            self.at += 1
        self._report(progress)

    def _report(self, progress: Progress) -> None:
        progress.states, progress.transitions, progress.depth = self.at, self.transitions, self.depth
        progress.statements, progress.rows = self.rules.world.cache.statements, len(self.rules.world.cache)

    def _expand(self, at: int, enough: Callable[[Fall], bool]) -> bool:
        self.looked_at = at
        for move, state, happened in self.rules.steps(self.states[at]):
            hurt = False
            if happened is not None and happened.violations:
                for invariant, guilty in happened.violations:
                    hurt = hurt or invariant.kind == "harm"
                    if self._fell(Fall(invariant, guilty, at, move)) and enough(self.falls[invariant.name]):
                        return True
            if hurt:
                continue  # what follows a harm is no news
            known = len(self.states)
            target = self._reached(state, at, move)
            if target == known and not self._fine(target) and enough(self.falls["no workflow is stuck"]):
                return True
            self.looked_at = at
        return False

    def _reached(self, state: ExplorerState, at: int, move: Move) -> int:
        number = self._numbers.get(state)
        label = self._move_numbers.get(move)
        if label is None:
            label = self._move_numbers[move] = len(self._moves)
            self._moves.append(move)
        if number is None:
            number = self._numbers[state] = len(self.states)
            self.states.append(state)
            self._came.append(at)
            self._by.append(label)
        self._targets.append(number)
        self._labels.append(label)
        return number

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
            self._fell(Fall(invariant, row, number, None))
        return not guilty

    def _fell(self, fall: Fall) -> bool:
        """Whether this is the first fall of its invariant; later ones are no shorter."""
        if fall.invariant.name in self.falls:
            return False
        self.falls[fall.invariant.name] = fall
        return True

    # -- schedules ---------------------------------------------------------------------------------------------------

    @property
    def transitions(self) -> int:
        """How many transitions lead from a state to another."""
        return len(self._targets)

    def way(self, number: int) -> list[Move]:
        """The moves of a shortest schedule to a state; of several, the first in the order of Rules.steps()."""
        moves: list[Move] = []
        while number > 0:
            moves.append(self._moves[self._by[number]])
            number = self._came[number]
        return moves[::-1]

    def next_of(self, number: int) -> list[tuple[Move, int]]:
        """The moves from a state and where they lead."""
        edges = range(self._begins[number], self._begins[number + 1])
        return [(self._moves[self._labels[edge]], self._targets[edge]) for edge in edges]

    def counts(self) -> list[int] | None:
        """For each state, how many schedules begin there and go on until no move is possible; None if some never end."""
        order = self._sorted()
        if order is None:
            return None
        counts = [0] * len(self.states)
        begins, targets = self._begins, self._targets
        for number in reversed(order):
            first, last = begins[number], begins[number + 1]
            counts[number] = sum([counts[targets[edge]] for edge in range(first, last)]) if last > first else 1
        return counts

    def _sorted(self) -> list[int] | None:
        """The states, each before those that it leads to; None if there is a circle."""
        into = [0] * len(self.states)
        for target in self._targets:
            into[target] += 1
        order = [number for number, count in enumerate(into) if not count]
        for number in order:
            for edge in range(self._begins[number], self._begins[number + 1]):
                target = self._targets[edge]
                into[target] -= 1
                if not into[target]:
                    order.append(target)
        return order if len(order) == len(self.states) else None

    def sample(self, count: int, seed: int) -> list[list[Move]]:
        """So many schedules to their ends, each equally likely. Raises ValueError if some schedule never ends."""
        counts, chance = self.counts(), random.Random(seed)
        if counts is None:
            raise ValueError("some schedules never end, so none can be chosen among all")
        return [self._drawn(counts, chance) for _ in range(count)]

    def _drawn(self, counts: list[int], chance: random.Random) -> list[Move]:
        moves, number = [], 0
        while following := self.next_of(number):
            (move, number) = chance.choices(following, [counts[target] for _, target in following])[0]
            moves.append(move)
        return moves
