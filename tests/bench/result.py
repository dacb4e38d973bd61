"""A row of the table: what was measured, its bound, and what is said of it. Whoever could not judge a row says why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Result:
    """One promise: its value and its bound. `here` is the time on this machine, for people; nothing is judged by it.

    `unjudged` says why the value cannot be held against the bound; it is then neither met nor missed.
    """

    what: str
    value: float
    relation: Literal["at least", "at most"]
    bound: float
    here: str = ""
    unjudged: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the promise is kept; None if nobody can tell."""
        if self.unjudged:
            return None
        return self.value >= self.bound if self.relation == "at least" else self.value <= self.bound

    @property
    def verdict(self) -> str:
        """The table's word."""
        return {True: "yes", False: "**no**", None: f"not judged: {self.unjudged}"}[self.met]


def table(results: Sequence[Result], notes: Sequence[str], facts: str, command: str) -> str:
    """The generated part of the document."""
    lines = [f"Measured with `{command}` on: {facts}.", "", summary(results), ""]
    lines += ["| what | value | bound | met | here |", "|---|--:|--:|---|--:|"]
    lines += [f"| {r.what} | {r.value:.2f} | {r.relation} {r.bound:g} | {r.verdict} | {r.here} |" for r in results]
    return "\n".join([*lines, "", *[f"- {note}" for note in notes]])


def summary(results: Sequence[Result]) -> str:
    """How many bounds were met, missed, and not judged; a row that was not judged is never called fine."""
    met, missed, unjudged = (sum(one.met is outcome for one in results) for outcome in (True, False, None))
    said = f"Of {len(results)} bounds {met} are met and {missed} missed."
    return f"{said} {unjudged} could not be judged, and nothing is known of them." if unjudged else said


def exit_code(results: Sequence[Result]) -> int:
    """1 if a bound is missed. Otherwise 0, even if some rows were not judged: the summary says so."""
    return int(any(result.met is False for result in results))
