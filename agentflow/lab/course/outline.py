"""What a stage of the course asks and teaches, as plain data that tests can read; nothing here asks or remembers.

What lives here: the shape of a question with its options and misconceptions, of an exercise with its hints, of a stage.
What does not: the words themselves (`stages`), the learner's answers (`record`), how they are shown (`course`, `ask`).
Read `stages/start_here.py` next: it is one stage, filled in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

SURE = ("guess", "fairly sure", "certain")
MAX_HINTS = 3


@dataclass(frozen=True)
class Option:
    """One thing that may be predicted. Without a `misconception` it is the right one."""

    says: str
    misconception: str = ""


@dataclass(frozen=True)
class Question:
    """A question before a reveal; exactly one option is right, and `because` is what the reveal adds to it."""

    name: str
    ask: str
    options: tuple[Option, ...]
    because: str

    @property
    def right(self) -> int:
        """The number of the right option, counted from 1."""
        return next(n for n, option in enumerate(self.options, 1) if not option.misconception)


@dataclass(frozen=True)
class Exercise:
    """A function that the learner writes: `judge(function, ...)` says that it is solved, or raises CheckFailed."""

    name: str
    hints: tuple[str, ...]
    judge: Callable[..., str]


Named = TypeVar("Named", Question, Exercise)


@dataclass(frozen=True)
class Outline:
    """One stage: the name of its notebook, what it is called, how many minutes it takes, what it asks.

    `fast` stages are enough for somebody who knows job queues and transactions well.
    """

    name: str
    title: str
    goal: str
    minutes: int
    questions: tuple[Question, ...] = ()
    exercises: tuple[Exercise, ...] = ()
    fast: bool = False

    def question(self, name: str) -> Question:
        """The question of this name. Raises LookupError, which says which there are."""
        return _named(self.questions, f"stage {self.name} has no question", name)

    def exercise(self, name: str) -> Exercise:
        """The exercise of this name. Raises LookupError, which says which there are."""
        return _named(self.exercises, f"stage {self.name} has no exercise", name)


def _named(things: tuple[Named, ...], none: str, name: str) -> Named:
    for thing in things:
        if thing.name == name:
            return thing
    raise LookupError(f"{none} {name!r}; there is: {', '.join(thing.name for thing in things) or 'none'}.")
