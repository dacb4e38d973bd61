"""The one place where tests wait: for a condition, for a bounded time. No test sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], seconds: float = 20.0) -> T:
    """The condition's first true value; AssertionError if it has none within `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not reached within {seconds:g} s"
        time.sleep(0.005)
    return value
