"""What each move of a schedule does, one method for each verb: a lane gets an order, or the laboratory around it changes.

Which workflow a move applies to, if it does not say so, is decided from the rows; a move that cannot apply is rejected.
Faults are recorded in the history of the workflow that they strike.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from ...engine import Engine, is_embedded
from ...errors import AlreadyFinished, BadSchedule, EventRefused
from ...model import Boundary
from ...server import Server, default_home
from ...statements import Statement
from ..history.entries import Row
from ..history.faults import can_lose, fault
from ..verify.snapshot import read_rows
from .grammar import Move, Setting
from .lane_set import LaneSet
from .lane_worker import AskedStatement, Ended, Report, asked_last
from .lanes import Lane
from .presets import events_of

NO_ROW: Row = {
    "status": "gone", "waiting_for": None, "finished_at": None, "lease_owner": None, "leased": False, "postponed": False,
}  # fmt: skip

_FACTS = Statement(
    "facts",
    "None: it only reads, and whether time is over is decided by the database's clock.",
    """\
SELECT id, status, waiting_for, finished_at, lease_owner, next_run_at,
       coalesce(status = 'ready' AND lease_expires_at > clock_timestamp(), false) AS leased,
       status = 'ready' AND lease_owner IS NULL AND next_run_at > clock_timestamp() AS postponed
FROM agentflow.workflows
WHERE id = ANY(%(p_workflows)s)""",
)


@dataclass(frozen=True, repr=False)
class Moved:
    """What one move did.

    `passed` is the transaction behind it (None: none), `asked` the statement, `standing` where the lane's worker stands
    now, `ended` how its run ended: completed, failed, waiting, postponed, released, lost, idle (nothing to claim), away
    (the database), trouble. `workflow` is what it was about, `said` what there is to say if no transaction was passed.
    """

    move: Move
    passed: Boundary | None = None
    asked: AskedStatement | None = None
    standing: Boundary | None = None
    ended: Ended | None = None
    workflow: str | None = None
    said: str = ""
    trouble: str = ""

    def __repr__(self) -> str:
        """In words, without the identities of workers: a notebook shows it, and they differ from run to run."""
        if self.passed is None:
            return f"{self.move}: {self.said or self.trouble or 'nothing passed'}"
        ended, at = f"{self.ended}; " if self.ended else "", self.standing
        where = "after it" if at and at.edge == "after" else f"before {at.name}" if at else "before"
        return f"{self.move}: {self.passed.name} {self.passed.outcome}; {ended}stands {where}"


class Maker:
    """Makes one move at a time on the lanes; `engine` is the laboratory's own, on which nobody stands."""

    def __init__(
        self, engine: Engine, lanes: LaneSet, setting: Setting, server: Server | None, prefix: str = ""
    ) -> None:
        self.engine, self.lanes, self.setting, self.server = engine, lanes, setting, server
        self.workflows = [f"{prefix}request-{number}" for number in range(1, setting.requests + 1)]
        self._facts = engine.database.with_texts({"facts": _FACTS.render(engine.database.schema)})

    def created(self, move: Move) -> Moved:
        """What came before this first move: the workflows were written down."""
        passed = Boundary("create", "after", workflow=self.workflows[0], outcome="committed")
        return Moved(move, passed, asked_last(self.engine, passed), workflow=passed.workflow)

    def make(self, move: Move) -> Moved:
        """Makes the move once. Raises BadSchedule if it cannot be made here, LaneError, DatabaseAway."""
        if move.verb in ("go", "halt", "renew") or fault(move.verb).loses:
            return self._order(move)
        made: Moved = getattr(self, f"_{move.verb}")(move)
        return made

    def _order(self, move: Move) -> Moved:
        lane = self.lanes.lane(move.lane)
        at, kind = lane.standing, fault(move.verb)
        if kind.loses and not (at and at.edge == "before" and can_lose(kind, at.transaction)):
            place, tool = at.place if at else "nowhere", kind.loses != "answer"
            whose, where = (
                ("the tool's", "the tool call") if tool else ("PostgreSQL's", "another transaction than the tool's")
            )
            raise BadSchedule(
                f'"{move}" loses {whose} {kind.loses}, so {move.lane} must stand before {where}; it stands {place}.'
            )
        if move.verb == "renew" and not (at and at.workflow):
            raise BadSchedule(f'"{move}" renews a lease, but {move.lane} holds no workflow.')
        moved = self.moved(move, lane.tell(move.verb))
        workflow = (at.workflow if at else None) or (moved.passed.workflow if moved.passed else None)
        if not kind.loses or not at or not workflow:
            return moved
        self._record(workflow, move.verb, at, at.name if kind.loses == "answer" else at.subject)
        return replace(moved, said="" if moved.passed or moved.trouble else kind.turn.format(who=move.lane))

    def moved(self, move: Move, report: Report) -> Moved:
        """What the lane's report says that the move did."""
        workflow = (report.passed.workflow if report.passed else None) or report.standing.workflow
        if report.ended == "idle" and report.passed and not workflow:
            workflow = self._passed_over(report.passed)
        return Moved(move, report.passed, report.asked, report.standing, report.ended, workflow, trouble=report.trouble)

    def _passed_over(self, claim: Boundary) -> str | None:
        """Records that this claim came back empty, with each workflow that another worker holds; returns the first."""
        held = [name for name, row in self.rows().items() if row["leased"]]
        for workflow_id in held:
            self._record(workflow_id, "pass_over", claim, workflow_id)
        return held[0] if held else None

    def _kill(self, move: Move) -> Moved:
        lane = self.lanes.lane(move.lane)
        at, inside = self.place(lane), lane.busy
        lane.kill()
        return self.mourn(move, at, inside)

    def place(self, lane: Lane) -> Boundary | None:
        """Where the worker stands, and the workflow whose history gets the entry if something happens to it there.

        That is the workflow it works on. If it holds nothing, it is the workflow that it parked last, as long as that one
        is still open.
        """
        at = lane.standing
        if at is None or at.workflow or lane.busy:
            return at
        if lane.parked and not lane.paused and self.row(lane.parked)["finished_at"]:
            lane.parked = None  # and so a pause and its end are told in the same history, or in none
        return replace(at, workflow=lane.parked)

    def mourn(self, move: Move, at: Boundary | None, inside: bool = False) -> Moved:
        """Records that the worker is gone. `inside`: not where it stood, but somewhere after it."""
        place = f" during {at.name}" if at and inside else _where(at)
        lost = "is killed" if self.lanes.kind == "process" else "crashes"
        if at and at.workflow:
            self._record(at.workflow, move.verb, at, place.strip())
        return Moved(move, workflow=at.workflow if at else None, said=f"{move.lane} {lost}{place}")

    def _start(self, move: Move) -> Moved:
        at = self.lanes.restart(move.lane).standing
        return Moved(move, standing=at, said=f"a new process stands in lane {move.lane}")

    def _pause(self, move: Move) -> Moved:
        lane = self.lanes.lane(move.lane)
        at = self.place(lane)
        (lane.pause if move.verb == "pause" else lane.resume)()
        if at and at.workflow:
            self._record(at.workflow, move.verb, at, at.place)
        said = fault(move.verb).turn.format(who=move.lane) + _where(at)
        return Moved(move, standing=self.lanes.standing(move.lane), workflow=at.workflow if at else None, said=said)

    _resume = _pause

    def _expire(self, move: Move) -> Moved:
        can_end, noun = ("leased", "lease") if move.verb == "expire" else ("postponed", "back-off")
        workflow_id = whose(move, self.rows(), can_end, noun)
        with suppress(AlreadyFinished):  # another worker has ended it meanwhile, so there is nothing left to age
            self.engine.expire_lease(workflow_id)
        asked = asked_last(self.engine, Boundary("expire", "after"))
        return Moved(move, asked=asked, workflow=workflow_id, said=f"the {noun} of {workflow_id} ends")

    _due = _expire

    def _deliver(self, move: Move) -> Moved:
        workflow_id = addressee(move, self.setting.workflow, self.rows())
        try:
            self.engine.deliver_event(workflow_id, move.event, move.payload)
            said = f"the event {move.event} arrives at {workflow_id}"
        except EventRefused as refused:
            said = str(refused)
        asked = asked_last(self.engine, Boundary("deliver", "after"))
        return Moved(move, asked=asked, workflow=workflow_id, said=said)

    def _forget(self, move: Move) -> Moved:
        effects = read_rows(self.engine).effects
        concerned = list(dict.fromkeys(effect["workflow_id"] for effect in effects if effect["remembered"]))
        forgotten = self.engine.world.forget_keys()
        for workflow_id in concerned:
            self._record(workflow_id, move.verb)
        return Moved(move, workflow=next(iter(concerned), None), said=f"the tool has forgotten {forgotten} of its keys")

    def _restart(self, move: Move) -> Moved:
        server = self.server or self._embedded()
        server.crash()
        server.start()
        open_ones = [name for name in self.workflows if self.row(name)["finished_at"] is None]
        for workflow_id in open_ones:
            self._record(workflow_id, move.verb)
        about = open_ones[0] if open_ones else self.workflows[0]
        return Moved(move, workflow=about, said="PostgreSQL has crashed and is started again")

    def row(self, workflow_id: str) -> Row:
        """What is known of the workflow, or NO_ROW."""
        return self.rows([workflow_id])[workflow_id]

    def rows(self, names: list[str] | None = None) -> dict[str, Row]:
        """What is known of these workflows (all, in the order of their numbers), or NO_ROW."""
        wanted = self.workflows if names is None else names
        found = {row["id"]: row for row in self._facts.read("facts", {"p_workflows": wanted})}
        return {name: found.get(name, NO_ROW) for name in wanted}

    def _record(self, workflow_id: str, verb: str, at: Boundary | None = None, subject: str | None = None) -> None:
        who = {"worker": at.worker, "token": at.token} if at else {}
        signal = fault(verb).signalled[0] if self.lanes.kind == "process" else ""
        self.engine.record_fault(workflow_id, fault(verb).event, at=subject, signal=signal, **who)  # type: ignore[arg-type]

    def _embedded(self) -> Server:
        server = Server(default_home())
        if not is_embedded() or self.engine.database.address != server.url():
            raise BadSchedule('"restart" works on the embedded server only; this laboratory is on another server.')
        return server


def _where(at: Boundary | None) -> str:
    return f" {at.place}" if at else ""


def whose(move: Move, rows: Mapping[str, Row], can_end: str, noun: str) -> str:
    """Returns the id of the workflow whose lease or back-off the move ends: one with `can_end` in its row.

    `rows` are in the order of their numbers.

    Raises BadSchedule if it has none, or if several have one and the move does not name the workflow.
    """
    found = [name for name, row in rows.items() if row[can_end]]
    if move.request:
        chosen = list(rows)[move.request - 1]
        if chosen not in found:
            raise BadSchedule(f'"{move}": {chosen} has no {noun} that could end.')
        return chosen
    if not found:
        raise BadSchedule(f'"{move}": no workflow has a {noun} that could end.')
    if len(found) > 1:
        which = " or ".join(f"{move.verb}@{list(rows).index(name) + 1}" for name in found)
        raise BadSchedule(f'"{move}": several workflows have a {noun}; use {which}.')
    return found[0]


def addressee(move: Move, workflow: str, rows: Mapping[str, Row]) -> str:
    """Returns the id of the workflow that the event goes to. Raises BadSchedule if none waits for it, or several could."""
    known = events_of(workflow)
    if known is not None and move.event not in known:
        waits = f"waits for {' and '.join(known)}" if known else "waits for no event"
        raise BadSchedule(f'"{move}": no workflow waits for it; {workflow} {waits}.')
    there = list(rows.items()) if move.request is None else [list(rows.items())[move.request - 1]]
    there = [(name, row) for name, row in there if row["status"] in ("ready", "waiting")]
    there = [(name, row) for name, row in there if row["waiting_for"] == move.event] or there
    if not there:
        raise BadSchedule(f'"{move}": no workflow waits for it, because none is open.')
    if len(there) > 1:
        raise BadSchedule(f'"{move}": several workflows could get it; choose one, as in {replace(move, request=1)}.')
    name, row = there[0]
    if row["waiting_for"] not in (None, move.event):
        raise BadSchedule(f'"{move}": no workflow waits for it; {name} waits for {row["waiting_for"]}.')
    return name
