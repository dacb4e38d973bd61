"""00: what the first notebook asks, and how its exercise is judged."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from ...front import Engine
from ...model import ToolCall
from ...schema import tool_attempts, tool_ledger
from ..checks import CheckFailed, wrong
from ..exercise import a_kind, asked, is_number
from ..look import effects_of, shown
from ..outline import Exercise, Option, Outline, Question

UNKNOWN = "a workflow that does not exist"
DOUBLED = "a workflow whose effect was doubled on purpose"


def count_effects(count: Callable[[Engine, str], Any], engine: Engine) -> str:
    """`count(engine, workflow_id)` says how many effects the world holds, also 0, and also 2. Raises CheckFailed."""
    rows = effects_of(engine, "request-1")
    if not rows:
        raise CheckFailed("tool_ledger has no effect of request-1 yet. Run the cells above, then this one.")
    _plain(count, engine, "request-1")  # before anything is written: an empty stub ends here
    doubled = f"doubled-{uuid.uuid4().hex}"
    try:
        for _ in range(2):
            engine.world(ToolCall(None, "resolve-account", None, doubled))  # no key: two effects
        _compare(engine, count, doubled)
    finally:
        _take_back(engine, doubled)
    return "Solved: your function sees one effect, none, and the two that must never be."


def _compare(engine: Engine, count: Callable[[Engine, str], Any], doubled: str) -> None:
    """The function is right about three workflows. Raises CheckFailed with the mistake that its numbers look like."""
    rows = effects_of(engine, "request-1")
    one, two = _plain(count, engine, "request-1"), _plain(count, engine, doubled, DOUBLED)
    try:
        none: int | CheckFailed = _plain(count, engine, f"unknown-{uuid.uuid4().hex}", UNKNOWN)
    except CheckFailed as failed:
        none = failed  # to be said last: another mistake may explain it
    if one == two == none:
        raise CheckFailed(
            f"Your function says {one} for request-1, for {DOUBLED}, and for {UNKNOWN}. Count the rows of the workflow "
            "that is asked for: SELECT count(*) ... WHERE workflow_id = :id."
        )
    if one != len(rows):
        calls = sum(row["attempts"] for row in rows)
        hint = "Count rows, not attempts." if one == calls else "One row of tool_ledger is one effect."
        raise wrong("tool_ledger", "request-1", "count(*)", one, len(rows), hint)
    if two != 2:
        raise CheckFailed(f"Your function says {two} for {DOUBLED}: it has two rows, and each row is an effect.")
    if isinstance(none, CheckFailed):
        raise none
    if none != 0:
        raise CheckFailed(f"Your function says {none} for {UNKNOWN}: no row is no effect, so it must say 0.")


def _plain(count: Callable[[Engine, str], Any], engine: Engine, workflow_id: str, who: str = "") -> int:
    """The number that the function gave. Raises CheckFailed for anything that is not a number."""
    who = who or workflow_id
    try:
        found = asked(f"for {who}", lambda: count(engine, workflow_id))
    except CheckFailed as failed:
        none = " It has no row at all: SELECT count(*) gives one row with 0 even then." if who == UNKNOWN else ""
        raise CheckFailed(f"{failed}{none}") from None
    if is_number(found):
        return int(found)
    if found is None:
        hint = "no row must count as 0." if who == UNKNOWN else "does it end with `return`?"
        raise CheckFailed(f"Your function says nothing (None) for {who}: {hint}")
    if isinstance(found, list | dict):
        hint = "Take the number out of it: query(...)[0] is the first row, a dict with a key for each column."
        raise CheckFailed(f"Your function returns {a_kind(found)} for {who}. {hint}")
    raise CheckFailed(f"Your function returns {a_kind(found)} for {who}, {shown(found)}. Return a whole number.")


def _take_back(engine: Engine, workflow_id: str) -> None:
    """The world has no row of this made-up workflow, so that the figures stay those of the lesson."""
    with engine.database.alchemy.begin() as connection:
        for table in (tool_attempts, tool_ledger):
            connection.execute(table.delete().where(table.c.workflow_id == workflow_id))


STAGE = Outline(
    name="00-start-here",
    title="Start here",
    goal="Kill a worker at the worst moment, watch another finish, and prove one effect from the rows.",
    minutes=15,
    fast=True,
    questions=(
        Question(
            "when-b-is-done",
            "B finds the plan to unlock, and no answer. When B is done, what stands in the tool ledger?",
            (
                Option(
                    "nothing: the work of A is lost",
                    "that a crash takes back what was committed: the tool committed in a system of its own, and no "
                    "rollback of ours reaches there",
                ),
                Option(
                    "one effect, tool called once",
                    "that somebody could know that the tool had acted: only A knew, so B must ask again",
                ),
                Option("one effect, tool called twice"),
                Option(
                    "two effects",
                    "that a second call must act a second time: both calls carried the same key, and the tool knew it",
                ),
            ),
            "Execution is at least once; the key leaves one business effect.",
        ),
    ),
    exercises=(
        Exercise(
            "count_effects",
            (
                "The table is tool_ledger, and its column workflow_id says for whom.",
                "One row is one effect. The column attempts counts calls; you want rows.",
                'query(engine, "SELECT count(*) AS n ... WHERE workflow_id = :id", id=workflow_id) gives a list of dicts.',
            ),
            count_effects,
        ),
    ),
)
