"""Hundreds of requests on real worker processes that are really killed; afterwards the rows say what it came to.

Two ways to choose the kills. Planned: at seeded boundaries, by the worker itself in the engine's hook (`plan`). Random:
by the parent, at random microseconds, in the middle of whatever the worker does. Either way the dead are replaced,
their leases run out, and the others take over. What does not live here: how a process is started and reaped
(`processes`).
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing.process import BaseProcess
from statistics import fmean
from typing import IO, Any, TypeVar

from ... import evidence
from ...database import Database
from ...engine import Engine
from ...errors import SoakError
from ...model import Boundary, Hook, Policy
from ...worker import new_identity
from ..laboratory.processes import ended, kill, start
from ..laboratory.scratch_schema import new_name, own_schema
from .crash_at import kill_here
from .kill_plan import GAP, Plan, label, plan_kills
from .soak_report import SoakReport

PARTS = ("detect", "claim", "replay", "re_execute", "span")
BATCH = 100
AHEAD = 400  # so many unfinished workflows are in the queue at most
MakeEngine = Callable[..., Engine]
T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """What a worker process of a soak has to know; it is sent to each of them. `plan` is by workflow id."""

    url: str
    schema: str
    plan: dict[str, tuple[str, ...]]
    lease_seconds: float
    make_engine: MakeEngine


def soak(
    where: str | Engine, requests: Iterable[str], *, schema: str | None = None, workers: int = 4, kills: int = 50,
    random_kills: int = 0, seed: int = 1, lease_seconds: float = 1.0, keep: bool = False,
    stall_seconds: float = 120.0, progress: bool | None = None, make_engine: MakeEngine = Engine,
) -> SoakReport:  # fmt: skip
    """The requests were run as support agents on `workers` processes while workers were killed; what it came to.

    Everything happens in a schema of its own, which must not exist and is dropped afterwards unless `keep`. If `where` is
    not a URL but a laboratory's engine, it happens there instead: what was there is gone, and the new rows stay. `kills` are
    planned by `seed`, `random_kills` are the parent's; use one of the two (a random kill may fall between a commit and the
    boundary behind it, and that boundary never comes again). `progress` shows a bar on standard error (None: on a
    terminal). Raises SoakError when nothing moved for `stall_seconds`, and before anything starts for numbers that make no
    sense, for no request at all, and whatever reading the requests raises; NotALaboratory.
    """
    if workers < 1 or kills < 0 or random_kills < 0 or (kills and random_kills):
        raise SoakError(
            "a soak needs at least one worker, and either planned kills or random kills; nothing was started."
        )
    with (
        _spooled(requests) as (spool, total),
        _place(where, schema or new_name(f"soak_{seed % 10**9}"), keep) as database,
    ):
        url = database.url.render_as_string(hide_password=False)
        plan = plan_kills(seed, total, kills)
        settings = Settings(
            url, database.schema, {workflow_id(r): kills for r, kills in plan.items()}, lease_seconds, make_engine
        )
        began = time.monotonic()
        run = _Soak(database, settings, workers, total, random.Random(seed))
        run.carry(_read_back(spool), kills, random_kills, stall_seconds, progress)
        return run.report(plan, seed, random_kills, time.monotonic() - began)


@contextmanager
def _place(where: str | Engine, schema: str, keep: bool) -> Iterator[Database]:
    """Where it happens: a new schema, or the engine's own laboratory, emptied. Raises NotALaboratory."""
    if isinstance(where, str):
        with own_schema(where, schema, keep) as database:
            yield database
    else:
        where.reset_database()
        yield where.database


def workflow_id(request: int) -> str:
    """The id of the workflow of the request with this index."""
    return f"request-{request:06d}"


def serve(settings: Settings, identity: str) -> None:
    """One worker process: carries workflows until SIGTERM, or until the plan kills it."""
    database = Database(settings.url, settings.schema, application_name=identity)
    engine = settings.make_engine(database, policy=_policy(settings.lease_seconds))
    worker = engine.with_hook(_killer(engine, settings.plan)).worker(identity, poll_seconds=settings.lease_seconds / 4)
    worker.stop_on_signals()
    worker.run_forever()


def _policy(lease_seconds: float) -> Policy:
    # Every take-over here follows a kill that we ordered, so the budget against workflows that kill must not be spent.
    return Policy(lease_seconds=lease_seconds, crash_budget=1_000_000)


def _killer(engine: Engine, plan: dict[str, tuple[str, ...]]) -> Hook:
    """Kills this process at the boundary planned for a workflow's next kill.

    A plan says "token k"; what counts is the k-th kill, so that a lease lost on a loaded machine does not cancel it.
    """

    def hook(boundary: Boundary) -> None:
        planned = plan.get(boundary.workflow or "")
        if planned and boundary.outcome in (None, "committed") and label(boundary) in planned:
            happened = sum(entry["event"] == "worker_killed" for entry in engine.history(str(boundary.workflow)))
            if happened < len(planned) and planned[happened] == label(boundary):
                kill_here(engine, label(boundary), boundary)

    return hook


class _Soak:
    """One soak while it runs: the queue is fed, the dead are replaced, and random victims are chosen."""

    def __init__(self, database: Database, settings: Settings, workers: int, total: int, chance: random.Random) -> None:
        self.database, self.settings, self.workers, self.total, self.chance = database, settings, workers, total, chance
        self.engine = settings.make_engine(database, policy=_policy(settings.lease_seconds))
        self.alive: dict[str, BaseProcess] = {}
        self.processes_killed, self.broken = 0, 0
        self.random_kills, self.in_flight = 0, 0

    def carry(
        self, requests: Iterator[str], kills: int, random_kills: int, stall_seconds: float, progress: bool | None
    ) -> None:
        """Every workflow is finished, every kill has happened, and no worker process is left."""
        thresholds = deque(sorted(self.chance.uniform(0, 0.9 * self.total) for _ in range(random_kills)))
        submitted, seen, moved = 0, (0, 0), time.monotonic()
        try:
            with _bar(self.total, progress) as show:
                while seen[0] < self.total or self.processes_killed < kills or thresholds:
                    self._man()
                    may = self._may_be_submitted(seen[0], thresholds[0] if thresholds else None)
                    submitted += self._submit(list(islice(requests, max(0, min(BATCH, may - submitted)))), submitted)
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
        """How many requests may be in the queue or behind it by now.

        Few unfinished ones; and work must not outrun the random kills, or the last of them would find nobody working.
        """
        may = min(self.total, finished + AHEAD)
        if next_kill is None:
            return may
        return min(may, max(int(next_kill) + 1, min(int(next_kill) + 8 * self.workers, self.total - self.workers)))

    def _man(self) -> None:
        """There are as many workers as ordered."""
        while len(self.alive) < self.workers:
            identity = new_identity("soak")
            self.alive[identity] = start(serve, self.settings, identity, name=identity)

    def _bury(self, dead: list[BaseProcess]) -> None:
        """The dead are counted. Raises SoakError if workers end of themselves again and again."""
        for process in dead:
            del self.alive[process.name]
            if process.exitcode == -9:
                self.processes_killed += 1
            else:
                self.broken += 1
                if self.broken > 3 * self.workers:
                    raise SoakError(
                        f"{self.broken} workers ended of themselves, the last with exit code {process.exitcode}; their "
                        "errors are on standard error. Mend that and soak again."
                    )

    def _dismiss(self) -> None:
        """The workers were asked to stop and have."""
        for process in self.alive.values():
            process.terminate()
        deadline = time.monotonic() + 10
        while self.alive and time.monotonic() < deadline:
            self._bury(ended(self.alive.values(), 0.1))

    def _submit(self, batch: list[str], first: int) -> int:
        self.engine.create_workflows(batch, workflow_ids=[workflow_id(first + n) for n in range(len(batch))])
        return len(batch)

    def _kill_one(self) -> None:
        """One worker is dead by SIGKILL, at a random microsecond, every other time while it waits for an answer."""
        holders = [row["lease_owner"] for row in _soon(lambda: self._ask(_HOLDERS, alive=list(self.alive)))]
        process = self.alive[self.chance.choice(holders or sorted(self.alive))]
        time.sleep(self.chance.uniform(0, 0.005))
        if self.random_kills % 2:
            _soon(lambda: self._is_active(process.name))
        if process.is_alive():
            process.kill()
            self.in_flight += self._is_active(process.name)  # seen after the signal: it sends nothing any more
            self.random_kills += 1
        for held in self._ask(_HELD, name=process.name):
            self.engine.record_fault(held["id"], "worker_killed", worker=process.name, token=held["fence_token"])
        process.join()
        self._bury([process])

    def _is_active(self, identity: str) -> bool:
        return bool(self._ask(_ACTIVE, name=identity)[0]["active"])

    def _finished(self) -> int:
        return int(self._ask(_FINISHED)[0]["finished"])

    def _stuck(self, seen: tuple[int, int], kills: int, seconds: float) -> str:
        rows = self._ask(_STUCK)
        named = "; ".join(
            f"{r['id']} ({r['status']}, {r['state']}, token {r['fence_token']}, held by {r['lease_owner'] or 'nobody'})"
            for r in rows
        )
        return (
            f"schema {self.database.schema!r}: nothing moved for {seconds:g} s. {seen[0]} of {self.total} workflows "
            f"are finished, {seen[1]} workers were killed ({kills} planned). Stuck: {named or 'none'}. Soak again with "
            "--keep and read their histories."
        )

    def report(self, plan: Plan, seed: int, random_kills: int, seconds: float) -> SoakReport:
        """The figures, from the rows alone (and the exit codes of the dead)."""
        figures = evidence.reliability_metrics(self.database)
        planned = Counter((request, where) for request, each in plan.items() for where in each)
        recorded = Counter((int(row["workflow_id"].rpartition("-")[2]), row["subject"]) for row in self._ask(_KILLED))
        kills = tuple(sorted((planned & recorded).elements()))
        takeovers = evidence.recoveries(self.database)
        return SoakReport(
            schema=self.database.schema, seed=seed, workers=self.workers, **figures,
            lost_workflows=self.total - figures["workflows_completed"],
            repeated_calls=self._ask(_REPEATED)[0]["calls"],
            kills_planned=planned.total(), kills_happened=len(kills),
            kills_in_gap=sum(where in GAP for _, where in kills),
            random_kills_planned=random_kills, random_kills=self.random_kills, kills_in_flight=self.in_flight,
            processes_killed=self.processes_killed, recoveries=len(takeovers),
            recovery_ms={part: _mean(row[f"{part}_ms"] for row in takeovers) for part in PARTS},
            kills=kills, seconds=round(seconds, 1),
        )  # fmt: skip

    def _ask(self, query: str, **binds: Any) -> list[dict[str, Any]]:
        schema = self.database.schema
        return self.database.read_sql(query.format(s=f'"{schema}"', w=f'"{schema}_world"'), binds)[1]


_FINISHED = "SELECT count(*) AS finished FROM {s}.workflows WHERE finished_at IS NOT NULL"
_STUCK = """\
SELECT id, status, state, fence_token, lease_owner FROM {s}.workflows
WHERE finished_at IS NULL ORDER BY updated_at LIMIT 10"""
_KILLED = "SELECT workflow_id, subject FROM {s}.history WHERE event = 'worker_killed'"
_REPEATED = "SELECT count(*) AS calls FROM {w}.tool_attempts WHERE outcome = 'repeated'"
_HOLDERS = "SELECT DISTINCT lease_owner FROM {s}.workflows WHERE lease_owner = ANY(:alive) ORDER BY 1"
_HELD = "SELECT id, fence_token FROM {s}.workflows WHERE lease_owner = :name"
_ACTIVE = "SELECT count(*) AS active FROM pg_stat_activity WHERE application_name = :name AND state = 'active'"


def _soon(look: Callable[[], T], seconds: float = 0.25) -> T:
    """What `look` sees as soon as it sees something, or at the end."""
    until = time.monotonic() + seconds
    while not (seen := look()) and time.monotonic() < until:
        pass
    return seen


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), 3) if known else None


@contextmanager
def _spooled(requests: Iterable[str]) -> Iterator[tuple[IO[str], int]]:
    """The requests on disk, and how many: a plan needs their number, and memory is bounded."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as spool:
        total = 0
        for request in requests:
            spool.write(json.dumps(request) + "\n")
            total += 1
        if not total:
            raise SoakError("there is no request to run; give a file that has some.")
        spool.seek(0)
        yield spool, total


def _read_back(spool: IO[str]) -> Iterator[str]:
    return (json.loads(line) for line in spool)


@contextmanager
def _bar(total: int, wanted: bool | None) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, on a terminal or if wanted."""
    from tqdm import tqdm

    with tqdm(total=total, unit="workflow", disable=None if wanted is None else not wanted) as bar:

        def show(finished: int) -> None:
            bar.update(finished - bar.n)

        yield show
