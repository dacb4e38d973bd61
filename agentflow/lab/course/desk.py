"""The learner's record as a notebook may use it: nothing here raises, and what could not be kept is said.

What lives here: which attempt is going on, and `trouble`, a sentence while PostgreSQL does not answer. What does not: how
it is kept (`record`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...errors import AgentFlowError
from .outline import Exercise, Outline
from .record import PATIENCE, Kept, Record

T = TypeVar("T")


class Desk:
    """One learner's place at one stage. `opened` gives the record, each time it is needed; it may raise."""

    def __init__(self, told: Outline, opened: Callable[[], Record]) -> None:
        self.outline, self._opened = told, opened
        self.trouble = ""
        self._attempt = ""

    def sit_down(self) -> Kept | None:
        """The attempt that goes on: the newest, or a new one if it was read through and nothing predicted in it."""

        def newest(record: Record) -> Kept:
            names = record.attempts(self.outline.name)
            kept = record.read(names[0]) if names else record.begin(self.outline, 1)
            return record.begin(self.outline, kept.number + 1) if kept.is_blank else kept

        return self._sit(newest)

    def again(self) -> Kept | None:
        """A new attempt, in which nothing is predicted yet."""

        def following(record: Record) -> Kept:
            names = record.attempts(self.outline.name)
            return record.begin(self.outline, record.read(names[0]).number + 1 if names else 1)

        return self._sit(following)

    def attempt(self) -> Kept | None:
        """What is kept of the attempt that goes on; None if it cannot be read."""
        if not self._attempt:
            return self.sit_down()
        return self._try(lambda record: record.read(self._attempt))

    def keep(self, event: str, payload: object) -> Kept | None:
        """The event is kept in this attempt, unless one of its name came first; what is kept now, or None."""
        if not self._attempt:
            self.sit_down()
        name = self._attempt
        return self._try(lambda record: record.keep(name, event, payload)) if name else None

    def exercise(self, chosen: Exercise) -> Kept | None:
        """What is kept of this exercise; None if it cannot be read."""
        return self._try(lambda record: record.exercise(self.outline, chosen))

    def keep_exercise(self, chosen: Exercise, event: str) -> Kept | None:
        """The event is kept in this exercise; what is kept now, or None."""
        return self._try(lambda record: record.keep_exercise(self.outline, chosen, event))

    def predicted(self) -> Kept | None:
        """The newest attempt in which anything was predicted, or None."""
        return self._try(lambda record: record.predicted(self.outline.name))

    def finished(self) -> bool:
        """Whether the checks of this stage passed, as far as that can be read."""
        return bool(self._try(lambda record: record.finished(self.outline.name)))

    def _sit(self, choose: Callable[[Record], Kept]) -> Kept | None:
        kept = self._try(choose)
        self._attempt = kept.id if kept else ""
        return kept

    def _try(self, ask: Callable[[Record], T]) -> T | None:
        """What the record answers, or None. While it does not, no cell waits for it a second time."""
        record = None
        try:
            record = self._opened()
            found = ask(record)
        except Exception as error:  # whatever is wrong with the record: the lesson goes on
            said = str(error) if isinstance(error, AgentFlowError) else f"{type(error).__name__}: {error}"
            self.trouble = f"Nothing is kept now, and you can go on. {said}"
            if record:
                record.engine.database.patience = 0.0
            return None
        self.trouble, record.engine.database.patience = "", PATIENCE
        return found
