"""The explorer tries everything within its bounds, says what it came to, and its schedules are those of the lanes."""

from __future__ import annotations

import atexit
import itertools
import json
import logging
import multiprocessing
import os
import random
import re
import secrets
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from agentflow import Database, Engine
from agentflow.lab.broken.catalogue import GUARDS, engine_class
from agentflow.lab.explorer.answer_cache import AnswerCache, canonical_text, comparable
from agentflow.lab.explorer.exchange import DEAD
from agentflow.lab.explorer.explore import ExplorerError, explore
from agentflow.lab.explorer.own_process import SearchProgress
from agentflow.lab.explorer.report import Exploration
from agentflow.lab.explorer.search import ExplorerState, Rules
from agentflow.lab.explorer.trace import walked
from agentflow.lab.explorer.transitions import DEAD_HOLDER, Happened
from agentflow.lab.history.canonical import agreed, canonical
from agentflow.lab.laboratory.laboratory import PATIENT
from agentflow.lab.pictures.timeline import timeline
from agentflow.lab.schedule.grammar import Move, Schedule, parse
from agentflow.lab.schedule.lane_set import LaneKind
from agentflow.lab.schedule.stepper import Stepper
from agentflow.lab.verify.invariants import Mover, Transition, violations
from agentflow.lab.verify.snapshot import Rows, read_rows
from tests.conftest import drop, rows
from tests.support.helpers import eventually
from tests.support.orders import raises_after_its_payment, steps_fail
from tests.support.programs import ROOT, started

SMALL = {"crashes": 1, "expiries": 1, "lost_replies": 0}
LOST = {"crashes": 1, "expiries": 1, "lost_replies": 1}
LABEL = re.compile(r"[A-D][.\d]+\.\d+")  # with which a varying model tells who asked: on a lane "A1.2"


@pytest.fixture(scope="module")
def everything(url: str) -> Exploration:
    """The real engine within the default bounds, its whole space explored once."""
    return explore(Engine(Database(url, "unused")), reduce=False)


@pytest.fixture
def lab(engine: Engine) -> Iterator[Engine]:
    """An engine whose leases end only by a move."""
    own = Engine(engine.database, policy=PATIENT)
    yield own
    own.world.database.close()


# -- what it says ------------------------------------------------------------------------------------------------------


def test_with_all_guards_on_the_space_is_exhausted_and_every_invariant_holds(everything: Exploration) -> None:
    found = everything
    assert found.ok and found.exhausted and found.findings == () and found.verdict == "holds"
    assert found.states > 5_000 and found.transitions > found.states and found.schedules > 1_000_000  # type: ignore[operator]
    assert found.statements < found.transitions / 10


@pytest.mark.long
def test_the_larger_bound_covers_a_hundred_million_schedules(lab: Engine) -> None:
    found = explore(lab, crashes=3, expiries=3, lost_replies=2)
    assert found.ok and found.schedules is not None and found.schedules > 100_000_000


def enumerated(rules: Rules, state: ExplorerState) -> Counter[str]:
    """How the schedules from a state on end, one by one, without merging states and without counting over the graph."""
    following = [
        (after, any(one.kind == "harm" for one, _ in happened.violations) if happened else False)
        for _, after, happened in rules.steps(state)
    ]
    if not following:
        return Counter([{"ready": "cut_off"}.get(end, end) for end in rules.world.ends(state.rows)])
    return sum((Counter(["harmful"]) if harm else enumerated(rules, after) for after, harm in following), Counter())


@pytest.mark.parametrize(
    "bounds",
    [
        SMALL, {"crashes": 0, "expiries": 1, "lost_replies": 1}, {**SMALL, "names": "shared"},
        {**SMALL, "without": ["idempotency_key"], "stop_at": "never"},
    ],
)  # fmt: skip
def test_the_number_of_schedules_and_how_they_end_is_that_of_walking_each_of_them(
    lab: Engine, bounds: dict[str, Any]
) -> None:
    found = explore(lab, **bounds, reduce=False)
    assert found.graph and found.ends and found.graph.counts()
    ends = enumerated(found.graph.rules, found.graph.rules.first)
    assert ends["completed"] and bool(ends["harmful"]) == ("without" in bounds)
    assert +Counter(found.ends) == ends and list(found.ends)[:4] == ["completed", "failed", "waiting", "cut_off"]
    assert found.schedules == sum(ends.values()) == found.graph.counts()[0]  # type: ignore[index]
    said = f"{found.schedules:,} distinct schedules: {ends['completed']:,} completed, 0 failed, 0 waiting"
    assert f"{said}, {ends['cut_off']:,} cut off by the bounds" in str(found)


def test_leaving_the_count_of_crashes_out_of_a_state_changes_no_schedule(lab: Engine) -> None:
    """With a budget of two it is kept, since a third take-over would spend it; two expiries do not."""
    kept = explore(Engine(lab.database, policy=replace(PATIENT, crash_budget=2)), crashes=1, lost_replies=0)
    left_out = explore(lab, crashes=1, lost_replies=0)
    assert kept.states > left_out.states
    assert (kept.ok, kept.schedules) == (True, left_out.schedules)


def test_a_spent_crash_budget_is_no_harm(lab: Engine) -> None:
    found = explore(Engine(lab.database, policy=replace(PATIENT, crash_budget=1)), crashes=1, lost_replies=0)
    assert found.ok and found.graph and found.ends and found.ends["failed"] > 0
    bench = found.graph.rules.world.cache
    assert any("CrashBudgetSpent" in text for text in map(bench.text, range(len(bench))))


def test_a_bound_that_was_hit_is_said(lab: Engine) -> None:
    by_time = explore(lab, time_limit=0.0)
    assert not by_time.exhausted and not by_time.ok and by_time.verdict == "unknown"
    assert str(by_time).startswith(
        "Not certified: not every schedule was tried; the search was stopped by the time limit.\nBounds: support_agent"
    )
    assert by_time.ends is None and "Schedules not counted: the search was stopped by the time limit." in str(by_time)
    assert "searched to a depth of 0 moves." in str(by_time)
    by_moves = explore(lab, moves=4)
    assert by_moves.stopped == "the bound of 4 moves" and by_moves.depth == 4 and by_moves.findings == ()


def test_the_report_is_json_text_and_html_and_tells_no_seconds_in_a_notebook(lab: Engine) -> None:
    found = explore(lab, without=["idempotency_key"], **SMALL)
    told_again = json.loads(json.dumps(found.to_dict()))
    assert told_again["findings"][0]["schedule"] == "without=idempotency_key A*5 expire B*2"
    assert told_again["ok"] is False and told_again["verdict"] == "harm"
    shown = found._repr_html_()
    assert "A*5 expire B*2" in shown and "&#x27;resolve-account&#x27;" in shown
    assert not repr(found).endswith("s.") and str(found).endswith(" s.")


def test_a_progress_bar_counts_states_on_standard_error(lab: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    found = explore(lab, progress=True, **SMALL)
    shown = capsys.readouterr()
    assert f"{found.states} states" in shown.err and shown.out == ""


def test_three_workers_are_explored_too(lab: Engine) -> None:
    two, three = (explore(lab, workers=number, crashes=0, expiries=1, lost_replies=0) for number in (2, 3))
    assert three.ok and three.schedules > two.schedules  # type: ignore[operator]


def test_nothing_of_an_exploration_is_left_in_the_database(lab: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = f"explore_{uuid.uuid4().hex[:8]}"
    monkeypatch.setattr("agentflow.lab.explorer.explore.new_name", lambda _: mine)
    explore(lab, **SMALL)
    with pytest.raises(ExplorerError):
        explore(type("Bad", (Engine,), {"claim_workflow": lambda *_, **__: 1 / 0}), **SMALL)
    left = rows(lab, "SELECT nspname FROM pg_namespace WHERE starts_with(nspname, :mine)", mine=mine)
    assert left == []
    assert read_rows(lab).workflows == ()


# -- the shortest ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "without", [("idempotency_key",), ("status_only",), ("claim_reads_first",), ("lease_never_expires",)]
)
def test_exhausting_everything_shorter_finds_nothing(lab: Engine, without: tuple[str, ...]) -> None:
    (finding,) = [one for one in explore(lab, without=without).findings if one.kind == "harm"]
    shorter = explore(lab, without=without, moves=finding.moves - 1)
    assert shorter.stopped == f"the bound of {finding.moves - 1} moves"
    assert [one for one in shorter.findings if one.kind == "harm"] == []


def test_no_schedule_of_seven_moves_doubles_an_effect_also_without_merging_states(lab: Engine) -> None:
    """Every schedule shorter than the shortest, walked one by one."""
    found = explore(lab, without=["idempotency_key"], moves=7, reduce=False)
    assert found.graph

    def walk(state: ExplorerState, left: int) -> Iterator[str]:
        for move, after, happened in found.graph.rules.steps(state) if left else ():  # type: ignore[union-attr]
            yield from (one.name for one, _ in (happened.violations if happened else ()) if one.kind == "harm")
            yield from walk(after, left - 1)
            assert isinstance(move, Move)

    assert list(walk(found.graph.rules.first, 7)) == []


# -- the same on lanes -------------------------------------------------------------------------------------------------


def sample(found: Exploration, count: int, seed: int = 1) -> list[Schedule]:
    """So many schedules to their ends, harmful ones too, drawn among all with equal chance."""
    assert found.graph and found.exhausted and not found.reduced
    counts, chance, graph = found.graph.counts(), random.Random(seed), found.graph
    assert counts

    def drawn() -> Iterator[Move]:
        number: int | None = 0
        while number is not None:
            harmful = [move for move, _, what in graph.rules.steps(graph.states[number]) if harms(what)]
            ways = [*graph.following[number], *((move, None) for move in harmful)]
            weights = [1 if target is None else counts[target] for _, target in ways]
            move, number = chance.choices(ways, weights)[0] if ways else (None, None)
            if move:
                yield move

    return [Schedule(found.setting, tuple(drawn())) for _ in range(count)]


def harms(happened: Happened | None) -> list[str]:
    return [one.name for one, _ in (happened.violations if happened else ()) if one.kind == "harm"]


def seen(history: list[dict[str, Any]]) -> list[Any]:
    return [agreed(entry) for entry in canonical(history)]


def disagreeing(found: Exploration, lab: Engine, schedules: list[Schedule], lanes: LaneKind = "thread") -> list[str]:
    """The schedules whose history, rows or verdict on lanes, where no states are merged, is another than the explorer says."""
    wrong = []
    assert found.graph
    rules, cache = found.graph.rules, found.graph.rules.world.cache
    with Stepper(lab, lanes=lanes) as stepper:
        for schedule in schedules:
            stepper.play(Schedule(schedule.setting, schedule.moves[:-1]))
            before, moved = read_rows(lab), stepper.move(schedule.moves[-1])[-1]
            walk, after = walked(rules, schedule.moves), read_rows(lab)
            mine = {one: [e for e in walk.history if e["workflow_id"] == one] for one in stepper.workflows}
            real = {one: lab.history(one) for one in stepper.workflows}
            there = canonical_text(as_explored(after, stepper, walk.state, rules), cache.keep_crashes)
            told = [LABEL.sub("somebody", text) for text in (there, cache.text(walk.state.rows))]
            at, own = moved.passed, [move.verb for move in schedule.moves if move.lane == schedule.moves[-1].lane]
            who = (at.worker, at.token, at.workflow, at.transaction) if at else ()
            mover = Mover(*who, ended=moved.ended, in_doubt=own[-2:-1] == ["lose_answer"])
            fell = [one.name for one, _ in violations(Transition(before, after, mover)) if one.kind == "harm"]
            if (
                any(seen(mine[one]) != seen(real[one]) for one in mine)
                or told[0] != told[1]
                or fell != harms(walk.happened)
            ):
                wrong.append(str(schedule))
    return wrong


def as_explored(rows: Rows, stepper: Stepper, state: ExplorerState, rules: Rules) -> Rows:
    """The rows of lanes, where a worker's name is new for each start, under the names that the explorer gives."""
    places = dict(zip(rules.lanes, state.lanes, strict=True))
    named = {
        lane.identity: rules.world.player.places[places[name]].program
        for name in rules.lanes
        if places[name] != DEAD and (lane := stepper._maker.lanes.known(name))
    }
    owners = (
        row | {"lease_owner": row["lease_owner"] and named.get(row["lease_owner"], DEAD_HOLDER)}
        for row in rows.workflows
    )
    return rows if stepper.setting.names == "shared" else replace(rows, workflows=tuple(owners))


def test_a_sample_of_thirty_schedules_agrees_on_thread_lanes(everything: Exploration, lab: Engine) -> None:
    assert disagreeing(everything, lab, sample(everything, 30, seed=4)) == []


def test_a_sample_of_thirty_schedules_agrees_on_process_lanes(everything: Exploration, lab: Engine) -> None:
    assert disagreeing(everything, lab, sample(everything, 30, seed=5), "process") == []


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("lanes", "number"), [("thread", 2000), ("process", 300)])
def test_thousands_of_schedules_agree(everything: Exploration, lab: Engine, lanes: LaneKind, number: int) -> None:
    assert disagreeing(everything, lab, sample(everything, number, seed=6), lanes) == []


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [*GUARDS, "key_from_position", "status_only", "name_is_owner"])
def test_two_hundred_schedules_of_a_broken_engine_agree(lab: Engine, name: str) -> None:
    found = explore(
        lab, without=[name], stop_at="never", reduce=False, names="shared" if name == "name_is_owner" else "unique"
    )
    assert disagreeing(found, lab, sample(found, 200, seed=8)) == []


@pytest.mark.parametrize(
    "options",
    [
        {"workflow": "approval_agent", **LOST}, {"names": "shared", **LOST}, {"model": "varying", **SMALL},
        {"retry": "look_up", **LOST},
        {"workflows": 2, "crashes": 0, "expiries": 1, "lost_replies": 0}, {"renewals": 1, **SMALL},
        {"workflow": "approval_agent", "payloads": 2, **SMALL}, {"without": ["lease_expiry"], **LOST},
        {"without": ["idempotency_key"], **SMALL, "stop_at": "never"}, {"lost_commits": 1, **SMALL},
    ],
    ids=str,
)  # fmt: skip
def test_schedules_agree_on_lanes_under_other_assumptions(lab: Engine, options: dict[str, Any]) -> None:
    found = explore(lab, **options, reduce=False)
    assert found.exhausted
    assert disagreeing(found, lab, sample(found, 6, seed=7)) == []


@pytest.mark.parametrize(
    "options",
    [
        {"without": ["idempotency_key"]}, {"without": ["key_from_position"]}, {"without": ["key_at_execution"]},
        {"without": ["acknowledge_after_tool"]}, {"without": ["fence_token", "lease_owner", "lease_expiry"]},
        {"forgettings": 1, **SMALL}, {"without": ["idempotency_key"], "retry": "look_up"},
    ],
    ids=str,
)  # fmt: skip
def test_what_the_explorer_found_happens_on_lanes_too(lab: Engine, options: dict[str, Any]) -> None:
    """The schedule is played, and the shared invariants, told the rows before and after its last move, see the same fall."""
    found = explore(lab, **options)
    finding = found.findings[0]
    with Stepper(lab) as stepper:
        stepper.play(Schedule(finding.schedule.setting, finding.schedule.moves[:-1]))
        last = parse(str(Schedule(finding.schedule.setting, finding.schedule.moves[-1:]))).moves[0]
        before, moved = read_rows(lab), stepper.move(last)[-1]
        at = moved.passed
        mover = Mover(at.worker, at.token, at.workflow, at.transaction, moved.ended) if at else Mover()
        fell = [(one.name, str(guilty)) for one, guilty in violations(Transition(before, read_rows(lab), mover))]
        assert (finding.invariant, finding.guilty) in fell
        assert seen(list(finding.history)) == seen(lab.history("request-1"))


def test_a_finding_is_drawn_as_it_is(lab: Engine) -> None:
    finding = explore(lab, without=["idempotency_key"]).findings[0]
    assert repr(timeline(list(finding.history))).endswith("one action intent, two effects")


def test_what_is_stuck_is_shown_by_the_moves_that_follow(lab: Engine) -> None:
    finding = explore(lab, without=["checkpoint_after_step"]).findings[0]
    assert (finding.invariant, finding.line) == ("no workflow is stuck", "without=checkpoint_after_step A*2 A!")
    with Stepper(lab) as stepper:
        stepper.play(finding.schedule.then(*finding.then))
        row = lab.get_workflow("request-1")
    assert row and row["status"] == "failed" and row["error"]["type"] == "TypeError"


# -- what is remembered ------------------------------------------------------------------------------------------------


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a platform without fork."""
    monkeypatch.setattr("agentflow.lab.explorer.own_process.CAN_FORK", False)


@pytest.mark.usefixtures("in_this_process")
def test_no_question_is_asked_twice_and_what_is_remembered_is_what_postgresql_says_again(lab: Engine) -> None:
    found = explore(lab, **SMALL)
    assert found.graph
    old = found.graph.rules.world.cache
    assert old.statements == len(old._memory)
    bench = AnswerCache(lab.database, old.keep_crashes)
    try:
        pending = {
            place.pending.question: place.pending for place in found.graph.rules.world.player.places if place.pending
        }
        for number, text, asks in random.Random(3).sample(sorted(old._memory), 60):
            before, statement = old._memory[number, text, asks], pending[asks]
            here = text.replace(old.database.schema, lab.database.schema)
            now = bench.ask(bench.number(old.rows(number)), statement.name, here, statement.params, asks)
            assert now.key == before.key
            assert bench.text(now.rows) == old.text(before.rows)
    finally:
        bench.close()


def test_measured_and_random_times_are_no_part_of_a_question() -> None:
    from datetime import timedelta

    one = comparable({"p_detail": '{"replayed": 2, "replay_ms": 1.25}', "p_delay": timedelta(hours=25), "p_value": "1"})
    other = comparable(
        {"p_detail": '{"replayed": 2, "replay_ms": 9.5}', "p_delay": timedelta(hours=29), "p_value": "1"}
    )
    assert one == other
    assert one != comparable(
        {"p_detail": '{"replayed": 3, "replay_ms": 1.25}', "p_delay": timedelta(hours=25), "p_value": "1"}
    )


# -- learners' engines -------------------------------------------------------------------------------------------------


class SendsTwice(Engine):
    """Calls the tool again under another key, to be sure."""

    def call_tool(self, claim: Any, intent: Any, tool: Any) -> Any:
        super().call_tool(claim, intent, tool)
        return super().call_tool(claim, type(intent)(**{**vars(intent), "idempotency_key": "again"}), tool)


class Stumbles(Engine):
    def acknowledge_action(self, claim: Any, *args: Any, **more: Any) -> Any:
        if claim.fence_token > 1:
            raise ZeroDivisionError("no such thing")
        return super().acknowledge_action(claim, *args, **more)


class ReadsTheClock(Engine):
    def checkpoint(self, claim: Any, step_id: str, value: Any = None, **more: Any) -> Any:
        return super().checkpoint(claim, step_id, {"at": time.time_ns()}, **more)


class Loops(Engine):
    def complete_workflow(self, claim: Any, result: Any, **more: Any) -> None:
        while True:
            pass


class Sleeps(Engine):
    def complete_workflow(self, claim: Any, result: Any, **more: Any) -> None:
        threading.Event().wait()


class SleepsLater(Engine):
    def acknowledge_action(self, claim: Any, *args: Any, **more: Any) -> Any:
        if claim.fence_token > 1:
            threading.Event().wait()
        return super().acknowledge_action(claim, *args, **more)


class Swallows(Engine):
    def complete_workflow(self, claim: Any, result: Any, **more: Any) -> None:
        while True:
            with suppress(BaseException):
                threading.Event().wait(0.01)


class Backtracks(Engine):
    def complete_workflow(self, claim: Any, result: Any, **more: Any) -> None:
        re.match("(a+)+$", "a" * 60 + "b")  # C code that keeps Python's lock until the end of time


class BacktracksLater(Engine):
    def acknowledge_action(self, claim: Any, *args: Any, **more: Any) -> Any:
        if claim.fence_token > 1:
            re.match("(a+)+$", "a" * 60 + "b")
        return super().acknowledge_action(claim, *args, **more)


class CallsForEver(Engine):
    def call_tool(self, claim: Any, intent: Any, tool: Any) -> Any:
        while True:
            super().call_tool(claim, intent, tool)


class ClaimsForEver(Engine):
    def claim_workflow(self, *args: Any, **more: Any) -> Any:
        while not (claim := super().claim_workflow(*args, **more)):
            pass
        return claim


@pytest.mark.parametrize("given", ["class", "instance"])
def test_an_engine_of_ones_own_is_explored(lab: Engine, given: str) -> None:
    own: Any = SendsTwice(lab.database, policy=PATIENT) if given == "instance" else SendsTwice
    finding = explore(own, **SMALL).findings[0]
    assert (finding.invariant, finding.line) == ("one effect per action", "A*6")


def test_a_class_without_guards_says_so_in_its_schedules(lab: Engine) -> None:
    kind = engine_class(["idempotency_key"])
    for given in (kind, kind(lab.database, policy=PATIENT)):
        assert explore(given, **SMALL).findings[0].line == "without=idempotency_key A*5 expire B*2"


def test_code_that_raises_is_named_with_the_schedule_that_led_there(lab: Engine) -> None:
    with pytest.raises(ExplorerError) as raised:
        explore(Stumbles, **SMALL)
    assert "After the schedule `A*4 expire B`: B.1, before tool resolve-account, went wrong" in str(raised.value)
    assert "ZeroDivisionError: no such thing (in acknowledge_action, line" in str(raised.value)


class Raises(Engine):
    def checkpoint(self, *_: Any, **__: Any) -> Any:
        raise KeyError("mine")


class Exits(Engine):
    def checkpoint(self, *_: Any, **__: Any) -> Any:
        sys.exit(3)


class WrongSignature(Engine):
    def checkpoint(self) -> None:  # type: ignore[override]
        pass


class Recurses(Engine):
    def complete_workflow(self, *args: Any, **more: Any) -> None:
        self.complete_workflow(*args, **more)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (Raises, "KeyError: 'mine' (in checkpoint, line "),
        (Exits, "SystemExit: 3 (in checkpoint, line "),
        (WrongSignature, "TypeError: WrongSignature.checkpoint() got an unexpected keyword argument"),
        (Recurses, "RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_an_engine_that_fails_undisturbed_is_named_with_its_error_and_not_certified(
    lab: Engine, own: type[Engine], said: str
) -> None:
    with pytest.raises(ExplorerError) as raised:
        explore(own, **SMALL)
    assert str(raised.value).startswith("An undisturbed run (schedule `A*`) goes wrong: A.1, before ")
    assert f"went wrong: {said}" in str(raised.value)


# -- what it certifies -------------------------------------------------------------------------------------------------


def readme_refund() -> Any:
    """The function that the README shows."""
    code = (ROOT / "README.md").read_text(encoding="utf-8").partition("\ndef refund(")[2].partition("\n\n\n")[0]
    names: dict[str, Any] = {}
    exec(f"def refund({code}", names)
    return names["refund"]


def raises_with_escapes(run: Any, told: Any) -> Any:
    raise ValueError(f"no such\n\x1b[31maccount {'x' * 5000}")


def waits(run: Any, told: Any) -> Any:
    for number in itertools.count():
        run.wait_for_event(f"wait-{number}", f"never-{number}")


_TYPE_ERROR = (
    "request-1 fails: StepFailed: Workflow 'request-1', step 'decide' failed for good: TypeError: string indices must"
)


@pytest.mark.parametrize(
    ("name", "function", "said"),
    [
        ("refund", readme_refund(), _TYPE_ERROR),
        ("mine", raises_with_escapes, "request-1 fails: ValueError: no such\\n\\u001b[31maccount xxx"),
        ("mine", raises_after_its_payment, "request-1 fails: KeyError: 'paid', at `raise KeyError(\"paid\")`. Nothing was"),
        ("mine", steps_fail, "step 'divide' failed for good: ZeroDivisionError: division by zero, at `return run.step("),
        ("support_agent", waits, "request-1 waits for 'never-20' for ever. Nothing was explored"),
    ],
)  # fmt: skip
def test_a_workflow_that_does_not_complete_undisturbed_is_not_certified(
    lab: Engine, name: str, function: Any, said: str
) -> None:
    found = explore(Engine(lab.database, workflows={name: function}), workflow=name)
    first, bounds = found.lines()
    assert first.startswith("Not certified: undisturbed (schedule `A*`), request-1 ") and said in first
    assert 'It was given "I forgot my password' in first and len(first) < 900 and first.isprintable()
    assert bounds.startswith(f"Bounds: {name}, 1 workflow, 2 workers; crashes 2, expiries 2, lost replies 1")
    assert (found.ok, found.exhausted, found.verdict, found.findings, found.ends) == (False, False, "unknown", (), None)
    assert found.to_dict()["problem"] == found.problem == first and "Exhausted" not in str(found) + found._repr_html_()
    assert ('say expect="failed"' in first) == (function is not waits)


def test_the_second_of_two_workflows_counts_too(lab: Engine) -> None:
    def first_only(run: Any, told: str) -> Any:
        return told.index("password")

    found = explore(Engine(lab.database, workflows={"mine": first_only}), workflow="mine", workflows=2, **SMALL)
    assert not found.ok and "request-2 fails: ValueError: substring not found" in found.problem


@pytest.mark.parametrize(
    ("function", "about"),
    [
        (
            steps_fail,
            "As expected, the workflow fails: StepFailed. The workflow has no side effects: no schedule plans an ",
        ),
        (raises_after_its_payment, "As expected, the workflow fails: KeyError."),
    ],
)
def test_a_workflow_that_is_meant_to_fail_is_explored(lab: Engine, function: Any, about: str) -> None:
    found = explore(Engine(lab.database, workflows={"mine": function}), workflow="mine", expect="failed", **SMALL)
    assert found.ok and found.ends and found.ends["failed"] > found.ends["completed"] == 0
    assert found.lines()[0].startswith(f"Exhausted: every invariant holds. {about}")


def test_a_workflow_that_completes_although_it_should_fail_is_not_certified(lab: Engine) -> None:
    found = explore(lab, expect="failed", **SMALL)
    assert not found.ok and found.problem.startswith("Not certified: undisturbed (schedule `A*`), request-1 completes.")


class Forgives(Engine):
    """A workflow that fails is completed by whoever takes it over."""

    def fail_workflow(self, claim: Any, *args: Any, **more: Any) -> None:
        if claim.fence_token == 1:
            return super().fail_workflow(claim, *args, **more)
        return self.complete_workflow(claim, None)


class Cancels(Engine):
    """A workflow that is taken over is cancelled."""

    def claim_workflow(self, *args: Any, **more: Any) -> Any:
        claim = super().claim_workflow(*args, **more)
        if claim and claim.fence_token > 1:
            self.cancel_workflow(claim.workflow_id)
        return claim


class FailsOtherwise(Engine):
    """A workflow that fails does so with another error when it was taken over."""

    def fail_workflow(self, claim: Any, error: Any, *args: Any, **more: Any) -> None:
        super().fail_workflow(claim, error if claim.fence_token == 1 else {**error, "type": "Other"}, *args, **more)


@pytest.mark.parametrize(
    ("own", "function", "expect", "guilty"),
    [
        (Forgives, raises_after_its_payment, "failed", "ends completed, whoever works on it; undisturbed it ends failed"),
        (FailsOtherwise, raises_after_its_payment, "failed", "fails whoever works on it (Other: 'paid')"),
        (Cancels, lambda run, told: run.step("a", lambda: 1), "completed", "ends cancelled, whoever works on it; undisturbed"),
    ],
)  # fmt: skip
def test_a_workflow_that_ends_otherwise_after_a_crash_is_found(
    lab: Engine, own: type[Engine], function: Any, expect: Any, guilty: str
) -> None:
    found = explore(own(lab.database, workflows={"mine": function}), workflow="mine", expect=expect, **SMALL)
    assert found.verdict == "harm" and guilty in found.findings[0].guilty, str(found)


@pytest.mark.parametrize(
    ("function", "about"),
    [
        (lambda run, told: 1, "The workflow has no side effects: no schedule plans an action."),
        (lambda run, told: run.step("a", lambda: 1), "The workflow has no side effects: no schedule plans an action."),
        (lambda run, told: run.side_effect("pay", key="pay"), ""),
    ],
)
def test_a_function_without_side_effects_is_certified_as_such(lab: Engine, function: Any, about: str) -> None:
    found = explore(Engine(lab.database, workflows={"mine": function}), workflow="mine", **SMALL)
    assert found.ok and found.lines()[0] == f"Exhausted: every invariant holds. {about}".rstrip()


def test_bounds_within_which_nothing_comes_to_its_end_certify_nothing(lab: Engine) -> None:
    own = Engine(lab.database, workflows={"mine": lambda run, told: run.wait_for_event("wait", "never")})
    found = explore(own, workflow="mine", payloads=0, **SMALL)
    assert found.exhausted and not found.ok and found.ends and found.ends["waiting"] and not found.ends["completed"]
    assert found.problem.startswith("Not certified: within these bounds no workflow comes to its end.")
    assert "payloads 0; event 'never' brings true." in found.lines()[1]
    for none in ({"workers": 0}, {"workers": 5}, {"workflows": 0}, {"crashes": -1}, {"expect": "cancelled"}):
        with pytest.raises(ExplorerError, match="An exploration has 1 to 4 workers"):
            explore(lab, **none)  # type: ignore[arg-type]


# -- code that goes wrong ----------------------------------------------------------------------------------------------


def test_code_that_raises_only_for_a_worker_that_takes_over_later_is_named_too(lab: Engine) -> None:
    """Within these bounds nobody takes over; whether a workflow is stuck asks what would happen if somebody did."""
    with pytest.raises(ExplorerError, match="ZeroDivisionError: no such thing"):
        explore(Stumbles, crashes=0, expiries=0, lost_replies=0)


def test_code_that_is_no_function_of_its_answers_is_named(lab: Engine) -> None:
    with pytest.raises(ExplorerError, match="must be a function of its answers: no clock"):
        explore(ReadsTheClock, **SMALL)


def test_code_that_never_ends_is_interrupted_and_named(lab: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentflow.lab.explorer.explore.STUCK_SECONDS", 0.5)
    for own in (Loops, Sleeps, Swallows, Backtracks):
        with pytest.raises(
            ExplorerError, match=r"no transaction was reached within 0\.5 s\. Is there an endless loop or a sleep"
        ):
            explore(own, **SMALL)


def test_code_that_never_ends_is_interrupted_in_another_thread_too(
    lab: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentflow.lab.explorer.explore.STUCK_SECONDS", 0.5)
    with ThreadPoolExecutor() as executor:
        for own in (Loops, Swallows, Backtracks):
            with pytest.raises(ExplorerError, match=r"no transaction was reached within 0\.5 s"):
                executor.submit(lambda own=own: explore(own, **SMALL)).result()


@pytest.mark.parametrize("own", [CallsForEver, ClaimsForEver])
def test_code_that_asks_for_ever_is_named(lab: Engine, own: type[Engine]) -> None:
    with pytest.raises(ExplorerError, match="more than 200 statements in one run"):
        explore(own, **SMALL)


def test_code_that_never_ends_is_named_with_its_schedule_and_worker(
    lab: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentflow.lab.explorer.explore.STUCK_SECONDS", 0.5)
    with pytest.raises(ExplorerError) as undisturbed:
        explore(Backtracks, **SMALL)
    assert str(undisturbed.value).startswith(
        "An undisturbed run (schedule `A*`) goes wrong: A.1, before acknowledge resolve-account, went wrong: no transaction"
    )
    with pytest.raises(ExplorerError) as later:
        explore(BacktracksLater, **SMALL)
    assert re.match(
        r"After the schedule `A.*`: [AB]\.\d, before tool resolve-account, went wrong: no tr", str(later.value)
    )


@pytest.mark.usefixtures("in_this_process")
def test_without_fork_the_deadline_is_looked_at_between_transactions(lab: Engine) -> None:
    assert explore(lab, **SMALL).ok
    assert explore(lab, time_limit=0.0).stopped == "the time limit"


def test_a_process_that_ends_unasked_is_named_with_its_place_and_its_exit_code(lab: Engine) -> None:
    class Leaves(Engine):
        def complete_workflow(self, *_: Any, **__: Any) -> None:
            os._exit(3)

    class Dies(Engine):
        def complete_workflow(self, *_: Any, **__: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    place = "before acknowledge resolve-account, went wrong: "
    with pytest.raises(ExplorerError, match=place + r"its process ended with exit code 3\. Does it call os\._exit"):
        explore(Leaves, **SMALL)
    with pytest.raises(ExplorerError, match=place + "its process was ended by SIGKILL"):
        explore(Dies, **SMALL)


def leaves(run: Any, told: Any) -> Any:
    run.step("look", lambda: 1)
    return run.step("go home", lambda: os._exit(4))


def forks(run: Any, told: Any) -> Any:
    return run.step("divide", lambda: os.fork() and None)


def forks_and_swallows(run: Any, told: Any) -> Any:
    """The copy would come back as a second explorer."""

    def divide() -> Any:
        with suppress(BaseException):
            return os.waitpid(os.fork(), 0)[1]

    return run.step("divide", divide)


def starts_a_process(run: Any, told: Any) -> Any:
    def divide() -> None:
        process = multiprocessing.get_context("fork").Process(target=os.getpid)
        process.start()
        process.join()

    return run.step("divide", divide)


def spins(run: Any, told: Any) -> Any:
    return run.step("turn", lambda: threading.Event().wait())


@pytest.mark.parametrize(
    ("mine", "said"),
    [
        (leaves, r"ended with exit code 4\. .* is 'go home' of workflow 'mine'\. Fix it, and explore again\."),
        (spins, r"no transaction was reached within 0\.5 s\. .* is 'turn' of workflow 'mine'\. Fix it"),
        *((each, r"it called os\.fork\(\), .* is 'divide' of workflow 'mine'\. Fix it")
          for each in (forks, forks_and_swallows, starts_a_process)),
    ],
)  # fmt: skip
def test_a_step_that_ends_or_copies_or_keeps_its_process_is_named(
    lab: Engine, monkeypatch: pytest.MonkeyPatch, mine: Any, said: str
) -> None:
    monkeypatch.setattr("agentflow.lab.explorer.explore.STUCK_SECONDS", 0.5 if mine is spins else 600.0)
    with pytest.raises(ExplorerError, match=said) as raised:
        explore(Engine(lab.database, workflows={"mine": mine}), workflow="mine", **SMALL)
    assert str(raised.value).startswith("An undisturbed run (schedule `A*`) goes wrong: ")


def test_a_step_that_leaves_only_for_a_successor_is_named_with_the_schedule_that_led_there(lab: Engine) -> None:
    class LeavesLater(Engine):
        def acknowledge_action(self, claim: Any, *args: Any, **more: Any) -> Any:
            if claim.fence_token > 1:
                os._exit(5)
            return super().acknowledge_action(claim, *args, **more)

    with pytest.raises(ExplorerError, match="exit code 5") as raised:
        explore(LeavesLater, **SMALL)
    assert re.match(r"After the schedule `A.*`: [AB]\.\d, before tool resolve-account, went wrong: ", str(raised.value))


def test_the_explorers_process_prints_nothing_and_leaves_nothing_behind(
    lab: Engine, capfd: pytest.CaptureFixture[str]
) -> None:
    """Explored code may print, log and warn; no exit handler of the parent runs twice."""

    class Chatters(Engine):
        def complete_workflow(self, claim: Any, result: Any, **more: Any) -> None:
            print("complete")
            os.write(2, b"complete")
            logging.getLogger("agentflow").error("complete")
            super().complete_workflow(claim, result, **more)

    atexit.register(os.write, 1, b"goodbye")
    try:
        assert explore(Chatters, **SMALL).ok
    finally:
        atexit.unregister(os.write)
    assert capfd.readouterr() == ("", "")


BACKGROUND = """
import os, signal, sys, threading
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts a background process
from agentflow import Database, Engine
from agentflow.lab.explorer import explore as explorer

class Sleeps(Engine):
    def complete_workflow(self, claim, result, **more):
        with open(sys.argv[3], "w") as file:
            file.write(str(os.getpid()))
        threading.Event().wait()

for explorer.STUCK_SECONDS in (0.5, 600.0):
    try:
        explorer.explore(Sleeps(Database(sys.argv[1], "unused")), schema=sys.argv[2], time_limit=600.0)
    except explorer.ExplorerError as error:
        print(error, flush=True)
"""


def test_the_explorers_process_needs_no_sigint_and_ends_with_its_parent(url: str, tmp_path: Path) -> None:
    name, file = f"t_{uuid.uuid4().hex[:12]}", tmp_path / "pid"
    with started([url, name, str(file)], code=BACKGROUND) as parent:
        assert parent.stdout
        assert "no transaction was reached within 0.5 s" in parent.stdout.readline()
        first = int(file.read_text())
        child = eventually(lambda: (text := file.read_text()) and int(text) != first and int(text), 60)
        parent.kill()
    eventually(lambda: not is_running(first) and not is_running(child))
    drop(Database(url, name))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_slow_code_is_stopped_by_the_time_limit_and_not_long_after_it(
    lab: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asleep for ever only where a worker took over, which no undisturbed run does."""
    found = explore(SleepsLater, **SMALL, time_limit=1.0)
    assert found.stopped == "the time limit" and not found.ok


def test_what_was_found_outlives_code_that_still_runs_when_the_time_is_over(
    lab: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sleeps for ever where its second call gets no reply, which comes after the harm that this call does.

    The time is over as soon as it sleeps.
    """
    made: list[SearchProgress] = []
    real = SearchProgress.shared
    monkeypatch.setattr(SearchProgress, "shared", lambda deadline: made.append(real(deadline)) or made[-1])

    class SendsTwiceAndSleeps(SendsTwice):
        def call_tool(self, claim: Any, intent: Any, tool: Any) -> Any:
            super(SendsTwice, self).call_tool(claim, intent, tool)
            with suppress(TimeoutError):
                return super(SendsTwice, self).call_tool(claim, replace(intent, idempotency_key="again"), tool)
            made[-1].deadline = made[-1].code_since
            threading.Event().wait()

    monkeypatch.setattr("agentflow.lab.explorer.explore.STUCK_SECONDS", 600.0)
    found = explore(SendsTwiceAndSleeps, **LOST, stop_at="never")
    assert (found.verdict, found.stopped, found.graph) == ("harm", "the time limit", None)
    whole = explore(SendsTwice, **LOST).findings[0]
    assert found.findings[0] == whole and whole.kind == "harm"
    assert whole.line == "A*6" and whole.history


def test_an_interruption_of_the_engine_s_own_is_named_and_ctrl_c_is_not_swallowed(lab: Engine) -> None:
    class Interrupts(Engine):
        def checkpoint(self, *_: Any, **__: Any) -> Any:
            raise KeyboardInterrupt

    class PressesAndSwallows(Engine):
        """Runs in the explorer's own process; the terminal interrupts that and its parent."""

        def checkpoint(self, claim: Any, *args: Any, **more: Any) -> Any:
            with suppress(BaseException):
                os.kill(os.getppid(), signal.SIGINT)
            return super().checkpoint(claim, *args, **more)

    with pytest.raises(ExplorerError, match=r"went wrong: KeyboardInterrupt:  \(in checkpoint, line"):
        explore(Interrupts, **SMALL)
    with pytest.raises(KeyboardInterrupt):
        explore(PressesAndSwallows, **SMALL)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("in_this_process")
def test_an_engine_that_asks_from_a_thread_of_its_own_is_refused_in_one_sentence(
    lab: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python prints nothing for a thread that ends by SystemExit."""
    ended: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", ended.append)

    class Threaded(Engine):
        def checkpoint(self, *args: Any, **more: Any) -> Any:
            done: list[Any] = []
            thread = threading.Thread(target=lambda: done.append(super(Threaded, self).checkpoint(*args, **more)))
            thread.start()
            thread.join()
            return done[0]

    with pytest.raises(ExplorerError, match="it asks PostgreSQL from another thread"):
        explore(Threaded, **SMALL)
    assert [one.exc_type for one in ended] == [SystemExit]


def test_an_engine_that_reads_the_history_is_refused(lab: Engine) -> None:
    class LooksBack(Engine):
        def complete_workflow(self, claim: Any, result: Any, **more: Any) -> None:
            if self.history(claim.workflow_id):
                super().complete_workflow(claim, result, **more)

    with pytest.raises(ExplorerError, match="which belong to the past, not to a state"):
        explore(LooksBack, **SMALL)


def reading(sql: str) -> type[Engine]:
    """An engine that calls the tool under another key if its own statement finds something."""

    class Reads(Engine):
        def __init__(self, database: Database, **options: Any) -> None:
            text = sql.format(s=f'"{database.schema}"', w=f'"{database.schema}_world"')
            super().__init__(database.with_texts({"mine": text}), **options)

        def call_tool(self, claim: Any, intent: Any, tool: Any) -> Any:
            if self.database.read("mine", {"p_workflow": claim.workflow_id, "p_worker": claim.worker_id})[0]["hit"]:
                intent = replace(intent, idempotency_key=intent.idempotency_key + "-retry")
            return super().call_tool(claim, intent, tool)

    return Reads


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT recovery_started_at IS NOT NULL AS hit FROM {s}.workflows WHERE id = %(p_workflow)s",
        "SELECT bool_or(worker <> %(p_worker)s) AS hit FROM {s}.steps WHERE workflow_id = %(p_workflow)s",
        "SELECT bool_or(worker <> %(p_worker)s) AS hit FROM {s}.action_intents WHERE workflow_id = %(p_workflow)s",
        "SELECT bool_or(attempts > 1) AS hit FROM {w}.tool_ledger WHERE workflow_id = %(p_workflow)s",
        "SELECT entries > 6 AS hit FROM {s}.workflows WHERE id = %(p_workflow)s",
    ],
)
def test_an_engine_with_a_statement_of_its_own_is_refused_because_states_leave_out_what_it_may_read(
    lab: Engine, sql: str
) -> None:
    with pytest.raises(ExplorerError, match="mine is not one of the statements by which AgentFlow runs a workflow"):
        explore(reading(sql), **SMALL)


class Inspects(Engine):
    def complete_workflow(self, claim: Any, result: Any, **more: Any) -> None:
        self.get_workflow(claim.workflow_id)
        super().complete_workflow(claim, result, **more)


class Edits(Engine):
    def __init__(self, database: Database, **options: Any) -> None:
        super().__init__(database.with_texts({"complete": database.sql("complete") + " -- mine"}), **options)


class Doubles(Engine):
    def complete_workflow(self, claim: Any, result: Any, **more: Any) -> None:
        self.database.twin().check()


@pytest.mark.parametrize(("own", "name"), [(Inspects, "inspect"), (Edits, "complete"), (Doubles, "check")])
def test_an_engine_that_inspects_rows_or_changes_a_statement_is_refused(
    lab: Engine, own: type[Engine], name: str
) -> None:
    with pytest.raises(ExplorerError, match=f"{name} is not one of the statements by which AgentFlow runs a workflow"):
        explore(own, **SMALL)


class UsesSqlalchemy(Engine):
    def complete_workflow(self, claim: Any, result: Any, **more: Any) -> None:
        with suppress(BaseException), self.database.alchemy.connect():
            pass
        super().complete_workflow(claim, result, **more)


class Connects(Engine):
    def complete_workflow(self, claim: Any, result: Any, **more: Any) -> None:
        self.database.session()


class ReadsBySql(Engine):
    def complete_workflow(self, claim: Any, result: Any, **more: Any) -> None:
        self.database.read_sql("SELECT count(*) FROM history")


class Listens(Engine):
    def complete_workflow(self, claim: Any, result: Any, **more: Any) -> None:
        self.world.database.listen()


class DoublesToListen(Engine):
    def complete_workflow(self, claim: Any, result: Any, **more: Any) -> None:
        self.database.twin().listen()


@pytest.mark.parametrize("own", [UsesSqlalchemy, Connects, ReadsBySql, Listens, DoublesToListen])
def test_an_engine_that_asks_on_a_connection_of_its_own_is_refused(lab: Engine, own: type[Engine]) -> None:
    with pytest.raises(
        ExplorerError, match="it opens its own connection to PostgreSQL, so the explorer cannot restore the rows"
    ):
        explore(own, **SMALL)


@pytest.mark.parametrize("chance", [lambda: random.random(), lambda: secrets.token_hex(4), lambda: uuid4()])
def test_a_workflow_that_waits_for_another_event_in_each_claim_gets_stuck(lab: Engine, chance: Any) -> None:
    def waits_for_ever(run: Any, told: Any) -> Any:
        return run.wait_for_event("never", str(chance()))

    found = explore(Engine(lab.database, workflows={"mine": waits_for_ever}), workflow="mine", **SMALL)
    assert not found.ok and "No workflow is stuck" in found.problem and found.findings[0].line == "workflow=mine A A!"


def test_a_workflow_that_asks_for_something_else_by_the_clock_is_refused(lab: Engine) -> None:
    def by_the_clock(run: Any, told: Any) -> Any:
        return run.side_effect("charge", key=f"charge-{time.time_ns()}")

    with pytest.raises(ExplorerError, match=r"went wrong: the same answers led to .*charge-.* no clock"):
        explore(Engine(lab.database, workflows={"mine": by_the_clock}), workflow="mine", **SMALL)


def test_a_workflow_of_ones_own_is_explored_with_the_events_it_waits_for(lab: Engine) -> None:
    def mine(run: Any, told: Any) -> Any:
        first = run.step("look", lambda: 1)
        yes = run.wait_for_event("asked", "answer")
        run.side_effect("mail", key="mail", arguments={"yes": yes})
        return first

    own = Engine(lab.database, workflows={"mine": mine}, policy=PATIENT)
    found = explore(own, workflow="mine", **SMALL, reduce=False)
    assert found.ok
    assert any(move.verb == "deliver" for schedule in sample(found, 5) for move in schedule.moves)
    assert explore(own, workflow="mine", without=["idempotency_key"]).verdict == "harm"


def test_a_key_that_each_worker_makes_up_anew_is_found(lab: Engine) -> None:
    """Each claim draws other UUIDs, also the second one of the same worker, and each exploration the same."""

    def mine(run: Any, told: Any) -> Any:
        return run.side_effect("charge", key=f"charge-{uuid.uuid4()}", arguments=told)

    own = Engine(lab.database, workflows={"mine": mine}, policy=PATIENT)
    for bounds in (SMALL, {"workers": 1, "crashes": 0, "expiries": 1}):
        first, again = (explore(own, workflow="mine", **bounds).findings for _ in range(2))
        assert [one.invariant for one in first] == ["no workflow is stuck"]
        assert "recorded planned action 'charge-" in str(first[0])
        assert str(first[0]) == str(again[0])


def test_a_workflow_that_nobody_can_finish_undisturbed_is_refused(lab: Engine) -> None:
    class NeverCompletes(Engine):
        def complete_workflow(self, claim: Any, result: Any, **more: Any) -> None:
            self.release_lease(claim)

    with pytest.raises(ExplorerError, match="leaves its workflow ready"):
        explore(NeverCompletes, **SMALL)


def test_dead_lanes_are_part_of_a_state(everything: Exploration) -> None:
    assert everything.graph
    assert any(DEAD in state.lanes for state in everything.graph.states)
