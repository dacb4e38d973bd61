"""Who called the tool, and what became of the answer: the world's own entries name no worker, so later entries show it.

Nothing is guessed that a later entry could belie: while several workers stand before the call, all of them may have made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .entries import LOSSES, Entry
from .faults import fault_of
from .story import ShownAnswer

_ASIDE = {"lease_renewed", "claim_passed_over"}
"""What a worker's renewing connection, or its next claim, leaves: no answer shows in it."""


@dataclass
class _Call:
    """A call whose answer no entry has shown so far, and who may have made it."""

    column: int
    key: str
    workers: frozenset[str]


class Calls:
    """Keeps track of which workers stand before a call of the tool, and of the calls that are unanswered.

    Before a call stand the workers that planned an action, or found one planned when they claimed; and one that has
    acknowledged an action of which nobody has called. A call by nobody that stands there is the lease holder's.
    """

    def __init__(self) -> None:
        self.open: list[_Call] = []
        self.planned: dict[str, bool] = {}  # by key: whether it is still to be acknowledged
        self.before: dict[str, str] = {}  # by worker: the key of the call that it stands before
        self.last: dict[str, str] = {}  # by worker: the key that it dealt with last
        self.calling: dict[str, frozenset[str]] = {}  # by key: who may have called
        self.paused: set[str] = set()
        self.holder: str | None = None
        self.candidates: frozenset[str] = frozenset()
        self.key = ""

    def called(self, key: str) -> frozenset[str]:
        """Who may have called the tool for this action so far."""
        return self.calling.get(key, frozenset())

    def caller(self, entry: Entry) -> str | None:
        """Who made this call: one worker, `A or B`, or None; sets `candidates`, and the `key` of the action that it meant."""
        standing = frozenset(self.before) - self.paused
        self.candidates = standing or frozenset({self.holder} if self.holder else ())
        self.key = self._key(entry)
        return " or ".join(sorted(self.candidates)) or None

    def _key(self, entry: Entry) -> str:
        """The action whose idempotency key the call had; without one, what a caller was about to do, or did last."""
        told = str(entry.detail.get("idempotency_key") or "").rpartition(":")[2].replace("%3A", ":").replace("%25", "%")
        if told in self.planned:
            return told
        pending = [key for key, is_pending in self.planned.items() if is_pending]
        about = [self.before.get(who) or self.last.get(who) for who in sorted(self.candidates)]
        return next(filter(None, about), None) or (pending or [entry.subject])[-1]

    def shown_by(self, entry: Entry) -> tuple[ShownAnswer, ...]:
        """What this entry of a worker shows of the calls that are unanswered."""
        if not self.open or not entry.who or entry.event in _ASIDE or entry.transaction == "renew":
            return ()
        return tuple(found for call in list(self.open) for found in self._shown(call, entry, entry.who))

    def _shown(self, call: _Call, entry: Entry, who: str) -> list[ShownAnswer]:
        if who not in call.workers:
            return []
        unsure, fault = len(call.workers) > 1, fault_of(entry.event)
        before = bool(fault.worker) and entry.subject.startswith("before tool")
        if unsure and (before or fault.loses == "request"):
            call.workers -= {who}
            return self._found(call) if len(call.workers) == 1 else []
        proves = fault.worker or fault.loses == "reply" or entry.transaction in {"acknowledge", "postpone", "complete"}
        if unsure and not proves:
            return []  # a plan, a checkpoint or a wait may also be written by a worker that has not called
        call.workers = frozenset({who})
        shown = self._found(call) if unsure else []
        if fault.worker in {"asleep", "awake"}:
            return shown
        self.open.remove(call)
        if entry.event == "workflow_claimed":
            return []
        failed = entry.transaction == "postpone" and entry.subject == call.key
        how = "died" if entry.event in LOSSES else "lost" if failed or fault.loses == "reply" else "received"
        return [ShownAnswer(call.column, who, how, unsure)]

    def _found(self, call: _Call) -> list[ShownAnswer]:
        (who,) = call.workers
        self.last[who] = self.before.pop(who, call.key)
        return [ShownAnswer(call.column, who, asked=True)]

    def saw(self, entry: Entry, column: int) -> None:
        """An entry that was read, in its column."""
        who, fate = entry.who, fault_of(entry.event).worker
        if entry.event in {"tool_attempt_committed", "tool_refused"}:
            self.open.append(_Call(column, self.key, self.candidates))
            self.calling[self.key] = self.called(self.key) | self.candidates
            if len(self.candidates) == 1:
                (only,) = self.candidates
                self.last[only] = self.before.pop(only, self.key)
        elif not who:
            return
        elif entry.event == "workflow_claimed":
            self.holder = who
            pending = [key for key, is_pending in self.planned.items() if is_pending]
            self._stands(who, pending[-1] if pending else None)
        elif entry.event in {"action_intent_committed", "action_acknowledged"}:
            self.planned[entry.subject] = entry.event == "action_intent_committed"
            self.last[who] = entry.subject
            self._stands(who, entry.subject if self.planned[entry.subject] or not self.called(entry.subject) else None)
        elif fate == "lost":
            self._stands(who, None)
            self.paused.discard(who)
            self.holder = None if self.holder == who else self.holder
        elif fate:
            (self.paused.add if fate == "asleep" else self.paused.discard)(who)

    def _stands(self, who: str, key: str | None) -> None:
        self.before.pop(who, None)
        if key is not None:
            self.before[who] = key


def said_of_key(before: Sequence[str | None], key: str | None, answer: str) -> str:
    """What a call's key was, beside those `before` of its action: same, no, new, forgotten, or empty for the first."""
    if key is None:
        return "no"
    if not before:
        return ""
    if key not in before:
        return "new"
    return "forgotten" if answer == "effect" else "same"
