"""Questions before, proofs after: small functions that read the tables and name the row that is wrong.

Each check returns a sentence when the rows are right and raises CheckFailed, shown as one sentence too, when they are
not: table, id, column, what stands there, what should. A question never blocks: without an answer the notebook goes on.
An exercise's check says what is wrong with the answer, and what to try.
"""

from __future__ import annotations

import html
import traceback
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CrashInjected
from ..front import Engine
from ..model import ToolCall
from ..run import DurableRunner, Ledger, StepStore
from ..schema import tool_attempts, tool_ledger
from .entries import Row
from .look import STYLE, counted, effects_of, shown

UNANSWERED = "Not answered yet: that is fine, but a guess now makes the answer stick."
PACKAGE = str(Path(__file__).resolve().parent.parent)


class CheckFailed(AssertionError):
    """Rows or an answer are not as they should be; a notebook shows the sentence, without the checker's own traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"Not yet. {self}"]


def _wrong(table: str, row_id: Any, column: str, found: Any, wanted: Any, hint: str = "") -> CheckFailed:
    said = f"{table}, row {row_id!r}, column {column}: found {shown(found)}, expected {shown(wanted)}. {hint}"
    return CheckFailed(said.strip())


def _workflow(engine: Engine, workflow_id: str) -> Row:
    row = engine.get_workflow(workflow_id)
    if row is None:
        raise CheckFailed(f"workflows: there is no row {workflow_id!r}. Run the cell that submits it, then this one.")
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
        raise CheckFailed(f"tool_ledger: no row has idempotency_key {min(missing)!r}, which was planned. It is lost.")
    return f"one effect for each planned action of {workflow_id}"


def attempts(engine: Engine, workflow_id: str, expected: int) -> str:
    """The tool was called so many times in all for the workflow."""
    rows = effects_of(engine, workflow_id)
    found = sum(row["attempts"] for row in rows)
    if found != expected:
        where = rows[-1]["effect_id"] if rows else workflow_id
        raise _wrong("tool_ledger", where, "attempts", found, expected, "Reset and follow the moves again.")
    return f"the tool was called {counted(expected, 'time')} for {workflow_id}"


def tokens(engine: Engine, workflow_id: str) -> str:
    """Every checkpoint was written under a token that the row had reached, and never under an older one than before."""
    row, highest = _workflow(engine, workflow_id), 0
    for step in row["steps"]:
        if not highest <= step["fence_token"] <= row["fence_token"]:
            place, wanted = f"{workflow_id}/{step['step_id']}", f"{highest} to {row['fence_token']}"
            raise _wrong("steps", place, "fence_token", step["fence_token"], wanted)
        highest = step["fence_token"]
    return f"{counted(len(row['steps']), 'checkpoint')}, the last under token {highest}"


def ledgers(runs: Sequence[Ledger], *, executed: int, side_effects: int) -> str:
    """These runs together executed so many steps and sent so many side effects."""
    steps = sum(ledger.cost for ledger in runs)
    sent = [name for ledger in runs for name in ledger.side_effects]
    if steps != executed:
        raise _wrong("execution ledger", f"of {len(runs)} runs", "executed", steps, executed)
    if len(sent) != side_effects:
        raise _wrong("execution ledger", f"of {len(runs)} runs", "side_effects", sent, f"{side_effects} of them")
    return f"{counted(executed, 'step')} executed, {counted(side_effects, 'side effect')} sent"


@dataclass(frozen=True)
class Question:
    """A question with numbered options, and the learner's answer (None: not yet); `unclear` if it is none of them."""

    question: str
    options: Sequence[str]
    answer: int | None
    unclear: bool = False

    def reveal(self, right: int, because: str = "") -> str:
        """The right option, beside what was predicted. `right` counts from 1."""
        said = f"It is {right}: {self.options[right - 1]}. {because}".strip()
        if self.answer is None:
            return said
        return f"You predicted it. {said}" if self.answer == right else f"You said {self.answer}. {said}"

    def _said(self) -> str:
        if self.unclear:
            return f"Choose a number from 1 to {len(self.options)}, such as my_answer = 1."
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
    """The question, to be shown; `answer` is a number from 1, or None. Of anything else it says what may be chosen."""
    valid = _is_number(answer) and 1 <= answer <= len(options)
    return Question(question, list(options), answer if valid else None, not valid and answer is not None)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


NOT_SOLVED = "Not solved yet: replace the body of the function, run the cell, then this one again."


def _solved(judge: Callable[..., str], *arguments: Any) -> str:
    """What the judge says. Raises CheckFailed, without the errors behind it."""
    try:
        return judge(*arguments)
    except NotImplementedError:
        return NOT_SOLVED
    except CheckFailed as failed:
        raise failed.with_traceback(None) from None


def _asked(where: str, call: Callable[[], Any]) -> Any:
    """The answer of the learner's function, or its error as CheckFailed: what, where in it, and what to try."""
    try:
        return call()
    except NotImplementedError:
        raise
    except Exception as error:
        said = next(iter(str(error).splitlines()), "").rstrip(".")
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.line and not frame.filename.startswith(PACKAGE)]
        own = [frame for frame in own if "site-packages" not in frame.filename] or own
        line = f", at `{own[-1].line}`" if own else ""
        raise CheckFailed(f"Your function raised {type(error).__name__} {where}: {said}{line}.{_try(error)}") from None


def _try(error: Exception) -> str:
    if isinstance(error, TypeError) and "not callable" in str(error):
        return " run.step() takes a function, which it calls itself: put `lambda:` before the value."
    return ""


UNKNOWN = "a workflow that does not exist"
DOUBLED = "a workflow whose effect was doubled on purpose"


def effect_counter(engine: Engine, count: Callable[[Engine, str], Any]) -> str:
    """Exercise of 00: `count(engine, workflow_id)` says how many effects the world holds, also 0, and also 2."""
    return _solved(_judge_counter, engine, count)


def _judge_counter(engine: Engine, count: Callable[[Engine, str], Any]) -> str:
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
        raise _wrong("tool_ledger", "request-1", "count(*)", one, len(rows), hint)
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
        found = _asked(f"for {who}", lambda: count(engine, workflow_id))
    except CheckFailed as failed:
        none = " It has no row at all: SELECT count(*) gives one row with 0 even then." if who == UNKNOWN else ""
        raise CheckFailed(f"{failed}{none}") from None
    if _is_number(found):
        return int(found)
    if found is None:
        hint = "no row must count as 0." if who == UNKNOWN else "does it end with `return`?"
        raise CheckFailed(f"Your function says nothing (None) for {who}: {hint}")
    if isinstance(found, list | dict):
        hint = "Take the number out of it: query(...)[0] is the first row, a dict with a key for each column."
        raise CheckFailed(f"Your function returns {_a(found)} for {who}. {hint}")
    raise CheckFailed(f"Your function returns {_a(found)} for {who}, {shown(found)}. Return a whole number.")


def _a(value: Any) -> str:
    known = {"Table": "a list of rows", "list": "a list", "dict": "a row", "str": "a text", "bool": "a bool"}
    return known.get(type(value).__name__, f"a {type(value).__name__}")


def _take_back(engine: Engine, workflow_id: str) -> None:
    """The world has no row of this made-up workflow, so that the figures stay those of the lesson."""
    with engine.database.alchemy.begin() as connection:
        for table in (tool_attempts, tool_ledger):
            connection.execute(table.delete().where(table.c.workflow_id == workflow_id))


def ticket(workflow: Callable[[Any, Any], Any]) -> str:
    """Exercise of 01: the ticket number is made up in a step of each run, and a crash after the message keeps it."""
    return _solved(_judge_ticket, workflow)


def _judge_ticket(workflow: Callable[[Any, Any], Any]) -> str:
    store = StepStore()
    first, _ = _run_of(workflow, "run-1", store, crash=True)
    _one_message(first)
    recorded = len(store.memo)
    again, answer = _run_of(workflow, "run-1", store)
    _one_message(again)
    _one_ticket(first[0], again[0], answer)
    others = [_run_of(workflow, f"run-{number}", StepStore())[0] for number in (2, 3, 4)]
    if any(sent == first for sent in others):
        raise CheckFailed(
            f"Another request got the same ticket, {shown(first[0])}. Make up a new number for each run, such as "
            "random.randrange(10**9)."
        )
    if not recorded:
        raise CheckFailed("No step was recorded before the crash. Make the ticket up in a step: run.step(...).")
    return "Solved: the ticket is made up once, and replayed."


def _run_of(
    workflow: Callable[[Any, Any], Any], run_id: str, store: StepStore, *, crash: bool = False
) -> tuple[list[Any], Any]:
    """What one run sent to the customer and what it returned; with `crash` it dies right after its first message."""
    sent: list[Any] = []

    def deliver(call: ToolCall) -> None:
        sent.append(call.arguments)
        if crash:
            raise CrashInjected("the worker is gone after the message was sent")

    try:
        runner = DurableRunner(run_id, store, tool=deliver)
        return sent, _asked("in a run", lambda: workflow(runner, "help"))
    except CrashInjected:
        return sent, None


def _one_message(sent: list[Any]) -> None:
    if not sent:
        raise CheckFailed(
            'No message was sent. Call run.side_effect("send-ticket", key="send-ticket", arguments=ticket).'
        )
    if len(sent) > 1:
        raise CheckFailed(f"One run sent {len(sent)} messages. Call run.side_effect(...) once.")
    if sent[0] is None:
        raise CheckFailed("The message carries no ticket: give run.side_effect(...) also arguments=ticket.")


def _one_ticket(first: Any, again: Any, answer: Any) -> None:
    if first != again:
        raise CheckFailed(
            f"The customer saw {shown(first)}, and after the crash {shown(again)}: the ticket was made up again. Make it "
            "up in a step, so that it is recorded before it is sent."
        )
    if answer is None:
        raise CheckFailed("One ticket was sent, and your function returns nothing: end it with `return ticket`.")
    if answer != first:
        raise CheckFailed(
            f"The customer saw {shown(first)} and your function returns {shown(answer)}: return that one."
        )
