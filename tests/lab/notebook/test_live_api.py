"""The API from a cell: it answers while the `with` is open, over HTTP and from the same rows, and is gone after it."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agentflow import Engine
from agentflow.errors import AgentFlowError
from agentflow.lab.history.sentences import sentences
from agentflow.lab.laboratory import processes
from agentflow.lab.notebook.live_api import live_api, live_worker
from tests.support.helpers import eventually


def _listens(url: str) -> bool:
    where = urlsplit(url)
    try:
        socket.create_connection((where.hostname or "", where.port or 0), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_request_that_was_posted_is_a_row_and_the_process_is_gone_afterwards(engine: Engine) -> None:
    with live_api(engine) as api:
        assert api.get("/health") == {"status": "up"}
        assert api.token not in repr(api)
        assert "swagger-ui" in api.get("/docs")
        assert "POST /workers/{worker_id}/run-once" in api.routes()
        assert api.post("/workflows", {"request": "I cannot login", "id": "request-1"})["state"] == "PENDING"
        assert _listens(api.url)
    assert not _listens(api.url)
    assert [process.name for process in list(processes._started) if process.is_alive()] == []
    assert (engine.get_workflow("request-1") or {})["state"] == "PENDING"


def test_the_process_is_gone_also_after_an_error_in_the_cell(engine: Engine) -> None:
    refused = r"GET /workflows/nobody was answered with 404: .*There is no workflow"
    with pytest.raises(AgentFlowError, match=refused), live_api(engine) as api:
        api.get("/workflows/nobody")
    assert not _listens(api.url)


def test_an_api_that_ends_before_it_answers_is_told(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentflow.lab.notebook.live_api._command", ended)
    with (
        pytest.raises(AgentFlowError, match=r"The API did not start\. Run `agentflow api` in a terminal"),
        live_api(engine),
    ):
        raise AssertionError("no cell runs without an API")


def ended(*_: object) -> None:
    """A process that says nothing and ends."""


def test_requests_that_are_sent_together_are_all_answered_and_claim_rows_of_their_own(engine: Engine) -> None:
    engine.create_workflows(["one", "two"])
    with live_api(engine) as api:
        answers = api.post_together("/workers/web-1/run-once", "/workers/web-2/run-once")
    assert answers == [{"worked": True}, {"worked": True}]
    assert engine.reliability_metrics()["workflows_completed"] == 2


SLOW = "import time\n\n\ndef slow(run, seconds):\n    run.step('slow', lambda: time.sleep(seconds))\n"


@pytest.mark.parametrize("seconds", [60, 0])
def test_a_worker_that_was_killed_at_work_has_its_kill_in_the_history_and_an_idle_one_has_none(
    engine: Engine, tmp_path: Path, seconds: int
) -> None:
    (tmp_path / "naps.py").write_text(SLOW)
    engine.create_workflow(seconds, name="slow", workflow_id="nap")
    with live_worker(engine, str(tmp_path), "--name", "A", "--workflow", "naps:slow") as worker:
        at_work = "workflow_claimed" if seconds else "workflow_completed"
        eventually(lambda: engine.history("nap")[-1]["event"] == at_work)
        worker.kill()
    killed = [one for one in engine.history("nap") if one["event"] == "worker_killed"]
    assert [(one["worker"].partition(".")[0], one["fence_token"]) for one in killed] == ([("A", 1)] if seconds else [])
    assert ("A is killed (SIGKILL)" in sentences(engine.history("nap"))[-1]) == bool(seconds)
