"""What tests of one workflow share: start it, carry it to its end, crash it at a boundary, read back the rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agentflow import Boundary, CrashInjected, DurableRunner, Engine
from agentflow.errors import AlreadyFinished
from tests.conftest import rows
from tests.support.programs import Program, started

ROOT = Path(__file__).resolve().parents[2]
NAME = "tested"
TABLES = ("{s}.workflows", "{s}.steps", "{s}.action_intents", "{s}.history", "{w}.tool_ledger", "{w}.tool_attempts")


def start(
    engine: Engine, function: Callable[[Any, Any], Any], given: Any = None, workflow_id: str | None = None
) -> str:
    """A workflow of this function exists; its id."""
    deploy(engine, function)
    return str(engine.create_workflow(given, name=NAME, workflow_id=workflow_id)["id"])


def deploy(engine: Engine, function: Callable[[Any, Any], Any]) -> None:
    """From now on this engine's workers run this function for every workflow that start() made."""
    engine.workflows[NAME] = function


def turn(engine: Engine, worker: str = "worker") -> str | None:
    """One claim and its outcome."""
    return engine.worker(worker).run_once()


def settle(engine: Engine, workflow_id: str, turns: int = 30) -> dict[str, Any]:
    """The workflow's row when it is finished or parked; each turn is another worker, leases and back-offs are aged."""
    for number in range(turns):
        row = workflow(engine, workflow_id)
        if row["status"] != "ready":
            return row
        if row["lease_owner"] or row["later"]:
            with suppress(AlreadyFinished):  # a short back-off may have ended by itself
                engine.expire_lease(workflow_id)
        turn(engine, f"settler-{number}")
    raise AssertionError(f"{workflow_id} is still ready after {turns} turns: {workflow(engine, workflow_id)}")


def workflow(engine: Engine, workflow_id: str) -> dict[str, Any]:
    """The row in the table; `later` is true while a back-off lasts."""
    query = "SELECT *, next_run_at > clock_timestamp() AS later FROM {s}.workflows WHERE id = :i"
    (row,) = rows(engine, query, i=workflow_id)
    return row


def steps(engine: Engine, workflow_id: str) -> list[dict[str, Any]]:
    """The checkpoints in the table."""
    return rows(engine, "SELECT * FROM {s}.steps WHERE workflow_id = :i ORDER BY position", i=workflow_id)


def effects(engine: Engine) -> list[dict[str, Any]]:
    """What is left in the world."""
    return rows(engine, "SELECT * FROM {w}.tool_ledger ORDER BY effect_id")


def counts(engine: Engine) -> dict[str, int]:
    """How many rows each table holds."""
    return {table: rows(engine, f"SELECT count(*) AS n FROM {table}")[0]["n"] for table in TABLES}


def crash(engine: Engine, transaction: str, edge: str = "after", subject: str | None = None) -> None:
    """A worker was lost at this boundary, and its lease has expired."""
    seen: list[Boundary] = []

    def hook(boundary: Boundary) -> None:
        if (boundary.transaction, boundary.edge) == (transaction, edge) and subject in (None, boundary.subject):
            seen.append(boundary)
            raise CrashInjected(f"{edge} {transaction}")

    with pytest.raises(CrashInjected):
        engine.with_hook(hook).worker("crasher").run_once()
    assert seen[0].workflow is not None
    engine.expire_lease(seen[0].workflow)


def observed(engine: Engine, name: str) -> list[DurableRunner]:
    """The run objects that this engine's workers make for the named workflow from now on."""
    runs: list[DurableRunner] = []
    function = engine.workflows[name]

    def observe(run: DurableRunner, given: Any) -> Any:
        runs.append(run)
        return function(run, given)

    observe.states = getattr(function, "states", {})  # type: ignore[attr-defined]
    engine.workflows[name] = observe
    return runs


def process(program: str, given: Any) -> Program:
    """Starts a Python process that runs the program, with `given` as JSON on its standard input."""
    running = started([], code=program, asks=True)
    assert running.stdin is not None
    running.stdin.write(json.dumps(given))
    running.stdin.close()
    return running


def elsewhere(program: str, given: Any, returncode: int = 0) -> Any:
    """What the program printed as JSON in a new Python process, which ended with the expected exit code."""
    with process(program, given) as running:
        out, err = running.communicate(timeout=60)
    assert running.returncode == returncode, err
    return json.loads(out) if out else None


def address(engine: Engine) -> dict[str, str]:
    """Where this engine's rows are, for another process: keyword arguments of open_engine()."""
    return {"url": engine.database.url.render_as_string(hide_password=False), "schema": engine.database.schema}
