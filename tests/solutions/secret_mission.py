"""10: the shortest line for the engine that is drawn in the notebook, the one whose claim reads before it writes."""

from __future__ import annotations


def break_it() -> str:
    """No fault is needed: A and B read the same row, both claim it, and both write down the same step."""
    return "A B A*2 B*3"
