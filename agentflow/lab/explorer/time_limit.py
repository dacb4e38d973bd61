"""Code of an explored engine that does not come back: interrupted from a thread that watches the one that explores.

What lives here: `Watch`, its limits, and what Ctrl-C means meanwhile. What does not: what is said of it (`explore_worker`).
In the main thread the interruption is a signal, which ends a sleep too; in another thread it is an exception that Python
raises at its next instruction. C code that keeps Python's lock, such as a regular expression that never ends, cannot be
interrupted: the exploration is, as soon as it returns.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ...errors import AgentFlowError, CrashInjected
from ..notebook.learner_code import PACKAGE

EVERY_SECONDS = 0.1
SWALLOWED = 3  # so many interruptions may be swallowed before each line of the code is one


class TooLong(CrashInjected):
    """The engine's or workflow's own code does not come to its next transaction."""

    def __init__(self, *said: object) -> None:
        super().__init__(*said)
        watch = _watches.get(threading.get_ident())
        if watch and watch.tries > SWALLOWED:
            watch.trace(sys._getframe(1))


class OutOfTime(AgentFlowError):
    """The time for the whole exploration is over."""


class Watch:
    """How long the code of an engine may take: `seconds` between two transactions, and until `deadline` (monotonic)."""

    def __init__(self, seconds: float, deadline: float) -> None:
        self.seconds, self.deadline = seconds, deadline
        self.since: float | None = None
        self.tries, self.took, self.interrupted = 0, 0.0, False
        self._thread, self._by_signal = threading.get_ident(), False

    def check(self) -> None:
        """The deadline has not passed. Raises OutOfTime."""
        if time.monotonic() > self.deadline:
            raise OutOfTime("the time limit")

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Meanwhile code runs that may be interrupted: TooLong comes out of it. Raises KeyboardInterrupt after Ctrl-C."""
        traced, self.tries = sys.gettrace(), 0
        try:
            self.since = time.monotonic()
            yield
        finally:
            self.took, self.since = time.monotonic() - (self.since or 0.0), None
            if self.tries:
                self._forget()
                sys.settrace(traced)
            if self.interrupted:
                raise KeyboardInterrupt

    @contextmanager
    def on(self) -> Iterator[Watch]:
        """The calling thread is watched."""
        done = threading.Event()
        watcher = threading.Thread(target=self._look, args=(done,), name="agentflow-explore", daemon=True)
        _watches[self._thread] = self
        with self._signals():
            watcher.start()
            try:
                yield self
            finally:
                self.since, self.deadline = None, float("inf")
                done.set()
                watcher.join()
                del _watches[self._thread]

    def _look(self, done: threading.Event) -> None:
        while not done.wait(EVERY_SECONDS):
            since, now = self.since, time.monotonic()
            if since is not None and (now - since > self.seconds or now > self.deadline + 1):
                self.tries += 1
                self._interrupt()

    def _forget(self) -> None:
        """An interruption that has not arrived yet will not."""
        if not self._by_signal:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), None)

    def _interrupt(self) -> None:
        if self._by_signal:
            signal.pthread_kill(self._thread, signal.SIGINT)
        else:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(TooLong))

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGINT is ours or Ctrl-C; the engine's code can swallow neither. Only where Python's own handler is in place."""
        main = self._thread == threading.main_thread().ident
        if not (
            main and signal.getsignal(signal.SIGINT) is signal.default_int_handler and hasattr(signal, "pthread_kill")
        ):
            yield
            return

        def told(_: int, frame: FrameType | None) -> None:
            if self.tries and self.since is not None:
                if self.tries > SWALLOWED:
                    self.trace(frame)
                raise TooLong
            if not self.tries:
                self.interrupted = True
                raise KeyboardInterrupt

        signal.signal(signal.SIGINT, told)
        self._by_signal = True
        try:
            yield
        finally:
            self._by_signal = False
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def trace(self, frame: FrameType | None) -> None:
        """The next line of one of the learner's functions that run now raises TooLong, also where exceptions are handled.

        Another one each time, because only the one that loops gets out of its loop by that.
        """

        def line(_: FrameType, event: str, __: Any) -> Any:
            if event == "line" and self.since is not None:
                raise TooLong
            return line

        running = []
        while frame is not None and frame.f_code.co_name != "_played":
            frame.f_trace = None
            if not frame.f_code.co_filename.startswith(PACKAGE):
                running.append(frame)
            frame = frame.f_back
        if running:
            running[self.tries % len(running)].f_trace = line
            sys.settrace(lambda *_: None)  # no other function is traced


_watches: dict[int, Watch] = {}
