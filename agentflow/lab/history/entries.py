"""Entries of a history as pictures and sentences read them: from rows or from JSON, with long or short names of workers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...statements import TRANSACTIONS
from .faults import FAULTS

Row = Mapping[str, Any]
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")  # a line of the text twin stays one line
ENTRY_KINDS = {
    **{event: name for name, one in TRANSACTIONS.items() for event in (*one.entries, *one.refusals)},
    "write_refused": "refused", "event_received": "receive", "tool_attempt_committed": "tool", "tool_refused": "tool",
    **{kind.event: kind.name for kind in FAULTS.values()},
}  # fmt: skip
"""What each entry is called in a picture: the transaction, the fault, or what came of it."""

TOOL_EVENTS = {"tool_attempt_committed", "tool_refused"}
LOSSES = {kind.event for kind in FAULTS.values() if kind.worker == "lost"}


@dataclass(frozen=True)
class Entry:
    """One entry: `who` is the lane's name, `at` the time in seconds since the first entry that has one."""

    n: int
    at: float | None
    event: str
    transaction: str
    subject: str
    who: str | None
    token: int | None
    detail: Mapping[str, Any]
    workflow: str = ""


def worker_name(identity: str | None) -> str:
    """The name that people gave a worker, without what makes its identity new at each start."""
    return (identity or "nobody").split(".")[0] or "nobody"


def read_entries(rows: Sequence[Row]) -> list[Entry]:
    """The rows of `engine.history()`, or the same read back from JSON, as entries.

    Rows of several workflows are put in the order of their times, and numbered in it.
    """
    several = len({row.get("workflow_id") for row in rows}) > 1
    rows = merged(rows) if several else rows
    times = [_seconds(row.get("at")) for row in rows]
    first = next((time for time in times if time is not None), 0.0)
    return [
        Entry(
            position if several else int(row.get("n") or position),
            None if time is None else time - first,
            str(row["event"]),
            str(row.get("transaction") or ""),
            _CONTROL.sub(" ", str(row.get("subject") or "")),
            _CONTROL.sub(" ", worker_name(row["worker"])) if row.get("worker") else None,
            row.get("fence_token"),
            row.get("detail") or {},
            str(row.get("workflow_id") or ""),
        )
        for position, (row, time) in enumerate(zip(rows, times, strict=True), 1)
    ]


def merged(rows: Sequence[Row]) -> list[Row]:
    """The rows in the order of their times; those of one workflow stay in their own order, whatever a clock says."""
    latest: dict[Any, float] = {}
    keys = []
    for place, row in enumerate(rows):
        name = row.get("workflow_id")
        latest[name] = max(latest.get(name, float("-inf")), _seconds(row.get("at")) or 0.0)
        keys.append((latest[name], place))
    return [rows[place] for _, place in sorted(keys)]


def _seconds(at: Any) -> float | None:
    if at is None or isinstance(at, int | float):
        return at
    moment = at if isinstance(at, datetime) else datetime.fromisoformat(str(at))
    return moment.timestamp()
