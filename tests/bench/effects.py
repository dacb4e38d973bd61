"""How the explorer grows with the workflow: `python -m tests.bench.effects 1 2 3 6` explores so many side effects in a row.

Each number of side effects is explored in a process of its own, so that its peak of memory is its own. With `--whole` the states
that an exchange of workers makes are searched, too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
from typing import Any

from agentflow import Engine
from agentflow.engine import find_database
from agentflow.lab.explorer.explore import explore
from agentflow.server import default_home, ensure_running

HEAD = "| side effects | states | schedules | seconds | CPU seconds | seconds per 1,000 states | peak MB |"


def charging(times: int) -> Any:
    """A workflow that has so many side effects, one after the other."""

    def shop(run: Any, order: Any) -> str:
        for number in range(times):
            run.side_effect("charge", f"charge-{number}", arguments={"number": number})
        return "done"

    return shop


def measured(times: int, whole: bool) -> None:
    """Prints one row of the table: what the search took, in its own process and that of its caller."""
    found = explore(
        Engine(find_database(), workflows={"shop": charging(times)}), workflow="shop", reduce=not whole, time_limit=3600
    )
    assert found.ok, found
    used = [resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
    cpu, peak = sum(one.ru_utime + one.ru_stime for one in used), max(one.ru_maxrss for one in used) // 1024
    each = found.seconds / found.states * 1000
    print(
        f"| {times} | {found.states:,} | {found.schedules:,} | {found.seconds:.1f} | {cpu:.1f} | {each:.2f} | {peak} |",
        flush=True,
    )


def main() -> None:
    """Explores each number of side effects that is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("times", type=int, nargs="+")
    parser.add_argument("--whole", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("DATABASE_URL", ensure_running(default_home()).url())
    print(HEAD + "\n" + "|--:" * 7 + "|")
    for times in given.times:
        alone = multiprocessing.get_context("spawn").Process(target=measured, args=(times, given.whole))
        alone.start()
        alone.join()


if __name__ == "__main__":
    main()
