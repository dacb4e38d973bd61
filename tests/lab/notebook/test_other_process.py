"""What another process sees: what was committed, nothing else, and a sentence if it cannot read."""

from __future__ import annotations

import os

import pytest
from sqlalchemy import text

from agentflow import Engine
from agentflow.errors import AgentFlowError
from agentflow.lab.notebook.other_process import locked, query_elsewhere

SQL = "SELECT id, state FROM workflows"


def test_another_process_sees_what_was_committed_and_nothing_that_was_not(engine: Engine) -> None:
    engine.create_workflow("help", workflow_id="request-1")
    with engine.database.alchemy.connect().execution_options(isolation_level="READ COMMITTED") as connection:
        connection.execute(text(f"UPDATE \"{engine.database.schema}\".workflows SET state = 'MADE UP'"))
        seen = query_elsewhere(engine, SQL)
        connection.rollback()
    assert list(seen) == [{"id": "request-1", "state": "PENDING"}]
    assert seen.process != os.getpid()
    assert seen.columns == ["id", "state"]
    assert "read by another process" in repr(seen)


def test_what_postgresql_says_of_a_bad_query_is_told(engine: Engine) -> None:
    with pytest.raises(
        AgentFlowError, match=r"The other process could not read that: .*column .*nothing.* does not exist"
    ):
        query_elsewhere(engine, "SELECT nothing FROM workflows")


def test_a_claim_passes_over_rows_that_are_locked_and_gets_them_afterwards(engine: Engine) -> None:
    engine.create_workflows(["one", "two"], workflow_ids=["request-1", "request-2"])
    with locked(engine, "request-1"):
        passed = engine.claim_workflow("A")
        assert passed and passed.workflow_id == "request-2"
        assert engine.claim_workflow("B") is None
        assert engine.runnable(["support_agent"])
    after = engine.claim_workflow("B")
    assert after and after.workflow_id == "request-1"
