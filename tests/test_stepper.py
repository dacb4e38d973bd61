"""Lanes move only when told, never hang a notebook, and leave nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentflow import Boundary, Database, Engine, migrate
from agentflow.errors import AlreadyFinished, DatabaseAway, LaneError, NotALaboratory
from agentflow.lab.laboratory import PATIENT, fresh_laboratory, let_go
from agentflow.lab.look import snapshot
from agentflow.lab.stepper import Move, Stepper
from agentflow.server import Server
from tests.conftest import drop, rows

REQUEST = "My password no longer works"
TO_THE_END = [
    "claim", "checkpoint classify", "checkpoint plan", "intent resolve-account", "tool resolve-account",
    "acknowledge resolve-account", "complete",
]  # fmt: skip


def lane_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lane-")]


def connections(engine: Engine) -> int:
    """Connections that the engine's pool holds, checked out or not."""
    pool = engine.database.alchemy.pool
    return pool.checkedin() + pool.checkedout()  # type: ignore[attr-defined]


@pytest.fixture
def stepper(engine: Engine) -> Iterator[Stepper]:
    engine.policy = PATIENT
    with Stepper(engine) as stepper:
        yield stepper
    assert lane_threads() == []


def into_the_gap(stepper: Stepper, name: str = "A") -> str:
    workflow_id = stepper.submit(REQUEST)
    for _ in range(5):
        stepper.step(name)
    return workflow_id


def test_each_step_commits_exactly_the_transaction_that_was_named(stepper: Stepper, engine: Engine) -> None:
    stepper.submit(REQUEST)
    announced, moves = [], []
    while not moves or moves[-1].ended is None:
        announced.append(stepper.next_transaction("A"))
        moves.append(stepper.step("A"))
        assert len(rows(engine, "SELECT n FROM {s}.history")) == len(moves) + 1 - ("tool" in " ".join(announced))
    assert announced == TO_THE_END
    assert [f"{m.passed.transaction} {m.passed.subject or ''}".strip() for m in moves if m.passed] == TO_THE_END
    assert [m.passed.outcome for m in moves if m.passed] == ["committed"] * len(TO_THE_END)
    assert moves[-1].ended == "completed"


def test_a_standing_worker_holds_no_connection(stepper: Stepper) -> None:
    into_the_gap(stepper)
    assert stepper.engine.database.alchemy.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_the_lease_of_a_lane_outlasts_any_reader(stepper: Stepper, engine: Engine) -> None:
    stepper.submit(REQUEST)
    stepper.step("A")
    (row,) = rows(engine, "SELECT lease_expires_at - updated_at > interval '23 hours' AS long FROM {s}.workflows")
    assert row["long"]


def test_crash_is_recorded_at_the_boundary_and_leaves_the_lease(stepper: Stepper, engine: Engine) -> None:
    into_the_gap(stepper)
    move = stepper.crash("A")
    assert (move.ended, move.next) == ("crashed", "claim")
    (fault,) = rows(engine, "SELECT subject, fence_token FROM {s}.history WHERE event = 'crash_injected'")
    assert fault == {"subject": "before acknowledge resolve-account", "fence_token": 1}
    (row,) = rows(engine, "SELECT lease_owner, state FROM {s}.workflows")
    assert row["lease_owner"].startswith("A.")
    assert row["state"] == "ACTION_PENDING"
    assert lane_threads() == []


def test_a_crash_at_every_boundary_recovers_to_one_effect(stepper: Stepper, engine: Engine) -> None:
    for steps in range(1, len(TO_THE_END)):
        workflow_id = stepper.submit(REQUEST)
        for _ in range(steps):
            stepper.step("A")
        stepper.crash("A")
        moves = stepper.recover("A")
        assert (moves[0].lane, moves[-1].ended) == ("B", "completed")
        (row,) = rows(engine, "SELECT status FROM {s}.workflows WHERE id = :id", id=workflow_id)
        (world,) = rows(engine, "SELECT attempts FROM {w}.tool_ledger WHERE workflow_id = :id", id=workflow_id)
        assert row["status"] == "completed"
        assert world["attempts"] == (2 if steps == 5 else 1)


def test_recovery_passes_load_and_does_not_plan_again(stepper: Stepper) -> None:
    into_the_gap(stepper)
    stepper.crash("A")
    passed = [move.passed.transaction for move in stepper.recover("A") if move.passed]
    assert passed == ["claim", "tool", "acknowledge", "complete"]


def test_stale_worker_is_refused_after_the_other_recovered(stepper: Stepper, engine: Engine) -> None:
    stepper.submit(REQUEST)
    stepper.step("A")
    assert stepper.recover("A")[-1].ended == "completed"
    move = stepper.step("A")
    assert move.ended == "lost"
    assert move.passed == Boundary(
        "checkpoint", "after", move.passed.worker, "request-1", 1, "classify", "refused"  # type: ignore[union-attr]
    )  # fmt: skip
    (entry,) = rows(engine, "SELECT fence_token FROM {s}.history WHERE event = 'write_refused'")
    assert entry["fence_token"] == 1
    assert len(rows(engine, "SELECT * FROM {s}.steps")) == 3


def test_a_crashed_lane_starts_a_new_worker_that_may_not_take_the_old_lease(stepper: Stepper) -> None:
    stepper.submit(REQUEST)
    stepper.step("A")
    stepper.crash("A")
    assert stepper.step("A").ended == "idle"
    stepper.expire()
    move = stepper.step("A")
    assert move.passed is not None
    assert (move.passed.token, move.next) == (2, "checkpoint classify")


def test_recover_goes_on_through_a_failed_attempt_whose_back_off_lasts_a_day(engine: Engine) -> None:
    failures = iter([TimeoutError("no answer"), TimeoutError("no answer again")])

    def flaky(run: object, _: object) -> str:
        def once() -> str:
            for failure in failures:
                raise failure
            return "done"

        return run.step("flaky", once)  # type: ignore[attr-defined, no-any-return]

    engine.policy, engine.workflows = PATIENT, {"flaky": flaky}
    with Stepper(engine) as stepper:
        stepper.submit(None, name="flaky")
        stepper.step("A")
        stepper.crash("A")
        moves = stepper.recover("A")
    assert [move.ended for move in moves if move.ended] == ["postponed", "completed"]


def statuses(engine: Engine) -> dict[str, str]:
    return {row["id"]: row["status"] for row in rows(engine, "SELECT id, status FROM {s}.workflows")}


def test_recover_finishes_what_this_worker_left_and_not_what_was_last_worked_on(
    stepper: Stepper, engine: Engine
) -> None:
    stepper.submit(REQUEST)
    stepper.submit(REQUEST)
    stepper.step("B")
    stepper.step("A")
    stepper.crash("B")
    moves = stepper.recover("B")
    ended = [(move.lane, move.passed.workflow, move.ended) for move in moves if move.passed and move.ended]
    assert ended == [("A", "request-2", "completed"), ("A", "request-1", "completed")]
    assert statuses(engine) == {"request-1": "completed", "request-2": "completed"}
    aged = rows(engine, "SELECT workflow_id FROM {s}.history WHERE event = 'lease_expired_for_test'")
    assert aged == [{"workflow_id": "request-1"}]


def test_recover_goes_on_past_other_work_until_the_crashed_one_is_finished(stepper: Stepper, engine: Engine) -> None:
    for _ in range(3):
        stepper.submit(REQUEST)
    stepper.step("B")
    stepper.step("A")
    stepper.crash("A")
    moves = stepper.recover("A")
    assert [move.passed.workflow for move in moves if move.passed and move.ended][:1] == ["request-1"]
    assert statuses(engine)["request-2"] == "completed"


def test_recover_finishes_all_that_several_lost_workers_of_a_lane_left(stepper: Stepper, engine: Engine) -> None:
    for _ in range(2):
        stepper.submit(REQUEST)
        stepper.step("A")
        stepper.crash("A")
    stepper.recover("A")
    assert set(statuses(engine).values()) == {"completed"}


def test_a_standing_worker_keeps_its_work_while_a_lost_one_of_its_lane_is_recovered(
    stepper: Stepper, engine: Engine
) -> None:
    stepper.submit(REQUEST)
    stepper.submit(REQUEST)
    stepper.step("A")
    stepper.crash("A")
    stepper.step("A")
    stepper.recover("A")
    assert statuses(engine) == {"request-1": "completed", "request-2": "ready"}
    assert stepper.run("A")[-1].ended == "completed"


@pytest.mark.parametrize(("crash", "recover", "hint"), [("", "A", "Nothing was written"), ("A", "B", "recover A")])
def test_recover_of_a_worker_that_left_nothing_writes_nothing(
    stepper: Stepper, engine: Engine, crash: str, recover: str, hint: str
) -> None:
    stepper.submit(REQUEST)
    if crash:
        stepper.step(crash)
        stepper.crash(crash)
    before = rows(engine, "SELECT * FROM {s}.workflows"), rows(engine, "SELECT * FROM {s}.history")
    with pytest.raises(LaneError, match=f"{recover} left nothing behind.*{hint}"):
        stepper.recover(recover)
    assert before == (rows(engine, "SELECT * FROM {s}.workflows"), rows(engine, "SELECT * FROM {s}.history"))


def test_a_recovery_that_was_not_waited_for_is_ended_by_the_same_move_again(engine: Engine) -> None:
    gate = threading.Event()

    def slow(run: object, _: object) -> str:
        return run.step("slow", lambda: (gate.wait(60), "late")[-1])  # type: ignore[attr-defined, no-any-return]

    engine.workflows, engine.policy = {"slow": slow}, PATIENT
    engine.create_workflow(None, name="slow", workflow_id="request-1")
    engine.claim_workflow("A.dead")
    with Stepper(engine, patience=0.2) as stepper:
        with pytest.raises(LaneError, match="Try the same move again"):
            stepper.recover("A")
        gate.set()
        for lane in stepper._lanes.values():
            lane.patience = 30.0
        assert stepper.recover("A")[-1].ended == "completed"


def test_recover_ends_the_back_off_of_a_failed_attempt(engine: Engine) -> None:
    failures = iter([TimeoutError("no answer")])

    def flaky(run: object, _: object) -> str:
        def once() -> str:
            for failure in failures:
                raise failure
            return "done"

        return run.step("flaky", once)  # type: ignore[attr-defined, no-any-return]

    engine.policy, engine.workflows = PATIENT, {"flaky": flaky}
    with Stepper(engine) as stepper:
        stepper.submit(None, name="flaky")
        assert stepper.run("A")[-1].ended == "postponed"
        assert stepper.step("A").ended == "idle"
        assert stepper.recover("A")[-1].ended == "completed"


def test_expire_without_a_lease_says_so(stepper: Stepper) -> None:
    with pytest.raises(LaneError, match="submit a request first"):
        stepper.expire()
    stepper.submit(REQUEST)
    with pytest.raises(AlreadyFinished, match="held by nobody"):
        stepper.expire()


def test_crash_without_a_worker_and_unknown_lane_say_so(stepper: Stepper) -> None:
    with pytest.raises(LaneError, match="step it first"):
        stepper.crash("A")
    with pytest.raises(LaneError, match="there are A, B"):
        stepper.step("C")


def test_reset_with_a_standing_worker_leaves_no_row_and_no_thread(stepper: Stepper, engine: Engine) -> None:
    into_the_gap(stepper)
    stepper.reset()
    assert lane_threads() == []
    assert rows(engine, "SELECT id FROM {s}.workflows") == []
    assert rows(engine, "SELECT effect_id FROM {w}.tool_ledger") == []
    assert into_the_gap(stepper) == "request-1"


def test_close_with_standing_workers_leaves_no_thread_and_no_connection(engine: Engine) -> None:
    stepper = Stepper(engine)
    for name in stepper.names:
        into_the_gap(stepper, name)
    assert len(lane_threads()) == 2
    stepper.close()
    assert lane_threads() == []
    assert connections(stepper.engine) == 0
    with pytest.raises(LaneError, match="closed"):
        stepper.step("A")
    assert rows(engine, "SELECT * FROM {s}.history WHERE event = 'crash_injected'") == []


def test_a_step_that_does_not_return_is_reported_and_can_be_waited_for_or_left(engine: Engine) -> None:
    gate, entered = threading.Event(), threading.Event()

    def slow(run: object, _: object) -> str:
        return run.step("slow", lambda: (entered.set(), gate.wait(60), "late")[-1])  # type: ignore[attr-defined, no-any-return]

    engine.workflows = {"slow": slow}
    stepper = Stepper(engine, patience=0.2)
    try:
        stepper.submit(None, name="slow")
        with pytest.raises(LaneError, match="still running"):
            stepper.step("A")
        assert entered.wait(30)
        assert stepper.next_transaction("A") == "still running"
        with pytest.raises(LaneError, match="still running"):
            stepper.crash("A")
        with pytest.raises(LaneError, match="has not returned"):
            stepper.reset()
    finally:
        gate.set()
        stepper.patience = 30.0
        for lane in stepper._lanes.values():
            lane.patience = 30.0
        stepper.close()
    assert lane_threads() == []
    assert rows(engine, "SELECT * FROM {s}.steps") == []


def test_a_slow_step_is_finished_by_the_same_move_again(engine: Engine) -> None:
    gate = threading.Event()

    def slow(run: object, _: object) -> str:
        return run.step("slow", lambda: (gate.wait(60), "late")[-1])  # type: ignore[attr-defined, no-any-return]

    engine.workflows = {"slow": slow}
    with Stepper(engine, patience=0.2) as stepper:
        stepper.submit(None, name="slow")
        with pytest.raises(LaneError, match="still running"):
            stepper.step("A")
        gate.set()
        for lane in stepper._lanes.values():
            lane.patience = 30.0
        assert stepper.step("A").next == "checkpoint slow"
        assert stepper.run("A")[-1].ended == "completed"


def test_two_moves_of_one_lane_at_once_are_refused(stepper: Stepper) -> None:
    with stepper._lanes["A"].moving(), pytest.raises(LaneError, match="busy"):
        stepper.step("A")


def test_the_engines_own_hook_still_hears_every_boundary(engine: Engine) -> None:
    heard: list[str] = []
    engine.hook = lambda boundary: heard.append(f"{boundary.edge} {boundary.transaction}")
    try:
        with Stepper(engine) as stepper:
            stepper.submit(REQUEST)
            stepper.run("A")
    finally:
        engine.hook = None
    assert heard[:4] == ["before create", "after create", "before claim", "after claim"]
    assert heard[-2:] == ["before complete", "after complete"]


def test_database_away_moves_nobody_and_the_move_can_be_repeated(tmp_path: Path) -> None:
    server = Server(tmp_path / "pg").start()
    engine = Engine(Database(server.url(), "away", patience=1.0))
    try:
        migrate(engine.database, laboratory=True)
        with Stepper(engine, patience=5.0) as stepper:
            stepper.submit(REQUEST)
            stepper.step("A")
            server.stop()
            for move in (stepper.step, stepper.crash):
                with pytest.raises(DatabaseAway, match="No worker has moved"):
                    move("A")
                assert stepper.next_transaction("A") == "checkpoint classify"
            for other in (stepper.expire, stepper.reset, lambda: stepper.submit("x"), lambda: stepper.recover("A")):
                with pytest.raises(DatabaseAway):
                    other()
            server.start()
            assert stepper.step("A").next == "checkpoint plan"
            assert stepper.run("A")[-1].ended == "completed"
        assert snapshot(engine, "request-1").sentence() == "The engine believes what the world did."
    finally:
        engine.close()
        server.stop()


def test_a_fresh_laboratory_closes_the_one_before_and_starts_empty(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    first = fresh_laboratory("t_fresh")
    try:
        first.create_workflow(REQUEST)
        second = fresh_laboratory("t_fresh")
        assert connections(first) == 0
        assert rows(second, "SELECT id FROM {s}.workflows") == []
        assert second.policy.lease_seconds >= 86_400
    finally:
        let_go("engine", "t_fresh")
        drop(Database(url, "t_fresh"))


def test_a_fresh_laboratory_refuses_a_schema_with_somebody_elses_workflows(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    database = Database(url, "t_precious")
    try:
        migrate(database)
        Engine(database).create_workflow(REQUEST)
        with pytest.raises(NotALaboratory):
            fresh_laboratory("t_precious")
        assert len(rows(Engine(database), "SELECT id FROM {s}.workflows")) == 1
    finally:
        let_go("engine", "t_precious")
        drop(database)


def test_a_move_prints_as_one_line() -> None:
    passed = Boundary("checkpoint", "after", "A.1", "request-1", 1, "plan", "committed")
    assert str(Move("A", passed, "complete")) == "A: checkpoint plan committed; stands; next: complete"
