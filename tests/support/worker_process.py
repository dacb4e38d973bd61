"""A worker in a separate process, for tests that stop, kill or mislead it: `start_worker(engine, ...)`.

Its workflows work on files in the folder that is their input: a step says that it has begun, and waits for `open`.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from agentflow import Database, Engine
from tests.support.helpers import eventually
from tests.support.programs import Program, started


def gated(run: Any, folder: str) -> Any:
    """One step that waits for its gate, one that says who it was, and one action."""
    here = Path(folder)

    def wait() -> str:
        (here / f"began-{os.getpid()}").touch()
        eventually(lambda: (here / "open").exists(), 100)
        return "through"

    run.step("gate", wait)
    run.step("who", os.getpid)
    return run.side_effect("pay", key="pay")


def hog(run: Any, how_long: int) -> Any:
    """One step that keeps the interpreter's lock inside a single C call (in the test's own process a short one)."""
    here = os.getpid()
    run.step("hog", lambda: [here, sum(range(how_long if __name__ == "__main__" else 10))])
    return run.side_effect("pay", key="pay")


def plain(run: Any, request: Any) -> Any:
    """Two steps and an action."""
    run.step("one", lambda: 1)
    run.step("two", lambda: 2)
    return run.side_effect("pay", key="pay")


JOBS = {"gated": gated, "hog": hog, "plain": plain}


def shift_clock(seconds: float) -> None:
    """Every clock that Python offers in this process is wrong by so much."""
    for name in ("time", "monotonic"):
        real = getattr(time, name)
        setattr(time, name, lambda real=real: real() + seconds)
        in_ns = getattr(time, f"{name}_ns")
        setattr(time, f"{name}_ns", lambda real=in_ns: real() + int(seconds * 1e9))

    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> Shifted:
            return cls.fromtimestamp(time.time(), tz)

    datetime.datetime = Shifted  # type: ignore[misc]


def start_worker(engine: Engine, identity: str, **told: Any) -> Program:
    """A worker process works on the engine's schema; as a context, it is killed at the end if it has not ended."""
    told = {"lease": 600, "poll": 0.1, "clock": 0, "names": sorted(JOBS), **told}
    where = engine.database.url.render_as_string(hide_password=False)
    return started([where, engine.database.schema, identity, json.dumps(told)], module="tests.support.worker_process")


def main() -> None:
    """Work until SIGTERM."""
    url, schema, identity, told = sys.argv[1:]
    options = json.loads(told)
    if options["clock"]:
        shift_clock(options["clock"])
    engine = Engine(Database(url, schema, patience=20), workflows={name: JOBS[name] for name in options["names"]})
    worker = engine.worker(identity, lease_seconds=options["lease"], poll_seconds=options["poll"])
    worker.stop_on_signals()
    worker.run_forever()


if __name__ == "__main__":
    main()
