"""What the laboratory can do to a run: one row for each kind of fault, and everything that anyone has to know about it.

The grammar, the lanes, the history in words, its pictures and the explorer look here. A new kind of fault begins as a new
row; `docs/architecture.md` shows a whole one. Three places repeat names of entries: the independent checker, on purpose,
and the engine's demo crash and its SQL for recoveries, because the engine does not import the laboratory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class FaultKind:
    """One kind of fault. Words may hold `{who}` (the worker), `{whose}` lease it is, and `{subject}` (where it happened).

    `token` is how a schedule writes it, with `{lane}` or `{at}` (which request); without one no schedule can make it.
    `does` is its line in the grammar, `event` its entry in the history, `sentence` that entry in words, and `turn` its part
    of the sentence for a whole history (empty: it has none).

    In a picture, `label` stands on the clock, `strikes` is what the dotted line below it leads to, and `mark` is drawn there.

    A process is struck by a real signal, which its entry names: then `signalled` has the sentence and the label.

    `worker` is what becomes of the worker. `loses` is what never arrives: half of a call of the tool, or PostgreSQL's answer to
    another transaction; the worker has to stand before that. `bound` names which of the explorer's bounds it spends.
    """

    name: str
    token: str = ""
    does: str = ""
    event: str
    sentence: str
    turn: str = ""
    label: str
    strikes: Literal["worker", "lease", "row", "world"]
    mark: Literal["", "cross", "bar", "dot", "cut", "ring", "open"] = ""
    worker: Literal["", "lost", "asleep", "awake"] = ""
    loses: Literal["", "request", "reply", "answer"] = ""
    bound: str = ""
    signalled: tuple[str, str, str] = ("", "", "")

    def words(self, detail: Mapping[str, object]) -> tuple[str, str]:
        """The sentence and the label of an entry with this detail."""
        struck = self.signalled[0] and detail.get("signal") == self.signalled[0]
        return self.signalled[1:] if struck else (self.sentence, self.label)


_KINDS = (
    FaultKind(
        name="kill", token="{lane}!", does="A is killed where it stands",
        event="worker_killed", sentence="{who} crashes {subject}", turn="{who} crashes {subject}",
        label="crash {who}", strikes="worker", mark="cross", worker="lost", bound="crashes",
        signalled=("SIGKILL", "{who} is killed (SIGKILL) {subject}", "SIGKILL {who}"),
    ),
    FaultKind(
        name="crash", event="crash_injected", sentence="{who} crashes {subject}", turn="{who} crashes {subject}",
        label="crash {who}", strikes="worker", mark="cross", worker="lost",
    ),
    FaultKind(
        name="pause", token="{lane}||", does="A is paused",
        event="worker_paused", sentence="{who} is paused {subject}", turn="{who} is paused",
        label="pause {who}", strikes="worker", mark="bar", worker="asleep",
        signalled=("SIGSTOP", "{who} is paused (SIGSTOP) {subject}", "SIGSTOP {who}"),
    ),
    FaultKind(
        name="resume", token="{lane}>", does="A goes on after a pause, and still stands where it stood",
        event="worker_resumed", sentence="{who} wakes up", turn="{who} wakes up",
        label="resume {who}", strikes="worker", mark="bar", worker="awake",
        signalled=("SIGCONT", "{who} wakes up (SIGCONT)", "SIGCONT {who}"),
    ),
    FaultKind(
        name="lose", token="{lane}/", does="A calls the tool and the reply is lost",
        event="reply_lost", sentence="the tool's reply to {who} is lost; nobody knows the outcome until it is called again",
        turn="the reply to {who} is lost", label="lose reply", strikes="worker", mark="dot",
        loses="reply", bound="lost_replies",
    ),
    FaultKind(
        name="lose_answer", token="{lane}?", does="A's transaction is committed, and PostgreSQL's answer is lost",
        event="answer_lost", sentence="PostgreSQL's answer to {who}'s {subject} is lost; {who} cannot know what came of it",
        turn="PostgreSQL's answer to {who} is lost", label="unheard", strikes="worker", mark="dot",
        loses="answer", bound="lost_commits",
    ),
    FaultKind(
        name="expire", token="expire{at}", does="the lease ends; expire@2: that of request-2",
        event="lease_expired_for_test", sentence="{whose} lease expires", turn="{who}'s lease expires",
        label="expire", strikes="lease", bound="expiries",
    ),
    FaultKind(
        name="due", token="due{at}", does="the back-off ends", event="backoff_ended_for_test", sentence="the back-off ends",
        label="due", strikes="row",
    ),
    FaultKind(
        name="forget", token="forget", does="the tool forgets its keys",
        event="keys_forgotten", sentence="the tool forgets its keys; what it has done stays done",
        turn="the tool forgets its keys", label="forget", strikes="world", mark="ring", bound="forgettings",
    ),
    FaultKind(
        name="restart", token="restart", does="PostgreSQL crashes and is started again",
        event="database_restarted", sentence="the database is restarted; every commit is still there",
        turn="the database is restarted", label="restart", strikes="row", mark="cut",
    ),
    FaultKind(
        name="pass_over", event="claim_passed_over", sentence="{who} asks for work and passes over {subject}", label="",
        strikes="worker", mark="open",
    ),
)  # fmt: skip

FAULTS: Mapping[str, FaultKind] = {kind.name: kind for kind in _KINDS}
"""The kinds of faults by name, which is also the verb of their move."""

_BY_EVENT = {kind.event: kind for kind in _KINDS}
_NONE = FaultKind(name="", event="", sentence="", label="", strikes="row")


def fault(name: str) -> FaultKind:
    """The kind of fault of this name; for anything else, such as another verb, a kind that does nothing."""
    return FAULTS.get(name, _NONE)


def can_lose(kind: FaultKind, transaction: str) -> bool:
    """Whether what this fault loses belongs to the transaction: the tool has a request and a reply, each other one an answer."""
    return bool(kind.loses) and (kind.loses == "answer") != (transaction == "tool")


def fault_of(event: str) -> FaultKind:
    """The kind of fault that writes this entry; for any other entry, a kind that does nothing."""
    return _BY_EVENT.get(event, _NONE)
