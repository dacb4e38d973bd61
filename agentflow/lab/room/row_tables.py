"""The rows of one workflow as four small tables, with what the last move changed, and belief beside world in a sentence.

No times and no random suffixes are shown, so that the tables are the same in every run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..history.belief import belief_of
from ..history.entries import Row, worker_name

TABLES = ("workflows", "steps", "action_intents", "tool_ledger")
BRIEF = {
    "state": "",
    "lease_owner": "",
    "step_id": "",
    "idempotency_key": "",
    "status": "",
    "attempts": "attempts ",
    "fence_token": "token ",
}


@dataclass(frozen=True)
class GridCell:
    """One value; `was` is the value before, if it reads differently."""

    text: str
    changed: bool = False
    was: str | None = None


@dataclass(frozen=True)
class Grid:
    """One table: its columns, and a cell for each."""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[GridCell]]


def holder(row: Row | None) -> str:
    """The lane whose worker holds the workflow's lease, expired or not; empty if nobody does."""
    return worker_name(row["lease_owner"]) if row and row["lease_owner"] else ""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _result(row: Row) -> str:
    """What was recorded: the value, or the failure without its traceback."""
    error, value = row.get("error"), row.get("value", row.get("tool_result"))
    if isinstance(error, dict):
        return f"failed: {error.get('type')}: {error.get('message')}"
    return "NULL" if error is None and value is None else _json(value if error is None else error)


Show = Callable[[Row], str]


def _of(column: str, write: Callable[[Any], str] = str) -> tuple[str, Show]:
    return column, lambda row: "NULL" if row.get(column) is None else write(row[column])


def _ends(row: Row) -> str:
    return "NULL" if row["lease_expires_at"] is None else "passed" if row["expired"] else "in 1 day"


_WORKFLOWS: tuple[tuple[str, Show], ...] = (
    _of("state"), _of("lease_owner", worker_name), ("lease_expires_at", _ends), _of("fence_token"),
    _of("recovery_started_at", lambda _: "set"),
)  # fmt: skip
_SOMETIMES = (_of("waiting_for"), _of("attempts"), _of("crashes"))
_STEPS = (_of("step_id"), ("value", _result), _of("fence_token"), _of("worker", worker_name))
_INTENTS = (_of("idempotency_key"), _of("status"), ("tool_result", _result))
_LEDGER = (_of("idempotency_key"), _of("result", _json), _of("attempts"))
_RAW = {"value": ("value", "error"), "tool_result": ("tool_result", "error")}


def grids(row: Row | None, before: Row | None) -> dict[str, Grid]:
    """The tables by name; what differs from `before` is marked, and in a new row every cell."""
    now, then = row or {}, before or {}
    some = [one for one in _SOMETIMES if now.get(one[0]) or then.get(one[0])]
    return {
        "workflows": _grid("workflows", (*_WORKFLOWS, *some), [row] if row else [], [before] if before else [], "id"),
        "steps": _grid("steps", _STEPS, now.get("steps", ()), then.get("steps", ()), "step_id"),
        "action_intents": _grid("action_intents", _INTENTS, now.get("intents", ()), then.get("intents", ()), "key"),
        "tool_ledger": _grid("tool_ledger", _LEDGER, now.get("effects", ()), then.get("effects", ()), "effect_id"),
    }


def _grid(name: str, columns: Sequence[tuple[str, Show]], rows: Sequence[Row], before: Sequence[Row], key: str) -> Grid:
    old = {row[key]: row for row in before}
    cells = [[_cell(column, show, row, old.get(row[key])) for column, show in columns] for row in rows]
    return Grid(name, tuple(column for column, _ in columns), cells)


def brief(grid: Grid) -> list[list[GridCell]]:
    """Of each row the cells that tell most, for a line of text."""
    wanted = [(grid.columns.index(column), word) for column, word in BRIEF.items() if column in grid.columns]
    return [[replace(row[at], text=word + row[at].text) for at, word in wanted] for row in grid.rows]


def _cell(column: str, show: Show, row: Row, old: Row | None) -> GridCell:
    if old is None:
        return GridCell(show(row), True)
    text, was = show(row), show(old)
    changed = was != text or any(row.get(one) != old.get(one) for one in _RAW.get(column, (column,)))
    return GridCell(text, changed, was if was != text else None)


# -- belief beside world -------------------------------------------------------------------------------------------------


def sign(row: Row | None) -> str:
    """Equal, or not equal: an effect that the engine does not know, one that does not exist, or one too many."""
    return belief_of(row["intents"], row["effects"]).sign if row else "="


def belief(row: Row | None) -> str:
    """What the engine believes, in a sentence or two."""
    if row is None:
        return "There is no workflow yet."
    if row["status"] == "failed":
        error = row["error"] or {}
        return f"Failed: {error.get('type')}: {error.get('message')}"
    said = {
        "completed": "Completed. Nothing is left to do.",
        "cancelled": "Cancelled. Nothing is left to do.",
        "waiting": f"Waits for the event {row['waiting_for']}. Nobody holds it.",
    }
    if row["status"] in said:
        return said[row["status"]]
    found = [one["status"] for one in row["intents"]]
    if not found:
        return "No action planned yet."
    if "PENDING" in found:
        return "Action planned. Outcome unknown."
    return "Action refused by the tool." if found[-1] == "REFUSED" else "Action acknowledged."


def world(row: Row | None) -> str:
    """What the world did, in a sentence or two."""
    if row is None:
        return "Nothing."
    said = []
    for action in belief_of(row["intents"], row["effects"]).actions:
        if action.too_many:
            said.append(f"{action.key}: {len(action.effects)} effects for one planned action.")
        elif action.effects:
            attempts = action.effects[0]["attempts"]
            times = {1: "once", None: "nobody knows how often"}.get(attempts, f"{attempts} times")
            said.append(f"{action.key}: one effect, asked for {times}.")
        elif action.unseen:
            said.append(f"{action.key}: not observed; a tool of your own does not tell of its effects.")
    return " ".join(said) or "Nothing."
