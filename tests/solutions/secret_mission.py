"""10: the shortest line for the engine that is drawn in the notebook, the one without idempotency keys."""

from __future__ import annotations


def break_it() -> str:
    """No crash is needed: A is slow, B calls the tool a second time."""
    return "A*5 expire B*2"
