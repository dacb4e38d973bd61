"""06: what the notebook on reliability evidence asks, and how its exercise is judged."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from typing import Any, NoReturn

from ....agents import WORKFLOWS
from ....engine import Engine
from ....errors import AgentFlowError
from ....model import ToolCall
from ...notebook.tables import query, shown
from ...schedule.stepper import Stepper
from ..checks import CheckFailed
from ..judging import a_kind, answer_of, engine_aside, is_number
from ..outline import RIGHT, Outline, Question, exercise_of


def two_actions(run: Any, request: str) -> None:
    """Two planned actions in one workflow, so two effects are right."""
    run.side_effect("unlock-account", key="unlock-account", arguments=request)
    run.side_effect("write-letter", key="write-letter", arguments=request)


def two_mails(run: Any, request: str) -> None:
    """The same action planned twice in one workflow, so two effects are right."""
    run.side_effect("mail", key="m1", arguments=request)
    run.side_effect("mail", key="m2", arguments=request)


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
    ("workflow=two_mails A*", "two effects, one for each of two planned e-mails", 0,
     "Both rows are of request-1 and mail, and action_intents has two plans of it."),
    ("workflow=two_mails without=idempotency_key A*3 A! expire B*", "three effects of two planned e-mails", 1,
     "All three rows are of request-1 and mail, and action_intents has two plans of it."),
    ("workflow=two_mails A*3 A! forget expire B*4",
     "two effects under one key, and another e-mail that is planned and not yet sent", 1,
     "Two plans and two rows; but both rows have the key of the first plan, and the second has none."),
)  # fmt: skip
"""Schedule, what the world then holds, how many duplicates that is, and what a wrong number overlooks."""

SEEDS = 25
HELD = """
    SELECT format('%s effects of %s of %s, planned %s times', effects, action, workflow_id, coalesce(planned, 0)) AS told
    FROM (SELECT workflow_id, action, count(*) AS effects FROM tool_ledger GROUP BY workflow_id, action) AS done
    LEFT JOIN (SELECT workflow_id, action, count(*) AS planned FROM action_intents WHERE status <> 'REFUSED'
               GROUP BY workflow_id, action) AS plans USING (workflow_id, action)
    ORDER BY workflow_id, action"""


class _WithoutFigures(Engine):
    """An engine that does not answer the exercise itself."""

    def reliability_metrics(self) -> NoReturn:
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
        engine_aside(engine, workflows={**WORKFLOWS, "two_actions": two_actions, "two_mails": two_mails}) as played,
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
    with engine_aside(engine) as played, closing(_WithoutFigures(played.database)) as judges:
        for seed in range(SEEDS):
            holds = _by_chance(played, random.Random(seed))
            right = played.reliability_metrics()["duplicate_business_effects"]
            hint = "A planned action may leave one effect; those that the tool refused are not counted among the plans."
            _right(count, judges, "in a history made by chance", holds, right, hint)
    return "Solved: your function finds an effect too many, whatever its key."


def _by_chance(engine: Engine, chance: random.Random) -> str:
    """Workflows with planned, refused, repeated and doubled actions; what the world then holds, in words."""
    engine.reset_database()
    for n in range(chance.randint(1, 3)):
        engine.create_workflow("made up", workflow_id=f"request-{n}")
        claim = engine.claim_workflow("A")
        assert claim is not None
        for k in range(chance.randint(0, 3)):
            intent = engine.create_action_intent(claim, f"k{k}", chance.choice(("mail", "pay")))
            if chance.random() < 0.2:
                claim = engine.acknowledge_action(claim, None, intent.key, error={"type": "ToolRefused"})
                continue
            for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
                key = chance.choice((intent.idempotency_key, intent.idempotency_key, None, f"made up {n}{k}"))
                engine.world(ToolCall(key, intent.action, None, claim.workflow_id))
                if chance.random() < 0.3:
                    engine.world.forget_keys()
    effects = query(engine, HELD)
    return ", ".join(row["told"] for row in effects) or "nothing"


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
            "One planned action may leave one effect. tool_ledger says whose effect it is and of what, action_intents what was "
            "planned; one whose status is REFUSED may leave none.",
            "GROUP BY workflow_id, action counts both the effects and the plans. LEFT JOIN them: effects above plans are too "
            "many, and where nothing was planned, above one.",
            "One plan more does not excuse two effects under one key: count(idempotency_key) - count(DISTINCT idempotency_key) "
            "counts those. For each action the greater of the two is too many; sum it up with coalesce(sum(...), 0).",
        ),
    ),
)
