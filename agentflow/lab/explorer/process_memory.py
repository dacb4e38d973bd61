"""What explored code keeps in the variables of its module: all workers of an exploration share it, and a crash loses it."""

from __future__ import annotations

import reprlib
from collections import deque
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..history.words import brief
from .own_code import OwnCode

_DATA = (bool, int, float, str, bytes, list, tuple, set, frozenset, dict, deque, type(None))
_SHOWN = reprlib.Repr()
_SHOWN.maxlevel, _SHOWN.maxstring = 4, 200
_SHOWN.maxlist = _SHOWN.maxset = _SHOWN.maxfrozenset = _SHOWN.maxdict = _SHOWN.maxtuple = _SHOWN.maxdeque = 50


class ProcessMemory:
    """Watches the plain data in the variables of a function's module; None watches nothing.

    What a tool's body changes is not noted: it stands for the world outside. Nor is an object, such as a client that is made
    once, or what a decorator such as functools.cache keeps.
    """

    _before: dict[str, tuple[int, str]]
    _changed: dict[str, str]

    def __init__(self, function: Any) -> None:
        while isinstance(function, partial):
            function = function.func
        code = function if hasattr(function, "__globals__") else vars(type(function)).get("__call__")
        self._variables: dict[str, Any] = getattr(code, "__globals__", {})
        self._before, self._changed = {}, {}
        self.watches = bool(self._variables)

    @contextmanager
    def watched(self, own: OwnCode) -> Iterator[None]:
        """Notes what changes meanwhile."""
        self._before = self._picture()
        try:
            yield
        finally:
            self._note(own)

    @contextmanager
    def unwatched(self, own: OwnCode) -> Iterator[None]:
        """Meanwhile tools are put into another state, which is no doing of the explored code."""
        if not own.tools:
            yield
            return
        self._note(own)
        yield
        self._before = self._picture()

    def _note(self, own: OwnCode) -> None:
        if self._before != (now := self._picture()):
            changed = (name for name in now if now[name] != self._before.get(name))
            self._changed |= {name: own.step for name in changed if name not in self._changed}

    def _picture(self) -> dict[str, tuple[int, str]]:
        return {
            name: (len(value) if isinstance(value, Sized) else 0, _SHOWN.repr(value))
            for name, value in [*self._variables.items()]
            if isinstance(value, _DATA) and name[:2] != "__"
        }

    def changed(self) -> str:
        """Which variables were changed, and what to do, as a sentence; empty if none."""
        if not self._changed:
            return ""
        said = ", ".join(
            f"{brief(name, 80)!r}" + (f" (in or after step {brief(step, 80)!r})" if step else "")
            for name, step in [*self._changed.items()][:5]
        )
        return (
            f"the explored code changed {said} of module {self._variables.get('__name__', '?')}. A crash loses that, and no "
            "other process has it, while here all workers share it. Keep it in a step's result, or where the tool keeps what it "
            "did (a cache that does no harm: functools.cache), and explore again."
        )
