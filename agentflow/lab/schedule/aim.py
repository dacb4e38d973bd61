"""Which workflow a move is about, when it does not say so or says what cannot be: decided from the rows alone.

What does not live here: reading the rows and making the move (`stepper`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from ...errors import BadSchedule
from .grammar import Move
from .presets import events_of

Row = Mapping[str, Any]
GONE: Row = {"status": "gone", "waiting_for": None, "finished_at": None}


def whose(move: Move, rows: Mapping[str, Row], can_end: Callable[[Row], bool], noun: str) -> str:
    """The id of the workflow whose lease or back-off the move ends. `rows` in the order of their numbers.

    Raises BadSchedule if it has none, or if several have one and the move does not say which.
    """
    found = [name for name, row in rows.items() if can_end(row)]
    if move.request:
        chosen = list(rows)[move.request - 1]
        if chosen not in found:
            raise BadSchedule(f'"{move}": {chosen} has no {noun} that could end.')
        return chosen
    if not found:
        raise BadSchedule(f'"{move}": no workflow has a {noun} that could end.')
    if len(found) > 1:
        which = " or ".join(f"{move.verb}@{list(rows).index(name) + 1}" for name in found)
        raise BadSchedule(f'"{move}": several have a {noun}; say {which}.')
    return found[0]


def addressee(move: Move, workflow: str, rows: Mapping[str, Row]) -> str:
    """The id of the workflow that the event goes to. Raises BadSchedule if nobody awaits it, or several could."""
    known = events_of(workflow)
    if known is not None and move.event not in known:
        waits = f"waits for {' and '.join(known)}" if known else "waits for no event"
        raise BadSchedule(f'"{move}": nobody awaits it; {workflow} {waits}.')
    there = list(rows.items()) if move.request is None else [list(rows.items())[move.request - 1]]
    there = [(name, row) for name, row in there if row["status"] in ("ready", "waiting")]
    there = [(name, row) for name, row in there if row["waiting_for"] == move.event] or there
    if not there:
        raise BadSchedule(f'"{move}": nobody awaits it; no workflow is open.')
    if len(there) > 1:
        raise BadSchedule(f'"{move}": several could get it; say which, such as {replace(move, request=1)}.')
    name, row = there[0]
    if row["waiting_for"] not in (None, move.event):
        raise BadSchedule(f'"{move}": nobody awaits it; {name} waits for {row["waiting_for"]}.')
    return name


def is_leased(row: Row) -> bool:
    """Whether a lease of the workflow could end. Leases of a laboratory last a day, so clocks need not agree well."""
    until = row.get("lease_expires_at")
    return row["status"] == "ready" and until is not None and until > datetime.now(UTC)


def is_postponed(row: Row) -> bool:
    """Whether the workflow waits out a back-off."""
    free = row["status"] == "ready" and row["lease_owner"] is None
    return bool(free and row["next_run_at"] > datetime.now(UTC))
