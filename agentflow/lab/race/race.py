"""Worker processes that run freely on one queue: who claimed what, who waited, who found nothing, who was refused.

The processes start at one barrier, and what happened is read back from the rows. Nothing in a race is chosen by us, so
there is no seed: two races differ, and every figure that is a time or a share is measured.

Two claims are compared. `skip_locked` is the engine's own. `plain_lock` is the same statement without SKIP LOCKED: it
waits for the neighbour's commit, sees that the row is leased now, and goes on to the next one. In both, the entry of a
claim also keeps its transaction's number and its snapshot, so that the rows say whose uncommitted claim it met.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from ...database import Database
from ...engine import Engine, find_database
from ...errors import RaceError
from ...model import Policy
from ...worker import new_identity
from ..broken.catalogue import texts
from ..history.entries import worker_name
from ..laboratory.processes import kill, start
from ..laboratory.scratch_schema import new_name, own_schema
from ..notebook.tables import query
from ..schedule.commit_order import Commit
from ..schedule.grammar import LANES
from .picture import Comparison, Race
from .result import Look

CLOCK = "SELECT clock_timestamp() AS now"
ASKED = "'asked_at', statement_timestamp()"
OBSERVED = ASKED + ",\n    'xid', pg_current_xact_id()::text, 'snapshot', pg_current_snapshot()::text"
CLAIMS = ("skip_locked", "plain_lock")
LOOK_AGAIN = 0.01  # seconds; as Worker.run_until_idle() does after an empty claim when there is work
EmptyClaims = list[tuple[datetime, datetime, bool]]
"""A worker's empty claims: when each was asked and answered, and whether a row looked runnable right afterwards."""


@dataclass(frozen=True)
class RaceSettings:
    """What each worker process of a race is sent when it starts."""

    url: str
    schema: str
    claim: str
    lease_seconds: float
    make_engine: Callable[..., Engine]


def observed(engine: Engine, claim: str) -> Engine:
    """Makes the engine's claims leave their transaction's number and snapshot in the history, perhaps with a plain lock."""
    schema = engine.database.schema
    text = engine.database.sql("claim") if claim == "skip_locked" else texts(["skip_locked"], schema)["claim"]
    engine.database = engine.database.with_texts({"claim": text.replace(ASKED, OBSERVED), "clock": CLOCK})
    return engine


def race(
    requests: Iterable[str], *, workers: int = 4, claim: str = "skip_locked", url: str | None = None,
    schema: str | None = None, lease_seconds: float = 30.0, patience: float = 60.0, keep: bool = False,
    make_engine: Callable[..., Engine] = Engine,
) -> Race:  # fmt: skip
    """Runs the requests as support agents on `workers` processes that start at one barrier; returns what happened.

    The race has its own schema, which must not exist yet and is dropped afterwards unless `keep`. `claim` is "skip_locked"
    or "plain_lock". Without `url` the database is found as by open_engine(). Raises RaceError for numbers that make no
    sense, before anything starts; when a worker dies; and when the workers do not finish within `patience` seconds.
    """
    asked = list(requests)
    _check(asked, workers, claim)
    where = url or find_database().url.render_as_string(hide_password=False)
    with own_schema(where, schema or new_name("race"), keep) as database:
        settings = RaceSettings(where, database.schema, claim, lease_seconds, make_engine)
        engine = make_engine(database)
        try:
            with _at_the_barrier(settings, LANES[:workers], patience) as racers:
                engine.create_workflows(asked, workflow_ids=[f"request-{n}" for n in range(1, len(asked) + 1)])
                empty = _run(racers, patience)
            return read_race(engine, claim, LANES[:workers], len(asked), empty)
        finally:
            engine.close()


def compare_claims(requests: Iterable[str], **options: Any) -> Comparison:
    """Races the same requests with SKIP LOCKED and then with a plain lock; returns both. Options as for race()."""
    asked = list(requests)
    return Comparison(*(race(asked, claim=claim, **options) for claim in CLAIMS))


def _check(requests: Sequence[str], workers: int, claim: str) -> None:
    if not 1 <= workers <= len(LANES):
        raise RaceError(f"A race has 1 to {len(LANES)} workers, not {workers}. Nothing was started.")
    if claim not in CLAIMS:
        raise RaceError(f"There is no claim {claim!r:.40}; choose one of {', '.join(CLAIMS)}. Nothing was started.")
    if not requests:
        raise RaceError("There is no request to race for. Give some, for example support_requests()[:12].")


# -- one worker process ------------------------------------------------------------------------------------------------


def serve_race(settings: RaceSettings, lane: str, channel: Connection) -> None:
    """One worker process: waits at the barrier, runs until nothing is runnable, and sends back its empty claims."""
    identity = new_identity(lane)
    database = Database(settings.url, settings.schema, application_name=identity)
    policy = Policy(lease_seconds=settings.lease_seconds, crash_budget=1_000_000)
    engine = observed(settings.make_engine(database, policy=policy), settings.claim)
    engine.claim_workflow(identity)  # nothing is there yet; the connections are made and the claim is prepared
    engine.world.look_up(None)
    clock = _clock(engine.database)
    channel.send("ready")
    channel.recv()
    channel.send(contend(engine, identity, clock))
    engine.close()


def _clock(database: Database) -> Callable[[], datetime]:
    """Reads the database's time once and keeps it by this process's clock: an empty claim leaves no row to read it from."""
    before = time.monotonic()
    now: datetime = database.read("clock", {})[0]["now"]
    zero = (before + time.monotonic()) / 2
    return lambda: now + timedelta(seconds=time.monotonic() - zero)


def contend(engine: Engine, identity: str, clock: Callable[[], datetime]) -> EmptyClaims:
    """Runs until nothing is runnable; returns the empty claims on the way."""
    empty: EmptyClaims = []
    worker = engine.worker(identity)
    while True:
        asked = clock()
        if worker.run_once() is not None:
            continue
        answered = clock()
        empty.append((asked, answered, engine.runnable(worker.names)))
        if not empty[-1][2]:
            return empty
        time.sleep(LOOK_AGAIN)


# -- all of them -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Racer:
    lane: str
    process: BaseProcess
    channel: Connection

    def tell(self, word: str) -> None:
        """Sends the process a word. Raises RaceError if it has died."""
        try:
            self.channel.send(word)
        except ConnectionError:
            raise self._ended() from None

    def hear(self, until: float) -> Any:
        """Receives what the process sends next. Raises RaceError if it has died, or sends nothing until then."""
        try:
            if self.channel.poll(max(0.0, until - time.monotonic())):
                return self.channel.recv()
        except (EOFError, ConnectionError):
            raise self._ended() from None
        raise RaceError(
            f"Worker {self.lane} did not finish in time, and all workers were stopped. Give more `patience`, or `keep` "
            "the schema and read its histories."
        )

    def _ended(self) -> RaceError:
        self.process.join(5)
        return RaceError(
            f"Worker {self.lane} exited on its own with code {self.process.exitcode}; its error is on standard error. The "
            "other workers were stopped. Fix the error and race again."
        )


@contextmanager
def _at_the_barrier(settings: RaceSettings, lanes: Sequence[str], patience: float) -> Iterator[list[_Racer]]:
    """Starts a process for each lane, connected and prepared, which waits for a word; none is left afterwards."""
    racers: list[_Racer] = []
    try:
        for lane in lanes:
            here, there = Pipe()
            racers.append(_Racer(lane, start(serve_race, settings, lane, there, name=f"race-{lane}"), here))
            there.close()
        until = time.monotonic() + patience
        for racer in racers:
            racer.hear(until)
        yield racers
    finally:
        kill(racer.process for racer in racers)
        for racer in racers:
            racer.channel.close()


def _run(racers: Sequence[_Racer], patience: float) -> dict[str, EmptyClaims]:
    """Lets all of them run until nothing is runnable; returns the empty claims of each lane."""
    until = time.monotonic() + patience
    for racer in racers:
        racer.tell("go")
    empty = {racer.lane: racer.hear(until) for racer in racers}
    for racer in racers:
        racer.process.join(max(0.0, until - time.monotonic()))
    return empty


# -- what happened, from the rows --------------------------------------------------------------------------------------

_CLAIMED = """
WITH claims AS (
    SELECT h.workflow_id, h.worker, h.fence_token, h.at, w.created_at,
           (h.detail ->> 'asked_at')::timestamptz AS asked_at,
           (h.detail ->> 'xid')::xid8 AS xid,
           (h.detail ->> 'snapshot')::pg_snapshot AS snapshot
    FROM history AS h
    JOIN workflows AS w ON w.id = h.workflow_id
    WHERE h.event = 'workflow_claimed'
)
SELECT c.workflow_id, c.worker, c.fence_token, c.at, c.asked_at,
       ARRAY(SELECT o.worker
             FROM claims AS o
             WHERE o.created_at < c.created_at
               AND NOT pg_visible_in_snapshot(o.xid, c.snapshot)
               AND (o.fence_token = 1 OR o.at <= c.at)
             ORDER BY o.at) AS met
FROM claims AS c
ORDER BY c.at"""

_WORLD = "SELECT coalesce(sum(attempts), 0)::int AS attempts, count(*)::int AS effects FROM tool_ledger"


def read_race(
    engine: Engine, claim: str, lanes: Sequence[str], requests: int, empty: Mapping[str, EmptyClaims]
) -> Race:
    """The race whose rows are in the engine's schema, with the empty claims that its workers reported."""
    claimed = query(engine, _CLAIMED)
    since = partial(_ms, min([row["asked_at"] for row in claimed] + [told[0][0] for told in empty.values()]))
    looks = [
        Look(
            worker_name(row["worker"]), row["workflow_id"], row["fence_token"], since(row["asked_at"]), since(row["at"]),
            tuple(worker_name(other) for other in row["met"]),
        )
        for row in claimed
    ]  # fmt: skip
    for lane, told in empty.items():
        looks += [Look(lane, None, None, since(asked), since(answered), (), left) for asked, answered, left in told]
    histories = (engine.history(f"request-{n}") for n in range(1, requests + 1))
    world = query(engine, _WORLD)[0]
    return Race(
        claim, tuple(lanes), requests, tuple(sorted(looks, key=lambda look: look.got)),
        tuple(entry for history in histories for entry in _commits(history, since)), world["attempts"], world["effects"],
    )  # fmt: skip


def _commits(history: Sequence[dict[str, Any]], since: Callable[[datetime], float]) -> Iterator[Commit]:
    """The entries of one workflow; an entry of the world belongs to the worker that held the workflow then."""
    holder: dict[str, Any] = {"worker": None, "fence_token": None}
    for entry in history:
        if entry["event"] == "workflow_claimed":
            holder = entry
        whose = holder if entry["transaction"] == "tool" else entry
        yield Commit(
            worker_name(whose["worker"]) if whose["worker"] else None, entry["workflow_id"], entry["event"],
            entry["transaction"], entry["subject"], whose["fence_token"], since(entry["at"]),
        )  # fmt: skip


def _ms(start: datetime, at: datetime) -> float:
    return round((at - start).total_seconds() * 1000, 3)
