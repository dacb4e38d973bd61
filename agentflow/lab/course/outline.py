"""What a stage of the course asks and teaches, as plain data: questions with their options, exercises with their hints.

Read `stages/start_here.py` next: it is one stage, filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

SURE = ("guess", "fairly sure", "certain")
MAX_HINTS = 3


RIGHT = ""
"""In a question, beside the right option: nothing is wrong with it."""


@dataclass(frozen=True)
class Question:
    """A question before a reveal; exactly one option is RIGHT, and `because` explains it at the reveal.

    Beside every other option is its misconception, which follows "That would be true if": the idea behind the answer, then
    "In fact" and what is so instead.
    """

    name: str
    ask: str
    options: Mapping[str, str]
    because: str

    @property
    def right(self) -> int:
        """The number of the right option, counted from 1."""
        return list(self.options.values()).index(RIGHT) + 1

    @property
    def numbered(self) -> list[str]:
        """The options, each after its number."""
        return [f"{number}. {option}" for number, option in enumerate(self.options, 1)]


@dataclass(frozen=True)
class Exercise:
    """A function that the learner writes; `judge(function, ...)` says how it was solved, or raises CheckFailed."""

    name: str
    hints: tuple[str, ...]
    judge: Callable[..., str]


def exercise_of(judge: Callable[..., str], *hints: str) -> Exercise:
    """The exercise of this judge, which has its name."""
    return Exercise(judge.__name__, hints, judge)


Named = TypeVar("Named", "Question", "Exercise", "Outline")


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
        """The question of this name. Raises LookupError, which lists the names."""
        return named(self.questions, name, f"stage {self.name} has no question")

    def exercise(self, name: str) -> Exercise:
        """The exercise of this name. Raises LookupError, which lists the names."""
        return named(self.exercises, name, f"stage {self.name} has no exercise")


def named(things: Sequence[Named], name: str, missing: str) -> Named:
    """The one of this name. Raises LookupError, which says what is missing and lists the names that there are."""
    for thing in things:
        if thing.name == name:
            return thing
    raise LookupError(f"{missing} {name!r}. Choose from: {', '.join(thing.name for thing in things) or 'none'}.")
