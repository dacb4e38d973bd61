"""Two measurements inside our own engine: a claim in a crowd, and a submit while a worker waits in another process."""

from __future__ import annotations

import multiprocessing
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from agentflow import Database, Engine
from tests.bench.contestants import REQUEST
from tests.bench.place import Place

_FINISH = """
UPDATE {s}.workflows
SET status = 'completed', state = 'COMPLETED', result = 'null', entries = entries + 1,
    completed_at = clock_timestamp(), finished_at = clock_timestamp()
WHERE id LIKE 'finished-%'"""
_ADD = """
INSERT INTO {s}.workflows (id, name, input, next_run_at)
SELECT :kind || '-' || n, 'support_agent', to_json('please help'::text), clock_timestamp() + :due * interval '1 hour'
FROM generate_series(1, :count) AS n"""
_FREE = "UPDATE {s}.workflows SET lease_owner = NULL, lease_expires_at = NULL WHERE lease_owner IS NOT NULL"


def claim_ratio(place: Place, *, finished: int, postponed: int, runnable: int, rounds: int) -> float:
    """The p95 of a claim beside so many finished and postponed workflows, over the p95 without; median of the rounds.

    The finished ones were runnable once, so that the index has seen them come and go.
    """
    crowd, alone = (Engine(place.laboratory(name)) for name in ("crowd", "alone"))
    for kind, due, count in (("finished", -2, finished), ("postponed", 2, postponed)):
        place.sql(_ADD.format(s=crowd.database.schema), kind=kind, due=due, count=count)
    place.sql(_FINISH.format(s=crowd.database.schema))
    for engine in (crowd, alone):
        place.sql(_ADD.format(s=engine.database.schema), kind="runnable", due=-1, count=runnable)
        place.sql(f"VACUUM ANALYZE {engine.database.schema}.workflows")
    ratios = []
    for number in range(rounds + 1):
        taken: dict[Engine, list[float]] = {crowd: [], alone: []}
        for turn in range(runnable):
            for engine in (crowd, alone) if turn % 2 else (alone, crowd):
                began = time.perf_counter()
                claim = engine.claim_workflow("bench")
                taken[engine].append(time.perf_counter() - began)
                if claim is None:
                    raise RuntimeError("a claim came back empty although workflows were runnable")
        for engine in (crowd, alone):
            place.sql(_FREE.format(s=engine.database.schema))
        if number:  # the first round plans
            ratios.append(_p95(taken[crowd]) / _p95(taken[alone]))
    crowd.close()
    alone.close()
    return statistics.median(ratios)


def _p95(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.95)]


def latency_ratio(place: Place, *, count: int, rounds: int) -> float:
    """From submit to completed with a worker waiting in another process, over the same statements inline; of medians.

    Both by the database's clock: when the workflow was created, when it was completed. A round is `count` of each.
    """
    waited, inline = (Engine(place.laboratory(name)) for name in ("waited", "inline"))
    worker = inline.worker("inline")
    ratios = []
    with _waiting_worker(place.url, waited.database.schema):
        for number in range(rounds + 1):
            for _ in range(count):
                _finish(waited, waited.create_workflows([REQUEST])[0])
                inline.create_workflows([REQUEST])
                worker.run_once()
            spans = [_median_span(place, engine) for engine in (waited, inline)]
            if number:
                ratios.append(spans[0] / spans[1])
            place.empty(waited.database)
            place.empty(inline.database)
    waited.close()
    inline.close()
    return statistics.median(ratios)


def _finish(engine: Engine, workflow_id: str, patience: float = 60.0) -> None:
    """The worker has completed it, and has had the time to wait again."""
    deadline = time.monotonic() + patience
    while (engine.get_workflow(workflow_id) or {}).get("status") != "completed":
        if time.monotonic() > deadline:
            raise TimeoutError(f"the waiting worker did not complete a workflow within {patience:g} s")
        threading.Event().wait(0.005)
    threading.Event().wait(0.02)


def _median_span(place: Place, engine: Engine) -> float:
    span = "extract(epoch FROM completed_at - created_at)"
    query = f"SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY {span}) FROM {engine.database.schema}.workflows"
    return float(place.sql(query)[0][0])


@contextmanager
def _waiting_worker(url: str, schema: str) -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(url, schema), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join(10)
        if process.is_alive():
            process.kill()


def _serve(url: str, schema: str) -> None:
    worker = Engine(Database(url, schema)).worker("waiting")
    worker.stop_on_signals()
    worker.run_forever()
