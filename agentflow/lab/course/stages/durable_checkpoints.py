"""02: what the third notebook asks, and how its exercise is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ....engine import Engine
from ...history.entries import worker_name
from ...history.faults import FAULTS
from ...schedule.grammar import Setting
from ..checks import CheckFailed
from ..judging import Tried, schedule_of, tried
from ..outline import RIGHT, Outline, Question, exercise_of

PLACES = ("before intent resolve-account", "after checkpoint plan")
TOO_EARLY = ("before claim", "after claim", "before checkpoint classify", "after checkpoint classify")


def lose_a_worker(schedule: Callable[[], Any], engine: Engine) -> str:
    """`schedule()` loses a worker between plan's commit and the intent, and another finishes. Raises CheckFailed."""
    moves = schedule_of(schedule)
    if moves.setting != Setting():
        raise CheckFailed(f"Leave {moves.setting} out: the engine stays as it is, and moves alone must do it.")
    run = tried(moves, engine)
    killed = run.entries(FAULTS["kill"].event)
    if not killed:
        raise CheckFailed(
            f"No worker is killed in your schedule: its history has {len(run.history)} entries, and no kill."
        )
    _in_the_right_place(killed[0], run)
    _finished(run)
    _computed_once(run)
    return "Solved: plan was computed once, by a worker that was dead when the plan was used."


def _in_the_right_place(kill: Mapping[str, Any], run: Tried) -> None:
    entry, place = kill["n"], str(kill["subject"])
    where = f"history, entry {entry}: the worker was killed {place}"
    before = [(one["event"], one["subject"], one["worker"]) for one in run.history if one["n"] < entry]
    planned = [who for event, subject, who in before if (event, subject) == ("checkpoint_committed", "plan")]
    intended = any(event == "action_intent_committed" for event, *_ in before)
    if place in PLACES and planned and not intended:
        if kill["worker"] in planned:
            return
        raise CheckFailed(
            f"{where}. It was {kill['worker']}, and the checkpoint of plan was committed by {planned[0]}."
        )
    if place == "before checkpoint plan":
        times = run.computed.get("plan", 0)
        twice = f", so plan was computed {times} times" if times > 1 else ""
        raise CheckFailed(f"{where}. It had computed the plan and not committed it{twice}.")
    if place in TOO_EARLY:
        raise CheckFailed(f"{where}. That is too early: no entry before it commits the checkpoint of plan.")
    raise CheckFailed(f"{where}. That is too late: an entry before it commits the intent.")


def _finished(run: Tried) -> None:
    if run.row["status"] == "completed":
        return
    where = f"workflows, row 'request-1': state {run.row['state']}, and"
    owner = run.row["lease_owner"]
    if owner is None:
        raise CheckFailed(f"{where} lease_owner is NULL: nobody goes on.")
    name = worker_name(owner)
    if len(run.entries("workflow_claimed")) > 1:
        raise CheckFailed(f"{where} lease_owner is {name}, which took over and did not finish.")
    if run.entries("lease_expired_for_test"):
        raise CheckFailed(
            f"{where} lease_owner is still {name}: its lease has ended, and nobody has claimed the row since."
        )
    raise CheckFailed(
        f"{where} lease_owner is {name}, which is dead. Its lease has not ended, so nobody else gets the row."
    )


def _computed_once(run: Tried) -> None:
    if (times := run.computed.get("plan", 0)) != 1:
        raise CheckFailed(
            f"plan was computed {times} times. Look for a worker in your history that computed it and did not commit it."
        )


OUTLINE = Outline(
    name="02-durable-checkpoints",
    title="Durable checkpoints",
    goal="See what one transaction writes, kill a worker after it, and ask another process what is left.",
    minutes=15,
    questions=(
        Question(
            "after-the-commit",
            "A is killed right after it committed classify, and nobody else works. What becomes of the workflow?",
            {
                "it goes on to completion": "the database ran the workflow. In fact it keeps the rows, and only a worker moves "
                "them on",
                "it goes back to PENDING, as if A had never been there": "a crash took back what was committed. In fact it "
                "undoes only a transaction that is still open",
                "it stays CLASSIFIED, but the classification died with A": "the state and the result were saved apart. In fact "
                "one transaction wrote both rows, so both are there",
                "it stays CLASSIFIED, and the classification is there": RIGHT,
            },
            "One commit wrote both rows, another process can read both, and nobody is left to go on.",
        ),
        Question(
            "marked-first",
            "This engine writes the checkpoint first and runs the step afterwards. A is killed in between. What does B do?",
            {
                "it runs classify, as A never finished it": "B could see that the step never ran. In fact B sees its checkpoint, "
                "which says that the step is done",
                "it goes on without running classify, and has no classification": RIGHT,
                "it waits for A's result": "a result of A were still to come. In fact A is dead, and B has only the rows",
            },
            "The row of classify is there, so to B the step is done, and its value is NULL. Written too early, a checkpoint is a "
            "lie, and whoever comes next builds on it.",
        ),
    ),
    exercises=(
        exercise_of(
            lose_a_worker,
            "A*2 is a claim and the checkpoint of classify. What comes next, and what after that?",
            "A! kills A where it stands: behind one commit and before the next.",
            "A dead worker still owns the row. `expire` ends its lease, and B* lets B work to the end.",
        ),
    ),
)
