"""A worker without a thread: a deterministic function of the answers that it has had so far.

`Player` runs the real engine's code from its beginning with recorded answers, and stops it at the statement that has no
answer yet. That is how a worker is put back to any point of its run: Python cannot copy a running function, but it can run
it again. Each distinct `Place` where a worker stands is kept once.

A worker stands where the engine calls its hook before a transaction, as in a lane. `load` and plain reads are no place to
stand, so they belong to the transaction before them. Statements are answered at the door of the Database, below whatever
an engine overrides, so that this is played, too.
"""

from __future__ import annotations

import copy
import pickle
import random
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from psycopg.rows import DictRow

from ...database import Run
from ...engine import Engine
from ...errors import CrashInjected, DatabaseAway, LostLease, OutcomeUnknown, StatementRefused
from ...model import Boundary
from ...run import DurableRunner, Workflow
from ...statements import ALL_STATEMENTS, GUARDED, ONLY_READ
from ...tools import SimulatedTool, no_answer
from ...worker import carry
from ..broken.catalogue import engine_class, texts
from ..laboratory.laboratory import LEASE_SECONDS
from .answer_cache import Answer, AnswerCache, StatementResult, comparable, question
from .own_code import Left, OwnCode, StandIn, States
from .own_process import WrongCode
from .process_memory import ProcessMemory
from .way import repeatable_chance, whose_chance

Program = Callable[[Engine], str]
"""What is played: one claim of a worker, or one act from outside. It returns how it ended."""

KeptAnswer = bytes | Exception
"""An answer as it is kept: the rows are pickled, so that each run gets its own copy and may change it."""

MOST_STATEMENTS = 200  # of one run, from its claim to its end
_TELL_MORE = {"inspect", "list", "frame", "metrics", "condition", "recoveries"}  # reads of rows with all their columns
_READS_HISTORY = re.compile(r'\b(FROM|JOIN|UPDATE)\s+"?\w+"?\."?(history|tool_attempts)\b', re.IGNORECASE)


class Stopped(CrashInjected):
    """The next statement has no recorded answer: the worker stands here."""


class _AtOnce(threading.Event):
    """Nobody waits before a lost answer is asked for again: it is played, and again each time the run is played."""

    def wait(self, timeout: float | None = None) -> bool:
        """Returns at once."""
        return self.is_set()


@dataclass(frozen=True)
class PendingStatement:
    """A statement that waits for its answer."""

    name: str
    text: str
    params: Mapping[str, Any]
    question: str
    asked: Callable[[str, AnswerCache, int], StatementResult] | None = field(default=None, compare=False)
    """What answers it for these rows instead of PostgreSQL: a tool of one's own."""

    def __getstate__(self) -> dict[str, Any]:
        """All but the learner's code."""
        return {**vars(self), "asked": None}


@dataclass(eq=False)
class Place:
    """Where a program stands after some answers: before `pending`, or at its end (`ended`).

    `stands` is the boundary at which its hook was called; None means in the middle of a move. An answer comes with whether the
    tool's reply was lost, and with the states of own tools then; `left` is what its code did to these since the last one.
    `came` says from which place (None: it is the first), by which answer, and with what.
    """

    number: int
    program: str
    answers: tuple[tuple[KeptAnswer, bool, States], ...]
    questions: tuple[str, ...]
    pending: PendingStatement | None
    stands: Boundary | None
    ended: str | None
    left: Left | None = None
    came: tuple[int, str, tuple[bool, States]] | None = None
    then: dict[tuple[str, bool, States], Place] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """What a finished search is walked by: whether there were answers, but not which, nor where they led."""
        return {
            **vars(self),
            "answers": ((b"", False, ()),) if self.answers else (),
            "questions": (),
            "came": None,
            "then": {},
        }

    def is_like(self, other: Place) -> bool:
        """Whether it stands before the same statement, and has done nothing beside it either."""
        return (self.pending, self.stands, self.ended, self.left) == (other.pending, other.stands, other.ended, None)

    @property
    def in_doubt(self) -> bool:
        """Whether it waits for an answer to what it has asked before, without hearing the answer."""
        return bool(self.answers) and isinstance(self.answers[-1][0], OutcomeUnknown)

    @property
    def doubts(self) -> bool:
        """Whether any answer was lost, so that it may have looked whether a refused row tells of a commit of its own."""
        return any(isinstance(answer, OutcomeUnknown) for answer, *_ in self.answers)

    def went_wrong(self) -> str:
        """The beginning of a sentence about what its code did from here."""
        return f"{self.program}{f', before {self.stands.name},' if self.stands else ''} went wrong: "


class Player:
    """Plays programs on an engine whose database answers from a record."""

    def __init__(self, engine: Engine, own: OwnCode, where: Callable[[], str], memory: ProcessMemory) -> None:
        self.progress, self.own, self.where, self.memory = own.progress, own, where, memory
        self.moving: Place | None = None
        self.engine: Engine = engine.with_hook(self._hook)
        self._known, self._refuses_alike = _known(engine), is_known(engine)
        self.engine.database = engine.database.with_door(self._door)
        self.engine.database.give_up = _AtOnce()
        world = copy.copy(engine.world)
        world.database = engine.world.database.with_door(self._door)
        self.engine.world = world
        self.engine.tool = self.stand_in(engine.tool)
        self._wrong = ""
        self._programs: dict[str, Program] = {}
        self._roots: dict[str, Place] = {}
        self.places: list[Place] = []
        self.raised: BaseException | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The places that were found, without the engine, which stays in its process."""
        return {"places": self.places, "_roots": self._roots, "engine": None}

    def start(self, name: str, program: Program) -> Place:
        """Where the program of this name stands before anything was answered."""
        if name not in self._roots:
            self._programs[name], self.moving = program, None
            self._roots[name] = self._place(name, (), ())
            self.places.append(self._roots[name])
        return self._roots[name]

    def stand_in(self, tool: Any) -> Any:
        """What is called instead of this tool."""
        if isinstance(tool, SimulatedTool):
            tool = copy.copy(tool)
            tool.database = self.engine.world.database
            return tool
        try:
            return StandIn(self.own.known(tool), self.own, self.answer)
        except WrongCode as wrong:
            self._stop(str(wrong))

    def after(self, place: Place, answer: Answer, key: str, lost: bool, states: States) -> Place:
        """Where the program stands after one more answer, which came in these states of own tools. Raises WrongCode.

        All refusals of a write by the guards of its row lead to one place: what the row held then, the real engine and those
        of the catalogue only put into the words of the error that ends the run.
        """
        assert place.pending
        if self._refuses_alike and place.pending.name in GUARDED and isinstance(answer, list) and answer:
            by_its_row = answer[0]["outcome"] == "refused" and answer[0]["guards"] not in ([], ["intent"])
            key = "refused" if by_its_row and not place.doubts else key
        found = place.then.get((key, lost, states))
        if found is None:
            if len(place.answers) == MOST_STATEMENTS:
                raise WrongCode(f"more than {MOST_STATEMENTS} statements in one run; is there an endless loop?")
            questions = (*place.questions, place.pending.question)
            kept = answer if isinstance(answer, Exception) else pickle.dumps(answer)
            made = self._place(place.program, (*place.answers, (kept, lost, states)), questions)
            made.came = place.number, key, (lost, states)
            same = (one for to, one in place.then.items() if to[:2] == (key, lost) and one.is_like(made))
            found = place.then[key, lost, states] = next(same, made)
            if found is made:
                self.places.append(made)
        return found

    def _place(
        self, name: str, answers: tuple[tuple[KeptAnswer, bool, States], ...], questions: tuple[str, ...]
    ) -> Place:
        self._answers, self._expected, self._questions = answers, questions, list[str]()
        self._pending: PendingStatement | None = None
        self._stands: Boundary | None = None
        self._passed: Boundary | None = None
        self._lost, self._wrong = False, ""
        self._name, self._claimed, self._inside, self._thread = name, "", "", threading.get_ident()
        with self.progress.in_code(self.where() + (self.moving.went_wrong() if self.moving else "")):
            with self.memory.watched(self.own):
                ended = self._played(self._programs[name])
            left = self.own.left(answers[-1][2]) if answers and not self._wrong else None
        if not self._wrong and self._pending is None and len(self._questions) != len(questions):
            self._wrong = _not_a_function(self._questions, questions)
        if self._wrong:
            raise WrongCode(self._wrong)
        ended = None if self._pending else ended  # its code may have swallowed the stop; it stands there all the same
        return Place(len(self.places), name, answers, questions, self._pending, self._stands, ended, left)

    def _played(self, program: Program) -> str | None:
        """How the program ended; None if it was stopped at a statement."""
        try:
            with repeatable_chance(self._whose):
                return program(self.engine)
        except Stopped:
            return None
        except DatabaseAway:
            raise
        except BaseException as error:  # whatever a learner's code raises
            if self._wrong:
                return None
            where = traceback.extract_tb(error.__traceback__)[-1]
            raise WrongCode(f"{type(error).__name__}: {error} (in {where.name}, line {where.lineno})") from error

    def _whose(self) -> str:
        """Whose chance it is: a claim's, and in that each step's own, so that none depends on which steps run."""
        return (self._claimed or self._name) + (f", step {self._inside}" if self._inside else "")

    @contextmanager
    def in_step(self, step_id: str) -> Iterator[None]:
        """Meanwhile chance is the step's own. The example workflows use none, and this takes time."""
        if not self.memory.watches:
            yield
            return
        state, self._inside = random.getstate(), step_id
        random.seed(self._whose())
        try:
            yield
        finally:
            self._inside = ""
            random.setstate(state)

    def _hook(self, boundary: Boundary) -> None:
        self._in_its_thread()
        if boundary.transaction in ONLY_READ | {"release"}:  # which follows trouble, in the same move
            return
        if boundary.edge == "before":
            self._before(boundary)
        else:
            self._passed = boundary
            if boundary.transaction == "tool" and self._lost:
                self._lost = False
                raise no_answer(str(boundary.subject), "reply")

    def _before(self, boundary: Boundary) -> None:
        passed = self._passed
        if passed and passed.outcome == "refused" and replace(passed, edge="before", outcome=None) == boundary:
            return  # the same statement again, because the refused row would do now: one move, as in a lane
        if self._pending is None:
            self._stands = boundary

    def _in_its_thread(self) -> None:
        """Another thread is ended without a word; the worker's own says why."""
        if threading.get_ident() != self._thread:
            self._wrong = self._wrong or (
                "it asks PostgreSQL from another thread, but the explorer plays a worker as one line of statements."
            )
            raise SystemExit

    def _door(self, name: str, text: str, params: Mapping[str, Any] | None, _: Run) -> list[DictRow]:
        """The door of the played engine's databases: nothing gets through to PostgreSQL."""
        self._in_its_thread()
        if name == "session":
            self._stop("it opens its own connection to PostgreSQL, so the explorer cannot restore the rows.")
        return self.answer(name, text, params)

    def _stop(self, wrong: str) -> NoReturn:
        self._wrong = self._wrong or wrong
        raise Stopped(wrong)

    def answer(self, name: str, text: str, params: Mapping[str, Any] | None, asked: Any = None) -> list[DictRow]:
        """The recorded answer to the statement, or to the call of a tool (`asked`). Raises Stopped if there is none yet."""
        if self._pending is not None or self._wrong:
            raise Stopped("it stands already")
        if params and params.get("p_error") and self.raised is None:
            self.raised = sys.exc_info()[1]
        plain = comparable(params)
        asks = question(name, plain)
        position = len(self._questions)
        if position == len(self._answers):
            if _READS_HISTORY.search(text):
                self._stop(
                    f"{name} reads the history or the tool's attempts, which belong to the past, not to a state."
                )
            if text not in self._known and not asked:
                self._stop(
                    f"{name} is not one of the statements by which AgentFlow runs a workflow, so it may read what is not "
                    "part of a state (who wrote a row, when, how often), and different schedules would be taken for one. Explore "
                    "an engine that overrides methods, or take guards away with `without=`."
                )
            self._pending = PendingStatement(name, text, plain, asks, asked)
            raise Stopped(name)
        if asks != self._expected[position]:
            self._stop(_not_a_function([*self._questions, asks], self._expected))
        self._questions.append(asks)
        self._stands = None
        answer, lost, states = self._answers[position]
        try:
            with self.memory.unwatched(self.own):
                self.own.put(states, afresh=position + 1 == len(self._answers))
        except WrongCode as wrong:
            self._stop(str(wrong))
        self._lost = self._lost or lost
        if isinstance(answer, Exception):
            answer.__cause__ = answer.__context__ = None
            raise answer.with_traceback(None)
        rows: list[DictRow] = pickle.loads(answer)
        if name == "claim" and rows:
            self._claimed = whose_chance(rows[0]["id"], rows[0].get("fence_token"))
            random.seed(self._claimed)
        return rows


def _not_a_function(questions: list[str], expected: tuple[str, ...]) -> str:
    differing = (pair for pair in zip(questions, expected, strict=False) if pair[0] != pair[1])
    now, before = next(differing, ("nothing", "something"))
    return (
        f"the same answers led to {now:.300} now and to {before:.300} before. What is explored must be a function of its "
        "answers: no clock, nothing kept from another run."
    )


def is_known(engine: Engine) -> bool:
    """Whether it is the real engine or one of the catalogue, of which is known what they do with names and refusals."""
    return type(engine) is engine_class(getattr(engine, "without", ()))


def _known(engine: Engine) -> frozenset[str]:
    """The texts of which is known that they depend on nothing but a state: the engine's own, also without guards."""
    schema, guards = engine.database.schema, getattr(engine, "without", ())
    by_name = {name: one.render(schema) for name, one in ALL_STATEMENTS.items()}
    by_name |= texts(guards, schema)
    return frozenset(text for name, text in by_name.items() if name not in _TELL_MORE)


def noting(function: Workflow, name: str, player: Player) -> Workflow:
    """The same workflow function; each step that it asks for is noted, and each tool that it names stood in for."""

    def noted(run: DurableRunner, given: Any) -> Any:
        real, act, own = run.step, run.side_effect, player.own

        def step(step_id: str, fn: Callable[[], Any]) -> Any:
            own.note(step_id, name)
            ran = len(run.ledger.executed)
            try:
                with player.in_step(step_id):
                    return real(step_id, fn)
            finally:
                if len(run.ledger.executed) > ran:
                    own.ran_step(step_id)

        def side_effect(name: str, key: str, tool: Any = None, arguments: Any = None) -> Any:
            return act(name, key, tool and player.stand_in(tool), arguments)

        step.__qualname__, side_effect.__qualname__ = "step", "side_effect"  # which Python's errors name
        vars(run).update(step=step, side_effect=side_effect)
        return function(run, given)

    vars(noted)["states"] = getattr(function, "states", {})
    return noted


def one_claim(identity: str, functions: Callable[[str], Mapping[str, Any]], player: Player) -> Program:
    """One claim of a worker, made as in a lane. `functions` gives the workflows for a claim's label."""

    def play(engine: Engine) -> str:
        try:
            claim = engine.claim_workflow(identity, LEASE_SECONDS)
            if claim is None:
                return "idle"
            function = functions(f"{identity}.{claim.fence_token}")[claim.name]
            return carry(engine, claim, noting(function, claim.name, player), engine.tool)
        except LostLease:
            return "lost"
        except StatementRefused:
            return "trouble"

    return play
