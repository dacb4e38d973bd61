"""The judge's own idea of a workflow's life: a machine that takes one entry of the history after the other.

It says which entries may come when and what each leaves behind. A refused write leaves nothing. Nothing of AgentFlow is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PROGRESS = {"checkpoint_committed": "step", "action_acknowledged": "side_effect", "event_received": "wait"}
ENDS = {"workflow_completed": "completed", "workflow_failed": "failed", "workflow_cancelled": "cancelled"}
REFUSALS = {"write_refused", "event_refused", "event_repeated"}
BY_HOLDER = {
    *PROGRESS, "action_intent_committed", "workflow_waiting", "attempt_failed", "lease_renewed", "lease_released",
    "workflow_completed",
}  # fmt: skip
LETS_GO = {"workflow_waiting", "attempt_failed", "lease_released", *ENDS}


@dataclass
class Machine:
    """What the entries so far leave behind."""

    status: str = ""
    token: int = 0
    holder: str | None = None
    waits_for: str | None = None
    progress: list[tuple[str, str, str, int]] = field(default_factory=list)
    plans: dict[str, tuple[str, int]] = field(default_factory=dict)
    events: set[str] = field(default_factory=set)
    claims: set[tuple[str, int]] = field(default_factory=set)

    def take(self, entry: Mapping[str, Any]) -> str | None:
        """Takes the entry. Returns why it cannot have happened, or None."""
        event, who = entry["event"], (entry["worker"], entry["fence_token"])
        if (event == "workflow_created") != (self.status == ""):
            return f"{event} is no beginning" if self.status == "" else "it is created a second time"
        if event in REFUSALS:
            return self._refusal(entry)
        if self.status in ENDS.values():
            return f"{event} after the end"
        if event == "workflow_claimed" or entry["transaction"] == "claim":
            return self._claim(entry)
        if (event in BY_HOLDER or entry["transaction"] == "fail") and who != (self.holder, self.token):
            return f"{event} by {who}, and {(self.holder, self.token)} holds it"
        return self._write(entry)

    def _refusal(self, entry: Mapping[str, Any]) -> str | None:
        who = entry["worker"], entry["fence_token"]
        if entry["event"] == "write_refused" and entry["worker"] and who not in self.claims:
            return f"{entry['transaction']} by {who} was refused, who never held it"
        is_new = entry["event"] == "event_repeated" and entry["subject"] not in self.events
        return f"{entry['subject']} was repeated, which never came" if is_new else None

    def _claim(self, entry: Mapping[str, Any]) -> str | None:
        self.token += 1
        told = entry["detail"]
        if self.status != "ready" or entry["fence_token"] != self.token:
            return f"a claim with token {entry['fence_token']} of what is {self.status} with token {self.token - 1}"
        if told["held_by"] != self.holder or told["recovered"] != (self.holder is not None):
            return f"a claim from {told['held_by']}, and {self.holder} held it"
        if entry["event"] == "workflow_claimed":
            self.holder = entry["worker"]
            self.claims.add((entry["worker"], self.token))
        else:
            self.status, self.holder = "failed", None
        return None

    def _write(self, entry: Mapping[str, Any]) -> str | None:
        event, subject, who = entry["event"], entry["subject"], (entry["worker"], entry["fence_token"])
        if event in PROGRESS:
            needs = {"action_acknowledged": self.plans, "event_received": self.events}.get(event, {subject})
            if subject not in needs or (PROGRESS[event], subject) in {one[:2] for one in self.progress}:
                return f"{event} {subject} has no cause, or stands already"
            self.progress.append((PROGRESS[event], subject, *who))
        elif event == "action_intent_committed":
            self.plans.setdefault(subject, who)
        elif event == "event_delivered":
            if subject in self.events:
                return f"{subject} came twice"
            self.events.add(subject)
            if self.waits_for == subject:
                self.status, self.waits_for = "ready", None
        elif event == "workflow_created":
            self.status = "ready"
        elif event not in BY_HOLDER | set(ENDS):
            return f"{event} is not known"
        if event == "workflow_waiting":
            self.status, self.waits_for = "waiting", subject
        if event in LETS_GO:
            self.holder = None
        if event in ENDS:
            self.status, self.waits_for = ENDS[event], None
        return None
