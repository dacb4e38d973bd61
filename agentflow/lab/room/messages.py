"""What a control room says beside the entries of the history: moves that left no entry, and what went wrong."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import replace

from ...errors import AgentFlowError, BadSchedule
from ..history.entries import Row
from ..history.words import REFUSED
from ..schedule.moves import Moved
from .row_tables import holder
from .scene import Trouble


def trouble_of(error: Exception) -> Trouble:
    """What happened and what to do next; for an error that nobody expected, with its traceback."""
    if isinstance(error, BadSchedule):
        return Trouble("BadSchedule", str(error), "The room is as it was before.")
    if isinstance(error, AgentFlowError):
        return Trouble(type(error).__name__, str(error))
    details = "".join(traceback.format_exception(error))
    reset = "The rows below are as the last transaction left them. To start again, press Reset."
    return Trouble(type(error).__name__, f"{error}.", reset, details)


def without_entry(moved: Moved, rows: Mapping[str, Row]) -> str:
    """What a move did that left no entry in the history that is shown."""
    lane, passed = moved.move.lane, moved.passed
    if passed is None:
        return f"{moved.said[:1].upper()}{moved.said[1:]}."
    if moved.ended == "idle":
        return f"{lane} asks for work and finds nothing to claim: {_why_idle(rows)}."
    about = f" {moved.workflow}" if moved.workflow else ""
    if passed.outcome == "committed":
        return f"{lane} commits {passed.transaction}{about}."
    if moved.standing == replace(passed, edge="before", outcome=None):
        return f"{lane} does not know whether {passed.transaction} was committed; it will ask again. Step it once more."
    return f"{lane} tries {passed.transaction}{about}: {REFUSED}."


def _why_idle(rows: Mapping[str, Row]) -> str:
    reasons = []
    for name, row in rows.items():
        if row["status"] != "ready":
            reasons.append(f"{name} is {row['status']}")
        elif holder(row):
            reasons.append(f"{name} is leased to {holder(row)}")
        elif row["postponed"]:
            reasons.append(f"{name} waits out a back-off")
    return ", ".join(reasons) or "no workflow is ready"
