"""After the course: keep, pause, or be told what to delete; nothing committed is ever lost by a cell."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentflow.errors import AgentFlowError
from agentflow.lab.laboratory import laboratory
from agentflow.lab.laboratory.laboratory import fresh_laboratory
from agentflow.lab.notebook.clean_up import KEPT, LAST, NOT_OURS, PAUSED, clean_up
from agentflow.server import Server


def test_keep_changes_nothing_and_is_the_default() -> None:
    assert clean_up().lines[0] == KEPT
    assert clean_up("keep").lines == clean_up().lines


def test_another_choice_is_refused() -> None:
    with pytest.raises(AgentFlowError, match=r"not 'burn'\. Nothing was done"):
        clean_up("burn")  # type: ignore[arg-type]


@pytest.mark.parametrize("choice", ["pause", "delete"])
def test_a_postgresql_that_was_not_started_here_is_left_alone(
    choice: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    assert clean_up(choice).lines[0] == NOT_OURS  # type: ignore[arg-type]


@pytest.mark.parametrize("choice", ["pause", "delete"])
def test_an_embedded_server_stops_and_every_committed_row_is_there_when_it_starts_again(
    choice: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    home: Path = tmp_path_factory.mktemp("pg")
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setenv("AGENTFLOW_HOME", str(home))
    try:
        fresh_laboratory("kept").create_workflow("help", workflow_id="request-1")
        said = clean_up(choice).lines  # type: ignore[arg-type]
        assert not Server(home).is_running()
        assert said[0] == (PAUSED if choice == "pause" else LAST)
        assert (str(home) in said) == (choice == "delete")
        assert laboratory.opened("engine", "kept") is None
        again = laboratory.open_engine(schema="kept")
        assert (again.get_workflow("request-1") or {})["state"] == "PENDING"
        again.close()
    finally:
        Server(home).stop()
