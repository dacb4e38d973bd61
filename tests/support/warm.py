"""Programs as processes of their own, without the second in which each would import the same packages again.

`python -m tests.support.warm FD` has imported them, listens on that socket, and forks for each program, or kernel of a notebook,
that `tests.support.programs` asks for. The fork is a process like any other: its own id, folder, environment, files, signals
and exit code; it runs `python -m MODULE` or `python -c CODE` and ends as the interpreter ends.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import types
from contextlib import suppress
from typing import Any

# What programs import when they are asked to, and what that imports when it is used.
PACKAGES = (
    "agentflow.cli", "agentflow.api", "agentflow.doctor", "agentflow.migrations", "agentflow.worker",
    "agentflow.lab.crashes.soak", "agentflow.lab.explorer.explore", "agentflow.lab.schedule.play",
    "agentflow.lab.course", "agentflow.lab.plots", "agentflow.lab.room.widget", "ipykernel.kernelapp", "matplotlib.figure",
    "pandas", "alembic.command", "sqlalchemy.dialects.postgresql.psycopg", "uvicorn.loops.auto", "uvicorn.protocols.http.auto",
)  # fmt: skip


def serve(listening: socket.socket) -> dict[str, Any] | None:
    """Forks for each byte that comes, with its files: standard ones, the request, and where the exit code is told.

    Returns the request in the fork, and None when standard input ends, which whoever started this process keeps open.
    """
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGCHLD, signal.SIGINT)}
    told: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([listening, awake, 0], [], [])
        if awake in ready:
            os.read(awake, 1000)
            _tell_who_ended(told)
        if 0 in ready:
            return None
        if listening in ready:
            with listening.accept()[0] as channel:
                _, files, _, _ = socket.recv_fds(channel, 1, 5)
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                for number, handler in handlers.items():
                    signal.signal(number, handler)
                for mine in (awake, wake, listening.detach(), *told.values()):
                    os.close(mine)
                return _begin(files)
            *rest, told[pid] = files
            for file in rest:
                os.close(file)


def _tell_who_ended(told: dict[int, int]) -> None:
    for pid in list(told):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with suppress(BrokenPipeError), open(told.pop(pid), "w") as file:  # who asked may be gone
                file.write(f"{os.waitstatus_to_exitcode(status)}\n")


def _begin(files: list[int]) -> dict[str, Any]:
    """This process stands where the command is to begin: its folder, environment and standard files."""
    *standard, request, told = files
    with open(request, encoding="utf-8") as file:
        asked: dict[str, Any] = json.load(file)
    if asked["session"]:
        os.setsid()
    with open(told, "w") as file:
        file.write(f"{os.getpid()}\n")
    for number, file in enumerate(standard):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.path[0] = asked["folder"]
    sys.argv[:] = ["-c", *asked["arguments"]]
    return asked


def run(asked: dict[str, Any]) -> None:
    """The program, as the module `__main__`."""
    if asked["code"]:
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(asked["code"], "<string>", "exec"), main.__dict__)
    else:
        runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for name in PACKAGES:
        importlib.import_module(name)
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # forks hear it, also if a script in the background began all this
    gc.freeze()  # what a fork has not made itself, it need not take apart when it ends
    print("ready", flush=True)
    told = serve(socket.socket(fileno=int(sys.argv[1])))
    if told:
        run(told)
