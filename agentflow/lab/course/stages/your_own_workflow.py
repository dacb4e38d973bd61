"""08: what the notebook on one's own workflow asks, and how its exercise is judged."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, get_args

from ....engine import Engine
from ....errors import AlreadyFinished, CrashInjected
from ....model import Edge, ToolCall
from ....tools import ToolFault
from ...crashes.crash_at import CrashAt, by_exception
from ...history.entries import Row
from ...notebook.tables import query
from ..checks import CheckFailed
from ..elsewhere import FAR, elsewhere
from ..judging import engine_aside
from ..outline import RIGHT, Outline, Question, exercise_of

PAID, BACK = ("charge", "ship"), ("charge", "refund")
CASES = {
    (): PAID, ("ship",): BACK, ("charge",): (), ("charge", "ship"): (), ("ship", "refund"): ("charge",),
}  # fmt: skip
"""What the shop refuses, and what it has then done in the end."""
GERUND = {"charge": "charging", "ship": "shipping", "refund": "refunding"}
OVERLOOKED: dict[tuple[str, ...], str] = {
    PAID: "A customer who has the lamp gets no refund: where does your function go on after the shipping?",
    BACK: "A customer who was charged and got nothing gets a refund.",
    (): "A customer who was never charged gets neither the lamp nor a refund: which refusal does your function catch?",
    ("charge",): "The refund was refused, so nothing else can be done; an operator must see that.",
}


def order(workflow: Callable[[Any, Any], Any], engine: Engine) -> str:
    """`workflow(run, item)` charges, then ships, and refunds if shipping is refused, wherever a worker dies.

    It runs in another schema on the server of `engine`. Raises CheckFailed.
    """
    later = elsewhere(workflow, FAR)
    with engine_aside(engine, workflows={"order": workflow}) as shop:
        for refused in CASES:
            _judge_one(shop, refused, None, (workflow, later))
            for edge, nth in product(get_args(Edge), (1, 2, 3)):
                _judge_one(shop, refused, CrashAt("tool", edge, nth=nth), (workflow, later))
            for action in CASES[refused]:
                _judge_one(shop, refused, action, (workflow, later))
    return "Solved: the customer has the lamp or the money back, wherever a worker dies."


def _judge_one(
    shop: Engine, refused: Sequence[str], fault: CrashAt | str | None, functions: Sequence[Callable[..., Any]]
) -> None:
    """One order; its worker dies there, or the reply to this action is lost, and it is finished. Raises CheckFailed.

    After a death another process goes on, far later; after a lost reply the same one, which remembers its first try.
    """
    case, lost = " and ".join(f"{GERUND[one]} is refused" for one in refused) or "all goes well", {fault}
    place = f"{fault.edge}-{fault.nth}" if isinstance(fault, CrashAt) else str(fault)
    workflow_id = "-".join(("order", *refused, place))

    def answers(call: ToolCall) -> ToolFault | None:
        if call.action in lost:
            lost.discard(call.action)
            return "lose_reply"
        return "refuse" if call.action in refused else None

    shop.world.fault, shop.workflows["order"] = answers, functions[0]
    shop.create_workflow(f"a lamp, {workflow_id}", name="order", workflow_id=workflow_id)
    if isinstance(fault, str):
        case += f", and the reply to {fault} is lost"
    elif fault:
        case += f", and a worker dies right {fault.edge} tool call {fault.nth}"
        with contextlib.suppress(CrashInjected):
            shop.with_hook(by_exception(shop, fault)).run_once("A")
    shop.workflows["order"] = functions[-1 if isinstance(fault, CrashAt) else 0]
    for _ in range(2):
        with contextlib.suppress(AlreadyFinished):
            shop.expire_lease(workflow_id)
        shop.run_once("B")
    back = query(
        shop, "SELECT 1 AS refund FROM tool_ledger WHERE workflow_id = :id AND action = 'refund'", id=workflow_id
    )
    _ended_well(shop.get_workflow(workflow_id) or {}, case, refused, refunded=bool(back))
    _left_in_the_world(shop, workflow_id, case, refused)


def _ended_well(row: Row, case: str, refused: Sequence[str], *, refunded: bool) -> None:
    error = row.get("error") or {}
    if error.get("type") == "NotImplementedError":
        raise NotImplementedError
    if error.get("type") == "StepFailed":
        if "ToolRefused" not in error["message"]:
            raise CheckFailed(
                f"When {case}, your workflow failed: {error['message'].partition('. Catch StepFailed')[0]}"
            )
        if "charge" in refused or "refund" in refused:
            return
        if refunded:
            raise CheckFailed(
                f"When {case}, your workflow failed: the customer has the money back, and then your function raises StepFailed. "
                "Return instead, and ask for nothing that may be refused again: for this order, all is done."
            )
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
    if "refund" in refused:
        raise CheckFailed(
            f"When {case}, your workflow is {row['status']}: the customer has paid, has nothing, and nobody is told. Let the "
            "refund's refusal fail the workflow: an operator must see that."
        )
    if row["status"] != "completed":
        raise CheckFailed(f"When {case}, your workflow is left {row['status']}. It must reach its end without help.")


def _left_in_the_world(shop: Engine, workflow_id: str, case: str, refused: Sequence[str]) -> None:
    wanted = CASES[tuple(refused)]
    sql = "SELECT action, outcome FROM tool_attempts WHERE workflow_id = :id ORDER BY attempt_id"
    tried = query(shop, sql, id=workflow_id)
    effects = [row["action"] for row in tried if row["outcome"] == "effect"]
    asked = [row["action"] for row in tried]
    if not asked:
        raise CheckFailed(
            "Nothing was asked of the shop. An action reaches it only through run.side_effect, as `checkout` above charges."
        )
    if strange := sorted(set(asked) - {"charge", "ship", "refund"}):
        raise CheckFailed(f"The shop knows charge, ship and refund, and was asked for {strange[0]!r}.")
    if "ship" not in asked and wanted:
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
            f"When {case}, the world holds {', '.join(effects) or 'nothing'}, and it should hold "
            f"{', '.join(wanted) or 'nothing'}. {OVERLOOKED[wanted]}"
        )


OUTLINE = Outline(
    name="08-your-own-workflow",
    title="Your own workflow",
    goal="Write a workflow and a tool, kill a worker in the gap, and let the explorer find what no test run shows.",
    minutes=15,
    questions=(
        Question(
            "another-key",
            "A is killed when the plan to charge is committed and nobody is charged. B runs the same function, and makes another "
            "key. What happens?",
            {
                "B charges under its own key": "the engine took any key. In fact it has recorded what was planned, and compares "
                "each call with it",
                "B charges under the key of A": "the key were taken from the plan. In fact the function has to ask for it, as "
                "B's function did in 04",
                "B is refused, and the workflow fails": RIGHT,
                "nobody was charged, so B starts over": "a plan did not count. In fact it was committed, and A may have "
                "been about to charge",
            },
            "The row of the plan holds A's key. In 04, B's function asked for that very key; here it asks for another. The "
            "engine cannot know whether both mean one charge, and a wrong guess would be a second charge or a lost one.",
        ),
    ),
    exercises=(
        exercise_of(
            order,
            'Three actions, each with its own key: run.side_effect("charge", key="charge", arguments=item), and so on.',
            "A refused action raises StepFailed. That refusal is recorded, and a replay raises it again.",
            "Put the shipping alone into the `try`, and the refund into `except StepFailed:`. What if the charge is refused?",
        ),
    ),
)
