"""Workflows that no worker can take: their neighbours run, log, doctor and report name them, and what a clock did is freed."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentflow import Claim, Database, Engine, migrate
from agentflow.aside import LONGEST, Aside
from agentflow.doctor import examine
from agentflow.errors import PoolerInBetween, SchemaMissing, StatementRefused
from agentflow.lab.verify.checker import find_mistakes
from agentflow.statements import ALL_STATEMENTS
from agentflow.stuck import Stuck, free, look_for_stuck
from tests.conftest import rows
from tests.support.helpers import eventually, working
from tests.support.isolation import Session


def job(run: Any, request: Any) -> Any:
    run.step("one", lambda: "one")
    return run.side_effect("pay", key="pay")


@pytest.fixture
def lab(schema: Callable[..., Database]) -> Engine:
    """An engine in a schema of its own, which an operator may change."""
    migrate(database := schema(patience=1.0), laboratory=True)
    return Engine(database, workflows={"job": job})


def find_stuck(database: Database) -> Sequence[Stuck]:
    """What is stuck; somebody could look."""
    found = look_for_stuck(database).found
    assert found is not None
    return found


def operate(engine: Engine, *commands: str) -> None:
    """An operator's commands, in which {s} is the engine's schema."""
    with Session(engine.database) as session:
        for command in commands:
            session.run(command.replace("{s}", f'"{engine.database.schema}"'))


def trigger(body: str, on: str = "BEFORE UPDATE ON {s}.workflows", kind: str = "TRIGGER") -> tuple[str, ...]:
    """An operator's trigger, whose body is for one row."""
    return (
        f"CREATE FUNCTION {{s}}.strict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body} RETURN NEW; END $$",
        f"CREATE {kind} strict {on} FOR EACH ROW EXECUTE FUNCTION {{s}}.strict()",
    )


NO_TRIGGER = ("DROP FUNCTION {s}.strict() CASCADE",)
RAISES = "IF NEW.id = 'bad' THEN RAISE EXCEPTION 'not this one' USING ERRCODE = '{}'; END IF;"
BROKEN = {  # what is done, what undoes it, and what is said
    "token": (
        ("UPDATE {s}.workflows SET fence_token = 9223372036854775807 WHERE id = 'bad'",),
        ("UPDATE {s}.workflows SET fence_token = 7 WHERE id = 'bad'",), "NumericValueOutOfRange: bigint out of range",
    ),
    "crashes": (
        ("UPDATE {s}.workflows SET crashes = 2147483647, fence_token = 1, lease_owner = 'dead', updated_at = clock_timestamp(), "
         "lease_expires_at = clock_timestamp() - interval '1 hour' WHERE id = 'bad'",),
        ("UPDATE {s}.workflows SET crashes = 0 WHERE id = 'bad'",), "NumericValueOutOfRange: integer out of range",
    ),
    "check": (
        ("ALTER TABLE {s}.workflows ADD CONSTRAINT strict CHECK (id <> 'bad' OR fence_token = 0)",),
        ("ALTER TABLE {s}.workflows DROP CONSTRAINT strict",), 'CheckViolation: .* "strict"',
    ),
    "key": (
        ("INSERT INTO {s}.history (workflow_id, n, event, transaction) VALUES ('bad', 2, 'note', 'note')",),
        ("DELETE FROM {s}.history WHERE workflow_id = 'bad' AND n = 2",), "history_pkey",
    ),
    "raise": (trigger(RAISES.format("P0001")), NO_TRIGGER, "RaiseException: not this one"),
    "outage": (trigger(RAISES.format("55000")), NO_TRIGGER, "not this one"),  # a sqlstate that means "not now"
    "rights": (trigger(RAISES.format("42501")), NO_TRIGGER, "not this one"),  # and one that means "not migrated"
    "silent": (trigger("IF NEW.id = 'bad' THEN RETURN NULL; END IF;"), NO_TRIGGER, "a trigger let nothing be written"),
    "late": (
        trigger(RAISES.format("P0001"), "AFTER UPDATE ON {s}.workflows DEFERRABLE INITIALLY DEFERRED", "CONSTRAINT TRIGGER"),
        NO_TRIGGER, "not this one",
    ),
    "history": (
        trigger(RAISES.format("P0001").replace("NEW.id", "NEW.workflow_id"), "BEFORE INSERT ON {s}.history"),
        NO_TRIGGER, "not this one",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_one_row_whose_claim_is_refused_starves_nobody_and_is_named(
    lab: Engine, case: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks, mends, said = BROKEN[case]
    caplog.set_level(logging.INFO, "agentflow")
    lab.create_workflows([None] * 6, name="job", workflow_ids=["bad", *"abcde"])
    operate(lab, *breaks)
    before = rows(lab, "SELECT * FROM {s}.workflows WHERE id = 'bad'")
    assert lab.run_until_idle("w") == 5
    logged = [json.loads(record.message) for record in caplog.records if "claim_refused" in record.message]
    assert {(one["workflow_id"], one["worker_id"]) for one in logged} == {("bad", "w")}
    (stuck,) = find_stuck(lab.database)
    assert stuck.workflow == "bad"
    monkeypatch.setenv("DATABASE_URL", lab.database.address)
    (found,) = (one for one in examine(lab.database.schema) if one.topic == "queue")
    assert not found.ok
    for text in (logged[0]["error"], stuck.says, found.says):
        assert re.search(said, text), text
    assert rows(lab, "SELECT * FROM {s}.workflows WHERE id = 'bad'") == before  # looking changes nothing
    operate(lab, *mends)
    assert (find_stuck(lab.database)) == []
    assert Engine(lab.database, workflows={"job": job}).run_until_idle("v") == 1


def test_a_row_is_asked_for_again_and_claimed_when_it_was_mended(lab: Engine) -> None:
    breaks, mends, _ = BROKEN["check"]
    lab.create_workflows([None] * 2, name="job", workflow_ids=["bad", "a"])
    operate(lab, *breaks)
    with working(lab.worker("w", poll_seconds=0.05)):
        eventually(lambda: (lab.get_workflow("a") or {})["status"] == "completed")
        operate(lab, *mends)
        eventually(lambda: (lab.get_workflow("bad") or {})["status"] == "completed")
    assert lab.aside.ids() == []


def test_what_is_passed_by_is_passed_by_for_twice_as_long_each_time_and_not_for_ever() -> None:
    aside = Aside()
    assert [aside.put("bad") for _ in range(8)] == [1, 2, 4, 8, 16, 32, LONGEST, LONGEST]
    assert aside.ids() == ["bad"]
    database: Any = None
    assert aside.claimed(database, {}, lambda _: [{"id": "bad"}]) == [{"id": "bad"}]
    assert (aside.ids(), aside.put("bad")) == ([], 1)


def test_many_rows_that_are_refused_hold_nobody_up_and_a_table_without_rights_blames_no_row(lab: Engine) -> None:
    ids = [f"bad-{n}" for n in range(120)]
    lab.create_workflows([None] * 121, name="job", workflow_ids=[*ids, "good"])
    operate(
        lab, "ALTER TABLE {s}.workflows ADD CONSTRAINT strict CHECK (NOT starts_with(id, 'bad') OR fence_token = 0)"
    )
    assert (claim := lab.claim_workflow("w", 60)) and claim.workflow_id == "good"
    assert sorted(lab.aside.ids()) == sorted(ids)
    assert [one.workflow for one in find_stuck(lab.database)] == ids[:100]
    fresh = Engine(lab.database, workflows={"job": job})
    operate(lab, "ALTER TABLE {s}.history RENAME TO elsewhere")
    with pytest.raises(SchemaMissing, match="history"):
        fresh.claim_workflow("w")
    assert fresh.aside.ids() == []
    operate(lab, "ALTER TABLE {s}.elsewhere RENAME TO history")


def test_what_a_pooler_does_to_a_rehearsal_blames_no_row(lab: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.create_workflows([None] * 2, name="job", workflow_ids=["bad", "good"])
    operate(lab, *BROKEN["check"][0])

    def shared(*_: Any) -> Any:
        raise PoolerInBetween("claim: prepared statements are shared")

    with monkeypatch.context() as pooled:
        pooled.setattr(Database, "rehearse", shared)
        with pytest.raises(StatementRefused, match="shared"):
            lab.claim_workflow("w")
        assert (lab.aside.ids(), look_for_stuck(lab.database).found) == ([], None)
    assert lab.run_until_idle("w") == 1


# -- a server's clock that was set ahead and back ------------------------------------------------------------------------


class HourAhead(Engine):
    """An engine on a server whose clock is an hour ahead; `set_back` is when somebody notices."""

    def __init__(self, engine: Engine) -> None:
        ahead = "(clock_timestamp() + interval '1 hour')"
        texts = {name: text.replace("clock_timestamp()", ahead) for name, text in engine.database._texts.items()}
        super().__init__(engine.database.with_texts(texts), workflows=engine.workflows)
        (self.began,) = (row["now"] for row in rows(engine, "SELECT clock_timestamp() AS now"))

    def set_back(self) -> None:
        """What the columns' defaults wrote meanwhile, they wrote by that clock, too."""
        operate(self, f"UPDATE {{s}}.history SET at = at + interval '1 hour' WHERE at > '{self.began}'")


def parked(run: Any, request: Any) -> Any:
    return run.wait_for_event("approval", "go")


WRONG = {"type": "TimeoutError", "message": "no answer", "traceback": ""}
STRANDED = ["created", "dead", "delivered", "noted", "postponed", "requeued"]


@pytest.fixture
def stranded(lab: Engine) -> Engine:
    """Six workflows, each left an hour ahead by another transaction, and two that wait for good reasons."""

    def claimed(engine: Engine, name: str, seconds: float = 600, create: bool = True) -> Claim:
        if create:
            engine.create_workflow(None, name=name, workflow_id=name)
        claim = engine.claim_workflow("w", seconds, names=[name])
        assert claim
        return claim

    lab.postpone(claimed(lab, "due in a day"), "one", WRONG, 86_400)
    claimed(lab, "held for a day", 86_400)
    lab.wait_for_event(claimed(lab, "delivered"), "approval", "go")
    lab.fail_workflow(claimed(lab, "requeued"), WRONG)
    for name in ("postponed", "noted"):
        lab.create_workflow(None, name=name, workflow_id=name)
    ahead = HourAhead(lab)
    ahead.create_workflow(None, name="created", workflow_id="created")
    ahead.deliver_event("delivered", "go")
    ahead.requeue_workflow("requeued")
    for name in ("postponed", "noted"):
        ahead.postpone(claimed(ahead, name, create=False), "one", WRONG, 20)
    claimed(ahead, "dead", 30)
    ahead.set_back()
    lab.deliver_event("noted", "news")  # this changes the row, and not when it is due
    lab.workflows = dict.fromkeys(STRANDED, job) | {"delivered": parked}
    return lab


def test_a_clock_that_was_set_back_strands_nobody_without_a_word(
    stranded: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {one.workflow: one.says for one in find_stuck(stranded.database)}
    assert sorted(found) == STRANDED
    assert "is held by w until" in found["dead"] and all("by a clock that was ahead" in one for one in found.values())
    monkeypatch.setenv("DATABASE_URL", stranded.database.address)
    wrong = [one for one in examine(stranded.database.schema) if one.topic == "queue"]
    assert len(wrong) == 6 and all("`agentflow free --schema " in one.says and not one.ok for one in wrong)
    assert stranded.run_until_idle("w") == 0


def test_what_is_freed_is_what_is_named() -> None:
    """Both statements stand in full, for people to read: their conditions are one."""
    condition = re.compile(
        r"AND CASE WHEN lease_owner IS NULL.*? > clock_timestamp\(\) \+ interval '1 second'", re.DOTALL
    )
    (named,), (freed,) = (
        condition.findall(" ".join(one.text.split())) for one in map(ALL_STATEMENTS.__getitem__, ("stranded", "free"))
    )
    assert named == freed


def test_freed_workflows_run_and_a_postponement_after_that_is_no_mistake_of_the_clock(stranded: Engine) -> None:
    assert sorted(free(stranded.database)) == STRANDED
    assert (find_stuck(stranded.database)) == []
    assert free(stranded.database) == []
    (held,) = rows(stranded, "SELECT lease_expires_at - clock_timestamp() AS left FROM {s}.workflows WHERE id = 'dead'")
    assert 0 < held["left"].total_seconds() <= 30  # whoever lives has time to renew it
    claim = stranded.claim_workflow("w", 600, names=["created"])
    assert claim
    stranded.postpone(claim, "one", WRONG, 86_400)  # although it was created in the future
    assert (find_stuck(stranded.database)) == []
    assert stranded.run_until_idle("w") == 4
    assert not [one for one in find_mistakes(stranded.database) if "freed" in str(one)]


def test_a_workflow_that_was_claimed_meanwhile_is_not_freed(stranded: Engine) -> None:
    operate(stranded, "UPDATE {s}.workflows SET next_run_at = clock_timestamp() WHERE id = 'created'")
    assert stranded.claim_workflow("w", 600, names=["created"])
    before = rows(stranded, "SELECT * FROM {s}.workflows WHERE id = 'created'")
    assert stranded.database.execute("free", {"p_workflow": "created"}) == []
    assert rows(stranded, "SELECT * FROM {s}.workflows WHERE id = 'created'") == before
