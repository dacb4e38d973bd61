"""Real processes that a laboratory may kill: started in milliseconds, always found and reaped, gone with their parent.

They are forked by a fork server (a small process that has imported AgentFlow and holds no thread and no connection), so
none inherits this process's threads, locks or sockets; where there is no fork server they are spawned. What does not
live here: what a process does (`crashes`, `soak`).
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
from collections.abc import Callable, Iterable
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

_LABORATORY = ("crashes.crash_at", "crashes.soak", "schedule.lanes", "race.race", "crashes.naive_queue")
_PRELOADED = ["agentflow", *(f"agentflow.lab.{name}" for name in _LABORATORY)]
_PR_SET_PDEATHSIG = 1
_started: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
_reading = threading.RLock()
"""The fork server tells an exit code once, and whoever asks second is told 255; starting a process asks for all others."""


def _context() -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def start(target: Callable[..., None], *arguments: Any, name: str = "agentflow") -> BaseProcess:
    """A new process runs `target(*arguments)`; both must be importable by name.

    It is killed when this process ends, however this process ends.
    """
    process = _context().Process(target=_main, args=(target, *arguments), name=name, daemon=True)  # type: ignore[attr-defined]
    with _reading:
        process.start()
    _started.add(process)
    return process  # type: ignore[no-any-return]


def kill(processes: Iterable[BaseProcess], seconds: float = 10.0) -> None:
    """These processes are dead and reaped, stopped ones too. Raises TimeoutError after `seconds` without an end."""
    found = list(processes)
    for process in found:
        with _reading:
            if process.is_alive():
                process.kill()
    for process in found:
        if not has_ended(process, seconds):
            raise TimeoutError(f"process {process.pid} ({process.name}) is not dead {seconds:g} s after SIGKILL.")


def ended(processes: Iterable[BaseProcess], seconds: float) -> list[BaseProcess]:
    """Those that have ended, as soon as one has, or after `seconds`; they are reaped and have an exit code."""
    found = {process.sentinel: process for process in processes}
    gone = [found[sentinel] for sentinel in wait(list(found), seconds)]  # type: ignore[index]
    for process in gone:
        has_ended(process, 0)
    return gone


def has_ended(process: BaseProcess, seconds: float) -> bool:
    """Whether the process has ended, as soon as it has, or after `seconds`; then it is reaped and has an exit code."""
    wait([process.sentinel], seconds)  # without the lock: nobody waits for a process while somebody else does
    with _reading:
        process.join(0)
        return not process.is_alive()


def kill_me() -> None:
    """This process is dead: SIGKILL, no `finally`, no flush. Does not return."""
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # the signal is on its way to this thread


def _main(target: Callable[..., None], *arguments: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which decides
    _die_with_fork_server()
    threading.Thread(target=_end_with_parent, name="agentflow-parent-watch", daemon=True).start()
    target(*arguments)


def _end_with_parent() -> None:
    """A running process notices that the pipe to its parent is closed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)


def _die_with_fork_server() -> None:
    """On Linux a stopped process ends with its parent as well.

    The kernel kills it when the fork server ends, which ends with our parent as soon as no child of its own holds the
    other end of its pipe. Elsewhere a stopped orphan stays stopped.
    """
    server = getattr(forkserver, "_forkserver", None)
    pipe = getattr(server, "_forkserver_alive_fd", None)
    if sys.platform == "linux" and pipe is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(pipe)
        setattr(server, "_forkserver_alive_fd", None)  # noqa: B010 (the standard library has no name for it)


@atexit.register
def _kill_all() -> None:
    kill(process for process in list(_started) if process.is_alive())
