"""The result of a crash atlas: its columns and cells, as a table and in sentences.

These are plain records without a database. Times are measured and differ from run to run; nothing else does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal, Self

from ...statements import TRANSACTIONS
from ..history.canonical import agreed, canonical
from ..history.entries import Row
from ..history.sentences import sentences
from ..history.words import counted
from ..schedule.presets import PRESETS
from .kill_plan import GAP, PATH, in_gap

CellState = Literal["running", "done", "missing", "failed"]
BOUNDARIES = ("before claim", *PATH)
"""The rows: what a first worker of the support agent passes. `load` happens only after a take-over, so it is left out."""

STALE_WORKER = PRESETS["stale worker"].line
TWO_CLAIMS = "without=claim_reads_first A B A B"
"""Two schedules without a kill that show what two columns of an atlas cannot: the fence, and the locked claim."""
_NOTES = {
    "fence_token": f"A kill cannot show what the fence is for: a stale worker does, {STALE_WORKER}",
    "claim_reads_first": f"Nor what a claim in one statement is for: two at once do, {TWO_CLAIMS}",
}


@dataclass(frozen=True)
class GuardSet:
    """One column: the engine without these guards (or NaiveRunner, with none of them), under one or two lines of a name.

    `predicted` are the boundaries where a kill leaves a number of effects other than 1 (None: the engine has no such
    boundary). `unsure` are those where it loses a tool's result: what a workflow of one's own does without it, nobody can say.
    """

    lines: tuple[str, ...]
    without: tuple[str, ...] = ()
    naive: bool = False
    predicted: Mapping[str, int | None] = field(default_factory=dict)
    unsure: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The name on one line."""
        return " ".join(self.lines)


def predicting(guards: GuardSet, there: Mapping[str, int]) -> GuardSet:
    """The column with its prediction, for a workflow that has left so many effects at each of these boundaries undisturbed."""
    effects, before = [*there.values()][-1], 0
    found: dict[str, int | None] = dict.fromkeys(there, effects)
    for boundary, done in there.items():
        edge, transaction = boundary.split(" ")[:2]
        before = done if (edge, transaction) == ("before", "tool") else before
        left = there.get(f"after {boundary.partition(' ')[2]}", done) if transaction == "tool" else done
        call = left - before  # how many effects the last call of the tool has
        if guards.naive:
            recorded = TRANSACTIONS[transaction].progress and transaction not in ("tool", "complete")
            found[boundary] = None if recorded else effects + done * (boundary != "after complete")
        elif "idempotency_key" in guards.without:
            found[boundary] = effects + call * in_gap(boundary)
        elif "acknowledge_after_tool" in guards.without:
            found[boundary] = effects - call * ((edge, transaction) in (("before", "tool"), ("after", "acknowledge")))
    return replace(guards, predicted={**found, **guards.predicted})


def losing(guards: GuardSet, boundaries: Sequence[str]) -> GuardSet:
    """The column that says where a kill loses the result of a workflow's own tool: after it was acknowledged without one."""
    called = next((n for n, boundary in enumerate(boundaries) if boundary.startswith("before tool")), len(boundaries))
    lost = boundaries[called:-1] if "acknowledge_after_tool" in guards.without else ()
    return replace(guards, unsure=frozenset(lost))


GUARD_SETS = tuple(
    predicting(guards, {one: int(n >= BOUNDARIES.index("after tool")) for n, one in enumerate(BOUNDARIES)})
    for guards in (
        GuardSet(("all guards",)),
        GuardSet(("no fence",), ("fence_token",)),
        GuardSet(("claim reads,", "then writes"), ("claim_reads_first",)),
        GuardSet(("no idempotency", "key"), ("idempotency_key",)),
        GuardSet(("acknowledge", "before the tool"), ("acknowledge_after_tool",)),
        GuardSet(("NaiveRunner", "(no checkpoints)"), naive=True),
    )
)
"""The six columns of the picture."""


@dataclass(frozen=True)
class AtlasCell:
    """One worker killed at one boundary of one engine, and how another worker finished.

    `effects` and `attempts` count the world's own rows; `executions` are the executions of steps, by process id and step,
    as the steps noted them; `recovery_ms` is from the take-over to completion, with the laboratory stepping through each
    transaction (None: nothing was taken over). `due` is how many effects an undisturbed run leaves; both are None if a
    tool of one's own does not tell. `exit_code` is that of the killed process: -9. `line` is the schedule
    (NaiveRunner has none), `history` its entries, `error` the reason why the cell could not be played, and `failure` why the
    workflow failed.
    """

    boundary: str
    guards: str
    state: CellState = "running"
    effects: int | None = None
    attempts: int | None = None
    completed: bool = False
    executions: tuple[tuple[int, str], ...] = ()
    recovery_ms: float | None = None
    exit_code: int | None = None
    line: str = ""
    history: tuple[Row, ...] = field(default=(), repr=False)
    error: str = ""
    failure: str = ""
    due: int | None = 1

    @property
    def executed_again(self) -> int:
        """How many executions of steps were repetitions of an earlier one."""
        return len(self.executions) - len({step for _, step in self.executions})

    @property
    def sentence(self) -> str:
        """The cell in words: `after tool, all guards: 1 effect`."""
        return f"{self.boundary}, {self.guards}: {self.what}"

    @property
    def what(self) -> str:
        """The cell's outcome in words."""
        if self.state == "running":
            return "not played yet"
        if self.state == "missing":
            return "no such boundary"
        if self.state == "failed":
            return f"could not be played: {self.error}"
        seen = "not observed" if self.effects is None else counted(self.effects, "effect")
        return seen + (
            "" if self.completed else f", and failed: {self.failure}" if self.failure else ", and never completed"
        )

    @property
    def figures(self) -> str:
        """The figures beside the effects, without times."""
        attempts = counted(self.attempts or 0, "call of the tool", "calls of the tool")
        attempts = "calls of the tool not observed" if self.attempts is None else attempts
        return f"{attempts}, {counted(len(self.executions), 'step')} executed, {self.executed_again} of them again"

    def lines(self) -> list[str]:
        """The cell's history, a sentence for each entry; for NaiveRunner, what its queue saw."""
        if self.line:
            return sentences(self.history)
        return [entry["detail"]["said"] for entry in self.history]

    def to_dict(self) -> dict[str, Any]:
        """The cell for a program; its history is the same on every machine, without what a clock measured."""
        history = [agreed(entry) for entry in canonical(self.history)] if self.line else list(self.history)
        plain = {name: value for name, value in vars(self).items() if name not in ("history", "executions")}
        return {**plain, "executions": len(self.executions), "executed_again": self.executed_again, "history": history}


@dataclass(frozen=True)
class AtlasResult:
    """Every boundary times every set of guards, without its picture."""

    guard_sets: tuple[GuardSet, ...] = GUARD_SETS
    cells: Mapping[tuple[str, str], AtlasCell] = field(default_factory=dict)
    seconds: float | None = None
    boundaries: tuple[str, ...] = BOUNDARIES

    title = "Crash atlas: business effects after a worker is killed at each boundary, for each set of guards"
    here, leaves = (
        "a worker killed here ...",
        "... leaves this many business effects after another worker recovered",
    )

    def cell(self, boundary: str, guards: str) -> AtlasCell:
        """The cell of this row and column, `running` if it was not played yet. Raises KeyError for unknown names."""
        if boundary not in self.boundaries or guards not in [each.name for each in self.guard_sets]:
            raise KeyError(f"There is no cell {boundary!r}, {guards!r}")
        return self.cells.get((boundary, guards), AtlasCell(boundary, guards))

    def column(self, guards: GuardSet) -> list[AtlasCell]:
        """The cells of one set of guards, from the claim to the end."""
        return [self.cell(boundary, guards.name) for boundary in self.boundaries]

    def with_cell(self, cell: AtlasCell) -> Self:
        """The same, with this cell in its place."""
        return replace(self, cells={**self.cells, (cell.boundary, cell.guards): cell})

    def __iter__(self) -> Iterator[AtlasCell]:
        return (cell for guards in self.guard_sets for cell in self.column(guards))

    @property
    def kills(self) -> int:
        """How many processes ended by SIGKILL at their boundary."""
        return sum(cell.state == "done" and cell.exit_code == -9 for cell in self)

    # -- judgement ---------------------------------------------------------------------------------------------------

    @property
    def problems(self) -> list[str]:
        """A sentence for each cell that is not as predicted, or that there is none; empty if all is well."""
        found = [wrong for guards in self.guard_sets for cell in self.column(guards) for wrong in _wrong(cell, guards)]
        if blind := sum(cell.state == "done" and cell.effects is None for cell in self):
            mend = (
                "let the tool tell its effects in effects(), and name it: --tool MODULE:ATTRIBUTE, or atlas(tool=...)"
            )
            found.append(f"{blind} cells are not observed: {mend}")
        return found if list(self) else ["no cell was played"]

    @property
    def ok(self) -> bool:
        """Whether every cell was played and is as predicted."""
        return not self.problems

    # -- to look at --------------------------------------------------------------------------------------------------

    def grid(self) -> str:
        """The effects as plain text, a line for each boundary."""
        heads = [guards.name.replace("NaiveRunner (no checkpoints)", "NaiveRunner") for guards in self.guard_sets]
        first = max(map(len, self.boundaries))
        lines = [" " * first + "".join(f"  {head}" for head in heads)]
        for boundary in self.boundaries:
            marks = [_mark(self.cell(boundary, guards.name)) for guards in self.guard_sets]
            line = "".join(f"  {mark:>{len(head)}}" for mark, head in zip(marks, heads, strict=True))
            lines.append(f"{boundary:<{first}}{line}" + ("  | acknowledgment gap" if in_gap(boundary) else ""))
        return "\n".join(lines)

    def text(self) -> str:
        """The atlas in sentences: the text twin of its picture."""
        lines = [
            f"A worker killed at each of {len(self.boundaries)} boundaries, for each of "
            f"{counted(len(self.guard_sets), 'set')} of guards, and recovered by another: how many business effects are left.",
            *(f"{guards.name}: {_column(self.column(guards))}" for guards in self.guard_sets),
            f"Between {' and '.join(GAP)} lies the acknowledgment gap: the effect exists, and the engine does not know.",
            *self.notes(),
            *(f"Not as predicted: {wrong}." for wrong in self.problems if self.seconds is not None),
        ]
        return "\n".join(lines)

    def notes(self) -> list[str]:
        """What kills cannot show, and the schedules that do, for the columns there are; and which cells nobody could predict."""
        shown = {name for guards in self.guard_sets for name in guards.without}
        found = [note for guard, note in _NOTES.items() if guard in shown]
        for guards in self.guard_sets:
            cells = [
                one for one in self.column(guards) if one.boundary in guards.unsure and one.state in ("done", "missing")
            ]
            if odd := [one for one in cells if one.state == "missing" or [*_unlike(one, guards)]]:
                lost = "loses what the tool answered, which this workflow needs"
                found.append(f"No prediction: {guards.name} {lost}: {'; '.join(_by_what(odd))}.")
        return found

    def to_dict(self) -> dict[str, Any]:
        """The atlas for a program."""
        return {
            "ok": self.ok, "problems": self.problems, "kills": self.kills, "seconds": self.seconds,
            "boundaries": list(self.boundaries),
            "guard_sets": [{"name": g.name, "without": list(g.without), "naive": g.naive} for g in self.guard_sets],
            "cells": [cell.to_dict() for cell in self],
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"{self.grid()}\n\n{self.text()}"


def _wrong(cell: AtlasCell, guards: GuardSet) -> Iterator[str]:
    """What is wrong with a cell, if anything."""
    predicted = guards.predicted.get(cell.boundary, 1)
    if cell.state in ("running", "failed"):
        yield cell.sentence
    elif (cell.state == "missing") != (predicted is None):
        if cell.boundary not in guards.unsure:
            yield f"{cell.sentence}, and that was not predicted"
    elif predicted is not None:
        if cell.exit_code != -9:
            yield f"{cell.sentence}, but the killed process ended with exit code {cell.exit_code} and not by SIGKILL"
        if cell.boundary not in guards.unsure:
            yield from _unlike(cell, guards)


def _unlike(cell: AtlasCell, guards: GuardSet) -> Iterator[str]:
    """How the cell differs from what its guards predict."""
    predicted = guards.predicted.get(cell.boundary, 1) or 0
    if cell.effects not in (predicted, None):
        yield f"{cell.sentence}, where {counted(predicted, 'effect')} {'was' if predicted == 1 else 'were'} predicted"
    if not cell.completed:
        yield cell.sentence if cell.failure else f"{cell.boundary}, {cell.guards}: no worker completed it"


def _mark(cell: AtlasCell) -> str:
    """The cell as a character or a few."""
    return {
        "running": "...",
        "missing": "-",
        "failed": "?",
        "done": "unseen" if cell.effects is None else str(cell.effects),
    }[cell.state]


def _column(cells: Sequence[AtlasCell]) -> str:
    """A column in a sentence, the exceptions first."""
    if cells and all(cell.state == "done" and _short(cell) == _short(cells[0]) for cell in cells):
        return f"{'always ' * (cells[0].effects is not None)}{_short(cells[0])}."
    usual = Counter(_short(cell) for cell in cells if cell.state == "done").most_common(1)
    common = usual[0][0] if usual else ""
    rest = [cell for cell in cells if _short(cell) != common]
    said = _by_what(rest)
    if common:
        said.append(f"{common} everywhere else")
    return "; ".join(said or ["nothing was played"]) + "."


def _by_what(cells: Iterable[AtlasCell]) -> list[str]:
    """Each outcome with the boundaries where it came."""
    alike = groupby(sorted(cells, key=_short), key=_short)
    return [f"{what} {_listed(cell.boundary for cell in same)}" for what, same in alike]


def _short(cell: AtlasCell) -> str:
    return cell.what if cell.state != "failed" else "could not be played"


def _listed(names: Iterable[str]) -> str:
    """The boundaries in words; before and after the same transaction become `around` it."""
    found = list(names)
    for name in [name for name in found if name.startswith("before ") and f"after {name[7:]}" in found]:
        found[found.index(name)] = f"around {name[7:]}"
        found.remove(f"after {name[7:]}")
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)
