"""`python -m tests.chaos --seed 7`: a run of ten minutes, its plan and its figures; exit code 1 if anything is wrong."""

import argparse
import signal
import sys

from tests.chaos.run import run, setting
from tests.support import programs


def main() -> None:
    """Run, print, and end with 0 if all is well."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--number", dest="workflows", type=int, default=2400)
    told = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        outcome = run(setting(told.seed, told.seconds, told.workflows))
    finally:
        programs.stop()
    print(outcome)
    sys.exit(bool(outcome.wrong))


if __name__ == "__main__":
    main()
