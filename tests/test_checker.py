"""The independent checker finds each fault planted by hand into the tables of a finished laboratory, and none in a clean one."""

from __future__ import annotations

import ast
import inspect
import uuid
from dataclasses import dataclass

import pytest
from sqlalchemy import text

from agentflow import Database, Engine, Policy
from agentflow.lab import checker, checker_actions, checker_rules
from agentflow.lab.checker import RULES, Fault, check
from agentflow.lab.laboratory import LEASE_SECONDS
from agentflow.lab.soak import soak
from tests.conftest import drop

LONG = Policy(lease_seconds=LEASE_SECONDS)


@pytest.fixture
def finished(engine: Engine) -> Engine:
    """A finished laboratory: one workflow recovered in the gap, one that waited for an event, one that still waits."""
    own = Engine(engine.database, policy=LONG)
    own.create_workflow("password reset", workflow_id="recovered")
    claim = own.claim_workflow("A.1")
    assert claim
    for transactions in range(4):  # classify, plan, intent, tool: then A is lost
        assert own.advance_one_step(claim, crash_after_tool_commit=False) if transactions < 3 else True
    own.execute_simulated_tool("recovered:resolve-account")
    own.expire_lease("recovered")
    own.run_until_idle("B.1")
    own.create_workflow("move my notes", name="approval_agent", workflow_id="approved")
    own.run_until_idle("C.1")
    own.deliver_event("approved", "approval", True)
    own.run_until_idle("D.1")
    own.create_workflow("login", name="approval_agent", workflow_id="parked")
    own.run_until_idle("E.1")
    own.world.database.close()
    return own


@dataclass(frozen=True)
class Planted:
    """A fault planted by hand, and where the checker must see it."""

    name: str
    sql: str
    rule: str
    table: str
    row: str


def _entry(event: str, transaction: str, n: str, worker: str = "'B.1'", token: str = "2") -> str:
    return (
        "UPDATE {s}.workflows SET entries = entries + 1 WHERE id = 'recovered'; "
        "INSERT INTO {s}.history (workflow_id, n, event, transaction, worker, fence_token) "
        f"SELECT 'recovered', {n}, '{event}', '{transaction}', {worker}, {token} "
        "FROM {s}.history WHERE workflow_id = 'recovered'"
    )


_OTHER = """'{{"account_unlocked":false}}'"""
PLANTED = [
    Planted(
        "a second effect under one key",
        "UPDATE {w}.tool_ledger SET remembered = false; INSERT INTO {w}.tool_ledger "
        "(idempotency_key, workflow_id, action, arguments, result) "
        "SELECT idempotency_key, workflow_id, action, arguments, result FROM {w}.tool_ledger WHERE workflow_id = 'recovered'",
        "one effect for each planned action", "tool_ledger", "recovered",
    ),
    Planted(
        "an effect that nobody planned",
        "INSERT INTO {w}.tool_ledger (idempotency_key, workflow_id, action, arguments, result) "
        "VALUES ('recovered:other', 'recovered', 'other', 'null', 'true')",
        "one effect for each planned action", "tool_ledger", "recovered",
    ),
    Planted(
        "an effect without a key",
        "UPDATE {w}.tool_ledger SET idempotency_key = NULL WHERE workflow_id = 'approved'",
        "one effect for each planned action", "tool_ledger", "approved",
    ),
    Planted(
        "the effect is gone",
        "DELETE FROM {w}.tool_ledger WHERE workflow_id = 'approved'",
        "the recorded result is the tool's", "action_intents", "approved resolve-account",
    ),
    Planted(
        "the world did something else than what is recorded",
        f"UPDATE {{w}}.tool_ledger SET result = {_OTHER} WHERE workflow_id = 'recovered'",
        "the recorded result is the tool's", "action_intents", "recovered resolve-account",
    ),
    Planted(
        "a checkpoint holds another result than the acknowledgment",
        f"UPDATE {{s}}.steps SET value = {_OTHER} WHERE workflow_id = 'recovered' AND kind = 'side_effect'",
        "the recorded result is the tool's", "steps", "recovered resolve-account",
    ),
    Planted(
        "an action of a completed workflow is pending",
        "UPDATE {s}.action_intents SET status = 'PENDING', tool_result = NULL, acknowledged_at = NULL "
        "WHERE workflow_id = 'recovered'",
        "completed means acknowledged", "action_intents", "recovered resolve-account",
    ),
    Planted(
        "a planned action is gone",
        "DELETE FROM {s}.action_intents WHERE workflow_id = 'recovered'",
        "completed means acknowledged", "action_intents", "recovered resolve-account",
    ),
    Planted(
        "an idempotency key that another action could have",
        "UPDATE {s}.action_intents SET idempotency_key = 'resolve-account' WHERE workflow_id = 'recovered'",
        "a planned action has its entry and its key", "action_intents", "recovered resolve-account",
    ),
    Planted(
        "an action planned by somebody else",
        "UPDATE {s}.action_intents SET worker = 'Z.1' WHERE workflow_id = 'recovered'",
        "a planned action has its entry and its key", "action_intents", "recovered resolve-account",
    ),
    Planted(
        "a checkpoint is gone",
        "DELETE FROM {s}.steps WHERE workflow_id = 'recovered' AND step_id = 'plan'",
        "each checkpoint was written once", "steps", "recovered position 2",
    ),
    Planted(
        "a checkpoint that nothing tells of",
        "INSERT INTO {s}.steps (workflow_id, step_id, position, kind, state, value, fence_token, worker) "
        "VALUES ('recovered', 'extra', 4, 'step', 'EXTRA', '1', 2, 'B.1')",
        "each checkpoint was written once", "steps", "recovered extra",
    ),
    Planted(
        "a checkpoint at another position",
        "UPDATE {s}.steps SET position = 7 WHERE workflow_id = 'recovered' AND step_id = 'plan'",
        "checkpoints are counted and numbered", "steps", "recovered plan",
    ),
    Planted(
        "a row that counts one checkpoint too many",
        "UPDATE {s}.workflows SET checkpoints = checkpoints + 1 WHERE id = 'recovered'",
        "checkpoints are counted and numbered", "workflows", "recovered",
    ),
    Planted(
        "a checkpoint under an older token",
        "UPDATE {s}.steps SET fence_token = 1, worker = 'A.1' WHERE workflow_id = 'recovered' AND kind = 'side_effect'",
        "each checkpoint was written once", "steps", "recovered resolve-account",
    ),
    Planted(
        "an entry under an older token",
        "UPDATE {s}.history SET fence_token = 1 WHERE workflow_id = 'recovered' AND event = 'action_acknowledged'",
        "only the holder writes", "history", "recovered n=",
    ),
    Planted(
        "an entry of a worker that held nothing",
        "UPDATE {s}.history SET worker = 'Z.1' WHERE workflow_id = 'recovered' AND event = 'workflow_completed'",
        "only the holder writes", "history", "recovered n=",
    ),
    Planted(
        "an entry is missing",
        "DELETE FROM {s}.history WHERE workflow_id = 'recovered' AND event = 'lease_expired_for_test'",
        "entries are numbered without a gap", "history", "recovered n=",
    ),
    Planted(
        "the last entry is missing",
        "DELETE FROM {s}.history WHERE workflow_id = 'parked' AND event = 'workflow_waiting'",
        "entries are numbered without a gap", "workflows", "parked",
    ),
    Planted(
        "an entry from before its predecessor",
        "UPDATE {s}.history SET at = at - interval '1 hour' WHERE workflow_id = 'approved' AND event = 'event_delivered'",
        "entries are numbered without a gap", "history", "approved n=",
    ),
    Planted(
        "a history without its beginning",
        "UPDATE {s}.history SET event = 'lease_renewed' WHERE workflow_id = 'approved' AND n = 1",
        "a history begins with the creation", "history", "approved n=1",
    ),
    Planted(
        "two claims with one token",
        "UPDATE {s}.history SET fence_token = 1 WHERE workflow_id = 'recovered' AND transaction = 'claim'",
        "each claim raises the token by one", "history", "recovered n=",
    ),
    Planted(
        "a token that no claim gave",
        "UPDATE {s}.workflows SET fence_token = 9 WHERE id = 'approved'",
        "each claim raises the token by one", "workflows", "approved",
    ),
    Planted(
        "a take-over from somebody else",
        "UPDATE {s}.history SET detail = '{{\"recovered\": true, \"held_by\": \"Z.1\"}}' WHERE workflow_id = 'recovered' "
        "AND transaction = 'claim' AND fence_token = 2",
        "a take-over names whom it took over from", "history", "recovered n=",
    ),
    Planted(
        "a take-over that pretends to be none",
        "UPDATE {s}.history SET detail = '{{\"recovered\": false}}' WHERE workflow_id = 'recovered' "
        "AND transaction = 'claim' AND fence_token = 2",
        "a take-over names whom it took over from", "history", "recovered n=",
    ),
    Planted(
        "completed twice", _entry("workflow_completed", "complete", "max(n) + 1"), "an end is an end", "history", "recovered n="
    ),
    Planted(
        "a write after the end", _entry("lease_renewed", "renew", "max(n) + 1"), "an end is an end", "history", "recovered n="
    ),
    Planted(
        "another status than the history's",
        "UPDATE {s}.workflows SET status = 'cancelled', state = 'CANCELLED', result = NULL, "
        "completed_at = NULL WHERE id = 'approved'",
        "the status is the history's", "workflows", "approved",
    ),
    Planted(
        "a state that is not the end's",
        "UPDATE {s}.workflows SET state = 'PLANNED' WHERE id = 'approved'",
        "the status is the history's", "workflows", "approved",
    ),
    Planted(
        "a workflow that nobody finished",
        "INSERT INTO {s}.workflows (id, name, input) VALUES ('lost', 'support_agent', '1'); INSERT INTO {s}.history "
        "(workflow_id, n, event, transaction) VALUES ('lost', 1, 'workflow_created', 'create')",
        "the status is the history's", "workflows", "lost",
    ),
    Planted(
        "an attempt that the world does not count",
        "UPDATE {w}.tool_ledger SET attempts = 5 WHERE workflow_id = 'recovered'",
        "attempts are counted and in time", "tool_ledger", "recovered",
    ),
    Planted(
        "an effect that came after its acknowledgment",
        "UPDATE {w}.tool_attempts SET came_at = came_at + interval '1 hour' WHERE workflow_id = 'approved'",
        "attempts are counted and in time", "tool_attempts", "approved",
    ),
    Planted(
        "a wait that got another payload",
        "UPDATE {s}.steps SET value = 'false' WHERE workflow_id = 'approved' AND kind = 'wait'",
        "each event has one payload", "steps", "approved approval",
    ),
    Planted(
        "an event that nobody delivered",
        "UPDATE {s}.workflows SET events = events || '{{\"other\": \"1\"}}' WHERE id = 'approved'",
        "each event has one payload", "workflows", "approved",
    ),
    Planted(
        "a workflow that waits for what has come",
        "UPDATE {s}.workflows SET events = '{{\"approval\": \"true\"}}' WHERE id = 'parked'",
        "each event has one payload", "workflows", "parked",
    ),
    Planted(
        "a checkpoint of no workflow",
        "INSERT INTO {s}.steps (workflow_id, step_id, position, kind, state, value, fence_token, worker) "
        "VALUES ('nobody', 'x', 1, 'step', 'X', '1', 1, 'A.1')",
        "every row belongs to a workflow", "steps", "nobody x",
    ),
]  # fmt: skip


def plant(engine: Engine, sql: str) -> None:
    schema = engine.database.schema
    with engine.database.alchemy.connect() as connection:
        for statement in sql.format(s=f'"{schema}"', w=f'"{schema}_world"').split("; "):
            connection.exec_driver_sql(statement)


def test_a_clean_laboratory_has_no_fault(finished: Engine) -> None:
    assert [finished.get_workflow(one)["status"] for one in ("recovered", "approved", "parked")] == [  # type: ignore[index]
        "completed", "completed", "waiting",
    ]  # fmt: skip
    assert check(finished.database) == []


@pytest.mark.parametrize("planted", PLANTED, ids=[planted.name for planted in PLANTED])
def test_the_checker_finds_each_planted_fault_and_names_its_row(finished: Engine, planted: Planted) -> None:
    plant(finished, planted.sql)
    found = check(finished.database)
    named = [one for one in found if (one.rule, one.table) == (planted.rule, planted.table) and planted.row in one.row]
    assert named, found
    assert named[0].stands != named[0].should


def test_every_rule_has_a_planted_fault() -> None:
    assert {planted.rule for planted in PLANTED} == {rule.name for rule in RULES}
    assert len({planted.name for planted in PLANTED}) >= 15


def test_a_fault_says_table_row_what_stands_there_and_what_should(finished: Engine) -> None:
    plant(finished, "UPDATE {s}.workflows SET fence_token = 9 WHERE id = 'approved'")
    (fault,) = check(finished.database)
    assert fault == Fault(
        "each claim raises the token by one", "workflows", "approved", "fence_token 9", "fence_token 2"
    )
    assert str(fault).startswith("workflows approved: fence_token 9; should be: fence_token 2")


def test_the_checker_finds_what_an_engine_without_keys_does(engine: Engine) -> None:
    from agentflow.lab.stepper import Stepper

    with Stepper(Engine(engine.database, policy=LONG)) as stepper:
        stepper.play("without=idempotency_key A*5 A! expire B*")
    assert {"tool_ledger"} <= {fault.table for fault in check(engine.database)}


def test_the_checker_knows_nothing_of_the_engine() -> None:
    for module in (checker, checker_actions, checker_rules):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.module in ("checker_actions", "checker_rules")


def test_a_soak_leaves_no_fault(url: str) -> None:
    database = Database(url, f"t_{uuid.uuid4().hex[:12]}")
    try:
        soak(
            url,
            [f"password {n}" for n in range(24)],
            schema=database.schema,
            workers=2,
            kills=8,
            keep=True,
            lease_seconds=0.5,
        )
        assert check(database) == []
    finally:
        drop(database)


@pytest.mark.long
def test_a_million_entries_are_checked_and_the_one_fault_among_them_is_found(finished: Engine) -> None:
    """The finished workflows 45,000 times over, by SQL; docs/benchmarks.md says how long it takes."""
    multiply(finished, 45_000)
    with finished.database.alchemy.connect() as connection:
        schema = finished.database.schema
        entries = connection.execute(text(f'SELECT count(*) FROM "{schema}".history')).scalar_one()
    assert entries > 1_000_000
    assert check(finished.database) == []
    plant(finished, "UPDATE {s}.steps SET value = '1' WHERE workflow_id = 'recovered-31234' AND kind = 'side_effect'")
    assert [(fault.table, fault.row) for fault in check(finished.database)] == [
        ("steps", "recovered-31234 resolve-account")
    ]


def multiply(engine: Engine, times: int) -> None:
    """Every row of the laboratory stands there so many times more, each copy under ids of its own."""
    tables = {
        "workflows": "id",
        "steps": "",
        "action_intents": "idempotency_key",
        "history": "",
        "tool_ledger": "idempotency_key",
    }
    schema = engine.database.schema
    with engine.database.alchemy.connect() as connection:
        connection.exec_driver_sql("SET statement_timeout = 0")
        for table, key in tables.items():
            owner = f'"{schema}_world"' if table == "tool_ledger" else f'"{schema}"'
            names = connection.execute(
                text(
                    "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(:name) AND attnum > 0 AND attidentity = ''"
                ),
                {"name": f"{owner}.{table}"},
            ).scalars()
            columns = list(names)
            chosen = ", ".join(_copied(name, key) for name in columns)
            connection.exec_driver_sql(
                f"INSERT INTO {owner}.{table} ({', '.join(columns)}) SELECT {chosen} FROM {owner}.{table} AS t, "
                f"generate_series(1, {times}) AS copy"
            )
        connection.exec_driver_sql(
            f'INSERT INTO "{schema}_world".tool_attempts '
            "(effect_id, attempt, idempotency_key, workflow_id, action, outcome, came_at) "
            f"SELECT l.effect_id, a.attempt, l.idempotency_key, l.workflow_id, a.action, a.outcome, a.came_at "
            f'FROM "{schema}_world".tool_ledger AS l JOIN "{schema}_world".tool_attempts AS a '
            "ON starts_with(l.workflow_id, a.workflow_id || '-')"
        )
        connection.exec_driver_sql("ANALYZE")


def _copied(column: str, key: str) -> str:
    if column in ("workflow_id", "id"):
        return f"t.{column} || '-' || copy"
    if column == "idempotency_key" and key == column:
        return "t.workflow_id || '-' || copy || ':resolve-account'"
    return f"t.{column}"
