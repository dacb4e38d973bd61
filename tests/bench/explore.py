"""How long the explorer takes to exhaust its space and to settle each broken engine, and the checker for a million entries."""

from __future__ import annotations

from agentflow import Engine
from agentflow.lab.broken.catalogue import BROKEN
from agentflow.lab.explorer.explore import explore
from agentflow.lab.explorer.report import Exploration
from agentflow.lab.verify.checker import find_mistakes
from tests.bench.place import Place
from tests.support.verdicts import VERDICTS

LARGER = {"crashes": 3, "expiries": 3, "lost_replies": 2}
COPIES = 145_000  # of a workflow with seven entries


def exhausted(place: Place, **bounds: int) -> Exploration:
    """The real engine within these bounds (without any: two crashes, two expiries, one lost reply); `seconds` has the time."""
    found = explore(Engine(place.laboratory("explore")), **bounds)  # type: ignore[arg-type]
    assert found.ok
    return found


def settled(place: Place) -> dict[str, float]:
    """For each broken engine the seconds until its harm was found or its space exhausted, as the table of guards has it."""
    engine = Engine(place.laboratory("explore"))
    first = {name: next(one for one in VERDICTS if one.without == (name,)) for name in BROKEN}
    return {name: verdict.explored(engine).seconds for name, verdict in first.items()}


class Million:
    """A finished workflow, so many times that its history has a million entries."""

    def __init__(self, place: Place, *, copies: int = COPIES) -> None:
        self.database = place.laboratory("checked")
        engine = Engine(self.database)
        engine.create_workflow("password reset", workflow_id="request")
        engine.run_until_idle("A.1")
        with self.database.alchemy.connect() as connection:
            connection.exec_driver_sql("SET statement_timeout = 0")
            for statement in _COPIES:
                connection.exec_driver_sql(self._named(statement, copies))
        self.entries = self._scalar("SELECT count(*) FROM {s}.history")

    def check(self) -> None:
        """The checker finds nothing."""
        assert find_mistakes(self.database) == []

    def read(self) -> None:
        """One statement of our own reads the entries in the order in which the checker needs them."""
        assert self._scalar(_IN_ORDER) == self.entries

    def _scalar(self, statement: str) -> int:
        with self.database.alchemy.connect() as connection:
            return int(connection.exec_driver_sql(self._named(statement, 0)).scalar_one())

    def _named(self, statement: str, copies: int) -> str:
        return statement.format(s=f'"{self.database.schema}"', w=f'"{self.database.schema}_world"', n=copies)


_IN_ORDER = (
    "SELECT count(*) FROM (SELECT n, lag(n) OVER (PARTITION BY workflow_id ORDER BY n) AS last FROM {s}.history) AS entry "
    "WHERE n > coalesce(last, 0)"
)
_ID = "t.workflow_id || '-' || copy"
_KEY = f"{_ID} || ':resolve-account'"
_COPIES = (
    "INSERT INTO {s}.workflows (id, name, input, status, state, result, fence_token, checkpoints, entries, completed_at, "
    "finished_at) SELECT id || '-' || copy, name, input, status, state, result, fence_token, checkpoints, entries, "
    "completed_at, finished_at FROM {s}.workflows, generate_series(1, {n}) AS copy",
    f"INSERT INTO {{s}}.steps SELECT {_ID}, step_id, position, kind, state, value, error, waited_for, fence_token, worker, "
    "created_at FROM {s}.steps AS t, generate_series(1, {n}) AS copy",
    "INSERT INTO {s}.action_intents (workflow_id, key, idempotency_key, action, arguments, status, tool_result, fence_token, "
    f"worker, created_at, acknowledged_at) SELECT {_ID}, key, {_KEY}, action, arguments, status, tool_result, fence_token, "
    "worker, created_at, acknowledged_at FROM {s}.action_intents AS t, generate_series(1, {n}) AS copy",
    f"INSERT INTO {{s}}.history SELECT {_ID}, n, at, event, transaction, subject, worker, fence_token, detail "
    "FROM {s}.history AS t, generate_series(1, {n}) AS copy",
    "INSERT INTO {w}.tool_ledger (idempotency_key, workflow_id, action, arguments, result, committed_at) "
    f"SELECT {_KEY}, {_ID}, action, arguments, result, committed_at FROM {{w}}.tool_ledger AS t, "
    "generate_series(1, {n}) AS copy",
    "INSERT INTO {w}.tool_attempts (effect_id, attempt, idempotency_key, workflow_id, action, outcome, came_at) "
    "SELECT l.effect_id, 1, l.idempotency_key, l.workflow_id, l.action, 'effect', l.committed_at "
    "FROM {w}.tool_ledger AS l WHERE l.workflow_id <> 'request'",
    "ANALYZE",
)
