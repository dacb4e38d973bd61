"""01: what the second notebook asks, and how its exercise is judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....errors import CrashInjected, Suspend
from ....model import ToolCall
from ....run import DurableRunner, StepStore
from ...notebook.tables import shown
from ..checks import CheckFailed
from ..elsewhere import FAR, elsewhere
from ..judging import a_kind, answer_of
from ..outline import RIGHT, Outline, Question, exercise_of

CUSTOMERS = 100


def help_desk(workflow: Callable[[Any, Any], Any]) -> str:
    """The ticket number is made up in a step of each run, and a crash after the message keeps it. Raises CheckFailed."""
    store, later = StepStore(), elsewhere(workflow, FAR)
    calls, _ = _run_of(workflow, "run-1", store, crash=True)
    first = _one_message(calls)
    recorded = len(store.memo)
    for function, crash in ((workflow, True), (later, True), (later, False)):
        calls, answer = _run_of(function, "run-1", store, crash=crash)
        again = _one_message(calls)
        _one_ticket(first.arguments, again.arguments, first.arguments if crash else answer)
        _one_key(first, again)
    sent = [shown(first.arguments)]
    for number in range(2, CUSTOMERS):
        calls, _ = _run_of(workflow, f"run-{number}", StepStore())
        sent += [shown(call.arguments) for call in calls]
        if sent[-1] in sent[:-1]:
            raise CheckFailed(f"Another request got the same ticket, {sent[-1]}: two customers cannot share one.")
    calls, _ = _run_of(later, f"run-{CUSTOMERS}", StepStore())
    if any(shown(call.arguments) in sent for call in calls):
        raise CheckFailed(
            f"Another request got the same ticket, {shown(calls[0].arguments)}, from a process that has just started: what is "
            "counted in memory begins again with each process."
        )
    anew, _ = _run_of(workflow, "run-1", StepStore())
    if not recorded or _one_message(anew).arguments == first.arguments:
        raise CheckFailed(
            f"The ticket {shown(first.arguments)} is the same after the crash, and no checkpoint holds it: it was not made up, "
            "but taken from something that both runs know."
        )
    return "Solved: the ticket is made up once, and replayed."


def _run_of(
    workflow: Callable[[Any, Any], Any], run_id: str, store: StepStore, *, crash: bool = False
) -> tuple[list[ToolCall], Any]:
    """What one run sent to the customer and what it returned; with `crash` it dies right after its first message."""
    sent: list[ToolCall] = []

    def deliver(call: ToolCall) -> None:
        sent.append(call)
        if crash:
            raise CrashInjected("the worker is gone after the message was sent")

    try:
        runner = DurableRunner(run_id, store, tool=deliver)
        answer = answer_of(lambda: workflow(runner, "help"), "in a run")
    except CrashInjected:
        return sent, None
    except Suspend:
        raise CheckFailed("Your function waits for an event, and nobody delivers one here.") from None
    if crash and sent:
        raise CheckFailed(
            "Your function goes on after the crash: it catches what ends its run. A worker that is killed catches nothing, and "
            "only the next run can mend what it left."
        )
    return sent, answer


def _one_message(calls: list[ToolCall]) -> ToolCall:
    sent = [call.arguments for call in calls]
    if not sent:
        raise CheckFailed("No message was sent. Your function returned without a call of run.side_effect(...).")
    if len(sent) > 1:
        raise CheckFailed(f"One run sent {len(sent)} messages: {', '.join(map(shown, sent))}. The customer wants one.")
    if sent[0] is None:
        raise CheckFailed("A message was sent, and its arguments are None: the customer reads no ticket.")
    return calls[0]


def _one_key(first: ToolCall, again: ToolCall) -> None:
    if first.idempotency_key != again.idempotency_key:
        raise CheckFailed(
            f"The message went out under the key {shown(first.idempotency_key)}, and after the crash under "
            f"{shown(again.idempotency_key)}: to the tool these are two messages, and the customer gets both."
        )


def _one_ticket(first: Any, again: Any, answer: Any) -> None:
    if first != again:
        raise CheckFailed(
            f"The customer saw {shown(first)}, and after the crash {shown(again)}: the ticket was made up again, as the "
            "second run could not know the first one."
        )
    if answer is None:
        raise CheckFailed(f"The customer saw {shown(first)}, and your function returns nothing (None).")
    if answer != first:
        raise CheckFailed(
            f"The customer saw {shown(first)}, {a_kind(first)}, and your function returns {shown(answer)}, {a_kind(answer)}. "
            "Send the ticket itself, and return the same."
        )


OUTLINE = Outline(
    name="01-retry-or-checkpoint",
    title="Retry or checkpoint",
    goal="Run one function three ways, count what a failure costs each, and find the gap that a checkpoint leaves.",
    minutes=15,
    questions=(
        Question(
            "over-both-runs",
            "The agent fails at drafting, and a plain retry runs it again. How many steps are started, the failed one included, "
            "and how many e-mails are sent, over both runs?",
            {
                "4 steps, 1 e-mail": "each step started once. In fact drafting started twice, and so did the two steps before it",
                "5 steps, 1 e-mail": "finished steps were remembered. In fact a checkpoint will do that, and a retry has none",
                "7 steps, 1 e-mail": "a retry spared what was sent. In fact sending an e-mail is a line of the function like any "
                "other",
                "7 steps, 2 e-mails": RIGHT,
            },
            "The first run executed three steps, the second all four, and each sent the e-mail.",
        ),
    ),
    exercises=(
        exercise_of(
            help_desk,
            "random.randrange(10**9) makes up a number, and another one on the next run.",
            "What has to be the same in both runs must be recorded before it is used.",
            'run.step("ticket", ...) takes a function and records what it returns.',
        ),
    ),
)
