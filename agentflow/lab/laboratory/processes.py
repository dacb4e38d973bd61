"""Real processes that a laboratory may kill: started in milliseconds, always found and reaped, gone with their parent.

They are forked by a fork server (a small process that has imported AgentFlow and holds no thread and no connection), so
none of them inherits this process's threads, locks or sockets. Where there is no fork server they are spawned.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

# What most processes run. Python says nothing about a name here that does not exist, so a test imports each.
PRELOADED = [
    "agentflow",
    *(f"agentflow.lab.{name}" for name in ("crashes.naive_queue", "crashes.soak", "race.race", "schedule.lanes")),
]
_PR_SET_PDEATHSIG = 1
_started: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
_reading = threading.RLock()
"""The fork server gives an exit code once, and 255 after that; starting a process asks for the codes of all others."""


def _context() -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def start(target: Callable[..., None], *arguments: Any, name: str = "agentflow") -> BaseProcess:
    """Starts a process that runs `target(*arguments)`; the target must be importable by name.

    It is killed when this process ends, however this process ends.
    """
    process = _context().Process(target=_main, args=(target, *arguments), name=name, daemon=True)  # type: ignore[attr-defined]
    with _reading:
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
    wait([process.sentinel], seconds)  # without the lock, so that threads can wait for different processes at once
    with _reading:
        process.join(0)
        return not process.is_alive()


def kill_me() -> None:
    """Kills this process with SIGKILL: no `finally`, no flush. Does not return."""
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # the signal is on its way to this thread


def die_with_parent() -> None:
    """Makes the kernel kill this process, even a stopped one, when the one that forked it ends; only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _main(target: Callable[..., None], *arguments: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which decides
    _die_with_fork_server()
    threading.Thread(target=_end_with_parent, name="agentflow-parent-watch", daemon=True).start()
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
