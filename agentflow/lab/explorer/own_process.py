"""Runs an exploration in a forked process, so that code which never comes back can be stopped, even inside a C function.

A fork has the learner's classes and closures without importing them. The parent looks at a clock in shared memory and kills
the process; nothing rests on signals that code could swallow. Where there is no fork, the exploration runs in the calling
thread, and its deadline is checked between transactions only.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NoReturn, TypeVar

from ...errors import AgentFlowError
from ...tools import own_name
from ..laboratory.processes import die_with_parent

T = TypeVar("T")
Tell = Callable[[Any], None]
CAN_FORK = hasattr(os, "fork")
LOOK_EVERY = 0.1  # seconds between two looks at the clock and the number of states
GRACE = 5.0  # seconds after the deadline in which code that is slow, not endless, may return
FORKED = (
    "it called os.fork(), perhaps by way of multiprocessing, but the explorer plays a worker as one process. Use threads, "
    "or subprocess."
)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def shown(thing: Any) -> str:
    """What a learner calls this: a function or class as `module:name`, anything else as Python writes it."""
    return str(own_name(thing, "")) if hasattr(thing, "__qualname__") else f"{thing!r:.100}"


class OutOfTime(AgentFlowError):
    """The time for the whole exploration is over; raised between two transactions."""


class WrongCode(AgentFlowError):
    """An engine, workflow or tool raised an unexpected error, or is not a function of the answers it gets."""


class DidNotReturn(AgentFlowError):
    """The explored code was killed: it ran too long, it was running when the time was over, or its process ended."""

    def __init__(self, message: str, out_of_time: bool = False) -> None:
        super().__init__(message)
        self.out_of_time = out_of_time


class SearchProgress(ctypes.Structure):
    """How far an exploration is, in memory that the exploring process and its parent share.

    `code_since` is when the explored code began to run (0: it does not run now), `deadline` when the exploration must end;
    both as time.monotonic(), which is the same clock in both processes. `forked`: the explored code has called
    os.fork(). `step` is a sentence about the last step that it asked for, or empty; `bodies` is JSON about own code that ran.
    """

    _fields_ = [
        ("deadline", ctypes.c_double), ("code_since", ctypes.c_double), ("searching", ctypes.c_bool),
        ("forked", ctypes.c_bool), ("step", ctypes.c_char * 1000),
        ("states", ctypes.c_longlong), ("transitions", ctypes.c_longlong), ("depth", ctypes.c_longlong),
        ("statements", ctypes.c_longlong), ("rows", ctypes.c_longlong), ("_where", ctypes.c_char * 4000),
        ("bodies", ctypes.c_char * 20_000),
    ]  # fmt: skip

    @classmethod
    def shared(cls, deadline: float) -> SearchProgress:
        """In memory that a forked child shares."""
        made = cls.from_buffer(mmap.mmap(-1, ctypes.sizeof(cls)))
        made.deadline = deadline
        return made

    @property
    def where(self) -> str:
        """The schedule and the worker whose code ran last, as the beginning of a sentence."""
        return bytes(self._where).decode(errors="ignore")

    @contextmanager
    def in_code(self, where: str) -> Iterator[None]:
        """Meanwhile explored code runs, which may not come back. Raises DidNotReturn if it has forked its process."""
        self._where = where.encode()[:4000]
        self.step = b""
        self.code_since = time.monotonic()
        try:
            yield
        finally:
            self.code_since = 0.0
            if self.forked:
                raise DidNotReturn(FORKED)

    def check_deadline(self) -> None:
        """Raises OutOfTime after the deadline."""
        if time.monotonic() > self.deadline:
            raise OutOfTime("the time limit")

    def refuse_to_wait(self, seconds: float) -> None:
        """Raises DidNotReturn if the code has run for longer than `seconds`, or past the deadline."""
        since, now = self.code_since, time.monotonic()
        if since and now - since > seconds:
            raise DidNotReturn(f"no transaction was reached within {seconds:g} s. Is there an endless loop or a sleep?")
        if 0 < since <= self.deadline < now - GRACE:
            raise DidNotReturn("it did not end in time. Is there an endless loop?", out_of_time=True)


def run_apart(
    work: Callable[[Tell], T], progress: SearchProgress, show: Callable[[int], None], keep: Tell, seconds: float
) -> T:
    """Returns what `work` returns, or raises what it raises; `show` gets the number of states from time to time.

    What `work` tells on its way, by the function that it gets, comes to `keep` at once, so that it is not lost with the
    process. `seconds` is how long the explored code may run up to its next transaction. Raises DidNotReturn. The process
    is gone afterwards, also after Ctrl-C.
    """
    if not CAN_FORK:
        return work(keep)
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    child = fork.Process(target=_be_the_child, args=(work, progress, os.getpid(), here, there))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # the child unblocks them when it ignores them
    try:
        with warnings.catch_warnings():  # a threaded process is forked: the child uses no lock and no thread of it
            warnings.simplefilter("ignore", DeprecationWarning)
            child.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        there.close()
        while True:
            if here.poll(LOOK_EVERY):
                what, value = here.recv()
                if what != "told":
                    break
                keep(value)
            show(progress.states)
            progress.refuse_to_wait(seconds)
            if not child.is_alive() and not here.poll():
                raise EOFError
    except EOFError:
        child.join(GRACE)
        raise DidNotReturn(_how_it_ended(child.exitcode)) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        here.close()
        if child.pid:
            child.kill()
            child.join()
    show(progress.states)
    if what == "raised":
        raise _rebuilt(*value)
    return value  # type: ignore[no-any-return]


def _how_it_ended(code: int | None) -> str:
    if code and code < 0:
        return f"its process was ended by {signal.Signals(-code).name}, from outside or for want of memory."
    return f"its process ended with exit code {code}. Does it call os._exit()?"


# -- in the child ------------------------------------------------------------------------------------------------------


def _be_the_child(
    work: Callable[[Tell], Any], progress: SearchProgress, parent: int, here: Connection, there: Connection
) -> NoReturn:
    """Runs `work`, sends what came of it, and exits without any of the parent's exit handlers."""
    code = 1
    try:
        gc.freeze()  # the parent's objects are not finalized here, too
        gc.set_threshold(
            100_000, 1_000_000
        )  # what is found is kept, and looking through it again and again took a tenth of the time
        here.close()
        _die_with(parent)
        _be_silent()
        # A second process would play on with our connections: it ends, and in_code() says that there was one.
        os.register_at_fork(
            after_in_child=partial(os._exit, 1), after_in_parent=partial(setattr, progress, "forked", True)
        )
        try:
            there.send(("returned", work(lambda told: there.send(("told", told)))))
        except BaseException as error:
            there.send(("raised", _packed(error)))
        code = 0
    finally:
        os._exit(code)


def _be_silent() -> None:
    """Nothing reaches the parent's terminal or notebook, and Ctrl-C and termination are the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    logging.disable()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    _kept.extend([sys.stdin, sys.stdout, sys.stderr])
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")


_kept: list[Any] = []  # a stream that is dropped would be flushed


def _die_with(parent: int) -> None:
    """However the parent ends, this process does not outlive it."""
    if sys.platform == "linux":
        die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY)
    os._exit(1)


def _packed(error: BaseException) -> tuple[type[BaseException], tuple[Any, ...], dict[str, Any]]:
    """What the parent makes the error from again: one of the same class, with the same text."""
    kept = (type(error), error.args, vars(error))
    with suppress(Exception):
        if str(_rebuilt(*pickle.loads(pickle.dumps(kept)))) == str(error):
            return kept
    return AgentFlowError, (f"{type(error).__name__}: {error}",), {}  # a class that only the child can name


def _rebuilt(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    """The error, made without calling its constructor, which may take other arguments than it keeps."""
    made = kind.__new__(kind, *args)
    made.args = args
    vars(made).update(attributes)
    return made
