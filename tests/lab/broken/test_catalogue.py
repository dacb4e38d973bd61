"""Broken engines: each is the real one with a few lines less, does its work when nothing goes wrong, and shows its fault."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from agentflow import CrashInjected, Database, Engine, LostLease
from agentflow.errors import AgentFlowError
from agentflow.lab.broken import catalogue as broken
from agentflow.lab.broken.catalogue import BROKEN, GUARDS, engine_class, texts
from agentflow.model import Boundary, Claim, Hook
from agentflow.statements import ALL_STATEMENTS, COUNTED, GUARDED, TRANSACTIONS
from tests.conftest import rows
from tests.support.isolation import asked, race

SPEC = [
    "idempotency_key", "intent", "fence_token", "lease_owner", "lease_expiry", "checkpoint_count", "skip_locked",
    "checkpoint_after_step", "acknowledge_after_tool",
]  # fmt: skip
CLAUSES = {
    "fence_token": ("token", "fence_token = %(p_token)s", {*GUARDED, "load"}),
    "lease_owner": ("owner", "lease_owner = %(p_worker)s", {*GUARDED, "load"}),
    "lease_expiry": ("lease", "lease_expires_at > clock_timestamp()", set(GUARDED)),
    "checkpoint_count": ("checkpoints", "checkpoints = %(p_checkpoints)s", set(COUNTED)),
}
"""For each guard: the name by which a refusal calls it, its condition, and the statements that have it."""


def changes(database: Database, other: Database, name: str) -> list[str]:
    """The lines that differ between what two databases would be asked."""
    found = difflib.ndiff(database.sql(name).splitlines(), other.sql(name).splitlines())
    return [line for line in found if line[0] in "+-"]


# -- the table ---------------------------------------------------------------------------------------------------------


def test_the_guards_are_those_of_the_command_line_and_the_others_stand_beside_them() -> None:
    assert list(GUARDS) == SPEC
    assert len(BROKEN) >= 12
    assert set(GUARDS) < set(BROKEN)


@pytest.mark.parametrize("name", BROKEN)
def test_each_says_in_one_sentence_what_it_forgets_and_is_a_few_lines_long(name: str) -> None:
    this = BROKEN[name]
    assert re.fullmatch(r"[A-Z][^.]+\.", this.forgets)
    assert this.defect is None or re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", this.defect)
    assert this.edits or this.engine or this.journal
    for kind in (this.engine, this.journal):
        assert kind is None or len(inspect.getsource(kind).splitlines()) <= 16


def test_without_nothing_it_is_the_engine_itself_and_one_set_of_names_is_one_class() -> None:
    assert engine_class(()) is Engine
    assert engine_class(["intent", "fence_token"]) is engine_class(("fence_token", "intent", "intent"))
    assert engine_class("intent") is engine_class(["intent"])


def test_an_unknown_guard_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(AgentFlowError, match=r"no guard 'fence'.*idempotency_key.*claim_reads_first"):
        engine_class(["fence"])


# -- the texts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLAUSES)
def test_a_guard_in_sql_is_one_condition_less_in_the_guard_and_in_the_refusal_and_nothing_else(
    engine: Engine, name: str
) -> None:
    guard, condition, statements = CLAUSES[name]
    asked, named = (
        f"-       AND {condition}",
        f"-                   CASE WHEN ({condition}) IS NOT TRUE THEN '{guard}' END,",
    )
    other = engine_class([name])(engine.database)
    changed = {t: found for t in TRANSACTIONS if (found := changes(engine.database, other.database, t))}
    assert changed == {t: [named] if t == "load" else [asked, named] for t in statements}
    assert other.show_sql("renew") == other.database.sql("renew")


def test_without_skip_locked_exactly_these_two_words_are_gone(engine: Engine) -> None:
    other = engine_class(["skip_locked"])(engine.database)
    changed = {t: found for t in TRANSACTIONS if (found := changes(engine.database, other.database, t))}
    assert list(changed) == ["claim"]
    assert other.database.sql("claim") == engine.database.sql("claim").replace(" SKIP LOCKED", "")


def test_the_real_engine_beside_a_broken_one_keeps_its_texts(engine: Engine) -> None:
    before = {name: engine.database.sql(name) for name in TRANSACTIONS}
    engine_class(BROKEN.keys() - {"status_only", "wait_reads_snapshot", "claim_without_lock", "lease_never_expires",
                                  "renewal_revives"})(engine.database)  # fmt: skip
    assert {name: engine.database.sql(name) for name in TRANSACTIONS} == before


@pytest.mark.parametrize("name", [name for name in BROKEN if BROKEN[name].edits])
def test_a_statement_whose_words_were_changed_fails_loudly(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    edit = BROKEN[name].edits[0]
    reworded = TRANSACTIONS[edit.statement].text.replace(edit.old, edit.old.replace(" ", "  "))
    monkeypatch.setitem(ALL_STATEMENTS, edit.statement, replace(TRANSACTIONS[edit.statement], text=reworded))
    with pytest.raises(AgentFlowError, match=f"without {name} .* statement '{edit.statement}' contains .* 0 times"):
        texts([name], "agentflow")


def test_a_clause_that_stands_twice_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    twice = TRANSACTIONS["renew"].text.replace(broken._asked("token"), broken._asked("token") * 2)
    monkeypatch.setitem(ALL_STATEMENTS, "renew", replace(TRANSACTIONS["renew"], text=twice))
    with pytest.raises(AgentFlowError, match="2 times instead of 1"):
        texts(["fence_token"], "agentflow")


def test_two_mistakes_at_one_place_cannot_be_combined() -> None:
    with pytest.raises(AgentFlowError, match=r"cannot be combined"):
        engine_class(["wait_reads_first", "wait_reads_snapshot"])


# -- nothing goes wrong ------------------------------------------------------------------------------------------------


def does_its_work(database: Database, without: Iterable[str]) -> None:
    """A support request, and a research that waits for an event: completed, with one effect each.

    A step that is marked before it is run shows as soon as anything is replayed, so nobody waits then.
    """
    engine, resumed = engine_class(without)(database), "checkpoint_after_step" not in without
    try:
        engine.create_workflow("I forgot my password", workflow_id="s")
        engine.create_workflow({"with_wait": resumed}, name="research_agent", workflow_id="r")
        engine.run_until_idle("A")
        if resumed:
            assert (engine.get_workflow("r") or {})["status"] == "waiting"
            engine.deliver_event("r", "editor.approved", True)
            engine.run_until_idle("A")
        found = rows(engine, "SELECT id, status, checkpoints FROM {s}.workflows ORDER BY id")
        assert [tuple(row.values()) for row in found] == [("r", "completed", 5 + resumed), ("s", "completed", 3)]
        effects = rows(engine, "SELECT workflow_id, attempts FROM {w}.tool_ledger ORDER BY workflow_id")
        assert effects == [{"workflow_id": "r", "attempts": 1}, {"workflow_id": "s", "attempts": 1}]
        assert engine.reliability_metrics()["duplicate_business_effects"] == 0
    finally:
        engine.world.database.close()


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_engine_does_its_work_when_nothing_goes_wrong(engine: Engine, name: str) -> None:
    does_its_work(engine.database, [name])


def test_guards_can_be_left_out_in_any_pair_and_all_at_once(engine: Engine) -> None:
    for without in [*combinations(GUARDS, 2), tuple(GUARDS)]:
        engine.reset_database()
        does_its_work(engine.database, without)


def test_every_set_of_guards_makes_an_engine() -> None:
    sets = [names for size in range(len(GUARDS) + 1) for names in combinations(GUARDS, size)]
    assert len({engine_class(names) for names in sets}) == 2 ** len(GUARDS)


# -- something goes wrong ----------------------------------------------------------------------------------------------


def held(engine: Engine, worker: str = "A") -> Claim:
    engine.create_workflow("I forgot my password", workflow_id="w")
    claim = engine.claim_workflow(worker, 600)
    assert claim
    return claim


def row(engine: Engine) -> dict[str, Any]:
    return engine.get_workflow("w") or {}


def effects(engine: Engine) -> int:
    return len(rows(engine, "SELECT FROM {w}.tool_ledger"))


def at(transaction: str, edge: str, do: Callable[[], object]) -> Hook:
    """A hook that does something once, at the first such boundary."""
    todo = [do]

    def hook(boundary: Boundary) -> None:
        if (boundary.transaction, boundary.edge) == (transaction, edge) and todo:
            todo.pop()()

    return hook


def crash() -> None:
    raise CrashInjected("at a boundary")


def crashed(engine: Engine, transaction: str, edge: str) -> Engine:
    """The workflow's worker died at this boundary, and its lease has ended."""
    engine.create_workflow("I forgot my password", workflow_id="w")
    with pytest.raises(CrashInjected):
        engine.with_hook(at(transaction, edge, crash)).run_once("A")
    engine.expire_lease("w")
    return engine


def taken_over(engine: Engine, by: str) -> Claim:
    """The stale claim of A; the workflow is held by another."""
    stale = held(engine)
    engine.expire_lease("w")
    assert engine.claim_workflow(by, 600)
    return stale


def accepted(engine: Engine, claim: Claim, step_id: str = "classify") -> bool:
    try:
        engine.checkpoint(claim, step_id, {"by": "whom?"})
    except LostLease:
        return False
    return True


def doubled(engine: Engine) -> bool:
    crashed(engine, "tool", "after").run_once("B")
    return effects(engine) == 2 and engine.reliability_metrics()["duplicate_business_effects"] == 1


def nothing_was_planned(engine: Engine) -> bool:
    crashed(engine, "tool", "after")
    return effects(engine) == 1 and row(engine)["actions"] == []


def an_expired_claim_writes(engine: Engine) -> bool:
    claim = held(engine)
    engine.expire_lease("w")
    return accepted(engine, claim)


def a_call_is_recorded_twice(engine: Engine) -> bool:
    claim = held(engine)
    engine.checkpoint(claim, "classify", 1)
    return accepted(engine, claim, "plan")


def a_claim_waits(engine: Engine) -> bool:
    engine.create_workflows(["one", "two"])
    first, second = (asked(engine.database, lambda e, w=w: e.claim_workflow(w, 600)) for w in "AB")
    return race(engine.database, first, second).waited


def a_result_nobody_computed(engine: Engine) -> bool:
    calls: list[int] = []

    def dies(run: Any, _: Any) -> Any:
        return run.step("one", lambda: calls.append(1) or (crash() if len(calls) == 1 else "computed"))

    engine.workflows["dies"] = dies
    engine.create_workflow(None, name="dies", workflow_id="w")
    with pytest.raises(CrashInjected):
        engine.run_once("A")
    engine.expire_lease("w")
    engine.run_once("B")
    return row(engine)["status"] == "completed" and row(engine)["result"] is None


def an_effect_is_lost(engine: Engine) -> bool:
    crashed(engine, "tool", "before").run_once("B")
    return row(engine)["status"] == "completed" and effects(engine) == 0


def a_write_after_the_take_over(engine: Engine) -> bool:
    claim = held(engine)

    def take_over() -> None:
        engine.expire_lease("w")
        assert engine.claim_workflow("B", 600)

    return accepted(engine.with_hook(at("checkpoint", "before", take_over)), claim)


def one_token_for_two(engine: Engine) -> bool:
    engine.create_workflow("I forgot my password", workflow_id="w")
    others: list[Claim | None] = []
    hook = at("claim", "before", lambda: others.append(engine.claim_workflow("B", 600)))
    mine = engine.with_hook(hook).claim_workflow("A", 600)
    return mine is not None and others[0] is not None and mine.fence_token == others[0].fence_token


def a_claim_writes_over_another(engine: Engine) -> bool:
    engine.create_workflow("I forgot my password", workflow_id="w")
    first, second = (asked(engine.database, lambda e, w=w: e.claim_workflow(w, 600)) for w in "AB")
    found = race(engine.database, first, second)
    return bool(found.second) and found.second[0]["fence_token"] == found.first[0]["fence_token"]


def nobody_takes_over(engine: Engine) -> bool:
    held(engine)
    engine.expire_lease("w")
    return engine.claim_workflow("B", 600) is None and not engine.runnable(["support_agent"])


def parked_for_ever(engine: Engine) -> bool:
    return row(engine)["status"] == "waiting" and row(engine)["waiting_for"] in row(engine)["events"]


def an_event_between_the_look_and_the_write(engine: Engine) -> bool:
    claim = held(engine)
    hook = at("wait", "before", lambda: engine.deliver_event("w", "go", True))
    engine.with_hook(hook).wait_for_event(claim, "approval", "go")
    return parked_for_ever(engine)


def an_event_inside_the_statement(engine: Engine) -> bool:
    claim = held(engine)
    deliver = asked(engine.database, lambda e: e.deliver_event("w", "go", True))
    wait = asked(engine.database, lambda e: e.wait_for_event(claim, "approval", "go"))
    assert race(engine.database, deliver, wait).waited
    return parked_for_ever(engine)


def a_lost_lease_comes_back(engine: Engine) -> bool:
    stale = taken_over(engine, "B")
    try:
        engine.renew_lease(stale)
    except LostLease:
        return False
    return bool(row(engine)["lease_owner"] == "A")


SHOWS: dict[str, Callable[[Engine], bool]] = {
    "idempotency_key": doubled,
    "intent": nothing_was_planned,
    "fence_token": lambda e: accepted(e, taken_over(e, "A")),
    "lease_owner": lambda e: accepted(e, replace(held(e), worker_id="somebody")),
    "lease_expiry": an_expired_claim_writes,
    "checkpoint_count": a_call_is_recorded_twice,
    "skip_locked": a_claim_waits,
    "checkpoint_after_step": a_result_nobody_computed,
    "acknowledge_after_tool": an_effect_is_lost,
    "key_from_position": doubled,
    "key_at_execution": doubled,
    "fence_read_first": a_write_after_the_take_over,
    "claim_reads_first": one_token_for_two,
    "claim_without_lock": a_claim_writes_over_another,
    "name_is_owner": lambda e: accepted(e, taken_over(e, "A")),
    "status_only": lambda e: accepted(e, taken_over(e, "B")),
    "lease_never_expires": nobody_takes_over,
    "wait_reads_first": an_event_between_the_look_and_the_write,
    "wait_reads_snapshot": an_event_inside_the_statement,
    "renewal_revives": a_lost_lease_comes_back,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_engine_shows_its_fault_and_the_real_one_does_not(engine: Engine, name: str) -> None:
    assert not SHOWS[name](engine)
    engine.reset_database()
    other = engine_class([name])(engine.database)
    try:
        assert SHOWS[name](other)
    finally:
        other.world.database.close()


def test_a_look_and_a_write_are_two_transactions_with_a_boundary_each(engine: Engine) -> None:
    told: list[str] = []
    other = engine_class(["fence_read_first", "claim_reads_first", "wait_reads_first"])(engine.database)
    hooked = other.with_hook(lambda boundary: told.append(f"{boundary.edge} {boundary.transaction}"))
    other.create_workflow("I forgot my password", workflow_id="w")
    claim = hooked.claim_workflow("A", 600)
    assert claim
    hooked.renew_lease(claim)
    looks = ["read_runnable", "claim", "read_fence", "renew"]
    assert told == [f"{edge} {name}" for name in looks for edge in ("before", "after")]


def test_a_broken_engine_shares_the_connections_of_its_database(engine: Engine) -> None:
    other = engine_class(["fence_token"])(engine.database)
    other.list_workflows()
    assert other.database._idle is engine.database._idle
