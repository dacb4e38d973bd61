"""The learner's answers and solutions, kept durably by the engine itself in a schema that no reset touches.

One round of a stage is one workflow that waits for an event for each question. An answer is such an event, and the first
payload stays: a prediction cannot be improved afterwards. An exercise is a workflow too, which waits until it is solved; each
hint that was shown is an event of it. A notebook never waits for these workflows: events are kept in the workflow's row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from ...engine import Engine, find_database
from ...errors import AgentFlowError, EventRefused
from ...migrations import migrate
from ...worker import new_identity
from ..laboratory.laboratory import keep, opened, schema_of
from .outline import Exercise, Outline

SCHEMA = "course"
WAIT_FOR_RECORD = 1.0  # seconds; a notebook goes on when PostgreSQL does not answer
PASSED, SOLVED, MANY = "checks passed", "solved", 1000

T = TypeVar("T")


def predicted(question: str) -> str:
    """The name of the event that answers this question."""
    return f"predict {question}"


def one_round(run: Any, asked: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The workflow of one round: an answer (null if it was revealed first) for each question, then the end of the stage."""
    answers = {name: run.wait_for_event(predicted(name), predicted(name)) for name in asked["questions"]}
    run.wait_for_event(PASSED, PASSED)
    return answers


def exercise(run: Any, _: Mapping[str, Any]) -> Any:
    """The workflow of one exercise: it waits until the learner has solved it."""
    return run.wait_for_event(SOLVED, SOLVED)


# The names in the rows of every edition of the course; the first called a round an attempt.
WORKFLOWS_OF_THE_COURSE = {"attempt": one_round, "exercise": exercise}


@dataclass(frozen=True)
class Kept:
    """One workflow of the course, a round or an exercise: its id and the events that came, by name."""

    id: str
    events: Mapping[str, Any]

    @property
    def number(self) -> int:
        """Which round of its stage this is, counted from 1."""
        return _number(self.id)

    def answer(self, question: str) -> Mapping[str, Any] | None:
        """The learner's answer, `answer` and `sure`, or None."""
        found: Mapping[str, Any] | None = self.events.get(predicted(question))
        return found

    def is_closed(self, question: str) -> bool:
        """Whether the question was answered or revealed, so that no further answer counts."""
        return predicted(question) in self.events

    @property
    def has_answers(self) -> bool:
        """Whether anything was predicted."""
        return any(given is not None for name, given in self.events.items() if name.startswith(predicted("")))

    @property
    def was_read(self) -> bool:
        """Whether any question was answered, or its answer unfolded."""
        return any(name.startswith(predicted("")) for name in self.events)

    @property
    def hints(self) -> int:
        """How many hints were shown."""
        return sum(name.startswith("hint ") for name in self.events)


def _number(name: str) -> int:
    return int(name.rpartition(":")[2])


class Record:
    """The learner's rounds and exercises. Every method raises AgentFlowError if PostgreSQL cannot keep or give them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def rounds(self, stage: str) -> Iterator[Kept]:
        """All rounds of this stage, the newest first."""
        rows = self.engine.list_workflows(prefix=f"{stage}:", limit=MANY)
        yield from map(self.read, sorted((row["id"] for row in rows), key=_number, reverse=True))

    def predicted(self, stage: str) -> Kept | None:
        """The newest round of this stage in which anything was predicted."""
        return next((kept for kept in self.rounds(stage) if kept.has_answers), None)

    def finished(self, stage: str) -> bool:
        """Whether the checks of this stage passed, in any round."""
        return any(PASSED in kept.events for kept in self.rounds(stage))

    def begin(self, outline: Outline, number: int) -> Kept:
        """Starts the round of this number, or returns it if it exists."""
        questions = [question.name for question in outline.questions]
        return self._made(f"{outline.name}:{number}", "attempt", {"questions": questions})

    def exercise(self, outline: Outline, chosen: Exercise) -> Kept:
        """What is kept of this exercise."""
        return self._made(f"{outline.name}/{chosen.name}", "exercise", {})

    def read(self, name: str) -> Kept:
        """What is kept under this id; no events, if there is no such round or exercise."""
        row = self.engine.get_workflow(name)
        return Kept(name, row["events"] if row else {})

    def keep(self, name: str, event: str, payload: Any) -> Kept:
        """Keeps the event, unless another payload came first, which stays. Returns what is kept now."""
        with suppress(EventRefused):
            self.engine.deliver_event(name, event, payload)
            self._carry()
        return self.read(name)

    def _made(self, name: str, workflow: str, asked: Mapping[str, Any]) -> Kept:
        """The round or exercise, which exists now; an older edition may have begun it with other questions."""
        if self.engine.get_workflow(name) is None:
            self.engine.create_workflow(asked, name=workflow, workflow_id=name)
        return self.read(name)

    def _carry(self) -> None:
        """Takes the workflows as far as their events let them. It may fail: the event is kept, and the next one carries on."""
        with suppress(AgentFlowError):
            worker = self.engine.worker(new_identity("course"))
            while worker.run_once():  # not until idle: that would wait for a row that another session holds locked
                pass

    def close(self) -> None:
        """Closes the record's connections."""
        self.engine.close()


class StageRecord:
    """The learner's record of one stage, as a notebook needs it: no method raises.

    `open_it` gives the record each time it is needed, and may raise. While something cannot be kept, `trouble` is a sentence
    that says so.
    """

    def __init__(self, outline: Outline, open_it: Callable[[], Record]) -> None:
        self.outline, self._open_it = outline, open_it
        self.trouble = ""
        self._round = ""

    def open_round(self) -> Kept | None:
        """Goes on with the newest round, or begins another if that one was read without a prediction, answers unfolded."""
        return self._enter(lambda newest: newest.was_read and not newest.has_answers)

    def next_round(self) -> Kept | None:
        """Begins another round, in which nothing is predicted yet."""
        return self._enter(lambda _: True)

    def this_round(self) -> Kept | None:
        """What is kept of the current round; None if it cannot be read."""
        return self._ask(lambda record: record.read(self._round)) if self._round else self.open_round()

    def keep(self, event: str, payload: object) -> Kept | None:
        """Keeps the event in this round, unless one of its name came first. Returns what is kept now, or None."""
        if not self._round:
            self.open_round()
        return self._ask(lambda record: record.keep(self._round, event, payload)) if self._round else None

    def exercise(self, chosen: Exercise) -> Kept | None:
        """What is kept of this exercise; None if it cannot be read."""
        return self._ask(lambda record: record.exercise(self.outline, chosen))

    def keep_exercise(self, chosen: Exercise, event: str) -> None:
        """Keeps the event for this exercise."""
        self._ask(lambda record: record.keep(record.exercise(self.outline, chosen).id, event, True))

    def predicted(self) -> Kept | None:
        """The newest round in which anything was predicted, or None."""
        return self._ask(lambda record: record.predicted(self.outline.name))

    def finished(self) -> bool:
        """Whether the checks of this stage passed, as far as that can be read."""
        return bool(self._ask(lambda record: record.finished(self.outline.name)))

    def _enter(self, is_over: Callable[[Kept], bool]) -> Kept | None:
        """Takes the newest round, or the one after it if there is none or it is over."""

        def choose(record: Record) -> Kept:
            newest = next(record.rounds(self.outline.name), None)
            if newest and not is_over(newest):
                return newest
            return record.begin(self.outline, newest.number + 1 if newest else 1)

        kept = self._ask(choose)
        self._round = kept.id if kept else ""
        return kept

    def _ask(self, ask: Callable[[Record], T]) -> T | None:
        """What the record answers, or None. While PostgreSQL is away, only the first cell waits for it."""
        record = None
        try:
            record = self._open_it()
            found = ask(record)
        except Exception as error:  # whatever is wrong with the record: the lesson goes on
            why = str(error) if isinstance(error, AgentFlowError) else f"{type(error).__name__}: {error}"
            self.trouble = f"Your answers cannot be saved now, but you can go on. {why}"
            if record:
                record.engine.database.patience = 0.0
            return None
        self.trouble, record.engine.database.patience = "", WAIT_FOR_RECORD
        return found


def open_record(schema: str | None = None) -> Record:
    """Opens the record in this schema, or in AGENTFLOW_COURSE, or in schema_of("course"), on the laboratories' server.

    Raises AgentFlowError: DatabaseAway, ServerError, NotALaboratory if the schema is a laboratory, which may be emptied.
    """
    chosen = schema or os.environ.get("AGENTFLOW_COURSE") or schema_of(SCHEMA)
    database = find_database(chosen, patience=WAIT_FOR_RECORD)
    migrate(database, course=True)
    return Record(Engine(database, workflows=WORKFLOWS_OF_THE_COURSE))


def the_record() -> Record:
    """The record, opened once and shared until it is closed. Raises AgentFlowError."""
    found = opened("course", "record")
    if isinstance(found, Record):
        return found
    record = open_record()
    keep("course", "record", record)
    return record
