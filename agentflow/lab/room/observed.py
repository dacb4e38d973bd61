"""One look at a laboratory, now: what the database holds, and what the stepper knows of each lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...model import Boundary
from ...statements import WORLD_SUFFIX, quoted
from ..history.entries import Row
from ..schedule.lane_worker import Asked
from ..schedule.stepper import Stepper
from .statement_text import filled


@dataclass(frozen=True)
class LaneState:
    """What the stepper knows of one lane; `left_something` says whether another worker could finish work of it."""

    name: str
    alive: bool
    paused: bool
    standing: Boundary | None
    next: str
    left_something: bool


@dataclass(frozen=True)
class Observed:
    """The schedule so far, the workflows' rows and histories by id, the lanes, and the SQL that was asked for (or none)."""

    line: str
    rows: Mapping[str, Row]
    histories: Mapping[str, Sequence[Row]]
    lanes: tuple[LaneState, ...]
    sql: str = ""


def observe(stepper: Stepper, asked: Asked | None = None) -> Observed:
    """Reads the rows once and looks at each lane; `asked` is the statement whose SQL is wanted. Raises DatabaseAway."""
    found = stepper.engine.database.read("frame", {"p_workflows": stepper.workflows})
    rows = {row["id"]: row for row in sorted(found, key=lambda row: stepper.workflows.index(row["id"]))}
    histories = {
        name: [{**entry, "n": n} for n, entry in enumerate(row.pop("history"), 1)] for name, row in rows.items()
    }
    postponed = any(row["postponed"] for row in rows.values())
    lanes = tuple(_lane(stepper, name, postponed) for name in stepper.lanes)
    return Observed(stepper.line, rows, histories, lanes, _sql(stepper, asked) if asked else "")


def _lane(stepper: Stepper, name: str, postponed: bool) -> LaneState:
    alive, paused = stepper.is_alive(name), stepper.is_paused(name)
    left = (not alive or paused or postponed) and bool(stepper.left_by(name))
    return LaneState(name, alive, paused, stepper.standing(name), stepper.next_transaction(name), left)


def _sql(stepper: Stepper, asked: Asked) -> str:
    """The statement with its values, tables without their schema."""
    text, schema = stepper.sql(asked.name), stepper.engine.database.schema
    for name in (schema, schema + WORLD_SUFFIX):
        text = text.replace(f"{quoted(name)}.", "")
    return filled(text, asked.params)
