"""Measures the recoveries of data/recoveries.csv: `python -m tests.bench.recoveries data/recoveries.csv`.

For each lease a soak of its own with two worker processes, which really die by SIGKILL, at the same seeded boundaries.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentflow.lab.crashes.soak import soak
from agentflow.lab.laboratory.laboratory import fresh_laboratory, support_requests
from agentflow.lab.plots.frames import recoveries_frame

if TYPE_CHECKING:
    import pandas

LEASES = (0.5, 1.0, 2.0, 3.0, 5.0)
RECOVERIES = 20


def measure(leases: Sequence[float] = LEASES, recoveries: int = RECOVERIES, *, seed: int = 7) -> pandas.DataFrame:
    """The recoveries of each lease, one row each, with the machine's load (a minute's mean) and its processors.

    Who dies where is the same for each lease. Raises SoakError.
    """
    import pandas

    engine, found = fresh_laboratory("measured_recoveries"), []
    requests = support_requests()[: 2 * recoveries]
    try:
        for lease in leases:
            soak(engine, requests, workers=2, kills=recoveries + 4, seed=seed, lease_seconds=lease)
            frame = recoveries_frame(engine, poll_seconds=lease / 4).head(recoveries)
            found.append(frame.assign(load=round(os.getloadavg()[0], 1), processors=os.cpu_count()))
            print(f"lease {lease:g} s: {len(frame)} recoveries", flush=True)
    finally:
        engine.close()
    return pandas.concat(found).drop(columns=["workflow", "worker", "token"])


if __name__ == "__main__":
    measure().round(2).to_csv(Path(sys.argv[1]), index=False, lineterminator="\n")
