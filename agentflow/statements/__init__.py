"""Every SQL statement of the engine, in full, with a name and a sentence about the race that it settles.

A guarded write is one UPDATE of the workflow's row, and every later part selects FROM its RETURNING. If the guard matched
nothing, a second UPDATE numbers the refusal and returns the row as it is now; the last SELECT says what happened. Texts
are written for the default schema and rendered for others. No bind is named like a column (prefix `p_`).

A new transaction is a `Statement` in one of these files and in TRANSACTIONS, a method in `transactions/`, and a sentence in
`lab/history/sentences`; docs/architecture.md has it as a worked example.
"""

from __future__ import annotations

import re

from .ends import COMPLETE, FAIL
from .laboratory import FAULT, PURPOSE, RESET
from .people import CANCEL, CREATE, DELIVER, REQUEUE
from .progress import ACKNOWLEDGE, CHECKPOINT, INTENT, WAIT
from .queue import CLAIM, EXPIRE, LOAD, POSTPONE, RELEASE, RENEW
from .reads import CONDITION, FRAME, HISTORY, INSPECT, LIST, METRICS, RECOVERIES, RUNNABLE
from .statement import DEFAULT_SCHEMA, GUARD, WORLD_SUFFIX, Statement, command, quoted
from .stranded import FREE, STRANDED
from .world import FORGET, LOOK_UP, REFUSE, TOOL

__all__ = [
    "ALL_STATEMENTS", "BY_PERSON", "COUNTED", "DEFAULT_SCHEMA", "GUARD", "GUARDED", "ONLY_READ", "READS", "SIDE_WRITES",
    "TRANSACTIONS", "WORLD_SUFFIX", "Statement", "command", "quoted", "show_sql",
]  # fmt: skip


def _by_name(*several: Statement) -> dict[str, Statement]:
    return {one.name: one for one in several}


TRANSACTIONS: dict[str, Statement] = _by_name(
    CREATE, CLAIM, LOAD, CHECKPOINT, INTENT, TOOL, ACKNOWLEDGE, COMPLETE, WAIT, DELIVER, RENEW, RELEASE, POSTPONE, FAIL,
    CANCEL, REQUEUE, EXPIRE,
)  # fmt: skip
"""The engine's transactions by name, in the order of a workflow's life."""

BY_PERSON = tuple(name for name, one in TRANSACTIONS.items() if one.by_person)
GUARDED = tuple(name for name, one in TRANSACTIONS.items() if one.guarded)
COUNTED = tuple(name for name, one in TRANSACTIONS.items() if one.counted)

SIDE_WRITES = _by_name(FAULT, FREE, REFUSE, FORGET, RESET)
"""What people, the laboratory and the simulated world write beside the engine's transactions, by name."""

READS = _by_name(RUNNABLE, INSPECT, LIST, LOOK_UP, HISTORY, FRAME, PURPOSE, METRICS, CONDITION, STRANDED, RECOVERIES)
"""What people and programs read, by name."""

ALL_STATEMENTS = TRANSACTIONS | READS | SIDE_WRITES
ONLY_READ = frozenset(name for name, one in ALL_STATEMENTS.items() if not one.commits)


def show_sql(name: str) -> str:
    """The text of a statement as PostgreSQL gets it, except that tables are named without their schema."""
    return re.sub(rf"\b{DEFAULT_SCHEMA}({WORLD_SUFFIX})?\.", "", ALL_STATEMENTS[name].text)
