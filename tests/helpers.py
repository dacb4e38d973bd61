"""What several tests need, in one place."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first true value of the condition. Raises AssertionError when it was false for `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {getattr(condition, '__name__', condition)}"
        time.sleep(0.02)
    return found
