"""The tutorial's own tests, on today's engine: the same names, the same claims."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select

from agentflow import CrashInjected, Engine, action_intents, tool_ledger, workflows


def test_checkpoint_survives_interruption(engine: Engine) -> None:
    workflow = engine.create_workflow("My password no longer works")
    claim = engine.claim_workflow("interrupted-worker")
    assert claim is not None
    assert engine.advance_one_step(claim) == "CLASSIFIED"
    persisted = engine.get_workflow(workflow["id"])
    assert persisted is not None
    assert persisted["state"] == "CLASSIFIED"
    assert persisted["classification"] == {"category": "account_access", "priority": "normal"}


def test_two_workers_complete_concurrent_queue(engine: Engine) -> None:
    for number in range(8):
        engine.create_workflow(f"Support request {number}")
    completed_per_worker = engine.run_competing_workers("worker-a", "worker-b")
    with engine.database.alchemy.connect() as connection:
        states = connection.execute(select(workflows.c.state)).scalars().all()
    assert sum(completed_per_worker) == 8
    assert states == ["COMPLETED"] * 8


def test_ack_gap_recovery_has_one_business_effect(engine: Engine, tmp_path) -> None:  # type: ignore[no-untyped-def]
    workflow = engine.create_workflow("Please unlock my account after a password reset")
    with pytest.raises(CrashInjected):
        engine.run_once("crasher", crash_after_tool_commit=True)
    after_crash = engine.get_workflow(workflow["id"])
    assert after_crash is not None
    assert after_crash["state"] == "ACTION_PENDING"

    engine.expire_lease(workflow["id"])
    with ThreadPoolExecutor(max_workers=2) as executor:
        futures = [executor.submit(engine.run_once, name) for name in ("recovery-a", "recovery-b")]
    reported = [future.result() for future in futures]

    finished = engine.get_workflow(workflow["id"])
    with engine.database.alchemy.connect() as connection:
        ledger_rows = connection.execute(select(tool_ledger)).mappings().all()
        intent = connection.execute(select(action_intents)).mappings().one()
    assert sorted(reported) == [False, True]
    assert finished is not None
    assert finished["state"] == "COMPLETED"
    assert intent["status"] == "ACKNOWLEDGED"
    assert len(ledger_rows) == 1
    assert ledger_rows[0]["attempts"] == 2

    report = engine.write_reliability_report(tmp_path / "reliability-report.json")
    assert report["workflow_completion_rate"] == 1.0
    assert report["business_effects"] == 1
    assert report["duplicate_business_effects"] == 0
    assert report["tool_execution_attempts"] == 2
    assert report["recovery_latency_ms"] is not None
