"""08: what the notebook on one's own workflow asks, and how its exercise is judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....engine import Engine
from ....errors import CrashInjected
from ...crashes.crash_at import CrashAt, by_exception
from ...history.entries import Row
from ...notebook.tables import query
from ..checks import CheckFailed
from ..judging import engine_aside
from ..outline import RIGHT, Outline, Question, exercise_of

ITEM = "a lamp"
PAID, BACK = ("charge", "ship"), ("charge", "refund")


def order(workflow: Callable[[Any, Any], Any], engine: Engine) -> str:
    """`workflow(run, item)` charges, then ships, and refunds if shipping is refused, wherever a worker dies.

    It runs in another schema on the server of `engine`. Raises CheckFailed.
    """
    with engine_aside(engine, workflows={"order": workflow}) as shop:
        for refused, wanted in ((False, PAID), (True, BACK)):
            shop.world.fault = lambda call, no=refused: "refuse" if no and call.action == "ship" else None
            for crash in range(4):
                _judge_one(shop, f"{'refused' if refused else 'shipped'}-{crash}", crash, wanted)
    return "Solved: the customer has the lamp or the money back, wherever a worker dies."


def _judge_one(shop: Engine, workflow_id: str, crash: int, wanted: tuple[str, ...]) -> None:
    """One run, whose worker dies right after the tool call of this number (0: after none). Raises CheckFailed."""
    shop.create_workflow(ITEM, name="order", workflow_id=workflow_id)
    if crash:
        try:
            shop.with_hook(by_exception(shop, CrashAt("tool", "after", nth=crash))).run_once("A")
        except CrashInjected:
            shop.expire_lease(workflow_id)
    shop.run_once("B")
    case = "shipping is refused" if wanted == BACK else "all goes well"
    case += f", and a worker dies right after tool call {crash}" if crash else ""
    _ended_well(shop.get_workflow(workflow_id) or {}, case)
    _left_in_the_world(shop, workflow_id, case, wanted)


def _ended_well(row: Row, case: str) -> None:
    error = row.get("error") or {}
    if error.get("type") == "NotImplementedError":
        raise NotImplementedError
    if error.get("type") == "StepFailed":
        raise CheckFailed(
            f"When {case}, your workflow failed: the refusal is raised as StepFailed, and nothing caught it. The customer has "
            "paid for nothing. Look at the line that asks for the shipping: what happens after it raises?"
        )
    if error.get("type") == "DeterminismError":
        raise CheckFailed(
            f"When {case}, the next worker asked for something other than what was recorded: {error['message'].split('. ')[0]}. "
            "Keys must be the same in every run of one order."
        )
    if error:
        raise CheckFailed(f"When {case}, your workflow failed: {error['type']}: {error['message']}")
    if row["status"] != "completed":
        raise CheckFailed(f"When {case}, your workflow is left {row['status']}. It must reach its end without help.")


def _left_in_the_world(shop: Engine, workflow_id: str, case: str, wanted: tuple[str, ...]) -> None:
    sql = "SELECT action, outcome FROM tool_attempts WHERE workflow_id = :id ORDER BY attempt_id"
    tried = query(shop, sql, id=workflow_id)
    effects = [row["action"] for row in tried if row["outcome"] == "effect"]
    asked = [row["action"] for row in tried]
    if not asked:
        raise CheckFailed(
            "Nothing was asked of the shop. An action reaches it only through run.side_effect, as `reply` above sends its mail."
        )
    if strange := sorted(set(asked) - {"charge", "ship", "refund"}):
        raise CheckFailed(f"The shop knows charge, ship and refund, and was asked for {strange[0]!r}.")
    if "ship" not in asked:
        raise CheckFailed(
            f"When {case}, nothing was shipped. The shop was only asked to {', '.join(dict.fromkeys(asked))}."
        )
    if asked[0] != "charge":
        raise CheckFailed(
            f"The shop was first asked to {asked[0]}. Charge first: what is shipped cannot be called back."
        )
    if len(effects) > len(set(effects)):
        twice = next(action for action in effects if effects.count(action) > 1)
        raise CheckFailed(
            f"When {case}, there are {effects.count(twice)} effects of {twice}: it was asked for under more than one key."
        )
    if tuple(effects) != wanted:
        raise CheckFailed(
            f"When {case}, the world holds {', '.join(effects)}, and it should hold {', '.join(wanted)}. "
            + (
                "A customer who has the lamp gets no refund: where does your function go on after the shipping?"
                if wanted == PAID
                else "A customer who was charged and got nothing gets a refund."
            )
        )


OUTLINE = Outline(
    name="08-your-own-workflow",
    title="Your own workflow",
    goal="Read a workflow and run it, let the explorer find what no test run shows, and write one of your own.",
    minutes=15,
    questions=(
        Question(
            "another-key",
            "A is killed when the plan to send is committed and nothing is sent. B runs the same function, and makes another "
            "key. What happens?",
            {
                "B sends under its own key": "the engine took any key. In fact it has recorded what was planned, and compares "
                "each call with it",
                "B sends under the key of A": "the key were taken from the plan. In fact the function has to ask for it, as B's "
                "function did in 04",
                "B is refused, and the workflow fails": RIGHT,
                "nothing was sent, so B starts over": "a plan did not count. In fact it was committed, and A may have been about "
                "to send",
            },
            "The row of the plan holds A's key. In 04, B's function asked for that very key; here it asks for another. The "
            "engine cannot know whether both mean one mail, and a wrong guess would be a second mail or a lost one.",
        ),
    ),
    exercises=(
        exercise_of(
            order,
            'Three actions, each with its own key: run.side_effect("charge", key="charge", arguments=item), and so on.',
            "A refused action raises StepFailed. That refusal is recorded, and a replay raises it again.",
            'try: return run.side_effect("ship", key="ship", arguments=item), and in `except StepFailed:` the refund.',
        ),
    ),
)
