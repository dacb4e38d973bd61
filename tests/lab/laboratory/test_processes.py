"""Processes of the laboratory: killed when told, reaped always, and gone with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

import psutil
import pytest

from agentflow.lab.laboratory import processes
from tests.support.helpers import eventually
from tests.support.signals import freeze, send


def stay(here: str = "") -> None:
    """Runs until killed, after saying that it runs."""
    print(here, end="", flush=True)
    threading.Event().wait()


def end_with(code: int) -> None:
    sys.exit(code)


def gone(pid: int) -> bool:
    """No process has this id, not even a dead one that nobody reaped."""
    return not psutil.pid_exists(pid)


def test_a_killed_process_is_reaped() -> None:
    process = processes.start(stay)
    pid = process.pid
    processes.kill([process])
    assert process.exitcode == -signal.SIGKILL
    eventually(lambda: gone(pid))


def test_a_stopped_process_is_killed_too() -> None:
    process = processes.start(stay)
    freeze(process.pid)
    processes.kill([process])
    assert process.exitcode == -signal.SIGKILL


def test_ended_gives_those_that_ended_with_their_exit_code() -> None:
    staying, ending = processes.start(stay), processes.start(end_with, 7)
    try:
        assert processes.ended([staying, ending], 30) == [ending]
        assert ending.exitcode == 7
        assert processes.ended([staying], 0) == []
    finally:
        processes.kill([staying])


PARENT = """
import os, sys, threading
from agentflow.lab.laboratory import processes
from tests.lab.laboratory.test_processes import stay
if __name__ == "__main__":
    started = [processes.start(stay, "!") for _ in range(3)]
    print("", *[process.pid for process in started], flush=True)
    sys.stdin.read()
    {then}
"""


def children_of(then: str) -> tuple[subprocess.Popen[str], list[int]]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *filter(None, sys.path)])}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(then=then)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert parent.stdin is not None and parent.stdout is not None
    told = ""
    while told.count("!") < 3 or "\n" not in told:
        told += (character := parent.stdout.read(1))
        assert character, f"the parent ended after {told!r}"
    parent.stdin.close()
    return parent, [int(pid) for pid in told.replace("!", "").split()]


def test_children_end_with_a_parent_that_is_killed() -> None:
    parent, pids = children_of("threading.Event().wait()")
    assert len(pids) == 3 and not any(gone(pid) for pid in pids)
    send(parent.pid, signal.SIGKILL)
    assert parent.wait(30) == -signal.SIGKILL
    eventually(lambda: all(gone(pid) for pid in pids))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a stopped process that its parent is gone")
def test_stopped_children_end_with_a_parent_that_is_killed() -> None:
    parent, pids = children_of("threading.Event().wait()")
    for pid in pids:
        freeze(pid)
    send(parent.pid, signal.SIGKILL)
    assert parent.wait(30) == -signal.SIGKILL
    try:
        eventually(lambda: all(gone(pid) for pid in pids))
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_children_end_with_a_parent_that_fails() -> None:
    parent, pids = children_of("raise SystemExit(3)")
    assert len(pids) == 3 and parent.wait(30) == 3
    eventually(lambda: all(gone(pid) for pid in pids))


def test_an_exit_code_is_right_when_another_thread_starts_a_process_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    read, both = forkserver.read_signed, threading.Barrier(2)

    def read_together(fd: int) -> int:
        with suppress(threading.BrokenBarrierError):  # alone, as it should be: nobody else comes
            both.wait(0.5)
        return read(fd)

    first = processes.start(stay)
    monkeypatch.setattr(forkserver, "read_signed", read_together)
    more: list[BaseProcess] = []
    other = threading.Thread(target=lambda: more.append(processes.start(stay)))
    send(first.pid, signal.SIGKILL)
    wait([first.sentinel], 30)
    other.start()
    processes.kill([first])
    other.join(30)
    try:
        assert first.exitcode == -signal.SIGKILL
    finally:
        processes.kill(more)
