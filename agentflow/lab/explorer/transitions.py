"""What one move does to rows and workers: plays the next move of a worker, or of somebody outside, and judges it.

Each distinct move on distinct rows is played once and remembered, so a finished search can be walked without PostgreSQL.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from psycopg.rows import DictRow

from ...agents import WORKFLOWS
from ...engine import Engine
from ...errors import AlreadyFinished, EventRefused, LostLease
from ...model import Claim
from ...tools import no_answer
from ..laboratory.laboratory import LEASE_SECONDS
from ..schedule.grammar import Move, Setting, deliver
from ..schedule.lane_set import SHARED_NAME
from ..schedule.lane_worker import lost_answer
from ..schedule.presets import workflows_for
from ..verify.invariants import ALL_THAT_A_WORKER_CAN_DO, INVARIANTS, Guilty, Invariant, Mover, Transition, violations
from ..verify.snapshot import Rows
from .answer_cache import AnswerCache, StatementResult
from .own_code import OwnCode, states_of
from .own_process import WrongCode
from .process_memory import ProcessMemory
from .replayed_worker import PendingStatement, Place, Player, one_claim
from .same_way import SPENT, Ways
from .way import EndedAs

DEAD_HOLDER = "gone.1"  # the identity of every worker that died: who it was does not matter any more
ENDS = ("completed", "failed", "waiting", "cut_off", "cancelled", "harmful")
"""How a schedule can end: as its workflow stands then (a ready one was cut off by the bounds), or with a harm."""
MOST_STEPS = 200  # statements in one move, and moves in one run to the end


@dataclass(frozen=True)
class Happened:
    """What one move did: the rows and the place after it, the entries it wrote, and the invariants it violated."""

    rows: int
    place: Place
    entries: tuple[DictRow, ...]
    violations: tuple[tuple[Invariant, Guilty], ...]


class World:
    """Rows and workers of one setting, and what each move does to them.

    `expected` is how each workflow ends undisturbed, `events` what it waits for, with the payload that is delivered.
    """

    def __init__(
        self, cache: AnswerCache, engine: Engine, setting: Setting, inputs: Sequence[Any], own: OwnCode,
        where: Callable[[], str], invariants: Sequence[Invariant] = (),
    ) -> None:  # fmt: skip
        function = engine.workflows[setting.workflow]
        self.memory = ProcessMemory(None if function is WORKFLOWS.get(setting.workflow) else function)
        self.own, self.player = own, Player(engine, own, where, self.memory)
        self.ways = Ways(function, own, where)
        self.invariants = (*INVARIANTS.values(), self.ways.invariant, *invariants)
        self.cache, self.setting = cache, setting
        prefix = "explored-" if own.first() else ""  # such a tool may remember a request-1 that was played
        self.workflows = [f"{prefix}request-{number}" for number in range(1, setting.requests + 1)]
        self._happened: dict[tuple[int, int, str], Happened] = {}
        self._judgments: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        self._roots: dict[str, Place] = {}
        self._finishes: dict[int, bool] = {}
        self._steady = dict(engine.workflows)

        def create(engine: Engine) -> None:
            engine.create_workflows(inputs, name=setting.workflow, workflow_ids=self.workflows)

        self.first = self._outside(self.cache.number(Rows(tools=own.first())), "create", create).rows
        self.expected: tuple[EndedAs, ...] = ()
        self.events: tuple[tuple[str, Any], ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """What was found, without the learner's functions, which stay in their process."""
        return {**vars(self), "_steady": {}, "_judgments": {}, "own": None, "memory": None}

    def expect(self, rows: int) -> None:
        """The workflows end as in these rows, and this way, undisturbed."""
        self.expected = self.outcomes(rows)
        self.ways.undisturbed(self.cache.rows(rows))

    # -- workers -----------------------------------------------------------------------------------------------------

    def identity(self, lane: str, rows: int) -> str:
        """Who starts in the lane: a name that nothing in the rows remembers, unless all share one."""
        if self.setting.names == "shared":
            return SHARED_NAME
        text = self.cache.text(rows)
        return next(name for number in count(1) if (name := f"{lane}.{number}") not in text)

    def started(self, identity: str) -> Place:
        """Where a worker of this identity stands before its claim."""
        if identity not in self._roots:
            functions = partial(workflows_for, self.setting, own=self._steady)
            self._roots[identity] = self.player.start(identity, one_claim(identity, functions, self.player))
        return self._roots[identity]

    def go(self, rows: int, place: Place, lost: str = "") -> Happened:
        """The worker's next transaction, up to where it stands before the one after.

        `lost` is "request" or "reply", if that half of a call of the tool is, or "answer", if PostgreSQL's is. Raises
        WrongCode; OutOfTime after the deadline; ValueError for a move that a finished exploration has not seen.
        """
        key = rows, place.number, lost
        found = self._happened.get(key)
        if found is None:
            if self.player.engine is None:
                raise ValueError("This exploration ended without reaching this move.")
            self.player.progress.check_deadline()
            self.player.moving = place
            try:
                found = self._happened[key] = self._go(rows, place, lost)
            except WrongCode as wrong:
                raise WrongCode(f"{place.went_wrong()}{wrong}") from wrong
        return found

    def _go(self, number: int, place: Place, lost: str) -> Happened:
        stood, stands, asked, before = place, place.stands, list[StatementResult](), number
        for _ in range(MOST_STEPS):
            pending = place.pending
            if pending is None:
                break
            if lost == "request" and pending.name == "tool":  # the world never hears of it
                silence = no_answer(str(stands and stands.subject), lost)
                place, lost = self.player.after(place, silence, lost, False, states_of(self.cache.rows(number))), ""
            else:
                result = self._answered(number, pending)
                if pending.name == "tool":
                    self.ways.heard(self.cache.rows(number), pending.params, result.answer)
                number, states = result.rows, states_of(result.after)
                asked.append(result)
                if lost == "answer" and not isinstance(result.answer, Exception):
                    place = self.player.after(place, lost_answer(pending.name), lost, False, states)
                    break  # it stands before the same statement again
                no_reply = lost == "reply" and pending.name == "tool"
                place = self.player.after(place, result.answer, result.key, no_reply, states)
            if place.left:
                whose = (at.workflow for at in (place.stands, stands) if at and at.workflow)
                asked.append(self.own.written(self.cache, number, place.left, next(whose, "")))
                number = asked[-1].rows
            if place.stands and place.pending:
                break
        else:
            raise WrongCode(f"more than {MOST_STEPS} statements without reaching a transaction.")
        mover = Mover()
        if stands:
            who = stands.worker, stands.token, stands.workflow, stands.transaction
            mover = Mover(*who, place.ended, stood.in_doubt)
        then = place if place.pending else self._roots.get(place.program, place)
        return Happened(number, then, *self._judged(before, tuple(asked), mover))

    def _judged(
        self, before: int, asked: tuple[StatementResult, ...], mover: Mover
    ) -> tuple[tuple[DictRow, ...], tuple[tuple[Invariant, Guilty], ...]]:
        """The entries of these statements, and the invariants that fell. Workers that stand at many places may do the same."""
        key = before, tuple(map(id, asked)), mover  # which the cache keeps
        if key not in self._judgments:
            entries = tuple(entry for one in asked for entry in one.entries())
            rows = self.cache.rows(before)
            after = replace(asked[-1].after if asked else rows, attempts=(), history=entries)
            self._judgments[key] = entries, tuple(violations(Transition(rows, after, mover), self.invariants))
        return self._judgments[key]

    def _answered(self, number: int, pending: PendingStatement) -> StatementResult:
        if not pending.asked:
            return self.cache.ask(number, pending.name, pending.text, pending.params, pending.question)
        with self.player.progress.in_code(self.player.where()):
            return pending.asked(pending.question, self.cache, number)

    def killed(self, rows: int, identity: str) -> int:
        """The rows after a worker's death: its lease is held by somebody who is gone, and who that was does not matter."""
        return rows if self.setting.names == "shared" else self.cache.renamed(rows, identity, DEAD_HOLDER)

    # -- somebody outside --------------------------------------------------------------------------------------------

    def expired(self, rows: int, workflow_id: str) -> Happened:
        """The lease, or the back-off, of the workflow ended."""
        return self._outside(rows, f"expire {workflow_id}", lambda engine: engine.expire_lease(workflow_id))

    def delivered(self, rows: int, workflow_id: str, event: str, payload: Any) -> Happened:
        """The event arrived at the workflow, or was refused."""
        name = f"deliver {workflow_id} {json.dumps([event, payload])}"
        return self._outside(rows, name, lambda engine: engine.deliver_event(workflow_id, event, payload))

    def forgotten(self, rows: int) -> Happened:
        """The tool forgot its keys."""
        return self._outside(rows, "forget", lambda engine: engine.world.forget_keys())

    def renewed(self, rows: int, place: Place) -> Happened:
        """The worker's lease was renewed, or the renewal refused, while it stands there."""
        at = place.stands
        assert at and at.workflow
        claim = Claim(at.workflow, str(at.worker), at.token or 0, lease_seconds=LEASE_SECONDS)
        return self._outside(rows, f"renew {claim}", lambda engine: engine.renew_lease(claim))

    def _outside(self, rows: int, name: str, do: Callable[[Engine], Any]) -> Happened:
        def program(engine: Engine) -> str:
            with suppress(AlreadyFinished, EventRefused, LostLease):
                do(engine)
            return "done"

        return self.to_its_end(rows, self.player.start(name, program))

    def to_its_end(self, rows: int, place: Place) -> Happened:
        """The last transaction of the run or act that stands there, after all those before it."""
        happened = self.go(rows, place)
        while happened.place.pending and happened.place.answers:
            happened = self.go(happened.rows, happened.place)
        return happened

    # -- rows --------------------------------------------------------------------------------------------------------

    def can_finish(self, rows: int) -> bool:
        """Whether a new worker, alone and given time, brings every workflow to the end it has undisturbed.

        One that is failed because the crash budget is spent ends as promised, too.
        """
        if rows not in self._finishes:
            self._finishes[rows] = not self._unlike(self.finished(rows))
        return self._finishes[rows]

    def _unlike(self, rows: int) -> list[tuple[DictRow, EndedAs]]:
        """The workflows that do not stand as they end undisturbed, nor with their crash budget spent."""
        pairs = zip(self.cache.rows(rows).workflows, self.outcomes(rows), self.expected, strict=True)
        return [(row, undisturbed) for row, end, undisturbed in pairs if end not in (undisturbed, SPENT)]

    def ends(self, rows: int) -> tuple[str, ...]:
        """The workflows' statuses."""
        return tuple(str(row["status"]) for row in self.cache.rows(rows).workflows)

    def outcomes(self, rows: int) -> tuple[EndedAs, ...]:
        """The workflows' statuses, and the types of the errors with which they failed."""
        errors = (json.loads(row["error"] or "{}") for row in self.cache.rows(rows).workflows)
        pairs = zip(self.ends(rows), errors, strict=True)
        return tuple((status, error["type"] if status == "failed" else "") for status, error in pairs)

    def end(self, rows: int) -> str:
        """Which of ENDS a schedule comes to that ends with these rows; of several workflows, the last in that order counts."""
        return max(("cut_off" if status == "ready" else status for status in self.ends(rows)), key=ENDS.index)

    def finished(self, rows: int) -> int:
        """The rows when a new worker has done all it can, with leases ended, back-offs over and events delivered."""
        for row in self.cache.rows(rows).workflows:
            if row["lease_owner"] not in (None, DEAD_HOLDER):
                rows = self.killed(rows, row["lease_owner"])
        me = self.started(self.identity("A", rows))
        for _ in range(MOST_STEPS):
            before = rows
            rows = self.to_its_end(self.given_time(rows)[1], me).rows
            if rows == before or self._is_in_trouble(rows):
                break
        return rows

    def _is_in_trouble(self, rows: int) -> bool:
        """Whether a workflow was given back twice in a row: alone, a worker would meet the same again and again."""
        errors = (json.loads(row["error"] or "{}") for row in self.cache.rows(rows).workflows)
        return any(error.get("troubles", 0) > 1 for error in errors)

    def given_time(self, rows: int) -> tuple[list[Move], int]:
        """Every lease ended, every back-off over, every event delivered: the moves, and the rows after them."""
        moves: list[Move] = []
        for number, row in enumerate(self.cache.rows(rows).workflows, 1):
            request = number if self.setting.requests > 1 else None
            if row["status"] == "ready" and (row["lease"] == "live" or not (row["lease"] or row["due"])):
                moves.append(Move("expire" if row["lease"] else "due", request=request))
                rows = self.expired(rows, row["id"]).rows
            for event, payload in self.events if row["status"] == "waiting" else ():
                if event not in json.loads(row["events"]):
                    moves.append(deliver(event, payload, request))
                    rows = self.delivered(rows, row["id"], event, payload).rows
        return moves, rows

    def stuck(self, rows: int, places: Sequence[Place]) -> tuple[tuple[Invariant, Guilty], ...]:
        """What stays unfinished whoever works on it, one worker after the other: those who stand there, then a new one."""
        if self.can_finish(rows):
            return ()
        after = self.finished(rows)
        at_work = [place for place in places if place.stands and place.stands.workflow]
        for order in (at_work, at_work[::-1]):
            then = rows
            for place in order:
                then = self.to_its_end(then, place).rows
                if self.can_finish(then):
                    return ()
        unlike, one = self._unlike(after), INVARIANTS["no workflow is stuck"]
        left = replace(self.cache.rows(after), workflows=tuple(row for row, _ in unlike))
        judged = Transition(self.cache.rows(rows), left, Mover(transaction=ALL_THAT_A_WORKER_CAN_DO))
        found = [*one.check(judged)] or [
            Guilty("workflows", row["id"], f"ends {row['status']}, whoever works on it; undisturbed it ends {end[0]}")
            for row, end in unlike
        ]
        return tuple((one, guilty) for guilty in found)
