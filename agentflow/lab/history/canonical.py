"""A history as it is on every machine: lanes instead of identities, counted effects, seconds instead of dates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from .entries import worker_name

CanonicalEntry = dict[str, Any]
MEMBERS = ("workflow_id", "n", "at", "event", "transaction", "subject", "worker", "fence_token", "detail")
MEASURED = frozenset({"at", "asked_at", "replay_ms", "signal"})
"""What a clock measured, and whether a worker was a process: it is kept, but not compared."""


def canonical(history: Iterable[Mapping[str, Any]]) -> list[CanonicalEntry]:
    """The entries as they are on every machine, except for MEASURED: times become seconds since the first entry.

    Worker identities become the names of their lanes: `A` for the first that appears, `A.2` for the second, so that
    `worker_name()` still gives `A`. Each workflow's effects are counted from 1. Canonical entries stay as they are.
    """
    entries = list(history)
    in_time = sorted(entries, key=lambda entry: entry["at"])
    first = in_time[0]["at"] if entries else None
    workers, effects = _lane_names(in_time), _effect_numbers(in_time)
    return [_canonical_entry(entry, first, workers, effects) for entry in entries]


def _lane_names(in_time: list[Mapping[str, Any]]) -> dict[str, str]:
    names: dict[str, str] = {}
    starts: Counter[str] = Counter()
    for entry in in_time:
        identity = entry["worker"]
        if identity and identity not in names:
            lane = worker_name(identity)
            starts[lane] += 1
            names[identity] = lane if starts[lane] == 1 else f"{lane}.{starts[lane]}"
    return names


def _effect_numbers(in_time: list[Mapping[str, Any]]) -> dict[Any, int]:
    numbers: dict[Any, int] = {}
    effects: Counter[str] = Counter()
    for entry in in_time:
        effect = (entry["workflow_id"], (entry["detail"] or {}).get("effect_id"))
        if effect[1] is not None and effect not in numbers:
            effects[effect[0]] += 1
            numbers[effect] = effects[effect[0]]
    return numbers


def _canonical_entry(
    entry: Mapping[str, Any], first: Any, workers: Mapping[str, str], effects: Mapping[Any, int]
) -> CanonicalEntry:
    detail = dict(entry["detail"]) if entry["detail"] is not None else None
    for name in ("held_by", "row_owner"):
        if detail and detail.get(name):
            detail[name] = workers.get(detail[name], worker_name(detail[name]))
    if detail and detail.get("effect_id") is not None:
        detail["effect_id"] = effects[entry["workflow_id"], detail["effect_id"]]
    if detail and isinstance(detail.get("asked_at"), str):
        detail["asked_at"] = _since(first, datetime.fromisoformat(detail["asked_at"]))
    worker = workers[entry["worker"]] if entry["worker"] else None
    kept = {name: entry[name] for name in MEMBERS}
    return {**kept, "at": _since(first, entry["at"]), "worker": worker, "detail": detail}


def _since(first: Any, at: Any) -> float:
    """Seconds since the first entry; a number is taken to be that already."""
    return round((at - first).total_seconds(), 6) if isinstance(at, datetime) else float(at)


def agreed(entry: CanonicalEntry | None) -> CanonicalEntry | None:
    """The entry without what a clock measured, which leaves what must be the same on every machine."""
    if entry is None:
        return None
    detail = {name: value for name, value in (entry["detail"] or {}).items() if name not in MEASURED} or None
    return {**{name: value for name, value in entry.items() if name not in MEASURED}, "detail": detail}
