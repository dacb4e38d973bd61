"""05: what the notebook about waiting asks, and how its exercise is judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import AgentFlowError
from ...front import Engine
from ..checks import CheckFailed
from ..exercise import asked_for_schedule
from ..outline import Exercise, Option, Outline, Question
from ..play import play
from ..schedule import Schedule, Setting

WORKFLOW, BROKEN = "approval_agent", "wait_reads_first"


def lost_wakeup(line: Callable[[], Any], engine: Engine) -> str:
    """`line()` leaves the workflow waiting for an event that it has got; the real engine finishes. Raises CheckFailed."""
    moves = asked_for_schedule(line).moves
    if not any(move.verb == "deliver" for move in moves):
        raise CheckFailed("Nobody answers in your line. The answer is the move event:approval.")
    status, events = _played(engine, Schedule(Setting(WORKFLOW, (BROKEN,)), moves))
    if status != "waiting":
        raise CheckFailed(_not_lost(status, events))
    status, _ = _played(engine, Schedule(Setting(WORKFLOW), moves))
    if status != "completed":
        raise CheckFailed(
            f"Lost: the broken engine waits for ever. But the real one is left {status} by the same line. Let a worker go to the "
            "end, with A* or B*."
        )
    return "Solved: the broken engine waits for an answer that it has got. The real one, on the same line, completes."


def _played(engine: Engine, schedule: Schedule) -> tuple[str, list[str]]:
    """How the workflow ended in a laboratory of its own, and the names of its entries. Raises CheckFailed."""
    where = engine.database.url.render_as_string(hide_password=False)
    try:
        capsule = play(where, schedule).capsule
    except AgentFlowError as error:
        raise CheckFailed(str(error)) from None
    row = capsule.outcome["workflows"][0]
    return row["status"], [entry["event"] for entry in capsule.entries(row["id"])]


def _not_lost(status: str, events: list[str]) -> str:
    """Why nothing was lost, by when the answer came."""
    if "event_delivered" not in events:
        return f"The answer was not accepted: the workflow is {status}. Deliver it earlier."
    if "workflow_waiting" in events[: events.index("event_delivered")]:
        return "The answer came when the workflow was parked, and woke it. Deliver it one transaction earlier."
    if status == "ready":
        return "Nobody has parked the workflow yet: it is ready, so the next worker goes on. Let A go on, with A*."
    return (
        "The answer came before a worker looked for it, so the look found it. Let A look first: claim, classify, "
        "read_events. Then deliver."
    )


STAGE = Outline(
    name="05-suspend-and-resume",
    title="Suspend and resume",
    goal="Park a workflow while a person thinks, and find the moment at which an answer can be lost.",
    minutes=12,
    questions=(
        Question(
            "while-a-person-thinks",
            "The workflow has asked a person, who answers on Monday. Who holds it until then?",
            (
                Option(
                    "worker A, asleep inside the function",
                    "that a call that waits must keep its caller: the function is left, and replayed up to here later",
                ),
                Option(
                    "worker A, whose lease is renewed",
                    "that a wait is a long step: a step computes and needs its worker, a wait needs nobody",
                ),
                Option("nobody"),
                Option(
                    "a listener that will call A back",
                    "that somebody must watch: the answer itself makes the row runnable",
                ),
            ),
            "The row says what it waits for, and that is all there is.",
        ),
        Question(
            "yes-then-no",
            "The person says yes, clicks yes again, then says no. Nobody has worked meanwhile. What counts?",
            (
                Option("yes: the first answer stays, the no is refused"),
                Option(
                    "no: the last answer stays",
                    "that an event is a field to overwrite: a replay must see the answer that the first run saw",
                ),
                Option(
                    "yes, twice: the action is carried out two times",
                    "that each delivery starts something: it is recorded once, under its name",
                ),
            ),
            "A click that comes twice changes nothing, and another answer is told that it is too late (409 over HTTP).",
        ),
    ),
    exercises=(
        Exercise(
            "lost_wakeup",
            (
                "Count A's transactions on the broken engine: claim, checkpoint classify, read_events, wait.",
                "The answer must come when A has looked and has not parked yet. event:approval delivers it.",
                "After it A parks, and whoever comes then finds nothing to do. End with A*, so that the real engine finishes.",
            ),
            lost_wakeup,
        ),
    ),
)
