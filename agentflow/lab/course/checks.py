"""Proofs after a run: small functions that read the tables and name the row that is wrong.

Each check returns a sentence when the rows are right and raises CheckFailed when they are not; a notebook shows that as one
sentence too, which names table, id, column, the value found and the value expected.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from ...engine import Engine
from ...run import Ledger
from ..history.belief import belief_of, with_unseen
from ..history.entries import Row
from ..history.words import by, counted
from ..laboratory.laboratory import emptied
from ..notebook.tables import effects_of, query, shown


class CheckFailed(AssertionError):
    """Rows or an answer are not as they should be; a notebook shows the sentence, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        """The sentence, wrapped between words: JupyterLab would break a longer line anywhere."""
        return textwrap.wrap(f"Not yet. {self}", 80, break_long_words=False, break_on_hyphens=False)


def wrong(table: str, row_id: Any, column: str, found: Any, wanted: Any, hint: str = "") -> CheckFailed:
    """The failure that names a row: table, id, column, the value found and the value expected."""
    sentence = f"{table}, row {row_id!r}, column {column}: found {shown(found)}, expected {shown(wanted)}. {hint}"
    return CheckFailed(sentence.strip())


def _workflow(engine: Engine, workflow_id: str) -> Row:
    if said := emptied(engine):
        raise CheckFailed(said)
    row = engine.get_workflow(workflow_id)
    if row is None:
        raise CheckFailed(f"workflows: there is no row {workflow_id!r}. Run the cell that submits it, then this one.")
    return row


def completed(engine: Engine, *workflow_ids: str) -> str:
    """Each workflow is completed; the table's CHECKs then guarantee that it has its result and that nobody holds it."""
    for workflow_id in workflow_ids:
        row = _workflow(engine, workflow_id)
        if row["status"] != "completed":
            raise wrong("workflows", workflow_id, "status", row["status"], "completed", "Recover it first.")
    return f"completed: {', '.join(workflow_ids)}"


def nothing_lost(engine: Engine, workflows: int) -> str:
    """There are this many workflows, each is completed, and each planned action has left exactly one business effect."""
    found = query(engine, "SELECT id FROM workflows ORDER BY id")
    if said := emptied(engine):
        raise CheckFailed(said)
    if len(found) != workflows:
        raise CheckFailed(
            f"workflows: found {counted(len(found), 'row')}, expected {workflows}. Run the cells above again."
        )
    for row in found:
        completed(engine, row["id"])
        one_effect(engine, row["id"])
    return f"{counted(workflows, 'workflow')} completed, one effect for each planned action"


def one_effect(engine: Engine, workflow_id: str) -> str:
    """Each planned action of the workflow is acknowledged and has left exactly one business effect."""
    intents = with_unseen(_workflow(engine, workflow_id)["actions"], engine.history(workflow_id))
    judged = belief_of(intents, effects_of(engine, workflow_id))
    for action in judged.actions:
        key = action.idempotency_key
        if action.status not in ("ACKNOWLEDGED", None):
            raise wrong("action_intents", key, "status", action.status, "ACKNOWLEDGED", "The engine does not know yet.")
        for effect in action.effects if action.status is None else action.effects[1:]:
            found, wanted = effect["idempotency_key"], "one row for each planned action"
            raise wrong("tool_ledger", effect["effect_id"], "idempotency_key", found, wanted)
        if action.unseen:
            raise CheckFailed(f"What the tool of your own did for {key!r} is not observed. Let it tell in effects().")
        if action.missing:
            raise CheckFailed(f"tool_ledger: no row has idempotency_key {key!r}, which was planned. It is lost.")
    return f"one effect for each planned action of {workflow_id}"


def attempts(engine: Engine, workflow_id: str, expected: int) -> str:
    """The tool was called this many times in all for the workflow."""
    rows = effects_of(engine, workflow_id)
    found = sum(row["attempts"] or 1 for row in rows)
    if found != expected:
        where = rows[-1]["effect_id"] if rows else workflow_id
        raise wrong("tool_ledger", where, "attempts", found, expected, "Reset and follow the moves again.")
    return f"the tool was called {counted(expected, 'time')} for {workflow_id}"


def refused(engine: Engine, workflow_id: str, *, token: int) -> str:
    """The history shows that a write under this token was refused, because the row had reached a higher one."""
    rows = [entry for entry in engine.history(workflow_id) if entry["event"] == "write_refused"]
    if not rows:
        raise CheckFailed(f"history: {workflow_id} has no entry write_refused. Play the stale worker again.")
    found = rows[-1]
    place, reached = f"{workflow_id}/{found['n']}", found["detail"]["row_token"]
    if found["fence_token"] != token:
        raise wrong("history", place, "fence_token", found["fence_token"], token)
    if reached <= token:
        raise wrong("history", place, "row_token", reached, f"more than {token}", "Nobody had taken over yet.")
    return f"a write under token {token} was refused{by(found['detail']['guards'])}: the row holds token {reached}"


def recorded(engine: Engine, workflow_id: str, *steps: str) -> str:
    """Each of these steps has a checkpoint with a result in it."""
    found = {step["step_id"]: step["value"] for step in _workflow(engine, workflow_id)["steps"]}
    for step in steps:
        if step not in found:
            raise CheckFailed(f"steps: there is no row '{workflow_id}/{step}'. Run the cells above, then this one.")
        if found[step] is None:
            raise wrong(
                "steps", f"{workflow_id}/{step}", "value", None, "a result", "It was marked as done but never computed."
            )
    return f"a result is recorded for {', '.join(steps)}"


def tokens(engine: Engine, workflow_id: str) -> str:
    """Every checkpoint was written under a token that the row had reached, and never under an older one than before."""
    row, highest = _workflow(engine, workflow_id), 0
    for step in row["steps"]:
        if not highest <= step["fence_token"] <= row["fence_token"]:
            place, wanted = f"{workflow_id}/{step['step_id']}", f"{highest} to {row['fence_token']}"
            raise wrong("steps", place, "fence_token", step["fence_token"], wanted)
        highest = step["fence_token"]
    return f"{counted(len(row['steps']), 'checkpoint')}, the last under token {highest}"


def ledgers(runs: Sequence[Ledger], *, executed: int, side_effects: int) -> str:
    """These runs together executed this many steps and sent this many side effects."""
    steps = sum(ledger.cost for ledger in runs)
    sent = [name for ledger in runs for name in ledger.side_effects]
    if steps != executed:
        raise wrong("execution ledger", f"of {len(runs)} runs", "executed", steps, executed)
    if len(sent) != side_effects:
        raise wrong("execution ledger", f"of {len(runs)} runs", "side_effects", sent, f"{side_effects} of them")
    return f"{counted(executed, 'step')} executed, {counted(side_effects, 'side effect')} sent"
