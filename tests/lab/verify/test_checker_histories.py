"""The checker over histories of the real engine, in which it finds nothing, and of broken ones, in which it does."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from agentflow import Engine, Policy
from agentflow.errors import AlreadyFinished, EventRefused, LostLease
from agentflow.lab.laboratory.laboratory import LEASE_SECONDS, PATIENT
from agentflow.lab.notebook.tables import query
from agentflow.lab.schedule.grammar import Setting, parse
from agentflow.lab.schedule.presets import PRESETS
from agentflow.lab.schedule.stepper import Stepper
from agentflow.lab.verify.checker import RULES, find_mistakes
from agentflow.model import Claim
from agentflow.stuck import free
from agentflow.tools import SimulatedTool
from tests.course.test_teaching import SCHEDULES
from tests.lab.schedule.test_random_schedules import tries, wander
from tests.support.planted import plant

FAMOUS = sorted({*(preset.line for preset in PRESETS.values()), *(line for line, *_ in SCHEDULES)})
REAL = [line for line in FAMOUS if "without=" not in line and "forget" not in line]
SETTINGS = [
    Setting(),
    Setting("approval_agent", names="shared"),
    Setting("research_agent", retry="look_up"),
    Setting("approval_agent", requests=2, model="varying"),
]
FORGOTTEN = {"one effect for each planned action"}
"""What a tool that forgets its keys can break: a second effect, also by a worker that had lost the lease long ago."""

BROKEN = {
    "without=idempotency_key A*5 A! expire B*": {
        "the recorded result is the tool's", "one effect for each planned action",
    },
    "without=key_at_execution A*5 A! expire B*": {
        "the recorded result is the tool's", "one effect for each planned action",
    },
    "without=intent A*5 A! expire B*": {"attempts are counted and in time"},
    "without=acknowledge_after_tool A*7": {"the recorded result is the tool's", "attempts are counted and in time"},
    "without=fence_token,lease_owner model=varying A*2 A|| expire B A> A* B*": {
        "only the holder writes", "each checkpoint was written once", "a planned action has its entry and its key",
    },
    "without=fence_token,lease_expiry,lease_owner A*6 expire B A B": {"only the holder writes", "an end is an end"},
    "without=claim_reads_first A B A*2 B*3": {"each claim raises the token by one"},
    "workflow=approval_agent without=wait_reads_first A*3 event:approval A": {"each event has one payload"},
    "A*5 A! forget expire B*": {"one effect for each planned action"},
}  # fmt: skip
"""Lines that break a promise, and the rules that must say so."""


@pytest.fixture
def stepper(engine: Engine) -> Iterator[Stepper]:
    engine.policy = PATIENT
    with Stepper(engine) as stepper:
        yield stepper


@pytest.mark.parametrize("line", REAL)
def test_a_famous_line_has_no_fault(stepper: Stepper, line: str) -> None:
    stepper.play(line)
    assert find_mistakes(stepper.engine.database) == []


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_random_schedules_have_no_fault_but_a_second_effect_where_the_tool_forgot(
    stepper: Stepper, setting: Setting
) -> None:
    for choices in tries(5):
        watch = wander(stepper, setting, choices, "AB")
        expected = FORGOTTEN if watch.has_forgotten else set()
        found = find_mistakes(stepper.engine.database)
        assert {fault.rule for fault in found} <= expected, [stepper.line, *map(str, found)]


@pytest.mark.parametrize(("line", "rules"), BROKEN.items(), ids=list(BROKEN))
def test_the_checker_finds_what_a_broken_engine_does(stepper: Stepper, line: str, rules: set[str]) -> None:
    assert str(parse(line)) == line
    stepper.play(line)
    assert rules <= {fault.rule for fault in find_mistakes(stepper.engine.database)}


# -- every kind of entry that the engine can write ---------------------------------------------------------------------

FAILED = {"type": "ValueError", "message": "no", "traceback": ""}
HOUR = 3600.0


def test_a_laboratory_in_which_every_transaction_told_something_has_no_fault(engine: Engine) -> None:
    own = Engine(engine.database, policy=Policy(lease_seconds=LEASE_SECONDS, first_delay=HOUR, crash_budget=1))
    faults = iter(("refuse", "lose_reply"))
    own.tool = SimulatedTool(own.world.database, fault=lambda _: next(faults, None))  # type: ignore[arg-type]
    for story in (refused_and_unknown, retried_and_failed, overworked, stopped_and_cancelled, answered_often, freed):
        story(own)
    own.world.database.close()
    assert find_mistakes(own.database) == []
    told = query(own, "SELECT DISTINCT transaction, event FROM history WHERE event <> 'write_refused'")
    rule = next(rule for rule in RULES if rule.name == "each transaction tells its own entry")
    allowed = set(re.findall(r"\('(\w+)', '(\w+)', (?:true|false|NULL)\)", rule.sql))
    assert {(row["transaction"], row["event"]) for row in told} == allowed
    refused = query(own, "SELECT DISTINCT transaction FROM history WHERE event = 'write_refused'")
    assert {row["transaction"] for row in refused} == {"complete", "requeue", "cancel", "expire"}


def freed(engine: Engine) -> None:
    """Created by a clock that was an hour ahead."""
    engine.create_workflow("x", workflow_id="freed")
    hour = "clock_timestamp() + interval '1 hour'"
    plant(engine, f"UPDATE {{s}}.workflows SET next_run_at = {hour}, updated_at = {hour} WHERE id = 'freed'")
    assert free(engine.database) == ["freed"]
    engine.cancel_workflow("freed")


def claimed(engine: Engine, worker: str) -> Claim:
    claim = engine.claim_workflow(worker)
    assert claim
    return claim


def refused_and_unknown(engine: Engine) -> None:
    """The tool refuses, so it fails; requeued, the tool's answer is lost; then all is well."""
    engine.create_workflow("password", workflow_id="refused")
    engine.run_until_idle("A.1")
    engine.requeue_workflow("refused")
    engine.run_until_idle("A.2")
    engine.expire_lease("refused")
    assert engine.run_until_idle("A.3") == 1


def retried_and_failed(engine: Engine) -> None:
    """A step fails for a time, then for good; the workflow is requeued and completes. Another fails outside of a step."""
    engine.create_workflow("password", workflow_id="retried")
    engine.postpone(claimed(engine, "A.1"), "classify", FAILED, HOUR)
    engine.expire_lease("retried")
    claim = engine.checkpoint(claimed(engine, "A.2"), "classify", state="CLASSIFY_FAILED", error=FAILED)
    engine.fail_workflow(claim, FAILED, "classify")
    engine.requeue_workflow("retried")
    assert engine.run_until_idle("A.3") == 1
    engine.create_workflow(7, workflow_id="not a text")
    assert engine.run_until_idle("A.4") == 0


def overworked(engine: Engine) -> None:
    """Two workers die holding it: the next claim fails it. Another loses one before and one after its first checkpoint."""
    engine.create_workflow("password", workflow_id="overworked")
    for worker in ("A.1", "B.1"):
        claimed(engine, worker)
        engine.expire_lease("overworked")
    assert engine.claim_workflow("C.1") is None
    engine.create_workflow("password", workflow_id="twice recovered")
    claimed(engine, "A.1")
    engine.expire_lease("twice recovered")
    engine.advance_one_step(claimed(engine, "B.1"))
    engine.expire_lease("twice recovered")
    assert engine.run_until_idle("C.1") == 1


def stopped_and_cancelled(engine: Engine) -> None:
    """A worker renews its lease and gives it back. Another workflow is cancelled, and everything after it is refused."""
    engine.create_workflow("password", workflow_id="stopped")
    claim = claimed(engine, "A.1")
    engine.renew_lease(claim)
    engine.release_lease(claim)
    assert engine.run_until_idle("B.1") == 1
    engine.create_workflow("password", workflow_id="cancelled")
    claim = claimed(engine, "A.1")
    engine.cancel_workflow("cancelled")
    engine.cancel_workflow("cancelled")
    with pytest.raises(LostLease):
        engine.complete_workflow(claim, None)
    for late in (engine.requeue_workflow, engine.expire_lease):
        with pytest.raises(AlreadyFinished):
            late("cancelled")


def answered_often(engine: Engine) -> None:
    """An answer comes while it is awaited, again, and another; one comes before it is awaited; one is awaited still."""
    for name in ("answered", "parked"):
        engine.create_workflow("password", name="approval_agent", workflow_id=name)
    engine.run_until_idle("A.1")
    for _ in range(2):
        engine.deliver_event("answered", "approval", True)
    with pytest.raises(EventRefused):
        engine.deliver_event("answered", "approval", False)
    engine.create_workflow("password", name="approval_agent", workflow_id="answered before")
    engine.deliver_event("answered before", "approval", False)
    assert engine.run_until_idle("B.1") == 2
