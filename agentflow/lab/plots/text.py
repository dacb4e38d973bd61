"""Everything about a plot that needs no drawing: the table is checked, means are taken, and every sentence is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ...errors import BadFrame
from ..history.words import counted

if TYPE_CHECKING:
    import pandas

PARTS = ("detect_ms", "claim_ms", "replay_ms", "re_execute_ms")
ENOUGH = 5  # points, before a mean is drawn
EffectsCell = tuple[int, int, str]
"""Attempts, effects, and what that is against the plan: right, doubled or missing."""


def check_columns(
    frame: pandas.DataFrame, *, words: Sequence[str], numbers: Sequence[str] = (), counts: Sequence[str] = ()
) -> None:
    """Raises BadFrame unless the frame has these columns, no value in them is missing, and numbers can be drawn."""
    for column in (*words, *numbers, *counts):
        if column not in frame.columns:
            has = ", ".join(map(str, frame.columns)) or "none"
            raise BadFrame(
                f"The table has no column {column!r}; its columns are: {has}. See agentflow.lab.plots.frames."
            )
        for row, value in zip(frame.index, frame[column], strict=True):
            wrong = _wrong(value, column in numbers, column in counts)
            if wrong:
                raise BadFrame(
                    f"Column {column!r}, row {row!r}: {value!r:.40} is {wrong}. Correct the value, or leave the row out."
                )


def _wrong(value: Any, number: bool, count: bool) -> str:
    if value is None or value != value:
        return "missing"
    if number or count:
        try:
            found = float(value)
        except (TypeError, ValueError):
            return "not a number"
        if not 0 <= found < float("inf"):
            return "not a finite number of 0 or more"
        if count and found != int(found):
            return "not a whole number"
    return ""


class Recoveries:
    """The recoveries of one row of the picture; times in ms."""

    def __init__(self, label: object, rows: pandas.DataFrame) -> None:
        self.label, self.count = str(label), len(rows)
        parts = [[float(one) for one in rows[part]] for part in PARTS]
        self.means = [fmean(part) for part in parts]
        self.taken = [detect + claim for detect, claim in zip(*parts[:2], strict=True)]
        self.rest = [sum(each) for each in zip(*parts[1:], strict=True)]
        self.latest = _latest(rows)
        self.enough = self.count >= ENOUGH
        self.widest = max(sum(self.means), max(self.taken), self.latest or 0.0)

    def __str__(self) -> str:
        parts = zip(("detect", "claim", "replay", "re-execute"), self.means, strict=True)
        split = ", ".join(f"{name} {duration(mean)}" for name, mean in parts)
        many = counted(self.count, "recovery", "recoveries")
        tick = f"; lease and one poll are {duration(self.latest)}" if self.latest else ""
        return f"{self.label}: mean {duration(sum(self.means))}: {split}; {many}, the latest take-over after " + (
            f"{duration(max(self.taken))}{tick}"
        )


def _latest(rows: pandas.DataFrame) -> float | None:
    """When the last of them should have been taken over, in ms: lease and one poll, if both are known."""
    if not {"lease_seconds", "poll_seconds"} <= set(rows.columns):
        return None
    known = (rows["lease_seconds"].astype(float) + rows["poll_seconds"].astype(float)).dropna()
    return float(known.max()) * 1000 if len(known) else None


def latency_label(groups: Sequence[Recoveries]) -> str:
    """The whole picture in one sentence."""
    if not groups:
        return "Whole span of a recovery: no recoveries yet"
    total = counted(sum(group.count for group in groups), "recovery", "recoveries")
    return f"Whole span of {total}: " + "; ".join(
        f"{group.label} mean {duration(sum(group.means))}, of that detect {duration(group.means[0])}"
        for group in groups
    )


def not_shown(groups: Sequence[Recoveries]) -> str:
    """What must not be concluded from the parts after detect."""
    rest = [one for group in groups for one in group.rest]
    if len(groups) < 2 or not rest:
        return "A lease decides when the loss is noticed. From one row nothing follows about another lease."
    spread = f"{duration(min(rest))} to {duration(max(rest))}"
    said = "Not shown: that a lease makes the rest faster or slower."
    return f"{said} It spreads from {spread} with the step that was lost and the machine's load."


def latency_text(groups: Sequence[Recoveries], own: Sequence[Recoveries] = ()) -> str:
    """The picture, a line for each row."""
    lines = ["Whole span of a recovery, from the kill to completion (measured)."]
    return "\n".join(
        lines
        + ([f"{group}." for group in groups] or ["No recoveries yet."])
        + [f"Your own, {group}." for group in own]
        + [not_shown(groups)]
    )


def effects_cells(frame: pandas.DataFrame) -> Counter[EffectsCell]:
    """How many workflows there are of each kind. Raises BadFrame."""
    counts = ["attempts", "effects", "too_many", "undone"]
    check_columns(frame, counts=counts, words=["workflow"])
    return Counter(
        (int(attempts), int(effects), "doubled" if too_many else "missing" if undone else "right")
        for attempts, effects, too_many, undone in zip(*(frame[name] for name in counts), strict=True)
    )


def cell_text(cell: EffectsCell, count: int) -> str:
    """How many workflows are of this kind, and whether that is right."""
    attempts, effects, judged = cell
    why = {"right": "as planned", "doubled": "one too many", "missing": "not all that was planned, or not yet"}[judged]
    return f"{counted(count, 'workflow')}: {counted(attempts, 'attempt')}, {counted(effects, 'effect')}, {why}."


def effects_label(cells: Counter[EffectsCell]) -> str:
    """The whole picture in one sentence."""
    wrong = sum(count for (_, _, judged), count in cells.items() if judged == "doubled")
    return f"Attempts against effects of {counted(sum(cells.values()), 'workflow')}: {wrong} with an effect too many"


def effects_text(cells: Counter[EffectsCell]) -> str:
    """The picture, a line for each kind of workflow."""
    lines = [cell_text(cell, count) for cell, count in sorted(cells.items())] or ["No workflows yet."]
    return "\n".join([f"{effects_label(cells)}.", *lines])


def worker_text(worker: str, claimed: int, done: int) -> str:
    """What one worker did."""
    return f"{worker} completed {done} of {counted(claimed, 'workflow')} that it claimed."


def duration(ms: float, tick_of: float | None = None) -> str:
    """Milliseconds in words: in ms below a second (for a tick: if the last tick is below two seconds), else in seconds."""
    if tick_of is not None:
        return f"{ms:g} ms" if tick_of < 2000 else f"{ms / 1000:g} s"
    return f"{ms / 1000:.2f} s" if ms >= 1000 else f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms"
