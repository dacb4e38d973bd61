"""Reliability evidence: figures from rows alone, after every process has died.

A duplicate is a second effect for one planned action: effects are counted for each workflow and action against the
actions planned for it, so that a newly made key does not hide one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .database import Database

SEMANTICS = "at-least-once execution, exactly-once business effect per idempotency key"
REPORT = Path("artifacts/reliability-report.json")


def reliability_metrics(database: Database) -> dict[str, Any]:
    """The reliability figures of a schema: rates from 0 to 1, counts, and the mean recovery latency in ms (or None).

    Recovery latency is from the first take-over to completion, as in the tutorial.
    """
    row = dict(database.read("metrics", {})[0])
    total, completed = row["workflows_total"], row["workflows_completed"]
    rate = completed / total if total else 0.0
    return {"workflow_completion_rate": rate, **row, "semantics": promise(row["duplicate_business_effects"])}


def promise(doubled: int, lost: int = 0) -> str:
    """What is promised, or how it was broken: by so many business effects too many, and lost."""
    counts = ((doubled, "too many"), (lost, "lost"))
    broken = [f"{number} business effect{'s' * (number > 1)} {how}" for number, how in counts if number]
    return f"broken: {', '.join(broken)}" if broken else SEMANTICS


def recoveries(database: Database) -> list[dict[str, Any]]:
    """Each take-over in order, with its span in ms split into detect, claim, replay and re-execute (None: not known).

    detect: from the crash, where the laboratory recorded it, to the claim that took over; claim: that statement; replay:
    the function on recorded results; re_execute: from there to completion. `span_ms` is the whole, from the crash.
    """
    rows = database.read("recoveries", {})
    for row in rows:
        after_ms, replay_ms = _ms(row["claimed_at"], row["completed_at"]), row["replay_ms"]
        row |= {
            "detect_ms": _ms(row["crashed_at"], row["asked_at"]),
            "claim_ms": _ms(row["asked_at"], row["claimed_at"]),
            "re_execute_ms": after_ms - replay_ms if after_ms is not None and replay_ms is not None else None,
            "recovery_ms": after_ms,
            "span_ms": _ms(row["crashed_at"], row["completed_at"]),
        }
    return rows


def write_reliability_report(database: Database, path: Path = REPORT) -> dict[str, Any]:
    """Writes the figures to the file as indented JSON, and returns them."""
    report = reliability_metrics(database)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return report


def _ms(start: Any, end: Any) -> float | None:
    return None if start is None or end is None else round(float((end - start).total_seconds() * 1000), 3)
