"""03: what the fourth notebook asks, and how its exercise is judged."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import psycopg
from psycopg.rows import DictRow

from ....engine import Engine
from ....errors import DatabaseAway
from ....patience import driver_sql
from ....statements import quoted
from ..checks import CheckFailed
from ..judging import engine_aside, text_of
from ..outline import RIGHT, Outline, Question, exercise_of

Session = psycopg.Connection[DictRow]
BINDS = {"id": "request-1", "worker": "A", "token": 1}
HELD = """UPDATE workflows SET lease_owner = :worker, fence_token = :token,
    lease_expires_at = clock_timestamp() + interval '1 hour' WHERE id <> :id"""
MINE = "lease_owner = 'A', fence_token = 1, lease_expires_at = clock_timestamp() + interval '1 hour'"

OLD = ", created_at = created_at - interval '1 day', updated_at = updated_at - interval '1 day'"


@dataclass(frozen=True)
class Case:
    """A row that a writer meets: how it came to be (`sets`), and what is wrong with a guard that lets the write through.

    `slowly`: the statement has begun a moment before its condition is looked at, as if it had waited for a lock.
    """

    sets: str
    says: str
    slowly: bool = False


CASES = (
    Case(
        MINE.replace("fence_token = 1", "fence_token = 2"),
        "workflows, row 'request-1', column fence_token: it is 2, and your guard lets a write under token 1 through. The "
        "owner's name is A in both: A was started anew and claimed again, and its first process wakes up.",
    ),
    Case(
        MINE.replace("'A'", "'B'"),
        "workflows, row 'request-1', column lease_owner: it is B, and your guard lets A write.",
    ),
    Case(
        MINE.replace("+ interval '1 hour'", "- interval '1 second'") + OLD,
        "workflows, row 'request-1', column lease_expires_at: A's lease ended a second ago, and your guard lets A write.",
    ),
    Case(
        "lease_owner = NULL, fence_token = 1, lease_expires_at = NULL",
        "workflows, row 'request-1', column lease_owner: it is NULL, nobody owns the row, and your guard lets A write.",
    ),
    Case(
        MINE.replace("1 hour", "0.25 second"),
        "workflows, row 'request-1', column lease_expires_at: the lease ended while the write waited for its turn, and your "
        "guard lets A write. The time it compares with, like now(), is that at which the statement or its transaction began.",
        slowly=True,
    ),
)


def guard(where: Callable[[], Any], engine: Engine) -> str:
    """`where()` is the condition under which the holder, and nobody else, may write. Raises CheckFailed."""
    condition = _condition(where)
    with engine_aside(engine) as own, own.database.session() as session:
        session.execute(f"SET search_path TO {quoted(own.database.schema)}".encode())
        session.commit()
        own.create_workflows(["mine", "another"], workflow_ids=["request-1", "request-2"])
        _judge(session, condition)
        own.create_workflows([None] * 3, workflow_ids=["request-10", "Request-1", "order_7"])
        _on_every_row(session, condition)
    return "Solved: the holder may write, and nobody else: no namesake, no stranger, no worker whose lease has ended."


def _condition(where: Callable[[], Any]) -> str:
    """The learner's condition. Raises CheckFailed for anything else."""
    found = text_of(where, "when it was called", "Return the condition as a text.")
    if not found.strip():
        raise CheckFailed("Your function returns an empty text. Return the condition.")
    if ";" in found:
        raise CheckFailed("Leave the semicolon out: the check puts your condition after UPDATE workflows ... WHERE.")
    return re.sub(r"^\s*where\b", "", found, flags=re.IGNORECASE)


def _judge(session: Session, condition: str) -> None:
    written = _written(session, MINE, condition)
    if written == ["request-1", "request-2"]:
        raise CheckFailed(
            "A owns request-1 and request-2, and your guard lets one write for request-1 change both rows."
        )
    if written != ["request-1"]:
        raise CheckFailed(
            "workflows, row 'request-1': A owns it under token 1, its lease has not ended, and your guard does not let A "
            "write. Which of your conditions is not true for this row?"
        )
    for case in CASES:
        if _written(session, case.sets, _late(condition) if case.slowly else condition):
            raise CheckFailed(case.says)


def _on_every_row(session: Session, condition: str) -> None:
    """For three writers, and every owner, token and lease that a row may have, the guard lets the holder write alone.

    Each writer holds all other rows under the same token: that gives it no right to this one.
    """
    for row, worker, token in (("request-1", "A", 1), ("request-10", "B.7", 12), ("order_7", "worker_1", 2**40)):
        binds = {"id": row, "worker": worker, "token": token}
        owners = (worker, worker.swapcase(), f"{worker} ", worker.replace("_", "x"), f"{worker}1", None)
        leases = ("2 seconds", "1 hour", "300 days", "-1 millisecond", "-1 day", None)
        tokens = (token, token - 1, token + 1, token + 2, 10 * token, 0)
        for owner, held, lease in product(dict.fromkeys(owners), tokens, leases):
            if (owner is None) != (lease is None) or (owner and not held):
                continue  # a row has both or neither, and whoever claims it has a token
            ends = f"clock_timestamp() + interval '{lease}'" if lease else "NULL"
            sets = f"lease_owner = {_text(owner)}, fence_token = {held}, lease_expires_at = {ends}, state = 'S', checkpoints = 3"
            mine = (owner, held) == (worker, token) and not str(lease).startswith("-")
            if _written(session, sets, condition, binds, others_too=False) != [row] * mine:
                lasts = (
                    "no lease"
                    if lease is None
                    else f"a lease that ended {lease[1:]} ago"
                    if "-" in lease
                    else f"{lease} left"
                )
                raise CheckFailed(
                    f"workflows, row {row!r} with lease_owner {owner}, fence_token {held} and {lasts}: {worker} comes with token "
                    f"{token}, and your guard {'does not let it write' if mine else 'lets it write'}, or not to this row alone. "
                    "Compare the columns with :id, :worker, :token and the clock, and with nothing else."
                )


def _text(value: str | None) -> str:
    return "NULL" if value is None else f"'{value}'"


def _late(condition: str) -> str:
    """The condition, looked at for request-1 when its lease has ended since the statement began."""
    ended = "pg_sleep_until(lease_expires_at + interval '1 ms') IS NOT NULL"
    return f"CASE WHEN id = 'request-1' AND {ended} THEN (\n{condition}\n) END"


def _written(
    session: Session, sets: str, condition: str, binds: Mapping[str, Any] = BINDS, *, others_too: bool = True
) -> list[str]:
    """Which rows a write with this guard reaches, when its row is set like that; everything is rolled back.

    The other rows are set like it, or (`others_too=False`) held by the writer.
    """
    try:
        with session.transaction(force_rollback=True):
            session.execute(f"UPDATE workflows SET {sets}".encode())
            if not others_too:
                session.execute(driver_sql(HELD), binds)
            write = driver_sql(f"UPDATE workflows SET entries = entries WHERE {condition}\nRETURNING id")
            return sorted(row["id"] for row in session.execute(write, binds))
    except psycopg.Error as error:
        why = str(error).splitlines()[0]
        if session.closed:
            raise DatabaseAway(
                f"PostgreSQL went away while your condition was tried ({why}). Check it again."
            ) from error
        if error.sqlstate is None and "parameter" in why:
            raise CheckFailed(
                f"Your condition names a value that does not exist: {why}. Use :id, :worker, :token."
            ) from None
        raise CheckFailed(f"PostgreSQL does not understand your condition: {why}. {_hint(why)}".strip()) from None


def _hint(why: str) -> str:
    if "column" in why and "does not exist" in why:
        return "The columns are id, lease_owner, fence_token, lease_expires_at; the values :id, :worker, :token."
    return "It follows WHERE, with AND between its parts."


OUTLINE = Outline(
    name="03-leases-and-fencing",
    title="Leases and fencing",
    goal="Let workers compete for one queue, and wake one of them up when another has its work.",
    minutes=15,
    questions=(
        Question(
            "the-same-row",
            "Eight requests wait. Two workers ask for the oldest at the same moment. What happens?",
            {
                "both get request-1 and both work on it": "a claim read first and wrote later. In fact it does both in one "
                "statement, and the row is locked meanwhile",
                "one gets request-1, the other waits until it is completed": "the lock lasted as long as the work. In fact it "
                "lasts one statement, a few milliseconds",
                "one gets request-1, the other waits for that claim's commit and then takes request-2": "every lock had to be "
                "waited for. In fact only a plain lock is, and SKIP LOCKED passes over it",
                "one gets request-1, the other request-2, and nobody waits": RIGHT,
            },
            "No claim waited with SKIP LOCKED: the second passes over the locked row, as if it were not there.",
        ),
        Question(
            "over-http",
            "Now two workers are run through the API, by two HTTP requests at once. Do they compete differently?",
            {
                "yes: one server takes one request after the other": "the API decided who gets a row. In fact it hands both "
                "requests on, and the claims decide",
                "yes: both are the same process, so they may claim the same row": "the process were the worker. In fact a claim "
                "locks its row against every other claim, even one of the same process",
                "no: each claims a row of its own, as before": RIGHT,
            },
            "Two workflows went to two workers, each under token 1. A claim is one statement, whoever sends it.",
        ),
        Question(
            "too-late",
            "A sleeps past the end of its lease. B takes over and completes. Then A wakes up and tries to commit its plan. What "
            "happens?",
            {
                "the plan is written: A did claim the workflow": "a claim lasted for ever. In fact it is a lease, and this one "
                "has ended",
                "A looks at its clock first and does not try": "looking were enough. In fact a worker may fall asleep between "
                "looking and writing",
                "the database refuses the write": RIGHT,
                "PostgreSQL has closed A's connection, so A cannot even try": "the database knew what a lease is. In fact, to "
                "PostgreSQL, it is three columns of a row like any other",
            },
            "A wrote under token 1, and the row holds token 2.",
        ),
    ),
    exercises=(
        exercise_of(
            guard,
            "Four things must agree: which row, whose lease, which token, and that the lease has not ended.",
            "A condition on one of them reads: lease_owner = :worker.",
            "The time is the database's, at this moment: lease_expires_at > clock_timestamp().",
        ),
    ),
)
