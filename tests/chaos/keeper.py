"""What a run of chaos started ends with it, however it ends: `python -m tests.chaos.keeper HOME`, beside the run.

Each line of standard input names a process that the run has started, by its id and the moment of its birth. When the input ends,
because the run is over, was interrupted or was killed, these processes are killed, the server in HOME is stopped, and HOME goes.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from agentflow.errors import ServerError
from agentflow.server import Server


def birth(pid: int) -> str:
    """A line that names this process and no later one with its id."""
    return f"{pid} {psutil.Process(pid).create_time()}\n"


def of_server(home: Path) -> list[psutil.Process]:
    """The processes of the server in this home, the postmaster first: they stand in its data folder."""
    with suppress(OSError, ValueError, psutil.Error):
        postmaster = psutil.Process(int((home / "data" / "postmaster.pid").read_text().split()[0]))
        if Path(postmaster.cwd()) == home / "data":
            return [postmaster, *postmaster.children(recursive=True)]
    return []


def below(home: Path) -> list[psutil.Process]:
    """The processes that stand in this folder or below it."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.cwd().startswith(f"{home}/"):
                found.append(process)
    return found


def send(processes: list[psutil.Process], number: int) -> None:
    """Each of them that still lives gets the signal."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def end(home: Path, births: list[str]) -> None:
    """Nothing of the run is left."""
    for line in births:
        with suppress(psutil.NoSuchProcess):
            if birth(int(line.split()[0])) == line:
                psutil.Process(int(line.split()[0])).kill()
    for _ in range(5):  # somebody may have been about to start it
        send(of_server(home), signal.SIGCONT)
        with suppress(ServerError):
            Server(home).crash()
            break
    for _ in range(
        100
    ):  # a process that was just being started is known by its folder; one that dies may still make a file
        send(left := below(home), signal.SIGKILL)
        shutil.rmtree(home, ignore_errors=True)
        if not left and not home.exists():
            return
        time.sleep(0.1)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end(Path(sys.argv[1]), list(sys.stdin))
