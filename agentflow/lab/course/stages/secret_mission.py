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
from ..exercise import asked_for_schedule
from ..mission import Broke, Mission, broken_by, keep_record, record_of
from ..outline import Exercise, Option, Outline, Question


def break_it(line: Callable[[], Any], engine: Engine, mission: Mission) -> str:
    """`line()` breaks the mission's engine and not the real one, in fewer moves than the class record. Raises CheckFailed."""
    schedule = _schedule(line, mission)
    url = engine.database.url.render_as_string(hide_password=False)
    broke = _played(url, schedule)
    if not broke.sentence:
        raise CheckFailed(
            f"The engine of {mission.setting} holds: after {counted(broke.moves, 'move')} {broke.ended}, and nobody was "
            "harmed. What does the real engine stop, and this one not? Make just that happen."
        )
    _only_this_engine(url, schedule)
    record = record_of(mission)
    told = f"{broke.sentence} It does not hold after {counted(broke.moves, 'move')}. Guilty: {broke.guilty}."
    if broke.moves >= record.moves and broke.moves > mission.shortest:
        raise CheckFailed(
            f"Broken, but not in fewer moves. {told} The class record is {record.told(broke.moves)}. Which of your moves does "
            "the harm not need?"
        )
    kept = keep_record(mission, broke.moves, str(Schedule(moves=schedule.moves)))
    if broke.moves < record.moves:
        return f"Solved: the class record was {record.moves}, and is yours now with {broke.moves}.{kept} {told}"
    best = f"as short as the class record ({record.told(broke.moves)}), and nobody can do it in fewer"
    return f"Solved: {best}.{kept} {told}"


def _schedule(line: Callable[[], Any], mission: Mission) -> Schedule:
    """The learner's moves on the mission's engine. Raises CheckFailed for anything that is no line of moves."""
    schedule = asked_for_schedule(line)
    if schedule.setting not in (Setting(), mission.setting):
        raise CheckFailed(f"The mission brings its engine ({mission.setting}). Write moves only, such as 'A* B*'.")
    return replace(schedule, setting=mission.setting)


def _played(url: str, schedule: Schedule) -> Broke:
    try:
        return broken_by(url, schedule)
    except AgentFlowError as error:
        raise CheckFailed(str(error)) from None


def _only_this_engine(url: str, schedule: Schedule) -> None:
    """The real engine holds against the same moves. Raises CheckFailed if it does not: then the difference is not to blame."""
    try:
        real = broken_by(url, replace(schedule, setting=replace(schedule.setting, without=())))
    except AgentFlowError:
        return  # a move that the real engine does not allow cannot break it
    if real.sentence:
        raise CheckFailed(
            f"The real engine breaks on this line too, after {counted(real.moves, 'move')}: {real.guilty}. So what the "
            "mission's engine does otherwise is not to blame. Leave `forget` out: how long a tool remembers is its own promise."
        )


STAGE = Outline(
    name="10-secret-mission",
    title="Secret mission",
    goal="Race two recovery workers through the acknowledgment gap, then break an engine in fewer moves than anybody.",
    minutes=15,
    questions=(
        Question(
            "two-recoverers",
            "`crasher` died in the gap, its lease has ended, and two workers start. Who reports completed work, and how many "
            "effects?",
            (
                Option(
                    "both, two effects",
                    "that two workers can hold one workflow: a claim locks the row, and the other passes it over",
                ),
                Option(
                    "both, one effect",
                    "that only the effect is protected: completing is guarded too, and is reported by who did it",
                ),
                Option(
                    "one, two effects",
                    "that the winner's call is a new one: it carries the key of the intent, which the tool knows",
                ),
                Option("one, one effect"),
            ),
            "The token went from 1 to 2, so one claim won. Attempts went from 1 to 2 and effects stayed at 1, so the tool "
            "answered the winner's call from the key.",
        ),
        Question(
            "late-acknowledgment",
            "B has called the tool, and is slow. Its lease ends, A calls and completes. Now B acknowledges. What happens?",
            (
                Option(
                    "it is accepted: it is true",
                    "that truth gives the right to write: only the newest claim may write, whatever it says",
                ),
                Option("it is refused, and nothing changes"),
                Option(
                    "it waits for A's lock",
                    "that a lease is a lock: it is a column, and nobody is blocked by it",
                ),
                Option(
                    "the effect is doubled",
                    "that an acknowledgment acts: it only writes down an answer",
                ),
            ),
            "B wrote under token 2 and the row holds 3, so the write found no row that it may change. B stops with LostLease.",
        ),
    ),
    exercises=(
        Exercise(
            "break_it",
            (
                "Say what the real engine does here: whom does it stop, and when? Your line must bring somebody to that place.",
                "Is a fault needed? A worker that is merely slow has not gone away, and two that are quick need no fault at all.",
                "A* plays on to the end. Count transactions (A*5 instead of A*), and try one less of each worker.",
            ),
            break_it,
        ),
    ),
)
