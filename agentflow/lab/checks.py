"""Questions before, proofs after: small functions that read the tables and name the row that is wrong.

Each check returns a sentence when the rows are right and raises CheckFailed, shown as one sentence too, when they are
not: table, id, column, what stands there, what should. A question never blocks: without an answer the notebook goes on.
What does not live here: the exercises' checks (`exercises`).
"""

from __future__ import annotations

import contextlib
import html
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import CrashInjected
from ..front import Engine
from ..model import ToolCall
from ..run import DurableRunner, Ledger, StepStore
from ..schema import tool_attempts, tool_ledger
from .look import STYLE, Row, effects_of, shown

UNANSWERED = "Not answered yet: that is fine, but a guess now makes the answer stick."


def _wrong(table: str, row_id: Any, column: str, found: Any, wanted: Any, hint: str = "") -> AssertionError:
    said = f"{table}, row {row_id!r}, column {column}: found {shown(found)}, expected {shown(wanted)}. {hint}"
    return AssertionError(said.strip())


def _workflow(engine: Engine, workflow_id: str) -> Row:
    row = engine.get_workflow(workflow_id)
    if row is None:
        raise AssertionError(
            f"workflows: there is no row {workflow_id!r}. Run the cell that submits it, then this one."
        )
    return row


def completed(engine: Engine, *workflow_ids: str) -> str:
    """Each workflow is completed, holds no lease and has its result."""
    for workflow_id in workflow_ids:
        row = _workflow(engine, workflow_id)
        if row["status"] != "completed":
            raise _wrong("workflows", workflow_id, "status", row["status"], "completed", "Recover it first.")
        if row["lease_owner"] is not None:
            raise _wrong("workflows", workflow_id, "lease_owner", row["lease_owner"], None)
    return f"completed: {', '.join(workflow_ids)}"


def one_effect(engine: Engine, workflow_id: str) -> str:
    """Each planned action of the workflow is acknowledged and has left exactly one business effect."""
    planned = {intent["idempotency_key"]: intent["status"] for intent in _workflow(engine, workflow_id)["actions"]}
    for key, status in planned.items():
        if status != "ACKNOWLEDGED":
            raise _wrong("action_intents", key, "status", status, "ACKNOWLEDGED", "The engine does not know yet.")
    seen: set[str] = set()
    for effect in effects_of(engine, workflow_id):
        key = effect["idempotency_key"]
        if key not in planned or key in seen:
            raise _wrong("tool_ledger", effect["effect_id"], "idempotency_key", key, "one row for each planned action")
        seen.add(key)
    if missing := planned.keys() - seen:
        raise AssertionError(
            f"tool_ledger: no row has idempotency_key {min(missing)!r}, which was planned. It is lost."
        )
    return f"one effect for each planned action of {workflow_id}"


def attempts(engine: Engine, workflow_id: str, expected: int) -> str:
    """The tool was called so many times in all for the workflow."""
    rows = effects_of(engine, workflow_id)
    found = sum(row["attempts"] for row in rows)
    if found != expected:
        where = rows[-1]["effect_id"] if rows else workflow_id
        raise _wrong("tool_ledger", where, "attempts", found, expected, "Reset and follow the moves again.")
    return f"the tool was called {expected} times for {workflow_id}"


def tokens(engine: Engine, workflow_id: str) -> str:
    """Every checkpoint was written under a token that the row had reached, and never under an older one than before."""
    row, highest = _workflow(engine, workflow_id), 0
    for step in row["steps"]:
        if not highest <= step["fence_token"] <= row["fence_token"]:
            place, wanted = f"{workflow_id}/{step['step_id']}", f"{highest} to {row['fence_token']}"
            raise _wrong("steps", place, "fence_token", step["fence_token"], wanted)
        highest = step["fence_token"]
    return f"{len(row['steps'])} checkpoints, the last under token {highest}"


def ledgers(runs: Sequence[Ledger], *, executed: int, side_effects: int) -> str:
    """These runs together executed so many steps and sent so many side effects."""
    steps = sum(ledger.cost for ledger in runs)
    sent = [name for ledger in runs for name in ledger.side_effects]
    if steps != executed:
        raise _wrong("execution ledger", f"of {len(runs)} runs", "executed", steps, executed)
    if len(sent) != side_effects:
        raise _wrong("execution ledger", f"of {len(runs)} runs", "side_effects", sent, f"{side_effects} of them")
    return f"{executed} steps executed, {side_effects} side effects sent"


@dataclass(frozen=True)
class Question:
    """A question with numbered options, and the learner's answer (None: not yet)."""

    question: str
    options: Sequence[str]
    answer: int | None

    def reveal(self, right: int, because: str = "") -> str:
        """The right option, beside what was predicted. `right` counts from 1."""
        said = f"It is {right}: {self.options[right - 1]}. {because}".strip()
        if self.answer is None:
            return said
        return f"You predicted it. {said}" if self.answer == right else f"You said {self.answer}. {said}"

    def _said(self) -> str:
        return UNANSWERED if self.answer is None else f"You said {self.answer}: {self.options[self.answer - 1]}."

    def __repr__(self) -> str:
        numbered = [f"  {number}. {option}" for number, option in enumerate(self.options, 1)]
        return "\n".join([self.question, *numbered, self._said()])

    def _repr_html_(self) -> str:
        options = "".join(f"<li>{html.escape(option)}</li>" for option in self.options)
        return (
            f'{STYLE}<div class="af-look"><p><b>{html.escape(self.question)}</b></p><ol>{options}</ol>'
            f"<p>{html.escape(self._said())}</p></div>"
        )


def predict(question: str, options: Sequence[str], answer: Any = None) -> Question:
    """The question, to be shown; `answer` is a number from 1, or None. Anything else counts as not answered."""
    valid = isinstance(answer, int) and not isinstance(answer, bool) and 1 <= answer <= len(options)
    return Question(question, list(options), answer if valid else None)


NOT_SOLVED = "Not solved yet: replace the body of the function, run the cell, then this one again."


def _solved(call: Callable[[], str]) -> str:
    try:
        return call()
    except NotImplementedError:
        return NOT_SOLVED


def effect_counter(engine: Engine, count: Callable[[Engine, str], Any]) -> str:
    """Exercise of 00: `count(engine, workflow_id)` says how many effects the world holds, also 0, and also 2."""

    def judge() -> str:
        doubled, unknown = f"doubled-{uuid.uuid4().hex}", f"unknown-{uuid.uuid4().hex}"
        wanted = {unknown: 0, doubled: 2, "request-1": len(effects_of(engine, "request-1"))}
        count(engine, unknown)  # before anything is written: an empty stub ends here
        try:
            for _ in range(2):
                engine.world(ToolCall(None, "resolve-account", None, doubled))  # no key: two effects
            for workflow_id, effects in wanted.items():
                found = count(engine, workflow_id)
                if found != effects:
                    raise _wrong("tool_ledger", workflow_id, "count(*)", found, effects, "Count rows, not attempts.")
        finally:
            _take_back(engine, doubled)
        return "Solved: your function sees one effect, none, and the two that must never be."

    return _solved(judge)


def _take_back(engine: Engine, workflow_id: str) -> None:
    """The world has no row of this made-up workflow, so that the figures stay those of the lesson."""
    with engine.database.alchemy.begin() as connection:
        for table in (tool_attempts, tool_ledger):
            connection.execute(table.delete().where(table.c.workflow_id == workflow_id))


def ticket(workflow: Callable[[Any, Any], Any]) -> str:
    """Exercise of 01: after a crash the workflow answers with the ticket number that its first run made up."""

    def judge() -> str:
        store = StepStore()
        seen: list[Any] = []

        def deliver(call: ToolCall) -> str:
            seen.append(call.arguments)
            raise CrashInjected("the worker is gone after the message was sent")

        with contextlib.suppress(CrashInjected):
            workflow(DurableRunner("ticket", store, tool=deliver), "help")
        answer = workflow(DurableRunner("ticket", store, tool=lambda call: seen.append(call.arguments)), "help")
        if len(seen) != 2:
            raise _wrong("execution ledger", "of 2 runs", "side_effects", len(seen), 2, "Use run.side_effect(...).")
        if not seen[0] == seen[1] == answer:
            raise _wrong("StepStore", "ticket", "value", "another ticket", "the first one", "Make it up in a step.")
        return "Solved: the ticket is made up once, and replayed."

    return _solved(judge)
