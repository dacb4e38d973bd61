"""What every transaction's statement keeps to: each rule holds, and the same check catches a statement that breaks it.

The headings below state the rules. Every test takes the real text of the statement. Where a rule is about what happens
inside a statement, one session holds its statement uncommitted and the second is seen to wait for it. `Call.but(...)` is
the deliberately broken text.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from agentflow import AgentFlowError, Claim, Database, Engine, LostLease, ToolCall, migrate
from agentflow.errors import DuplicateStep, OutcomeUnknown
from agentflow.schema import metadata
from agentflow.statements import ALL_STATEMENTS, TRANSACTIONS
from agentflow.transactions import Transactions
from tests.conftest import rows
from tests.support.helpers import eventually
from tests.support.isolation import Call, Session, asked, gapless, race, rows_of, tool_call, trial

ERROR = {"type": "Boom", "message": "boom", "traceback": ""}
GUARDED: dict[str, Callable[[Any, Claim], Any]] = {
    "checkpoint": lambda e, c: e.checkpoint(c, "classify", {"a": 1}),
    "intent": lambda e, c: e.create_action_intent(c, "mail", "mail", {"to": "x"}),
    "acknowledge": lambda e, c: e.acknowledge_action(c, {"paid": True}, "pay"),
    "complete": lambda e, c: e.complete_workflow(c, "done"),
    "wait": lambda e, c: e.wait_for_event(c, "approval", "go"),
    "renew": lambda e, c: e.renew_lease(c),
    "release": lambda e, c: e.release_lease(c),
    "postpone": lambda e, c: e.postpone(c, "classify", ERROR, 60.0),
    "fail": lambda e, c: e.fail_workflow(c, ERROR),
}
OUTSIDE: dict[str, Callable[[Any, Claim], Any]] = {
    "create": lambda e, c: e.create_workflows([c.input], name=c.name, workflow_ids=[c.workflow_id]),
    "claim": lambda e, c: e.claim_workflow("B", 600, names=[c.name]),
    "deliver": lambda e, c: e.deliver_event(c.workflow_id, "go", {"yes": 1}),
    "cancel": lambda e, c: e.cancel_workflow(c.workflow_id),
    "requeue": lambda e, c: e.requeue_workflow(c.workflow_id),
    "expire": lambda e, c: e.expire_lease(c.workflow_id),
}
COUNTED = ["checkpoint", "intent", "acknowledge", "complete", "wait", "postpone"]


def held(engine: Transactions, state: str = "held") -> Claim:
    """A workflow of its own name, held by A, with `pay` planned; or from there expired, waiting, failed, free."""
    name = f"w-{uuid.uuid4().hex[:8]}"
    engine.create_workflow("request", name=name, workflow_id=name)
    claim = engine.claim_workflow("A", 600, names=[name])
    assert claim
    engine.create_action_intent(claim, "pay", "pay", 5)
    if state == "expired":
        engine.expire_lease(name)
    elif state == "waiting":
        engine.wait_for_event(claim, "approval", "go")
    elif state == "failed":
        claim = engine.checkpoint(claim, "look", error=ERROR)
        engine.fail_workflow(claim, ERROR)
    elif state == "free":
        engine.release_lease(claim)
    return claim


def call(engine: Transactions, name: str, claim: Claim) -> Call:
    """The transaction's real text and parameters, for this claim or against it."""
    method = {**GUARDED, **OUTSIDE}[name]
    return asked(engine.database, lambda e: method(e, claim))


def refused_cleanly(engine: Transactions, this: Call, claim: Claim) -> bool:
    """Whether the statement was refused, and changed nothing but to number and record the refusal."""
    try:
        found = trial(engine.database, claim.workflow_id, this)
    except psycopg.Error:
        return False
    before, after = found.before, found.after
    refused = [row["outcome"] for row in found.answers[0]] == ["refused"]
    (entry,) = after["history"][len(before["history"]) :] or [{"event": None}]
    before["workflows"][0]["entries"] += 1
    before["history"].append(entry)
    return refused and before == after and gapless(after) and entry["event"] == "write_refused"


# -- every part of a statement about a claimed workflow selects from its guarded UPDATE --------------------------------

WRONG: dict[str, tuple[str, Callable[[Engine, Claim], Claim]]] = {
    "token": (r"AND fence_token = %(p_token)s", lambda _, c: replace(c, fence_token=7)),
    "owner": (r"AND lease_owner = %(p_worker)s", lambda _, c: replace(c, worker_id="somebody")),
    "lease": (r"AND lease_expires_at > clock_timestamp()", lambda e, c: e.expire_lease(c.workflow_id) or c),
    "checkpoints": (r"AND checkpoints = %(p_checkpoints)s", lambda _, c: replace(c, checkpoints=3)),
}
GUARDS = [(name, guard) for name in GUARDED for guard in WRONG if name in COUNTED or guard != "checkpoints"]


def failed_guards(engine: Engine, this: Call, claim: Claim) -> list[str]:
    """The guards that the answer of a refused statement names; test_log compares the entry and the log line with it."""
    named: list[str] = trial(engine.database, claim.workflow_id, this).answers[0][0]["guards"]
    return named


@pytest.mark.parametrize(("name", "guard"), GUARDS)
def test_each_guard_alone_refuses_and_a_statement_without_it_is_caught(engine: Engine, name: str, guard: str) -> None:
    condition, spoil = WRONG[guard]
    good = held(engine)
    assert not refused_cleanly(engine, call(engine, name, good), good)
    claim = spoil(engine, good)
    real = call(engine, name, claim)
    assert refused_cleanly(engine, real, claim) and failed_guards(engine, real, claim) == [guard]
    assert not refused_cleanly(engine, real.but(condition, ""), claim)


@pytest.mark.parametrize("name", GUARDED)
def test_a_refusal_names_all_the_guards_that_failed_and_the_error_what_each_met(engine: Engine, name: str) -> None:
    claim = held(engine)
    for _, spoil in WRONG.values():
        claim = spoil(engine, claim)
    all_of_them = [guard for statement, guard in GUARDS if statement == name]
    assert failed_guards(engine, call(engine, name, claim), claim) == all_of_them
    with pytest.raises(LostLease) as lost:
        GUARDED[name](engine, claim)
    assert list(lost.value.guards) == all_of_them
    met = [
        "the row's token is 1, not 7",
        "its owner is A, not somebody",
        "its lease has expired",
        "the row has 0 checkpoints",
    ]
    assert ", and ".join(met[: len(all_of_them)]) in lost.value.reason


@pytest.mark.parametrize(
    ("name", "state", "guards"),
    [
        ("cancel", "failed", ["status"]), ("requeue", "held", ["status"]), ("expire", "free", ["lease"]),
        ("expire", "waiting", ["status", "lease"]), ("deliver", "failed", ["status"]),
    ],
)  # fmt: skip
def test_what_a_person_does_in_vain_is_refused_by_name(
    engine: Engine, name: str, state: str, guards: list[str]
) -> None:
    claim = held(engine, state)
    assert failed_guards(engine, call(engine, name, claim), claim) == guards


def test_an_event_that_came_and_an_action_that_is_planned_otherwise_refuse_by_name(engine: Engine) -> None:
    claim = held(engine)
    other = asked(engine.database, lambda e: e.create_action_intent(claim, "pay", "pay", 6))
    done = asked(engine.database, lambda e: e.acknowledge_action(claim, None, "mail"))
    assert failed_guards(engine, other, claim) == failed_guards(engine, done, claim) == ["intent"]
    engine.deliver_event(claim.workflow_id, "go", 1)
    assert failed_guards(engine, call(engine, "deliver", claim), claim) == ["event"]


def test_who_may_not_load_is_told_why_and_nothing_is_read(engine: Engine) -> None:
    claim = held(engine)
    for spoilt, guards in ((replace(claim, fence_token=7), ("token",)), (replace(claim, worker_id="B"), ("owner",))):
        with pytest.raises(LostLease) as lost:
            engine.load(spoilt)
        assert lost.value.guards == guards
        (row,) = trial(
            engine.database, claim.workflow_id, asked(engine.database, lambda e, c=spoilt: e.load(c))
        ).answers[0]
        assert (row["outcome"], row["subject"]) == ("refused", None)


@pytest.mark.parametrize("name", GUARDED)
def test_the_guard_names_one_workflow(engine: Engine, name: str) -> None:
    claim, neighbour = held(engine), held(engine)
    mine = call(engine, name, claim)
    assert trial(engine.database, neighbour.workflow_id, mine).answers[0][0]["outcome"] == "committed"
    found = trial(engine.database, neighbour.workflow_id, mine)
    assert found.before == found.after
    broken = mine.but("WHERE id = %(p_workflow)s\n      AND lease_owner", "WHERE id LIKE 'w-%%'\n      AND lease_owner")
    try:
        spoiled = trial(engine.database, neighbour.workflow_id, broken)
    except psycopg.Error:
        return
    assert spoiled.before != spoiled.after


_OWN = r"fence_token,\s+lease_owner\s+FROM w\b"
_ROW = "%(p_token)s, %(p_worker)s FROM {s}.workflows WHERE id = %(p_workflow)s"
PARTS: dict[tuple[str, str], tuple[str, str]] = {
    ("checkpoint", "step"): (_OWN, _ROW),
    ("intent", "planned"): (_OWN, _ROW),
    ("acknowledge", "acknowledged"): (r"FROM w\s+WHERE i.workflow_id = w.id", "WHERE i.workflow_id = %(p_workflow)s"),
    ("wait", "step"): (
        rf"SELECT id, %\(p_step\)s, checkpoints, (.*?)payload, (.*?), {_OWN}\s+WHERE arrived",
        r"SELECT %(p_workflow)s, %(p_step)s, 1, \1'null'::json, \2, %(p_token)s, %(p_worker)s",
    ),
    ("renew", "entry"): (
        r"%\(p_detail\)s::json\s+FROM w\b",
        "%(p_detail)s::json FROM {s}.workflows WHERE id = %(p_workflow)s",
    ),
}


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_a_part_that_does_not_select_from_the_guarded_update_is_caught(engine: Engine, name: str, part: str) -> None:
    claim = replace(held(engine), fence_token=7)
    real = call(engine, name, claim)
    assert f"{part} AS (" in real.text
    assert refused_cleanly(engine, real, claim)
    old, new = PARTS[name, part]
    text, times = re.subn(old, new.replace("{s}", f'"{engine.database.schema}"'), real.text, flags=re.DOTALL)
    assert times == 1
    assert not refused_cleanly(engine, replace(real, text=text), claim)


# -- what a guard depends on is in the locked row ----------------------------------------------------------------------


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("order", [("wait", "deliver"), ("deliver", "wait")])
def test_wait_and_deliver_never_lose_the_event(engine: Engine, order: tuple[str, str], end: Any) -> None:
    claim = held(engine)
    first, second = (call(engine, name, claim) for name in order)
    found = race(engine.database, first, second, end)
    assert found.waited
    if end == "ROLLBACK":
        if order[1] == "wait":
            assert rows(engine, "SELECT status, waiting_for FROM {s}.workflows") == [
                {"status": "waiting", "waiting_for": "go"}
            ]
        engine.deliver_event(claim.workflow_id, "go", {"yes": 1})
    row = engine.get_workflow(claim.workflow_id) or {}
    assert (row["status"], row["waiting_for"], row["events"]) == ("ready", None, {"go": {"yes": 1}})
    arrived_first = order[0] == "deliver" and end == "COMMIT"
    assert [s["value"] for s in rows(engine, "SELECT value FROM {s}.steps")] == ([{"yes": 1}] if arrived_first else [])
    assert gapless(rows_of(engine.database, claim.workflow_id))


@pytest.mark.parametrize("order", [("wait", "deliver"), ("deliver", "wait")])
def test_a_table_of_events_is_caught_losing_the_wake_up(engine: Engine, order: tuple[str, str]) -> None:
    claim, s = held(engine), f'"{engine.database.schema}"'
    with Session(engine.database) as session:
        session.run(f"CREATE TABLE {s}.mail (workflow_id text, name text, payload text)")
    sees = f"EXISTS (SELECT FROM {s}.mail AS m WHERE m.workflow_id = workflows.id AND m.name = %(p_subject)s)"
    payload = (
        f"(SELECT m.payload::json FROM {s}.mail AS m WHERE m.workflow_id = workflows.id AND m.name = %(p_subject)s)"
    )
    wait = (
        call(engine, "wait", claim)
        .but("events ? %(p_subject)s", sees)
        .but("(events ->> %(p_subject)s)::json AS payload", payload + " AS payload")
    )
    deliver = replace(
        call(engine, "deliver", claim),
        text=f"""WITH m AS (INSERT INTO {s}.mail VALUES (%(p_workflow)s, %(p_subject)s, %(p_payload)s) RETURNING *)
                 UPDATE {s}.workflows SET status = 'ready', waiting_for = NULL FROM m
                 WHERE id = m.workflow_id AND waiting_for = m.name RETURNING id""",
    )
    try:
        race(engine.database, *((wait, deliver) if order[0] == "wait" else (deliver, wait)))
        (row,) = rows(engine, "SELECT status FROM {s}.workflows")
        assert row["status"] == "waiting", "the broken form was expected to lose the wake-up"
        assert len(rows(engine, "SELECT 1 FROM {s}.mail")) == 1
    finally:
        with Session(engine.database) as session:
            session.run(f"DROP TABLE {s}.mail")


def test_checkpoints_are_loaded_by_a_second_statement_that_counts_them(engine: Engine) -> None:
    claim = held(engine)
    load = asked(engine.database, lambda e: e.load(claim))
    s = f'"{engine.database.schema}"'
    in_one = replace(
        load,
        text=f"UPDATE {s}.workflows SET updated_at = clock_timestamp() WHERE id = %(p_workflow)s "
        "RETURNING checkpoints, "
        f"(SELECT count(*) FROM {s}.steps WHERE workflow_id = id) AS steps",
    )
    found = race(engine.database, call(engine, "checkpoint", claim), in_one)
    assert found.second == [{"checkpoints": 1, "steps": 0}], (
        "the guarded row is newer than the other tables: this is the trap"
    )
    with Session(engine.database) as session:
        (row,) = (r for r in session.run(load) if r["position"])
    assert (row["checkpoints"], row["position"]) == (1, 1)
    with Session(engine.database) as session:
        session.run(f"DELETE FROM {s}.steps")
    with pytest.raises(AgentFlowError, match="should have 1 checkpoints, but has 0"):
        engine.load(claim)


# -- a claim takes the oldest runnable row that nobody holds locked ----------------------------------------------------


def test_two_claims_take_different_rows_and_never_wait(engine: Engine) -> None:
    for n in range(2):
        engine.create_workflow("r", workflow_id=f"c{n}")
    calls = [asked(engine.database, lambda e, w=w: e.claim_workflow(w, 60)) for w in "AB"]
    broken = calls[1].but(" SKIP LOCKED", "")
    found = race(engine.database, calls[0], calls[1], "ROLLBACK")
    assert [found.first[0]["id"], found.second[0]["id"], found.waited] == ["c0", "c1", False]
    engine.reset_database()
    engine.create_workflow("r", workflow_id="c0")
    assert race(engine.database, calls[0], calls[1], "ROLLBACK").second == []
    assert race(engine.database, calls[0], broken, "ROLLBACK").waited


def test_the_oldest_runnable_row_is_claimed(engine: Engine) -> None:
    engine.create_workflows(["r"] * 5, workflow_ids=["e", "d", "c", "b", "a"])
    real = asked(engine.database, lambda e: e.claim_workflow("A", 60))
    order = [row["id"] for answer in trial(engine.database, "e", *[real] * 5).answers for row in answer]
    assert order == ["e", "d", "c", "b", "a"]
    broken = trial(engine.database, "e", real.but("ORDER BY next_run_at", "ORDER BY id"))
    assert broken.answers[0][0]["id"] != "e"


def test_a_foreign_key_check_hides_no_row_from_claim(engine: Engine) -> None:
    engine.create_workflow("r", workflow_id="c0")
    real = asked(engine.database, lambda e: e.claim_workflow("A", 60))
    check = replace(real, text=f'SELECT FROM "{engine.database.schema}".workflows FOR KEY SHARE')
    assert race(engine.database, check, real.but("FOR NO KEY UPDATE", "FOR UPDATE")).second == []
    assert race(engine.database, check, real).second[0]["id"] == "c0"


def test_each_claim_has_a_higher_token_and_a_mark_of_recovery_if_anybody_held_it(engine: Engine) -> None:
    claim = held(engine, "expired")
    real = call(engine, "claim", claim)
    row = trial(engine.database, claim.workflow_id, real).after["workflows"][0]
    assert (row["fence_token"], row["recovered"], row["crashes"], row["lease_owner"]) == (2, True, 1, "B")
    broken = trial(
        engine.database,
        claim.workflow_id,
        real.but("SET fence_token = fence_token + 1", "SET fence_token = fence_token + 0"),
    )
    assert broken.after["workflows"][0]["fence_token"] == 1
    same_name = replace(real, params={**real.params, "p_worker": "A"})
    assert trial(engine.database, claim.workflow_id, same_name).after["workflows"][0]["recovered"]
    released = held(engine, "free")
    row = trial(engine.database, released.workflow_id, call(engine, "claim", released)).after["workflows"][0]
    assert (row["fence_token"], row["recovered"], row["crashes"]) == (2, False, 0)


@pytest.mark.parametrize("other", ["deliver", "renew", "checkpoint", "create"])
def test_a_row_that_a_claim_skipped_is_seen_by_the_second_look_and_claimed_afterwards(
    engine: Engine, other: str
) -> None:
    claim = held(engine, "free")
    names = [claim.name]
    seen: list[bool] = []
    found = race(
        engine.database, call(engine, "deliver" if other != "create" else other, claim), call(engine, "claim", claim),
        meanwhile=lambda: seen.append(engine.runnable(names)),
    )  # fmt: skip
    assert (found.second, found.waited, seen) == ([], False, [True])
    assert engine.claim_workflow("B", names=names) is not None
    assert not engine.runnable(names)


# -- safety rests on the token and on unique keys, never on the clock --------------------------------------------------


@pytest.mark.parametrize("name", GUARDED)
def test_the_token_alone_refuses_a_stale_worker_of_the_same_name_whatever_the_clock_says(
    engine: Engine, name: str
) -> None:
    stale = held(engine)
    engine.expire_lease(stale.workflow_id)
    assert engine.claim_workflow("A", 600, names=[stale.name]) is not None
    clockless = call(engine, name, stale).but("AND lease_expires_at > clock_timestamp()", "")
    assert refused_cleanly(engine, clockless, stale)
    assert not refused_cleanly(engine, clockless.but("AND fence_token = %(p_token)s", ""), stale)


def test_a_write_that_passes_after_its_lease_is_still_the_only_one(engine: Engine) -> None:
    """The guard is not re-checked when the blocker rolled back: the window that only the token closes."""
    claim = held(engine)
    write, again = (call(engine, "checkpoint", claim) for _ in range(2))
    lock = replace(write, text=f'SELECT FROM "{engine.database.schema}".workflows FOR UPDATE')
    with Session(engine.database) as session:
        session.run(
            f"UPDATE \"{engine.database.schema}\".workflows SET lease_expires_at = clock_timestamp() + interval '0.3 s'"
        )

        def expired() -> bool:
            return bool(
                rows(engine, "SELECT lease_expires_at <= clock_timestamp() AS over FROM {s}.workflows")[0]["over"]
            )

        found = race(engine.database, lock, write, "ROLLBACK", meanwhile=lambda: eventually(expired))
    assert found.second[0]["outcome"] == "committed"
    thief = engine.claim_workflow("B", 600, names=[claim.name])
    assert thief is not None
    assert (thief.fence_token, thief.checkpoints) == (2, 1)
    assert refused_cleanly(engine, again, claim)


def test_the_worlds_unique_key_lets_two_calls_at_once_leave_one_effect(engine: Engine) -> None:
    real = tool_call(engine.database, ToolCall("w:pay", "pay", None, "w"))
    found = race(engine.database, real, real)
    assert found.waited
    assert [found.first[0]["attempts"], found.second[0]["attempts"]] == [1, 2]
    assert rows(engine, "SELECT attempts FROM {w}.tool_ledger") == [{"attempts": 2}]
    keyless = replace(real, params={**real.params, "p_key": None})
    race(engine.database, keyless, keyless)
    assert len(rows(engine, "SELECT 1 FROM {w}.tool_ledger")) == 3


# -- time is the database's clock_timestamp() --------------------------------------------------------------------------


def test_the_clock_is_read_after_a_lock_wait_and_a_statement_that_reads_it_before_is_caught(
    engine: Engine,
) -> None:
    def after_the_lease(change: Callable[[Call], Call]) -> str:
        claim = held(engine)
        with Session(engine.database) as session:
            session.run(
                f'UPDATE "{engine.database.schema}".workflows SET lease_expires_at = clock_timestamp() '
                f"+ interval '0.3 s' WHERE id = '{claim.workflow_id}'"
            )

        def expired() -> bool:
            query = "SELECT lease_expires_at <= clock_timestamp() AS over FROM {s}.workflows WHERE id = :i"
            return bool(rows(engine, query, i=claim.workflow_id)[0]["over"])

        write = change(call(engine, "checkpoint", claim))
        found = race(engine.database, call(engine, "deliver", claim), write, meanwhile=lambda: eventually(expired))
        assert found.waited
        return str(found.second[0]["outcome"])

    assert after_the_lease(lambda write: write) == "refused"
    for clock in ("now()", "statement_timestamp()"):
        assert (
            after_the_lease(lambda w, c=clock: w.but("lease_expires_at > clock_timestamp()", f"lease_expires_at > {c}"))
            == "committed"
        )


_TIMES = re.compile(
    r"\b(now\(\)|statement_timestamp\(\)|transaction_timestamp\(\)|current_timestamp|localtimestamp|'now')",
    re.IGNORECASE,
)


def test_no_statement_reads_another_clock() -> None:
    def other_clocks(text: str) -> list[str]:
        return _TIMES.findall(text.replace("'asked_at', statement_timestamp()", ""))  # only told, never compared

    assert {name: other_clocks(s.text) for name, s in TRANSACTIONS.items() if other_clocks(s.text)} == {}
    assert other_clocks(TRANSACTIONS["renew"].text.replace("clock_timestamp()", "now()")) != []


def times_in(params: Any) -> list[str]:
    """The parameters that carry a point in time: an instant, or a number as large as one."""
    return [
        key for key, value in params.items()
        if hasattr(value, "isoformat") or (isinstance(value, int | float) and value > 1e8)
    ]  # fmt: skip


def test_no_parameter_of_any_transaction_is_a_point_in_time(engine: Engine) -> None:
    claim = held(engine)
    calls = {name: call(engine, name, claim) for name in {**GUARDED, **OUTSIDE}}
    calls["load"] = asked(engine.database, lambda e: e.load(claim))
    calls["tool"] = tool_call(engine.database, ToolCall("k", "pay", None, "w"))
    assert set(calls) == set(TRANSACTIONS)
    assert {name: times_in(c.params) for name, c in calls.items() if times_in(c.params)} == {}
    assert times_in({**calls["renew"].params, "p_until": time.time()}) == ["p_until"]


# -- no transaction is open while user code runs -----------------------------------------------------------------------


class _OpensTransactions(Database):
    """The broken engine: it begins a transaction, does its statement, and commits when it next has something to do."""

    def _take(self) -> Any:
        cursor = super()._take()
        cursor.execute("COMMIT")
        cursor.execute("BEGIN")
        return cursor


@pytest.mark.parametrize("kind", [Database, _OpensTransactions])
def test_no_transaction_is_open_while_a_step_or_a_tool_runs(own_database: Any, kind: type[Database]) -> None:
    migrate(own_database(), laboratory=True)
    database, seen = own_database(kind), []

    def look() -> int:
        with Session(database) as session:
            seen.extend(session.run(
                "SELECT state FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'agentflow' "
                "AND xact_start IS NOT NULL"
            ))  # fmt: skip
        return len(seen)

    def workflow(run: Any, request: Any) -> Any:
        run.step("one", look)
        run.step("two", look)
        return run.side_effect("act", key="act")

    engine = Engine(database, workflows={"workflow": workflow}, tool=lambda _: look())
    engine.create_workflow(None, name="workflow")
    engine.run_once("w")
    engine.close()
    assert bool(seen) == (kind is _OpensTransactions)


def test_a_server_that_ends_idle_transactions_does_not_notice_a_slow_step(own_database: Any) -> None:
    database = own_database()
    migrate(database, laboratory=True)
    with Session(database) as session:
        name = session.run("SELECT current_database() AS name")[0]["name"]
        for setting in ("idle_in_transaction_session_timeout", "transaction_timeout"):
            session.run(f"ALTER DATABASE {name} SET {setting} = '150ms'")

    def slow() -> str:
        with Session(database) as session:
            session.run("SET transaction_timeout = 0")
            session.run("SELECT pg_sleep(0.4)")
        return "slept"

    def workflow(run: Any, request: Any) -> Any:
        run.step("one", slow)
        return run.side_effect("act", key="act")

    engine = Engine(own_database(), workflows={"workflow": workflow}, tool=lambda _: slow())
    engine.create_workflow(None, name="workflow")
    assert engine.run_once("w")
    assert rows(engine, "SELECT status, attempts, crashes, fence_token FROM {s}.workflows") == [
        {"status": "completed", "attempts": 0, "crashes": 0, "fence_token": 1}
    ]
    engine.close()


# -- after a lost connection the guarded statement is issued again, and a plain read proves nothing --------------------


def test_a_plain_read_says_absent_while_the_lost_statement_is_queued_and_the_guarded_one_tells(
    engine: Engine,
) -> None:
    def outcome(change: Callable[[Call], Call]) -> tuple[int, int, str]:
        """What a plain read says, what is there in the end, and what the same statement answers when issued again."""
        claim = held(engine)
        s = f'"{engine.database.schema}"'
        write = change(call(engine, "checkpoint", claim))
        with Session(engine.database) as blocker, Session(engine.database) as lost, Session(engine.database) as again:
            blocker.run("BEGIN")
            blocker.run(f"SELECT FROM {s}.workflows WHERE id = '{claim.workflow_id}' FOR UPDATE")
            first = lost.start(write)
            eventually(lambda: lost.waits(engine.database, blocker.pid))
            read = len(again.run(f"SELECT 1 FROM {s}.steps WHERE workflow_id = '{claim.workflow_id}'"))
            second = again.start(write)
            eventually(lambda: again.waits(engine.database))
            blocker.run("COMMIT")
            answers = []
            for future in (first, second):
                try:
                    answers.append(str(future.result(20)[0]["outcome"]))
                except psycopg.errors.UniqueViolation:
                    answers.append("23505")
            there = len(again.run(f"SELECT 1 FROM {s}.steps WHERE workflow_id = '{claim.workflow_id}'"))
        assert gapless(rows_of(engine.database, claim.workflow_id))
        return read, there, "+".join(sorted(answers))

    assert outcome(lambda write: write) == (0, 1, "committed+refused")
    assert outcome(lambda w: w.but("AND checkpoints = %(p_checkpoints)s", "")) == (0, 1, "23505+committed")


# -- one UPDATE of a row per statement, and no bind is named like a column ---------------------------------------------

COLUMNS = {column.name for table in metadata.tables.values() for column in table.columns}


def misnamed_binds(text: str) -> list[str]:
    """The binds that are named like a column of any table, or lack the prefix."""
    return [bind for bind in re.findall(r"%\((\w+)\)s", text) if bind in COLUMNS or not bind.startswith("p_")]


def updates_of_the_row(text: str) -> int:
    """How many UPDATEs of the workflow's row could run in one execution: one that needs the other to have matched
    nothing does not count."""
    parts = re.split(r"(?=UPDATE \S*\bworkflows\b)", text)[1:]
    return sum("NOT EXISTS (SELECT FROM w)" not in part.split("RETURNING")[0] for part in parts)


def returns_rows(text: str) -> bool:
    """Whether the statement's end gives rows back."""
    end = re.split(r"\n\)", text)[-1]
    return text.startswith("SELECT") or "SELECT" in end or "RETURNING" in end


@pytest.mark.parametrize("name", ALL_STATEMENTS)
def test_binds_are_prefixed_the_row_is_updated_once_and_every_statement_gives_rows_back(name: str) -> None:
    text = ALL_STATEMENTS[name].text
    assert misnamed_binds(text) == []
    assert updates_of_the_row(text) <= 1
    assert returns_rows(text)


def test_its_checks_catch_broken_texts() -> None:
    text = TRANSACTIONS["checkpoint"].text
    assert misnamed_binds(text.replace("%(p_state)s", "%(state)s")) == ["state", "state"]
    assert updates_of_the_row(text.replace("AND NOT EXISTS (SELECT FROM w)", "")) == 2
    assert not returns_rows(text[: text.index("SELECT 'committed'")] + "UPDATE agentflow.workflows SET state = 'X'")


def test_a_second_update_of_the_row_is_ignored_in_silence(engine: Engine) -> None:
    """Why the rule is there: PostgreSQL neither does it nor says so."""
    claim = held(engine)
    real = call(engine, "renew", claim)
    twice = real.but(
        "entry AS (",
        f"""again AS (
        UPDATE "{engine.database.schema}".workflows SET state = 'TWICE' WHERE id = %(p_workflow)s RETURNING id
    ), entry AS (""",
    )
    found = trial(engine.database, claim.workflow_id, twice)
    assert found.answers[0][0]["outcome"] == "committed"
    assert found.after["workflows"][0]["state"] == "ACTION_PENDING"


CALLS: dict[str, Callable[[Any, Claim], Any]] = {**GUARDED, **OUTSIDE, "load": lambda e, c: e.load(c)}


@pytest.mark.parametrize("name", [name for name in TRANSACTIONS if name not in ("claim", "tool")])
def test_no_row_back_is_never_taken_for_success(engine: Engine, name: str) -> None:
    claim = held(engine)
    mute = Engine(engine.database.with_door(lambda *_: []))
    with pytest.raises((LostLease, AgentFlowError)):
        CALLS[name](mute, claim)


def test_no_row_back_from_claim_is_no_claim(engine: Engine) -> None:
    assert Engine(engine.database.with_door(lambda *_: [])).claim_workflow("w") is None


# -- all of them, in pairs -------------------------------------------------------------------------------------------

PAIRS = {
    "held": [*GUARDED, "create", "deliver", "cancel", "expire", "claim", "requeue"],
    "expired": ["checkpoint", "renew", "wait", "complete", "claim", "expire", "cancel", "deliver"],
    "waiting": ["deliver", "cancel", "claim", "create", "checkpoint"],
    "failed": ["requeue", "deliver", "cancel", "fail", "claim", "create"],
    "free": ["claim", "deliver", "cancel", "release", "create", "expire"],
}
_TOLD = (
    "outcome",
    "event",
    "n",
    "id",
    "status",
    "lease_owner",
    "fence_token",
    "checkpoints",
    "arrived",
    "payload",
    "same",
    "inserted",
    "held_by",
)


def told(answer: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: row[key] for key in _TOLD if key in row} for row in answer]


@pytest.mark.parametrize(("state", "first"), [(state, name) for state, names in PAIRS.items() for name in names])
def test_two_transactions_at_once_equal_one_after_the_other(engine: Engine, state: str, first: str) -> None:
    for second in PAIRS[state]:
        for end in ("COMMIT", "ROLLBACK"):
            claim = held(engine, state)
            database, workflow = engine.database, claim.workflow_id
            one = call(engine, first, claim)
            other = replace(claim, worker_id="C") if first == second == "claim" else claim
            two = call(engine, second, other)
            serial = trial(database, workflow, one, two)
            swapped = trial(database, workflow, two, one)
            alone = trial(database, workflow, two)
            found = race(database, one, two, end)  # type: ignore[arg-type]
            after = rows_of(database, workflow)
            assert gapless(after), (second, end)
            if second == "claim" and not found.second and not found.waited:
                continue  # it skipped a locked row, which a test above covers
            if refused_by_what_was(found.second):  # the engine asks again
                with Session(database) as session:
                    assert told(session.run(two))[0]["outcome"] == told(serial.answers[1])[0]["outcome"] == "committed"
                assert gapless(rows_of(database, workflow))
                continue
            right = (
                [(alone.after, told(alone.answers[0]))] if end == "ROLLBACK"
                else [(serial.after, told(serial.answers[1])), (swapped.after, told(swapped.answers[0]))]
            )  # fmt: skip
            assert (after, told(found.second)) in right, (second, end, after)


def refused_by_what_was(answer: list[dict[str, Any]]) -> bool:
    """Whether it was refused by the row as it was when the statement began, and not by the row that it shows."""
    return bool(answer and answer[0].get("outcome") == "refused" and answer[0]["guards"] in ([], ["intent"]))


@pytest.mark.parametrize(("first", "second", "state"), [
    ("fail", "requeue", "held"), ("requeue", "cancel", "failed"), ("requeue", "deliver", "failed"),
    ("claim", "expire", "free"),
])  # fmt: skip
def test_what_became_possible_while_a_statement_waited_is_done_and_not_refused(
    engine: Engine, first: str, second: str, state: str
) -> None:
    claim = held(engine, state)
    mine = Engine(engine.database)
    with Session(engine.database) as one, ThreadPoolExecutor(1) as thread:
        one.run("BEGIN")
        one.run(call(engine, first, claim))
        future = thread.submit({**GUARDED, **OUTSIDE}[second], mine, claim)
        with Session(engine.database) as watcher:
            waiting = f"SELECT 1 FROM pg_stat_activity WHERE {one.pid} = ANY (pg_blocking_pids(pid))"
            eventually(lambda: watcher.run(waiting))
        one.run("COMMIT")
        future.result(20)
    after = rows_of(engine.database, claim.workflow_id)
    assert gapless(after)
    assert after["history"][-1]["transaction"] == second
    assert after["history"][-1]["event"] != "write_refused"


def test_the_loser_of_cancel_complete_and_fail_is_told(engine: Engine) -> None:
    for winner, loser, status in [("cancel", "complete", "cancelled"), ("complete", "cancel", "completed"),
                                  ("fail", "cancel", "failed"),
                                  ("cancel", "fail", "cancelled")]:  # fmt: skip
        claim = held(engine)
        found = race(engine.database, call(engine, winner, claim), call(engine, loser, claim))
        assert found.waited
        assert (found.second[0]["outcome"], found.second[0]["status"]) == ("refused", status)


def test_a_renewal_after_expiry_is_refused_and_revives_nothing(engine: Engine) -> None:
    claim = held(engine, "expired")
    assert refused_cleanly(engine, call(engine, "renew", claim), claim)
    with pytest.raises(LostLease, match="its lease has expired"):
        engine.renew_lease(claim)


def test_a_write_behind_the_renewal_of_its_lease_is_not_robbed(engine: Engine) -> None:
    claim = replace(held(engine), lease_seconds=600)
    with Session(engine.database) as one, ThreadPoolExecutor(1) as thread:
        one.run(
            f"UPDATE \"{engine.database.schema}\".workflows SET lease_expires_at = clock_timestamp() + interval '0.3 s'"
        )
        one.run("BEGIN")
        assert one.run(call(engine, "renew", claim))[0]["outcome"] == "committed"
        over = "SELECT lease_expires_at <= clock_timestamp() AS over FROM {s}.workflows"
        eventually(lambda: rows(engine, over)[0]["over"])
        future = thread.submit(engine.checkpoint, claim, "classify", 1)
        with Session(engine.database) as watcher:
            eventually(
                lambda: watcher.run(f"SELECT 1 FROM pg_stat_activity WHERE {one.pid} = ANY (pg_blocking_pids(pid))")
            )
        one.run("COMMIT")
        assert future.result(20).checkpoints == 1
    assert gapless(rows_of(engine.database, claim.workflow_id))


def test_a_renewal_in_doubt_that_is_refused_is_never_taken_for_done_because_a_step_was_recorded(engine: Engine) -> None:
    claim = held(engine)
    engine.checkpoint(claim, "classify", 1)
    engine.expire_lease(claim.workflow_id)
    with Session(engine.database) as session:
        refused = session.run(call(engine, "renew", claim))

    sent: list[str] = []

    def in_doubt(name: str, *_: Any) -> Any:
        sent.append(name)
        if len(sent) == 1:
            raise OutcomeUnknown("the connection was lost")
        return refused

    with pytest.raises(LostLease, match="expired"):
        Transactions(engine.database.with_door(in_doubt)).renew_lease(claim)
    assert sent == ["renew", "renew"]


def test_a_step_that_is_recorded_already_is_refused_by_name_and_the_hook_is_told(engine: Engine) -> None:
    seen: list[Any] = []
    claim = engine.checkpoint(held(engine), "classify", 1)
    with pytest.raises(DuplicateStep, match=f"Workflow '{claim.workflow_id}', call 2: recorded step 'classify' once"):
        Engine(engine.database, hook=seen.append).checkpoint(claim, "classify", 2)
    assert [(b.transaction, b.edge, b.outcome) for b in seen] == [
        ("checkpoint", "before", None),
        ("checkpoint", "after", "refused"),
    ]
    assert rows(engine, "SELECT value FROM {s}.steps") == [{"value": 1}]
    assert gapless(rows_of(engine.database, claim.workflow_id))
