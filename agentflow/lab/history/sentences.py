"""The text twin of a picture: one sentence for each entry, and one for the whole history. No times, no ids.

Pictures, tables and the control room all take their words from here; a fault's words stand in its row of `faults`.
"""

from __future__ import annotations

from collections.abc import Sequence

from .entries import Row, worker_name
from .faults import FAULTS, FaultKind
from .story import A_DAY, Mark, Story
from .story_reader import read_story
from .words import by, doubled

_PLAIN = {
    "create": "create writes the workflow row, token 0",
    "checkpoint": "{who} commits checkpoint {subject} with token {token}",
    "complete": "{who} commits complete with token {token}",
    "wait": "{who} commits wait for event {subject} with token {token}; nobody holds a lease meanwhile",
    "receive": "{who} commits wait: event {subject} had come, with token {token}",
    "renew": "{who} renews its lease with token {token}",
    "release": "{who} releases its lease with token {token}",
    "postpone": "{who} commits a failed try of {subject} with token {token}; the next one is due later",
    "cancel": "a person cancels the workflow",
    "requeue": "a person requeues the workflow: it is ready again",
    "replay": "{who} replays {subject} from its checkpoint",
    "stop": "{who} gives the workflow up with LostLease",
}
_DELIVERED = {
    "event_delivered": "a person delivers event {subject}",
    "event_repeated": "a person delivers event {subject} again, nothing changes",
    "workflow_freed": "a person frees the workflow, which a clock that was ahead had made wait",
}


def lease_of(seconds: float | None) -> str:
    """`lease 3 s`; without a length if it is a day or more, or unknown: then only a move ends it."""
    return f"lease {seconds:g} s" if seconds is not None and 0 < seconds < A_DAY else "lease"


def sentence(mark: Mark) -> str:
    """One column in words; of several workflows all but the first are named."""
    return f"{mark.workflow}: {_sentence(mark)}" if mark.workflow else _sentence(mark)


def _sentence(mark: Mark) -> str:
    if mark.folded:
        subjects = ", ".join(one.subject for one in mark.folded if one.subject)
        verbs = {"renew": "renews its lease {} times", "replay": "replays {} checkpoints"}
        verb = verbs.get(mark.kind, "commits {} checkpoints").format(len(mark.folded))
        return f"{mark.who} {verb}{': ' if subjects else ''}{subjects}"
    if mark.kind in FAULTS:
        return _fault(mark, FAULTS[mark.kind])
    if mark.lacks:
        return f"{_spoken(mark)}; {_unauthorised(mark)}"
    return _spoken(mark)


def _spoken(mark: Mark) -> str:
    """What an entry says by itself, if it is no fault."""
    if mark.event == "event_refused":
        return f"a person delivers event {mark.subject}; {_met(mark)}refused, nothing changes"
    if mark.kind in _SPOKEN:
        return _SPOKEN[mark.kind](mark)
    said = _DELIVERED.get(mark.event) or _PLAIN.get(mark.kind)
    if said is None:
        return f"{mark.event} {mark.subject}".strip()
    trouble = "; something else than the workflow was wrong, so it is due later" * bool(mark.detail.get("trouble"))
    return said.format(who=mark.who or "nobody", subject=mark.subject, token=mark.token).strip() + trouble


def _claim(mark: Mark) -> str:
    seconds = mark.detail.get("lease_seconds")
    lease = "" if lease_of(seconds) == "lease" else f", {lease_of(seconds)}"
    recovery = "; recovery starts" if mark.detail.get("recovered") else ""
    return f"{mark.who} claims it: token {mark.token}{lease}{recovery}"


def _intent(mark: Mark) -> str:
    own, told = mark.detail.get("tool"), mark.detail.get("told")
    given = f", for a tool of one's own, {own}{'' if told else '; its effects are not observed'}" if own else ""
    return f"{mark.who} commits the action intent {mark.subject} with token {mark.token}{given}"


def _tool(mark: Mark) -> str:
    how = {"same": " again with the same key", "no": " without a key", "new": " again with a new key"}.get(mark.key, "")
    who = mark.who or "somebody"
    if mark.answer == "refused":
        return f"{who} calls the tool{how}; the tool refuses: certainly no effect"
    if mark.answer == "repeated":
        key = how or " with the same key"
        return f"{who} calls the tool{key}; the tool answers from the key: attempts {mark.attempts}, still one effect"
    if mark.doubled:
        reason = "has forgotten the key" if mark.key == "forgotten" else "cannot know the call"
        again = " again with the same key" if mark.key == "forgotten" else how
        effect = f"commits business effect {mark.effect}: {doubled(mark.nth)}"
        return f"{who} calls the tool{again}; the tool {reason} and {effect}"
    attempts = "" if mark.key == "no" else f", attempts {mark.attempts}"
    return f"{who} calls the tool{how}; the tool commits business effect {mark.effect}{attempts}"


def _acknowledge(mark: Mark) -> str:
    closed = ": the gap is closed" if mark.closes else ""
    what = "the tool's refusal of" if mark.detail.get("refused") else "acknowledge"
    return f"{mark.who} commits {what} {mark.subject} with token {mark.token}{closed}"


def _unauthorised(mark: Mark) -> str:
    """Why a write should have been refused that was accepted."""
    met = {
        "token": f"the row holds token {mark.row_token}",
        "owner": f"{mark.why.rpartition(' ')[2]} holds the lease",
        "lease": "its lease has ended",
    }
    return f"without authority: {met[mark.lacks]}, and no guard compares the {mark.lacks}"


def _refused(mark: Mark) -> str:
    what = f"{mark.transaction} {mark.subject}".strip()
    tries = f"{mark.who} tries to write {what} with token {mark.token}"
    if not mark.who:
        tries = f"a person tries to {mark.transaction} the {'lease' if mark.transaction == 'expire' else 'workflow'}"
    return f"{tries}; {_met(mark)}refused, 0 rows, nothing changed"


def _met(mark: Mark) -> str:
    """The guards that refused it, and what they met in the row; the entry of an older AgentFlow tells only of the row."""
    row = mark.detail
    holder, status = worker_name(row.get("row_owner")), row.get("row_status", "ready")
    met = {
        "token": f"the row holds token {row.get('row_token')}",
        "owner": f"{holder} holds the lease",
        "lease": "the lease has ended"
        if row.get("row_owner")
        else ""
        if "owner" in mark.guards
        else "there is no lease",
        "checkpoints": f"the row has {row.get('row_checkpoints')} checkpoints, not {row.get('checkpoints')}",
        "intent": "the action is not pending" if mark.transaction == "acknowledge" else "the key has another plan",
        "event": "another payload came first",
    }
    ended = [f"the workflow is {status}"] if status != "ready" or "status" in mark.guards else []
    found = [*ended, *(met.get(one, "") for one in mark.guards or ("token",) * (mark.token != row.get("row_token")))]
    stopped = f"stopped{by(mark.guards)}: " if mark.guards else ""
    return f"{stopped}{', '.join(filter(None, found))}; " if found else ""


def _fault(mark: Mark, kind: FaultKind) -> str:
    """The fault's own sentence, and what it meant for a worker that it struck."""
    whose = f"{mark.who}'s" if mark.who else "the"
    said = kind.words(mark.detail)[0].format(who=mark.who or "nobody", whose=whose, subject=mark.subject).strip()
    if kind.worker == "lost" and not mark.token:
        return f"{said}; it held nothing"
    died = "the answer dies with it" if any(one.how == "died" for one in mark.answers) else ""
    unknown = "the effect exists, the engine does not know" if kind.worker == "lost" and mark.in_gap else ""
    if died or unknown:
        return f"{said}: {', '.join(filter(None, (died, unknown)))}"
    if kind.worker == "asleep" and mark.token is None:
        return f"{said}; it holds nothing"
    return f"{said}, alive without authority" if kind.worker == "awake" and mark.why else said


def _fail(mark: Mark) -> str:
    if mark.transaction == "claim":
        return f"{mark.who} asks for it, and the crash budget is spent: the workflow is failed, token {mark.token}"
    return f"{mark.who} commits fail with token {mark.token}; the error is kept"


_SPOKEN = {
    "claim": _claim, "intent": _intent, "tool": _tool, "acknowledge": _acknowledge, "refused": _refused, "fail": _fail,
}  # fmt: skip


def line(mark: Mark) -> str:
    """A line of the text twin: the entry's number and its sentence."""
    return f"{mark.label}. {sentence(mark)}"


def twin(told: Story) -> list[str]:
    """The whole story, a line for each column; replays stand under the entry of their claim (`9a`)."""
    return [line(mark) for mark in told.marks]


def sentences(rows: Sequence[Row] | Story) -> list[str]:
    """One sentence for each entry of a history, without numbers and without the replays that have no entry."""
    return [f"{sentence(mark)}." for mark in read_story(rows).marks if mark.event]


_HEADS = {
    "unauthorised": "A write without authority",
    "duplicate": "A duplicate effect",
    "lost": "A lost effect",
    "refused": "A stale worker",
    "gap": "The acknowledgment gap",
}
_TURNS = {
    **{kind.name: kind.turn for kind in FAULTS.values()},
    "refused": "{who}'s write with token {token} is refused{by}",
    "wait": "the workflow waits for {subject}",
    "fail": "it fails",
    "cancel": "it is cancelled",
    "requeue": "it is requeued",
    "complete": "{who} completes it with token {token}",
}


def summary(told: Story) -> str:
    """What happened, in one sentence made from the entries."""
    if not told.marks:
        return "Nothing has happened yet."
    turns = []
    for mark in told.marks:
        turn = _TURNS.get(mark.kind)
        if mark.kind == "refused" and not mark.who:
            turn = f"{mark.transaction} is refused{{by}}"
        if told.box and told.box.kind == "unauthorised" and mark is told.marks[int(told.box.span.start)]:
            turn = f"{{who}} writes {mark.transaction} without authority"
        if mark.kind in FAULTS and turn and mark.detail.get("signal") == "SIGKILL":
            turn = FAULTS[mark.kind].words(mark.detail)[0]
        if mark.kind == "claim":
            turn = "{who} recovers with token {token}" if mark.detail.get("recovered") else "{who} claims it"
        if turn:
            who = mark.who or "nobody"
            turns.append(turn.format(who=who, token=mark.token, subject=mark.subject, by=by(mark.guards)).rstrip())
    head = f"{_HEADS[told.box.kind]}: " if told.box else ""
    if told.box and told.box.kind == "refused" and not told.marks[int(told.box.span.start)].who:
        head = "A refused write: "
    shown = [*turns[:5], "and so on", *turns[-2:]] if len(turns) > 8 else turns
    world = f"; attempts {told.attempts}, effects {len(told.effects)}" if told.attempts else ""
    said = head + (", ".join(shown) or "a workflow is created") + world
    return said[0].upper() + said[1:]
