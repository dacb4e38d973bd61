"""Faults planted by hand into the laboratory of tests/lab/verify/test_checker.py: what is changed, and where it must show."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from agentflow import Engine, Policy
from agentflow.errors import CrashInjected
from agentflow.lab.laboratory.laboratory import LEASE_SECONDS
from agentflow.tools import SimulatedTool


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


def _swapped(one: str, its_transaction: str, other: str, other_transaction: str) -> str:
    """Each of two entries of `approved` stands where the other stood."""
    return (
        f"UPDATE {{s}}.history SET event = CASE event WHEN '{one}' THEN '{other}' ELSE '{one}' END, "
        f"transaction = CASE event WHEN '{one}' THEN '{other_transaction}' ELSE '{its_transaction}' END "
        f"WHERE workflow_id = 'approved' AND event IN ('{one}', '{other}')"
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
        "the work is done", "workflows", "lost",
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
        "an event that was delivered twice",
        "UPDATE {s}.workflows SET entries = entries + 1 WHERE id = 'approved'; INSERT INTO {s}.history "
        "(workflow_id, n, event, transaction, subject) "
        "SELECT 'approved', max(n) + 1, 'event_delivered', 'deliver', 'approval' FROM {s}.history WHERE workflow_id = 'approved'",
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
    Planted(
        "an effect of other arguments than planned",
        "UPDATE {w}.tool_ledger SET arguments = '{{\"category\":\"other\"}}' WHERE workflow_id = 'recovered'",
        "the world was asked for what was planned", "tool_ledger", "recovered",
    ),
    Planted(
        "a plan whose arguments were changed afterwards",
        "UPDATE {s}.action_intents SET arguments = '{{\"category\":\"other\"}}' WHERE workflow_id = 'recovered'",
        "the world was asked for what was planned", "tool_ledger", "recovered",
    ),
    Planted(
        "an attempt under another key than its effect's",
        "UPDATE {w}.tool_attempts SET idempotency_key = 'zzz' WHERE workflow_id = 'recovered' AND attempt = 2",
        "the world was asked for what was planned", "tool_attempts", "recovered",
    ),
    Planted(
        "an attempt at an effect that is not there",
        "UPDATE {w}.tool_attempts SET effect_id = 987654 WHERE workflow_id = 'approved'",
        "the world was asked for what was planned", "tool_attempts", "approved",
    ),
    Planted(
        "a refused attempt that nobody planned",
        "INSERT INTO {w}.tool_attempts (idempotency_key, workflow_id, action, outcome) "
        "VALUES ('recovered:other', 'recovered', 'other', 'refused')",
        "the world was asked for what was planned", "tool_attempts", "recovered",
    ),
    Planted(
        "two attempts of one number",
        "UPDATE {w}.tool_attempts SET attempt = 1 WHERE workflow_id = 'recovered'",
        "attempts are numbered", "tool_attempts", "recovered",
    ),
    Planted(
        "a second attempt that had the effect",
        "UPDATE {w}.tool_attempts SET outcome = 'effect' WHERE workflow_id = 'recovered'",
        "attempts are numbered", "tool_attempts", "recovered",
    ),
    Planted(
        "a second attempt before the first",
        "UPDATE {w}.tool_attempts SET came_at = came_at - interval '1 hour' WHERE workflow_id = 'recovered' AND attempt = 2",
        "attempts are numbered", "tool_attempts", "recovered",
    ),
    Planted(
        "an attempt from the future",
        "UPDATE {w}.tool_attempts SET came_at = came_at + interval '1 day' WHERE workflow_id = 'recovered' AND attempt = 2",
        "attempts are numbered", "tool_attempts", "recovered",
    ),
    Planted(
        "an effect that was committed after the acknowledgment",
        "UPDATE {w}.tool_ledger SET committed_at = committed_at + interval '1 day' WHERE workflow_id = 'recovered'",
        "attempts are counted and in time", "tool_ledger", "recovered",
    ),
    Planted(
        "a checkpoint that holds another refusal than the action",
        "UPDATE {s}.steps SET error = '{{\"type\":\"Other\"}}' WHERE workflow_id = 'refused' AND kind = 'side_effect'",
        "the recorded result is the tool's", "steps", "refused resolve-account",
    ),
    Planted(
        "crashes that nobody told of",
        "UPDATE {s}.workflows SET crashes = 5 WHERE id = 'parked'",
        "attempts and crashes are the history's", "workflows", "parked",
    ),
    Planted(
        "failed tries that nobody told of",
        "UPDATE {s}.workflows SET attempts = 7 WHERE id = 'parked'",
        "attempts and crashes are the history's", "workflows", "parked",
    ),
    Planted(
        "a claim that counts three crashes at once",
        "UPDATE {s}.history SET detail = (detail::jsonb || '{{\"crashes\": 3}}')::json WHERE workflow_id = 'recovered' "
        "AND transaction = 'claim' AND fence_token = 2",
        "attempts and crashes are the history's", "history", "recovered n=",
    ),
    Planted(
        "a claim that counts fewer crashes than there were",
        "UPDATE {s}.history SET detail = (detail::jsonb || '{{\"crashes\": -1}}')::json WHERE workflow_id = 'recovered' "
        "AND transaction = 'claim' AND fence_token = 2",
        "attempts and crashes are the history's", "history", "recovered n=",
    ),
    Planted(
        "a recovery that is not in the row",
        "UPDATE {s}.workflows SET recovery_started_at = NULL WHERE id = 'recovered'",
        "a recovery begins with its claim", "workflows", "recovered",
    ),
    Planted(
        "a recovery that began before its claim was asked for",
        "UPDATE {s}.workflows SET recovery_started_at = recovery_started_at - interval '1 hour' WHERE id = 'recovered'",
        "a recovery begins with its claim", "workflows", "recovered",
    ),
    Planted(
        "a recovery without a take-over",
        "UPDATE {s}.workflows SET recovery_started_at = created_at WHERE id = 'approved'",
        "a recovery begins with its claim", "workflows", "approved",
    ),
    Planted(
        "completed a day before the history says so",
        "UPDATE {s}.workflows SET completed_at = completed_at - interval '1 day' WHERE id = 'recovered'",
        "a row's time is its entry's", "workflows", "recovered",
    ),
    Planted(
        "a checkpoint from before its entry's predecessor",
        "UPDATE {s}.steps SET created_at = created_at - interval '1 hour' WHERE workflow_id = 'approved' AND kind = 'wait'",
        "a row's time is its entry's", "steps", "approved approval",
    ),
    Planted(
        "an acknowledgment from after the end",
        "UPDATE {s}.action_intents SET acknowledged_at = acknowledged_at + interval '1 hour' WHERE workflow_id = 'approved'",
        "a row's time is its entry's", "action_intents", "approved resolve-account",
    ),
    Planted(
        "an acknowledgment told before its plan",
        _swapped("action_intent_committed", "intent", "action_acknowledged", "acknowledge"),
        "nothing comes before its cause", "history", "approved n=",
    ),
    Planted(
        "an event received before it was delivered",
        _swapped("event_delivered", "deliver", "event_received", "wait"),
        "nothing comes before its cause", "history", "approved n=",
    ),
    Planted(
        "a workflow that waits for another event than it was parked for",
        "UPDATE {s}.workflows SET waiting_for = 'other' WHERE id = 'parked'",
        "a wait is the history's", "workflows", "parked",
    ),
    Planted(
        "a waiting workflow in another state than its last checkpoint's",
        "UPDATE {s}.workflows SET state = 'NONSENSE' WHERE id = 'parked'",
        "a wait is the history's", "workflows", "parked",
    ),
    Planted(
        "another name than the history's",
        "UPDATE {s}.workflows SET name = 'research_agent' WHERE id = 'recovered'",
        "a history begins with the creation", "workflows", "recovered",
    ),
    Planted(
        "a completion with a subject",
        "UPDATE {s}.history SET subject = 'zzz' WHERE workflow_id = 'recovered' AND event = 'workflow_completed'",
        "each transaction tells its own entry", "history", "recovered n=",
    ),
    Planted(
        "an entry of another transaction",
        "UPDATE {s}.history SET transaction = 'intent' WHERE workflow_id = 'approved' AND event = 'checkpoint_committed'",
        "each transaction tells its own entry", "history", "approved n=",
    ),
    Planted(
        "an injected fault that is none",
        "UPDATE {s}.history SET event = 'action_acknowledged' WHERE workflow_id = 'recovered' AND transaction = 'fault'",
        "each transaction tells its own entry", "history", "recovered n=",
    ),
    Planted(
        "an entry from the future",
        "UPDATE {s}.history SET at = at + interval '1 day' WHERE workflow_id = 'parked' AND event = 'workflow_waiting'",
        "entries are numbered without a gap", "history", "parked n=",
    ),
]  # fmt: skip


def plant(engine: Engine, sql: str) -> None:
    schema = engine.database.schema
    with engine.database.alchemy.connect() as connection:
        for statement in sql.format(s=f'"{schema}"', w=f'"{schema}_world"').split("; "):
            connection.exec_driver_sql(statement)


def finished_laboratory(engine: Engine) -> Engine:
    """One workflow recovered in the gap, one refused, one that waited for an event, one that waits."""
    own = Engine(engine.database, policy=Policy(lease_seconds=LEASE_SECONDS))
    own.create_workflow("password reset", workflow_id="recovered")
    claim = own.claim_workflow("A.1")
    assert claim
    for _ in ("classify", "plan", "intent"):
        own.advance_one_step(claim)
    with pytest.raises(CrashInjected):
        own.advance_one_step(claim, crash_after_tool_commit=True)
    own.expire_lease("recovered")
    own.run_until_idle("B.1")
    own.create_workflow("password", workflow_id="refused")
    own.tool, real = SimulatedTool(own.world.database, fault=lambda _: "refuse"), own.tool
    own.run_until_idle("R.1")
    own.tool = real
    own.create_workflow("move my notes", name="approval_agent", workflow_id="approved")
    own.run_until_idle("C.1")
    own.deliver_event("approved", "approval", True)
    own.run_until_idle("D.1")
    own.create_workflow("login", name="approval_agent", workflow_id="parked")
    own.run_until_idle("E.1")
    own.world.database.close()
    return own
