"""Entries of a history as a picture or a text reads them: from rows, from JSON, with long or short names of workers.

What lives here: `read_entries`, and `callers`, which finds out who called the tool (the world's own entries name no
worker). What does not: what they mean together (`story`, to be read next).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Row = Mapping[str, Any]
TOOL = {"tool_attempt_committed", "tool_refused"}
LOSSES = {"worker_killed", "crash_injected"}
FAULTS = {*LOSSES, "worker_paused", "worker_resumed"}


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
            str(row.get("subject") or ""),
            worker_name(row["worker"]) if row.get("worker") else None,
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
    """The entries of one worker after a position, until it claims anew or a new process takes its lane."""
    for entry in entries[index + 1 :]:
        if entry.who == who:
            if entry.transaction == "claim":
                return
            yield entry
            if entry.event in LOSSES:
                return


def callers(entries: Sequence[Entry]) -> dict[int, tuple[str | None, str]]:
    """For the position of each call of the tool: who called, and the key of the action that it meant.

    Candidates are the workers that stand before the call (the action planned, or found planned at the claim). Among them
    the one whose next entry shows that it called, else the holder of the lease.
    """
    found: dict[int, tuple[str | None, str]] = {}
    planned: dict[str, bool] = {}  # key, and whether it is pending
    before: dict[str, str] = {}  # worker, and the key of the call that it stands before
    holder: str | None = None
    last: dict[str, str] = {}
    for index, entry in enumerate(entries):
        who = entry.who
        if entry.event == "workflow_claimed" and who:
            holder = who
            before.pop(who, None)
            before.update({who: key for key, pending in planned.items() if pending})
        elif entry.event == "action_intent_committed" and who:
            planned[entry.subject] = True
            before[who] = last[who] = entry.subject
        elif entry.event == "action_acknowledged" and who:
            planned[entry.subject] = False
            before.pop(who, None)
            last[who] = entry.subject
        elif entry.event in LOSSES and who:
            before.pop(who, None)
            holder = None if holder == who else holder
        elif entry.event in TOOL:
            caller = _caller(entries, index, before, holder)
            found[index] = caller, _key(entry, planned, before, last, caller)
            if caller:
                last[caller] = before.pop(caller, last.get(caller, found[index][1]))
    return found


def _caller(entries: Sequence[Entry], index: int, before: Mapping[str, str], holder: str | None) -> str | None:
    def sure(who: str) -> tuple[int, int, int]:
        mine = next(own_after(entries, index, who), None)
        called = {None: 1, True: 0, False: 2}[None if mine is None else _called(mine)]
        when = entries.index(mine) if mine else len(entries)
        return called, who != holder, when

    likely = sorted(before, key=sure)
    return likely[0] if likely else holder


def _called(mine: Entry) -> bool:
    """Whether a worker's next entry shows that it has called the tool."""
    if mine.event in FAULTS:
        return not mine.subject.startswith("before tool")
    return mine.transaction in {"acknowledge", "postpone", "complete"} or mine.event == "reply_lost"


def _key(
    entry: Entry, planned: Mapping[str, bool], before: Mapping[str, str], last: Mapping[str, str], caller: str | None
) -> str:
    """The planned action that a call meant: told by its idempotency key, else by what its caller was about to do."""
    told = str(entry.detail.get("idempotency_key") or "").rpartition(":")[2].replace("%3A", ":").replace("%25", "%")
    if told in planned:
        return told
    pending = [key for key, open_ in planned.items() if open_]
    return before.get(caller or "") or last.get(caller or "") or (pending or [entry.subject])[-1]
