"""10: what the last notebook asks, and how its exercise is judged: by playing the learner's line and reading all rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ....engine import Engine
from ....errors import AgentFlowError
from ...history.words import counted
from ...schedule.grammar import Schedule, Setting
from ..checks import CheckFailed
from ..judging import schedule_of
from ..mission import Mission, broken_by
from ..outline import RIGHT, Outline, Question, exercise_of


def break_it(line: Callable[[], Any], engine: Engine, mission: Mission) -> str:
    """`line()` breaks the mission's engine and not the real one, in fewer moves than the line to beat. Raises CheckFailed."""
    schedule = _schedule(line, mission)
    broke = broken_by(engine, schedule)
    if not broke.sentence:
        raise CheckFailed(
            f"The engine of {mission.setting} holds: after {counted(broke.moves, 'move')} {broke.ended}, and nobody was "
            "harmed. What does the real engine stop that this one does not? Make exactly that happen."
        )
    _only_this_engine(engine, schedule)
    why = f"{broke.sentence} It does not hold after {counted(broke.moves, 'move')}. Guilty: {broke.guilty}."
    if broke.moves >= mission.moves:
        raise CheckFailed(
            f"Broken, but not in fewer moves. {why} The line to beat is {mission.to_beat}. Which of your moves does the harm "
            "not need?"
        )
    shortest = ", and nobody can do it in fewer" if broke.moves == mission.shortest else ""
    return f"Solved: {counted(broke.moves, 'move')} where the line to beat needs {mission.moves}{shortest}. {why}"


def _schedule(line: Callable[[], Any], mission: Mission) -> Schedule:
    """The learner's moves on the mission's engine. Raises CheckFailed for anything that is not a line of moves."""
    schedule = schedule_of(line)
    if schedule.setting not in (Setting(), mission.setting):
        raise CheckFailed(f"The mission sets the engine ({mission.setting}). Write moves only, such as 'A* B*'.")
    return replace(schedule, setting=mission.setting)


def _only_this_engine(near: Engine, schedule: Schedule) -> None:
    """The real engine holds against the same moves. Raises CheckFailed if it does not: then the difference is not to blame."""
    try:
        real = broken_by(near, replace(schedule, setting=replace(schedule.setting, without=())))
    except AgentFlowError:
        return  # a move that the real engine does not allow cannot break it
    if real.sentence:
        raise CheckFailed(
            f"The real engine breaks on this line too, after {counted(real.moves, 'move')}: {real.guilty}. So what the "
            "mission's engine does differently is not to blame. Leave `forget` out: how long a tool remembers is its own promise."
        )


OUTLINE = Outline(
    name="10-secret-mission",
    title="Secret mission",
    goal="Race two recovery workers through the acknowledgment gap, then break an engine in as few moves as you can.",
    minutes=15,
    questions=(
        Question(
            "two-recoverers",
            "`crasher` died in the gap, its lease has ended, and two workers start. Who reports completed work, and how many "
            "effects?",
            {
                "both, two effects": "two workers could hold one workflow. In fact a claim locks the row, and the other worker "
                "passes it over",
                "both, one effect": "only the effect were protected. In fact completing is guarded too, and only the worker that "
                "did it reports it",
                "one, two effects": "the winner's call were a new one. In fact it carries the key of the intent, which the tool "
                "knows",
                "one, one effect": RIGHT,
            },
            "The token went from 1 to 2, so one claim won. Attempts went from 1 to 2 and effects stayed at 1, so the tool "
            "answered the winner's call from the key.",
        ),
        Question(
            "late-acknowledgment",
            "B has called the tool, and is slow. Its lease ends, A calls and completes. Now B acknowledges. What happens?",
            {
                "it is accepted: it is true": "the truth gave a right to write. In fact only the newest claim may write, "
                "whatever it has to say",
                "it is refused, and nothing changes": RIGHT,
                "it waits for A's lock": "a lease were a lock. In fact it is a column, and nobody is blocked by it",
                "the effect is doubled": "an acknowledgment acted. In fact it only writes down an answer",
            },
            "B wrote under token 2 and the row holds 3, so the write found no row that it may change. B stops with LostLease.",
        ),
    ),
    exercises=(
        exercise_of(
            break_it,
            "Say what the real engine does here: whom does it stop, and when? Your line must bring somebody to that place.",
            "Is a fault needed? A worker that is merely slow has not gone away, and two that are quick need no fault at all.",
            "A* plays on to the end. Count transactions (A*5 instead of A*), and try one less of each worker.",
        ),
    ),
)
