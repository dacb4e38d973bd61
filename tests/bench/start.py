"""How long a start takes: whole processes by turns, as ratios to a process that imports the driver and ends.

`python -m tests.bench.start [PYTHON ...]` prints a table with a column for each of these interpreters, such as that of an
older checkout, or for this one alone. Bytecode caches are used, and made in a first round that is not counted.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.place import Place

DRIVER = "import psycopg"
MOST = {
    "import agentflow": 2.0,
    "import agentflow; agentflow.Engine": 2.0,
    "agentflow --help": 1.5,
    "agentflow report": 3.0,
}
"""What is started, and how many times as long as DRIVER it may take."""


def starts(place: Place, pythons: Sequence[str] = (sys.executable,), rounds: int = 7) -> dict[str, list[float]]:
    """For each of MOST its median over DRIVER's, for each interpreter; all take turns."""
    pythons = [os.path.abspath(one) for one in pythons]  # not resolved: a link's target knows no environment
    home = str(place.folder / "server")  # of the embedded server, unless DATABASE_URL names another
    env = {**os.environ, "AGENTFLOW_HOME": home, "AGENTFLOW_SCHEMA": place.laboratory("start").schema}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    took: dict[tuple[str, str], list[float]] = {(what, python): [] for python in pythons for what in (DRIVER, *MOST)}
    for number in range(rounds + 1):
        for what, python in took if number % 2 else reversed(took):
            program, *words = what.split(" ", 1) if what.startswith("agentflow") else (python, "-c", what)
            command = [str(Path(python).parent / program), *words]
            began = time.perf_counter()
            subprocess.run(command, env=env, cwd=place.folder, stdout=subprocess.DEVNULL, check=True)
            if number:
                took[what, python].append(time.perf_counter() - began)
    medians = {one: statistics.median(times) for one, times in took.items()}
    return {what: [medians[what, python] / medians[DRIVER, python] for python in pythons] for what in MOST}


def main(pythons: Sequence[str]) -> None:
    """Prints the ratios, with the interpreters as columns."""
    place = Place()
    try:
        print(f"{os.getloadavg()[0]:.1f} processes were running or waiting before, on: {place.facts()}.")
        for what, ratios in starts(place, pythons or [sys.executable]).items():
            print(f"| `{what}` | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} | at most {MOST[what]:g} |")
    finally:
        place.close()


if __name__ == "__main__":
    main(sys.argv[1:])
