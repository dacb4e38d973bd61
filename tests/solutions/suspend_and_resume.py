"""05: an answer that comes between the look and the parking."""

from __future__ import annotations


def lost_wakeup() -> str:
    """A has looked (its third transaction) and parks with its fourth."""
    return "A*3 event:approval A* B*"
