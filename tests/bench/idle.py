"""Whether the machine is idle enough to judge a throughput: looked at in pauses, while the benchmark does nothing."""

from __future__ import annotations

import time

import psutil

LIMIT = 0.1
"""The share of the processors' time that others may use."""


class Idle:
    """How busy others kept the processors in the pauses, and how much a host took from a virtual machine since this began."""

    def __init__(self) -> None:
        self._busy = self._all = 0.0
        self._began = _spent()

    def pause(self, seconds: float = 0.25) -> None:
        """Nothing of ours ran for so long, and what did run is noted."""
        before = _spent()
        time.sleep(seconds)
        busy, total, _ = (now - then for now, then in zip(_spent(), before, strict=True))
        self._busy, self._all = self._busy + busy, self._all + total

    def unjudged(self) -> str:
        """Why a throughput cannot be judged; empty on an idle machine. One that cannot be looked at is not called idle."""
        _, total, stolen = (now - then for now, then in zip(_spent(), self._began, strict=True))
        if self._all <= 0 or total <= 0:
            return "this system does not say how busy it is"
        busy = max(self._busy / self._all, stolen / total)
        return f"the machine was busy, {busy:.0%}" if busy > LIMIT else ""


def _spent() -> tuple[float, float, float]:
    """Seconds of all processors since the machine started: busy, in all, and stolen by the host, as far as it says so."""
    times = psutil.cpu_times()._asdict()
    total = sum(seconds for name, seconds in times.items() if not name.startswith("guest"))  # these are in user as well
    stolen = times.get("steal", 0.0)
    return total - times["idle"] - times.get("iowait", 0.0), total, stolen
