"""09: settings for three scenarios."""

from __future__ import annotations

from agentflow import Policy


def settings() -> dict[str, Policy]:
    """A Policy for each scenario."""
    return {
        "chat": Policy(lease_seconds=10),
        "video": Policy(lease_seconds=1200),
        "rates": Policy(max_attempts=13, first_delay=1, max_delay=3600),
    }
