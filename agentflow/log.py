"""Every history entry is also one structured JSON log line, with the tutorial's event names where it has them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

logger = logging.getLogger("agentflow")


def log_event(event: str, **fields: Any) -> None:
    """Logs one JSON object on the `agentflow` logger at level INFO; nothing is built when nobody listens."""
    if logger.isEnabledFor(logging.INFO):
        told = {name: value for name, value in fields.items() if value is not None}
        logger.info(json.dumps({"event": event, **told}, default=str, sort_keys=True))


def log_entries(rows: Sequence[Mapping[str, Any]], boundary: Any) -> None:
    """Logs each entry of the history that a transaction's rows tell of; the boundary is the one that was passed."""
    for row in rows if logger.isEnabledFor(logging.INFO) else ():
        if "outcome" in row and row.get("event") and row.get("inserted", True):
            log_event(
                row["event"],
                workflow_id=row["id"],
                n=row["n"],
                transaction=boundary.transaction,
                subject=row.get("subject", boundary.subject),
                worker_id=boundary.worker,
                fence_token=boundary.token if row["outcome"] == "refused" else row.get("fence_token", boundary.token),
                recovered=row["held_by"] is not None if "held_by" in row else None,
                guards=row.get("guards") or None,
            )
