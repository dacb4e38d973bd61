"""The stepper: each move does what it is called, recovery finishes what was left, and the line tells all of it again."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from agentflow import Boundary, Database, Engine, Policy, migrate
from agentflow.engine import open_engine
from agentflow.errors import AgentFlowError, BadSchedule, DatabaseAway, LaneError, NotALaboratory
from agentflow.lab.laboratory import laboratory
from agentflow.lab.laboratory.laboratory import PATIENT, fresh_laboratory, let_go, schema_of
from agentflow.lab.schedule.capsule import capture, first_divergence
from agentflow.lab.schedule.grammar import Move, Setting
from agentflow.lab.schedule.moves import Moved
from agentflow.lab.schedule.presets import PRESETS, REQUESTS
from agentflow.lab.schedule.stepper import Stepper
from agentflow.lab.verify.checker import find_mistakes
from tests.conftest import drop, rows
from tests.support.helpers import administrator

TO_THE_END = [
    "claim", "checkpoint classify", "checkpoint plan", "intent resolve-account", "tool resolve-account",
    "acknowledge resolve-account", "complete",
]  # fmt: skip


def lane_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lane-")]


def connections(engine: Engine) -> int:
    """Connections that the engine's pools hold."""
    pool = engine.database.alchemy.pool
    return pool.checkedin() + pool.checkedout() + len(engine.database._idle)  # type: ignore[attr-defined]


@pytest.fixture
def stepper(engine: Engine) -> Iterator[Stepper]:
    engine.policy = PATIENT
    with Stepper(engine) as stepper:
        yield stepper
    assert lane_threads() == []


def statuses(engine: Engine) -> dict[str, str]:
    return {row["id"]: row["status"] for row in rows(engine, "SELECT id, status FROM {s}.workflows ORDER BY id")}


def everything(engine: Engine) -> list[Any]:
    tables = ("workflows", "steps", "action_intents", "history")
    return [rows(engine, f"SELECT * FROM {{s}}.{table} ORDER BY 1, 2") for table in tables]


def passed(moves: list[Moved]) -> list[str]:
    """The transactions behind the moves, with what became of them if they were not committed."""
    told = []
    for moved in moves:
        if moved.passed:
            outcome = "" if moved.passed.outcome == "committed" else f" {moved.passed.outcome}"
            told.append(f"{moved.passed.transaction} {moved.passed.subject or ''}".strip() + outcome)
    return told


# -- steps -------------------------------------------------------------------------------------------------------------


def test_each_step_commits_exactly_the_transaction_that_was_named(stepper: Stepper, engine: Engine) -> None:
    announced, moves = [], []
    while not moves or moves[-1].ended is None:
        announced.append(stepper.next_transaction("A"))
        moves.append(stepper.step("A"))
        assert len(rows(engine, "SELECT n FROM {s}.history")) == len(moves) + 1 - ("tool" in " ".join(announced))
    assert announced == passed(moves) == TO_THE_END
    assert moves[-1].ended == "completed"


def test_a_step_tells_the_statement_that_was_asked(stepper: Stepper) -> None:
    moved = stepper.move("A*2")[-1]
    assert moved.asked is not None
    assert moved.asked.name == "checkpoint"
    assert moved.asked.params["p_subject"] == "classify"
    tool = stepper.move("A*3")[-1].asked
    assert tool is not None
    assert (tool.name, tool.params["p_key"]) == ("tool", "request-1:resolve-account")


def test_a_move_tells_where_the_worker_stands_before_and_after(stepper: Stepper) -> None:
    assert stepper.standing("A") is None
    assert str(stepper.step("A")) == "A: claim committed; stands before checkpoint classify"
    assert str(stepper.move("A.")[0]) == "A.: checkpoint classify committed; stands after it"
    assert stepper.next_transaction("A") == "what comes next"
    assert str(stepper.step("A")) == "A: checkpoint plan committed; stands before intent resolve-account"
    assert str(stepper.move("A*")[-1]) == "A: complete committed; completed; stands before claim"
    assert str(stepper.step("B")) == "B: claim committed; idle; stands before claim"
    assert str(stepper.crash("B")) == "B!: B crashes before claim"
    assert stepper.next_transaction("B") == ""


def test_nothing_exists_before_the_first_move(stepper: Stepper, engine: Engine) -> None:
    assert stepper.workflows == ["request-1"]
    assert (stepper.next_transaction("A"), stepper.next_transaction("B")) == ("claim", "claim")
    assert statuses(engine) == {}
    stepper.move("B||")
    assert statuses(engine) == {"request-1": "ready"}


def test_the_requests_of_a_setting_are_created_in_order(engine: Engine) -> None:
    with Stepper(engine, Setting(requests=3)) as stepper:
        stepper.step("B")
        found = rows(engine, "SELECT input #>> '{{}}' AS request FROM {s}.workflows ORDER BY id")
        assert [row["request"] for row in found] == list(REQUESTS[:3])
        (claimed,) = rows(engine, "SELECT id FROM {s}.workflows WHERE lease_owner IS NOT NULL")
        assert claimed["id"] == "request-1"


def test_the_lease_of_a_lane_outlasts_any_reader(engine: Engine) -> None:
    engine.policy = Policy()
    with Stepper(engine) as stepper:
        stepper.step("A")
        (row,) = rows(engine, "SELECT lease_expires_at - updated_at > interval '23 hours' AS long FROM {s}.workflows")
        assert row["long"]


def test_only_a_move_ends_a_back_off_whatever_the_engines_policy_is(engine: Engine) -> None:
    engine.policy = Policy(first_delay=0.001, max_delay=0.001)
    with Stepper(engine) as stepper:
        stepper.move("A*4 A/")
        assert stepper.move("A")[-1].ended == "postponed"
        assert stepper.step("B").ended == "idle"
        stepper.move("due")
        assert stepper.step("B").passed is not None


def test_every_move_is_watched_when_it_is_done_and_the_creation_before_the_first(engine: Engine) -> None:
    seen: list[Moved] = []
    with Stepper(engine, watch=seen.append) as stepper:
        stepper.play("A*2 A! expire B*")
    created, *moved = seen
    assert created.passed is not None and created.passed.transaction == "create"
    assert [str(one.move) for one in moved] == ["A", "A", "A!", "expire", "B", "B", "B", "B", "B", "B"]


def test_the_engines_own_hook_still_hears_every_boundary(engine: Engine) -> None:
    heard: list[str] = []
    with Stepper(engine.with_hook(lambda boundary: heard.append(f"{boundary.edge} {boundary.transaction}"))) as stepper:
        stepper.move("A*")
    assert heard[:2] == ["before claim", "after claim"]
    assert heard[-3:] == ["before complete", "after complete", "before claim"]


def test_workers_of_shared_names_are_one_to_the_engine_and_unique_ones_are_not(engine: Engine) -> None:
    owners = "SELECT count(DISTINCT worker) AS names FROM {s}.history"
    for names, expected in (("shared", 1), ("unique", 2)):
        with Stepper(engine) as stepper:
            stepper.play(f"names={names} A*2 A! expire B*")
        assert rows(engine, owners) == [{"names": expected}]


def test_a_model_that_varies_answers_each_worker_differently(engine: Engine) -> None:
    answers = []
    for line in ("model=varying A*2 A! expire B*", "model=varying A A! expire B*", "model=varying A A! expire A+ A*"):
        with Stepper(engine) as stepper:
            stepper.play(line)
        (step,) = rows(engine, "SELECT value FROM {s}.steps WHERE step_id = 'classify'")
        answers.append(step["value"]["answered_by"])
    assert answers == ["A1.1", "B1.1", "A2.1"]


# -- crashes and recovery ----------------------------------------------------------------------------------------------


def test_crash_is_recorded_at_the_boundary_and_leaves_the_lease(stepper: Stepper, engine: Engine) -> None:
    stepper.move("A*5")
    moved = stepper.crash("A")
    assert (str(moved), moved.workflow) == ("A!: A crashes before acknowledge resolve-account", "request-1")
    (fault,) = rows(engine, "SELECT subject, fence_token FROM {s}.history WHERE event = 'worker_killed'")
    assert fault == {"subject": "before acknowledge resolve-account", "fence_token": 1}
    (row,) = rows(engine, "SELECT lease_owner, state FROM {s}.workflows")
    assert row["lease_owner"].startswith("A.")
    assert row["state"] == "ACTION_PENDING"
    assert lane_threads() == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("workflow=approval_agent A* A! event:approval B*", ["killed"]),
        ("workflow=approval_agent A*2 A. A A! event:approval B*", ["killed"]),
        ("workflow=approval_agent A* A|| A> A A! event:approval B*", ["paused", "resumed", "killed"]),
        ("workflow=approval_agent A* A|| event:approval B* A> A!", ["paused", "resumed"]),
        ("workflow=approval_agent A* A|| event:approval B* A!", ["paused", "killed"]),
        ("A*4 A/ A A! due B*", ["killed"]),
        ("A! B*", []),
        ("A* A|| A> A!", []),
        ("workflow=approval_agent A* event:approval B* A|| A> A!", []),
        ("workflow=approval_agent requests=2 event:approval=false@2 A* A* A! event:approval@1 B*", []),
    ],
)
def test_what_befalls_a_worker_that_holds_nothing_is_told_where_it_is_missed(
    stepper: Stepper, engine: Engine, line: str, told: list[str]
) -> None:
    """In the history of what it parked last, while that is open; and a pause is told with its end, or not at all."""
    stepper.play(line)
    faults = "SELECT event, subject, worker, fence_token FROM {s}.history WHERE event LIKE 'worker_%' ORDER BY n"
    found = rows(engine, faults)
    assert [one["event"].removeprefix("worker_") for one in found] == told
    assert {(one["subject"], one["worker"].split(".")[0], one["fence_token"]) for one in found} <= {
        ("before claim", "A", None)
    }
    assert find_mistakes(engine.database) == []


def test_a_worker_that_gave_a_workflow_up_is_not_missed_by_it(stepper: Stepper, engine: Engine) -> None:
    stepper.play("A*2 A|| expire B A> A A!")
    faults = rows(engine, "SELECT event FROM {s}.history WHERE event LIKE 'worker_%' ORDER BY n")
    assert [one["event"] for one in faults] == ["worker_paused", "worker_resumed"]


def test_a_worker_at_work_again_is_killed_in_what_it_holds(stepper: Stepper, engine: Engine) -> None:
    stepper.play("workflow=approval_agent A* event:approval A A!")
    (fault,) = rows(engine, "SELECT subject, fence_token FROM {s}.history WHERE event = 'worker_killed'")
    assert fault == {"subject": "before wait approval", "fence_token": 2}


def test_forgotten_keys_are_told_by_every_workflow_whose_effect_they_guarded(stepper: Stepper, engine: Engine) -> None:
    done = stepper.play("requests=3 A* B*4 C forget")
    assert (done[-1].workflow, done[-1].said) == ("request-1", "the tool has forgotten 1 of its keys")
    told = "SELECT workflow_id, transaction, worker FROM {s}.history WHERE event = 'keys_forgotten'"
    assert rows(engine, told) == [{"workflow_id": "request-1", "transaction": "fault", "worker": None}]
    stepper.move("B forget C* B*")
    assert [one["workflow_id"] for one in rows(engine, told)] == ["request-1", "request-2"]


def test_a_tool_that_remembers_nothing_forgets_nothing(stepper: Stepper, engine: Engine) -> None:
    (moved,) = stepper.play("A*3 forget")[-1:]
    assert moved.workflow is None
    assert rows(engine, "SELECT event FROM {s}.history WHERE event = 'keys_forgotten'") == []


@pytest.mark.parametrize("steps", range(1, 7))
def test_a_crash_at_every_boundary_recovers_to_one_effect(stepper: Stepper, engine: Engine, steps: int) -> None:
    stepper.move(f"A*{steps} A!")
    moves = stepper.recover("A")
    assert (moves[-1].move.lane, moves[-1].ended) == ("B", "completed")
    (world,) = rows(engine, "SELECT attempts FROM {w}.tool_ledger")
    assert world["attempts"] == (2 if steps == 5 else 1)
    assert stepper.line == f"A{f'*{steps}' if steps > 1 else ''} A! expire B*"


def test_recovery_passes_load_and_does_not_plan_again(stepper: Stepper) -> None:
    stepper.move("A*5 A!")
    assert passed(stepper.recover("A")) == ["claim", *TO_THE_END[4:]]


def test_what_recover_will_do_is_said_before(stepper: Stepper) -> None:
    stepper.move("A*5 A!")
    assert " ".join(map(str, stepper.recovery("A"))) == "expire B*"
    stepper.move("B!")
    assert " ".join(map(str, stepper.recovery("A"))) == "expire A+ A*"


def test_stale_worker_is_refused_after_the_other_recovered(stepper: Stepper, engine: Engine) -> None:
    stepper.move("A A||")
    assert stepper.recover("A")[-1].ended == "completed"
    stepper.move("A>")
    moved = stepper.step("A")
    assert moved.ended == "lost"
    assert moved.passed == Boundary(
        "checkpoint", "after", moved.passed.worker, "request-1", 1, "classify", "refused"  # type: ignore[union-attr]
    )  # fmt: skip
    (entry,) = rows(engine, "SELECT fence_token FROM {s}.history WHERE event = 'write_refused'")
    assert entry["fence_token"] == 1
    assert len(rows(engine, "SELECT * FROM {s}.steps")) == 3


def test_a_new_worker_of_a_lane_may_not_take_the_old_lease(stepper: Stepper) -> None:
    stepper.move("A A! A+")
    assert stepper.step("A").ended == "idle"
    stepper.move("expire")
    moved = stepper.step("A")
    assert moved.passed is not None
    assert (moved.passed.token, stepper.next_transaction("A")) == (2, "checkpoint classify")


def flaky(failures: int) -> Any:
    """A workflow whose one step times out so many times."""
    left = [failures]

    def function(run: Any, _: Any) -> str:
        def once() -> str:
            left[0] -= 1
            if left[0] >= 0:
                raise TimeoutError("no answer")
            return "done"

        return str(run.step("flaky", once))

    return function


def test_recover_goes_on_through_a_failed_attempt_whose_back_off_lasts_a_day(engine: Engine) -> None:
    own = engine.with_hook(None)
    own.workflows = {"flaky": flaky(2)}
    with Stepper(own, Setting("flaky")) as stepper:
        stepper.move("A A!")
        assert [moved.ended for moved in stepper.recover("A") if moved.ended] == ["postponed"]
        assert [moved.ended for moved in stepper.recover("A") if moved.ended] == ["completed"]
        assert stepper.line == "workflow=flaky A A! expire B* due B*"


def test_recover_ends_the_back_off_of_a_failed_try(engine: Engine) -> None:
    own = engine.with_hook(None)
    own.workflows = {"flaky": flaky(1)}
    with Stepper(own, Setting("flaky")) as stepper:
        assert stepper.move("A*")[-1].ended == "postponed"
        assert stepper.step("A").ended == "idle"
        assert stepper.recover("A")[-1].ended == "completed"


def test_recover_finishes_what_this_worker_left_and_not_what_was_last_worked_on(engine: Engine) -> None:
    with Stepper(engine, Setting(requests=2)) as stepper:
        stepper.move("B A B!")
        moves = stepper.recover("B")
        ended = [(moved.move.lane, moved.workflow, moved.ended) for moved in moves if moved.ended]
        assert ended == [("A", "request-2", "completed"), ("A", "request-1", "completed")]
        assert statuses(engine) == {"request-1": "completed", "request-2": "completed"}
        assert stepper.line == "requests=2 B A B! expire@1 A* A*"


@pytest.fixture
def poor(engine: Engine) -> Iterator[tuple[Engine, str]]:
    """The same laboratory, asked by a role whose connections can be limited, and the role's name."""
    url, role = engine.database.url, f"{engine.database.schema}_poor"
    change(engine, f'CREATE ROLE {role} LOGIN IN ROLE "{url.username}"')
    where = url.set(username=role).render_as_string(hide_password=False)
    other = Engine(Database(where, engine.database.schema), policy=PATIENT)
    yield other, role
    other.close()
    change(engine, f"DROP ROLE {role}")


def change(engine: Engine, command: str) -> None:
    admin = Database(administrator(engine.database.address))
    admin.command(command)
    admin.close()


def test_a_line_whose_worker_gets_no_connection_ends_with_that_and_not_with_what_follows_from_it(
    engine: Engine, poor: tuple[Engine, str]
) -> None:
    other, role = poor
    with Stepper(other) as stepper:
        stepper.reset()
        count = "SELECT count(*) AS n FROM pg_stat_activity WHERE usename = :role"
        change(engine, f"ALTER ROLE {role} CONNECTION LIMIT {rows(engine, count, role=role)[0]['n']}")
        with pytest.raises(DatabaseAway, match="has no free connection") as caught:
            stepper.play("A expire")
        assert isinstance(caught.value.__cause__, BadSchedule)
        change(engine, f"ALTER ROLE {role} CONNECTION LIMIT -1")
        stepper.play("A expire")


def test_recover_goes_on_past_other_work_until_the_crashed_one_is_finished(engine: Engine) -> None:
    with Stepper(engine, Setting(requests=3)) as stepper:
        stepper.move("B A A!")
        assert [moved.workflow for moved in stepper.recover("A") if moved.ended][:1] == ["request-1"]
        assert statuses(engine)["request-2"] == "completed"


def test_recover_finishes_all_that_several_lost_workers_of_a_lane_left(engine: Engine) -> None:
    with Stepper(engine, Setting(requests=2)) as stepper:
        stepper.move("A A! A+ A A!")
        stepper.recover("A")
        assert set(statuses(engine).values()) == {"completed"}


def test_a_standing_worker_keeps_its_work_while_a_lost_one_of_its_lane_is_recovered(engine: Engine) -> None:
    with Stepper(engine, Setting(requests=2)) as stepper:
        stepper.move("A A! A+ A")
        stepper.recover("A")
        assert statuses(engine) == {"request-1": "completed", "request-2": "ready"}
        assert stepper.move("A*")[-1].ended == "completed"


@pytest.mark.parametrize(("line", "lane"), [("", "A"), ("A", "A"), ("A A!", "B"), ("A* A!", "A")])
def test_recover_of_a_worker_that_left_nothing_moves_nothing(
    stepper: Stepper, engine: Engine, line: str, lane: str
) -> None:
    stepper.move(line)
    before = everything(engine), stepper.line
    with pytest.raises(LaneError, match=f"{lane} left nothing behind.*Nothing was moved"):
        stepper.recover(lane)
    assert (everything(engine), stepper.line) == before


def test_a_recovery_that_was_not_waited_for_is_ended_by_its_last_move_again(engine: Engine) -> None:
    gate = threading.Event()
    own = engine.with_hook(None)
    own.workflows = {"slow": lambda run, _: run.step("slow", lambda: (gate.wait(60), "late")[-1])}
    with Stepper(own, Setting("slow"), patience=0.3) as stepper:
        stepper.move("A. A!")
        with pytest.raises(LaneError, match="Repeat the move to keep waiting"):
            stepper.recover("A")
        gate.set()
        stepper.lane("B").patience = 30.0
        assert stepper.move("B*")[-1].ended == "completed"
        assert stepper.line == "workflow=slow A. A! expire B*"


def test_a_server_without_a_free_connection_is_told_as_that_before_anything_moves(
    poor: tuple[Engine, str], engine: Engine
) -> None:
    other, role = poor
    with Stepper(other) as stepper:
        stepper.engine.database.close()
        change(engine, f"ALTER ROLE {role} CONNECTION LIMIT 0")
        with pytest.raises(DatabaseAway, match="has no free connection") as caught:
            stepper.step("A")
        assert "does not answer" not in str(caught.value)
        assert stepper.line == ""
        change(engine, f"ALTER ROLE {role} CONNECTION LIMIT -1")
        assert stepper.step("A").passed


def test_a_worker_that_never_comes_to_an_end_is_stopped_and_told_of(
    stepper: Stepper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentflow.lab.schedule.stepper.MAX_TIMES", 3)
    with pytest.raises(LaneError, match="A made 3 moves without finishing"):
        stepper.move("A*")
    assert stepper.line == "A*3"


# -- a race ------------------------------------------------------------------------------------------------------------


def test_a_race_is_written_down_in_the_order_that_the_database_saw(engine: Engine) -> None:
    with Stepper(engine, Setting(requests=2)) as stepper:
        for _ in range(7):
            moves = stepper.race("A", "B")
            assert {moved.move.lane for moved in moves} == {"A", "B"}
        raced = capture(stepper)
    assert raced.outcome["workflows_completed"] == 2
    assert first_divergence(raced, raced.play_again(engine)) is None


def test_two_claims_of_a_race_stand_in_the_order_of_their_rows_whatever_their_clocks_say(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim reads the clock a moment before it commits; what it got says who came first."""
    with Stepper(engine, Setting(requests=2)) as stepper:
        late = datetime.now(UTC) + timedelta(hours=1)
        real = stepper.engine.history
        ahead = {"request-1": late, "request-2": late - timedelta(minutes=1)}
        monkeypatch.setattr(
            stepper.engine, "history", lambda name: [{**entry, "at": ahead[name]} for entry in real(name)]
        )
        moved = stepper.race("A", "B")
        assert [one.passed.workflow for one in moved if one.passed] == ["request-1", "request-2"]


def test_in_a_race_for_one_workflow_one_worker_claims_and_the_other_is_idle(stepper: Stepper) -> None:
    first, second = stepper.race("A", "B")
    assert (first.ended, second.ended) == (None, "idle")
    assert first.passed is not None
    assert first.passed.token == 1
    assert stepper.line in ("A B", "B A")


# -- what cannot be ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "move", "why"),
    [
        ("", "expire", "no workflow has a lease that could end"),
        ("A*", "expire", "no workflow has a lease"),
        ("A", "due", "no workflow has a back-off"),
        ("A*3", "A/", "A must stand before the tool call; it stands before intent resolve-account"),
        ("A*5", "A/", "A must stand before the tool call; it stands before acknowledge"),
        ("", "A/", "it stands before claim"),
        ("", "A~", "A holds no workflow"),
        ("A*", "A~", "A holds no workflow"),
        ("A", "event:approval", "support_agent waits for no event"),
        ("A!", "A", "dead"),
        ("A||", "A*", "paused"),
        ("", "E", "is not a move"),
        ("", "requests=2 A", '"requests=2" begins a new line'),
        ("workflow=approval_agent", "event:other", "approval_agent waits for approval"),
        ("workflow=approval_agent A* event:approval B*", "event:approval", "because none is open"),
        ("requests=2 A B", "expire", "several workflows have a lease; use expire@1 or expire@2"),
        ("requests=2 A", "expire@2", "request-2 has no lease"),
        ("workflow=approval_agent requests=2", "event:approval", "several workflows could get it; choose one"),
    ],
)
def test_a_move_that_cannot_come_is_refused_in_a_sentence_and_nothing_moves(
    engine: Engine, line: str, move: str, why: str
) -> None:
    with Stepper(engine) as stepper:
        stepper.play(line)
        stepper.move("D||")
        before = everything(engine), stepper.line, stepper.next_transaction("A")
        with pytest.raises(BadSchedule, match=why):
            stepper.move(move)
        assert (everything(engine), stepper.line, stepper.next_transaction("A")) == before


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("workflow=nobody A", "workflow=nobody is not known; choose one of"),
        ("without=nothing A", "There is no guard 'nothing'"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_before_anything_is_touched(
    stepper: Stepper, engine: Engine, line: str, why: str
) -> None:
    stepper.play("A*3")
    before = everything(engine), stepper.line
    with pytest.raises(AgentFlowError, match=why):
        stepper.play(line)
    assert (everything(engine), stepper.line) == before
    assert stepper.step("A").passed is not None


def test_an_event_that_was_delivered_before_changes_nothing_and_is_no_error(stepper: Stepper, engine: Engine) -> None:
    stepper.play("workflow=approval_agent event:approval event:approval")
    refused = stepper.move("event:approval=false")[0]
    assert "another payload came first" in refused.said
    assert stepper.move("A*")[-1].ended == "completed"


@pytest.mark.parametrize("name", ["E", "AB", "BCD", "", "a"])
def test_an_unknown_lane_is_named_and_nothing_exists_afterwards(stepper: Stepper, engine: Engine, name: str) -> None:
    for act in (stepper.step, stepper.crash, lambda lane: stepper.race("A", lane), stepper.lane):
        with pytest.raises(LaneError, match=f"no lane '{name}'; the lanes are A, B, C, D"):
            act(name)
    assert stepper.line == "" and statuses(engine) == {}


def test_lanes_of_an_unknown_kind_are_refused(engine: Engine) -> None:
    with pytest.raises(LaneError, match="Lanes can be thread or process, not 'fiber'"):
        Stepper(engine, lanes="fiber")  # type: ignore[arg-type]


def test_a_race_of_a_worker_with_itself_is_refused(stepper: Stepper, engine: Engine) -> None:
    with pytest.raises(LaneError, match="A race needs different workers"):
        stepper.race("A", "A")
    assert stepper.line == "" and statuses(engine) == {}


def test_what_the_others_did_in_a_race_is_noted_although_one_worker_does_not_stand(engine: Engine) -> None:
    gate, own = threading.Event(), engine.with_hook(None)
    own.workflows = {"slow": lambda run, _: run.step("slow", lambda: (gate.wait(60), "late")[-1])}
    with Stepper(own, Setting("slow"), patience=0.3) as stepper:
        stepper.move("A.")
        with pytest.raises(LaneError, match="A has not reached its next transaction") as refused:
            stepper.race("A", "B")
        assert stepper.line == "workflow=slow A. B"
        assert "B: claim committed; idle" in "".join(refused.value.__notes__)
        gate.set()
        stepper.lane("A").patience = 30.0
        assert stepper.move("A*")[-1].ended == "completed"


def test_a_laboratory_that_holds_somebody_elses_workflows_is_not_played_on(stepper: Stepper, engine: Engine) -> None:
    engine.create_workflow("x", workflow_id="precious")
    with pytest.raises(LaneError, match=r"already holds 1 workflows.*Reset it"):
        stepper.step("A")
    assert statuses(engine) == {"precious": "ready"}
    stepper.reset()
    assert stepper.step("A").passed is not None


# -- reset, close, line ------------------------------------------------------------------------------------------------


def test_reset_with_a_standing_worker_leaves_no_row_and_no_thread(stepper: Stepper, engine: Engine) -> None:
    stepper.move("A*5")
    stepper.reset()
    assert lane_threads() == []
    assert (stepper.line, statuses(engine)) == ("", {})
    assert rows(engine, "SELECT effect_id FROM {w}.tool_ledger") == []
    assert stepper.move("A*5")[-1].workflow == "request-1"


def test_close_with_standing_workers_leaves_no_thread_and_no_connection(engine: Engine) -> None:
    stepper = Stepper(engine, Setting(requests=2))
    stepper.move("A*5 B*5")
    assert len(lane_threads()) == 2
    stepper.close()
    assert lane_threads() == []
    assert connections(stepper.engine) == 0
    for move in (lambda: stepper.step("A"), lambda: stepper.move("A B"), lambda: stepper.move("expire@1")):
        with pytest.raises(LaneError, match="closed"):
            move()
    assert rows(engine, "SELECT * FROM {s}.history WHERE transaction = 'fault'") == []


@pytest.mark.parametrize("line", [preset.line for preset in PRESETS.values()])
def test_moves_one_by_one_are_the_line_played_at_once(engine: Engine, line: str) -> None:
    with Stepper(engine) as stepper:
        stepper.play(line)
        whole, setting = capture(stepper), stepper.setting
        assert stepper.line == line
    with Stepper(engine, setting) as stepper:
        stepper.reset()
        for token in line.split():
            if "=" not in token:
                stepper.move(token)
        assert first_divergence(whole, capture(stepper)) is None


def test_the_line_of_what_was_clicked_gives_the_same_history_again(engine: Engine) -> None:
    with Stepper(engine, Setting(requests=2)) as stepper:
        stepper.step("A")
        stepper.step("B")
        stepper.move(Move("pause", "B"))
        stepper.crash("A")
        stepper.recover("A")
        stepper.recover("B")
        stepper.move("B> B")
        clicked = capture(stepper)
    assert clicked.outcome["workflows_completed"] == 2
    assert first_divergence(clicked, clicked.play_again(engine)) is None


def test_lanes_are_two_until_others_take_part(stepper: Stepper) -> None:
    assert stepper.lanes == ("A", "B")
    stepper.move("D")
    assert stepper.lanes == ("A", "B", "C", "D")
    assert (stepper.is_alive("C"), stepper.is_paused("C")) == (True, False)
    stepper.move("C|| D!")
    assert (stepper.is_paused("C"), stepper.is_alive("D")) == (True, False)


# -- laboratories ------------------------------------------------------------------------------------------------------


def test_a_fresh_laboratory_closes_the_one_before_and_starts_empty(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    first = fresh_laboratory("t_fresh")
    try:
        first.create_workflow(REQUESTS[0])
        second = fresh_laboratory("t_fresh")
        assert connections(first) == 0
        assert statuses(second) == {}
        assert second.policy.lease_seconds >= 86_400
    finally:
        let_go("engine", "t_fresh")
        drop(Database(url, "t_fresh"))


def test_people_who_share_a_database_have_laboratories_of_their_own(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    engines = []
    for person in ("t_ada", "t_bob"):
        monkeypatch.setenv("AGENTFLOW_SCHEMA", person)
        engines.append(fresh_laboratory("t_shared"))
    try:
        assert [engine.database.schema for engine in engines] == ["t_ada_t_shared", "t_bob_t_shared"]
        for engine in engines:
            engine.create_workflow("mine", workflow_id="request-1")
        monkeypatch.setenv("AGENTFLOW_SCHEMA", "t_ada")
        assert fresh_laboratory("t_shared").list_workflows() == []
        assert [row["id"] for row in engines[1].list_workflows()] == ["request-1"]
    finally:
        for engine in engines:
            let_go("engine", engine.database.schema)
            drop(engine.database)
    monkeypatch.setenv("AGENTFLOW_SCHEMA", "agentflow")
    assert schema_of("t_shared") == "t_shared"


@pytest.mark.parametrize(
    "lost", ["TABLE t_halved.history", "TABLE t_halved_world.tool_ledger", "SCHEMA t_halved_world"]
)
def test_a_laboratory_that_lost_tables_is_made_anew(url: str, monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    try:
        with fresh_laboratory("t_halved").database.alchemy.connect() as connection:
            connection.execute(text(f"DROP {lost} CASCADE"))
        engine = fresh_laboratory("t_halved")
        engine.create_workflow(REQUESTS[0], workflow_id="request-1")
        assert engine.run_once("A")
    finally:
        let_go("engine", "t_halved")
        drop(Database(url, "t_halved"))


def test_a_part_of_an_earlier_laboratory_is_told_and_left_alone(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    try:
        with fresh_laboratory("t_left").database.alchemy.connect() as connection:
            connection.execute(text("DROP SCHEMA t_left CASCADE"))
            with pytest.raises(NotALaboratory, match=r"or only a part of it \(table t_left_world\.tool_ledger, "):
                fresh_laboratory("t_left")
            connection.execute(text("DROP TABLE t_left_world.tool_attempts, t_left_world.tool_ledger"))
        assert fresh_laboratory("t_left").list_workflows() == []
    finally:
        let_go("engine", "t_left")
        drop(Database(url, "t_left"))


def test_rows_locked_by_an_open_transaction_are_told_with_who_holds_them(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    monkeypatch.setattr(laboratory, "open_engine", functools.partial(open_engine, patience=0))
    try:
        engine = fresh_laboratory("t_held")
        engine.create_workflow(REQUESTS[0])
        with psycopg.connect(url.replace("+psycopg", ""), application_name="psql") as somebody:
            somebody.execute("SELECT FROM t_held.workflows FOR UPDATE")
            process = somebody.info.backend_pid
            with pytest.raises(DatabaseAway, match=rf"still open, of psql \(process {process}\)\. .* with ROLLBACK"):
                fresh_laboratory("t_held")
    finally:
        let_go("engine", "t_held")
        drop(Database(url, "t_held"))


def test_a_fresh_laboratory_refuses_a_schema_with_somebody_elses_workflows(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    database = Database(url, "t_precious")
    try:
        migrate(database)
        Engine(database).create_workflow(REQUESTS[0])
        with pytest.raises(NotALaboratory):
            fresh_laboratory("t_precious")
        assert len(statuses(Engine(database))) == 1
    finally:
        let_go("engine", "t_precious")
        drop(database)
