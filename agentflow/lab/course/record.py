"""What a learner said and solved, kept durably by the engine itself, in a schema that no reset touches.

One attempt at a stage is one workflow that waits for an event for each question; an answer is such an event, and the
first payload stays: a prediction cannot be bettered. An exercise is a workflow too, which waits until it is solved; a hint
that was shown is an event of it. Nobody has to work on them for a notebook to go on: events stand in the workflow's row.
What does not live here: what is asked (`outline`), and what is said about it (`course`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...engine import Engine, find_database
from ...errors import AgentFlowError, EventRefused
from ...migrations import migrate
from ...worker import new_identity
from ..laboratory.laboratory import keep, opened, schema_of
from .outline import Exercise, Outline

SCHEMA = "course"
PATIENCE = 1.0  # seconds; a notebook goes on when PostgreSQL does not answer
PASSED, SOLVED, MANY = "checks passed", "solved", 1000


def predicted(question: str) -> str:
    """The name of the event that answers this question."""
    return f"predict {question}"


def attempt(run: Any, told: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The workflow of one attempt at a stage: an answer (or null, if it was revealed first) for each question, then the end."""
    said = {name: run.wait_for_event(predicted(name), predicted(name)) for name in told["questions"]}
    run.wait_for_event(PASSED, PASSED)
    return said


def exercise(run: Any, told: Mapping[str, Any]) -> Any:
    """The workflow of one exercise: it waits until somebody has solved it."""
    return run.wait_for_event(SOLVED, SOLVED)


def notes(run: Any, told: Mapping[str, Any]) -> Any:
    """The workflow of a list that anybody may add to: each note is an event, and it is never closed."""
    return run.wait_for_event(PASSED, PASSED)


@dataclass(frozen=True)
class Kept:
    """One workflow of the course, an attempt or an exercise: its id and the events that came, by name."""

    id: str
    events: Mapping[str, Any]

    @property
    def number(self) -> int:
        """Which attempt at its stage this is, counted from 1."""
        return int(self.id.rpartition(":")[2])

    def answer(self, question: str) -> Mapping[str, Any] | None:
        """The learner's answer, `answer` and `sure`, or None."""
        found: Mapping[str, Any] | None = self.events.get(predicted(question))
        return found

    def is_closed(self, question: str) -> bool:
        """Whether it was answered or revealed, so that no answer counts any more."""
        return predicted(question) in self.events

    @property
    def has_answers(self) -> bool:
        """Whether anything was predicted."""
        return any(said is not None for name, said in self.events.items() if name.startswith(predicted("")))

    @property
    def is_blank(self) -> bool:
        """Whether it was read through without a prediction: nobody loses anything if it is begun anew."""
        return bool(self.events) and not self.has_answers

    @property
    def hints(self) -> int:
        """How many hints were shown."""
        return sum(name.startswith("hint ") for name in self.events)


class Record:
    """The learner's attempts and exercises. Every method raises AgentFlowError if PostgreSQL does not let it be kept."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def attempts(self, stage: str) -> list[str]:
        """The ids of all attempts at this stage, the newest first."""
        rows = self.engine.list_workflows(prefix=f"{stage}:", limit=MANY)
        return sorted((row["id"] for row in rows), key=lambda one: -Kept(one, {}).number)

    def predicted(self, stage: str) -> Kept | None:
        """The newest attempt at this stage in which anything was predicted."""
        found = (self.read(name) for name in self.attempts(stage))
        return next((kept for kept in found if kept.has_answers), None)

    def finished(self, stage: str) -> bool:
        """Whether the checks of this stage passed, in any attempt."""
        return any(PASSED in self.read(name).events for name in self.attempts(stage))

    def begin(self, outline: Outline, number: int) -> Kept:
        """The attempt of this number exists; begun twice it is the same one."""
        name = f"{outline.name}:{number}"
        told = {"questions": [question.name for question in outline.questions]}
        if not self._exists(name):  # an older edition of the course may have begun it with other questions
            self.engine.create_workflow(told, name="attempt", workflow_id=name)
        return self.read(name)

    def exercise(self, outline: Outline, chosen: Exercise) -> Kept:
        """The record of this exercise; it exists."""
        name = f"{outline.name}/{chosen.name}"
        if not self._exists(name):
            self.engine.create_workflow({}, name="exercise", workflow_id=name)
        return self.read(name)

    def keep_exercise(self, outline: Outline, chosen: Exercise, event: str) -> Kept:
        """The event is kept for this exercise; what is kept now."""
        return self.keep(self.exercise(outline, chosen).id, event, True)

    def note(self, name: str, event: str, payload: Any) -> Kept:
        """The note is in the list of this name, unless one under the same `event` came first; what is kept now."""
        if not self._exists(name):
            self.engine.create_workflow({}, name="notes", workflow_id=name)
        return self.keep(name, event, payload)

    def read(self, name: str) -> Kept:
        """What is kept under this id; nothing came yet, if nobody began it."""
        row = self.engine.get_workflow(name)
        return Kept(name, row["events"] if row else {})

    def since(self, name: str, event: str) -> str:
        """The day on which the event came."""
        entries = self.engine.history(name)
        return next(
            f"{one['at']:%Y-%m-%d}" for one in entries if (one["event"], one["subject"]) == ("event_delivered", event)
        )

    def keep(self, name: str, event: str, payload: Any) -> Kept:
        """The event is kept, unless another payload came first, which stays; what is kept now."""
        with suppress(EventRefused):
            self.engine.deliver_event(name, event, payload)
            self._carry()
        return self.read(name)

    def _carry(self) -> None:
        """The workflows went as far as their events let them. It may fail: the event is kept, and the next one carries on."""
        with suppress(AgentFlowError):
            worker = self.engine.worker(new_identity("course"))
            while worker.run_once():  # not until idle: nobody waits here for a row that somebody holds locked
                pass

    def _exists(self, name: str) -> bool:
        return self.engine.get_workflow(name) is not None

    def close(self) -> None:
        """No connection of the record is left."""
        self.engine.close()


def open_record(schema: str | None = None) -> Record:
    """The record in this schema, or in AGENTFLOW_COURSE, or in schema_of("course"), on the server of the laboratories.

    Raises AgentFlowError: DatabaseAway, ServerError, NotALaboratory if the schema is a laboratory, which may be emptied.
    """
    chosen = schema or os.environ.get("AGENTFLOW_COURSE") or schema_of(SCHEMA)
    database = find_database(chosen, patience=PATIENCE)
    migrate(database, course=True)
    return Record(Engine(database, workflows={"attempt": attempt, "exercise": exercise, "notes": notes}))


def the_record() -> Record:
    """The record, opened once until somebody lets it go. Raises AgentFlowError."""
    found = opened("course", "record")
    if isinstance(found, Record):
        return found
    record = open_record()
    keep("course", "record", record)
    return record
