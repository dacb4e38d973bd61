"""AgentFlow's command line, and other programs, as real processes: run to the end, or running while a test looks.

They are forks of `tests.support.warm`, which has imported what they need, and so are the notebooks' kernels. Each command is
also tested once as the program that people start: `installed` and `installed_running`. No process outlives its test.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = Path(sys.executable).with_name("agentflow")  # what an installation puts beside its Python


def environment(**changes: str | None) -> dict[str, str]:
    """This process's environment with changes; None takes a variable out. No schema is named unless a test does."""
    merged: dict[str, str | None] = {**os.environ, "PYTHONPATH": str(ROOT), "AGENTFLOW_SCHEMA": None, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def agentflow(
    *arguments: str, env: Mapping[str, str], cwd: Path = ROOT, stdin: str = "", seconds: float = 60
) -> subprocess.CompletedProcess[str]:
    """`agentflow ...` has ended within `seconds`; its exit code and output."""
    with ExitStack() as stack:
        given, out, err = (stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3))
        given.write(stdin)
        given.seek(0)
        with Program(arguments, standard=(given, out, err), env=env, cwd=cwd) as process:
            code = process.wait(seconds)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(["agentflow", *arguments], code, out.read(), err.read())


def running(*arguments: str, env: Mapping[str, str], cwd: Path = ROOT) -> Program:
    """The command runs while this context is open, and is killed afterwards if it still does."""
    return started(arguments, env=env, cwd=cwd)


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


def started(
    arguments: Sequence[str], *, module: str = "agentflow", code: str = "", env: Mapping[str, str] | None = None,
    cwd: Path = ROOT, asks: bool = False,
) -> Program:  # fmt: skip
    """A process runs the module, or the code, and its output can be read; with `asks` it reads its standard input."""
    pipes = [os.pipe() for _ in range(3 if asks else 2)]
    (out, out_there), (err, err_there) = pipes[:2]
    given_there, given = pipes[2] if asks else (os.open(os.devnull, os.O_RDONLY), None)
    with open(given_there), open(out_there, "w"), open(err_there, "w"):
        process = Program(
            arguments, module=module, code=code, env=env, cwd=cwd, standard=(given_there, out_there, err_there)
        )
    process.stdout, process.stderr = open(out), open(err)  # noqa: SIM115 (closed with the process)
    if given is not None:
        process.stdin = open(given, "w")  # noqa: SIM115
    return process


class Program:
    """A process that `tests.support.warm` forked, with what tests use of subprocess.Popen.

    As a context it is killed at the end if it still runs.
    """

    def __init__(
        self, arguments: Sequence[str], *, standard: Sequence[IO[str] | int], module: str = "agentflow", code: str = "",
        env: Mapping[str, str] | None = None, cwd: Path = ROOT, session: bool = False,
    ) -> None:  # fmt: skip
        self.args, self.returncode = [code or module, *arguments], None
        self.stdin, self.stdout, self.stderr = None, None, None
        asked = {
            "arguments": list(arguments), "module": module, "code": code, "folder": str(cwd),
            "session": session, "environment": dict(environment() if env is None else env),
        }  # fmt: skip
        with tempfile.TemporaryFile("w+", encoding="utf-8") as request:
            json.dump(asked, request)
            request.seek(0)
            told, told_there = os.pipe()
            files = [file if isinstance(file, int) else file.fileno() for file in (*standard, request, told_there)]
            with socket.socket(socket.AF_UNIX) as channel:
                channel.connect(warm()[0])
                socket.send_fds(channel, [b"!"], files)
            os.close(told_there)
        self._told = open(told)  # noqa: SIM115 (closed when the exit code has been told)
        self.pid = int(self._told.readline())

    stdin: IO[str] | None
    stdout: IO[str] | None
    stderr: IO[str] | None
    returncode: int | None

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.wait(30)
        for stream in filter(None, (self.stdin, self.stdout, self.stderr)):
            stream.close()

    def wait(self, timeout: float = 60) -> int:
        """The exit code; subprocess.TimeoutExpired if there is none in time."""
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
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
        if self.stdin:
            self.stdin.close()
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.extend(self.stderr or ()), daemon=True)
        reader.start()
        printed = self.stdout.read()
        reader.join(timeout)
        self.wait(timeout)
        return printed, "".join(errors)


class Shell:
    """One process in which commands are carried out one after another, at a sixth of what a process for each would take.

    For commands that end; what one leaves behind in the process is there for the next. As a context it ends with the block.
    """

    def __init__(self, env: Mapping[str, str], cwd: Path = ROOT) -> None:
        self.env, self.cwd = env, cwd
        self._process = started([], module="tests.support.shell", env=env, cwd=cwd, asks=True)

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.__exit__()

    def run(
        self, *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, stdin: str = "",
        seconds: float = 60,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """`agentflow ...` has ended; its exit code and output."""
        ours, theirs = self._process.stdin, self._process.stdout
        assert ours and theirs
        asked = {
            "arguments": arguments,
            "environment": {**(env or self.env)},
            "folder": str(cwd or self.cwd),
            "given": stdin,
        }
        print(json.dumps(asked), file=ours, flush=True)
        if not select.select([theirs], [], [], seconds)[0]:
            raise subprocess.TimeoutExpired(arguments, seconds)
        code, out, err = json.loads(theirs.readline())
        return subprocess.CompletedProcess(["agentflow", *arguments], code, out, err)


class Kernel(Program):
    """A notebook's kernel, with what Jupyter asks of the process that it started."""

    def __init__(self, command: Sequence[str], *, env: dict[str, str], cwd: str, stderr: IO[str] | None, **_: object):
        _, _, module, *arguments = (part for part in command if not part.startswith("-X"))
        env["JPY_PARENT_PID"] = warm()[1]  # a kernel ends with its parent
        with open(os.devnull) as nothing:
            standard = nothing, sys.__stdout__ or 1, stderr or 2
            super().__init__(arguments, module=module, env=env, cwd=Path(cwd), standard=standard, session=True)
        self.stdin = open(os.devnull)  # noqa: SIM115 (whoever started it closes it)

    def send_signal(self, number: int) -> None:
        """Sends it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


_PATH, _PID = "AGENTFLOW_TEST_WARM", "AGENTFLOW_TEST_WARM_PID"


def warm() -> tuple[str, str]:
    """The socket and the id of the process that forks: one for all processes of a run, started by the first that asks."""
    if _PATH not in os.environ:
        path = os.path.join(tempfile.mkdtemp(prefix="agentflow-warm-"), "socket")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path)
            listening.listen(100)
            command = [sys.executable, "-m", "tests.support.warm", str(listening.fileno())]
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[listening.fileno()],
            )
        assert process.stdout
        process.stdout.readline()  # it has compiled what it imports, so that no worker does the same at the same time
        os.environ |= {_PATH: path, _PID: str(process.pid)}
        _started.append(process)
    return os.environ[_PATH], os.environ[_PID]


_started: list[subprocess.Popen[bytes]] = []


def stop() -> None:
    """The process that forks has ended, if this one started it."""
    for process in _started:
        assert process.stdin
        process.stdin.close()
        process.wait(30)
        shutil.rmtree(Path(os.environ.pop(_PATH)).parent)
        del os.environ[_PID]
    _started.clear()
