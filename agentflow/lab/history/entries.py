"""Entries of a history as pictures and sentences read them: from rows or from JSON, with long or short names of workers.

The world's own entries name no worker, so `callers` finds out who called the tool.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...statements import TRANSACTIONS
from .faults import FAULTS, fault_of

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


def worker_name(identity: str | None) -> str:
    """The name that people gave a worker, without what makes its identity new at each start."""
    return (identity or "nobody").split(".")[0] or "nobody"


def read_entries(rows: Sequence[Row]) -> list[Entry]:
    """The rows of `engine.history()`, or the same read back from JSON, as entries."""
    times = [_seconds(row.get("at")) for row in rows]
    first = next((time for time in times if time is not None), 0.0)
    return [
        Entry(
            int(row.get("n") or position),
            None if time is None else time - first,
            str(row["event"]),
            str(row.get("transaction") or ""),
            _CONTROL.sub(" ", str(row.get("subject") or "")),
            _CONTROL.sub(" ", worker_name(row["worker"])) if row.get("worker") else None,
            row.get("fence_token"),
            row.get("detail") or {},
        )
        for position, (row, time) in enumerate(zip(rows, times, strict=True), 1)
    ]


def _seconds(at: Any) -> float | None:
    if at is None or isinstance(at, int | float):
        return at
    moment = at if isinstance(at, datetime) else datetime.fromisoformat(str(at))
    return moment.timestamp()


def own_after(entries: Sequence[Entry], index: int, who: str | None) -> Iterator[Entry]:
    """The entries of one worker after a position, until it claims again or a new process takes its lane."""
    for entry in entries[index + 1 :]:
        if entry.who == who:
            if entry.transaction == "claim":
                return
            yield entry
            if entry.event in LOSSES:
                return


def callers(entries: Sequence[Entry]) -> dict[int, tuple[str | None, str]]:
    """For the position of each call of the tool: who called, and the key of the action that it meant."""
    watch, found = _Watch(entries), {}
    for index, entry in enumerate(entries):
        if entry.event in TOOL_EVENTS:
            found[index] = watch.called(index, entry)
        elif entry.who:
            watch.saw(entry, entry.who)
    return found


class _Watch:
    """Keeps track of which workers stand before a call of the tool.

    These are the workers that planned an action, or found one planned when they claimed. The caller is the one whose own
    next entry shows that it called; if no entry shows it, the holder of the lease.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries
        self.planned: dict[str, bool] = {}  # by key: whether it is still to be acknowledged
        self.before: dict[str, str] = {}  # by worker: the key of the call that it stands before
        self.last: dict[str, str] = {}  # by worker: the key that it dealt with last
        self.paused: set[str] = set()
        self.holder: str | None = None

    def saw(self, entry: Entry, who: str) -> None:
        """An entry that names its worker."""
        if entry.event == "workflow_claimed":
            self.holder = who
            pending = [key for key, is_pending in self.planned.items() if is_pending]
            self._stands(who, pending[-1] if pending else None)
        elif entry.event in {"action_intent_committed", "action_acknowledged"}:
            self.planned[entry.subject] = entry.event == "action_intent_committed"
            self.last[who] = entry.subject
            self._stands(who, entry.subject if self.planned[entry.subject] else None)
        elif entry.event in LOSSES:
            self._stands(who, None)
            self.paused.discard(who)
            self.holder = None if self.holder == who else self.holder
        elif fate := fault_of(entry.event).worker:
            (self.paused.add if fate == "asleep" else self.paused.discard)(who)

    def _stands(self, who: str, key: str | None) -> None:
        self.before.pop(who, None)
        if key is not None:
            self.before[who] = key

    def called(self, index: int, entry: Entry) -> tuple[str | None, str]:
        """Who called here, and about which action."""
        standing = [who for who in self.before if who not in self.paused and self._may(index, who) < 2]
        caller = min(standing, key=lambda who: (self._may(index, who), who != self.holder), default=self.holder)
        key = self._key(entry, caller or "")
        if caller:
            self.last[caller] = self.before.pop(caller, key)
        return caller, key

    def _may(self, index: int, who: str) -> int:
        """0 if the worker's next entry shows that it called, 1 if nobody can say, 2 if it shows that it did not."""
        mine = next(own_after(self.entries, index, who), None)
        if mine is None:
            return 1
        fault = fault_of(mine.event)
        if fault.worker:
            return 2 if mine.subject.startswith("before tool") else 0
        if fault.loses:
            return {"request": 2, "reply": 0}.get(fault.loses, 1)
        # A plan, a checkpoint, a wait, a failure or a renewal may also be written by a worker that has not called.
        return 0 if mine.transaction in {"acknowledge", "postpone", "complete"} else 1

    def _key(self, entry: Entry, caller: str) -> str:
        """The action whose idempotency key the call had; without one, what the caller was about to do, or did last."""
        told = str(entry.detail.get("idempotency_key") or "").rpartition(":")[2].replace("%3A", ":").replace("%25", "%")
        if told in self.planned:
            return told
        pending = [key for key, is_pending in self.planned.items() if is_pending]
        return self.before.get(caller) or self.last.get(caller) or (pending or [entry.subject])[-1]
