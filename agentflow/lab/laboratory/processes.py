"""Real processes that a laboratory may kill: started in milliseconds, always found and reaped, gone with their parent.

They are forked by a fork server (a small process that has imported AgentFlow and holds no thread and no connection), so
none of them inherits this process's threads, locks or sockets. Where there is no fork server they are spawned.
"""

from __future__ import annotations

import atexit
import ctypes
import io
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from operator import attrgetter
from types import FunctionType
from typing import Any

from ...errors import LaneError

# What most processes run. Python says nothing about a name here that does not exist, so a test imports each.
PRELOADED = [
    "agentflow",
    *(
        f"agentflow.lab.{name}"
        for name in ("crashes.carriers", "crashes.naive_queue", "crashes.soak", "race.race", "schedule.lanes")
    ),
]
_PR_SET_PDEATHSIG = 1
_started: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
_named: dict[int, tuple[Any, str, str]] = {}
_reading = threading.RLock()
"""The fork server gives an exit code once, and 255 after that; starting a process asks for the codes of all others."""


def _context() -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def start(target: Callable[..., None], *arguments: Any, name: str = "agentflow") -> BaseProcess:
    """Starts a process that runs `target(*arguments)`, each importable by name. Raises LaneError if one is not.

    It is killed when this process ends, however this process ends.
    """
    return _started_in(_context(), target, arguments, name)


def start_anew(target: Callable[..., None], *arguments: Any, name: str = "agentflow") -> BaseProcess:
    """Starts a process that is no copy of another: it has imported everything itself, and has a hash seed of its own."""
    return _started_in(multiprocessing.get_context("spawn"), target, arguments, name)


def _started_in(context: BaseContext, target: Callable[..., None], arguments: Any, name: str) -> BaseProcess:
    carried = _Carrier(file := io.BytesIO())
    carried.carry((target, arguments))
    safe = os.environ.get("PYTHONSAFEPATH")
    args = (safe is None, file.getvalue(), *carried.connections)
    process = context.Process(target=_main, args=args, name=name, daemon=True)  # type: ignore[attr-defined]
    with _reading, _shielded(safe):
        process.start()
    _started.add(process)
    return process  # type: ignore[no-any-return]


@contextmanager
def connected(
    target: Callable[..., None], *arguments: Any, name: str = "agentflow"
) -> Iterator[tuple[BaseProcess, Connection]]:
    """Runs `target(*arguments, channel)` in a process; yields it and the other end of its channel. It is gone afterwards."""
    here, there = multiprocessing.Pipe()
    process = start(target, *arguments, there, name=name)
    there.close()
    try:
        yield process, here
    finally:
        kill([process])
        here.close()


def kill(processes: Iterable[BaseProcess], seconds: float = 10.0) -> None:
    """Kills and reaps these processes, stopped ones too. Raises TimeoutError if one is still alive after `seconds`."""
    found = list(processes)
    for process in found:
        with _reading:
            if process.is_alive():
                process.kill()
    for process in found:
        if not has_ended(process, seconds):
            raise TimeoutError(f"Process {process.pid} ({process.name}) is still alive {seconds:g} s after SIGKILL.")


def ended(processes: Iterable[BaseProcess], seconds: float) -> list[BaseProcess]:
    """Waits up to `seconds` until one has ended. Returns those that have; they are reaped and have an exit code."""
    found = {process.sentinel: process for process in processes}
    gone = [found[sentinel] for sentinel in wait(list(found), seconds)]  # type: ignore[index]
    for process in gone:
        has_ended(process, 0)
    return gone


def has_ended(process: BaseProcess, seconds: float) -> bool:
    """Waits up to `seconds` for the process to end. Returns whether it has; then it is reaped and has an exit code."""
    # without the lock, so that threads can wait for different processes at once
    gone = wait([process.sentinel], seconds)
    with _reading:
        # the kernel closes a process's end of the sentinel a moment before it can be reaped
        process.join(1 if gone else 0)
        return not process.is_alive()


def kill_me() -> None:
    """Kills this process with SIGKILL: no `finally`, no flush. Does not return."""
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # the signal is on its way to this thread


def die_with_parent() -> None:
    """Makes the kernel kill this process, even a stopped one, when the one that forked it ends; only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def _shielded(safe: str | None) -> Iterator[None]:
    """A fork server that starts here imports nothing of this folder's, and hears no Ctrl-C while it imports."""
    os.environ["PYTHONSAFEPATH"] = "1"
    if sys.platform != "win32":
        resource_tracker.ensure_running()  # or it starts below, and lets SIGINT through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]) if sys.platform != "win32" else ()
    try:
        yield
    finally:
        if safe is None:
            del os.environ["PYTHONSAFEPATH"]
        if sys.platform != "win32":
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def by_name(one: Any, module: str, attribute: str) -> None:
    """From now on processes that are started import this by its name, whatever kind of object it is."""
    _named[id(one)] = one, module, attribute


def _imported(module: str, attribute: str) -> Any:
    with redirect_stdout(sys.stderr):  # where a program expects JSON, it is not in the way
        return attrgetter(attribute)(import_module(module))


class _Carrier(pickle.Pickler):
    """Takes down what another process finds by its name; connections are carried in their own way."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.connections: list[Connection] = []

    def carry(self, what: Any) -> None:
        try:
            self.dump(what)
        except Exception as error:
            raise LaneError(
                f"The workflow or tool cannot be sent to a worker process ({error}). Process lanes need functions that can be "
                "imported from a module; use thread lanes for functions that a notebook defines."
            ) from error

    def persistent_id(self, one: Any) -> int | None:
        if not isinstance(one, Connection):
            return None
        self.connections.append(one)
        return len(self.connections) - 1

    def reducer_override(self, one: Any) -> Any:
        if id(one) in _named:
            return _imported, _named[id(one)][1:]
        main = sys.modules["__main__"]
        carried = getattr(main, "__spec__", None) or hasattr(main, "__file__")  # what a script defines is found
        if isinstance(one, type | FunctionType) and one.__module__ == "__main__" and not carried:
            raise AttributeError(f"{one.__qualname__!r} is defined in a notebook")
        return NotImplemented


class _Unpacker(pickle.Unpickler):
    """Finds what a _Carrier took down."""

    def __init__(self, data: bytes, connections: Sequence[Connection]) -> None:
        super().__init__(io.BytesIO(data))
        self._connections = connections

    def persistent_load(self, number: int) -> Connection:
        return self._connections[number]


def _main(unsafe: bool, carried: bytes, *connections: Connection) -> None:
    if unsafe:  # that was for the import system, not for the programs that a step starts
        os.environ.pop("PYTHONSAFEPATH", None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which decides
    _die_with_fork_server()
    threading.Thread(target=_end_with_parent, name="agentflow-parent-watch", daemon=True).start()
    target, arguments = _Unpacker(carried, connections).load()
    target(*arguments)


def _end_with_parent() -> None:
    """Kills this process when the pipe to its parent is closed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)


def _die_with_fork_server() -> None:
    """Makes sure that on Linux a stopped process ends with its parent as well.

    The kernel kills it when the fork server ends, and the fork server ends with our parent, unless one of its children
    holds the other end of its pipe. Elsewhere a stopped orphan stays stopped.
    """
    server = getattr(forkserver, "_forkserver", None)
    pipe = getattr(server, "_forkserver_alive_fd", None)
    if sys.platform == "linux" and pipe is not None:
        die_with_parent()
        os.close(pipe)
        setattr(server, "_forkserver_alive_fd", None)  # noqa: B010 (the standard library has no name for it)


@atexit.register
def _kill_all() -> None:
    kill(process for process in list(_started) if process.is_alive())
