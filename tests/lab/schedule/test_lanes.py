"""Thread and process lanes: one history, real signals, nothing left behind, and never a notebook that hangs."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import text

from agentflow import Database, Engine, migrate
from agentflow.errors import BadSchedule, DatabaseAway, LaneError
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.schedule.capsule import Capsule, capture, first_divergence
from agentflow.lab.schedule.grammar import TOKENS, Move, Setting, parse
from agentflow.lab.schedule.lane_set import LaneKind
from agentflow.lab.schedule.presets import PRESETS
from agentflow.lab.schedule.stepper import Stepper
from agentflow.server import Server
from tests.conftest import rows
from tests.support.helpers import eventually
from tests.support.lane_workflows import Gate, gated, identity_of, pid_of, short
from tests.support.signals import send

KINDS: tuple[LaneKind, ...] = ("thread", "process")

LINES = [
    "A. A. A. A. A. A. A. A",
    "A*5 A. A! A+ expire A*",
    "A*2 A~ A* B",
    "A*3 A? A*",
    "A*3 expire A~ B* A",
    "A*3 A! A+ A expire A*",
    "A! A+ A|| A! A+ A*",
    "requests=2 A*2 B*2 A! expire@1 C* B*",
    "requests=3 A*2 B*2 C A! B! expire@2 expire@1 D* D* D C*",
    "A*4 A/ A B due B*",
    "retry=look_up A*5 A! expire B*",
    "retry=look_up A*4 A/ A due A*",
    "A*5 A! forget expire B*",
    "names=shared A*3 A! expire B* A+ A",
    "names=shared A*3 A|| expire B*2 A> A*2",
    "without=fence_token names=shared A*2 A|| expire B*3 A> A*2 B*",
    "model=varying A*2 A|| expire B*3 A> A B*",
    "without=fence_token,lease_owner model=varying A*2 A|| expire B*3 A> A*3 B*",
    "without=acknowledge_after_tool A*5 A! expire B*",
    "without=intent A*4 A! expire B*",
    "without=checkpoint_after_step A*2 A! expire B*",
    "without=claim_reads_first requests=2 A B A B A* B*",
    'workflow=research_agent A* event:editor.approved={"by":"ada"} B* B',
    "workflow=research_agent A*4 event:editor.approved=null A*",
    "workflow=approval_agent requests=2 A* A* event:approval=false@2 event:approval@1 B* B*",
    "workflow=approval_agent A* event:approval event:approval=false A! B*",
    "workflow=approval_agent A* A! event:approval B*",
    "workflow=approval_agent A* A|| event:approval B* A> A!",
    "A*4 A/ A A! due forget B*",
]  # fmt: skip
RESTARTS = ["A*3 restart A*", "A*5 restart A! expire B*", "A|| restart A> A*", "A*4 A/ A due A restart A/"]


def play(engine: Engine, kind: LaneKind, line: str, server: Server | None = None) -> Capsule:
    with Stepper(engine, lanes=kind, server=server) as stepper:
        stepper.play(line)
        return capture(stepper)


@pytest.fixture
def lab(engine: Engine) -> Engine:
    engine.policy = PATIENT
    return engine


def lane_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lane-")]


# -- one history -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [*(preset.line for preset in PRESETS.values()), *LINES])
def test_threads_and_processes_give_the_same_history(lab: Engine, line: str) -> None:
    threads, processes = (play(lab, kind, line) for kind in KINDS)
    assert first_divergence(threads, processes) is None
    assert threads.hash == processes.hash
    assert threads.schedule == line


@pytest.mark.parametrize("kind", KINDS)
def test_a_lane_runs_a_function_of_ones_own_under_a_name_of_the_laboratory(lab: Engine, kind: LaneKind) -> None:
    own = lab.with_hook(None)
    own.workflows = {**lab.workflows, "support_agent": short}
    with Stepper(own, lanes=kind) as stepper:
        stepper.play("A*")
    steps = [entry["subject"] for entry in lab.history("request-1") if entry["event"] == "checkpoint_committed"]
    assert steps == ["only"]


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("lanes") / "pg").start()
    yield server
    server.stop()


@pytest.fixture
def own_engine(own_server: Server) -> Iterator[Engine]:
    """On a server that the test may stop and crash."""
    engine = Engine(Database(own_server.start().url(), "lanes", patience=3), policy=PATIENT)
    migrate(engine.database, laboratory=True)
    engine.reset_database()
    yield engine
    engine.close()


@pytest.mark.parametrize("line", RESTARTS)
def test_both_survive_a_crash_of_the_database_with_one_history(
    own_engine: Engine, own_server: Server, line: str
) -> None:
    threads, processes = (play(own_engine, kind, line, own_server) for kind in KINDS)
    assert first_divergence(threads, processes) is None
    assert [entry["event"] for entry in threads.history].count("database_restarted") == 1
    assert threads.outcome["problems"] == []


def test_restart_is_refused_on_a_server_that_is_not_the_laboratorys_own(
    lab: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTFLOW_HOME", str(tmp_path))  # it names the tests' own server
    with Stepper(lab) as stepper:
        stepper.play("A*2")
        with pytest.raises(BadSchedule, match="embedded server only"):
            stepper.move("restart")
        assert stepper.line == "A*2"


def test_every_token_of_the_grammar_is_played_by_both() -> None:
    lines = [*(preset.line for preset in PRESETS.values()), *LINES, *RESTARTS]
    tokens = {token for line in lines for token in line.split() if "=" not in token or token.startswith("event:")}
    unplayed = [pattern for pattern in TOKENS if not any(re.fullmatch(pattern, token) for token in tokens)]
    assert unplayed == []
    settings = [parse(line).setting for line in lines]
    for name, default in vars(Setting()).items():
        assert any(getattr(setting, name) != default for setting in settings), name


@pytest.mark.parametrize("after", ["", "A. "])
@pytest.mark.parametrize("transactions", range(8))
def test_an_exception_and_sigkill_lose_the_same_at_every_boundary(lab: Engine, transactions: int, after: str) -> None:
    line = (f"A*{transactions} " if transactions else "") + after
    with Stepper(lab) as stepper:
        stepper.play(line + "A!")
        held = rows(lab, "SELECT 1 FROM {s}.workflows WHERE lease_owner IS NOT NULL")
    line += "A! expire B*" if held else "A! B*"
    by_exception, by_signal = (play(lab, kind, line) for kind in KINDS)
    assert first_divergence(by_exception, by_signal) is None
    assert by_signal.outcome["workflows_completed"] == by_signal.outcome["business_effects"] == 1
    gap = (transactions == 4 and after) or (transactions == 5 and not after)
    assert by_signal.outcome["tool_execution_attempts"] == (2 if gap else 1)


# -- signals -----------------------------------------------------------------------------------------------------------


def test_a_killed_process_is_gone_and_its_lease_is_not(lab: Engine) -> None:
    with Stepper(lab, lanes="process") as stepper:
        stepper.play("A*3")
        pid, identity = pid_of(stepper, "A"), identity_of(stepper, "A")
        stepper.move("A!")
        eventually(lambda: not psutil.pid_exists(pid))
        (row,) = rows(lab, "SELECT lease_owner FROM {s}.workflows")
        assert row["lease_owner"] == identity
        stepper.move("A+")
        assert pid_of(stepper, "A") != pid


def test_a_paused_process_is_stopped_until_it_is_resumed(lab: Engine) -> None:
    with Stepper(lab, lanes="process") as stepper:
        stepper.play("A*2")
        process = psutil.Process(pid_of(stepper, "A"))
        assert process.status() != psutil.STATUS_STOPPED
        stepper.move("A||")
        eventually(lambda: process.status() == psutil.STATUS_STOPPED)
        stepper.move("A>")
        eventually(lambda: process.status() != psutil.STATUS_STOPPED)
        assert stepper.step("A").passed is not None


def test_a_stopped_process_can_be_killed(lab: Engine) -> None:
    with Stepper(lab, lanes="process") as stepper:
        stepper.play("A*2 A||")
        pid = pid_of(stepper, "A")
        stepper.move("A!")
        eventually(lambda: not psutil.pid_exists(pid))


# -- nothing is left ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("line", ["A*3 B C*", "requests=2 A*2 A|| B*5 B. C! C+"])
def test_after_close_no_thread_process_or_connection_is_left(schema: Any, kind: LaneKind, line: str) -> None:
    database = schema(application_name="lane-test-" + os.urandom(4).hex())
    migrate(database, laboratory=True)
    engine = Engine(database, policy=PATIENT)
    children = set(psutil.Process().children(recursive=True))
    stepper = Stepper(engine, lanes=kind)
    stepper.play(line)
    names = [database.application_name, *(identity_of(stepper, lane) for lane in stepper.lanes)]
    pids = [pid_of(stepper, lane) for lane in stepper.lanes] if kind == "process" else []
    assert len(pids) + len(lane_threads()) == len(stepper.lanes)
    stepper.close()
    engine.close()
    assert lane_threads() == []
    eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    assert [one for one in set(psutil.Process().children(recursive=True)) - children if one.name() == "lane"] == []
    sql = text("SELECT count(*) FROM pg_stat_activity WHERE application_name = ANY(:names)")
    watcher = database.twin(application_name="watcher")
    with watcher.alchemy.connect() as connection:
        eventually(lambda: connection.execute(sql, {"names": names}).scalar_one() == 0)
    watcher.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_standing_worker_holds_no_transaction(lab: Engine, kind: LaneKind) -> None:
    with Stepper(lab, lanes=kind) as stepper:
        stepper.play("A*5")
        identity = identity_of(stepper, "A")
        sql = "SELECT state, xact_start FROM pg_stat_activity WHERE application_name = :name"
        sessions = rows(lab, sql, name=identity)
        assert sessions
        assert all(one == {"state": "idle", "xact_start": None} for one in sessions)


# -- killed from outside -----------------------------------------------------------------------------------------------


def test_a_process_killed_from_outside_is_told_of_and_replaced(lab: Engine) -> None:
    with Stepper(lab, lanes="process") as stepper:
        stepper.play("A*3 B")
        send(pid_of(stepper, "A"), signal.SIGKILL)
        with pytest.raises(LaneError, match=r"exit code -9.*A\+ starts a new one"):
            stepper.move("A")
        stepper.move("A+ expire A*")
        assert stepper.line == "A*3 B A! A+ expire A*"
        assert capture(stepper).outcome["workflows_completed"] == 1


def test_a_stopped_process_killed_from_outside_is_told_of_when_it_is_resumed(lab: Engine) -> None:
    with Stepper(lab, lanes="process") as stepper:
        stepper.play("A*3 A||")
        pid = pid_of(stepper, "A")
        send(pid, signal.SIGKILL)
        eventually(lambda: not psutil.pid_exists(pid))
        with pytest.raises(LaneError, match="exit code -9"):
            stepper.move("A>")
        assert stepper.recover("A")[-1].ended == "completed"


def test_a_process_killed_from_outside_inside_a_step_ends_the_move_at_once(lab: Engine, tmp_path: Path) -> None:
    gate = Gate.new(tmp_path)
    with Stepper(gated(lab, gate), Setting("gated"), lanes="process", patience=60) as stepper:
        stepper.move("A")
        pid = pid_of(stepper, "A")
        threading.Thread(target=lambda: eventually(gate.has_somebody) and send(pid, signal.SIGKILL)).start()
        with pytest.raises(LaneError, match="exit code -9"):
            stepper.move("A")
        assert [row["step_id"] for row in rows(lab, "SELECT step_id FROM {s}.steps")] == ["quick"]


# -- a step that does not return ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_does_not_return_is_told_of_and_waited_for_by_the_same_move(
    lab: Engine, tmp_path: Path, kind: LaneKind
) -> None:
    gate = Gate.new(tmp_path)
    with Stepper(gated(lab, gate), Setting("gated"), lanes=kind, patience=0.5) as stepper:
        stepper.move("A")
        reason = r"in `return self.path.read_text\(\)`|step or tool of the workflow is still running"
        with pytest.raises(LaneError, match=f"A has not reached its next transaction within 0.5 s: .*({reason})"):
            stepper.step("A")
        assert stepper.next_transaction("A") == "still running"
        gate.open()
        stepper.lane("A").patience = 30
        assert str(stepper.step("A")) == "A: checkpoint quick committed; stands before checkpoint slow"
        assert stepper.move("A*")[-1].ended == "completed"
        assert stepper.line == "workflow=gated A*2 A*"


def test_a_thread_names_the_line_it_is_in(lab: Engine, tmp_path: Path) -> None:
    gate = Gate.new(tmp_path)
    with Stepper(gated(lab, gate), Setting("gated"), patience=0.3) as stepper:
        stepper.move("A")
        with pytest.raises(LaneError, match=r"inside a step or tool, in `return self.path.read_text\(\)`"):
            stepper.step("A")
        gate.open()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", ["A.", "A~"])
def test_another_move_of_a_worker_that_is_still_running_is_refused(
    lab: Engine, tmp_path: Path, kind: LaneKind, other: str
) -> None:
    gate = Gate.new(tmp_path)
    with Stepper(gated(lab, gate), Setting("gated"), lanes=kind, patience=0.3) as stepper:
        stepper.move("A")
        with pytest.raises(LaneError, match="has not reached"):
            stepper.move("A")
        gate.open()
        stepper.lane("A").patience = 30
        with pytest.raises((LaneError, BadSchedule), match="still"):
            stepper.move(other)
        assert stepper.line == "workflow=gated A"
        stepper.move("A")
        assert stepper.line == "workflow=gated A*2"


def test_a_process_that_does_not_return_is_ended_by_a_reset(lab: Engine, tmp_path: Path) -> None:
    with Stepper(gated(lab, Gate.new(tmp_path)), Setting("gated"), lanes="process", patience=0.3) as stepper:
        stepper.move("A")
        pid = pid_of(stepper, "A")
        with pytest.raises(LaneError, match="has not reached"):
            stepper.step("A")
        stepper.reset()
        eventually(lambda: not psutil.pid_exists(pid))
        assert rows(lab, "SELECT id FROM {s}.workflows") == []
        assert stepper.play("A*")[-1].ended == "completed"


def test_a_thread_that_does_not_return_is_named_by_kill_reset_and_close_and_dies_later(
    lab: Engine, tmp_path: Path
) -> None:
    gate = Gate.new(tmp_path)
    stepper = Stepper(gated(lab, gate), Setting("gated"), patience=0.3)
    stepper.move("A")
    with pytest.raises(LaneError, match="has not reached"):
        stepper.step("A")
    for end in (lambda: stepper.move("A!"), stepper.reset, stepper.close):
        with pytest.raises(LaneError, match=r"A is a thread and it is inside a step or tool.*process lanes"):
            end()
    gate.open()
    eventually(lambda: lane_threads() == [])
    stepper.close()
    assert rows(lab, "SELECT step_id FROM {s}.steps") == [{"step_id": "quick"}]


# -- what a process cannot be given ------------------------------------------------------------------------------------


def test_a_function_of_a_notebook_is_refused_by_a_process_and_taken_by_a_thread(lab: Engine) -> None:
    own = lab.with_hook(None)
    own.workflows = {**lab.workflows, "mine": lambda run, _: run.step("one", lambda: 1)}
    with Stepper(own, Setting("mine"), lanes="process") as stepper:
        with pytest.raises(LaneError, match=r"imported from a module; use thread lanes"):
            stepper.move("A")
        assert (stepper.moves, stepper.standing("A")) == ([], None)
    assert play(own, "thread", "workflow=mine A*").outcome["workflows_completed"] == 1


def test_a_tool_that_cannot_be_sent_is_refused_by_a_process(lab: Engine) -> None:
    own = lab.with_hook(None)
    own.tool = lambda call: None
    with (
        Stepper(own, lanes="process") as stepper,
        pytest.raises(LaneError, match="The workflow or tool cannot be sent to a worker process"),
    ):
        stepper.move("A")


# -- the database is down ----------------------------------------------------------------------------------------------

PREPARED = {
    "A*3": ["A", "A.", "A*", "A*2", "B", "A!", "A||", "A~", "A?", "expire"],
    "A*3 A!": ["A+"],
    "A*3 A||": ["A>"],
    "A*4": ["A/"],
    "A*4 A/ A": ["due"],
    "A*5": ["forget"],
    "workflow=approval_agent A*": ["event:approval"],
}


def test_every_kind_of_move_is_among_the_prepared() -> None:
    lines = [f"{before} {move}" for before, moves in PREPARED.items() for move in moves]
    verbs = {parse(line).moves[-1].verb for line in lines} | {"go"}
    assert verbs == {verb for verb, _ in TOKENS.values()} - {"restart"}


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_database_no_move_is_made_and_every_one_can_be_repeated(
    own_engine: Engine, own_server: Server, kind: LaneKind
) -> None:
    steppers: dict[str, Stepper] = {}
    for number, before in enumerate(PREPARED):
        database = Database(own_server.url(), f"down_{kind}_{number}", patience=3)
        migrate(database, laboratory=True)
        steppers[before] = Stepper(Engine(database, policy=PATIENT), lanes=kind)
        steppers[before].play(before)
    own_server.stop()
    try:
        for before, moves in PREPARED.items():
            stepper = steppers[before]
            standing = stepper.standing("A")
            for refused in (*(partial(stepper.move, move) for move in moves), stepper.reset):
                with pytest.raises(DatabaseAway, match="No worker has moved"):
                    refused()
            assert (stepper.line, stepper.standing("A")) == (before, standing)
    finally:
        own_server.start()
    for before, moves in PREPARED.items():
        for number, move in enumerate(moves):
            if number:
                steppers[before].play(before)
            assert {moved.trouble for moved in steppers[before].move(move)} == {""}
            assert steppers[before].line == str(parse(f"{before} {move}"))
        steppers[before].close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_database_that_goes_away_during_a_move_is_told_of_and_the_worker_goes_on_later(
    own_engine: Engine, own_server: Server, tmp_path: Path, kind: LaneKind
) -> None:
    gate = Gate.new(tmp_path)
    with Stepper(gated(own_engine, gate), Setting("gated"), lanes=kind, patience=2) as stepper:
        stepper.move("A")
        with pytest.raises(LaneError, match="has not reached"):
            stepper.move("A")
        own_server.stop()
        with pytest.raises((LaneError, DatabaseAway)):
            stepper.move("A")
        gate.open()
        own_server.start()
        stepper.lane("A").patience = 30
        assert stepper.move("A*")[-1].ended == "completed"


# -- one move at a time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["move", "play", "reset", "recover", "race"])
def test_of_five_moves_at_once_one_wins_and_the_others_are_told(lab: Engine, what: str) -> None:
    entered, gate = threading.Event(), threading.Event()

    def watch(_: object) -> None:
        entered.set()
        assert gate.wait(30)

    with Stepper(lab) as stepper:
        stepper.play("A*2 A!")
        stepper.watch = watch
        others = {
            "move": lambda: stepper.move("B"),
            "play": lambda: stepper.play("A*2"),
            "reset": stepper.reset,
            "recover": lambda: stepper.recover("A"),
            "race": lambda: stepper.race("B", "C"),
        }
        winner = threading.Thread(target=stepper.move, args=("B",))
        winner.start()
        assert entered.wait(30)
        for _ in range(4):
            with pytest.raises(LaneError, match="last move is still under way"):
                others[what]()
        gate.set()
        winner.join(30)
        assert stepper.line == "A*2 A! B"


def test_a_line_that_fails_in_the_middle_says_the_token_and_keeps_what_came_before(lab: Engine) -> None:
    with Stepper(lab) as stepper:
        with pytest.raises(BadSchedule, match='"expire": no workflow has a lease') as error:
            stepper.play("A*2 expire A! expire B*")
        assert "move 4" in error.value.__notes__[0]
        assert stepper.line == "A*2 expire A!"
        assert stepper.moves[-1] == Move("kill", "A")
        assert len(rows(lab, "SELECT n FROM {s}.history")) == 5
