"""AgentFlow's command line as real processes: run to the end, or running while a test looks. None outlives its test.

They are forks of `tests.support.warm`, which has imported what they need. Each command is also tested once as the program
that people start: `installed` and `installed_running`.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]


def environment(**changes: str | None) -> dict[str, str]:
    """This process's environment with changes; None takes a variable out. No schema is named unless a test does."""
    merged: dict[str, str | None] = {**os.environ, "PYTHONPATH": str(ROOT), "AGENTFLOW_SCHEMA": None, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def agentflow(
    *arguments: str, env: Mapping[str, str], cwd: Path = ROOT, stdin: str = "", seconds: float = 60
) -> subprocess.CompletedProcess[str]:
    """`agentflow ...` has ended within `seconds`; its exit code and output."""
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        given.write(stdin)
        given.seek(0)
        process = Command(arguments, env, cwd, [given, out, err])
        try:
            process.wait(seconds)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["agentflow", *arguments], process.returncode or 0, out.read(), err.read())


@contextmanager
def running(*arguments: str, env: Mapping[str, str], cwd: Path = ROOT) -> Iterator[Command]:
    """The command runs while this is open, and is killed afterwards if it still does."""
    (out, out_there), (err, err_there) = (map(open, os.pipe(), "rw") for _ in range(2))
    with out, err, out_there, err_there, open(os.devnull) as nothing:
        process = Command(arguments, env, cwd, [nothing, out_there, err_there])
        out_there.close()
        err_there.close()
        process.stdout, process.stderr = out, err
        try:
            yield process
        finally:
            process.kill()
            process.wait(30)


INSTALLED = Path(sys.executable).with_name("agentflow")  # what an installation puts beside its Python


def installed(
    *arguments: str, env: Mapping[str, str], cwd: Path = ROOT, stdin: str = "", seconds: float = 60
) -> subprocess.CompletedProcess[str]:
    """Like agentflow(), with the installed program, which begins with nothing."""
    return subprocess.run(
        [INSTALLED, *arguments],
        env=env,
        cwd=cwd,
        input=stdin,
        timeout=seconds,
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def installed_running(*arguments: str, env: Mapping[str, str], cwd: Path = ROOT) -> Iterator[subprocess.Popen[str]]:
    """Like running(), with the installed program, which begins with nothing."""
    with subprocess.Popen(
        [INSTALLED, *arguments], env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


class Command:
    """A command's process, with what tests use of subprocess.Popen."""

    def __init__(
        self, arguments: Sequence[str], env: Mapping[str, str], cwd: Path, standard: Sequence[IO[str]]
    ) -> None:
        self.arguments, self.returncode, self.stdout, self.stderr = arguments, None, None, None
        asked = {"arguments": arguments, "folder": str(cwd), "environment": dict(env)}
        with tempfile.TemporaryFile("w+", encoding="utf-8") as request:
            json.dump(asked, request)
            request.seek(0)
            told, told_there = os.pipe()
            files = [file.fileno() for file in (*standard, request)]
            socket.send_fds(_warm()[0], [b"!"], [*files, told_there])
            os.close(told_there)
        self._told = open(told)  # noqa: SIM115 (closed when the exit code has been told)
        self.pid = int(self._told.readline())

    stdout: IO[str] | None
    stderr: IO[str] | None
    returncode: int | None

    def wait(self, timeout: float = 60) -> int:
        """The exit code; subprocess.TimeoutExpired if there is none in time."""
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(["agentflow", *self.arguments], timeout)
            with self._told:
                self.returncode = int(self._told.readline())
        return self.returncode

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Kills the process if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float = 60) -> tuple[str, str]:
        """Everything more that it prints, until it has ended."""
        assert self.stdout and self.stderr
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.extend(self.stderr or ()), daemon=True)
        reader.start()
        printed = self.stdout.read()
        reader.join(timeout)
        self.wait(timeout)
        return printed, "".join(errors)


@functools.cache
def _warm() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The process that forks, started by the first command of a run."""
    here, there = socket.socketpair()
    with there:
        command = [sys.executable, "-m", "tests.support.warm", str(there.fileno())]
        env = environment()
        process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, pass_fds=[there.fileno()])
    return here, process


def stop() -> None:
    """The process that forks has ended, if one was started."""
    if _warm.cache_info().currsize:
        channel, process = _warm()
        channel.close()
        process.wait(30)
        _warm.cache_clear()
