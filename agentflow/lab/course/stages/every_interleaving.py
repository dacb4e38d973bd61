"""07: what the notebook about the explorer asks, and how its exercise is judged: by exploring the learner's engine."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from ....engine import Engine
from ....errors import AgentFlowError
from ...explorer.explore import explore
from ...explorer.report import Exploration
from ..checks import CheckFailed
from ..judging import answer_of
from ..outline import RIGHT, Outline, Question, exercise_of

UNLIKE = "the same answers led to"  # the explorer's words, before two calls in full


def break_quietly(call_tool: Callable[..., Any], engine: Engine) -> str:
    """An engine with this call_tool() does an effect twice, and only after something went wrong. Raises CheckFailed."""
    errors, report = Pipe(duplex=False)  # the explorer calls the function in another process

    def reporting(self: Engine, *arguments: Any) -> Any:
        try:
            return call_tool(self, *arguments)
        except AgentFlowError:  # a lease that was lost belongs to the engine
            raise
        except Exception as error:
            _report(error, report)
            raise

    mine = type("Mine", (Engine,), {"call_tool": reporting})(engine.database)
    try:
        calm = explore(mine, crashes=0, expiries=0, lost_replies=0, time_limit=60, progress=False)
        _raise_first(errors)  # what fails at once need not be explored
        found = explore(mine, crashes=1, expiries=1, lost_replies=0, time_limit=60, progress=False)
        said = _judged(found)
        if calm.findings:
            harm = calm.findings[0]
            raise CheckFailed(
                f"Broken without any fault, too, by {harm.line}: {harm.sentence} The first test would catch that."
            )
        return said
    except AgentFlowError as error:
        _raise_first(errors)
        _, differs, rest = str(error).partition(" before. ")
        if differs and UNLIKE in str(error):
            raise CheckFailed(
                f"Your function asks for one thing now and for another later, on the same rows. {rest}"
            ) from None
        raise CheckFailed(str(error)) from None
    except CheckFailed:
        _raise_first(errors)
        raise
    finally:
        mine.world.database.close()
        errors.close()
        report.close()


def _report(error: Exception, report: Connection) -> None:
    """Sends the first error, as a sentence; empty for the NotImplementedError of a stub."""

    def again() -> None:
        raise error

    if report.closed:
        return
    try:
        answer_of(again, "when the explorer called it")
    except CheckFailed as failed:
        report.send(str(failed))
    except NotImplementedError:
        report.send("")
    report.close()


def _raise_first(errors: Connection) -> None:
    """Raises CheckFailed with the function's first error, or NotImplementedError; nothing if it raised none."""
    if errors.poll():
        if sentence := errors.recv():
            raise CheckFailed(sentence)
        raise NotImplementedError


def _judged(found: Exploration) -> str:
    if not found.ok and not found.findings:
        raise CheckFailed(f"{found.problem} Make the method simpler.")
    doubled = [one for one in found.findings if one.invariant == "one effect per action"]
    if not found.findings:
        every = "every schedule" if found.schedules is None else f"all {found.schedules:,} schedules"
        raise CheckFailed(
            f"Every invariant holds on {every}, so nothing is broken: the tool still tells a second call from a new one. By what?"
        )
    if not doubled:
        first = found.findings[0]
        raise CheckFailed(f"Broken, but in a different way, after {first.moves} moves ({first.line}): {first.sentence}")
    if "expire" not in doubled[0].line and "!" not in doubled[0].line:
        raise CheckFailed(
            f"The effect is doubled without any fault, by {doubled[0].line}: the first test would catch that."
        )
    return f"Solved: no test of the happy path sees it, and the explorer needs {doubled[0].moves} moves: {doubled[0].line}."


OUTLINE = Outline(
    name="07-every-interleaving",
    title="Every interleaving",
    goal="Take the guards away one by one, and let a machine try every schedule until something breaks, or nothing is left.",
    minutes=15,
    questions=(
        Question(
            "which-guard",
            "One of these four guards goes, and every schedule of two workers is tried. Without which one is there harm?",
            {
                "the fencing token": "every safe engine needed a token. In fact this one compares the owner's name too, which is "
                "new for each process",
                "the lease's owner": "the name protected what the token does not. In fact the token rises with every claim, so "
                "it tells owners apart too",
                "the idempotency key": RIGHT,
                "the lease's expiry in a write": "the clock were the protection. In fact it narrows the time in which a late "
                "worker can write, and the token closes it",
            },
            "The other three stand in for each other inside our database. Only the key is known to the tool.",
        ),
        Question(
            "both-gone",
            "Token and owner are both gone, so nothing tells a stale worker from its successor. What will the explorer find?",
            {
                "a doubled effect": "writing without the right to do so were a harm in itself. In fact the key still answers the "
                "second call from the first one's record",
                "a write by somebody who had no right to it, and nobody harmed": RIGHT,
                "nothing: the count of checkpoints protects": "the count saw who writes. In fact it only sees that the place is "
                "still free",
                "a workflow that is stuck": "two workers had to block each other. In fact each write goes through, and one of "
                "them completes the workflow",
            },
            "A wrote under token 1 while the row held 2. If the model gives both the same answer, it wrote what B would have "
            "written, at the same place, and nobody outside can notice.",
        ),
    ),
    exercises=(
        exercise_of(
            break_quietly,
            "The tool tells a repeated call from a new one by intent.idempotency_key.",
            "dataclasses.replace(intent, idempotency_key=...) gives the same intent with another key.",
            "claim.fence_token is another number for the worker that recovers: a key made from it is new after a crash.",
        ),
    ),
)
