"""What a control room says beside the entries of the history: moves that left none, and what went wrong.

What does not live here: entries in words (`sentences`).
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import AgentFlowError, BadSchedule
from ..schedule.moves import Moved
from .recording import holder


@dataclass(frozen=True)
class Trouble:
    """What went wrong: the kind of error, one sentence, what to do next, and for an unexpected one its traceback."""

    kind: str
    sentence: str
    next_step: str = ""
    traceback: str = ""

    def __str__(self) -> str:
        return " ".join(part for part in (f"{self.kind}:", self.sentence, self.next_step) if part)


def in_words(error: Exception) -> Trouble:
    """What happened and what to do next; with its traceback if nobody expected it."""
    if isinstance(error, BadSchedule):
        return Trouble("BadSchedule", str(error), "The room is as it was before.")
    if isinstance(error, AgentFlowError):
        return Trouble(type(error).__name__, str(error))
    told = "".join(traceback.format_exception(error))
    reset = "The rows below are as the last transaction left them; press Reset."
    return Trouble(type(error).__name__, f"{error}.", reset, told)


def without_entry(moved: Moved, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """What a move did that left no entry in the history that is shown."""
    lane, passed = moved.move.lane, moved.passed
    if passed is None:
        return f"{moved.said[:1].upper()}{moved.said[1:]}."
    if moved.ended == "idle":
        return f"{lane} asks for work and finds nothing to claim: {_why_idle(rows)}."
    if passed.outcome != "committed":
        return f"{lane} does not know whether {passed.transaction} was committed; it will ask again. Step it once more."
    about = f" {moved.workflow}" if moved.workflow else ""
    return f"{lane} commits {passed.transaction}{about}."


def _why_idle(rows: Mapping[str, Mapping[str, Any]]) -> str:
    said = []
    for name, row in rows.items():
        if row["status"] != "ready":
            said.append(f"{name} is {row['status']}")
        elif holder(row):
            said.append(f"{name} is leased to {holder(row)}")
        elif row["postponed"]:
            said.append(f"{name} waits out a back-off")
    return ", ".join(said) or "there is nothing"
