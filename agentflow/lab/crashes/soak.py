"""Hundreds of requests on real worker processes that are really killed; afterwards the rows show the result.

Kills are planned or random. A planned kill happens at a seeded boundary, in the engine's hook, by the worker itself
(`kill_plan`). A random kill comes from the parent at a random microsecond, whatever the worker is doing. Either way the
dead workers are replaced, their leases run out, and others take over.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing.process import BaseProcess
from statistics import fmean
from typing import IO, Any, TypeVar

from ... import evidence
from ...agents import DEFAULT_WORKFLOW, WORKFLOWS
from ...database import Database
from ...engine import Engine
from ...errors import SoakError
from ...model import Boundary, Hook, Policy, Tool
from ...run import Workflow
from ...tools import why_no_tool
from ...transactions import Transactions
from ...values import to_json
from ...worker import new_identity
from ..history.faults import FAULTS
from ..laboratory.processes import ended, kill, start, start_anew
from ..laboratory.scratch_schema import new_name, own_schema
from ..notebook.progress import progress_bar
from ..notebook.tables import query
from ..schedule.presets import MOST_EVENTS, event_payloads, named, never_came
from .crash_at import kill_here
from .kill_plan import GAP, KillPlan, is_fatal, label, plan_kills
from .other_ways import other_ways
from .soak_report import SoakReport

_PARTS = ("detect", "claim", "replay", "re_execute", "span")
_KILL = FAULTS["kill"].event
_BATCH = 100
_OWN_SEEDS = 2  # workers that are no copies of one process, so that hash() and the order of a set are their own
_AHEAD = 400  # unfinished workflows in the queue, at most
_T = TypeVar("_T")


@dataclass(frozen=True)
class SoakSettings:
    """What each worker process of a soak is sent when it starts."""

    url: str
    schema: str
    seed: int
    plan: KillPlan
    lease_seconds: float
    make_engine: Callable[..., Engine]


def soak(
    where: str | Engine, requests: Iterable[Any], *, workflow: str | Workflow = DEFAULT_WORKFLOW,
    workflows: Mapping[str, Workflow] = WORKFLOWS, tool: Tool | None = None, asked: Sequence[Tool] = (),
    schema: str | None = None, workers: int = 4, kills: int = 50, random_kills: int = 0, seed: int = 1,
    lease_seconds: float = 1.0, keep: bool = False, stall_seconds: float = 120.0, progress: bool | None = None,
    events: Mapping[str, Any] | None = None, make_engine: Callable[..., Engine] = Engine,
) -> SoakReport:  # fmt: skip
    """Runs the requests on `workers` processes while workers are killed; returns the report.

    `requests` are JSON values, the inputs of the workflow: a function that other processes can import, or the name of
    an example or of one of `workflows` (or of the engine's). A `tool` of one's own is called for real, and asked for
    its effects(), as are those in `asked`, which only side effects name. Where one's own is run, the workflows' ids
    begin with the schema's name, since a tool may remember the keys of an earlier soak. A workflow that waits for an event
    gets it: `events` has the payload that an event of this name brings; without it, `true`.

    The soak has its own schema, which must not exist yet and is dropped afterwards unless `keep`. If `where` is not a
    URL but the engine of a laboratory, that laboratory is emptied and used instead, and the new rows stay. `kills` are
    planned by `seed`, `random_kills` come from the parent; use one of the two (a random kill may fall between a commit
    and the boundary after it, and then a kill planned there never happens). `progress` shows a bar on standard error
    (None: on a terminal). Raises SoakError when nothing has moved for `stall_seconds`, or before anything starts if the
    numbers make no sense or there is no request; BadSchedule for what is no workflow, UnfaithfulValue; NotALaboratory; and
    whatever reading the requests raises.
    """
    if workers < 1 or kills < 0 or random_kills < 0 or (kills and random_kills):
        raise SoakError(
            "A soak needs at least one worker, and either planned or random kills, not both. Nothing was started."
        )
    name, function = named(workflow, where.workflows if isinstance(where, Engine) else workflows)
    if tool and (why := why_no_tool(tool)):
        raise SoakError(f"The tool {why}. Nothing was started.")
    brings = event_payloads(events)
    own = {} if function is WORKFLOWS.get(name) else {"workflows": {name: function}}
    with (
        _spooled(requests) as (spool, total),
        _place(where, schema or new_name(f"soak_{seed % 10**9}"), keep) as database,
    ):
        url = database.address
        plan = plan_kills(seed, total, kills)
        make = partial(make_engine, tool=tool, **own)
        settings = SoakSettings(url, database.schema, seed, plan, lease_seconds, make)
        began = time.monotonic()
        run = _Soak(database, settings, workers, total, random.Random(seed))
        run.name, run.own, run.prefix = name, bool(own), f"{database.schema}." * bool(tool or asked or own)
        run.engine.asked, run.brings = (*asked,), brings
        run.carry((json.loads(line) for line in spool), kills, random_kills, stall_seconds, progress)
        return run.report(kills, random_kills, time.monotonic() - began)


@contextmanager
def _place(where: str | Engine, schema: str, keep: bool) -> Iterator[Database]:
    """The database of the soak: a new schema, or the engine's own laboratory, emptied. Raises NotALaboratory."""
    if isinstance(where, str):
        with own_schema(where, schema, keep) as database:
            yield database
    else:
        where.reset_database()
        yield where.database


def serve_soak(settings: SoakSettings, identity: str) -> None:
    """One worker process: runs workflows until SIGTERM, or until the plan kills it."""
    database = Database(settings.url, settings.schema, application_name=identity)
    engine = settings.make_engine(database, policy=_policy(settings.lease_seconds))
    worker = engine.with_hook(_killer(engine, settings)).worker(identity, poll_seconds=settings.lease_seconds / 4)
    worker.stop_on_signals()
    worker.run_forever()


def _policy(lease_seconds: float) -> Policy:
    # Every take-over here follows a kill that we ordered, so the crash budget must never be spent.
    return Policy(lease_seconds=lease_seconds, crash_budget=1_000_000)


def _killer(engine: Engine, settings: SoakSettings) -> Hook:
    """Kills this process where the plan says.

    What counts is how many kills there were, not the token: a lease lost on a loaded machine must not cancel a kill. Who lost
    it does not die beside the next holder.
    """

    def hook(boundary: Boundary) -> None:
        request = _request(boundary.workflow or "")
        kills = range(len(settings.plan.get(request, ())))
        if fatal := [n for n in kills if is_fatal(settings.plan, settings.seed, request, n, boundary)]:
            past = Transactions.history(engine, str(boundary.workflow))  # without what a tool of one's own tells
            stale = any((entry["fence_token"] or 0) > (boundary.token or 0) for entry in past)
            if not stale and sum(entry["event"] == _KILL for entry in past) in fatal:
                kill_here(engine, label(boundary), boundary)

    return hook


def _request(workflow_id: str) -> int:
    """The index of the request that this workflow carries."""
    return int(workflow_id.rpartition("-")[2] or -1)


class _Soak:
    """One soak while it runs: it feeds the queue, replaces dead workers, and chooses random victims."""

    name, prefix, own, started = DEFAULT_WORKFLOW, "", False, 0

    def __init__(
        self, database: Database, settings: SoakSettings, workers: int, total: int, chance: random.Random
    ) -> None:
        self.database, self.settings, self.workers, self.total, self.chance = database, settings, workers, total, chance
        self.engine = settings.make_engine(database, policy=_policy(settings.lease_seconds))
        self.alive: dict[str, BaseProcess] = {}
        self.processes_killed, self.exited = 0, 0
        self.random_kills, self.in_flight = 0, 0
        self.brings: Mapping[str, Any] = {}
        self.brought: dict[str, Any] = {}

    def carry(
        self, requests: Iterator[Any], kills: int, random_kills: int, stall_seconds: float, progress: bool | None
    ) -> None:
        """Runs until every workflow is finished and every kill has happened; no worker process is left."""
        thresholds = deque(sorted(self.chance.uniform(0, 0.9 * self.total) for _ in range(random_kills)))
        submitted, seen, moved = 0, (0, 0), time.monotonic()
        try:
            with progress_bar("workflow", progress, self.total) as show:
                while seen[0] < self.total or self.processes_killed < kills or thresholds:
                    self._man()
                    may = self._may_be_submitted(seen[0], thresholds[0] if thresholds else None)
                    submitted += self._submit(list(islice(requests, max(0, min(_BATCH, may - submitted)))), submitted)
                    if thresholds and seen[0] >= thresholds[0]:
                        thresholds.popleft()
                        self._kill_one()
                    else:
                        self._bury(ended(self.alive.values(), 0.05))
                    before, seen = seen, (self._finished(), self.processes_killed)
                    moved = time.monotonic() if seen != before else moved
                    show(seen[0])
                    if time.monotonic() - moved > stall_seconds:
                        raise SoakError(self._stuck(seen, kills, stall_seconds))
                self._dismiss()
        finally:
            kill(self.alive.values())

    def _may_be_submitted(self, finished: int, next_kill: float | None) -> int:
        """How many requests may have been submitted by now.

        The number of unfinished ones is bounded, and work must not outrun the random kills: the last of them would find
        nobody working.
        """
        may = min(self.total, finished + _AHEAD)
        if next_kill is None:
            return may
        return min(may, max(int(next_kill) + 1, min(int(next_kill) + 8 * self.workers, self.total - self.workers)))

    def _man(self) -> None:
        """Starts workers until there are as many as ordered; the first two, for own workflows, have seeds of their own."""
        while len(self.alive) < self.workers:
            identity = new_identity("soak")
            begin = start_anew if self.own and self.started < _OWN_SEEDS else start
            self.alive[identity] = begin(serve_soak, self.settings, identity, name=identity)
            self.started += 1

    def _bury(self, dead: list[BaseProcess]) -> None:
        """Counts the dead workers. Raises SoakError if workers exit on their own again and again."""
        for process in dead:
            del self.alive[process.name]
            if process.exitcode == -9:
                self.processes_killed += 1
            else:
                self.exited += 1
                if self.exited > 3 * self.workers:
                    raise SoakError(
                        f"{self.exited} workers exited on their own, the last with exit code {process.exitcode}. Their "
                        "errors are on standard error. Fix them and soak again."
                    )

    def _dismiss(self) -> None:
        """Asks the workers to stop, and waits until they have."""
        for process in self.alive.values():
            process.terminate()
        deadline = time.monotonic() + 10
        while self.alive and time.monotonic() < deadline:
            self._bury(ended(self.alive.values(), 0.1))

    def _submit(self, batch: list[Any], first: int) -> int:
        ids = [f"{self.prefix}request-{first + n:06d}" for n in range(len(batch))]
        self.engine.create_workflows(batch, name=self.name, workflow_ids=ids)
        return len(batch)

    def _kill_one(self) -> None:
        """Kills a worker with SIGKILL at a random microsecond, every other time while it waits for PostgreSQL's answer."""
        holders = [row["lease_owner"] for row in _soon(lambda: query(self.engine, _HOLDERS, alive=list(self.alive)))]
        process = self.alive[self.chance.choice(holders or sorted(self.alive))]
        time.sleep(self.chance.uniform(0, 0.005))
        if self.random_kills % 2:
            _soon(lambda: self._is_active(process.name))
        if process.is_alive():
            process.kill()
            self.in_flight += self._is_active(process.name)  # seen after the signal, so it will send nothing more
            self.random_kills += 1
        for held in query(self.engine, _HELD, name=process.name):
            self.engine.record_fault(
                held["id"], _KILL, worker=process.name, token=held["fence_token"], signal="SIGKILL"
            )
        process.join()
        self._bury([process])

    def _is_active(self, identity: str) -> bool:
        return bool(query(self.engine, _ACTIVE, name=identity)[0]["active"])

    def _finished(self) -> int:
        """How many workflows are finished; those that wait get their event."""
        for row in query(self.engine, _WAITING):
            name, payload = row["waiting_for"], self.brings.get(row["waiting_for"], True)
            self.engine.deliver_event(row["id"], name, payload)
            if name in self.brings or len(self.brought) < MOST_EVENTS:
                self.brought[name] = payload
        return int(query(self.engine, _FINISHED)[0]["finished"])

    def _stuck(self, seen: tuple[int, int], kills: int, seconds: float) -> str:
        rows = query(self.engine, _STUCK)
        named = "; ".join(
            f"{r['id']} ({r['status']}, {r['state']}, token {r['fence_token']}, held by {r['lease_owner'] or 'nobody'})"
            for r in rows
        )
        return (
            f"Nothing moved in schema {self.database.schema!r} for {seconds:g} s. {seen[0]} of {self.total} workflows are "
            f"finished, {seen[1]} workers were killed ({kills} planned). Stuck: {named or 'none'}. Soak again with --keep "
            "and read their histories."
        )

    def report(self, kills_planned: int, random_kills: int, seconds: float) -> SoakReport:
        """The figures, from the rows and the exit codes of the dead workers."""
        tools = (self.engine.tool, *self.engine.asked)
        own = tools != (self.engine.world,)
        figures = evidence.reliability_metrics(self.database, tools, alone=not own)
        wrong = (*figures.pop("problems"), *filter(None, [never_came(self.brings, self.brought)]))
        attempts, effects = figures["tool_execution_attempts"], figures["business_effects"]
        told = None if attempts is None or effects is None else attempts - effects
        planned = () if random_kills else query(self.engine, _KILLED, event=_KILL)
        kills = tuple(sorted((_request(row["workflow_id"]), row["subject"]) for row in planned))
        takeovers = evidence.recoveries(self.database)
        return SoakReport(
            schema=self.database.schema, seed=self.settings.seed, workers=self.workers, **figures,
            evidence=(*wrong, *other_ways(self.engine)),
            lost_workflows=self.total - figures["workflows_completed"],
            repeated_calls=told if own else query(self.engine, _REPEATED)[0]["calls"],
            acknowledged_actions=query(self.engine, _ACKNOWLEDGED)[0]["actions"],
            kills_planned=kills_planned, kills_happened=len(kills), kills_in_gap=sum(where in GAP for _, where in kills),
            random_kills_planned=random_kills, random_kills=self.random_kills, kills_in_flight=self.in_flight,
            processes_killed=self.processes_killed, recoveries=len(takeovers),
            recovery_ms={part: _mean(row[f"{part}_ms"] for row in takeovers) for part in _PARTS},
            kills=kills, seconds=round(seconds, 1), events=self.brought,
        )  # fmt: skip


_FINISHED = "SELECT count(finished_at) AS finished FROM workflows"
_WAITING = "SELECT id, waiting_for FROM workflows WHERE status = 'waiting' ORDER BY created_at, id"
_STUCK = """\
SELECT id, status, state, fence_token, lease_owner FROM workflows
WHERE finished_at IS NULL ORDER BY updated_at LIMIT 10"""
_KILLED = "SELECT workflow_id, subject FROM history WHERE event = :event"
_ACKNOWLEDGED = "SELECT count(*) AS actions FROM action_intents WHERE status = 'ACKNOWLEDGED'"
_REPEATED = "SELECT count(*) AS calls FROM tool_attempts WHERE outcome = 'repeated'"
_HOLDERS = "SELECT DISTINCT lease_owner FROM workflows WHERE lease_owner = ANY(:alive) ORDER BY 1"
_HELD = "SELECT id, fence_token FROM workflows WHERE lease_owner = :name"
_ACTIVE = "SELECT count(*) AS active FROM pg_stat_activity WHERE application_name = :name AND state = 'active'"


def _soon(look: Callable[[], _T], seconds: float = 0.25) -> _T:
    """Calls `look` until it returns something or the time is over; returns its last answer."""
    until = time.monotonic() + seconds
    while not (seen := look()) and time.monotonic() < until:
        pass
    return seen


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), 3) if known else None


@contextmanager
def _spooled(requests: Iterable[Any]) -> Iterator[tuple[IO[str], int]]:
    """Writes the requests to disk and counts them: a plan needs their number, and memory stays bounded."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as spool:
        total = 0
        for request in requests:
            spool.write(to_json(request, workflow=f"request-{total:06d}", step="input") + "\n")
            total += 1
        if not total:
            raise SoakError("There are no requests to run. Give a file that contains some.")
        spool.seek(0)
        yield spool, total
