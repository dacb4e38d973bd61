"""The history that a schedule of the explorer makes, put together from its transitions, in the shape of engine.history().

A schedule is walked over what the search remembers; PostgreSQL is not asked. `history.canonical` makes such a history
comparable with one that was played on lanes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ...model import Boundary
from ...statements import TRANSACTIONS
from ..history.faults import fault
from ..history.words import brief
from ..schedule.grammar import Move, Schedule, Setting
from ..schedule.lane_set import SHARED_NAME
from .answer_cache import bare_entry
from .exchange import DEAD
from .replayed_worker import Place
from .report import Finding
from .search import Fall, Graph, Rules
from .transitions import Happened

_ADVANCES = {event for one in TRANSACTIONS.values() if one.advances for event in one.entries}
MOST_MOVES = 10  # of what comes after a finding
_BEGIN = datetime(2000, 1, 1, tzinfo=UTC)


class Walk:
    """A schedule walked move by move: the state it has come to, and the history so far.

    Entries are a second apart, and identities are `A.1`, `A.2`, ... in the order of their starts. `happened` is what the last
    move did.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules, self.state, self.history = rules, rules.first, list[dict[str, Any]]()
        self.happened: Happened | None = None
        self._starts = dict.fromkeys(rules.lanes, 1)
        self._holder: dict[str, str] = {}
        self._crashes = Counter[str]()
        self._effects: dict[tuple[str, str | None], dict[str, Any]] = {}
        world = rules.world
        for workflow_id in world.workflows:
            self._write(bare_entry(workflow_id, "workflow_created", "create", subject=world.setting.workflow))

    def take(self, move: Move) -> None:
        """Goes on to the state after the move. Raises ValueError if it is not possible here."""
        found = next(((state, what) for one, state, what in self.rules.steps(self.state) if one == move), None)
        if found is None:
            raise ValueError(f"{move} is not possible after {len(self.history)} entries of this schedule")
        state, happened = found
        self.happened = happened
        kind = fault(move.verb)
        stood, before = self._place(move.lane), self.rules.world.cache.rows(self.state.rows)
        for entry in happened.entries if happened else ():
            self._write(self._renamed(dict(entry), move.lane))
        at = stood.stands if stood else None
        whose = at and (at.workflow or (happened.entries[0]["workflow_id"] if happened and happened.entries else None))
        if at and whose and ((at.workflow and kind.worker) or kind.loses):
            self._fault(move, at, whose)
        if kind.strikes == "world":
            for workflow_id in dict.fromkeys(row["workflow_id"] for row in before.effects if row["remembered"]):
                self._write(bare_entry(workflow_id, kind.event, "fault"))
        if move.verb == "start":
            self._starts[move.lane] += 1
        self.state = state

    def _place(self, lane: str) -> Place | None:
        number = self.state.lanes[self.rules.lanes.index(lane)] if lane else DEAD
        return None if number == DEAD else self.rules.world.player.places[number]

    def _fault(self, move: Move, at: Boundary, workflow_id: str) -> None:
        kind, who = fault(move.verb), {"worker": self._identity(move.lane), "fence_token": at.token}
        subject = {"": at.place, "answer": at.name}.get(kind.loses, at.subject)
        self._write(bare_entry(workflow_id, kind.event, "fault", subject=subject, **who))

    def _identity(self, lane: str) -> str:
        shared = self.rules.world.setting.names == "shared"
        return SHARED_NAME if shared else f"{lane}.{self._starts[lane]}"

    def _renamed(self, entry: dict[str, Any], lane: str) -> dict[str, Any]:
        """The entry with what the canonical rows have forgotten: who it was, who held the lease, how many attempts."""
        workflow_id, detail = entry["workflow_id"], dict(_parsed(entry["detail"]) or {})
        if entry["worker"] is not None:
            entry["worker"] = self._identity(lane)
        if entry["transaction"] == "claim":
            if detail.get("held_by"):
                self._crashes[workflow_id] += 1
                detail |= {"held_by": self._holder.get(workflow_id)}
            detail["crashes"] = self._crashes[workflow_id]
            self._holder[workflow_id] = entry["worker"]
        if detail.get("row_owner"):
            detail["row_owner"] = self._holder.get(workflow_id)
        if entry["event"] in _ADVANCES:
            self._crashes[workflow_id] = 0
        if entry["event"] == "tool_attempt_committed":
            detail |= self._attempt(workflow_id, detail)
        return {**entry, "detail": detail or None}

    def _attempt(self, workflow_id: str, detail: dict[str, Any]) -> dict[str, Any]:
        key = workflow_id, detail["idempotency_key"]
        if detail["outcome"] == "effect":
            self._effects[key] = {"effect_id": len(self._effects) + 1, "attempts": 0}
        self._effects[key]["attempts"] += 1
        return dict(self._effects[key])

    def _write(self, entry: dict[str, Any]) -> None:
        mine = sum(one["workflow_id"] == entry["workflow_id"] for one in self.history)
        at, detail = _BEGIN + timedelta(seconds=len(self.history)), _parsed(entry["detail"])
        if detail and "asked_at" in detail:
            detail = {**detail, "asked_at": at.isoformat()}
        self.history.append({**entry, "n": mine + 1, "at": at, "detail": detail})


def _parsed(detail: Any) -> Any:
    return json.loads(detail) if isinstance(detail, str) else detail


def walked(rules: Rules, moves: Iterable[Move]) -> Walk:
    """The whole schedule walked, each move once. Raises ValueError if a move is not possible where it stands."""
    walk = Walk(rules)
    for move in moves:
        for _ in range(move.times or 1):
            walk.take(replace(move, times=1))
    return walk


def finding(
    graph: Graph, setting: Setting, fall: Fall, comes: Callable[[Graph, int], Iterable[Move]] = lambda *_: ()
) -> Finding:
    """The fall with its schedule and history; `comes` gives the moves after it, which run explored code."""
    moves, one = (*graph.way(fall.state), *filter(None, [fall.move])), fall.invariant
    history, then = tuple(walked(graph.rules, moves).history), () if fall.move else tuple(comes(graph, fall.state))
    return Finding(
        one.name, one.kind, one.sentence, Schedule(setting, moves), brief(str(fall.guilty), 1000), history, then
    )


def what_comes(graph: Graph, number: int) -> Iterator[Move]:
    """The moves of a worker that tries to finish what cannot be finished, if a lane has one to spare."""
    (rows, at, *_), lanes, world = graph.states[number], graph.rules.lanes, graph.rules.world
    places = dict(zip(lanes, at, strict=True))
    free = [lane for lane, place in places.items() if place != DEAD and not world.player.places[place].answers]
    dead = [lane for lane, place in places.items() if place == DEAD]
    lane = (free + dead or [""])[0]
    if lane in dead:
        yield Move("start", lane)
    for _ in range(MOST_MOVES if lane else 0):
        moves, given = world.given_time(rows)
        then = world.to_its_end(given, world.started(world.identity(lane, given))).rows
        if then == rows:
            return
        yield from [*moves, Move("go", lane, None)]
        rows = then
