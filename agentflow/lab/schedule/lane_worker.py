"""What a worker in a lane does, in a thread or in a process: it stands at each boundary until an order comes.

Between two boundaries runs the workflow's own code. A standing worker holds no transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from psycopg.rows import DictRow

from ...database import Database, Run
from ...engine import Engine
from ...errors import AgentFlowError, CrashInjected, DatabaseAway, LostLease, OutcomeUnknown
from ...model import Boundary, Claim
from ...statements import ONLY_READ, TRANSACTIONS
from ...tools import no_answer
from ...worker import RunOutcome, carry
from ..history.faults import fault
from ..laboratory.laboratory import LEASE_SECONDS

Order = str
"""The verb of the move: go, halt, renew, kill, or a fault that loses a half of a tool's call or PostgreSQL's answer."""
Ended = RunOutcome | Literal["idle", "away", "trouble"]


@dataclass(frozen=True)
class AskedStatement:
    """One named statement and its parameters."""

    name: str
    params: Mapping[str, Any]


@dataclass(frozen=True)
class Report:
    """Where a worker stands now, and what it did since its last order.

    `passed` is the transaction that it passed (None: none), `asked` that statement, `ended` how its run ended on the
    way, `trouble` an error that nobody expected.
    """

    standing: Boundary
    passed: Boundary | None = None
    asked: AskedStatement | None = None
    ended: Ended | None = None
    trouble: str = ""


class LaneWorker:
    """One worker: claims, carries, claims again, and stands before each transaction until an order comes.

    `ask` sends a report to the lane that moves it, and returns the next order, whenever that comes.
    """

    def __init__(self, engine: Engine, identity: str, ask: Callable[[Report], Order]) -> None:
        self.identity, self.ask = identity, ask
        self.engine = engine.with_hook(self._hook)
        self._outer = engine.hook
        self._order: Order = "go"
        self._may_pass = self._heard_nothing = False
        self._report = Report(Boundary("claim", "before", identity))

    def run(self) -> None:
        """Works until CrashInjected kills it; nothing else ends it."""
        try:
            while True:
                ended = self._carry_one()
                self._report = replace(self._report, ended=ended)
        except CrashInjected:
            return

    def _carry_one(self) -> Ended:
        try:
            claim = self.engine.claim_workflow(self.identity, LEASE_SECONDS)
            if claim is None:
                return "idle"
            return carry(self.engine, claim, self.engine.workflows[claim.name], self.engine.tool)
        except LostLease:
            return "lost"
        except DatabaseAway as away:
            self._report = replace(self._report, trouble=str(away))
            return "away"
        except CrashInjected:
            raise
        except BaseException as error:
            said = str(error) if isinstance(error, AgentFlowError) else f"{type(error).__name__}: {error}"
            self._report = replace(self._report, trouble=said)
            return "trouble"

    def _hook(self, boundary: Boundary) -> None:
        if self._outer:
            self._outer(boundary)
        aside = {"renew", "release"}  # its own renewals, and what follows trouble in the same move
        if boundary.transaction not in ONLY_READ | aside:
            (self._before if boundary.edge == "before" else self._after)(boundary)

    def _before(self, boundary: Boundary) -> None:
        passed = self._report.passed
        again = passed and passed.outcome != "committed" and replace(passed, edge="before", outcome=None) == boundary
        if again and self._report.ended is None and not self._heard_nothing:
            return  # the same statement again, after a lost connection or a change in time: one move
        if not self._may_pass:
            self._stand(boundary)
        self._may_pass = self._heard_nothing = False
        self._lose(boundary)
        if fault(self._order).loses == "answer" and (door := _door(self.engine, boundary)):
            self._order, door.loses = "go", boundary.transaction

    def _lose(self, boundary: Boundary) -> None:
        """Loses the request to the tool before its call, or the reply after it, if that is the order."""
        lost = fault(self._order).loses
        if lost and boundary.transaction == "tool" and boundary.edge == ("before" if lost == "request" else "after"):
            self._order = "go"
            raise no_answer(str(boundary.subject), lost)

    def _after(self, boundary: Boundary) -> None:
        door = _door(self.engine, boundary)
        if door and door.unheard is not None:  # the worker does not know what it has claimed, but its laboratory does
            boundary, self._heard_nothing = replace(boundary, workflow=boundary.workflow or door.unheard), True
            door.unheard = None
        self._report = replace(self._report, passed=boundary, asked=asked_last(self.engine, boundary))
        self._lose(boundary)
        if self._order == "halt" and boundary.outcome == "committed":
            self._stand(boundary)

    def _stand(self, boundary: Boundary) -> None:
        """Stands here until the next order, which may say how far to go. Raises CrashInjected."""
        report = replace(self._report, standing=boundary)
        while (order := self.ask(report)) == "renew":
            report = self._renewed(boundary)
        self._report = Report(boundary)
        self._order, self._may_pass = order, True
        if order == "kill":
            raise CrashInjected(f"{self.identity} was killed {boundary.edge} {boundary.transaction}")

    def _renewed(self, boundary: Boundary) -> Report:
        """Renews the lease of what the worker works on (or is refused), without the worker noticing it."""
        passed = Boundary("renew", "after", self.identity, boundary.workflow, boundary.token, outcome="committed")
        held = Claim(str(boundary.workflow), self.identity, boundary.token or 0, lease_seconds=LEASE_SECONDS)
        try:
            self.engine.renew_lease(held)
        except LostLease:
            passed = replace(passed, outcome="refused")
        except DatabaseAway as away:
            return Report(boundary, replace(passed, outcome="unknown"), trouble=str(away))
        return Report(boundary, passed, asked_last(self.engine, passed))


def asked_last(engine: Engine, boundary: Boundary) -> AskedStatement | None:
    """The statement behind this boundary, if the engine's database has a door that remembers it."""
    door = _door(engine, boundary)
    return door.last if door and door.last and door.last.name == boundary.transaction else None


def _door(engine: Engine, boundary: Boundary) -> _Door | None:
    door = (engine.world.database if boundary.transaction == "tool" else engine.database).door
    return door if isinstance(door, _Door) else None


class _Door:
    """A database's door that remembers the last transaction that passed it, and loses an answer on demand; see watched().

    `loses` names the transaction whose answer is lost next: it is committed, and then the connection is closed. `unheard` is the
    workflow that it was about ("" for none), until the worker's hook has seen it.
    """

    def __init__(self, database: Database) -> None:
        self.database, self.loses = database, ""
        self.last: AskedStatement | None = None
        self.unheard: str | None = None

    def __call__(self, name: str, text: str, params: Mapping[str, Any] | None, run: Run) -> list[DictRow]:
        if name in TRANSACTIONS and name not in ONLY_READ:
            self.last = AskedStatement(name, dict(params or {}))
        rows = run(name, text, params)
        if name == self.loses:
            self.loses, self.unheard = "", str(rows[0].get("id") or "") if rows else ""
            self.database.close()
            raise lost_answer(name)
        return rows


def lost_answer(name: str) -> OutcomeUnknown:
    """What a worker hears instead of PostgreSQL's answer: what a connection that was lost on the way means."""
    return OutcomeUnknown(
        f"{name}: the connection was lost; it may have been committed, or may still be. Issue it again."
    )


def watched(database: Database, patience: float, application_name: str) -> Database:
    """The same database on separate connections, with a door that remembers the last transaction."""
    own = database.twin(patience=patience, application_name=application_name)
    return own.with_door(_Door(own))


def engine_of_a_lane(engine: Engine, identity: str, patience: float) -> Engine:
    """The engine on connections that only this worker uses; close_lane_engine() closes them."""
    own: Engine = engine.with_hook(engine.hook)
    own.database = watched(engine.database, patience, identity)
    given = engine.world
    own.world = type(given)(watched(given.database, patience, identity), answers=given.answers, fault=given.fault)
    own.tool = own.world if engine.tool is given else engine.tool
    return own


def close_lane_engine(engine: Engine) -> None:
    """Closes the connections of a lane's engine."""
    engine.database.close()
    engine.world.database.close()
