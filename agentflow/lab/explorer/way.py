"""Which way a workflow ends: what it planned and returned; and which way its function goes with given answers.

The function runs here on a journal that knows the answers, without an engine or a database: whatever an engine did, and whatever
was killed, this is what the function says. Another process (`another_process`) says it, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from ...errors import StepFailed, Suspend, describe_failure
from ...model import Checkpoint, Tool
from ...run import DurableRunner, Workflow, interrupted
from ...values import to_json

EndedAs = tuple[str, str]  # of a workflow: its status, and the type of the error with which it failed


@dataclass(frozen=True)
class RecordedCall:
    """A recorded call of a run: what it asked for, and the answer, as JSON texts. `name` is its action, or its event."""

    kind: str
    step_id: str
    name: str
    arguments: str
    value: str | None
    error: str | None

    def __str__(self) -> str:
        with_what = f" with {self.arguments:.200}" if self.kind == "side_effect" else ""
        return f"{self.kind} {self.step_id!r}{f' ({self.name})' if self.name else ''}{with_what}"

    def as_recorded(self) -> Checkpoint:
        """The answer as a runner replays it."""
        value, error = (None if one is None else json.loads(one) for one in (self.value, self.error))
        return Checkpoint(0, self.step_id, self.kind, value, error, self.name if self.kind == "wait" else None)


@dataclass(frozen=True)
class Way:
    """How a workflow ended, the actions that it planned (key, name and arguments), and its result, as JSON texts."""

    end: EndedAs
    planned: tuple[tuple[str, str, str], ...]
    result: str


@dataclass(frozen=True)
class FoundEnd:
    """A workflow that has ended: its id, its input, whose chance its last claim had, its calls in order, and its way."""

    workflow: str
    given: str
    chance: str
    calls: tuple[RecordedCall, ...]
    way: Way


def plain(value: Any) -> str:
    """The value as JSON text that is the same for equal values."""
    return json.dumps(value, sort_keys=True)


def whose_chance(workflow_id: str, token: Any) -> str:
    """The seed of a claim: each has a chance of its own, whoever the worker is, so an exchange of workers changes nothing."""
    return f"{workflow_id}, token {token}"


class Otherwise(BaseException):
    """The function asks for what has no answer: it has gone another way."""


class AnswersTold:
    """A run's journal that answers what is recorded, and takes down what is planned. A step without an answer runs."""

    def __init__(self, workflow_id: str, calls: Sequence[RecordedCall]) -> None:
        self.workflow_id, self.planned = workflow_id, set[tuple[str, str, str]]()
        self._recorded: Mapping[tuple[str, str], Checkpoint] = {
            (one.kind, one.step_id): one.as_recorded() for one in calls
        }

    def replay(self, kind: str, step_id: str, action: str = "", arguments: Any = None) -> Checkpoint | None:
        """The recorded answer."""
        if kind == "side_effect":
            self.planned.add((step_id, action, plain(arguments)))
        return self._recorded.get((kind, step_id))

    def record(self, step_id: str, value: Any) -> Any:
        """Nothing is recorded."""
        return value

    def fail(self, step_id: str, error: BaseException) -> NoReturn:
        """As a failure for good."""
        raise StepFailed(self.workflow_id, step_id, describe_failure(error))

    def act(self, name: str, key: str, tool: Tool | None, arguments: Any) -> Any:
        """No tool is called here."""
        raise Otherwise

    def wait(self, step_id: str, name: str) -> Any:
        """What has not arrived does not arrive."""
        raise Suspend(step_id, name)

    def check_end(self) -> None:
        """What was recorded need not be asked for."""


class Compared(AnswersTold):
    """Answers what is recorded as long as the function asks for just that, in its order; `other` says what it asked instead."""

    def __init__(self, workflow_id: str, calls: Sequence[RecordedCall]) -> None:
        super().__init__(workflow_id, calls)
        self._left, self.other = list(calls), ""

    def replay(self, kind: str, step_id: str, action: str = "", arguments: Any = None) -> Checkpoint | None:
        """The recorded answer. Raises Otherwise if another call is recorded there."""
        asked = RecordedCall(kind, step_id, action, plain(arguments) if kind == "side_effect" else "null", None, None)
        there = self._left.pop(0) if self._left else None
        if there is None or str(asked) != str(there):
            self.other = f"asks for {asked} where this one asked for {there or 'nothing more'}"
            raise Otherwise
        return super().replay(kind, step_id, action, arguments)

    def check_end(self) -> None:
        """All that was recorded is asked for. Raises Otherwise."""
        if self._left:
            self.other = f"asks for nothing more where this one asked for {self._left[0]}"
            raise Otherwise


def way_told(function: Workflow, ended: FoundEnd, journal: AnswersTold) -> Way:
    """The way that the function goes with the journal's answers, with the chance of the claim that ended."""
    run, result, end = DurableRunner(ended.workflow, journal), "null", ("completed", "")
    with repeatable_chance(lambda: ended.chance):
        try:
            try:
                value = function(run, json.loads(ended.given))
            except BaseException as error:
                if interrupted(error):
                    raise
                run.ended_by = run.ended_by or error
            run.finish()
            result = plain(json.loads(to_json(value, workflow=ended.workflow, step="result")))
        except (Suspend, Otherwise):
            end = ("waiting", "")
        except BaseException as error:
            if interrupted(error):
                raise
            end = ("failed", describe_failure(error)["type"])
    return Way(end, tuple(sorted(journal.planned)), result)


def another_way(function: Workflow, ended: FoundEnd) -> str:
    """What the function asks for here instead of what it asked for where it ended, in words; empty if it is the same."""
    way = way_told(function, ended, journal := Compared(ended.workflow, ended.calls))
    if journal.other or way == ended.way:
        return journal.other
    return f"{_ends(way)} where this one {_ends(ended.way)}"


def _ends(way: Way) -> str:
    status, error = way.end
    if status == "failed":
        return f"fails with {error}"
    return f"returns {way.result:.200}" if status == "completed" else "goes on"


def told_apart(did: Way, would: Way) -> str:
    """What was done, and what would have been done, where they differ, in words."""
    mine, other = ({(key, name): told for key, name, told in way.planned} for way in (did, would))
    if mine.keys() != other.keys():
        return f"has planned {_named(mine)}; undisturbed it plans {_named(other)}"
    for (key, name), told in mine.items():
        if told != other[key, name]:
            return f"has planned {name!r} ({key!r}) with {told:.200}; undisturbed with {other[key, name]:.200}"
    return f"{_ends(did)}; undisturbed it {_ends(would)}"


def _named(planned: Mapping[tuple[str, str], str]) -> str:
    return ", ".join(repr(name) for _, name in planned) or "nothing"


def handed_on(result: str, answers: Sequence[tuple[str, str]]) -> str:
    """The result with each answer, or part of one, that is the first of a pair replaced by the second."""
    pairs = [pair for was, now in answers for pair in _parts(json.loads(was), json.loads(now))]

    def put(value: Any) -> Any:
        for was, now in pairs:
            if plain(value) == plain(was):
                return now
        if isinstance(value, dict):
            return {key: put(one) for key, one in value.items()}
        return [put(one) for one in value] if isinstance(value, list) else value

    return plain(put(json.loads(result)))


def _parts(was: Any, now: Any) -> Iterator[tuple[Any, Any]]:
    if plain(was) == plain(now):
        return
    yield was, now
    if isinstance(was, dict) and isinstance(now, dict):
        for key in was.keys() & now.keys():
            yield from _parts(was[key], now[key])


@contextmanager
def repeatable_chance(whose: Callable[[], str]) -> Iterator[None]:
    """Random numbers, tokens and UUIDs are the same in this thread for the same owner, and others for each other one."""
    real, state, calls, here = os.urandom, random.getstate(), Counter[str](), threading.get_ident()

    def numbered(size: int) -> bytes:
        if threading.get_ident() != here:
            return real(size)
        calls[owner := whose()] += 1
        return hashlib.shake_128(f"{owner}, {calls[owner]}".encode()).digest(size)

    vars(os)["urandom"] = vars(random)["_urandom"] = numbered  # the second is what `secrets` asks
    random.seed(whose())
    try:
        yield
    finally:
        vars(os)["urandom"] = vars(random)["_urandom"] = real
        random.setstate(state)
