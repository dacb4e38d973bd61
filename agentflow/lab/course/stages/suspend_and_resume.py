"""05: what the notebook about waiting asks, and how its exercise is judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....engine import Engine
from ...history.canonical import CanonicalEntry
from ...schedule.grammar import Schedule, Setting
from ...schedule.play import play
from ..checks import CheckFailed
from ..judging import schedule_of
from ..outline import RIGHT, Outline, Question, exercise_of

WORKFLOW, BROKEN = "approval_agent", "wait_reads_first"


def lost_wakeup(line: Callable[[], Any], engine: Engine) -> str:
    """`line()` leaves the workflow waiting for an event that it has got; the real engine finishes. Raises CheckFailed."""
    schedule = schedule_of(line)
    moves, asked = schedule.moves, schedule.setting
    if asked not in (Setting(), Setting(WORKFLOW), Setting(without=(BROKEN,)), Setting(WORKFLOW, (BROKEN,))):
        raise CheckFailed(
            f"Leave {asked} out: the check sets workflow={WORKFLOW} and without={BROKEN}, and moves alone must do it."
        )
    if not any(move.verb == "deliver" for move in moves):
        raise CheckFailed("Nobody answers in your line. The answer is the move event:approval.")
    broken = Schedule(Setting(WORKFLOW, (BROKEN,)), moves)
    status, entries = _played(engine, broken)
    if status != "waiting" or not _number(entries, "event_delivered"):
        raise CheckFailed(f"{_not_lost(status, entries)} See it with room.run({str(broken)!r}).")
    status, _ = _played(engine, Schedule(Setting(WORKFLOW), moves))
    if status != "completed":
        raise CheckFailed(
            f"Lost: the broken engine waits for ever. But your line also leaves the real engine's workflow {status}, because "
            "no worker goes on to the end."
        )
    return "Solved: the broken engine waits for an answer that it has got. The real one, on the same line, completes."


def _played(engine: Engine, schedule: Schedule) -> tuple[str, list[CanonicalEntry]]:
    """How the workflow ended in a schema that is dropped afterwards, and its history. Raises AgentFlowError."""
    where = engine.database.address
    capsule = play(where, schedule).capsule
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
        f"Nothing is lost yet: the answer is entry {came}, and nobody has parked the workflow. It is {status}, so whoever claims "
        "it next goes on with it, at the latest when its lease has ended."
    )


def _number(entries: list[CanonicalEntry], event: str) -> int:
    """The number of the first entry of this kind; 0 if there is none."""
    return next((entry["n"] for entry in entries if entry["event"] == event), 0)


OUTLINE = Outline(
    name="05-suspend-and-resume",
    title="Suspend and resume",
    goal="Park a workflow while a person thinks, and find the moment at which an answer can be lost.",
    minutes=12,
    questions=(
        Question(
            "while-a-person-thinks",
            "The workflow has asked a person, who answers on Monday. Who holds it until then?",
            {
                "worker A, asleep inside the function": "a call that waits had to keep its caller. In fact the function is left, "
                "and replayed up to here later",
                "worker A, whose lease is renewed": "a wait were a long step. In fact a step computes and needs its worker, and "
                "a wait needs nobody",
                "nobody": RIGHT,
                "a listener that will call A back": "somebody had to watch. In fact the answer itself makes the row runnable",
            },
            "The row's lease_owner is NULL. It says what the workflow waits for, and that is enough.",
        ),
        Question(
            "yes-then-no",
            "The person says yes, clicks yes again, then says no. Nobody has worked meanwhile. What counts?",
            {
                "yes: the first answer stays, the no is refused": RIGHT,
                "no: the last answer stays": "an event were a field to overwrite. In fact a worker may have read the first "
                "answer a moment before",
                "yes, twice: the action is carried out two times": "each delivery started something. In fact it is recorded "
                "once, under its name",
            },
            "The second yes changed nothing, the no was refused, and the tool was called once. One wait has one answer, first "
            "come: a worker may have read it a moment before, and nobody could take that back.",
        ),
    ),
    exercises=(
        exercise_of(
            lost_wakeup,
            "Play A, A*2, A*3 and so on, each after without=wait_reads_first. The room says each time what A stands before.",
            "The answer is lost if it comes when A has looked and has not parked yet: after read_events, before wait.",
            "So: A's first three transactions, event:approval, then A*. It parks here; on the real engine it completes.",
        ),
    ),
)
