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
from contextlib import ExitStack, closing
from datetime import datetime, timedelta
from functools import partial
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
from ..laboratory.processes import connected
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
POLICY = Policy(lease_seconds=30.0, crash_budget=1_000_000)
LOOK_AGAIN = 0.01  # seconds; as Worker.run_until_idle() does after an empty claim when there is work
EmptyClaims = list[tuple[datetime, datetime, bool]]
"""A worker's empty claims: when each was asked and answered, and whether a row looked runnable right afterwards."""


def observed(engine: Engine, claim: str) -> Engine:
    """Makes the engine's claims leave their transaction's number and snapshot in the history, perhaps with a plain lock."""
    schema = engine.database.schema
    text = engine.database.sql("claim") if claim == "skip_locked" else texts(["skip_locked"], schema)["claim"]
    engine.database = engine.database.with_texts({"claim": text.replace(ASKED, OBSERVED), "clock": CLOCK})
    return engine


def race(
    requests: Iterable[str], *, workers: int = 4, claim: str = "skip_locked", url: str | None = None,
    schema: str | None = None, patience: float = 60.0, keep: bool = False, make_engine: Callable[..., Engine] = Engine,
) -> Race:  # fmt: skip
    """Runs the requests as support agents on `workers` processes that start at one barrier; returns what happened.

    The race has its own schema, which must not exist yet and is dropped afterwards unless `keep`. `claim` is "skip_locked"
    or "plain_lock". Without `url` the database is found as by open_engine(). Raises RaceError for numbers that make no
    sense, before anything starts; when a worker dies; and when the workers do not finish within `patience` seconds.
    """
    asked = list(requests)
    _check(asked, workers, claim)
    where = url or find_database().address
    lanes = LANES[:workers]
    with own_schema(where, schema or new_name("race"), keep) as database, closing(make_engine(database)) as engine:
        with ExitStack() as stack:
            racers: dict[str, tuple[BaseProcess, Connection]] = {}
            for lane in lanes:
                sent = (where, database.schema, claim, make_engine, lane)
                racers[lane] = stack.enter_context(connected(serve_race, *sent, name=f"race-{lane}"))
            _answers(racers, "prepare", patience)
            engine.create_workflows(asked, workflow_ids=[f"request-{n}" for n in range(1, len(asked) + 1)])
            empty = _answers(racers, "go", patience)
        return read_race(engine, claim, lanes, len(asked), empty)


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
        raise RaceError("There are no requests to race for. Give some, for example support_requests()[:12].")


# -- one worker process ------------------------------------------------------------------------------------------------


def serve_race(
    url: str, schema: str, claim: str, make_engine: Callable[..., Engine], lane: str, channel: Connection
) -> None:
    """One worker process: prepares, then runs until nothing is runnable and sends back its empty claims, each at a word."""
    identity = new_identity(lane)
    database = Database(url, schema, application_name=identity)
    engine = observed(make_engine(database, policy=POLICY), claim)
    channel.recv()
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
        empty.append((asked, clock(), engine.runnable(worker.names)))
        if not empty[-1][2]:
            return empty
        time.sleep(LOOK_AGAIN)


# -- all of them -------------------------------------------------------------------------------------------------------


def _answers(racers: Mapping[str, tuple[BaseProcess, Connection]], word: str, patience: float) -> dict[str, Any]:
    """Sends all processes a word; returns each one's answer. Raises RaceError for a process that has died or is late."""
    until, lane, answers = time.monotonic() + patience, "", {}
    try:
        for lane in racers:
            racers[lane][1].send(word)
        for lane, (_, channel) in racers.items():
            if not channel.poll(max(0.0, until - time.monotonic())):
                raise RaceError(
                    f"Worker {lane} did not finish in time, and all workers were stopped. Give more `patience`, or `keep` "
                    "the schema and read its histories."
                )
            answers[lane] = channel.recv()
    except (EOFError, ConnectionError):
        process = racers[lane][0]
        process.join(5)
        raise RaceError(
            f"Worker {lane} exited on its own with code {process.exitcode}; its error is on standard error. The "
            "other workers were stopped. Fix the error and race again."
        ) from None
    return answers


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
            entry["detail"] or {},
        )  # fmt: skip


def _ms(start: datetime, at: datetime) -> float:
    return round((at - start).total_seconds() * 1000, 3)
