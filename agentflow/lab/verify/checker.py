"""An independent checker: reads only the tables and the history of a finished laboratory, and says which row is wrong.

What lives here: running the rules of `checker_rules`, `checker_rows` and `checker_actions` over whole tables, on one
snapshot, and the faults found. It uses nothing of the engine but a connection to its database, so that a mistake of the
engine cannot hide from it. A laboratory is finished when nobody works in it any more: what is not finished then, nor waits
for an event, is a fault too.

What it cannot see, because it is written down in one place only: a workflow's input and result, the value of a plain step,
the state that a checkpoint names (but the last one of a workflow that waits), why something failed unless a tool refused;
and who called the tool, so neither a call that came late nor one by a worker that had lost the lease. It does not look at
`created_at`, `updated_at` and `next_run_at` of a workflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import Engine as Alchemy
from sqlalchemy import text

from .action_rules import ACTION_RULES
from .history_rules import HISTORY_RULES, Rule
from .row_rules import ROW_RULES

RULES = [*HISTORY_RULES, *ROW_RULES, *ACTION_RULES]


class Connectable(Protocol):
    """Where the tables are: the engine's schema, and the world's, which has `_world` behind its name."""

    alchemy: Alchemy
    schema: str


@dataclass(frozen=True)
class Fault:
    """One row that is wrong: its table and key, what stands there, and what should; `rule` is what it breaks."""

    rule: str
    table: str
    row: str
    stands: str
    should: str

    def __str__(self) -> str:
        return f"{self.table} {self.row}: {self.stands}; should be: {self.should} ({self.rule})"


def check(database: Connectable, *, most: int = 20) -> list[Fault]:
    """Every fault of the laboratory, of each rule at most so many; none means that its rows agree.

    All rules see one snapshot. Raises what SQLAlchemy raises when the tables cannot be read.
    """
    readers = database.alchemy.execution_options(isolation_level="REPEATABLE READ")
    with readers.begin() as connection:
        connection.execute(text("SET TRANSACTION READ ONLY"))
        for setting in _SETTINGS:
            connection.execute(text(f"SET LOCAL {setting}"))
        path = f'"{database.schema}", "{database.schema}_world"'
        connection.execute(text(f"SET LOCAL search_path TO {path}"))
        faults: list[Fault] = []
        for rule in RULES:
            found = connection.exec_driver_sql(_limited(rule, most))
            faults += [Fault(rule.name, row.table, row.row, str(row.stands), str(row.should)) for row in found]
        return faults


# Whole tables are read, once each: by scanning them, with room to sort, for as long as it takes.
_SETTINGS = ("statement_timeout = 0", "enable_seqscan = on", "enable_bitmapscan = on", "work_mem = '64MB'", "jit = off")


def _limited(rule: Rule, most: int) -> str:
    text = f'SELECT * FROM (\n{rule.sql}\n) AS fault ("table", "row", stands, should) LIMIT {most}'
    return text.replace("%", "%%")  # the driver reads a single one as a parameter
