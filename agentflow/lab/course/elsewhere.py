"""The learner's function as another process has it, later and on another machine, without leaving this one.

What its source computes outside of it (a module-level uuid, a cache, a default) is computed again; its clocks show another
time; its process, machine and user have other names. What it reads otherwise stays.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import datetime
import inspect
import itertools
import random
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any, cast

FAR = 400 * 86_400 + 13 * 3_600 + 67.0  # seconds: another year, month, weekday, day, hour, minute and second
DATA = (
    str, int, float, bytes, tuple, list, dict, set, frozenset, uuid.UUID, datetime.date, random.Random, itertools.count,
    FunctionType, type,
)  # fmt: skip
_NAMES = {
    "os": ("getpid", "getppid", "getcwd", "cpu_count", "getlogin"), "socket": ("gethostname", "getfqdn"),
    "platform": ("node", "python_version"), "getpass": ("getuser",), "uuid": ("getnode",),
    "threading": ("get_ident", "get_native_id"),
}  # fmt: skip


def elsewhere(function: Callable[..., Any], later: float = 0.0) -> Callable[..., Any]:
    """The function as another process has it, so many seconds later. What is no plain function is returned as it is."""
    plain = inspect.unwrap(function)
    if not isinstance(plain, FunctionType):
        return function
    here, used = plain.__globals__, set(_used(plain.__code__))
    around = {name: _moved(value, later) for name, value in here.items()}
    around["__builtins__"] = {**vars(builtins), "__import__": _importing(later)}
    defined = dict(_definitions(here))
    around |= {name: _remade(around[name]) for name in used & here.keys() - defined.keys()}
    mine = next((name for name, value in here.items() if value is function), plain.__name__)
    for name in (*used, mine):
        _define(name, defined, around, here)
    again: Any = around.get(mine)
    if again is not function and callable(again) and _shape(inspect.unwrap(again)) == _shape(plain):
        return cast("Callable[..., Any]", again)
    cells = tuple(CellType(_remade(cell.cell_contents)) for cell in plain.__closure__ or ())
    defaults = tuple(map(_remade, plain.__defaults__ or ()))
    return FunctionType(plain.__code__, around, plain.__name__, defaults, cells)


def _shape(function: Any) -> Any:
    """What two functions of one source have in common."""
    code = getattr(function, "__code__", None)
    return code and (code.co_code, code.co_names, [one for one in code.co_consts if not isinstance(one, CodeType)])


def _remade(value: Any) -> Any:
    """Instead of a value whose making cannot be seen: another, if it looks made up by this process; else the same."""
    if isinstance(value, dict | list | set):
        return type(value)()
    if isinstance(value, str) and re.search(r"[0-9a-f]{8}|\d{6}|\d{4}-\d\d", value):
        return value[::-1] + "0"
    if isinstance(value, uuid.UUID):
        return uuid.uuid4()
    made_up = isinstance(value, float) or (isinstance(value, int) and abs(value) > 99_999)
    return value + 1 if made_up else value


def _define(name: str, defined: dict[str, ast.stmt], around: dict[str, Any], before: Mapping[str, Any]) -> None:
    """Runs the statement that defines this name again, after those that it needs; only data, functions and classes."""
    statement, value = defined.pop(name, None), before.get(name)
    if statement is None or not isinstance(inspect.unwrap(value) if callable(value) else value, DATA):
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            _define(node.id, defined, around, before)
    with contextlib.suppress(Exception):  # what cannot be run again stays as it is
        exec(compile(ast.Module([statement], []), str(before.get("__file__", "<cell>")), "exec"), around)


def _definitions(around: Mapping[str, Any]) -> Iterator[tuple[str, ast.stmt]]:
    """Each name with the statement that defines it: in the notebook's cells, or in the module's file."""
    cells = around.get("In")
    texts = [one for one in cells if isinstance(one, str)] if isinstance(cells, list) else []
    if not texts and (file := around.get("__file__")):
        texts = [Path(file).read_text()] if Path(file).is_file() else []
    for text in texts:
        with contextlib.suppress(SyntaxError):
            for statement in ast.parse(text).body:
                for name in _bound(statement):
                    yield name, statement


def _bound(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return [
            node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ]
    return []


def _used(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _used(const)


# -- other clocks, other names -------------------------------------------------------------------------------------------


def _clocks(later: float) -> dict[int, tuple[Any, Any]]:
    """Each clock of Python by its identity, with one that shows another time."""

    def then(seconds: float | None = None) -> float:
        return time.time() + later if seconds is None else seconds

    def moved(kind: Any) -> Any:
        shown = datetime.timedelta(seconds=later)
        at = {
            name: classmethod(lambda cls, *zone, name=name: getattr(kind, name)(*zone) + shown) for name in ("today",)
        }
        if kind is datetime.datetime:
            at |= {
                n: classmethod(lambda cls, *zone, name=n: getattr(kind, name)(*zone) + shown) for n in ("now", "utcnow")
            }
        return type(kind.__name__, (kind,), at)

    pairs = [
        (time.time, then), (time.time_ns, lambda: time.time_ns() + int(later * 1e9)),
        (time.monotonic, lambda: time.monotonic() + later + 1e6), (time.perf_counter, lambda: time.perf_counter() + later),
        (time.localtime, lambda seconds=None: time.localtime(then(seconds))),
        (time.gmtime, lambda seconds=None: time.gmtime(then(seconds))),
        (time.ctime, lambda seconds=None: time.ctime(then(seconds))),
        (time.strftime, lambda shape, told=None: time.strftime(shape, told or time.localtime(then()))),
        (datetime.datetime, moved(datetime.datetime)), (datetime.date, moved(datetime.date)),
    ]  # fmt: skip
    return {id(real): (real, other) for real, other in pairs}


def _moved(value: Any, later: float) -> Any:
    """The value, or what stands for it elsewhere: for a clock, a module with clocks, or one that knows its machine."""
    clocks = _clocks(later)
    if id(value) in clocks:
        return clocks[id(value)][1]
    if not isinstance(value, ModuleType) or value.__name__ not in ("time", "datetime", *_NAMES):
        return value
    other = ModuleType(value.__name__)
    vars(other).update({name: clocks.get(id(one), (one, one))[1] for name, one in vars(value).items()})
    for name in _NAMES.get(value.__name__, ()):
        vars(other)[name] = _renamed(getattr(value, name))
    return other


def _renamed(ask: Callable[[], Any]) -> Callable[[], Any]:
    def other() -> Any:
        told = ask()
        return told + 7919 if isinstance(told, int) else f"other-{told}"

    return other


def _importing(later: float) -> Callable[..., Any]:
    def importing(*told: Any, **named: Any) -> Any:
        return _moved(builtins.__import__(*told, **named), later)

    return importing
