"""What one process does not show: other hash seeds, modules imported anew, and variables that a crash empties."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentflow import Database, Engine
from agentflow.lab.explorer import another_process
from agentflow.lab.explorer.explore import explore
from agentflow.lab.explorer.report import Exploration
from tests.support import orders

TINY = {"crashes": 0, "expiries": 1, "lost_replies": 0}


@pytest.fixture
def explored(url: str) -> Iterator[Callable[..., Exploration]]:
    """Explores a function on the real engine."""
    engine = Engine(Database(url, "unused"))

    def run(function: Any, given: Any = None, **options: Any) -> Exploration:
        return explore(engine, workflow=function, inputs=[given], **{**TINY, **options})

    yield run
    engine.close()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (orders.by_set, "asks for side_effect 'pack' (pack) with [\""),
        (orders.by_hash, "asks for side_effect 'charge-"),
        (orders.by_import, 'returns "'),
        (orders.by_process, "asks for step 'look-"),
    ],
)
def test_what_is_a_process_s_own_is_not_certified(explored: Any, function: Any, said: str) -> None:
    found = explored(function)
    assert (found.ok, found.verdict, found.findings) == (False, "unknown", ()), found
    beginning, _, rest = found.problem.partition(said)
    assert beginning == "Not certified: the function is no function of its answers: another process ", found
    assert f" where this one {said.replace('asks', 'asked')}" in rest and rest.endswith("and explore again.")


def test_a_function_of_its_answers_is_one_in_other_processes_too(explored: Any) -> None:
    found = explored(orders.order, {"total": 300})
    assert found.ok and "3 other processes, with other hash seeds, ask for the same." in found.lines(), found
    failing = explored(orders.raises_after_its_payment, expect="failed")
    assert failing.ok and failing.elsewhere == found.elsewhere, failing


def test_a_variable_that_a_step_sets_is_not_certified(explored: Any, tmp_path: Path) -> None:
    """The step acts once here, and once in each real process that runs it."""
    book = tmp_path / "book"
    found = explored(orders.guarded, str(book))
    assert book.read_text() == "paid\n" and not orders.SEEN, "one process, forked: it has seen the order once"
    assert not found.ok and found.verdict == "unknown", found
    assert (
        "the explored code changed 'SEEN' (in or after step 'pay') of module tests.support.orders. A crash loses"
        in found.problem
    )


def test_a_variable_that_a_function_reads_after_a_step_has_set_it_is_not_certified(explored: Any) -> None:
    """A worker that replays the step has an empty one, and asks for something else."""
    found = explored(orders.from_memory)
    assert not found.ok and "the explored code changed 'PRICES' (in or after step 'look')" in found.problem, found


def test_what_was_not_looked_at_is_said(explored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = explored(lambda_of_mine())
    assert found.ok and any(
        line.startswith("Whether another process asks for the same was not looked at: none can import")
        for line in found.lines()
    ), found
    monkeypatch.setattr(another_process, "_START", "import os; os._exit(3)")
    monkeypatch.setattr(another_process, "_known", {})
    found = explored(orders.order, {"total": 300})
    assert "not looked at: it ended with exit code 3." in found.elsewhere and found.ok


def lambda_of_mine() -> Any:
    """A function that no other process can import."""

    def mine(run: Any, given: Any) -> Any:
        return run.step("look", lambda: 1)

    return mine
