"""Signals to processes that are still running: a test that interrupts something makes sure that it is still at work.

A signal to a process that has just ended does nothing, and the test would see the ordinary end instead.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import psutil

from tests.support.helpers import eventually

INTERRUPTED = 130  # the exit code of a command that Ctrl-C or SIGTERM interrupted in its work
GONE = {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}


def running(pid: int | None) -> psutil.Process:
    """The process; AssertionError if it has ended, also when nobody has fetched its exit code yet."""
    assert pid is not None, "the process has no id: it was never started, or its exit code has been fetched"
    try:
        process = psutil.Process(pid)
        status = process.status()
    except psutil.NoSuchProcess:
        status = psutil.STATUS_DEAD
    assert status not in GONE, f"process {pid} ended before the signal; give it more to do"
    return process


def send(pid: int | None, number: int) -> None:
    """Sends the signal to a process that is running."""
    running(pid).send_signal(number)


def freeze(pid: int | None) -> None:
    """Stops the process (SIGSTOP) and waits until it has come to a standstill; SIGCONT lets it go on."""
    send(pid, signal.SIGSTOP)
    eventually(lambda: running(pid).status() == psutil.STATUS_STOPPED)


def interrupt(pid: int | None, number: int, amid: Callable[[], object], seconds: float = 60) -> None:
    """Sends the signal in the middle of the process's work: `amid` is true while the process stands still."""

    def caught() -> bool:
        running(pid)
        if not amid():
            return False
        freeze(pid)
        if amid():
            return True
        send(pid, signal.SIGCONT)
        return False

    eventually(caught, seconds)
    send(pid, number)
    send(pid, signal.SIGCONT)
