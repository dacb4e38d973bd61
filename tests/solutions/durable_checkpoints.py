"""02: a worker is lost between two commits, and what it had recorded is used."""

from __future__ import annotations


def lose_a_worker() -> str:
    """A claims, commits classify and plan, and is killed; its lease ends and B finishes."""
    return "A*3 A! expire B*"
