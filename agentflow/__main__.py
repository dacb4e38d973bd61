"""The command `agentflow`, also as `python -m agentflow`."""

import signal


def main() -> None:
    """Carries out the command line. While the rest is still imported, Ctrl-C ends the process without a word."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli import main

    main()


if __name__ == "__main__":
    main()
