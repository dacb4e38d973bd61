"""07: an engine that makes its key when it calls, so a successor calls under another one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agentflow import Engine


def break_quietly(self: Engine, claim: Any, intent: Any, tool: Any) -> Any:
    """The key carries the token, which the next worker does not share."""
    fresh = replace(intent, idempotency_key=f"{intent.idempotency_key}:{claim.fence_token}")
    return Engine.call_tool(self, claim, fresh, tool)
