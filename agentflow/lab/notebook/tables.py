"""Rows as small tables and sentences that are the same on every machine.

Times, ids of effects and the suffix that makes a worker's identity unique are left out: they differ from run to run.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...engine import Engine
from ..history.belief import Belief, belief_of, with_unseen
from ..history.entries import Row, worker_name
from ..history.sentences import sentences
from ..history.words import counted
from ..pictures.saved import saved


class Table(list[dict[str, Any]]):
    """Rows that a notebook shows as a table: a list of dicts with a caption."""

    def __init__(self, rows: Sequence[Row], caption: str = "", columns: Sequence[str] = ()) -> None:
        super().__init__(dict(row) for row in rows)
        self.caption = caption
        self.columns = list(columns or (self[0] if self else ()))

    def __repr__(self) -> str:
        lines = [self.columns, *([shown(row.get(column)) for column in self.columns] for row in self)]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        drawn = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        return "\n".join(([self.caption] if self.caption else []) + drawn + ([] if self else ["(0 rows)"]))

    def to_html(self) -> str:
        """The table without the style sheet, every value escaped."""
        caption = f"<caption>{html.escape(self.caption)}</caption>" if self.caption else ""
        head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in self.columns)
        lines = [[html.escape(shown(row.get(column))) for column in self.columns] for row in self]
        body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
        none = f'<tr><td colspan="{len(self.columns)}">0 rows</td></tr>'
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body or none}</tbody></table>"

    def _repr_html_(self) -> str:
        return saved(self.to_html())


def shown(value: Any) -> str:
    """The text of a value in a cell: NULL, text without quotes, anything else as JSON; at most 200 characters."""
    if value is None:
        return "NULL"
    written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return written if len(written) <= 200 else written[:199] + "…"


def query(engine: Engine, sql: str, caption: str = "", **binds: Any) -> Table:
    """Reads the rows of a SELECT, which names the tables of the engine and of the world without a schema.

    `binds` fill `:name`. The transaction is read only. Raises QueryRefused if PostgreSQL refuses the query.
    """
    columns, rows = engine.database.read_sql(sql, binds)
    return Table(rows, caption, columns)


@dataclass(frozen=True)
class Snapshot:
    """One workflow (None if there is none), what was planned for it, what the world did for it, and its history."""

    workflow: Row | None
    intents: Sequence[Row]
    effects: Sequence[Row]
    history: Sequence[Row]

    @property
    def judged(self) -> Belief:
        """Belief against world, for each action."""
        return belief_of(self.intents, self.effects)

    def row(self) -> Table:
        """The workflow's row: how far it is and who may write."""
        columns = ["id", "state", "status", "lease_owner", "fence_token", "checkpoints"]
        found = [self.workflow] if self.workflow else []
        rows = [{**row, "lease_owner": row["lease_owner"] and worker_name(row["lease_owner"])} for row in found]
        return Table(rows, "workflows", columns)

    def belief(self) -> Table:
        """What the engine believes about its actions."""
        return Table(self.intents, "action_intents", ["action", "status"])

    def world(self) -> Table:
        """What the outside world did, by its own record: a row for each effect."""
        return Table(self.effects, "tool_ledger", ["action", "attempts"])

    def sentence(self) -> str:
        """Belief beside world, in words."""
        judged = self.judged
        if doubled := judged.doubled:
            effects, actions = sum(len(one.effects) for one in doubled), counted(len(doubled), "planned action")
            more = "one" if judged.too_many == 1 else judged.too_many
            return f"The world has {effects} effects for {actions}: {more} too many."
        if judged.in_gap:
            return "The effect exists and the engine does not know: this is the acknowledgment gap."
        if any(one.missing for one in judged.actions):
            return "The engine believes that an action was done, and the world has no effect of it."
        for action in judged.actions:
            if action.unknown:
                why = "nobody planned" if action.status is None else "the tool is recorded to have refused"
                return f"The world has an effect of an action that {why}."
        if self.judged.sign == "?":
            return "What a tool of your own did is not observed: it does not tell of its effects."
        if self.effects:
            return "The engine believes what the world did."
        return "Nothing has happened in the outside world yet."

    def to_html(self) -> str:
        """Row, belief beside world, and history, without style."""
        lines = "".join(f"<li>{html.escape(line)}</li>" for line in sentences(self.history))
        entries = counted(len(self.history), "entry", "entries")
        return (
            f"{self.row().to_html()}<p>{html.escape(self.sentence())}</p>"
            f"{self.belief().to_html()}<p><b>{self.judged.sign}</b></p>{self.world().to_html()}"
            f"<details{' open' if lines else ''}><summary>History, {entries}</summary><ol>{lines}</ol></details>"
        )

    def _repr_html_(self) -> str:
        return saved(self.to_html())

    def __repr__(self) -> str:
        numbered = [f"{n}. {line}" for n, line in enumerate(sentences(self.history), 1)]
        tables = [repr(self.row()), self.sentence(), repr(self.belief()), repr(self.world())]
        return "\n\n".join([*tables, "\n".join(["history", *numbered])])


def snapshot(engine: Engine, workflow_id: str | None) -> Snapshot:
    """How one workflow and its world stand now; an empty snapshot for None or an unknown id."""
    row = engine.get_workflow(workflow_id) if workflow_id else None
    if row is None or workflow_id is None:
        return Snapshot(None, [], [], [])
    history = engine.history(workflow_id)
    return Snapshot(row, with_unseen(row["actions"], history), effects_of(engine, workflow_id), history)


def effects_of(engine: Engine, workflow_id: str) -> Table:
    """What the world did for a workflow: a row for each business effect, of the tool ledger and of the engine's own tool."""
    sql = """
        SELECT effect_id, idempotency_key, action, attempts
        FROM tool_ledger
        WHERE workflow_id = :id
        ORDER BY effect_id"""
    ledger = query(engine, sql, id=workflow_id)
    return Table([*ledger, *engine.told_effects().of(workflow_id)], columns=ledger.columns)
