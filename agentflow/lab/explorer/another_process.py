"""Asks other processes, with other hash seeds and modules imported anew, which way the explored function goes.

All workers of an exploration share a process, and with it the order of a set of texts, hash() of a text, what was made at import,
and the variables that a step set. In another process the function gets every answer that it had here; it must ask for the same.
No step's body and no tool runs there.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

from ...run import Workflow
from ..history.words import brief
from .own_process import shown
from .way import FoundEnd, another_way

SEEDS = ("1", "2", "3")
SECONDS = 20  # in which another process answers
MOST = 100  # ends of which it is asked
_HERE = "agentflow.lab.explorer.another_process"
_START = f"import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {_HERE} import main; main()"
_known: WeakKeyDictionary[Any, dict[tuple[FoundEnd, ...], tuple[str, str]]] = WeakKeyDictionary()


def asked_elsewhere(function: Workflow, ended: tuple[FoundEnd, ...]) -> tuple[str, str]:
    """Why the ends are not certified, as a sentence (empty: other processes ask for the same); and what is to be said of it."""
    named = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    try:
        if named[0] == "__main__" or attrgetter(named[1])(sys.modules[named[0]]) is not function:
            raise AttributeError
        known = _known.setdefault(function, {})
    except (AttributeError, KeyError, TypeError):
        return "", f"Whether another process asks for the same was not looked at: none can import {shown(function)}."
    if ended not in known:
        known[ended] = _ask((*named, ended[:MOST]))
    doubt, said = known[ended]
    more = f" (of the first {MOST} of {len(ended)} different ends)" if len(ended) > MOST else ""
    return doubt, said or f"{len(SEEDS)} other processes, with other hash seeds, ask for the same{more}."


def _ask(what: Any) -> tuple[str, str]:
    asked = [_started(seed) for seed in SEEDS]
    told = list[str]()
    try:
        for process in asked:
            with suppress(BrokenPipeError):
                process.stdin.write(pickle.dumps(what))  # type: ignore[union-attr]
                process.stdin.close()  # type: ignore[union-attr]
        for process in asked:
            answer = process.stdout.read()  # type: ignore[union-attr]
            code = process.wait()
            told.append(json.loads(answer) if answer else f"!it ended with exit code {code}")
    finally:
        for process in asked:
            process.kill()
            process.communicate() if not process.stdin.closed else process.wait()  # type: ignore[union-attr]
    if other := next((one for one in told if one and one[0] != "!"), ""):
        return (
            f"the function is no function of its answers: another process {brief(other, 600)}. Each worker is a process. What is "
            "made at import, hash(), the order of a set, a process id or a variable that a step has set is no other's: make "
            "it in a step (sort the set), and explore again.",
            "",
        )
    if wrong := next((one[1:] for one in told if one), ""):
        return "", f"Whether another process asks for the same was not looked at: {brief(wrong, 300)}."
    return "", ""


def _started(seed: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-c", _START, json.dumps([str(one) for one in sys.path])]
    own = os.environ | {"PYTHONHASHSEED": seed}
    return subprocess.Popen(command, env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def main() -> None:
    """In the other process: reads what is asked, and writes what the function asks for instead, or `!` and what went wrong."""
    if hasattr(signal, "alarm"):
        signal.alarm(SECONDS)  # whatever the code does, it ends
    channel, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)  # what the code prints is nobody's answer
    module, name, ended = pickle.load(sys.stdin.buffer)
    try:
        function = attrgetter(name)(import_module(module))
        told = next(filter(None, (another_way(function, one) for one in ended)), "")
    except BaseException as error:
        told = f"!{module}:{name} raised {type(error).__name__} there ({error})"
    os.write(channel, json.dumps(told).encode())
    os._exit(0)
