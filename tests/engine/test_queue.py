"""The queue: who gets which workflow when, and what an idle worker costs."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from agentflow import Engine, Policy, migrate
from agentflow.model import Boundary
from tests.conftest import rows
from tests.support.helpers import eventually, working
from tests.support.isolation import Session, asked, race, trial
from tests.support.signals import send
from tests.support.worker_process import JOBS, start_worker


def statuses(engine: Engine) -> dict[str, str]:
    return {r["id"]: r["status"] for r in rows(engine, "SELECT id, status FROM {s}.workflows")}


def plain(run: Any, request: Any) -> Any:
    return run.step("one", lambda: request)


def test_the_oldest_runnable_workflow_comes_first_whoever_asks(engine: Engine) -> None:
    ids = [f"{n:02}" for n in reversed(range(20))]
    for workflow in ids[:10]:
        engine.create_workflow("r", workflow_id=workflow)
    engine.create_workflows(["r"] * 10, workflow_ids=ids[10:])
    claimed = [engine.claim_workflow(f"worker-{n % 3}") for n in range(20)]
    assert [claim and claim.workflow_id for claim in claimed] == ids


def test_workers_side_by_side_claim_everything_once(engine: Engine) -> None:
    mine = Engine(engine.database, workflows={"job": plain})
    mine.create_workflows(list(range(60)), name="job")
    assert sum(mine.run_competing_workers("a", "b", "c", "d")) == 60
    assert rows(mine, "SELECT fence_token, count(*) AS n FROM {s}.workflows GROUP BY 1") == [
        {"fence_token": 1, "n": 60}
    ]


def test_an_unknown_type_in_the_middle_of_a_batch_stays_alone(engine: Engine) -> None:
    mine = Engine(engine.database, workflows={"job": plain})
    for n, name in enumerate(["job", "job", "unknown", "job", "job"]):
        mine.create_workflow(n, name=name, workflow_id=str(n))
    assert mine.run_until_idle("A") == 4
    assert statuses(mine) == {"0": "completed", "1": "completed", "2": "ready", "3": "completed", "4": "completed"}
    (left,) = rows(mine, "SELECT fence_token, entries, lease_owner FROM {s}.workflows WHERE id = '2'")
    assert left == {"fence_token": 0, "entries": 1, "lease_owner": None}


def test_two_workers_leave_each_others_types_alone(engine: Engine) -> None:
    one = Engine(engine.database, workflows={"one": plain})
    two = Engine(engine.database, workflows={"two": plain})
    for n in range(20):
        engine.create_workflow(n, name=("one", "two")[n % 2])
    with working(one.worker("W1", poll_seconds=0.1), two.worker("W2", poll_seconds=0.1)):
        eventually(lambda: set(statuses(engine).values()) == {"completed"})
    found = rows(
        engine,
        "SELECT DISTINCT w.name, s.worker FROM {s}.workflows AS w JOIN {s}.steps AS s ON s.workflow_id = w.id "
        "ORDER BY 1",
    )
    assert found == [{"name": "one", "worker": "W1"}, {"name": "two", "worker": "W2"}]


def test_workflows_that_always_fail_do_not_hold_new_work_up(engine: Engine) -> None:
    """After its first failure each of them queues behind the new work, and in the end fails for good."""

    def job(run: Any, request: Any) -> Any:
        def body() -> Any:
            if request == "bad":
                raise RuntimeError("always")
            return request

        return run.step("one", body)

    mine = Engine(engine.database, workflows={"job": job}, policy=Policy(first_delay=0.05, max_attempts=4))
    mine.create_workflows(["bad"] * 8, name="job", workflow_ids=[f"bad-{n}" for n in range(8)])
    mine.create_workflows(list(range(200)), name="job", workflow_ids=[f"new-{n}" for n in range(200)])
    with working(mine.worker("A", poll_seconds=0.05), mine.worker("B", poll_seconds=0.05)):
        eventually(lambda: all(s != "ready" for s in statuses(mine).values()), 60)
    found = statuses(mine)
    assert {w: s for w, s in found.items() if s != "completed"} == {f"bad-{n}": "failed" for n in range(8)}
    assert rows(mine, "SELECT count(*) AS n FROM {s}.history WHERE event = 'attempt_failed'") == [{"n": 8 * 3}]
    first_new = "SELECT min(at) FROM {s}.history WHERE workflow_id LIKE 'new%' AND event = 'workflow_completed'"
    second_bad = (
        "SELECT min(at) FROM {s}.history "
        "WHERE workflow_id LIKE 'bad%' AND event = 'workflow_claimed' AND fence_token = 2"
    )
    assert rows(mine, f"SELECT ({first_new}) < ({second_bad}) AS first")[0]["first"]


def test_back_off_doubles_is_capped_and_has_jitter() -> None:
    policy = Policy(first_delay=1.0, max_delay=8.0)
    for tries, base in [(1, 1), (2, 2), (3, 4), (4, 8), (9, 8), (10_000, 8)]:
        delays = [policy.delay(tries) for _ in range(50)]
        assert all(base <= delay <= 1.25 * base for delay in delays)
        assert len(set(delays)) > 10


def test_a_killed_workflow_goes_on_and_those_behind_it_run(engine: Engine, tmp_path: Path) -> None:
    """The worker is killed between two steps; one worker is left, and five workflows are waiting."""
    mine = Engine(engine.database, workflows=JOBS)
    mine.create_workflow(str(tmp_path), name="gated", workflow_id="w")
    with start_worker(mine, "A", lease=0.5, names=["gated"]) as process:
        eventually(lambda: any(tmp_path.glob("began-*")), 60)
        send(process.pid, signal.SIGKILL)  # the gate is shut: it is still in its step
        assert process.wait(30) == -signal.SIGKILL
    (tmp_path / "open").touch()
    mine.create_workflows([None] * 5, name="plain")
    with working(mine.worker("B", poll_seconds=0.1)):
        eventually(lambda: list(statuses(mine).values()) == ["completed"] * 6, 60)
    assert len(rows(mine, "SELECT 1 FROM {w}.tool_ledger")) == 6


def test_what_is_ready_runs_before_what_is_due_later(engine: Engine) -> None:
    mine = Engine(engine.database, workflows={"job": plain})
    mine.create_workflow("later", name="job", workflow_id="later")
    claim = mine.claim_workflow("A")
    assert claim
    mine.postpone(claim, "one", {"type": "T", "message": "m"}, 3600)
    mine.create_workflow("now", name="job", workflow_id="now")
    assert mine.run_until_idle("A") == 1
    assert statuses(mine) == {"later": "ready", "now": "completed"}
    mine.expire_lease("later")
    assert mine.run_until_idle("A") == 1


def test_an_empty_claim_is_looked_at_twice_before_a_worker_calls_itself_idle(engine: Engine) -> None:
    """The only row is locked, by a delivery, say: it is not nothing."""
    engine.create_workflow("login", workflow_id="w")
    looks: list[int] = []
    done: list[int] = []
    mine = Engine(
        engine.database, hook=lambda b: looks.append(1) if b.transaction == "claim" and b.edge == "after" else None
    )
    with Session(engine.database) as session:
        session.run("BEGIN")
        session.run(f'SELECT 1 FROM "{engine.database.schema}".workflows FOR UPDATE')
        thread = threading.Thread(target=lambda: done.append(mine.run_until_idle("A")))
        thread.start()
        eventually(lambda: len(looks) >= 3)
        assert thread.is_alive()
        session.run("COMMIT")
        thread.join(30)
    assert done == [1]


def test_two_creators_of_one_id_make_one_workflow_and_both_know_it(engine: Engine) -> None:
    """The second statement waits for the first, whichever way that ends."""
    call = asked(engine.database, lambda e: e.create_workflows(["r", "s"], name="job", workflow_ids=["w", "x"]))
    for end in ("ROLLBACK", "COMMIT"):
        found = race(engine.database, call, call, end)  # type: ignore[arg-type]
        assert found.waited
        assert [(r["inserted"], r["same"]) for r in found.second] == [(end == "ROLLBACK", True)] * 2
        if end == "ROLLBACK":
            engine.reset_database()
    other = asked(engine.database, lambda e: e.create_workflows(["other"], name="job", workflow_ids=["w"]))
    assert [(r["inserted"], r["same"]) for r in trial(engine.database, "w", other).answers[0]] == [(False, False)]
    assert rows(engine, "SELECT workflow_id, n FROM {s}.history ORDER BY 1") == [
        {"workflow_id": "w", "n": 1},
        {"workflow_id": "x", "n": 1},
    ]


def test_batches_that_cross_are_all_created_without_a_deadlock_that_anybody_sees(engine: Engine) -> None:
    ids = [f"{n:03}" for n in range(150)]
    gate, troubles = threading.Barrier(6), []

    def create(number: int) -> None:
        gate.wait(20)
        order = ids if number % 2 else ids[::-1]
        try:
            engine.create_workflows(list(order), name="job", workflow_ids=order)
        except Exception as error:
            troubles.append(error)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert troubles == []
    assert rows(engine, "SELECT count(*) AS n FROM {s}.history") == [{"n": 150}]


def commits(engine: Engine) -> int:
    """How many transactions PostgreSQL counts for this database, after every session has reported."""
    with Session(engine.database) as session:
        return int(
            session.run("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")[0]["xact_commit"]
        )


def test_sixteen_idle_workers_ask_once_a_poll_each_and_no_more(own_database: Any) -> None:
    migrate(database := own_database(), laboratory=True)
    looks: dict[str, int] = {}

    def count(boundary: Boundary) -> None:
        if boundary.edge == "before":
            looks[str(boundary.worker)] = looks.get(str(boundary.worker), 0) + 1

    poll = 0.3
    idle = Engine(database, workflows={"job": plain}, hook=count)
    before, began, cpu = commits(idle), time.monotonic(), time.process_time()
    with ExitStack() as stack:
        stack.enter_context(working(*(idle.worker(f"w{n}", poll_seconds=poll) for n in range(16))))
        eventually(lambda: len(looks) == 16 and min(looks.values()) >= 6, 60)
    polls = (time.monotonic() - began) / poll
    idle.close()
    assert max(looks.values()) <= polls + 3  # the first look, the one after it listens, and the last
    asked_for = sum(looks.values())
    counted: list[int] = []
    eventually(lambda: counted.append(commits(idle) - before) or counted[-1] >= asked_for)
    connecting = 16 * 16  # settings of new sessions, their preparing and their LISTEN
    assert counted[-1] <= asked_for + connecting + len(counted)  # our own looks count too
    assert time.process_time() - cpu < 0.15 * (time.monotonic() - began)  # three polls a second, start included


def test_tables_that_are_missing_for_a_while_fail_no_workflow(schema: Any) -> None:
    migrate(database := schema(patience=0.2), laboratory=True)
    engine = Engine(database, workflows={"job": lambda run, _: run.step("one", lambda: 1)})
    engine.create_workflows([None] * 5, name="job")
    with Session(database) as session:
        session.run(f'ALTER TABLE "{database.schema}".steps RENAME TO elsewhere')
        with working(engine.worker("A", lease_seconds=0.5, poll_seconds=0.1)):
            eventually(lambda: rows(engine, "SELECT 1 FROM {s}.workflows WHERE fence_token > 0"), 30)
            session.run(f'ALTER TABLE "{database.schema}".elsewhere RENAME TO steps')
            eventually(
                lambda: all(r["status"] == "completed" for r in rows(engine, "SELECT status FROM {s}.workflows")), 60
            )


def test_a_worker_of_no_workflow_claims_nothing(engine: Engine) -> None:
    engine.create_workflow("password")
    assert engine.claim_workflow("A", names=[]) is None


def test_a_step_that_closes_the_workers_own_sockets_does_not_end_it(engine: Engine) -> None:
    closed: list[int] = []

    def close(run: Any, _: Any) -> None:
        for one in bells[0]._sockets:
            one.close()
        closed.append(1)

    mine = Engine(engine.database, workflows={"close": close, "job": plain})
    worker = mine.worker("A", poll_seconds=0.1)
    bells = [worker._bell]
    mine.create_workflow(None, name="close")
    with working(worker):
        eventually(lambda: closed, 30)
        mine.create_workflow(None, name="job", workflow_id="after")
        eventually(lambda: (mine.get_workflow("after") or {})["status"] == "completed", 30)
