"""05: what the notebook about waiting asks, and how its exercise is judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....engine import Engine
from ....errors import AgentFlowError
from ...history.canonical import CanonicalEntry
from ...schedule.grammar import Schedule, Setting
from ...schedule.play import play
from ..checks import CheckFailed
from ..exercise import asked_for_schedule
from ..outline import Exercise, Option, Outline, Question

WORKFLOW, BROKEN = "approval_agent", "wait_reads_first"


def lost_wakeup(line: Callable[[], Any], engine: Engine) -> str:
    """`line()` leaves the workflow waiting for an event that it has got; the real engine finishes. Raises CheckFailed."""
    moves = asked_for_schedule(line).moves
    if not any(move.verb == "deliver" for move in moves):
        raise CheckFailed("Nobody answers in your line. The answer is the move event:approval.")
    broken = Schedule(Setting(WORKFLOW, (BROKEN,)), moves)
    status, entries = _played(engine, broken)
    if status != "waiting":
        raise CheckFailed(f"{_not_lost(status, entries)} See it with room.run({str(broken)!r}).")
    status, _ = _played(engine, Schedule(Setting(WORKFLOW), moves))
    if status != "completed":
        raise CheckFailed(
            f"Lost: the broken engine waits for ever. But your line also leaves the real engine's workflow {status}, because "
            "no worker goes on to the end."
        )
    return "Solved: the broken engine waits for an answer that it has got. The real one, on the same line, completes."


def _played(engine: Engine, schedule: Schedule) -> tuple[str, list[CanonicalEntry]]:
    """How the workflow ended in a laboratory of its own, and its history. Raises CheckFailed."""
    where = engine.database.url.render_as_string(hide_password=False)
    try:
        capsule = play(where, schedule).capsule
    except AgentFlowError as error:
        raise CheckFailed(str(error)) from None
    row = capsule.outcome["workflows"][0]
    return row["status"], capsule.entries(row["id"])


def _not_lost(status: str, entries: list[CanonicalEntry]) -> str:
    """Why nothing was lost, by the entries at which the answer came, was found, or woke somebody."""
    came = _number(entries, "event_delivered")
    parked, found = _number(entries, "workflow_waiting"), _number(entries, "event_received")
    if not came:
        return f"Nothing was lost: the answer was not accepted, as the workflow is {status}."
    if parked and parked < came:
        return f"Nothing was lost: entry {parked} parked the workflow, and the answer, entry {came}, came afterwards and woke it."
    if found:
        return f"Nothing was lost: the answer was there first, as entry {came}, and the look found it, as entry {found} says."
    return (
        f"Nothing is lost yet: the answer is entry {came}, and nobody has parked the workflow. It is {status}, so the next "
        "worker goes on with it."
    )


def _number(entries: list[CanonicalEntry], event: str) -> int:
    """The number of the first entry of this kind; 0 if there is none."""
    return next((entry["n"] for entry in entries if entry["event"] == event), 0)


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
            "The row's lease_owner is NULL. It says what the workflow waits for, and that is enough.",
        ),
        Question(
            "yes-then-no",
            "The person says yes, clicks yes again, then says no. Nobody has worked meanwhile. What counts?",
            (
                Option("yes: the first answer stays, the no is refused"),
                Option(
                    "no: the last answer stays",
                    "that an event is a field to overwrite: a worker may have read the first answer a moment before",
                ),
                Option(
                    "yes, twice: the action is carried out two times",
                    "that each delivery starts something: it is recorded once, under its name",
                ),
            ),
            "The second yes changed nothing, the no was refused, and the tool was called once. One wait has "
            "one answer, first come: a worker may have read it a moment before, and nobody could take that back.",
        ),
    ),
    exercises=(
        Exercise(
            "lost_wakeup",
            (
                "Play A, A*2, A*3 and so on, each after without=wait_reads_first. The room says each time what A stands before.",
                "The answer is lost if it comes when A has looked and has not parked yet: after read_events, before wait.",
                "So: A's first three transactions, event:approval, then A*. It parks here; on the real engine it completes.",
            ),
            lost_wakeup,
        ),
    ),
)
