"""The report of a soak: its figures, and a sentence for each way in which they can be wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

RELIABILITY = (
    "workflow_completion_rate", "workflows_total", "workflows_completed", "tool_execution_attempts", "business_effects",
    "duplicate_business_effects", "missing_business_effects", "unacknowledged_effects", "effects_not_observed",
    "recovery_latency_ms", "recovery_latency_p50_ms", "recovery_latency_p95_ms", "recovery_latency_max_ms",
    "ready_unknown_to_workers", "ready_due_later", "semantics",
)  # fmt: skip


@dataclass(frozen=True)
class SoakReport:
    """The result of a soak, read from the rows after every worker was gone. Times in ms unless named seconds.

    `evidence` is what reliability_metrics() finds wrong. `kills` are the planned ones that happened, as (index of the
    request, boundary); `processes_killed` counts the processes that the parent saw end by SIGKILL; `kills_in_flight` are
    random kills after which the victim's statement was still running. `repeated_calls` is the world's own count, or what tools of
    one's own tell (None: not observed); `recovery_ms` holds means over all take-overs. `events` are those delivered.
    """

    schema: str
    seed: int
    workers: int
    workflow_completion_rate: float
    workflows_total: int
    workflows_completed: int
    tool_execution_attempts: int | None
    business_effects: int | None
    duplicate_business_effects: int | None
    missing_business_effects: int | None
    unacknowledged_effects: int | None
    effects_not_observed: int
    recovery_latency_ms: float | None
    recovery_latency_p50_ms: float | None
    recovery_latency_p95_ms: float | None
    recovery_latency_max_ms: float | None
    ready_unknown_to_workers: int
    ready_due_later: int
    semantics: str
    evidence: tuple[str, ...]
    lost_workflows: int
    repeated_calls: int | None
    acknowledged_actions: int
    kills_planned: int
    kills_happened: int
    kills_in_gap: int
    random_kills_planned: int
    random_kills: int
    kills_in_flight: int
    processes_killed: int
    recoveries: int
    recovery_ms: dict[str, float | None]
    kills: tuple[tuple[int, str], ...] = field(repr=False)
    seconds: float = 0.0
    events: dict[str, Any] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """A sentence for each thing that is not as promised; empty if all is well."""
        return list(self._problems())

    def _problems(self) -> Iterator[str]:
        effects, doubled = self.business_effects, self.duplicate_business_effects
        attempts, repeated = self.tool_execution_attempts, self.repeated_calls
        done = self.acknowledged_actions
        if self.lost_workflows:
            yield f"{self.lost_workflows} of {self.workflows_total} workflows are not completed"
        yield from self.evidence
        if effects is not None and effects - (doubled or 0) - (self.unacknowledged_effects or 0) != done:
            yield f"{done} actions are acknowledged, and the world has {effects} effects"
        if repeated is not None and attempts is not None and attempts - (effects or 0) != repeated:
            log = f"the {repeated} repeated calls in the world's own log"
            yield f"{attempts} attempts minus {effects} effects do not equal {log}"
        if self.kills_happened < self.kills_planned:
            yield f"{self.kills_happened} of {self.kills_planned} planned kills happened"
        if self.random_kills != self.random_kills_planned:
            yield f"{self.random_kills} of {self.random_kills_planned} random kills happened"
        if self.processes_killed < self.kills_happened + self.random_kills:
            yield f"only {self.processes_killed} processes ended by SIGKILL"

    @property
    def ok(self) -> bool:
        """Whether nothing was lost, nothing was doubled, and every kill happened."""
        return not self.problems

    def told(self) -> dict[str, Any]:
        """The figures for people, a line each, with kills and the parts of a recovery in words."""
        plain, last = (*RELIABILITY, "lost_workflows", "repeated_calls"), ("workers", "seed", "seconds")
        return {
            **{name: getattr(self, name) for name in plain},
            "kills": self._kills_told(),
            **{name: getattr(self, name) for name in ("processes_killed", "recoveries")},
            **{f"recovery_{part}_ms": mean for part, mean in self.recovery_ms.items()},
            **({"events": json.dumps(self.events)} if self.events else {}),
            **{name: getattr(self, name) for name in last},
        }

    def _kills_told(self) -> str:
        if self.random_kills_planned:
            during = f"{self.kills_in_flight} while PostgreSQL carried out the worker's statement"
            return f"{self.random_kills} of {self.random_kills_planned} at random moments, {during}"
        return (
            f"{self.kills_happened} of {self.kills_planned} as planned, {self.kills_in_gap} in the acknowledgment gap"
        )

    def to_dict(self) -> dict[str, Any]:
        """The figures for a program, `ok` and `problems` included."""
        return {**asdict(self), "ok": self.ok, "problems": self.problems}
