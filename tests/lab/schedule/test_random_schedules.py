"""Random schedules on real lanes: whatever moves come in whatever order, the invariants hold after each of them.

A schedule is a list of numbers, each of which chooses one of the moves that are legal in the state so far; so a failing one
shrinks to a short line of text. A line that was ever found to fail belongs into FOUND, with what was mended.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from agentflow import Database, Engine, migrate
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.schedule.grammar import LANES, Move, Roll, Schedule, Setting, deliver, parse
from agentflow.lab.schedule.lane_set import LaneKind
from agentflow.lab.schedule.moves import Moved
from agentflow.lab.schedule.presets import PLAYABLE, PRESETS
from agentflow.lab.schedule.stepper import Stepper
from agentflow.lab.verify.invariants import Mover, Transition, violations
from agentflow.lab.verify.snapshot import Rows, read_rows
from agentflow.server import Server

FINISHER = "D"  # the lane that takes no part before the end
ROUNDS = 30

FOUND: dict[str, str] = {}
"""Lines that once broke an invariant: what was mended."""


class Broken(AssertionError):
    """An invariant does not hold; the message begins with the line."""


class Watch:
    """Looks at all rows after each transaction or fault. `excused` names invariants that the line itself gives up."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper, self.rows = stepper, Rows()

    def __call__(self, moved: Moved) -> None:
        """Raises Broken, with the line so far, if the move broke an invariant."""
        before, self.rows = self.rows, read_rows(self.stepper.engine)
        passed = moved.passed
        # `ended` says that a run ended on the way; after a stop behind `complete` the next move tells it
        ended = moved.ended if passed and passed.transaction == "complete" else None
        mover = Mover(passed.worker, passed.token, passed.workflow, passed.transaction, ended) if passed else Mover()
        guilty = [
            f"{invariant.name}: {row}"
            for invariant, row in violations(Transition(before, self.rows, mover))
            if not (invariant.name == "one effect per action" and self.has_forgotten)
        ]
        if moved.trouble:
            guilty.append(f"trouble: {moved.trouble}")
        if guilty:
            raise Broken("\n".join([self.stepper.line, *guilty]))

    @property
    def has_forgotten(self) -> bool:
        """The promise of one effect ends where the tool forgets its keys."""
        return any(move.verb == "forget" for move in self.stepper.moves)

    def unfinished(self) -> list[str]:
        """The workflows that are neither completed nor failed."""
        return [row["id"] for row in self.rows.workflows if row["status"] in ("ready", "waiting")]


def legal(stepper: Stepper, rows: Rows, lanes: Sequence[str], restarts: bool = False) -> list[Move]:
    """Every move that can come now; the simplest first, and more often those that would be rare or lead nowhere."""
    roll = Roll(stepper.moves)
    running = [lane for lane in lanes if lane not in roll.dead | roll.paused]
    standing = {lane: at for lane in running if (at := stepper.standing(lane)) and at.workflow}
    moves = [Move("go", lane, times) for times in (1, 1, 1, 4) for lane in running]
    moves += around(stepper, rows) * 2
    for lane, at in standing.items():
        if (at.transaction, at.edge) == ("tool", "before"):
            moves += [Move("lose", lane)] * 8
        if at.transaction in ("tool", "acknowledge"):
            moves += [Move("kill", lane), Move("halt", lane)] * 3
        moves += [Move(verb, lane) for verb in ("kill", "pause", "halt", "renew")]  # type: ignore[arg-type]
    moves += [Move("start", lane) for lane in lanes if lane in roll.dead]
    moves += [Move("resume", lane) for lane in lanes if lane in roll.paused]
    moves += [Move("go", lane, None) for lane in running]
    moves += [Move(verb, lane) for verb in ("kill", "pause", "halt") for lane in running[:1]]  # type: ignore[arg-type]
    if any(effect["remembered"] for effect in rows.effects):
        moves.append(Move("forget"))
    return [*moves, *([Move("restart")] if restarts else [])]


def around(stepper: Stepper, rows: Rows, payloads: Sequence[object] = (True, False)) -> list[Move]:
    """What can happen to the workflows from outside: leases and back-offs end, events arrive."""
    moves = []
    several = stepper.setting.requests > 1
    for number, row in enumerate(rows.workflows, 1):
        which = number if several else None
        if row["status"] == "ready" and row["lease"] == "live":
            moves.append(Move("expire", request=which))
        if row["status"] == "ready" and row["lease_owner"] is None and not row["due"]:
            moves.append(Move("due", request=which))
        if row["status"] in ("ready", "waiting"):
            events = PLAYABLE[stepper.setting.workflow].events
            moves += [deliver(event, payload, which) for event in events for payload in payloads]
    return moves


def wander(stepper: Stepper, setting: Setting, choices: Sequence[int], lanes: str, restarts: bool = False) -> Watch:
    """The chosen moves were made on an empty laboratory, then everything was finished; every invariant held throughout."""
    stepper.watch = None
    stepper.reset(setting)
    stepper.watch = watch = Watch(stepper)
    for choice in choices:
        moves = legal(stepper, watch.rows, lanes, restarts)
        stepper.move(moves[choice % len(moves)])
    finish(stepper, watch, lanes)
    return watch


def finish(stepper: Stepper, watch: Watch, lanes: str) -> None:
    """A fresh worker has finished every workflow, and those that stood or slept meanwhile have done what they still could.

    Raises Broken if a workflow is stuck.
    """
    ended, outside = "", [Move("forget")]
    for _ in range(ROUNDS):
        if watch.rows.workflows and (not watch.unfinished() or (ended == "idle" and not outside)):
            break
        outside = [move for row in watch.unfinished() if (move := helps(stepper, watch.rows, row))]
        for move in outside:
            stepper.move(move)
        ended = str(stepper.move(Move("go", FINISHER, None))[-1].ended)
    if stuck := watch.unfinished():
        raise Broken(f"{stepper.line}\nno workflow is stuck: {', '.join(stuck)} cannot be finished")
    for row in watch.rows.workflows:
        if row["status"] != "completed" and "CrashBudgetSpent" not in (row["error"] or ""):
            raise Broken(f"{stepper.line}\nno workflow fails of itself: {row['id']} {row['error']:.300}")
    for lane in lanes:
        if stepper.is_paused(lane):
            stepper.move(Move("resume", lane))
        if stepper.is_alive(lane):
            stepper.move(Move("go", lane, None))


def helps(stepper: Stepper, rows: Rows, workflow_id: str) -> Move | None:
    """What has to come from outside before a worker can go on with this workflow."""
    number = int(workflow_id.rpartition("-")[2])
    row = rows.workflow(workflow_id)
    for move in around(stepper, rows, payloads=(True,)):
        if move.request in (None, number) and (not move.event or (row and row["status"] == "waiting")):
            return move
    return None


@pytest.fixture
def stepper(engine: Engine) -> Iterator[Stepper]:
    engine.policy = PATIENT
    with Stepper(engine) as stepper:
        yield stepper


# -- schedules ---------------------------------------------------------------------------------------------------------

SETTINGS = st.builds(
    Setting,
    workflow=st.sampled_from(sorted(PLAYABLE, reverse=True)),
    requests=st.sampled_from([1, 1, 2]),
    model=st.sampled_from(["steady", "varying"]),
    names=st.sampled_from(["unique", "unique", "shared"]),
    retry=st.sampled_from(["call_again", "look_up"]),
)
SHORT = st.lists(st.integers(0, 79), max_size=12) | st.lists(st.integers(0, 79), min_size=8, max_size=12)
LONG = st.lists(st.integers(0, 79), max_size=24) | st.lists(st.integers(0, 79), min_size=14, max_size=24)
GROUPS = st.sampled_from(["AB", "ABC"])
PATIENTLY = settings(
    deadline=None, database=None, print_blob=False,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
SCHEDULES = given(setting=SETTINGS, choices=LONG, lanes=GROUPS)


@pytest.mark.timeout(900)  # a failing one takes its time to shrink
@given(setting=SETTINGS, choices=SHORT, lanes=GROUPS)
@settings(PATIENTLY, max_examples=200)
def test_no_schedule_breaks_an_invariant(stepper: Stepper, setting: Setting, choices: list[int], lanes: str) -> None:
    wander(stepper, setting, choices, lanes)


@pytest.mark.long
@SCHEDULES
@settings(PATIENTLY, max_examples=2_000)
def test_no_schedule_of_many_breaks_an_invariant(
    stepper: Stepper, setting: Setting, choices: list[int], lanes: str
) -> None:
    wander(stepper, setting, choices, lanes)


@pytest.fixture
def processes(engine: Engine) -> Iterator[Stepper]:
    engine.policy = PATIENT
    with Stepper(engine, lanes="process") as stepper:
        yield stepper


@pytest.mark.long
@SCHEDULES
@settings(PATIENTLY, max_examples=200)
def test_no_schedule_on_processes_breaks_an_invariant(
    processes: Stepper, setting: Setting, choices: list[int], lanes: str
) -> None:
    wander(processes, setting, choices, lanes)


@pytest.fixture(scope="module", params=["thread", "process"])
def on_its_own_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stepper]:
    """A stepper whose database may crash."""
    server = Server(tmp_path_factory.mktemp("random") / "pg").start()
    engine = Engine(Database(server.url(), "random", patience=10), policy=PATIENT)
    migrate(engine.database, laboratory=True)
    kind: LaneKind = request.param
    with Stepper(engine, lanes=kind, server=server) as stepper:
        yield stepper
    engine.close()
    server.stop()


@pytest.mark.long
@SCHEDULES
@settings(PATIENTLY, max_examples=60)
def test_no_schedule_with_crashes_of_the_database_breaks_an_invariant(
    on_its_own_server: Stepper, setting: Setting, choices: list[int], lanes: str
) -> None:
    wander(on_its_own_server, setting, choices, lanes, restarts=True)


# -- the test can fail -------------------------------------------------------------------------------------------------


def tries(number: int = 300) -> Iterator[list[int]]:
    """The same random choices in every run."""
    chance = random.Random(5)
    for _ in range(number):
        yield [chance.randrange(80) for _ in range(chance.randint(4, 12))]


def breaks(stepper: Stepper, setting: Setting, choices: list[int]) -> str:
    """The line that breaks a promise and what it breaks; empty if none does."""
    try:
        wander(stepper, setting, choices, "AB")
    except Broken as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("without", "promise"),
    [
        (("fence_token", "lease_owner"), "nothing under an older token"),
        (("acknowledge_after_tool",), "the result is the tools"),
        (("checkpoint_after_step",), "no workflow fails of itself"),
        (("lease_never_expires",), "no workflow is stuck"),
    ],
)
def test_without_a_guard_a_line_is_found_that_breaks_a_promise(
    stepper: Stepper, without: tuple[str, ...], promise: str
) -> None:
    said = next(filter(None, (breaks(stepper, Setting(without=without), choices) for choices in tries())))
    line, _, why = said.partition("\n")
    with pytest.raises(Broken, match=promise) as again:
        replay(stepper, line)
    assert str(again.value).partition("\n")[2].splitlines()[0][:20] == why[:20]


def test_without_a_key_the_line_that_is_found_shrinks_to_a_short_one(stepper: Stepper) -> None:
    setting = Setting(without=("idempotency_key",))
    phases = settings(PATIENTLY, max_examples=400, derandomize=True, phases=[Phase.generate, Phase.shrink])
    found = find(SHORT, lambda choices: bool(breaks(stepper, setting, choices)), settings=phases)
    line, _, why = breaks(stepper, setting, found).partition("\n")
    assert why.startswith("one effect per action: tool_ledger request-1")
    assert len(unrolled(line)) <= 9, line
    with pytest.raises(Broken, match="one effect per action"):
        replay(stepper, line)


def unrolled(line: str) -> list[Move]:
    """The moves, each counted transaction as one."""
    return [move for move in parse(line).moves for _ in range(move.times or 1 if move.verb == "go" else 1)]


MATTERS = {
    "reply_lost", "write_refused", "worker_killed", "worker_resumed", "event_refused", "lease_renewed", "repeated",
}  # fmt: skip


def test_random_schedules_reach_what_matters(stepper: Stepper) -> None:
    missing = set(MATTERS)
    for choices in tries():
        rows = wander(stepper, Setting("approval_agent"), choices, "AB").rows
        missing -= {row["event"] for row in rows.history} | {row["outcome"] for row in rows.attempts}
        if not missing:
            break
    assert not missing


# -- lines that were found ---------------------------------------------------------------------------------------------


def replay(stepper: Stepper, line: str) -> None:
    """The line was played and everything finished; every invariant held. Raises Broken."""
    schedule: Schedule = parse(line)
    stepper.watch = None
    stepper.reset(schedule.setting)
    stepper.watch = watch = Watch(stepper)
    for move in schedule.moves:
        stepper.move(move)
    finish(stepper, watch, LANES[:3])


@pytest.mark.parametrize("line", [*FOUND, *(one.line for name, one in PRESETS.items() if name != "duplicate effect")])
def test_lines_that_were_found_and_famous_ones_hold(stepper: Stepper, line: str) -> None:
    replay(stepper, line)


def test_the_duplicate_effect_does_not_hold(stepper: Stepper) -> None:
    with pytest.raises(Broken, match="one effect per action") as error:
        replay(stepper, PRESETS["duplicate effect"].line)
    assert str(error.value).startswith("without=idempotency_key A*5 A! expire B*2\n")
