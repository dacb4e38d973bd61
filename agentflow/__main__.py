"""The command `agentflow`, also as `python -m agentflow`."""

import os
import signal
import sys


def main() -> None:
    """Carries out the command line. While the rest is still imported, Ctrl-C ends the process without a word."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # in the order of their numbers
        if getattr(sys, name) is None:  # it was closed; what is opened next would be taken for it
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (until the end)
    from .cli import main

    main()


if __name__ == "__main__":
    main()
