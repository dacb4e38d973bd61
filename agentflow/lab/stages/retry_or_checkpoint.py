"""01: what the second notebook asks, and how its exercise is judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import CrashInjected
from ...model import ToolCall
from ...run import DurableRunner, StepStore
from ..checks import CheckFailed
from ..exercise import asked
from ..look import shown
from ..outline import Exercise, Option, Outline, Question


def help_desk(workflow: Callable[[Any, Any], Any]) -> str:
    """The ticket number is made up in a step of each run, and a crash after the message keeps it. Raises CheckFailed."""
    store = StepStore()
    first, _ = _run_of(workflow, "run-1", store, crash=True)
    _one_message(first)
    recorded = len(store.memo)
    again, answer = _run_of(workflow, "run-1", store)
    _one_message(again)
    _one_ticket(first[0], again[0], answer)
    others = [_run_of(workflow, f"run-{number}", StepStore())[0] for number in (2, 3, 4)]
    if any(sent == first for sent in others):
        raise CheckFailed(f"Another request got the same ticket, {shown(first[0])}: two customers cannot share one.")
    if not recorded:
        raise CheckFailed(
            f"The ticket {shown(first[0])} is the same after the crash, and no checkpoint holds it: it was not made up, "
            "but taken from something that both runs know."
        )
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
        return sent, asked("in a run", lambda: workflow(runner, "help"))
    except CrashInjected:
        return sent, None


def _one_message(sent: list[Any]) -> None:
    if not sent:
        raise CheckFailed("No message was sent. Your function returned without a call of run.side_effect(...).")
    if len(sent) > 1:
        raise CheckFailed(f"One run sent {len(sent)} messages: {', '.join(map(shown, sent))}. The customer wants one.")
    if sent[0] is None:
        raise CheckFailed("A message was sent, and its arguments are None: the customer reads no ticket.")


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
            f"The customer saw {shown(first)} and your function returns {shown(answer)}: these are two tickets."
        )


STAGE = Outline(
    name="01-retry-or-checkpoint",
    title="Retry or checkpoint",
    goal="Run one function three ways, count what a failure costs each, and find the gap that a checkpoint leaves.",
    minutes=15,
    questions=(
        Question(
            "over-both-runs",
            "The agent fails at drafting, and a plain retry runs it again. How many steps are started, the failed one "
            "included, and how many e-mails are sent, over both runs?",
            (
                Option(
                    "4 steps, 1 e-mail",
                    "that each step starts once: drafting started twice, and so did the two before it",
                ),
                Option(
                    "5 steps, 1 e-mail",
                    "that finished steps are remembered: this is what a checkpoint will give, and a retry has none",
                ),
                Option(
                    "7 steps, 1 e-mail",
                    "that a retry spares what was sent: to send an e-mail is a line of the function like any other",
                ),
                Option("7 steps, 2 e-mails"),
            ),
            "The first run executed three steps, the second all four, and each sent the e-mail.",
        ),
    ),
    exercises=(
        Exercise(
            "help_desk",
            (
                "random.randrange(10**9) makes up a number, and another one on the next run.",
                "What has to be the same in both runs must be recorded before it is used.",
                'run.step("ticket", ...) takes a function and records what it returns.',
            ),
            help_desk,
        ),
    ),
)
