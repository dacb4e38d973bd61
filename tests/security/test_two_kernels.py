"""Two programs in one laboratory: whoever is emptied by the other is told so, and when, and changes nothing there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing

import pytest

from agentflow import Engine
from agentflow.engine import this_process
from agentflow.errors import LaneError
from agentflow.lab.course import checks
from agentflow.lab.laboratory.laboratory import emptied, fresh_laboratory, let_go_of_all
from agentflow.lab.room.controller import Controller
from tests.support.helpers import eventually
from tests.support.programs import agentflow, environment

SAID = r"Another program \(process (\d+) on .*\) emptied the laboratory 't_two' at \d\d:\d\d:\d\d UTC, and what was in it is gone"


@pytest.fixture
def mine(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setenv("DATABASE_URL", url)
    yield fresh_laboratory("t_two")
    let_go_of_all()


def terminals_reset(url: str) -> None:
    done = agentflow("reset", "--yes", "--schema", "t_two", env=environment(DATABASE_URL=url))
    assert done.returncode == 0, done.stderr


def test_a_room_that_was_emptied_says_so_and_leaves_the_others_world_alone(mine: Engine, url: str) -> None:
    with closing(Controller(mine)) as room:
        room.run("A*4")
        assert emptied(mine) is None
        terminals_reset(url)
        for move in (lambda: room.step("A"), lambda: room.recover("A"), lambda: room.race("A", "B")):
            with pytest.raises(LaneError, match=SAID) as told:
                move()
            assert room.trouble and room.trouble.sentence[:40] == str(told.value)[:40]
        assert int(re.search(SAID, str(told.value))[1]) != os.getpid()  # type: ignore[index]
        assert mine.reliability_metrics()["business_effects"] == 0
        room.run("A*")  # which empties it for the other
        assert emptied(mine) is None and checks.completed(mine, "request-1")


def test_a_check_names_who_emptied_the_laboratory_and_not_a_row_that_was_not_made_here(mine: Engine, url: str) -> None:
    mine.create_workflow("login", workflow_id="request-1")
    mine.run_until_idle("A")
    checks.completed(mine, "request-1")
    terminals_reset(url)
    for check in (lambda: checks.completed(mine, "request-1"), lambda: checks.nothing_lost(mine, 1)):
        with pytest.raises(checks.CheckFailed, match=SAID):
            check()
    mine.reset_database()
    assert emptied(mine) is None


def listeners(mine: Engine) -> list[int]:
    found = "SELECT pid FROM pg_stat_activity WHERE application_name = 'agentflow hears t_two'"
    return [row["pid"] for row in mine.database.read_sql(found)[1]]


def test_a_listener_whose_connection_was_ended_listens_again(mine: Engine, url: str) -> None:
    (before,) = listeners(mine)
    mine.database.read_sql("SELECT pg_terminate_backend(:pid)", {"pid": before})
    eventually(lambda: emptied(mine) is None and listeners(mine) not in ([], [before]))
    terminals_reset(url)
    assert re.match(SAID, emptied(mine) or "") and this_process() not in (emptied(mine) or "")


@pytest.mark.parametrize("told", ["{evil} by {evil}", "{evil}", " by {evil}"])
def test_what_a_stranger_tells_the_listener_is_harmless_and_bounded(mine: Engine, told: str) -> None:
    evil = "\x1b]0;owned\x07\u202e\ufeff\nNothing was moved" + "x" * 3_000
    mine.database.read_sql("SELECT pg_notify('t_two_emptied', :told)", {"told": told.format(evil=evil)})
    said = emptied(mine) or ""
    assert said.startswith("Another program (") and said.isprintable() and len(said) < 700
