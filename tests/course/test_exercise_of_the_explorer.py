"""The exercise of 07: the solution passes, the stub is told what to do, plausible mistakes get a fitting message."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from agentflow import Engine
from agentflow.lab.course import stages
from agentflow.lab.course.checks import CheckFailed
from agentflow.lab.course.judging import NOT_SOLVED, judged
from tests.solutions import every_interleaving

JUDGE = stages.outline("07-every-interleaving").exercise("break_quietly").judge


def without_key(self: Engine, claim: Any, intent: Any, tool: Any) -> Any:
    return Engine.call_tool(self, claim, replace(intent, idempotency_key=None), tool)


@pytest.mark.parametrize("solution", [every_interleaving.break_quietly, without_key])
def test_an_engine_that_doubles_only_after_a_loss_is_accepted(engine: Engine, solution: Callable[..., Any]) -> None:
    said = judged(JUDGE, solution, engine)
    assert said.startswith("Solved") and "A*5 expire B*2" in said


def test_the_stub_is_told_that_it_is_one(engine: Engine) -> None:
    def stub(_self: Engine, _claim: Any, _intent: Any, _tool: Any) -> Any:
        raise NotImplementedError

    assert judged(JUDGE, stub, engine) == NOT_SOLVED


def unchanged(self: Engine, claim: Any, intent: Any, tool: Any) -> Any:
    return Engine.call_tool(self, claim, intent, tool)


def twice(self: Engine, claim: Any, intent: Any, tool: Any) -> Any:
    without_key(self, claim, intent, tool)
    return without_key(self, claim, intent, tool)


def never(_self: Engine, _claim: Any, _intent: Any, _tool: Any) -> Any:
    return None


def wrong_name(_self: Engine, _claim: Any, intent: Any, tool: Any) -> Any:
    return tool(intent.idempotency)


def wrong_field(self: Engine, claim: Any, intent: Any, tool: Any) -> Any:
    return Engine.call_tool(self, claim, replace(intent, no_such=1), tool)


def misspelt_after_a_loss(self: Engine, claim: Any, intent: Any, tool: Any) -> Any:
    if claim.fence_token > 1:
        return tokens  # type: ignore[name-defined]  # noqa: F821
    return Engine.call_tool(self, claim, intent, tool)


def counting(self: Engine, claim: Any, intent: Any, tool: Any) -> Any:
    if next(CALLS) % 2:
        without_key(self, claim, intent, tool)
    return Engine.call_tool(self, claim, intent, tool)


CALLS = itertools.count(1)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (unchanged, "Every invariant holds on all 888 schedules, so nothing is broken: .* By what"),
        (twice, "doubled without any fault, by .*: the first test would catch that"),
        (
            counting,
            "^Your function asks for one thing now and for another later, on the same rows. What is explored must",
        ),
        (never, "Broken, but in a different way"),
        (wrong_name, "raised AttributeError when the explorer called it: .*`return tool.intent.idempotency.`"),
        (wrong_field, "TypeError when the explorer called it: .*'no_such'.*at `return Engine.call_tool.*no_such=1"),
        (misspelt_after_a_loss, "NameError when the explorer called it: .*'tokens' is not defined, at `return tokens"),
    ],
)
def test_a_plausible_mistake_gets_a_message_that_fits(engine: Engine, wrong: Callable[..., Any], hint: str) -> None:
    with pytest.raises(CheckFailed, match=hint):
        judged(JUDGE, wrong, engine)
