"""08: charge, then ship; refund if shipping is refused."""

from __future__ import annotations

from typing import Any

from agentflow import StepFailed


def order(run: Any, item: str) -> Any:
    """What the last action answered: the shipping, or the refund."""
    run.side_effect("charge", key="charge", arguments=item)
    try:
        return run.side_effect("ship", key="ship", arguments=item)
    except StepFailed:
        return run.side_effect("refund", key="refund", arguments=item)
