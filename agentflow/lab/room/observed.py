"""One look at a laboratory, now: what the database holds, and what the stepper knows of each lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...model import Boundary
from ...statements import WORLD_SUFFIX, quoted
from ..history.belief import with_unseen
from ..history.entries import Row
from ..schedule.lane_worker import AskedStatement
from ..schedule.stepper import Stepper
from .scene import LaneView
from .statement_text import filled

FINISHED = ("completed", "failed", "cancelled")


@dataclass(frozen=True)
class Observed:
    """The schedule so far, rows and histories by workflow, lanes (without their words) and where their workers stand.

    `sql` is the statement that was asked for, with its values, or empty.
    """

    line: str
    rows: Mapping[str, Row]
    histories: Mapping[str, Sequence[Row]]
    lanes: tuple[LaneView, ...]
    standing: Mapping[str, Boundary | None]
    sql: str = ""


def observe(stepper: Stepper, asked: AskedStatement | None = None) -> Observed:
    """Reads the rows once and looks at each lane; `asked` is the statement whose SQL is wanted. Raises DatabaseAway."""
    found = stepper.engine.database.read("frame", {"p_workflows": stepper.workflows})
    rows = {row["id"]: row for row in sorted(found, key=lambda row: stepper.workflows.index(row["id"]))}
    told = stepper.engine.told_effects()
    histories = {name: told.among(row.pop("history"), name) for name, row in rows.items()}
    for name, row in rows.items():
        row |= {"intents": with_unseen(row["intents"], histories[name]), "effects": [*row["effects"], *told.of(name)]}
    standing = {name: stepper.standing(name) for name in stepper.lanes}
    lanes = tuple(_lane(stepper, name, at, list(rows.values())) for name, at in standing.items())
    return Observed(stepper.line, rows, histories, lanes, standing, _sql(stepper, asked) if asked else "")


def _lane(stepper: Stepper, name: str, at: Boundary | None, rows: Sequence[Row]) -> LaneView:
    alive, paused = stepper.is_alive(name), stepper.is_paused(name)
    moves = alive and not paused
    before = at.transaction if at and at.edge == "before" else "" if at else "claim"
    over = bool(rows) and all(row["status"] in FINISHED for row in rows)
    left = (not moves or any(row["postponed"] for row in rows)) and bool(stepper.left_by(name))
    return LaneView(
        name, next=stepper.next_transaction(name), alive=alive, paused=paused, left_something=left,
        nothing_to_claim=moves and before == "claim" and over, before_tool=moves and before == "tool",
        before_commit=moves and before not in ("", "tool") and not (before == "claim" and over),
    )  # fmt: skip


def _sql(stepper: Stepper, asked: AskedStatement) -> str:
    """The statement with its values, tables without their schema."""
    text, schema = stepper.sql(asked.name), stepper.engine.database.schema
    for name in (schema, schema + WORLD_SUFFIX):
        text = text.replace(f"{quoted(name)}.", "")
    return filled(text, asked.params)
