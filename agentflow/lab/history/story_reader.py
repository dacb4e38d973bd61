"""Reads a history: each entry once, in order, keeping track of who holds the lease, who lives, and what is unanswered.

It follows lanes and fencing tokens, never identities or clocks, so a capsule has the same picture as the run. Read the
model (`story`) first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...statements import TRANSACTIONS
from .belief import Judged
from .entries import ENTRY_KINDS, LOSSES, Entry, Row, callers, own_after, read_entries
from .faults import FAULTS, fault_of
from .story import Band, Mark, Position, ProcessRun, Span, Story, box_of, refusal

Found = dict[str, Any]
_RELEASES = {(name, event) for name, one in TRANSACTIONS.items() for event in one.releases}


def read_story(rows: Sequence[Row] | Story) -> Story:
    """The story that the entries tell; a story is returned as it is."""
    if isinstance(rows, Story):
        return rows
    reader = _Reader(read_entries(rows))
    reader.read()
    return reader.finished()


@dataclass
class _Action(Judged):
    """One planned action as far as it went."""

    key: str
    acknowledged: int | None = None
    lost: bool = False  # the worker that acknowledged it was lost before it did anything else
    status: str | None = "PENDING"
    unseen: bool = False
    effects: tuple[int, ...] = ()
    keys: tuple[str | None, ...] = ()
    opened: int | None = None  # where an effect began to exist of which the engine does not know
    caller: str | None = None
    unanswered: bool = False  # the engine cannot learn from that caller any more what came of the call

    @property
    def gap_is_open(self) -> bool:
        """Whether an effect exists, not acknowledged so far, and its caller can no longer tell of it."""
        return self.opened is not None and self.unanswered


class _Reader:
    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries, self.callers = entries, callers(entries)
        self.marks: list[Mark] = []
        self.bands: list[Band] = []
        self.runs: list[ProcessRun] = []
        self.sleeps: list[Span] = []
        self.waits: list[Span] = []
        self.gaps: list[Span] = []
        self.tokens: list[tuple[Position, int]] = []
        self.actions: dict[str, _Action] = {}
        self.effects: dict[Any, int] = {}
        self.recorded: dict[str, None] = {}
        self.held: dict[str, int] = {}  # the band of each worker's last claim
        self.outliving: dict[str, int] = {}  # the band that a living worker has outlived
        self.running: dict[str, int] = {}
        self.asleep: dict[str, int] = {}
        self.holder: str | None = None
        self.waiting: int | None = None
        self.row_token = 0
        self.completed: int | None = None
        self.handlers: dict[str, Callable[[int, Entry], Found | None]] = {
            "create": self._create, "claim": self._claim, "checkpoint": self._checkpoint, "intent": self._intent,
            "tool": self._tool, "acknowledge": self._acknowledge, "complete": self._complete, "wait": self._wait,
            "receive": self._receive, "deliver": self._deliver, "fail": self._fail, "cancel": self._cancel,
             "requeue": self._requeue, "expire": self._expire, "refused": self._refused,
        }  # fmt: skip
        fates = {"lost": self._kill, "asleep": self._pause, "awake": self._resume}
        self.handlers |= {name: fates[fault.worker] for name, fault in FAULTS.items() if fault.worker}
        self.handlers |= {
            name: self._call_lost for name, fault in FAULTS.items() if fault.loses in ("request", "reply")
        }

    @property
    def here(self) -> int:
        """The column that is being read."""
        return len(self.marks)

    def read(self) -> None:
        for index, entry in enumerate(self.entries):
            kind = ENTRY_KINDS.get(entry.event, "other")
            handler = self.handlers.get(kind)
            found = (handler(index, entry) if handler else None) or {}
            if (entry.transaction, entry.event) in _RELEASES:
                self._lets_go(self.holder or entry.who, self.here, "released")
            ends = kind == "fail" or fault_of(entry.event).worker in {"lost", "asleep"}
            if entry.who and not ends and entry.who not in self.asleep:
                self._runs(entry.who)
            about = {"who": entry.who, "subject": entry.subject, "token": entry.token, **found}
            self.marks.append(
                Mark(str(entry.n), kind, entry.event, at=entry.at, transaction=entry.transaction, detail=entry.detail,
                     row_token=self.row_token, n=entry.n, **about)
            )  # fmt: skip
            if kind == "claim":
                self._replays(index, entry)
            if kind == "refused" and entry.who:
                self._stops(index, entry)

    # -- who holds the lease, and who lives ----------------------------------------------------------------------------

    def _create(self, index: int, entry: Entry) -> None:
        self.tokens.append((self.here, 0))

    def _claim(self, index: int, entry: Entry) -> None:
        who, token = entry.who or "nobody", entry.token or self.row_token + 1
        self._lets_go(self.holder, self.here - 0.5, "expired")
        self._outlived(who, self.here)
        self._wakes(who)  # who sleeps and claims is another process of the same name
        self._rises(token)
        self.holder, self.held[who] = who, len(self.bands)
        self.bands.append(Band(who, token, self.here, seconds=entry.detail.get("lease_seconds")))

    def _rises(self, token: int) -> None:
        self.row_token = token
        self.tokens.append((self.here, token))

    def _lets_go(self, who: str | None, where: Position, how: str) -> None:
        """Ends the lease of this worker here; if the worker lives on, it does so without authority.

        No entry says that a lease has ended by itself: the next claim of another worker shows it, so its end is put half
        a column before that claim.
        """
        band = self.held.get(who or "")
        if who is None or band is None or self.bands[band].end is not None:
            return
        self.bands[band] = replace(self.bands[band], end=where, how=how)
        if how == "expired" and (who in self.running or who in self.asleep):
            self.outliving[who] = band
        if who == self.holder:
            self.holder = None
        self._unsure(who)

    def _outlived(self, who: str, where: Position) -> None:
        if (band := self.outliving.pop(who, None)) is not None:
            self.bands[band] = replace(self.bands[band], hollow=where)

    def _runs(self, who: str, resumed: bool = False) -> None:
        if who not in self.running:
            self.running[who] = len(self.runs)
            self.runs.append(ProcessRun(who, self.here, resumed=resumed))

    def _ends(self, who: str, how: str) -> None:
        if (run := self.running.pop(who, None)) is not None:
            self.runs[run] = replace(self.runs[run], end=self.here, how=how)

    def _wakes(self, who: str) -> None:
        if (slept := self.asleep.pop(who, None)) is not None:
            self.sleeps.append(Span(slept, self.here, True, who))

    def _expire(self, index: int, entry: Entry) -> Found:
        who = self.holder
        self._lets_go(who, self.here, "expired")
        return {"who": who}

    def _kill(self, index: int, entry: Entry) -> Found:
        who = entry.who or "nobody"
        self._unsure(who)
        self._ends(who, "killed")
        self._wakes(who)
        self._outlived(who, self.here)
        return {"in_gap": any(one.caller == who and one.gap_is_open for one in self.actions.values())}

    def _pause(self, index: int, entry: Entry) -> None:
        self._ends(entry.who or "nobody", "paused")
        self.asleep[entry.who or "nobody"] = self.here

    def _resume(self, index: int, entry: Entry) -> Found:
        who = entry.who or "nobody"
        self._wakes(who)
        self._runs(who, resumed=True)
        return {"why": "without authority" if who in self.outliving else ""}

    def _complete(self, index: int, entry: Entry) -> None:
        self.completed = self.here

    def _fail(self, index: int, entry: Entry) -> None:
        if entry.transaction == "claim":
            self._lets_go(self.holder, self.here - 0.5, "expired")
            self._rises(entry.token or self.row_token + 1)

    def _refused(self, index: int, entry: Entry) -> Found:
        return {"why": refusal(entry)}

    def _stops(self, index: int, entry: Entry) -> None:
        """Adds a column after a worker's last refusal: there it gives the workflow up, which leaves no entry."""
        who = str(entry.who)
        if any(later.event in {"write_refused", *LOSSES} for later in own_after(self.entries, index, who)):
            return
        self._ends(who, "stopped")
        self._outlived(who, self.here)
        self.marks.append(
            Mark(f"{entry.n}a", "stop", who=who, token=entry.token, row_token=self.row_token, at=entry.at, n=entry.n)
        )

    # -- what is recorded, and what is replayed ------------------------------------------------------------------------

    def _checkpoint(self, index: int, entry: Entry) -> None:
        self.recorded[entry.subject] = None

    def _requeue(self, index: int, entry: Entry) -> None:
        """Forgets the recorded failure that ended the workflow: the one whose step is recorded a second time."""
        recorded = {"checkpoint_committed", "action_acknowledged"}
        later = {one.subject for one in self.entries[index:] if one.event in recorded}
        self.recorded = {name: None for name in self.recorded if name not in later}

    def _replays(self, index: int, entry: Entry) -> None:
        """Adds a column for each step that this claim replays, which leaves no entries.

        The claim's next write tells how many there were. If nothing was written, all checkpoints are replayed, except if
        the worker was lost before it loaded them, or failed the workflow without telling where.
        """
        own = list(own_after(self.entries, index, entry.who))
        told = [one.detail["replayed"] for one in own if "replayed" in one.detail]
        written = [one.transaction for one in own if one.transaction != "fault"]
        unheard = bool(own) and fault_of(own[0].event).loses == "answer"  # it does not know of this claim
        nothing = unheard or (bool(own) and not written and own[0].subject in {"after claim", "before load"})
        failed = written[:1] == ["fail"]  # nobody wrote where
        count = told[0] if told else 0 if nothing or failed else len(self.recorded)
        for number, name in enumerate(list(self.recorded)[:count], 1):
            about = (entry.who, name, entry.token, self.row_token, entry.at)
            self.marks.append(Mark(f"{entry.n}{_letters(number)}", "replay", "", *about, n=entry.n))

    # -- waits ---------------------------------------------------------------------------------------------------------

    def _wait(self, index: int, entry: Entry) -> None:
        self.waiting = self.here

    def _receive(self, index: int, entry: Entry) -> None:
        self.recorded[entry.subject] = None
        if all(wait.what != entry.subject for wait in self.waits):
            self.waits.append(Span(self.here, self.here, True, entry.subject))

    def _deliver(self, index: int, entry: Entry) -> None:
        waits_for = self.marks[self.waiting].subject if self.waiting is not None else None
        if entry.event == "event_delivered" and waits_for == entry.subject:
            self._waited(entry.subject)

    def _waited(self, winner: str, closed: bool = True) -> None:
        if self.waiting is not None:
            self.waits.append(Span(self.waiting, self.here if closed else self.here - 0.5, closed, winner))
            self.waiting = None

    def _cancel(self, index: int, entry: Entry) -> None:
        self._waited("cancelled")
        who = self.holder
        self._lets_go(who, self.here, "released")
        if who in self.running or who in self.asleep:
            self.outliving[str(who)] = self.held[str(who)]

    # -- actions and the world -----------------------------------------------------------------------------------------

    def _intent(self, index: int, entry: Entry) -> None:
        action = self.actions.setdefault(entry.subject, _Action(entry.subject))
        action.unseen = "tool" in entry.detail and not entry.detail.get("told")

    def _tool(self, index: int, entry: Entry) -> Found:
        who, key = self.callers[index]
        action = self.actions.setdefault(key, _Action(key))
        detail, sent = entry.detail, entry.detail.get("idempotency_key")
        answer = "refused" if entry.event == "tool_refused" else str(detail.get("outcome", "effect"))
        found: Found = {"who": who, "answer": answer, "key": _said_of_key(action.keys, sent, answer)}
        found |= {"attempts": detail.get("attempts") or 0, **self._reply(index, who)}
        action.keys = (*action.keys, sent)
        if answer == "refused":
            action.status = "REFUSED"
        if answer == "effect":
            number = self.effects.setdefault(detail.get("effect_id", object()), len(self.effects) + 1)
            action.effects = (*action.effects, self.here)
            found |= {"effect": number, "nth": len(action.effects)}
            if action.opened is None and action.acknowledged is None:
                action.opened, action.caller, action.unanswered = self.here, who, who != self.holder
        else:
            found["effect"] = self.effects.get(detail.get("effect_id"), len(self.effects))
        return found

    def _reply(self, index: int, who: str | None) -> Found:
        """Whether the answer came; if not, the entry with which its worker was lost (its column is found at the end)."""
        mine = next(own_after(self.entries, index, who), None) if who else None
        if mine is not None and (mine.event in LOSSES or fault_of(mine.event).loses == "reply"):
            return {"reply": "lost", "reply_to": mine.n}
        return {"reply": "received"}

    def _call_lost(self, index: int, entry: Entry) -> Found:
        self._unsure(entry.who or "nobody")
        return {"in_gap": any(one.gap_is_open for one in self.actions.values())}

    def _unsure(self, who: str) -> None:
        """From here on the engine cannot know what this worker did in the world without acknowledging it."""
        for action in self.actions.values():
            if action.opened is not None and action.caller == who:
                action.unanswered = True

    def _acknowledge(self, index: int, entry: Entry) -> Found:
        self.recorded[entry.subject] = None
        action = self.actions.setdefault(entry.subject, _Action(entry.subject))
        closes = action.gap_is_open
        if closes:
            self.gaps.append(Span(float(action.opened or 0), self.here, True, action.key))
        action.opened, action.acknowledged = None, self.here
        action.status = "ACKNOWLEDGED" if action.status == "PENDING" else action.status
        mine = next(own_after(self.entries, index, entry.who), None)
        action.lost = mine is not None and mine.event in LOSSES
        return {"closes": closes}

    # -- the end -------------------------------------------------------------------------------------------------------

    def finished(self) -> Story:
        now = self.here - 0.5
        self._waited("", closed=False)
        for who in list(self.outliving):
            self._outlived(who, now)
        self.sleeps += [Span(start, now, False, who) for who, start in self.asleep.items()]
        for action in self.actions.values():
            if action.gap_is_open:
                self.gaps.append(Span(float(action.opened or 0), now, False, action.key))
        places = {mark.label: column for column, mark in enumerate(self.marks)}
        marks = [m if m.reply_to is None else replace(m, reply_to=places[str(m.reply_to)]) for m in self.marks]
        actions, done = self.actions.values(), self.completed
        doubled = [Span(one.effects[0], one.effects[-1], True, one.key) for one in actions if one.too_many]
        gone = [one for one in actions if one.lost and one.missing]
        lost = [Span(float(one.acknowledged or 0), done or now, done is not None, one.key) for one in gone]
        named = sorted({mark.who for mark in marks if mark.who})
        told = Story(
            tuple(marks), tuple(named), tuple(self.bands), tuple(self.runs), tuple(self.sleeps), tuple(self.waits),
            tuple(sorted(self.gaps, key=lambda gap: gap.start)), tuple(doubled), tuple(lost), tuple(self.tokens),
        )  # fmt: skip
        return replace(told, box=box_of(told))


def _letters(number: int) -> str:
    """1 is a, 26 is z, 27 is aa."""
    return (_letters((number - 1) // 26) if number > 26 else "") + chr(97 + (number - 1) % 26)


def _said_of_key(before: Sequence[str | None], key: str | None, answer: str) -> str:
    if key is None:
        return "no"
    if not before:
        return ""
    if key not in before:
        return "new"
    return "forgotten" if answer == "effect" else "same"
