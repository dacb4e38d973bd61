"""Soaks: real processes, real kills, and a report that must also be able to say no."""

from __future__ import annotations

import gc
import multiprocessing
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from agentflow import Claim, Database, Engine, migrate
from agentflow.errors import BadSchedule, NotALaboratory, SoakError, UnfaithfulValue
from agentflow.lab.crashes.kill_plan import GAP, plan_kills
from agentflow.lab.crashes.soak import soak
from agentflow.lab.crashes.soak_report import SoakReport
from agentflow.model import ActionIntent, Tool
from agentflow.requests import read_requests
from tests.conftest import rows
from tests.support import orders
from tests.support.helpers import Unlucky
from tests.support.lane_workflows import trip

DATA = Path(__file__).resolve().parents[3] / "data" / "support_requests.csv"


def some(count: int) -> Iterator[str]:
    return (f"request {number}: I cannot login" for number in range(count))


OWN = random.randrange(10**8, 10**9)  # a seed is in a soak's schema's name; others may soak beside this process


def schemas(url: str) -> set[str]:
    """The schemas of this process's soaks."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    with engine.connect() as connection:
        found = (
            connection.execute(
                text("SELECT nspname FROM pg_namespace WHERE nspname LIKE :own"), {"own": f"soak%{OWN}%"}
            )
            .scalars()
            .all()
        )
    engine.dispose()
    return set(found)


def drop(url: str, schema: str) -> None:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))
    with engine.begin() as connection:
        connection.execute(text(f'DROP SCHEMA "{schema}", "{schema}_world" CASCADE'))
    engine.dispose()


def assert_well(report: SoakReport, total: int) -> None:
    """The promise, figure by figure; `ok` is not believed, it is compared."""
    assert report.problems == []
    assert (report.workflows_total, report.workflows_completed, report.workflow_completion_rate) == (total, total, 1.0)
    assert (report.business_effects, report.duplicate_business_effects, report.lost_workflows) == (total, 0, 0)
    assert report.tool_execution_attempts - report.business_effects == report.repeated_calls
    assert report.ok and report.to_dict()["ok"]


class WithoutKey(Engine):
    """The mistake: the tool is called without the idempotency key."""

    def call_tool(self, claim: Claim, intent: ActionIntent, tool: Tool) -> Any:
        return super().call_tool(claim, replace(intent, idempotency_key=None), tool)


class WithoutTool(Engine):
    """The mistake: the answer is made up and the tool never called."""

    def call_tool(self, claim: Claim, intent: ActionIntent, tool: Tool) -> Any:
        return super().call_tool(claim, intent, lambda _call: {"account_unlocked": True})


class Failing(Engine):
    """The mistake: every third workflow is given up."""

    def complete_workflow(self, claim: Claim, result: Any, *, detail: str | None = None) -> None:
        if claim.workflow_id.endswith("3"):
            return self.fail_workflow(claim, {"type": "Error", "message": "given up", "traceback": ""})
        return super().complete_workflow(claim, result, detail=detail)


class Deaf(Engine):
    """The mistake: its workers never see any work."""

    def claim_workflow(self, worker_id: str, lease_seconds: float | None = None, *, names: Any = None) -> None:
        return None


class Broken(Engine):
    """The mistake: its workers end as soon as they begin."""

    def claim_workflow(self, worker_id: str, lease_seconds: float | None = None, *, names: Any = None) -> None:
        raise SystemExit(9)


def test_killed_workers_lose_nothing_double_nothing_and_leave_no_schema(url: str) -> None:
    report = soak(url, some(60), kills=20, seed=OWN)
    assert_well(report, 60)
    assert (report.kills_planned, report.kills_happened, len(report.kills)) == (20, 20, 20)
    assert report.processes_killed >= 20
    assert report.kills_in_gap >= 2 and report.repeated_calls >= report.kills_in_gap
    assert report.recoveries >= 20 - sum(where == "after complete" for _, where in report.kills)
    assert all(report.recovery_ms[part] is not None for part in ("detect", "claim", "replay", "re_execute", "span"))
    assert schemas(url) == set()


def test_two_soaks_with_one_seed_kill_the_same_set(url: str) -> None:
    first, second = (soak(url, some(30), kills=10, seed=7, workers=workers) for workers in (4, 2))
    assert first.kills == second.kills
    assert {request for request, _ in first.kills} == set(plan_kills(7, 30, 10))
    assert_well(first, 30)
    assert_well(second, 30)


def test_more_kills_than_requests_all_happen(url: str) -> None:
    report = soak(url, some(6), kills=15, seed=3)
    assert_well(report, 6)
    assert report.kills_happened == 15


def test_leases_that_run_out_by_themselves_cancel_no_planned_kill(url: str) -> None:
    report = soak(url, some(20), kills=20, seed=5, workers=6, make_engine=Unlucky)
    assert_well(report, 20)
    # One more may strike who lost his lease between his look at the row and his end: who looks does not hold the row.
    assert report.kills_happened >= 20


def test_workers_killed_at_random_lose_nothing_and_double_nothing(url: str) -> None:
    report = soak(url, some(60), kills=0, random_kills=15, seed=1)
    assert_well(report, 60)
    assert report.random_kills == 15 and report.processes_killed >= 15
    assert report.recoveries >= 5 and report.recovery_ms["detect"] is not None


def test_an_engine_without_idempotency_key_is_caught(url: str) -> None:
    report = soak(url, some(20), kills=10, seed=1, make_engine=WithoutKey)
    assert report.kills_in_gap >= 1
    assert report.duplicate_business_effects >= 1
    assert not report.ok and any("doubled" in problem for problem in report.problems)


def test_an_engine_that_never_calls_the_tool_is_caught(url: str) -> None:
    report = soak(url, some(5), kills=0, workers=1, make_engine=WithoutTool)
    assert report.workflow_completion_rate == 1.0
    assert not report.ok and any("the world has 0 effects" in problem for problem in report.problems)


def test_an_engine_that_gives_workflows_up_is_caught(url: str) -> None:
    report = soak(url, some(5), kills=0, workers=1, make_engine=Failing)
    assert report.lost_workflows == 1
    assert not report.ok and any("not completed" in problem for problem in report.problems)


def test_a_soak_that_stands_still_names_what_is_stuck(url: str) -> None:
    with pytest.raises(SoakError, match=r"request-000000 \(ready, PENDING, token 0, held by nobody\)"):
        soak(url, some(3), kills=0, workers=1, stall_seconds=0.5, seed=OWN, make_engine=Deaf)
    assert schemas(url) == set()
    assert [one.name for one in multiprocessing.active_children() if one.name.startswith("soak.")] == []


@pytest.mark.parametrize("payload", [None, False])
def test_a_workflow_that_waits_gets_its_event_also_under_kills(url: str, payload: Any) -> None:
    given = {} if payload is None else {"events": {"approval": payload}}
    report = soak(url, some(3), workflow="approval_agent", workers=2, kills=2, seed=OWN, lease_seconds=0.5, **given)
    assert report.ok, report.problems
    assert (report.business_effects, report.events) == (3 if payload is None else 0, {"approval": payload is None})
    assert report.told()["events"] == f'{{"approval": {"true" if payload is None else "false"}}}'


def test_an_event_for_which_no_workflow_waited_is_a_problem(url: str) -> None:
    report = soak(url, some(1), workers=1, kills=0, seed=OWN, events={"aproval": 1})
    assert report.problems == [
        "no workflow waits for the event 'aproval', which was given a payload; they wait for none"
    ]


def test_workers_that_end_of_themselves_are_not_started_for_ever(url: str) -> None:
    with pytest.raises(SoakError, match="exited on their own, the last with exit code 9"):
        soak(url, some(3), kills=0, workers=1, make_engine=Broken)


def test_a_schema_that_exists_is_not_touched(url: str, engine: Engine) -> None:
    engine.create_workflow("mine", workflow_id="mine")
    with pytest.raises(NotALaboratory, match="already exists"):
        soak(url, some(3), kills=0, schema=engine.database.schema)
    assert engine.get_workflow("mine") is not None


def test_a_kept_schema_holds_the_rows(url: str) -> None:
    kept = f"soak_kept_{OWN}"
    report = soak(url, some(3), kills=1, schema=kept, keep=True)
    try:
        assert {kept, f"{kept}_world"} <= schemas(url) and report.schema == kept
    finally:
        drop(url, kept)


def test_a_soak_in_a_laboratory_empties_it_and_leaves_its_rows(engine: Engine) -> None:
    engine.create_workflow("left behind", workflow_id="old")
    report = soak(engine, some(4), workers=2, kills=2, seed=OWN, lease_seconds=0.5)
    assert_well(report, 4)
    assert report.schema == engine.database.schema
    found = rows(engine, "SELECT id, status FROM {s}.workflows ORDER BY id")
    assert found == [{"id": f"request-{n:06d}", "status": "completed"} for n in range(4)]


def test_numbers_that_make_no_sense_are_refused(url: str) -> None:
    for wrong in ({"workers": 0}, {"kills": -1}, {"kills": 1, "random_kills": 1}):
        with pytest.raises(SoakError, match="Nothing was started"):
            soak(url, some(1), **wrong)  # type: ignore[arg-type]
    with pytest.raises(SoakError, match="no request"):
        soak(url, some(0))


def test_a_bad_request_is_told_before_anything_starts(url: str) -> None:
    def requests() -> Iterator[str]:
        yield "good"
        raise ValueError("line 2 is bad")

    with pytest.raises(ValueError, match="line 2"):
        soak(url, requests(), seed=OWN)
    assert schemas(url) == set()


@pytest.mark.long
def test_the_issue_s_soak_kills_a_hundred_workers_twice_the_same(url: str) -> None:
    total = sum(1 for _ in read_requests(DATA))
    first, second = (soak(url, read_requests(DATA), workers=4, kills=100, seed=1) for _ in range(2))
    for report in (first, second):
        assert_well(report, total)
        assert report.kills_happened == 100
        assert sum(where in GAP for _, where in report.kills) == report.kills_in_gap >= 10
    assert first.kills == second.kills


@pytest.mark.long
def test_two_hundred_random_kills_twenty_of_them_in_the_middle_of_a_statement(url: str) -> None:
    total = sum(1 for _ in read_requests(DATA))
    report = soak(url, read_requests(DATA), workers=4, kills=0, random_kills=200, seed=1)
    assert_well(report, total)
    assert report.random_kills == 200
    assert report.kills_in_flight >= 20


@pytest.mark.long
def test_ten_thousand_lines_are_carried_and_never_all_held(url: str) -> None:
    alive = most = 0

    class Text(str):
        def __init__(self, _: str) -> None:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    report = soak(url, (Text(request) for request in some(10_000)), kills=50, seed=1)
    gc.collect()
    assert_well(report, 10_000)
    assert most < 10


def test_a_soak_touches_no_schema_that_it_did_not_make(url: str, schema: Any) -> None:
    """Another laboratory may be called like the world that a soak would make for itself."""
    migrate(theirs := schema(), laboratory=True)
    name = f"{theirs.schema}_w"[:40]
    migrate(world := Database(url, f"{name}_world"), laboratory=True)
    try:
        Engine(world).create_workflow("password", workflow_id="theirs")
        with pytest.raises(NotALaboratory, match="already exists"):
            soak(url, ["login"], schema=name, workers=1, kills=0)
        assert rows(Engine(world), "SELECT id FROM {s}.workflows") == [{"id": "theirs"}]
    finally:
        drop(url, world.schema)


def test_a_workflow_of_ones_own_has_all_its_kills_whatever_its_inputs_make_it_do(url: str) -> None:
    legs = [0, 1, 2, 3, 0, 2]
    report = soak(url, [{"actions": [*"abc"[:n]]} for n in legs], workflow=trip, workers=3, kills=12, seed=4)
    assert report.problems == []
    assert (report.kills_happened, report.workflows_completed) == (12, 6)
    assert (report.business_effects, report.acknowledged_actions) == (sum(legs), sum(legs))
    assert report.tool_execution_attempts == sum(legs) + (report.repeated_calls or 0)


def test_a_workflow_that_fails_has_its_kills_and_is_lost(url: str) -> None:
    report = soak(url, [{"actions": None}, {"actions": ["a"]}], workflow=trip, workers=2, kills=4, seed=4)
    assert report.kills_happened == 4
    assert report.problems == ["1 of 2 workflows are not completed"]


def test_a_request_that_json_cannot_hold_is_told_before_anything_starts(url: str) -> None:
    with pytest.raises(UnfaithfulValue, match=r"request-000001.*path \$\.actions: set is not a JSON value"):
        soak(url, [{"actions": []}, {"actions": {1}}], workflow=trip, seed=OWN)
    with pytest.raises(BadSchedule, match="no workflow but a class"):
        soak(url, [1], workflow=Engine, seed=OWN)  # type: ignore[arg-type]
    with pytest.raises(SoakError, match="is a class"):
        soak(url, [1], workflow=trip, tool=Engine, seed=OWN)
    assert schemas(url) == set()


def test_an_order_that_went_another_way_than_an_undisturbed_one_of_the_same_input_is_named(
    url: str, tmp_path: Path
) -> None:
    report = soak(
        url, [str(tmp_path)] * 10, workflow=orders.ships_if_new, tool=orders.keeps_keys, workers=3, kills=6, seed=OWN
    )
    parted = [one for one in report.problems if " which had the same input and was not disturbed, " in one]
    charged, shipped = (sum(one.name.endswith(name) for one in tmp_path.iterdir()) for name in (":charge", ":ship"))
    assert (charged, report.kills_happened) == (10, 6) and len(parted) == charged - shipped > 0, report.problems
    assert ' planned ["charge"], and ' in parted[0] and ', ["charge", "ship"]: by what a tool answers' in parted[0]


def test_the_first_workers_of_an_own_workflow_have_hash_seeds_of_their_own(url: str, tmp_path: Path) -> None:
    """Two workers have an order each, and neither goes on before the other has written."""
    assert soak(url, [str(tmp_path)] * 2, workflow=orders.meets_another, workers=2, kills=0, seed=OWN).ok
    assert len({one.read_text() for one in tmp_path.iterdir()}) == 2
