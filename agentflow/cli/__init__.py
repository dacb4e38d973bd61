"""The command `agentflow`: each command calls one function of another room and reports the result.

Exit code 0 means that all is well, 1 that it is not, 2 that the command line could not be read. An error is one
sentence on standard error. The commands are in `engine` and `laboratory`, what they share in `options`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial

from ..errors import AgentFlowError, printable
from . import engine, laboratory
from .options import app

__all__ = ["app", "engine", "laboratory", "main"]


def main() -> None:
    """Carries out the command line, and ends the process with its exit code."""
    for stream in (
        sys.stdout,
        sys.stderr,
    ):  # whatever writes there: a command, an option's error, a progress bar, a log
        setattr(stream, "write", partial(_write, stream.write))  # noqa: B010 (mypy knows no method that is replaced)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on what was begun is cleaned up
    try:
        app(prog_name="agentflow")
    except AgentFlowError as error:
        notes = " ".join(getattr(error, "__notes__", []))
        sys.exit(f"agentflow: {error} {notes}".rstrip())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a file, folder or right that is not there
        sys.exit(f"agentflow: {type(error).__name__}: {error}. Fix that, and try again.")
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):  # while Python leaves, too, no interrupt is worth a traceback
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)


def _write(write: Callable[[str], int], text: str) -> int:
    """Writes what came from files, rows and options as something to read. Progress begins with a carriage return."""
    start = len(text) - len(text.lstrip("\r"))
    return write(text[:start] + printable(text[start:]))
