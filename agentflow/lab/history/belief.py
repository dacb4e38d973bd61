"""Belief against world: what the engine believes of each planned action, and which effects the world has for it.

An effect belongs to the planned action whose idempotency key it carries. One without a key, or under a key that nobody
planned, belongs to a planned action of the same name: to one that has no effect yet, an acknowledged one first, or else to
the last one, which then has one too many. An action that the tool refused gets such an effect only if there is no other.
The SQL behind `reliability_metrics` counts by the same rule. The checker deliberately has a separate one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .entries import Row


class Judged:
    """What follows from an action's status (None: nobody planned it) and from the effects that belong to it."""

    status: str | None
    effects: Sequence[object]
    unseen: bool = False
    """It was given to a tool of one's own that does not tell of its effects: what it did is not observed."""

    @property
    def planned(self) -> bool:
        """The engine planned the action and may have done it: it was not refused, or has an effect all the same."""
        return self.status is not None and (self.status != "REFUSED" or bool(self.effects))

    @property
    def in_gap(self) -> bool:
        """The effect exists and the engine does not know its outcome: the acknowledgment gap."""
        return bool(self.effects) and self.status == "PENDING"

    @property
    def unknown(self) -> bool:
        """An effect exists that the engine does not believe in: it is in the gap, refused, or was never planned."""
        return bool(self.effects) and self.status != "ACKNOWLEDGED"

    @property
    def undone(self) -> bool:
        """The action has left no effect so far, and was not refused."""
        return not self.effects and self.status != "REFUSED" and not self.unseen

    @property
    def missing(self) -> bool:
        """The engine believes that the action was done, and the world has no effect of it."""
        return self.undone and self.status == "ACKNOWLEDGED"

    @property
    def too_many(self) -> int:
        """How many effects the action has beyond the one that it may leave."""
        return max(0, len(self.effects) - 1)


@dataclass
class ActionBelief(Judged):
    """One action (its key, and the name of what is done) with the rows of its effects, its own key's first."""

    key: str
    action: str
    idempotency_key: str | None
    status: str | None
    effects: list[Row] = field(default_factory=list)
    unseen: bool = False


@dataclass(frozen=True)
class Belief:
    """The actions of one workflow: the planned ones in their order, then those that the world did and nobody planned."""

    actions: Sequence[ActionBelief]

    @property
    def in_gap(self) -> bool:
        """Whether an effect exists of whose action the engine does not know the outcome."""
        return any(one.in_gap for one in self.actions)

    @property
    def doubled(self) -> list[ActionBelief]:
        """The actions that left more than one effect."""
        return [one for one in self.actions if one.too_many]

    @property
    def too_many(self) -> int:
        """How many effects there are beyond one for each action."""
        return sum(one.too_many for one in self.actions)

    @property
    def sign(self) -> str:
        """`=` if the engine believes what the world did, `≠` if not, `?` if nobody could see what it did."""
        if any(one.unknown or one.missing or one.too_many for one in self.actions):
            return "≠"
        return "?" if any(one.unseen for one in self.actions) else "="


def with_unseen(intents: Sequence[Row], history: Iterable[Row]) -> list[Row]:
    """The intents, each with `unseen`: a tool of one's own that was not asked, or tells nothing, was to carry it out."""
    named = ("action_intent_committed", "action_acknowledged")
    own = [row for row in history if row["event"] in named and (row["detail"] or {}).get("tool")]
    unseen = {(row["workflow_id"], row["subject"]) for row in own if not row["detail"].get("told")}
    if not unseen:
        return list(intents)
    return [{**row, "unseen": (row["workflow_id"], row["key"]) in unseen} for row in intents]


def belief_of(intents: Sequence[Row], effects: Sequence[Row]) -> Belief:
    """The belief of one workflow, from its rows of `action_intents` and `tool_ledger`, each in the order of their making."""
    names = ("key", "action", "idempotency_key", "status")
    actions = [ActionBelief(*(row[name] for name in names)) for row in intents]
    whose = {one.idempotency_key: one for one in actions}
    planned = set(whose)
    for effect in sorted(effects, key=lambda row: row["idempotency_key"] not in planned):
        key = effect["idempotency_key"]
        found = whose.get(key) or _of_that_name(actions, effect["action"])
        found.effects.append(effect)
        if key is not None:
            whose[key] = found  # the same made-up key once more is the same action
    for one, row in zip(actions, intents, strict=False):
        one.unseen = bool(row.get("unseen"))
    return Belief(actions)


def _of_that_name(actions: list[ActionBelief], name: str) -> ActionBelief:
    """The action to which an effect belongs whose key does not say so; a new one if nobody planned any of that name."""
    named = [one for one in actions if one.action == name]
    open_ = [one for one in named if one.status != "REFUSED"]
    without = sorted((one for one in open_ if not one.effects), key=lambda one: one.status != "ACKNOWLEDGED")
    served = [one for one in open_ or named if one.effects]
    for found in (without[:1], served[-1:], named[-1:]):
        if found:
            return found[0]
    actions.append(ActionBelief(name, name, None, None))
    return actions[-1]


def lost(steps: Sequence[Row], intents: Sequence[Row], effects: Sequence[Row]) -> list[str]:
    """The keys of a workflow's actions that a checkpoint records as done, and of which the world has no effect."""
    left = {one.key for one in belief_of(intents, effects).actions if one.effects or one.unseen}
    done = [row["step_id"] for row in steps if row["kind"] == "side_effect" and row["error"] is None]
    return [key for key in done if key not in left]
