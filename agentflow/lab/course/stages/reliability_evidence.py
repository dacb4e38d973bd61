"""06: what the notebook on reliability evidence asks, and how its exercise is judged."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from typing import Any, NoReturn

from ....agents import WORKFLOWS
from ....engine import Engine
from ....errors import AgentFlowError
from ....model import Tool, ToolCall
from ...notebook.tables import shown
from ...schedule.stepper import Stepper
from ..checks import CheckFailed
from ..judging import a_kind, answer_of, engine_aside, is_number
from ..outline import RIGHT, Outline, Question, exercise_of


def two_actions(run: Any, request: str) -> None:
    """Two planned actions in one workflow, so two effects are right."""
    run.side_effect("unlock-account", key="unlock-account", arguments=request)
    run.side_effect("write-letter", key="write-letter", arguments=request)


ONE = "A*5 A! expire B*"
HISTORIES = (
    (ONE, "one effect that was asked for twice", 0,
     "The one row has attempts 2: two calls, one effect."),
    ("requests=2 A* B*", "two effects, one for each of two workflows", 0,
     "The rows are of request-1 and of request-2."),
    ("workflow=two_actions A*", "two effects, one for each of two actions of one workflow", 0,
     "Both rows are of request-1, one of unlock-account, one of write-letter."),
    (f"without=idempotency_key {ONE}", "two effects of one planned action, without a key", 1,
     "Both rows are of request-1 and resolve-account, and no key occurs twice: both keys are NULL."),
    (f"without=idempotency_key requests=2 {ONE} B*4",
     "two effects of one action, and another action that is planned and not yet done", 1,
     "Two plans and two rows; but both rows are of request-1, and request-2 has none."),
    ("without=idempotency_key A*5 A! expire B*2 B! expire C*", "three effects of one planned action", 2,
     "All three rows are of request-1 and resolve-account: one was planned, and two are beyond it."),
)  # fmt: skip
"""Schedule, what the world then holds, how many duplicates that is, and what a wrong number overlooks."""


class _WithoutFigures(Engine):
    """An engine that does not answer the exercise itself."""

    def reliability_metrics(self, *_: Tool) -> NoReturn:
        """Nothing. Raises AgentFlowError."""
        raise AgentFlowError(
            "This engine has no reliability_metrics(), because that is the query to be written here. Ask tool_ledger with "
            "query(engine, ...)."
        )


def duplicate_effects(count: Callable[[Engine], Any], engine: Engine) -> str:
    """`count(engine)` counts duplicates under any key, and nothing else. Raises CheckFailed.

    It is tried on histories in another laboratory, so the rows of the lesson stay as they are.
    """
    _number(count, engine, "for the laboratory of this notebook")  # an empty stub ends here
    with (
        engine_aside(engine, workflows={**WORKFLOWS, "two_actions": two_actions}) as played,
        closing(_WithoutFigures(played.database)) as judges,
        Stepper(played) as stepper,
    ):
        _right(count, judges, "while tool_ledger is empty", "nothing", 0, "Where nothing was done, nothing is doubled.")
        for line, holds, right, hint in HISTORIES:
            stepper.play(line)
            _right(count, judges, f"after `{line}`", holds, right, hint)
        stepper.play("A*")
        played.world(ToolCall("made-up", "resolve-account", None, "request-1"))
        _right(count, judges, "after `A*` and a call with a key of its own", "two effects of one action, under two keys", 1,
               "Both rows are of request-1 and resolve-account, under unlike keys.")  # fmt: skip
    return "Solved: your function finds an effect too many, whatever its key."


def _right(count: Callable[[Engine], Any], engine: Engine, where: str, holds: str, right: int, hint: str) -> None:
    """The function returns the right number. Raises CheckFailed, with what it overlooks."""
    found = _number(count, engine, where)
    if found != right:
        wrong = f"{where[0].upper()}{where[1:]} the world holds {holds}. Your function returns {found}, and {right} is right."
        raise CheckFailed(f"{wrong} {hint}")


def _number(count: Callable[[Engine], Any], engine: Engine, where: str) -> int:
    """The number that the function returns. Raises CheckFailed for anything else."""
    found = answer_of(lambda: count(engine), where)
    if isinstance(found, Decimal) and found == found.to_integral_value():
        found = int(found)  # what PostgreSQL's sum() gives
    if not is_number(found):
        raise CheckFailed(f"Your function returns {a_kind(found)} {where}, {shown(found)}. Return a whole number.")
    return int(found)


OUTLINE = Outline(
    name="06-reliability-evidence",
    title="Reliability evidence",
    goal="Kill real workers under load, prove from rows that nothing was lost or doubled, and measure each recovery.",
    minutes=15,
    fast=True,
    questions=(
        Question(
            "which-is-larger",
            "Twelve requests, six workers killed, one of them in the acknowledgment gap. Which figure is larger at the end?",
            {
                "tool execution attempts": RIGHT,
                "business effects": "a repeated call left a second effect. In fact the call in the gap is repeated, and its key "
                "leaves one effect",
                "neither: 12 attempts and 12 effects": "a kill undid the call before it. In fact the tool had committed and "
                "nobody wrote that down, so it is asked again",
                "neither: fewer than 12 of both": "what a killed worker held were lost. In fact its lease ends, and another "
                "worker finishes the work",
            },
            "For the request whose worker died before the acknowledgment the tool was asked twice. The key left one effect.",
        ),
        Question(
            "where-the-time-goes",
            "A worker is killed, and another completes its work. Which part of the time between takes longest here?",
            {
                "noticing that it is dead": RIGHT,
                "claiming its workflow": "a claim had to search for work. In fact it is one statement on an index, and takes a "
                "moment",
                "replaying what it had finished": "a replay ran the steps again. In fact it only reads their recorded results",
                "executing what was missing": "the work took the time. In fact a step takes no time here; with slow steps it "
                "would be the second part",
            },
            "Nobody can see a death from outside. What can be seen is a lease that was not renewed, and it has to end first.",
        ),
    ),
    exercises=(
        exercise_of(
            duplicate_effects,
            "One planned action may leave one effect. Which columns of tool_ledger say whose effect it is, and of what?",
            "GROUP BY workflow_id, action counts the effects of each action. Everything above one is too many.",
            "Sum it up in SQL: SELECT coalesce(sum(effects - 1), 0) FROM (SELECT count(*) AS effects ...) AS each.",
        ),
    ),
)
