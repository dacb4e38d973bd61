"""An engine leaves no thread behind: a kernel lives for days and opens many."""

from __future__ import annotations

import threading

import pytest

from agentflow import CrashInjected, Database, Engine
from tests.support.helpers import eventually


def renewers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "agentflow-renewals"}


def test_many_crashes_of_one_engine_leave_no_thread(shared_database: Database, url: str) -> None:
    engine = Engine(Database(url, shared_database.schema))
    engine.reset_database()
    before = renewers()
    for number in range(5):
        engine.create_workflow(f"password {number}")
        with pytest.raises(CrashInjected):
            engine.run_once(f"crasher-{number}", crash_after_tool_commit=True)
    eventually(lambda: renewers() <= before)
    engine.close()


def test_a_closed_engine_that_is_used_again_renews_again(shared_database: Database, url: str) -> None:
    engine = Engine(Database(url, shared_database.schema))
    engine.reset_database()
    before = renewers()
    for number in range(2):
        engine.create_workflow(f"password {number}")
        assert engine.run_once(f"worker-{number}")
        assert len(renewers() - before) == 1
        engine.close()
        eventually(lambda: renewers() <= before)
