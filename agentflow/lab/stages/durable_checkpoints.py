"""02: what the third notebook asks, and how its exercise is judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...front import Engine
from ..checks import CheckFailed
from ..entries import worker_name
from ..exercise import asked
from ..outline import Exercise, Option, Outline, Question
from ..tried import Tried, tried

PLACES = ("before intent resolve-account", "after checkpoint plan")
TOO_EARLY = ("before claim", "after claim", "before checkpoint classify", "after checkpoint classify")


def lose_a_worker(schedule: Callable[[], Any], engine: Engine) -> str:
    """`schedule()` loses a worker between plan's commit and the intent, and another finishes. Raises CheckFailed."""
    run = tried(asked("when it was called", schedule), engine)
    killed = run.entries("worker_killed")
    if not killed:
        raise CheckFailed("Nobody is killed in your schedule. `A!` kills A where it stands.")
    _in_the_right_place(str(killed[0]["subject"]), run)
    _finished(run)
    _computed_once(run)
    return "Solved: plan was computed once, by a worker that was not there any more when it was used."


def _in_the_right_place(place: str, run: Tried) -> None:
    if place in PLACES:
        return
    if place == "before checkpoint plan":
        times = run.computed.get("plan", 0)
        raise CheckFailed(
            f"The worker was killed before checkpoint plan: it had computed the plan and not committed it, so plan was "
            f"computed {times} times. Let it make one move more." if times > 1 else
            "The worker was killed before checkpoint plan, so its plan was never committed. Let it make one move more."
        )  # fmt: skip
    hint = "too early: plan is not committed yet" if place in TOO_EARLY else "too late: the intent is committed already"
    raise CheckFailed(f"The worker was killed {place}. That is {hint}. It must stand before intent resolve-account.")


def _finished(run: Tried) -> None:
    if run.row["status"] == "completed":
        return
    owner = run.row["lease_owner"]
    if owner is None:
        raise CheckFailed(
            f"workflows, row 'request-1': state {run.row['state']}, and nobody goes on. Let B work to its end."
        )
    if len(run.entries("workflow_claimed")) == 1:
        raise CheckFailed(
            f"workflows, row 'request-1': state {run.row['state']}, and {worker_name(owner)} is dead and still owns it. "
            "End its lease with `expire`, then let B work."
        )
    raise CheckFailed(
        f"workflows, row 'request-1': state {run.row['state']}, and {worker_name(owner)} is not through. `B*` goes on to "
        "the end."
    )


def _computed_once(run: Tried) -> None:
    if (times := run.computed.get("plan", 0)) != 1:
        raise CheckFailed(
            f"plan was computed {times} times. Each worker that is killed before its commit computes for nothing."
        )


STAGE = Outline(
    name="02-durable-checkpoints",
    title="Durable checkpoints",
    goal="See what one transaction writes, kill a worker after it, and read its result from another process.",
    minutes=15,
    questions=(
        Question(
            "after-the-commit",
            "A is killed right after it committed classify, and nobody else works. What becomes of the workflow?",
            (
                Option(
                    "it goes on to completion",
                    "that the database runs the workflow: it keeps the rows, and only a worker moves them on",
                ),
                Option(
                    "it goes back to PENDING, as if A had never been there",
                    "that a crash takes back what was committed: only a transaction that is still open is undone",
                ),
                Option(
                    "it stays CLASSIFIED, but the classification died with A",
                    "that the state and the result are saved apart: one transaction wrote both, so both are there",
                ),
                Option("it stays CLASSIFIED, and the classification is there"),
            ),
            "Nobody works on it, and nothing is lost: it waits at its last committed checkpoint.",
        ),
        Question(
            "marked-first",
            "This engine writes the checkpoint first and runs the step afterwards. A is killed in between. What does B do?",
            (
                Option(
                    "it runs classify, as A never finished it",
                    "that B can see that the step never ran: B sees a checkpoint, and that says the step is done",
                ),
                Option("it takes an empty result for the classification, and goes on with that"),
                Option(
                    "it waits for A's result",
                    "that somebody knows of A: a worker that died tells nobody, and B has only the rows",
                ),
            ),
            "A checkpoint is believed. Written too early it is a lie, and the successor builds on it.",
        ),
    ),
    exercises=(
        Exercise(
            "lose_a_worker",
            (
                "A*2 is a claim and the checkpoint of classify. What comes next, and what after that?",
                "A! kills A where it stands: behind one commit and before the next.",
                "A dead worker still owns the row. `expire` ends its lease, and B* lets B work to the end.",
            ),
            lose_a_worker,
        ),
    ),
)
