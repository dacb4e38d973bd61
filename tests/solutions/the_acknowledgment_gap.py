"""04: an idempotency key that survives a retry."""

from __future__ import annotations


def key_for(workflow_id: str, action: str) -> str:
    """Both parts, and nothing that another process could not know."""
    return f"{workflow_id}:{action}"
