"""Leases, tokens, clocks and ends. Workers that are stopped or killed are real processes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentflow import Database, Engine, LostLease, Policy
from agentflow.errors import AlreadyFinished, DatabaseAway
from agentflow.model import Boundary, Claim
from agentflow.renewals import Renewals
from agentflow.server import ensure_running
from agentflow.worker import Worker
from tests.conftest import rows
from tests.support.helpers import eventually, working
from tests.support.isolation import Session, gapless, rows_of
from tests.support.signals import freeze, send
from tests.support.worker_process import JOBS, start_worker


@pytest.fixture
def jobs(engine: Engine) -> Engine:
    """The test's own engine, which knows the worker processes' workflows."""
    return Engine(engine.database, workflows=JOBS)


def row(engine: Engine, workflow_id: str = "w") -> dict[str, Any]:
    return rows(engine, "SELECT * FROM {s}.workflows WHERE id = :i", i=workflow_id)[0]


def entries(engine: Engine, event: str, worker: str | None = None) -> int:
    query = "SELECT count(*) AS n FROM {s}.history WHERE event = :e AND (CAST(:w AS text) IS NULL OR worker = :w)"
    return int(rows(engine, query, e=event, w=worker)[0]["n"])


def one_effect(engine: Engine) -> bool:
    return len(rows(engine, "SELECT 1 FROM {w}.tool_ledger")) == 1


def began(folder: Path) -> bool:
    return any(folder.glob("began-*"))


# -- renewals --------------------------------------------------------------------------------------------------------


def test_a_slow_worker_that_can_renew_is_never_robbed(engine: Engine) -> None:
    """The step sleeps for several times the length of its lease."""
    gate = threading.Event()
    mine = Engine(engine.database, workflows={"slow": lambda run, _: run.step("one", lambda: gate.wait(60))})
    mine.create_workflow(None, name="slow", workflow_id="w")
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(mine.worker("A", lease_seconds=0.6).run_once)
        eventually(lambda: row(mine)["lease_owner"] == "A")
        thief = mine.worker("B")

        def many_leases_passed() -> bool:
            assert thief.run_once() is None
            return entries(mine, "lease_renewed") >= 8

        eventually(many_leases_passed, 60)
        gate.set()
        assert future.result(30) == "completed"
    assert (row(mine)["fence_token"], row(mine)["crashes"]) == (1, 0)


def test_a_short_lease_beside_a_long_one_is_renewed_in_time(engine: Engine) -> None:
    """Both workers' leases are renewed by one thread, which sleeps until the next is due."""
    gate = threading.Event()
    mine = Engine(engine.database, workflows={"slow": lambda run, _: run.step("one", lambda: gate.wait(60))})
    mine.create_workflows([None] * 2, name="slow", workflow_ids=["long", "short"])
    with ThreadPoolExecutor(2) as thread:
        first = thread.submit(mine.worker("A", lease_seconds=600).run_once)
        eventually(lambda: row(mine, "long")["lease_owner"] == "A")
        second = thread.submit(mine.worker("B", lease_seconds=0.6).run_once)
        try:
            eventually(lambda: entries(mine, "lease_renewed", "B") >= 4)
        finally:
            gate.set()
        assert (first.result(30), second.result(30)) == ("completed", "completed")
    assert row(mine, "short")["fence_token"] == 1


def test_the_thread_that_renews_ends_when_nothing_is_held_and_comes_back(
    jobs: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentflow.renewals._IDLE_SECONDS", 0.05)

    def renewing() -> int:
        return sum(thread.name == "agentflow-renewals" for thread in threading.enumerate())

    others = renewing()
    for n in range(3):
        jobs.create_workflow(None, name="plain", workflow_id=f"w{n}")
        worker = Worker(jobs, jobs.workflows, jobs.tool, "A")
        assert worker.run_once() == "completed"
        eventually(lambda: renewing() <= others)


def test_a_worker_that_cannot_renew_for_a_whole_lease_is_robbed_and_the_token_protects(engine: Engine) -> None:
    gate, ran = threading.Event(), []

    def slow(run: Any, _: Any) -> Any:
        def body() -> str:
            ran.append(threading.get_ident())
            if len(ran) == 1:
                gate.wait(60)
            return f"body {len(ran)}"

        run.step("one", body)
        return run.side_effect("pay", key="pay")

    class Unreachable(Engine):
        def renew_lease(self, claim: Claim) -> None:
            raise DatabaseAway("the renewals' own connection is cut")

    mine = Engine(engine.database, workflows={"slow": slow})
    mine.create_workflow(None, name="slow", workflow_id="w")
    cut_off = Worker(
        mine, mine.workflows, mine.tool, "A", lease_seconds=0.3, renewals=Renewals(Unreachable(engine.database))
    )
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(cut_off.run_once)
        eventually(lambda: ran)  # A has it
        assert eventually(mine.worker("B").run_once) == "completed"
        before = rows_of(mine.database, "w")
        gate.set()
        assert future.result(30) == "lost"
    after = rows_of(mine.database, "w")
    assert [s["value"] for s in after["steps"]] == ["body 2", {"done": "pay"}]
    assert after["history"][-1] | {"n": 0} == {
        "n": 0, "event": "write_refused", "transaction": "checkpoint", "subject": "one", "worker": "A",
        "fence_token": 1,
    }  # fmt: skip
    assert (after["steps"], after["action_intents"]) == (before["steps"], before["action_intents"])
    assert gapless(after)
    assert one_effect(mine)


def test_a_step_that_keeps_the_interpreters_lock_for_many_leases_still_leaves_one_effect(jobs: Engine) -> None:
    """Nothing can renew inside one long C call, so the worker loses its lease and its writes are refused."""
    jobs.create_workflow(60_000_000, name="hog", workflow_id="w")
    with start_worker(jobs, "A", lease=0.2) as process:
        eventually(lambda: row(jobs)["fence_token"] == 1, 60)
        assert eventually(jobs.worker("B").run_once, 60) == "completed"
        eventually(lambda: entries(jobs, "write_refused", "A"), 60)
        send(process.pid, signal.SIGTERM)
        assert process.wait(60) == 0
    found = rows_of(jobs.database, "w")
    assert found["steps"][0]["worker"] == "B"
    assert gapless(found)
    assert one_effect(jobs)


# -- processes that are stopped, killed and misled -------------------------------------------------------------------


def test_a_worker_stopped_past_its_lease_changes_nothing_when_it_wakes(jobs: Engine, tmp_path: Path) -> None:
    jobs.create_workflow(str(tmp_path), name="gated", workflow_id="w")
    with start_worker(jobs, "A", lease=2, names=["gated"]) as process:
        eventually(lambda: began(tmp_path), 60)
        freeze(process.pid)
        (tmp_path / "open").touch()
        assert eventually(jobs.worker("B").run_once, 60) == "completed"
        before = rows_of(jobs.database, "w")
        send(process.pid, signal.SIGCONT)
        eventually(lambda: entries(jobs, "write_refused", "A"), 60)
        send(process.pid, signal.SIGTERM)
        assert process.wait(60) == 0
    after = rows_of(jobs.database, "w")
    for found in (before, after):
        found["workflows"][0].pop("entries")
    refusals = after["history"][len(before["history"]) :]
    assert {(e["event"], e["worker"]) for e in refusals} == {("write_refused", "A")}
    assert after | {"history": []} == before | {"history": []}
    assert one_effect(jobs)


def test_a_killed_worker_is_replaced_by_the_first_look_after_its_lease(jobs: Engine, tmp_path: Path) -> None:
    """Take-over within the lease and one poll: no look that began after the lease had ended came back empty."""
    jobs.create_workflow(str(tmp_path), name="gated", workflow_id="w")
    with start_worker(jobs, "A", lease=1, names=["gated"]) as process:
        eventually(lambda: began(tmp_path), 60)
        send(process.pid, signal.SIGKILL)  # the gate is shut: it is still in its step
        assert process.wait(30) == -signal.SIGKILL
    (tmp_path / "open").touch()
    late: list[bool] = []
    taken: list[bool] = []

    def look(boundary: Boundary) -> None:
        if boundary.transaction == "claim" and not taken:
            if boundary.edge == "before":
                late.append(
                    bool(
                        rows(jobs, "SELECT lease_expires_at <= clock_timestamp() AS over FROM {s}.workflows")[0]["over"]
                    )
                )
            elif boundary.workflow:
                taken.append(late[-1])

    with working(Engine(jobs.database, workflows=JOBS, hook=look).worker("B", poll_seconds=0.1)):
        eventually(lambda: row(jobs)["status"] == "completed", 60)
    assert late.count(True) <= 1
    assert (row(jobs)["fence_token"], row(jobs)["crashes"]) == (2, 0)  # the recorded step wiped the count
    assert one_effect(jobs)


@pytest.mark.parametrize("minutes", [10, -10])
def test_only_the_databases_clock_decides(jobs: Engine, minutes: int) -> None:
    """A worker whose clock is wrong robs nobody, renews its own lease, and takes over what has expired."""
    for workflow in ("held", "orphan"):
        jobs.create_workflow(None, name="plain", workflow_id=workflow)
    holder = jobs.claim_workflow("A", 60)
    assert holder
    assert jobs.claim_workflow("dead", 0.2) is not None
    with start_worker(jobs, "skewed", lease=1, clock=60 * minutes) as process:
        eventually(lambda: row(jobs, "orphan")["status"] == "completed", 60)
        jobs.create_workflow(None, name="plain", workflow_id="probe")
        eventually(lambda: row(jobs, "probe")["status"] == "completed", 60)
        assert (row(jobs, "held")["lease_owner"], row(jobs, "held")["fence_token"]) == ("A", 1)
        send(process.pid, signal.SIGTERM)
        assert process.wait(60) == 0
    jobs.complete_workflow(holder, "mine")
    assert entries(jobs, "write_refused") == 0
    assert (
        rows(
            jobs,
            "SELECT 1 FROM {s}.history "
            "WHERE at > clock_timestamp() + interval '1 min' OR at < clock_timestamp() - interval '5 min'",
        )
        == []
    )


def test_a_worker_that_is_frozen_while_it_starts_holds_nobody_up(jobs: Engine) -> None:
    with start_worker(jobs, "A") as process:
        freeze(process.pid)
        jobs.create_workflows([None] * 3, name="plain")
        assert jobs.worker("B").run_until_idle() == 3
        send(process.pid, signal.SIGCONT)
        jobs.create_workflow(None, name="plain", workflow_id="next")
        eventually(lambda: row(jobs, "next")["status"] == "completed", 60)
    assert {r["worker"] for r in rows(jobs, "SELECT worker FROM {s}.steps WHERE workflow_id = 'next'")} == {"A"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_an_idle_worker_ends_it_with_exit_code_0(jobs: Engine, number: int) -> None:
    with start_worker(jobs, "A", poll=100) as process:
        jobs.create_workflow(None, name="plain", workflow_id="w")
        eventually(lambda: row(jobs)["status"] == "completed", 60)
        send(process.pid, number)
        assert process.wait(60) == 0


def test_sigterm_in_a_step_ends_after_that_step_with_the_lease_released(jobs: Engine, tmp_path: Path) -> None:
    jobs.create_workflow(str(tmp_path), name="gated", workflow_id="w")
    with start_worker(jobs, "A") as process:
        eventually(lambda: began(tmp_path), 60)
        send(process.pid, signal.SIGTERM)
        (tmp_path / "open").touch()
        assert process.wait(60) == 0
    found = row(jobs)
    assert (found["status"], found["lease_owner"], found["crashes"]) == ("ready", None, 0)
    assert found["checkpoints"] >= 1
    assert jobs.worker("B").run_once() == "completed"
    assert row(jobs)["recovery_started_at"] is None
    assert one_effect(jobs)


def test_sigterm_in_a_commit_lets_it_be_and_releases_the_lease(jobs: Engine, tmp_path: Path) -> None:
    """The signal comes while the checkpoint waits for a row lock."""
    jobs.create_workflow(str(tmp_path), name="gated", workflow_id="w")
    with start_worker(jobs, "A") as process, Session(jobs.database) as session, Session(jobs.database) as watcher:
        eventually(lambda: began(tmp_path), 60)
        session.run("BEGIN")
        session.run(f'SELECT 1 FROM "{jobs.database.schema}".workflows FOR UPDATE')
        (tmp_path / "open").touch()
        eventually(
            lambda: watcher.run(f"SELECT 1 FROM pg_stat_activity WHERE {session.pid} = ANY (pg_blocking_pids(pid))"), 60
        )
        send(process.pid, signal.SIGTERM)
        assert process.poll() is None
        session.run("COMMIT")
        assert process.wait(60) == 0
    found = row(jobs)
    assert (found["status"], found["lease_owner"]) == ("ready", None)
    assert rows(jobs, "SELECT step_id FROM {s}.steps ORDER BY position")[0] == {"step_id": "gate"}
    assert jobs.worker("B").run_once() == "completed"


# -- ends ------------------------------------------------------------------------------------------------------------


def boundaries_of(work: Callable[[Engine], Any], engine: Engine) -> list[tuple[str, str]]:
    seen: list[tuple[str, str]] = []
    work(Engine(engine.database, workflows=JOBS, hook=lambda b: seen.append((b.transaction, b.edge))))
    return seen


CANCELLED_AT = [
    (transaction, edge, nth)
    for transaction, times in [("checkpoint", 2), ("intent", 1), ("tool", 1), ("acknowledge", 1), ("complete", 1)]
    for edge in ("before", "after") for nth in range(1, times + 1)
] + [("claim", "after", 1)]  # fmt: skip


@pytest.mark.parametrize(("transaction", "edge", "nth"), CANCELLED_AT)
def test_cancel_at_any_boundary_has_one_winner_and_the_loser_is_told(
    jobs: Engine, transaction: str, edge: str, nth: int
) -> None:
    told: list[str] = []
    passed = [0]

    def cancel(boundary: Boundary) -> None:
        if (boundary.transaction, boundary.edge) == (transaction, edge):
            passed[0] += 1
            if passed[0] == nth:
                try:
                    jobs.cancel_workflow("w")
                    told.append("cancelled")
                except AlreadyFinished as lost:
                    told.append(lost.status)

    jobs.create_workflow(None, name="plain", workflow_id="w")
    worker = Engine(jobs.database, workflows=JOBS, hook=cancel).worker("A")
    outcome = worker.run_once()
    assert len(told) == 1
    assert (outcome, told[0]) == (
        ("completed", "completed") if (transaction, edge) == ("complete", "after") else ("lost", "cancelled")
    )
    found = row(jobs)
    assert found["status"] == told[0]
    assert found["lease_owner"] is None
    assert gapless(rows_of(jobs.database, "w"))
    assert jobs.worker("B").run_once() is None


def test_every_boundary_of_a_worker_is_cancelled_at(jobs: Engine) -> None:
    jobs.create_workflow(None, name="plain", workflow_id="w")
    seen = boundaries_of(lambda e: e.worker("A").run_once(), jobs)
    assert set(seen) - {("claim", "before")} == {(transaction, edge) for transaction, edge, _ in CANCELLED_AT}


def test_two_workers_of_one_name_in_one_process_do_everything_once(jobs: Engine) -> None:
    ran: list[str] = []
    lock = threading.Lock()

    def body(name: str) -> str:
        with lock:
            ran.append(name)
        return name

    def job(run: Any, name: str) -> Any:
        run.step("one", lambda: body(name))
        return run.side_effect("pay", key="pay")

    mine = Engine(jobs.database, workflows={"job": job})
    mine.create_workflows([str(n) for n in range(30)], name="job")
    assert sum(mine.run_competing_workers("same", "same", "same")) == 30
    assert sorted(ran) == sorted(str(n) for n in range(30))
    assert rows(mine, "SELECT DISTINCT fence_token FROM {s}.workflows") == [{"fence_token": 1}]
    assert entries(mine, "write_refused") == 0


def test_a_suspended_workflow_holds_no_lease_for_many_leases_and_wakes_once(jobs: Engine) -> None:
    mine = Engine(jobs.database, workflows={"job": lambda run, _: run.wait_for_event("approval", "go")})
    mine.create_workflow(None, name="job", workflow_id="w")
    with working(mine.worker("A", lease_seconds=0.5, poll_seconds=0.05)):
        eventually(lambda: row(mine)["status"] == "waiting")
        eventually(
            lambda: rows(mine, "SELECT 1 FROM {s}.workflows WHERE updated_at < clock_timestamp() - interval '5 s'")
        )
        assert (row(mine)["lease_owner"], row(mine)["fence_token"], row(mine)["status"]) == (None, 1, "waiting")
        mine.deliver_event("w", "go", "yes")
        eventually(lambda: row(mine)["status"] == "completed")
    assert (row(mine)["fence_token"], row(mine)["recovery_started_at"]) == (2, None)


# -- the crash budget ------------------------------------------------------------------------------------------------


def lose(engine: Engine, times: int) -> None:
    """So many workers claim the workflow and die."""
    for n in range(times):
        assert engine.claim_workflow(f"dead-{n}", 600, names=["plain"]) is not None
        engine.expire_lease("w")


def test_a_workflow_that_kills_every_worker_is_failed_with_the_reason_and_its_neighbours_run(jobs: Engine) -> None:
    mine = Engine(jobs.database, workflows=JOBS, policy=Policy(crash_budget=2))
    mine.create_workflow(None, name="plain", workflow_id="w")
    lose(mine, 3)
    mine.create_workflows([None] * 3, name="plain", workflow_ids=["a", "b", "c"])
    assert mine.worker("B").run_until_idle() == 3
    found = row(mine)
    assert (found["status"], found["state"], found["crashes"], found["lease_owner"]) == ("failed", "FAILED", 3, None)
    assert (found["error"]["type"], found["error"]["message"]) == (
        "CrashBudgetSpent", "3 workers in a row lost their lease at this point; last: dead-2",
    )  # fmt: skip
    assert gapless(rows_of(mine.database, "w"))
    mine.requeue_workflow("w")
    assert mine.worker("B").run_once() == "completed"


def test_the_crash_budget_counts_take_overs_since_the_last_checkpoint_and_no_releases(jobs: Engine) -> None:
    mine = Engine(jobs.database, workflows=JOBS, policy=Policy(crash_budget=2))
    mine.create_workflow(None, name="plain", workflow_id="w")
    for _ in range(4):
        claim = mine.claim_workflow("careful", 600)
        assert claim
        mine.release_lease(claim)
    lose(mine, 2)
    claim = mine.claim_workflow("A", 600)
    assert claim is not None
    assert row(mine)["crashes"] == 2
    mine.checkpoint(claim, "one", 1)
    assert row(mine)["crashes"] == 0
    mine.expire_lease("w")
    lose(mine, 1)
    assert mine.worker("B").run_once() == "completed"


def test_a_restart_of_the_database_spends_nobodys_crash_budget(tmp_path: Path) -> None:
    from agentflow import migrate

    server = ensure_running(tmp_path / "server")
    try:
        database = Database(server.url(), "lab", patience=20)
        migrate(database, laboratory=True)
        mine = Engine(database, workflows=JOBS, policy=Policy(crash_budget=0))
        mine.create_workflow(None, name="plain", workflow_id="w")
        assert mine.claim_workflow("A", 0.1) is not None
        server.crash()
        server.start()
        assert eventually(mine.worker("B").run_once) == "completed"
        assert (row(mine)["fence_token"], row(mine)["crashes"]) == (2, 0)
        assert row(mine)["recovery_started_at"] is not None
        mine.close()
    finally:
        server.stop()


def test_a_lost_lease_is_told_by_name_of_what_replaced_it(jobs: Engine) -> None:
    jobs.create_workflow(None, name="plain", workflow_id="w")
    claim = jobs.claim_workflow("A", 600)
    assert claim
    jobs.expire_lease("w")
    with pytest.raises(LostLease, match="its lease has expired"):
        jobs.checkpoint(claim, "one", 1)
    jobs.claim_workflow("B", 600)
    with pytest.raises(LostLease, match="the row's token is 2, not 1"):
        jobs.checkpoint(claim, "one", 1)
    with pytest.raises(
        LostLease, match="load was refused because the row's token is 2, not 1, and its owner is B, not A"
    ):
        jobs.load(claim)


def test_an_interrupt_is_not_swallowed_when_the_lease_is_lost(jobs: Engine) -> None:
    def body() -> None:
        jobs.expire_lease("w")
        raise KeyboardInterrupt

    mine = Engine(jobs.database, workflows={"job": lambda run, _: run.step("one", body)})
    mine.create_workflow(None, name="job", workflow_id="w")
    with pytest.raises(KeyboardInterrupt):
        mine.run_until_idle("A")


def test_a_hook_given_later_hears_the_renewals_too(engine: Engine) -> None:
    heard: list[str] = []
    mine = Engine(engine.database, workflows={"slow": lambda run, _: run.step("one", lambda: eventually(renewed))})
    mine.create_workflow(None, name="slow", workflow_id="w")

    def renewed() -> bool:
        return any(entry["event"] == "lease_renewed" for entry in engine.history("w"))

    other = mine.with_hook(lambda boundary: heard.append(f"{boundary.edge} {boundary.transaction}"))
    assert other.worker("A", lease_seconds=0.3).run_once() == "completed"
    assert {"before renew", "after renew"} <= set(heard)
    other.close()


def test_a_renewal_whose_row_is_locked_does_not_cost_its_neighbour_the_lease(engine: Engine) -> None:
    gate = threading.Event()
    mine = Engine(engine.database, workflows={"slow": lambda run, _: run.step("one", lambda: gate.wait(60))})
    for name in ("locked", "free"):
        mine.create_workflow(None, name="slow", workflow_id=name)
    with ThreadPoolExecutor(2) as threads, Session(engine.database) as session:
        futures = [threads.submit(mine.worker(name, lease_seconds=0.9).run_once) for name in ("A", "B")]
        eventually(lambda: len(rows(mine, "SELECT 1 FROM {s}.workflows WHERE lease_owner IS NOT NULL")) == 2)
        session.run("BEGIN")
        session.run(f"SELECT 1 FROM \"{engine.database.schema}\".workflows WHERE id = 'locked' FOR UPDATE")
        renewed = "SELECT count(*) AS n FROM {s}.history WHERE workflow_id = 'free' AND event = 'lease_renewed'"
        eventually(lambda: rows(mine, renewed)[0]["n"] >= 6, 30)
        assert rows(mine, "SELECT fence_token FROM {s}.workflows WHERE id = 'free'") == [{"fence_token": 1}]
        session.run("COMMIT")
        gate.set()
        assert "completed" in [future.result(60) for future in futures]
    mine.close()
