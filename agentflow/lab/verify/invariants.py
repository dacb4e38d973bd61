"""What must hold on every transition of a laboratory: the rows before, the rows after, and who moved.

Each invariant is a short function with a name and a sentence. There are two kinds. `harm`: somebody outside was hurt, or can
never be served. `authority`: somebody wrote without the right to; whether that harms anybody is another question. The explorer,
the mission and the tests share these; the checker has rules of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from psycopg.rows import DictRow

from ...statements import GUARDED
from ..history.belief import belief_of, lost
from .snapshot import Rows

InvariantKind = Literal["harm", "authority"]


@dataclass(frozen=True)
class Mover:
    """Who made a transition: a worker with the token of its claim, or somebody outside (`worker` None).

    `ended` is how the worker's run ended with this transition, if it did, as Worker.run_once() returns it. `in_doubt`: it has
    asked for this transaction before, and has not heard the answer.
    """

    worker: str | None = None
    token: int | None = None
    workflow: str | None = None
    transaction: str = ""
    ended: str | None = None
    in_doubt: bool = False


@dataclass(frozen=True)
class Transition:
    """One transaction (or one of the laboratory's moves): rows before, rows after, and who moved."""

    before: Rows
    after: Rows
    mover: Mover = Mover()

    def entries(self) -> list[DictRow]:
        """The entries that are new in the history."""
        known = {(row["workflow_id"], row["n"]) for row in self.before.history}
        return [row for row in self.after.history if (row["workflow_id"], row["n"]) not in known]

    def pairs(self) -> Iterator[tuple[DictRow, DictRow]]:
        """Each workflow's row before and after."""
        for after in self.after.workflows:
            if before := self.before.workflow(after["id"]):
                yield before, after


@dataclass(frozen=True)
class Guilty:
    """The row that breaks an invariant: its table, its key, and what is wrong with it."""

    table: str
    row: str
    reason: str

    def __str__(self) -> str:
        return f"{self.table} {self.row}: {self.reason}"


Check = Callable[[Transition], Iterator[Guilty]]


@dataclass(frozen=True)
class Invariant:
    """Something that must hold on every transition, and its sentence."""

    name: str
    kind: InvariantKind
    sentence: str
    check: Check


UNTOLD = " null"
"""The result, as JSON text that no value has, of an effect of which the ledger does not know what the tool answered."""
INVARIANTS: dict[str, Invariant] = {}
"""Every invariant by name; those of harm first."""


def _invariant(kind: InvariantKind, sentence: str) -> Callable[[Check], Check]:
    def add(check: Check) -> Check:
        name = check.__name__.replace("_", " ")
        INVARIANTS[name] = Invariant(name, kind, sentence, check)
        return check

    return add


def violations(
    transition: Transition, invariants: Iterable[Invariant] = INVARIANTS.values()
) -> list[tuple[Invariant, Guilty]]:
    """Returns every invariant that this transition violates, each with the guilty row."""
    return [(one, guilty) for one in invariants for guilty in one.check(transition)]


# -- harm --------------------------------------------------------------------------------------------------------------


@_invariant("harm", "At most one business effect is left by each planned action.")
def one_effect_per_action(transition: Transition) -> Iterator[Guilty]:
    """Also when the engine made up a second key for the same action, or none."""
    after = transition.after
    known = {row["effect_id"] for row in transition.before.effects}
    for row in (row for row in after.effects if row["effect_id"] not in known):
        workflow_id = row["workflow_id"]
        for action in belief_of(after.of("intents", workflow_id), after.of("effects", workflow_id)).doubled:
            if row in action.effects:
                planned = "of which 1 was planned" if action.status else "which nobody planned"
                reason = f"effect {len(action.effects)} of action {row['action']!r}, {planned}"
                yield Guilty("tool_ledger", workflow_id, reason)


@_invariant("harm", "Completed means: every planned action is acknowledged, and its effect is done.")
def completed_means_done(transition: Transition) -> Iterator[Guilty]:
    """Looked at when something of a completed workflow changed."""
    for workflow_id in _newly_completed(transition):
        rows = transition.after
        intents = {row["key"]: row for row in rows.of("intents", workflow_id)}
        gone = lost(rows.of("steps", workflow_id), rows.of("intents", workflow_id), rows.of("effects", workflow_id))
        for key, intent in intents.items():
            if intent["status"] == "PENDING":
                yield Guilty("action_intents", f"{workflow_id} {key}", "is PENDING although the workflow is completed")
        for step in _actions_done(rows, workflow_id):
            where = f"{workflow_id} {step['step_id']}"
            if step["step_id"] not in intents:
                yield Guilty("action_intents", where, "is missing although the action is recorded as done")
            if step["step_id"] in gone:
                yield Guilty("tool_ledger", where, "has no effect although the workflow is completed")


@_invariant("harm", "A completed workflow has recorded for each action what the tool answered.")
def the_result_is_the_tools(transition: Transition) -> Iterator[Guilty]:
    """The checkpoint, the acknowledgment and the world's own record agree."""
    for workflow_id in _newly_completed(transition):
        rows = transition.after
        intents = {row["key"]: row for row in rows.of("intents", workflow_id)}
        for step in _actions_done(rows, workflow_id):
            where, intent = f"{workflow_id} {step['step_id']}", intents.get(step["step_id"])
            action = intent["action"] if intent else step["step_id"]
            left = [row for row in rows.of("effects", workflow_id) if row["action"] == action]
            answers = [row["result"] for row in left if row["result"] not in (None, UNTOLD)]  # a told effect has none
            if intent and _value(intent["tool_result"]) != _value(step["value"]):
                yield Guilty("steps", where, f"holds {step['value']}, and the acknowledgment {intent['tool_result']}")
            elif answers and _value(step["value"]) not in [_value(answer) for answer in answers]:
                yield Guilty("steps", where, f"holds {step['value']}, and the tool answered {answers[0]}")


def _newly_completed(transition: Transition) -> list[str]:
    return [
        after["id"]
        for before, after in transition.pairs()
        if after["status"] == "completed" and _changed(transition, before, after)
    ]


def _actions_done(rows: Rows, workflow_id: str) -> list[DictRow]:
    """The checkpoints of actions that succeeded."""
    return [row for row in rows.of("steps", workflow_id) if row["kind"] == "side_effect" and row["error"] is None]


@_invariant("harm", "A checkpoint once written never changes.")
def checkpoint_never_changes(transition: Transition) -> Iterator[Guilty]:
    """What is recorded stays: only a person's requeue takes the last failure away."""
    now = {(row["workflow_id"], row["step_id"]): row for row in transition.after.steps}
    requeued = {row["workflow_id"] for row in transition.entries() if row["event"] == "workflow_requeued"}
    for was in transition.before.steps:
        step = now.get((was["workflow_id"], was["step_id"]))
        where = f"{was['workflow_id']} {was['step_id']}"
        if step is None:
            if was["workflow_id"] not in requeued or was["error"] is None:
                yield Guilty("steps", where, f"was {was['value'] or was['error']} and is gone")
            continue
        for column in ("position", "kind", "value", "error", "waited_for"):
            if was[column] != step[column]:
                yield Guilty("steps", where, f"{column} was {was[column]} and is {step[column]}")


@_invariant("harm", "At most one worker reports completion.")
def one_completion(transition: Transition) -> Iterator[Guilty]:
    """A second complete that is committed, and a worker that reports what it did not do."""
    completed = {row["workflow_id"] for row in transition.entries() if row["event"] == "workflow_completed"}
    for before, after in transition.pairs():
        mover = transition.mover
        here = after["id"] == mover.workflow or mover.workflow is None
        mine = mover.in_doubt and after["status"] == "completed" and after["fence_token"] == mover.token
        if before["status"] == "completed" and after["id"] in completed:
            yield Guilty("workflows", after["id"], "was completed a second time")
        elif before["status"] == "completed" and before["result"] != after["result"]:
            yield Guilty("workflows", after["id"], f"result was {before['result']} and is {after['result']}")
        elif mover.ended == "completed" and here and after["id"] not in completed and not mine:
            reason = f"is {after['status']}, and a worker reports that it completed it now"
            yield Guilty("workflows", after["id"], reason)


@_invariant("harm", "Every wait of one name sees one payload, the first that was delivered.")
def one_payload_per_name(transition: Transition) -> Iterator[Guilty]:
    """Compared with each other and with the row's own events."""
    for after in transition.after.workflows:
        seen = {name: json.loads(payload) for name, payload in json.loads(after["events"]).items()}
        for step in transition.after.of("steps", after["id"]):
            name, payload = step["waited_for"], _value(step["value"])
            if step["kind"] == "wait" and seen.setdefault(name, payload) != payload:
                reason = f"got {payload!r} for event {name!r}, and another wait or the row has {seen[name]!r}"
                yield Guilty("steps", f"{after['id']} {step['step_id']}", reason)


@_invariant(
    "harm",
    "No workflow is stuck: a new worker, given time, can complete it, alone or after those that stand have gone on.",
)
def no_workflow_is_stuck(transition: Transition) -> Iterator[Guilty]:
    """For a transition whose mover is "all that a live worker can do": leases ended, events delivered, back-offs over."""
    if transition.mover.transaction != ALL_THAT_A_WORKER_CAN_DO:
        return
    for row in transition.after.workflows:
        if row["status"] in ("ready", "waiting"):
            yield Guilty("workflows", row["id"], f"stays {row['status']} in state {row['state']}, whoever works on it")
        elif row["status"] == "failed":
            error = json.loads(row["error"])
            if error["type"] != "CrashBudgetSpent":
                why = f"{error['type']}: {error['message'].partition('. ')[0]:.160}"
                yield Guilty("workflows", row["id"], f"fails whoever works on it ({why})")


ALL_THAT_A_WORKER_CAN_DO = "all that a worker can do"


# -- authority ---------------------------------------------------------------------------------------------------------


@_invariant("authority", "Tokens only rise, and each claim raises its workflow's.")
def tokens_only_rise(transition: Transition) -> Iterator[Guilty]:
    """A claim with the old token would make two holders look like one."""
    claimed = {row["workflow_id"] for row in transition.entries() if row["event"] == "workflow_claimed"}
    for before, after in transition.pairs():
        was, token, here = before["fence_token"], after["fence_token"], after["id"] in claimed
        if token < was or (here and token == was):
            reason = f"fence_token was {was} and is {token}"
            yield Guilty("workflows", after["id"], reason + (" after a claim" if here else ""))


@_invariant("authority", "Nothing is written under an older token than the row's.")
def nothing_under_an_older_token(transition: Transition) -> Iterator[Guilty]:
    """A refusal numbers itself and writes an entry; anything more than that needs the current token."""
    mover = transition.mover
    for before, after in transition.pairs():
        token = before["fence_token"]
        stale = mover.workflow == after["id"] and mover.token is not None and mover.token < token
        if stale and _changed(transition, before, after):
            reason = f"{mover.worker} wrote {mover.transaction} with token {mover.token}, and the row held {token}"
            yield Guilty("workflows", after["id"], reason)
        for row in transition.entries():
            event, old = row["event"], row["fence_token"]
            written = row["workflow_id"] == after["id"] and row["transaction"] in GUARDED and event != "write_refused"
            if written and old is not None and old < token:
                yield Guilty("history", f"{after['id']} {event}", f"has token {old}, the row {token}")


def _changed(transition: Transition, before: DictRow, after: DictRow) -> bool:
    """Whether anything of a workflow has changed, except the number of its entries and its turn in the queue."""
    if any(before[column] != after[column] for column in after.keys() - {"entries", "turn"}):
        return True
    was, now, workflow_id = transition.before, transition.after, after["id"]
    return any(was.of(table, workflow_id) != now.of(table, workflow_id) for table in ("steps", "intents"))


def _value(text: str | None) -> Any:
    return None if text is None else json.loads(text)
