"""Every history entry is one structured JSON log line that says the same, with the tutorial's event names where it has them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from agentflow import CrashInjected, Engine, LostLease, Policy, SimulatedTool, ToolCall
from agentflow.errors import AgentFlowError
from agentflow.statements import TRANSACTIONS
from tests.conftest import rows
from tests.support.runs import settle, start, turn


def a_life_of_everything(engine: Engine) -> None:
    """Workflows that together pass every transaction, refusals and faults included."""
    gap = engine.create_workflow("password")["id"]
    with pytest.raises(CrashInjected):
        engine.run_once("A", crash_after_tool_commit=True)
    engine.expire_lease(gap)
    assert engine.run_once("B")
    waits = engine.create_workflow({"with_wait": True}, name="research_agent")["id"]
    turn(engine, "A")
    for payload in (1, 1, 2):
        with suppress(AgentFlowError):
            engine.deliver_event(waits, "editor.approved", payload)
    settle(engine, waits)
    held = engine.create_workflow("held")["id"]
    claim = engine.claim_workflow("C")
    assert claim is not None
    engine.renew_lease(claim)
    engine.release_lease(claim)
    with pytest.raises(LostLease):
        engine.checkpoint(claim, "late", 1)
    engine.cancel_workflow(held)
    with suppress(AgentFlowError):
        engine.requeue_workflow(held)
    bad = start(engine, lambda run, _: run.step("bad", lambda: 1 / 0))
    settle(engine, bad)
    engine.requeue_workflow(bad)
    settle(engine, bad)
    refused = SimulatedTool(engine.world.database, fault=lambda call: "refuse")
    settle(engine, start(engine, lambda run, _: run.side_effect("pay", key="pay", tool=refused)))


def test_each_history_entry_is_one_log_line_and_says_the_same(engine: Engine, lines: list[dict[str, Any]]) -> None:
    engine.policy = Policy(max_attempts=2)
    a_life_of_everything(engine)
    logged = [
        tuple(
            line.get(name)
            for name in (
                "workflow_id",
                "n",
                "event",
                "transaction",
                "subject",
                "worker_id",
                "fence_token",
                "guards",
            )
        )
        for line in lines
        if "n" in line
    ]
    columns = "workflow_id, n, event, transaction, subject, worker, fence_token, detail -> 'guards' AS guards"
    stored = [tuple(row.values()) for row in rows(engine, f"SELECT {columns} FROM {{s}}.history")]
    assert sorted(map(str, logged)) == sorted(map(str, stored))
    assert {entry[2] for entry in stored if entry[7]} == {"write_refused", "event_refused", "event_repeated"}
    passed = {entry[3] for entry in stored}
    assert passed == (set(TRANSACTIONS) - {"load", "tool"}) | {"fault"}  # a read, and the world's own


def test_each_call_of_the_tool_is_one_log_line(engine: Engine, lines: list[dict[str, Any]]) -> None:
    a_life_of_everything(engine)
    logged = [
        (line["workflow_id"], line["event"], line["subject"], line["idempotency_key"])
        for line in lines
        if line.get("transaction") == "tool"
    ]
    query = "SELECT workflow_id, outcome, action, idempotency_key FROM {w}.tool_attempts"
    named = {"refused": "tool_refused"}
    stored = [
        (row["workflow_id"], named.get(row["outcome"], "tool_attempt_committed"), row["action"], row["idempotency_key"])
        for row in rows(engine, query)
    ]
    assert sorted(logged) == sorted(stored)


def test_the_tutorials_event_names_are_kept(engine: Engine, lines: list[dict[str, Any]]) -> None:
    a_life_of_everything(engine)
    assert {
        "workflow_created", "workflow_claimed", "checkpoint_committed", "action_intent_committed",
        "tool_attempt_committed", "crash_injected", "workflow_completed", "lease_expired_for_test",
    } <= {line["event"] for line in lines}  # fmt: skip


def test_a_tool_that_is_called_directly_is_logged_too(engine: Engine, lines: list[dict[str, Any]]) -> None:
    engine.world(ToolCall("w:key", "pay", None, "w"))
    assert [line["event"] for line in lines] == ["tool_attempt_committed"]
