"""Every history entry is also one structured JSON log line, with the tutorial's event names where it has them."""

from __future__ import annotations

import json
import logging
from typing import Any

logger = logging.getLogger("agentflow")


def log_event(event: str, **fields: Any) -> None:
    """Logs one JSON object on the `agentflow` logger at level INFO; nothing is built when nobody listens."""
    if logger.isEnabledFor(logging.INFO):
        told = {name: value for name, value in fields.items() if value is not None}
        logger.info(json.dumps({"event": event, **told}, default=str, sort_keys=True))
