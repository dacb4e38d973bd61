"""How an exercise is judged: calls the learner's function, plays the learner's schedule, and says in one sentence what is wrong.

The judges themselves, one for each exercise, are in `stages`.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import run
from ...agents import WORKFLOWS, support_agent_with
from ...engine import Engine
from ...errors import AgentFlowError, BadSchedule, LaneError
from ..history.canonical import canonical
from ..history.entries import Row
from ..laboratory.laboratory import PATIENT
from ..laboratory.scratch_schema import new_name, own_schema
from ..notebook.learner_code import own_line
from ..notebook.tables import shown
from ..schedule.grammar import Schedule, parse
from ..schedule.presets import WatchedModel
from ..schedule.stepper import Stepper
from .checks import CheckFailed

NOT_SOLVED = "Not solved yet: replace the body of the function, run the cell, then this one again."
RUN = str(Path(run.__file__).resolve())
IN_WORDS = {
    "NoneType": "nothing", "Table": "a list of rows", "list": "a list", "dict": "a row", "str": "a text", "int": "a number",
}  # fmt: skip


def judged(judge: Callable[..., str], *arguments: Any) -> str:
    """The judge's sentence for a solved exercise, or NOT_SOLVED for an empty stub. Raises CheckFailed, and only that.

    The first argument is the learner's function.
    """
    try:
        if not callable(arguments[0]):
            raise CheckFailed(
                f"The check calls your function itself, but was given {a_kind(arguments[0])}. Pass the name of the function."
            )
        return judge(*arguments)
    except NotImplementedError:
        return NOT_SOLVED
    except AgentFlowError as error:
        raise CheckFailed(str(error)) from None
    except CheckFailed as failed:
        raise failed.with_traceback(None) from None


# -- the learner's function --------------------------------------------------------------------------------------------


def answer_of(call: Callable[[], Any], when: str) -> Any:
    """What the learner's function returns. Raises CheckFailed if it raises: what, at which line, and what to try."""
    try:
        return call()
    except NotImplementedError:
        raise
    except (Exception, SystemExit) as error:
        what = next(iter(str(error).splitlines()), "").rstrip(".")
        why = f": {what}{own_line(error)}" if what else own_line(error)
        raise CheckFailed(f"Your function raised {type(error).__name__} {when}{why}.{_advice(error)}") from None


def _advice(error: BaseException) -> str:
    """What to try, if run.step() was running something that cannot be called."""
    in_a_step = any(
        frame.name == "step" and frame.filename == RUN for frame in traceback.extract_tb(error.__traceback__)
    )
    if isinstance(error, TypeError) and "not callable" in str(error) and in_a_step:
        return " run.step() takes a function, which it calls itself: put `lambda:` before the value."
    return ""


def is_number(value: Any) -> bool:
    """Whether this is a whole number; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def a_kind(value: Any) -> str:
    """What kind of value this is, in words: `a list of rows`, `a text`."""
    return IN_WORDS.get(type(value).__name__, f"a {type(value).__name__}")


def text_of(call: Callable[[], Any], when: str, wanted: str, nothing: str = "does it end with `return`?") -> str:
    """The text that the learner's function returns. Raises CheckFailed for anything else; `wanted` says what to return."""
    found = answer_of(call, when)
    if found is None:
        raise CheckFailed(f"Your function returns nothing (None): {nothing}")
    if not isinstance(found, str):
        raise CheckFailed(f"Your function returns {a_kind(found)}, {shown(found)}. {wanted}")
    return found


@contextmanager
def engine_aside(near: Engine, **options: Any) -> Iterator[Engine]:
    """An engine on the server of `near`, with options of Engine, in a schema that is dropped afterwards."""
    url = near.database.address
    with own_schema(url, new_name("exercise")) as database, closing(Engine(database, policy=PATIENT, **options)) as own:
        yield own


# -- the learner's schedule --------------------------------------------------------------------------------------------


def schedule_of(line: Callable[[], Any]) -> Schedule:
    """The schedule that the learner's function returns as a line of text. Raises CheckFailed for anything else."""
    text = text_of(line, "when it was called", "Return a schedule, such as 'A* B*'.")
    try:
        schedule = parse(text)
    except BadSchedule as error:
        raise CheckFailed(f"Your schedule cannot be read: {error}") from None
    if not schedule.moves:
        raise CheckFailed("Your schedule has no move: nothing happens. Begin with A, which claims the request.")
    return schedule


@dataclass(frozen=True)
class Tried:
    """What a schedule left: the workflow's row and history, and how often each model call was made."""

    row: Row
    history: Sequence[Mapping[str, Any]]
    computed: Mapping[str, int]

    def entries(self, event: str) -> list[Mapping[str, Any]]:
        """The entries of this name, in order."""
        return [entry for entry in self.history if entry["event"] == event]


def tried(schedule: Schedule, engine: Engine) -> Tried:
    """Plays the schedule aside; what became of request-1. Raises CheckFailed if it cannot be played to its end."""
    made: Counter[str] = Counter()

    def count(name: str, answer: Any) -> Any:
        made[name] += 1
        return answer

    workflows = {**WORKFLOWS, "support_agent": support_agent_with(WatchedModel(count))}
    with engine_aside(engine, workflows=workflows) as own:
        try:
            with Stepper(own) as stepper:
                stepper.play(schedule)
        except (BadSchedule, LaneError) as error:
            raise CheckFailed(f"Your schedule cannot be played to its end: {_why(error)}") from None
        return Tried(own.get_workflow("request-1") or {}, canonical(own.history("request-1")), made)


def _why(error: BadSchedule | LaneError) -> str:
    notes = [note.rstrip(".") for note in getattr(error, "__notes__", [])]
    return " ".join([str(error), *(f"{note}." for note in notes[:1])])
