"""Every transaction x edge: a worker is lost there by an exception and by a real SIGKILL; another finishes its work.

Three times each: once without a crash, to see the rows as they stand at that boundary; then both kinds of loss. What a
loss leaves must be those very rows, and what the recovery leaves must not depend on the kind.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from agentflow import Boundary, Claim, CrashInjected, Database, Engine, LostLease, Policy, SimulatedTool
from agentflow.errors import AlreadyFinished
from agentflow.lab.crashes.crash_at import CrashAt, by_exception
from agentflow.lab.laboratory.processes import ended, start
from agentflow.model import Edge
from agentflow.statements import TRANSACTIONS
from tests.conftest import rows
from tests.support.crash_process import crash_in_process

# A lease and a back-off that never end by themselves: the laboratory ages them.
PATIENT = Policy(lease_seconds=3600, first_delay=3600, max_delay=7200)
CLAIM = Claim("w", "A", 1, lease_seconds=3600)
FAULTS = ("crash_injected", "worker_killed")

Act = Callable[[Engine], Any]


@dataclass(frozen=True)
class Left:
    """What a crash leaves: of the workflow, and in the world."""

    status: str | None
    state: str | None = None
    leased: bool = False
    steps: int = 0
    intent: str | None = None
    effects: int = 0


@dataclass(frozen=True)
class Right:
    """What stands in the end, whoever was lost."""

    attempts: int = 1
    recovered: bool = True
    refused: tuple[tuple[str, str], ...] = ()
    status: str = "completed"
    steps: tuple[str, ...] = ("classify", "plan", "resolve-account")
    effects: int = 1


@dataclass(frozen=True)
class Case:
    """How a transaction is reached, what a crash before and after it leaves, and how somebody else goes on."""

    prepare: Act
    act: Act
    before: Left
    after: Left
    recover: Act
    right_before: Right
    right_after: Right
    subject: str | None = None


# -- getting there -----------------------------------------------------------------------------------------------------


def nothing(_engine: Engine) -> None:
    """An empty database."""


def create(engine: Engine) -> None:
    engine.create_workflow("I forgot my password", workflow_id="w")


def create_research(engine: Engine) -> None:
    engine.create_workflow({"with_wait": True}, name="research_agent", workflow_id="w")


def work(engine: Engine, fault: Any = None) -> None:
    """Worker A carries the workflow as far as it goes; its tool may have a fault."""
    if fault:
        engine.tool = SimulatedTool(engine.world.database, fault=lambda _call: fault)
    engine.worker("A").run_once()


def hold(engine: Engine) -> None:
    """Worker A has claimed and is gone."""
    create(engine)
    assert engine.claim_workflow("A") == Claim("w", "A", 1, "support_agent", "I forgot my password", lease_seconds=3600)


def lose(engine: Engine) -> None:
    """Worker Z has claimed, and its lease is over: the next claim is a recovery, and loads."""
    create(engine)
    engine.claim_workflow("Z")
    engine.expire_lease("w")


def park(engine: Engine) -> None:
    create_research(engine)
    work(engine)


def bury(engine: Engine) -> None:
    """The workflow is failed: the tool refused."""
    create(engine)
    work(engine.with_hook(None), fault="refuse")


def deliver(engine: Engine) -> None:
    engine.deliver_event("w", "editor.approved", {"by": "ed"})


def cancel(engine: Engine) -> None:
    engine.cancel_workflow("w")


def requeue(engine: Engine) -> None:
    engine.requeue_workflow("w")


def expire(engine: Engine) -> None:
    engine.expire_lease("w")


def renew(engine: Engine) -> None:
    engine.renew_lease(CLAIM)


def release(engine: Engine) -> None:
    engine.release_lease(CLAIM)


# -- going on ----------------------------------------------------------------------------------------------------------


def take_over(engine: Engine) -> None:
    """The lease or the back-off ends, if there is one, and B works."""
    if rows(
        engine, "SELECT FROM {s}.workflows WHERE lease_expires_at > now() OR (status = 'ready' AND next_run_at > now())"
    ):
        engine.expire_lease("w")
    engine.run_until_idle("B")


def then(*acts: Act) -> Act:
    def act(engine: Engine) -> None:
        for each in acts:
            with suppress(AlreadyFinished):
                each(engine)

    return act


def work_late(engine: Engine) -> None:
    """A, which has been cancelled meanwhile, tries to write."""
    with pytest.raises(LostLease, match="cancelled"):
        engine.checkpoint(CLAIM, "classify", {})


_RESEARCH = ("retrieval", "extraction", "extraction-complete", "approval", "drafting", "deliver")
_READY = Left("ready", "PENDING")
_HELD = Left("ready", "PENDING", leased=True)
_PLANNED = Left("ready", "PLANNED", True, 2)
_PENDING = Left("ready", "ACTION_PENDING", True, 2, "PENDING")
_GAP = Left("ready", "ACTION_PENDING", True, 2, "PENDING", 1)
_ACKNOWLEDGED = Left("ready", "ACTION_ACKNOWLEDGED", True, 3, "ACKNOWLEDGED", 1)
_REFUSED = Left("ready", "ACTION_REFUSED", True, 3, "REFUSED")
_FAILED = Left("failed", "FAILED", False, 3, "REFUSED")
_MAILED = Left("ready", "ACTION_ACKNOWLEDGED", True, 3, "ACKNOWLEDGED", 1)
_PARKED = Left("waiting", "ACTION_ACKNOWLEDGED", False, 3, "ACKNOWLEDGED", 1)
_WOKEN = Left("ready", "ACTION_ACKNOWLEDGED", False, 3, "ACKNOWLEDGED", 1)
_ONCE, _TWICE = Right(), Right(attempts=2)
_FRESH = Right(recovered=False)
_STALE = ("checkpoint", "write_refused")

CASES: dict[str, Case] = {
    "create": Case(nothing, create, Left(None), _READY, then(create, take_over), _FRESH, _FRESH),
    "claim": Case(create, work, _READY, _HELD, take_over, _FRESH, _ONCE),
    "load": Case(lose, work, _HELD, _HELD, take_over, _ONCE, _ONCE),
    "checkpoint": Case(
        create, work, _HELD, Left("ready", "CLASSIFIED", True, 1), take_over, _ONCE, _ONCE, subject="classify"
    ),
    "intent": Case(create, work, _PLANNED, _PENDING, take_over, _ONCE, _ONCE, subject="resolve-account"),
    "tool": Case(create, work, _PENDING, _GAP, take_over, _ONCE, _TWICE, subject="resolve-account"),
    "acknowledge": Case(create, work, _GAP, _ACKNOWLEDGED, take_over, _TWICE, _ONCE, subject="resolve-account"),
    "complete": Case(
        create, work, _ACKNOWLEDGED, Left("completed", "COMPLETED", False, 3, "ACKNOWLEDGED", 1), take_over,
        _ONCE, _FRESH,
    ),
    "wait": Case(
        create_research, work, _MAILED, _PARKED, then(deliver, take_over),
        Right(steps=_RESEARCH), Right(steps=_RESEARCH, recovered=False), subject="editor.approved",
    ),
    "deliver": Case(
        park, deliver, _PARKED, _WOKEN, then(deliver, take_over), Right(steps=_RESEARCH, recovered=False),
        Right(steps=_RESEARCH, recovered=False, refused=(("deliver", "event_repeated"),)), subject="editor.approved",
    ),
    "renew": Case(hold, renew, _HELD, _HELD, take_over, _ONCE, _ONCE),
    "release": Case(hold, release, _HELD, _READY, take_over, _ONCE, _FRESH),
    "postpone": Case(
        create, partial(work, fault="lose_reply"), _GAP, Left("ready", "ACTION_PENDING", False, 2, "PENDING", 1),
        take_over, _TWICE, Right(attempts=2, recovered=False), subject="resolve-account",
    ),
    "fail": Case(
        create, partial(work, fault="refuse"), _REFUSED, _FAILED, then(take_over, requeue, take_over), _ONCE, _FRESH
    ),
    "cancel": Case(
        hold, cancel, _HELD, Left("cancelled", "CANCELLED"), then(cancel, work_late, take_over),
        Right(0, False, (_STALE,), "cancelled", (), 0),
        Right(0, False, (("cancel", "write_refused"), _STALE), "cancelled", (), 0),
    ),
    "requeue": Case(
        bury, requeue, _FAILED, Left("ready", "PLANNED", False, 2, "PENDING"), then(requeue, take_over),
        _FRESH, Right(recovered=False, refused=(("requeue", "write_refused"),)),
    ),
    "expire": Case(hold, expire, _HELD, _HELD, then(expire, take_over), _ONCE, _ONCE),
}  # fmt: skip

SAME_ROWS = {"load"}  # it reads; every other transaction changes a row


def test_every_transaction_has_a_case() -> None:
    assert list(CASES) == list(TRANSACTIONS)


@pytest.mark.parametrize("edge", ["before", "after"])
@pytest.mark.parametrize("name", TRANSACTIONS)
def test_a_worker_lost_at_any_boundary_loses_nothing_and_doubles_nothing(
    engine: Engine, url: str, name: str, edge: Edge
) -> None:
    case, rule = CASES[name], CrashAt(name, edge, CASES[name].subject)
    patient = Engine(engine.database, policy=PATIENT)
    try:
        uncrashed = rows_at(patient, case, rule)
        outcomes = []
        for lose_worker in (lose_by_exception, lose_by_sigkill):
            patient.reset_database()
            case.prepare(patient)
            event, told = lose_worker(patient, rule, case.act)
            crashed = snapshot(patient)
            assert crashed == uncrashed
            assert what_is_left(patient) == (case.before if edge == "before" else case.after)
            assert faults(patient) == ([(event, str(rule))] if told else [])
            case.recover(patient)
            assert_right(patient, case.right_before if edge == "before" else case.right_after)
            outcomes.append((told, snapshot(patient)))
        assert outcomes[0] == outcomes[1]
    finally:
        patient.world.database.close()


@pytest.mark.parametrize("name", [name for name in TRANSACTIONS if name not in SAME_ROWS])
def test_a_transaction_changes_rows_between_its_edges(engine: Engine, name: str) -> None:
    """Otherwise "before" and "after" would be the same crash, and the test above could not fail."""
    patient, case = Engine(engine.database, policy=PATIENT), CASES[name]
    try:
        before = rows_at(patient, case, CrashAt(name, "before", case.subject))
        patient.reset_database()
        after = rows_at(patient, case, CrashAt(name, "after", case.subject))
    finally:
        patient.world.database.close()
    assert before != after


def rows_at(engine: Engine, case: Case, rule: CrashAt) -> dict[str, Any]:
    """The rows as they stand at a boundary that nothing happens at."""
    seen: list[dict[str, Any]] = []

    def look(boundary: Boundary) -> None:
        if rule.matches(boundary) and not seen:
            seen.append(snapshot(engine))

    case.prepare(engine)
    case.act(engine.with_hook(look))
    return seen[0]


def lose_by_exception(engine: Engine, rule: CrashAt, act: Act) -> tuple[str, bool]:
    existed = workflow_exists(engine, rule)
    with pytest.raises(CrashInjected):
        act(engine.with_hook(by_exception(engine, rule)))
    return "crash_injected", existed


def lose_by_sigkill(engine: Engine, rule: CrashAt, act: Act) -> tuple[str, bool]:
    existed = workflow_exists(engine, rule)
    where = engine.database.url.render_as_string(hide_password=False)
    process = start(crash_in_process, rule, act, open_patient, where, engine.database.schema)
    assert ended([process], 30) == [process]
    assert process.exitcode == -signal.SIGKILL
    return "worker_killed", existed


def open_patient(url: str, schema: str) -> Engine:
    return Engine(Database(url, schema, patience=10), policy=PATIENT)


def workflow_exists(engine: Engine, rule: CrashAt) -> bool:
    """Whether the loss can be told in a history: not before create and claim, which have no workflow yet."""
    return (rule.transaction, rule.edge) not in {("create", "before"), ("claim", "before")}


def what_is_left(engine: Engine) -> Left:
    found = rows(
        engine, "SELECT status, state, lease_owner IS NOT NULL AS leased, checkpoints AS steps FROM {s}.workflows"
    )
    if not found:
        return Left(None)
    intents = rows(engine, "SELECT status FROM {s}.action_intents")
    (effects,) = rows(engine, "SELECT count(*) AS n FROM {w}.tool_ledger")
    return Left(**found[0], intent=intents[0]["status"] if intents else None, effects=effects["n"])


def faults(engine: Engine) -> list[tuple[str, str]]:
    found = rows(engine, "SELECT event, subject FROM {s}.history WHERE event = ANY(:faults)", faults=list(FAULTS))
    return [(row["event"], row["subject"]) for row in found]


def assert_right(engine: Engine, right: Right) -> None:
    """The workflow ended as it must, each step once, and the history is whole and tells of every refusal."""
    (workflow,) = rows(
        engine, "SELECT status, entries, checkpoints, lease_owner, recovery_started_at FROM {s}.workflows"
    )
    steps = rows(engine, "SELECT step_id, position, error FROM {s}.steps ORDER BY position")
    assert workflow["status"] == right.status and workflow["lease_owner"] is None
    assert tuple(step["step_id"] for step in steps) == right.steps
    assert [step["position"] for step in steps] == list(range(1, workflow["checkpoints"] + 1))
    assert not any(step["error"] for step in steps)
    assert (workflow["recovery_started_at"] is not None) == right.recovered

    ledger = rows(engine, "SELECT attempts, idempotency_key FROM {w}.tool_ledger")
    assert len(ledger) == right.effects and sum(effect["attempts"] for effect in ledger) == right.attempts
    calls = rows(engine, "SELECT outcome FROM {w}.tool_attempts WHERE outcome <> 'refused' ORDER BY attempt_id")
    assert [call["outcome"] for call in calls] == ["effect", "repeated"][: right.attempts]

    history = rows(engine, "SELECT n, event, transaction, subject FROM {s}.history ORDER BY n")
    assert [entry["n"] for entry in history] == list(range(1, workflow["entries"] + 1))
    refused = [(e["transaction"], e["event"]) for e in history if e["event"].endswith(("_refused", "_repeated"))]
    assert refused == list(right.refused)
    for step in right.steps:
        written = [e for e in history if e["subject"] == step and e["event"] == "checkpoint_committed"]
        assert len(written) <= 1


_TABLES = {
    "{s}.workflows": "id",
    "{s}.steps": "position",
    "{s}.action_intents": "key",
    "{s}.history": "n",
    "{w}.tool_ledger": "effect_id",
    "{w}.tool_attempts": "attempt_id",
}
_MOMENTS = ("lease_expires_at", "next_run_at")


def snapshot(engine: Engine) -> dict[str, Any]:
    """Every row of both schemas, without what differs between two equal runs: times, the world's own numbers, and
    the laboratory's entries (with their place in the count)."""
    found = {}
    for table, order in _TABLES.items():
        moments = (
            ", ".join(f"{m} <= clock_timestamp() AS {m}_past" for m in _MOMENTS) if "workflows" in table else "1 AS one"
        )
        found[table] = [canonical(row) for row in rows(engine, f"SELECT *, {moments} FROM {table} ORDER BY {order}")]
    entries = found["{s}.history"]
    told = [entry for entry in entries if entry["event"] in FAULTS]
    found["{s}.history"] = [{**e, "n": n} for n, e in enumerate((e for e in entries if e not in told), 1)]
    for workflow in found["{s}.workflows"]:
        workflow["entries"] -= len(told)
    return found


def canonical(row: dict[str, Any]) -> dict[str, Any]:
    kept = {
        name: value for name, value in row.items() if not name.endswith("_id") or name in ("workflow_id", "step_id")
    }
    kept = {name: value for name, value in kept.items() if not name.endswith("_at") and name != "at"}
    for name in ("detail", "error"):
        if isinstance(kept.get(name), dict):
            kept[name] = {k: v for k, v in kept[name].items() if k not in ("asked_at", "replay_ms", "traceback")}
    return kept
