"""01: a ticket number that survives a crash."""

from __future__ import annotations

import random
from typing import Any


def help_desk(run: Any, request: str) -> int:
    """The ticket number is made up in a step, so a replay sends and returns the first one."""
    ticket: int = run.step("ticket", lambda: random.randrange(10**9))
    run.side_effect("send-ticket", key="send-ticket", arguments=ticket)
    return ticket
