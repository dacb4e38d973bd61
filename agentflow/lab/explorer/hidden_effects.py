"""What tools of one's own tell of effects, and those that no call of a side effect accounts for: a step or body did them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ...evidence import effect_row
from ...model import ToolCall
from ..history.words import brief, counted
from .own_process import WrongCode

Effect = tuple[str | None, str, str]
"""An effect as a tool tells it: idempotency key, action, workflow id."""


AGAIN = " for what had been done before"


def as_told(name: str, effects: Any) -> tuple[Counter[Effect], Counter[Effect]]:
    """The effects that the tool of this name told, and the calls that it counts of each.

    Raises WrongCode for what is no list of effects.
    """
    try:
        rows = [effect_row(effect, name) for effect in effects]
    except (TypeError, ValueError) as wrong:
        raise WrongCode(f"{name}.effects(): {wrong}") from None
    calls = Counter[Effect]()
    told = [((row["idempotency_key"], row["action"], row["workflow_id"]), row["attempts"] or 1) for row in rows]
    for effect, times in told:
        calls[effect] += times
    return Counter(effect for effect, _ in told), calls


def check_that_it_was_asked(name: str, new: Iterable[Effect], call: ToolCall) -> None:
    """Raises WrongCode for an effect under another key than the call's: nobody could say whose it is."""
    for key, action, workflow_id in new:
        if key not in (None, call.idempotency_key) or (action, workflow_id) != (call.action, call.workflow_id):
            raise WrongCode(
                f"{name}.effects() tells of {action!r} for workflow {workflow_id!r} under key {key!r}, but it was called "
                f"with {call.action!r} for {call.workflow_id!r} under key {call.idempotency_key!r}. Let it tell these three."
            )


def unaccounted(new: Counter[Effect], calls: Counter[Effect]) -> Counter[Effect]:
    """The new effects beyond those of these calls: one each, under its key or under none."""
    spare = Counter[Effect]((None, *call[1:]) for call in (calls - new).elements())
    return new - calls - spare


def beyond(name: str, before: Any, now: Any, calls: Counter[Effect]) -> tuple[str, Counter[Effect]]:
    """What the tool told beyond these calls, and where: effects; if none, calls of an effect that was there already."""
    effects, repeated = (unaccounted(after - was, calls) for was, after in zip(before, now, strict=True))
    return (name, effects) if effects else (f"{name}{AGAIN}", repeated)


def made_anew(names: Iterable[str]) -> str:
    """A hint, if several tools that can be put back have one class and no names: each run may have made its own."""
    first = next((name.removesuffix(" #2") for name in names if name.endswith(" #2")), "")
    made = f"such as tool = {first.rpartition(':')[2]}()"
    return (
        f" {first} was met as several objects: if each run makes its own, make it once, in its module, {made}."
        if first
        else ""
    )


def sentence(hidden: Mapping[str, Counter[Effect]]) -> str:
    """How many effects of which action were hidden, by the tool's name, and what to do; empty if there were none."""
    said = []
    for name, effects in hidden.items():
        by_action = Counter(action for _, action, _ in effects.elements())
        what = "call" if name.endswith(AGAIN) else "effect"
        said += [f"{counted(n, what)} of action {brief(action, 80)!r} in {name}" for action, n in by_action.items()]
    if not said:
        return ""
    shown = ", ".join(said[:5]) + f", and {len(said) - 5} more" * (len(said) > 5)
    return (
        f"{shown} came from elsewhere than the calls that the explorer made for side effects: from a step or the workflow's "
        "body (or from somebody else who used the provider meanwhile). Make each a side effect, and explore again."
    )
