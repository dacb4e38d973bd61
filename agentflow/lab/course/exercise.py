"""How an exercise is judged: the learner's function is called, and what goes wrong in it is told in one sentence.

What lives here: what every judge shares. What does not: the judges themselves, one module for each stage (`stages`),
and the checks of rows (`checks`).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import AgentFlowError
from ..notebook.tables import shown
from ..schedule.grammar import Schedule, parse
from .checks import CheckFailed

NOT_SOLVED = "Not solved yet: replace the body of the function, run the cell, then this one again."
SOLVED = "Solved"
RUN = str(Path(__file__).resolve().parents[2] / "run.py")
PACKAGE = str(Path(__file__).resolve().parents[2])
STANDARD = str(Path(traceback.__file__).resolve().parent)


def judged(judge: Callable[..., str], *arguments: Any) -> str:
    """What the judge says, beginning with `Solved`, or that it is not solved yet. Raises CheckFailed, and only that.

    The first argument is the learner's function.
    """
    try:
        if not callable(arguments[0]):
            raise CheckFailed(
                f"The check calls your function itself, and was given {a_kind(arguments[0])}: pass its name."
            )
        return judge(*arguments)
    except NotImplementedError:
        return NOT_SOLVED
    except AgentFlowError as error:
        raise CheckFailed(str(error)) from None
    except CheckFailed as failed:
        raise failed.with_traceback(None) from None


def asked(where: str, call: Callable[[], Any]) -> Any:
    """The answer of the learner's function, or its error as CheckFailed: what, where in it, and what to try."""
    try:
        return call()
    except NotImplementedError:
        raise
    except (Exception, SystemExit) as error:
        said = next(iter(str(error).splitlines()), "").rstrip(".")
        told = f": {said}{own_line(error)}" if said else own_line(error)
        raise CheckFailed(f"Your function raised {type(error).__name__} {where}{told}.{_try(error)}") from None


def asked_for_schedule(line: Callable[[], Any]) -> Schedule:
    """The schedule of the line that the learner's function gives. Raises CheckFailed for anything that is none."""
    said = asked("when asked for its line", line)
    if said is None:
        raise CheckFailed("Your function returns nothing (None): does it end with `return`?")
    if not isinstance(said, str):
        raise CheckFailed(
            f"Your function returns {a_kind(said)}, {shown(said)}. A schedule is a text, such as 'A* B*'."
        )
    try:
        return parse(said)
    except AgentFlowError as error:
        raise CheckFailed(str(error)) from None


def own_line(error: BaseException) -> str:
    """Where in the learner's code the error came from, as ", at `...`"; empty if it was not in the learner's code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.line and not frame.filename.startswith(PACKAGE)]
    own = [frame for frame in own if not frame.filename.startswith(STANDARD)] or own
    own = [frame for frame in own if "site-packages" not in frame.filename] or own
    return f", at `{own[-1].line}`" if own else ""


def _try(error: BaseException) -> str:
    if isinstance(error, TypeError) and "not callable" in str(error) and _in_a_step(error):
        return " run.step() takes a function, which it calls itself: put `lambda:` before the value."
    return ""


def _in_a_step(error: BaseException) -> bool:
    """Whether run.step() was running what raised this."""
    return any(frame.name == "step" and frame.filename == RUN for frame in traceback.extract_tb(error.__traceback__))


def is_number(value: Any) -> bool:
    """Whether this is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def a_kind(value: Any) -> str:
    """What kind of value this is, in words: `a list of rows`, `a text`."""
    known = {
        "NoneType": "nothing",
        "Table": "a list of rows",
        "list": "a list",
        "dict": "a row",
        "str": "a text",
        "bool": "a bool",
        "int": "a number",
    }
    return known.get(type(value).__name__, f"a {type(value).__name__}")
