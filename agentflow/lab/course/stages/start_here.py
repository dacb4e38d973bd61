"""00: what the first notebook asks, and how its exercise is judged."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from ....engine import Engine
from ....model import ToolCall
from ....statements import Statement
from ....statements.world import REFUSE
from ...history.words import counted
from ...notebook.tables import effects_of, shown
from ..checks import CheckFailed
from ..judging import a_kind, answer_of, is_number
from ..outline import RIGHT, Outline, Question, exercise_of

UNKNOWN = "a workflow that does not exist"
DOUBLED = "a workflow whose effect was doubled on purpose"
MANY = "a workflow with several actions and calls"


def count_effects(count: Callable[[Engine, str], Any], engine: Engine) -> str:
    """`count(engine, workflow_id)` returns how many effects the world holds, also 0, and also 2. Raises CheckFailed."""
    rows = effects_of(engine, "request-1")
    if not rows:
        raise CheckFailed("tool_ledger has no effect of request-1 yet. Run the cells above, then this one.")
    _plain(count, engine, "request-1")  # before anything is written: an empty stub ends here
    doubled = f"request-{uuid.uuid4().hex}"
    made = [doubled]
    try:
        for _ in range(2):
            engine.world(ToolCall(None, "resolve-account", None, doubled))  # no key: two effects
        _compare(engine, count, doubled)
        for wanted in (0, 1, 2, 3, 5):
            made.append(_made_up(engine, doubled, wanted))
        for name, wanted in zip(made[1:], (0, 1, 2, 3, 5), strict=True):
            if (found := _plain(count, engine, name, MANY)) != wanted:
                raise CheckFailed(
                    f"Your function returns {found} for {MANY}, and tool_ledger has {counted(wanted, 'row')} for it."
                )
    finally:
        for name in made:
            _take_back(engine, name)
    return "Solved: your function sees one effect, none, and the two that must never be."


def _made_up(engine: Engine, like: str, effects: int) -> str:
    """A workflow whose id resembles others: so many effects of several actions, one repeated, one refusal, keys forgotten."""
    name = f"{like}{'0' * effects}_" if effects % 2 else f"{like[:-1].upper()}%{effects}"
    for n in range(effects):
        for _ in range(2 if n % 3 else 1):
            engine.world(ToolCall(f"{name}:{n}" if n % 3 else None, f"action-{n // 2}", None, name))
    engine.database.run(REFUSE, {"p_key": f"{name}:refused", "p_workflow": name, "p_action": "action-0"})
    engine.database.run(_FORGET_KEYS, {"p_workflow": name})
    return name


def _compare(engine: Engine, count: Callable[[Engine, str], Any], doubled: str) -> None:
    """The function is right about three workflows. Raises CheckFailed with the mistake that its numbers suggest."""
    rows = effects_of(engine, "request-1")
    one, two = _plain(count, engine, "request-1"), _plain(count, engine, doubled, DOUBLED)
    try:
        none: int | CheckFailed = _plain(count, engine, f"request-{uuid.uuid4().hex}", UNKNOWN)
    except CheckFailed as failed:
        none = failed  # to be said last: another mistake may explain it
    if one == two == none:
        raise CheckFailed(
            f"Your function returns {one} for request-1, for {DOUBLED}, and for {UNKNOWN}. They have {len(rows)}, 2 and 0 rows "
            "in tool_ledger: your number does not depend on workflow_id."
        )
    if one != len(rows):
        calls = sum(row["attempts"] for row in rows)
        called = ", whose attempts are your number: the calls of the tool" if one == calls else ""
        raise CheckFailed(
            f"Your function returns {one} for request-1, and tool_ledger has {counted(len(rows), 'row')} for it{called}."
        )
    if two != 2:
        raise CheckFailed(f"Your function returns {two} for {DOUBLED}, and tool_ledger has 2 rows for it.")
    if isinstance(none, CheckFailed):
        raise none
    if none != 0:
        raise CheckFailed(f"Your function returns {none} for {UNKNOWN}, and tool_ledger has no row for it.")


def _plain(count: Callable[[Engine, str], Any], engine: Engine, workflow_id: str, who: str = "") -> int:
    """The number that the function gave. Raises CheckFailed for anything that is not a number."""
    who = who or workflow_id
    try:
        found = answer_of(lambda: count(engine, workflow_id), f"for {who}")
    except CheckFailed as failed:
        none = " tool_ledger has no row for it: what does your query give then?" if who == UNKNOWN else ""
        raise CheckFailed(f"{failed}{none}") from None
    if is_number(found):
        return int(found)
    if found is None:
        no_row = "tool_ledger has no row for it, and that is a number too."
        hint = no_row if who == UNKNOWN else "does it end with `return`?"
        raise CheckFailed(f"Your function returns nothing (None) for {who}: {hint}")
    if isinstance(found, list | dict):
        raise CheckFailed(f"Your function returns {a_kind(found)} for {who}: {shown(found)}. The check wants a number.")
    raise CheckFailed(f"Your function returns {a_kind(found)} for {who}, {shown(found)}. Return a whole number.")


_FORGET_KEYS = Statement(
    "forget_keys",
    "None: the made-up workflow belongs to this check alone.",
    "UPDATE agentflow_world.tool_ledger SET remembered = false WHERE workflow_id = %(p_workflow)s RETURNING effect_id",
)

_FORGET_EFFECTS = Statement(
    "forget_effects",
    "None: the made-up workflow belongs to this check alone.",
    """\
WITH attempts AS (
    DELETE FROM agentflow_world.tool_attempts
    WHERE workflow_id = %(p_workflow)s
)
DELETE FROM agentflow_world.tool_ledger
WHERE workflow_id = %(p_workflow)s
RETURNING effect_id""",
)


def _take_back(engine: Engine, workflow_id: str) -> None:
    """Deletes the world's rows of this made-up workflow, so that the figures stay those of the lesson."""
    engine.database.run(_FORGET_EFFECTS, {"p_workflow": workflow_id})


OUTLINE = Outline(
    name="00-start-here",
    title="Start here",
    goal="Kill a worker at the worst moment, watch another finish, and read from the rows what the world did.",
    minutes=15,
    fast=True,
    questions=(
        Question(
            "who-makes-it-run",
            "A request has come over HTTP. Which route of the API makes somebody work on it?",
            {
                "POST /workflows, which submits it": "submitting ran the workflow. In fact it only writes one row, so that the "
                "request outlives the process that accepted it",
                "POST /workers/{worker_id}/run-once": RIGHT,
                "none: the API only takes requests in": "work needed a process of its own. In fact any process that claims the "
                "row may do it, even an API that is asked to",
            },
            "Submitting wrote one row, and its state is still PENDING. A process of its own, `agentflow worker`, can work on it, "
            "too.",
        ),
        Question(
            "when-b-is-done",
            "B finds recorded that A meant to unlock the account, and no answer. When B is done, what stands in the tool ledger?",
            {
                "nothing: the work of A is lost": "a crash took back what was committed. In fact the tool had committed its row "
                "before A died",
                "one effect, tool called once": "B could know that the tool had acted. In fact only A knew, and the intent still "
                "said PENDING",
                "one effect, tool called twice": RIGHT,
                "two effects": "a second call had to act a second time. In fact both carried one key, and the tool answered the "
                "second from its record",
            },
            "B could not know, so it called again. The tool found the key of A's call in its record, and did not act again.",
        ),
    ),
    exercises=(
        exercise_of(
            count_effects,
            "The world's record is the table tool_ledger. Its column workflow_id says for whom each row is.",
            "One row is one effect, and the column attempts counts calls. SELECT count(*) gives a number even for no row.",
            'query(engine, "SELECT count(*) AS n ... WHERE workflow_id = :id", id=workflow_id) gives a list of rows; [0] is the '
            "first, and a row is a dict with a key for each column.",
        ),
    ),
)
