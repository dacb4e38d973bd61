"""Small workflows drawn at random: steps, side effects, waits and failures, in any order. A seed gives the same one each time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from agentflow import StepFailed

MOST_CALLS = 3
KINDS = ("step", "side_effect", "wait", "fails", "depends")


def drawn(seed: int) -> Callable[[Any, Any], Any]:
    """A workflow function of one to three calls, drawn with this seed."""
    chance = random.Random(seed)
    calls = [(chance.choice(KINDS), f"{number}") for number in range(chance.randint(1, MOST_CALLS))]
    calls.sort(key=lambda call: call[0] == "fails")  # the explorer's dry run sees no event behind a failure

    def function(run: Any, told: Any) -> Any:
        return [_called(run, kind, name) for kind, name in calls]

    return function


def _called(run: Any, kind: str, name: str) -> Any:
    if kind == "side_effect":
        return run.side_effect("resolve_account", f"act-{name}", arguments={"number": name})
    if kind == "wait":
        return run.wait_for_event(f"wait-{name}", f"event-{name}")
    if kind == "depends":
        first = run.step(f"look-{name}", lambda: len(name) % 2)
        return run.side_effect("resolve_account", f"then-{name}") if first else None
    if kind == "fails":
        try:
            return run.step(f"fail-{name}", _raise)
        except StepFailed as failed:
            return failed.step
    return run.step(f"do-{name}", lambda: {"done": name})


def _raise() -> None:
    raise ValueError("drawn to fail")
