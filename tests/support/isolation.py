"""Two sessions and one statement each, in the manner of PostgreSQL's isolation tester.

`asked(...)` gives the statement and the parameters that an engine's method would send; `race(...)` holds the first one
uncommitted, starts the second, sees it wait (`pg_blocking_pids`, no sleep), ends the first and gives both answers.
`rows_of(...)` is all that the tables say of one workflow, without times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import psycopg
from psycopg.pq import TransactionStatus

from agentflow import Database, Engine
from agentflow.database import Run
from agentflow.lab.isolation import sessions as lab
from agentflow.lab.isolation.sessions import End
from agentflow.tools import SimulatedTool


@dataclass(frozen=True)
class Call:
    """One statement of the engine with its parameters; `text` is what PostgreSQL gets."""

    name: str
    text: str
    params: Mapping[str, Any]

    def but(self, old: str, new: str) -> Call:
        """The same call with another text: a deliberately broken engine."""
        assert old in self.text, f"{self.name} has no {old!r} to break"
        return replace(self, text=self.text.replace(old, new))


class _Caught(BaseException):
    pass


def _catch(name: str, text: str, params: Mapping[str, Any] | None, run: Run) -> Any:
    if name == "inspect":  # a requeue looks at the failure first
        return run(name, text, params)
    raise _Caught(Call(name, text, params or {}))


def asked(database: Database, method: Callable[[Any], Any], of: type = Engine) -> Call:
    """What the method would send: `asked(db, lambda e: e.renew_lease(claim))`."""
    try:
        method(of(database.with_door(_catch)))
    except _Caught as caught:
        call: Call = caught.args[0]
        return call
    raise AssertionError("the method sent nothing")


def tool_call(database: Database, call: Any) -> Call:
    """What the simulated world would send for a call of its tool."""
    return asked(database, lambda world: world(call), SimulatedTool)


class Session(lab.HeldSession):
    """One connection with its own backend, which runs one statement at a time. Idle ones are used again."""

    _idle: ClassVar[dict[str, list[tuple[psycopg.Connection[dict[str, Any]], ThreadPoolExecutor]]]] = defaultdict(list)

    def __init__(self, database: Database) -> None:
        self.url = database.url.render_as_string(hide_password=False)
        if Session._idle[self.url]:
            self.connection, self._thread = Session._idle[self.url].pop()
            self.pid = self.connection.info.backend_pid
        else:
            super().__init__(Database(self.url), "isolation")
            self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        if self.connection.info.transaction_status == TransactionStatus.IDLE:
            Session._idle[self.url].append((self.connection, self._thread))
            return
        self.connection.cancel_safe()
        self._thread.shutdown()
        self.connection.close()

    def run(self, call: Call | str, _: object = None) -> list[dict[str, Any]]:
        """The statement's rows."""
        return super().run(call) if isinstance(call, str) else super().run(call.text, call.params)

    def start(self, call: Call | str) -> Future[list[dict[str, Any]]]:
        """The statement is on its way, on a thread."""
        return self._thread.submit(self.run, call)

    def waits(self, database: Database, behind: int | None = None) -> bool:
        """Whether this session's statement waits for a lock (that `behind` holds)."""
        with Session(database) as other:
            blockers = other.run(f"SELECT pg_blocking_pids({self.pid}) AS pids")[0]["pids"]
        return behind in blockers if behind else bool(blockers)


@dataclass(frozen=True)
class Race:
    """What both statements answered, and whether the second had to wait for the first."""

    first: list[dict[str, Any]]
    second: list[dict[str, Any]]
    waited: bool


def race(
    database: Database, first: Call, second: Call, end: End = "COMMIT", meanwhile: Callable[[], object] = lambda: None
) -> Race:
    """The first statement is held uncommitted, the second started; when it waits (or is through), the first ends."""
    with Session(database) as one, Session(database) as two:

        def hold() -> list[dict[str, Any]]:
            one.run("BEGIN")
            return one.run(first)

        def release() -> None:
            meanwhile()
            one.run(end)

        with ThreadPoolExecutor(1) as thread:
            return Race(
                *lab.at_once(hold, lambda: two.run(second), release, lambda: two.waits(database, one.pid), thread)
            )


@dataclass(frozen=True)
class Trial:
    """One after the other in one session, rolled back: the answers, and the rows before and after."""

    answers: list[list[dict[str, Any]]]
    before: dict[str, Any]
    after: dict[str, Any]


def trial(database: Database, workflow_id: str, *calls: Call) -> Trial:
    """What the calls would do one after the other; nothing is left of it."""
    with Session(database) as session:
        session.run("BEGIN")
        before = rows_of(database, workflow_id, session)
        answers = [session.run(call) for call in calls]
        after = rows_of(database, workflow_id, session)
        session.run("ROLLBACK")
        return Trial(answers, before, after)


_COLUMNS = {
    "workflows": "id, status, state, result, error ->> 'type' AS error, lease_owner, fence_token, checkpoints, "
    "entries, "
    "waiting_for, events, attempts, crashes, lease_expires_at <= clock_timestamp() AS expired, "
    "recovery_started_at IS NOT NULL AS recovered, next_run_at <= clock_timestamp() AS due",
    "steps": "step_id, position, kind, state, value, error ->> 'type' AS error, fence_token, worker",
    "action_intents": "key, action, status, tool_result, error ->> 'type' AS error, fence_token, worker",
    "history": "n, event, transaction, subject, worker, fence_token",
}
_ORDER = {"workflows": "id", "steps": "position", "action_intents": "key", "history": "n"}


def rows_of(database: Database, workflow_id: str, session: Session | None = None) -> dict[str, Any]:
    """All rows about one workflow, by table, without times."""
    if session is None:
        with Session(database) as own:
            return rows_of(database, workflow_id, own)
    return {
        table: session.connection.execute(
            f'SELECT {columns} FROM "{database.schema}".{table} '
            f"WHERE {'id' if table == 'workflows' else 'workflow_id'} = %s "
            f"ORDER BY {_ORDER[table]}".encode(),
            [workflow_id],
        ).fetchall()
        for table, columns in _COLUMNS.items()
    }


def gapless(found: dict[str, Any]) -> bool:
    """Whether entries are numbered 1, 2, ... up to the row's count, and checkpoints too."""
    if not found["workflows"]:
        return True
    row = found["workflows"][0]
    entries = [entry["n"] for entry in found["history"]]
    positions = [step["position"] for step in found["steps"]]
    return entries == list(range(1, row["entries"] + 1)) and positions == list(range(1, row["checkpoints"] + 1))
