"""An invariant of the learner's own: a function of the rows before and after each transaction, with a name and a sentence."""

from __future__ import annotations

import copy
import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...evidence import on_one_line
from ..verify.invariants import INVARIANTS, Guilty, Invariant, Transition
from ..verify.snapshot import Rows
from .own_process import WrongCode, shown

OwnCheck = Callable[[Rows, Rows], str | bool | None]
"""Returns None or True if it holds; a sentence that says what is wrong, or False, if not."""


class HereOnly(Invariant):
    """Its function stays in the process that explores."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Invariant, (self.name, self.kind, self.sentence, INVARIANTS["no workflow is stuck"].check)


def own_invariant(function: OwnCheck) -> Invariant:
    """The function as an invariant of harm, called by its name; its sentence is the first line of its docstring.

    It gets two Rows of its own, before and after: `workflows`, `steps`, `intents`, `effects`, each a tuple of dicts by column
    (JSON columns are text), and `tools` (the state of each tool that can be put back, as JSON text). Raises WrongCode for what
    is no such function, and when it is checked, if it raises, or returns anything but None, a bool or a sentence.
    """
    named = getattr(function, "__name__", type(function).__name__)
    try:
        if not callable(function) or isinstance(function, type):
            raise TypeError(f"it is {'a class' if isinstance(function, type) else f'a value of type {named}'}")
        inspect.signature(function).bind("before", "after")
    except TypeError as wrong:
        raise WrongCode(
            f"{shown(function)} is no invariant: {wrong}. Give a function of the rows before and after, such as "
            "`def no_charge_without_order(before, after): ...`."
        ) from None
    except ValueError:
        pass  # a built-in function that says nothing about itself
    name = named.replace("_", " ")
    sentence = (inspect.getdoc(function) or name).partition("\n")[0]

    def check(transition: Transition) -> Iterator[Guilty]:
        if not transition.before.workflows:
            return  # they are only being created
        try:
            found = function(copy.deepcopy(transition.before), copy.deepcopy(transition.after))
        except (Exception, SystemExit) as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            raise WrongCode(
                f"your invariant {name!r} raised {on_one_line(error)} (in {at.name}, line {at.lineno})."
            ) from error
        if found is not None and not isinstance(found, bool) and not (isinstance(found, str) and found.strip()):
            raise WrongCode(
                f"your invariant {name!r} returned {found!r:.100}. Return None or True if it holds, and a sentence or False if "
                "not."
            )
        if isinstance(found, str) or found is False:
            who = transition.mover.workflow or ", ".join(row["id"] for row in transition.after.workflows)
            yield Guilty("workflows", who, found or f"{name}: it does not hold")

    return HereOnly(name, "harm", sentence, check)


def own_invariants(functions: Sequence[OwnCheck]) -> tuple[Invariant, ...]:
    """The functions as invariants. Raises WrongCode for what is none, and for a name that is taken."""
    if not isinstance(functions, list | tuple):
        raise WrongCode(f"invariants= takes a list of functions, not {functions!r:.80}.")
    made = tuple(map(own_invariant, functions))
    names = [*INVARIANTS, *(one.name for one in made)]
    if taken := next((one.name for one in made if names.count(one.name) > 1), None):
        raise WrongCode(f"Two invariants are called {taken!r}; give each its own name.")
    return made
