"""Reads a history: each entry once, in order, keeping track of who holds the lease, who lives, and what is unanswered.

An entry is read with what came before it alone, so that a longer history begins with the marks of a shorter one. The reader
follows lanes and fencing tokens, never identities or clocks, so a capsule has the same picture as the run. Read `story` first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...statements import GUARDED, TRANSACTIONS
from .belief import Judged
from .callers import Calls, said_of_key
from .entries import ENTRY_KINDS, Entry, Row, read_entries
from .faults import FAULTS, fault_of
from .story import Band, Mark, Position, ProcessRun, Span, Story, WorkflowRow, box_of, refusal
from .words import letters

Found = dict[str, Any]
_WRITES = {*GUARDED, "receive"}
_BEFORE_LOAD = {"after claim", "before load"}
_SHOW_NO_REPLAY = {"workflow_claimed", "lease_renewed", "claim_passed_over"}
_RELEASES = {(name, event) for name, one in TRANSACTIONS.items() for event in one.releases}


def read_story(rows: Sequence[Row] | Story) -> Story:
    """The story that the entries tell, of one workflow or of several; a story is returned as it is."""
    return rows if isinstance(rows, Story) else story_of(read_entries(rows))


def story_of(entries: Sequence[Entry]) -> Story:
    """The story of these entries, or of the first of them."""
    lanes, readers = _Lanes(), dict[str, _Reader]()
    for entry in entries:
        if entry.workflow not in readers:
            readers[entry.workflow] = _Reader(lanes, len(readers), entry.workflow)
        readers[entry.workflow].take(entry)
    return _finished(lanes, readers, tuple(entries))


@dataclass
class _Action(Judged):
    """One planned action as far as it went."""

    key: str
    acknowledged: int | None = None
    acknowledged_by: str | None = None  # until that worker does something else
    status: str | None = "PENDING"
    unseen: bool = False
    effects: tuple[int, ...] = ()
    keys: tuple[str | None, ...] = ()
    opened: int | None = None  # where an effect began to exist of which the engine does not know
    can_tell: frozenset[str] = frozenset()  # who may still tell the engine what came of the call
    lost: Span | None = None

    @property
    def gap_is_open(self) -> bool:
        """Whether an effect exists, not acknowledged so far, and its caller can no longer tell of it."""
        return self.opened is not None and not self.can_tell


@dataclass
class _Lanes:
    """What the workflows share: the columns, and the workers."""

    marks: list[Mark] = field(default_factory=list)
    runs: list[ProcessRun] = field(default_factory=list)
    sleeps: list[Span] = field(default_factory=list)
    running: dict[str, int] = field(default_factory=dict)
    asleep: dict[str, int] = field(default_factory=dict)


class _Reader:
    """Reads the entries of one workflow, which is the `row`-th."""

    def __init__(self, lanes: _Lanes, row: int, name: str) -> None:
        self.lanes, self.row, self.name = lanes, row, name if row else ""
        self.marks, self.running, self.asleep = lanes.marks, lanes.running, lanes.asleep
        self.calls = Calls()
        self.bands: list[Band] = []
        self.waits: list[Span] = []
        self.gaps: list[Span] = []
        self.tokens: list[tuple[Position, int]] = []
        self.actions: dict[str, _Action] = {}
        self.effects: dict[Any, int] = {}
        self.recorded: dict[str, None] = {}
        self.owed: dict[
            str, list[str]
        ] = {}  # what each worker's claim found recorded, until it is seen to have replayed it
        self.held: dict[str, int] = {}  # the band of each worker's last claim
        self.outliving: dict[str, int] = {}  # the band that a living worker has outlived
        self.holder: str | None = None
        self.waiting: int | None = None
        self.row_token = 0
        self.completed: int | None = None
        self.handlers: dict[str, Callable[[Entry], Found | None]] = {
            "create": self._create, "claim": self._claim, "checkpoint": self._checkpoint, "intent": self._intent,
            "tool": self._tool, "acknowledge": self._acknowledge, "complete": self._complete, "wait": self._wait,
            "receive": self._receive, "deliver": self._deliver, "fail": self._fail, "cancel": self._cancel,
            "expire": self._expire, "refused": self._refused, "renew": self._renew,
        }  # fmt: skip
        fates = {"lost": self._kill, "asleep": self._pause, "awake": self._resume}
        self.handlers |= {name: fates[fault.worker] for name, fault in FAULTS.items() if fault.worker}
        self.handlers |= {name: self._call_lost for name, one in FAULTS.items() if one.loses in ("request", "reply")}

    @property
    def here(self) -> int:
        """The column that is being read."""
        return len(self.marks)

    def take(self, entry: Entry) -> None:
        """Adds the entry's column, and before it those of the replays that it shows."""
        kind = ENTRY_KINDS.get(entry.event, "other")
        who = self.calls.caller(entry) if kind == "tool" else entry.who
        self._replays(entry, who)
        answers = self.calls.shown_by(entry)
        for one in answers:
            if one.asked:
                self._asked(one.call, one.who)
        found = self._breach(entry, kind)
        handler = self.handlers.get(kind)
        found |= (handler(entry) if handler else None) or {}
        if (entry.transaction, entry.event) in _RELEASES:
            self._lets_go(self.holder or entry.who, self.here, "released")
        ends = kind == "fail" or fault_of(entry.event).worker in {"lost", "asleep"}
        if entry.who and not ends and entry.who not in self.asleep:
            self._runs(entry.who)
        about = {"who": who, "subject": entry.subject, "token": entry.token, **found}
        self.marks.append(
            Mark(str(entry.n), kind, entry.event, at=entry.at, transaction=entry.transaction, detail=entry.detail,
                 row_token=self.row_token, n=entry.n, row=self.row, workflow=self.name, answers=answers, **about)
        )  # fmt: skip
        self.calls.saw(entry, self.here - 1)
        for action in self.actions.values():
            if action.acknowledged_by == entry.who and action.acknowledged != self.here - 1:
                action.acknowledged_by = None
        if kind == "refused" and entry.who and entry.transaction != "renew":
            self._stops(entry, entry.who)

    def _breach(self, entry: Entry, kind: str) -> Found:
        """Which guard a write lacked that was accepted although its worker had no authority any more."""
        if not entry.who or kind not in _WRITES or entry.transaction not in GUARDED:
            return {}
        if entry.token is not None and entry.token < self.row_token:
            return {"why": f"{entry.token} ≠ {self.row_token}", "lacks": "token"}
        if self.holder is None:
            return {"why": "lease ended", "lacks": "lease"} if self.bands else {}
        return {} if self.holder == entry.who else {"why": f"{entry.who} ≠ {self.holder}", "lacks": "owner"}

    # -- who holds the lease, and who lives ----------------------------------------------------------------------------

    def _create(self, entry: Entry) -> None:
        self.tokens.append((self.here, 0))

    def _claim(self, entry: Entry) -> None:
        who, token = entry.who or "nobody", entry.token or self.row_token + 1
        self._lets_go(self.holder, self.here - 0.5, "expired")
        self._outlived(who, self.here)
        self._wakes(who)  # who sleeps and claims is another process of the same name
        self._rises(token)
        self._holds(who, token, entry)
        self.owed[who] = list(self.recorded)

    def _holds(self, who: str, token: int, entry: Entry) -> None:
        self.holder, self.held[who] = who, len(self.bands)
        self.bands.append(Band(who, token, self.here, seconds=entry.detail.get("lease_seconds")))

    def _renew(self, entry: Entry) -> None:
        """A renewal that nothing stopped gives a worker its lease back."""
        if entry.who and self.holder is None and entry.token == self.row_token:
            self._outlived(entry.who, self.here)
            self._holds(entry.who, self.row_token, entry)

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
            self.running[who] = len(self.lanes.runs)
            self.lanes.runs.append(ProcessRun(who, self.here, resumed=resumed))

    def _ends(self, who: str, how: str) -> None:
        if (run := self.running.pop(who, None)) is not None:
            self.lanes.runs[run] = replace(self.lanes.runs[run], end=self.here, how=how)

    def _wakes(self, who: str) -> None:
        if (slept := self.asleep.pop(who, None)) is not None:
            self.lanes.sleeps.append(Span(slept, self.here, True, who))

    def _expire(self, entry: Entry) -> Found:
        who = self.holder
        self._lets_go(who, self.here, "expired")
        return {"who": who}

    def _kill(self, entry: Entry) -> Found:
        who = entry.who or "nobody"
        called = [one for one in self.actions.values() if who in self.calls.called(one.key)]
        self._unsure(who)
        self._ends(who, "killed")
        self._wakes(who)
        self._outlived(who, self.here)
        for action in self.actions.values():
            if action.acknowledged_by == who and action.missing and action.lost is None:
                action.lost = Span(float(action.acknowledged or 0), self.here, False, action.key)
        return {"in_gap": any(one.gap_is_open for one in called)}

    def _pause(self, entry: Entry) -> None:
        self._ends(entry.who or "nobody", "paused")
        self.asleep[entry.who or "nobody"] = self.here

    def _resume(self, entry: Entry) -> Found:
        who = entry.who or "nobody"
        self._wakes(who)
        self._runs(who, resumed=True)
        return {"why": "without authority" if who in self.outliving else ""}

    def _complete(self, entry: Entry) -> None:
        self.completed = self.here

    def _fail(self, entry: Entry) -> None:
        if entry.transaction == "claim":
            self._lets_go(self.holder, self.here - 0.5, "expired")
            self._rises(entry.token or self.row_token + 1)

    def _refused(self, entry: Entry) -> Found:
        return {"why": refusal(entry)}

    def _stops(self, entry: Entry, who: str) -> None:
        """Adds a column after a refused write: there its worker gives the workflow up, which leaves no entry."""
        self._ends(who, "stopped")
        self._outlived(who, self.here)
        about = (who, "", entry.token, self.row_token, entry.at)
        self.marks.append(Mark(f"{entry.n}a", "stop", "", *about, n=entry.n, row=self.row, workflow=self.name))

    # -- what is recorded, and what is replayed ------------------------------------------------------------------------

    def _checkpoint(self, entry: Entry) -> None:
        self.recorded.pop(entry.subject, None)  # a failure that a requeue has forgotten is recorded anew
        self.recorded[entry.subject] = None

    def _replays(self, entry: Entry, who: str | None) -> None:
        """Adds a column for each step that this entry shows to have been replayed since its worker's claim.

        The first write tells how many there were. If it does not, they are all that the claim found; none if the worker was
        lost before it loaded them, does not know of its claim, or failed the workflow without telling where.
        """
        if who is None or who not in self.owed or entry.event in _SHOW_NO_REPLAY:
            return
        fault = fault_of(entry.event)
        if fault.worker == "awake" or (fault.worker == "asleep" and entry.subject in _BEFORE_LOAD):
            return
        found = self.owed.pop(who)
        if "replayed" in entry.detail:
            found = found[: entry.detail["replayed"]]
        elif entry.transaction == "fail" or fault.loses == "answer" or (fault.worker and entry.subject in _BEFORE_LOAD):
            found = []
        elif (about := entry.subject.rpartition(" ")[2]) in found:
            found = found[: found.index(about)]  # it is recorded again, after a requeue
        after = next((place for place in reversed(range(self.here)) if self.marks[place].event), -1)
        token = self.bands[self.held[who]].token if who in self.held else entry.token
        for name in found:
            label = f"{self.marks[after].n if after >= 0 else 0}{letters(self.here - after)}"
            of = (who, name, token, self.row_token, entry.at)
            self.marks.append(Mark(label, "replay", "", *of, n=entry.n, row=self.row, workflow=self.name))

    # -- waits ---------------------------------------------------------------------------------------------------------

    def _wait(self, entry: Entry) -> None:
        self.waiting = self.here

    def _receive(self, entry: Entry) -> None:
        self.recorded[entry.subject] = None
        if all(wait.what != entry.subject for wait in self.waits):
            self.waits.append(Span(self.here, self.here, True, entry.subject))

    def _deliver(self, entry: Entry) -> None:
        waits_for = self.marks[self.waiting].subject if self.waiting is not None else None
        if entry.event == "event_delivered" and waits_for == entry.subject:
            self._waited(entry.subject)

    def _waited(self, winner: str, closed: bool = True) -> None:
        if self.waiting is not None:
            self.waits.append(Span(self.waiting, self.here if closed else self.here - 0.5, closed, winner))
            self.waiting = None

    def _cancel(self, entry: Entry) -> None:
        self._waited("cancelled")
        who = self.holder
        self._lets_go(who, self.here, "released")
        if who in self.running or who in self.asleep:
            self.outliving[str(who)] = self.held[str(who)]

    # -- actions and the world -----------------------------------------------------------------------------------------

    def _intent(self, entry: Entry) -> None:
        action = self.actions.setdefault(entry.subject, _Action(entry.subject))
        action.unseen = "tool" in entry.detail and not entry.detail.get("told")

    def _tool(self, entry: Entry) -> Found:
        who, key = self.calls.candidates, self.calls.key
        action = self.actions.setdefault(key, _Action(key))
        detail, sent = entry.detail, entry.detail.get("idempotency_key")
        answer = "refused" if entry.event == "tool_refused" else str(detail.get("outcome", "effect"))
        found: Found = {"answer": answer, "key": said_of_key(action.keys, sent, answer)}
        found |= {"attempts": detail.get("attempts") or 0}
        action.keys = (*action.keys, sent)
        if answer == "refused":
            action.status = "REFUSED"
        if answer == "effect":
            number = self.effects.setdefault(detail.get("effect_id", object()), len(self.effects) + 1)
            action.effects = (*action.effects, self.here)
            found |= {"effect": number, "nth": len(action.effects)}
            if action.lost and not action.lost.closed:
                action.lost = replace(action.lost, end=self.here, closed=True)
            if action.opened is None and action.acknowledged is None:
                action.opened, action.can_tell = self.here, frozenset(who & {self.holder or ""})
        else:
            found["effect"] = self.effects.get(detail.get("effect_id"), len(self.effects))
        return found

    def _asked(self, call: int, who: str) -> None:
        """It has shown itself who made that call; nobody else can tell of it."""
        for action in self.actions.values():
            if action.opened == call:
                action.can_tell &= {who}

    def _call_lost(self, entry: Entry) -> Found:
        self._unsure(entry.who or "nobody")
        return {"in_gap": any(one.gap_is_open for one in self.actions.values())}

    def _unsure(self, who: str) -> None:
        """From here on the engine cannot know what this worker did in the world without acknowledging it."""
        for action in self.actions.values():
            action.can_tell -= {who}

    def _acknowledge(self, entry: Entry) -> Found:
        self.recorded[entry.subject] = None
        action = self.actions.setdefault(entry.subject, _Action(entry.subject))
        closes = action.gap_is_open
        if closes:
            self.gaps.append(Span(float(action.opened or 0), self.here, True, action.key))
        action.opened, action.acknowledged, action.acknowledged_by = None, self.here, entry.who
        action.status = "ACKNOWLEDGED" if action.status == "PENDING" else action.status
        return {"closes": closes}

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Leaves open at the last column what nothing has ended."""
        now = self.here - 0.5
        self._waited("", closed=False)
        for who in list(self.outliving):
            self._outlived(who, now)
        for action in self.actions.values():
            if action.gap_is_open:
                self.gaps.append(Span(float(action.opened or 0), now, False, action.key))
            if action.lost and not action.lost.closed:
                done = self.completed
                action.lost = replace(action.lost, end=now if done is None else done, closed=done is not None)


def _finished(lanes: _Lanes, of: Mapping[str, _Reader], entries: tuple[Entry, ...]) -> Story:
    readers = of.values()
    for reader in readers:
        reader.end()
    now, actions = len(lanes.marks) - 0.5, [one for reader in readers for one in reader.actions.values()]
    sleeps = [*lanes.sleeps, *(Span(start, now, False, who) for who, start in lanes.asleep.items())]
    doubled = [Span(one.effects[0], one.effects[-1], True, one.key) for one in actions if one.too_many]
    gaps = sorted((gap for reader in readers for gap in reader.gaps), key=lambda gap: gap.start)
    told = Story(
        tuple(lanes.marks), tuple(sorted({entry.who for entry in entries if entry.who})),
        tuple(band for reader in readers for band in reader.bands), tuple(lanes.runs), tuple(sleeps),
        tuple(wait for reader in readers for wait in reader.waits), tuple(gaps), tuple(doubled),
        tuple(one.lost for one in actions if one.lost),
        tuple(WorkflowRow(name, tuple(reader.tokens)) for name, reader in of.items()), entries=entries,
    )  # fmt: skip
    return replace(told, box=box_of(told))
