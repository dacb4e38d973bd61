"""03: the guard of every write."""

from __future__ import annotations


def guard() -> str:
    """The row, its owner, its token, and a lease that has not ended."""
    return """
        id = :id
        AND lease_owner = :worker
        AND fence_token = :token
        AND lease_expires_at > clock_timestamp()"""
