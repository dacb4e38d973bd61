"""An independent checker: reads only the tables and the history of a finished laboratory, and names each row that is wrong.

It uses nothing of the engine but a connection to its database, so a bug in the engine cannot hide from it. A laboratory is
finished when nobody works in it any more: a workflow that is then neither finished nor waiting for an event is a mistake, too.

Some facts are recorded in one place only, so the checker cannot verify them: a workflow's input and result, the value of a
plain step, the state that a checkpoint names (except the last one of a waiting workflow), why something failed unless a tool
refused it, and who called the tool (a late call, or a call by a worker that had lost its lease, goes unnoticed). It ignores
`created_at`, `updated_at` and `next_run_at` of a workflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import psycopg

from .action_rules import ACTION_RULES
from .history_rules import HISTORY_RULES, Rule
from .row_rules import ROW_RULES

RULES = [*HISTORY_RULES, *ROW_RULES, *ACTION_RULES]


class Connectable(Protocol):
    """Where the tables are: the engine's schema, and the world's, which has `_world` behind its name."""

    schema: str

    def session(self) -> psycopg.Connection[dict[str, Any]]:
        """A connection that the caller closes."""


@dataclass(frozen=True)
class Mistake:
    """One row that is wrong: its table and key, what it holds, and what it should hold; `rule` names the broken rule."""

    rule: str
    table: str
    row: str
    stands: str
    should: str

    def __str__(self) -> str:
        return f"{self.table} {self.row}: {self.stands}; should be: {self.should} ({self.rule})"


def find_mistakes(database: Connectable, *, most: int = 20) -> list[Mistake]:
    """Returns the mistakes in the tables, at most `most` for each rule; an empty list means that all rows agree.

    All rules see one snapshot. Raises what psycopg raises when the tables cannot be read.
    """
    path = f'"{database.schema}", "{database.schema}_world"'
    mistakes: list[Mistake] = []
    with database.session() as session, session.transaction():
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        for setting in (*_SETTINGS, f"search_path = {path}"):
            session.execute(f"SET LOCAL {setting}".encode())
        for rule in RULES:
            for row in session.execute(_limited(rule, most).encode()):
                mistakes.append(Mistake(rule.name, row["table"], row["row"], str(row["stands"]), str(row["should"])))
    return mistakes


# Whole tables are read, once each: by scanning them, with room to sort, for as long as it takes.
_SETTINGS = ("statement_timeout = 0", "enable_seqscan = on", "enable_bitmapscan = on", "work_mem = '64MB'", "jit = off")


def _limited(rule: Rule, most: int) -> str:
    return f'SELECT * FROM (\n{rule.sql}\n) AS mistake ("table", "row", stands, should) LIMIT {most}'
