"""A learner's schedule, tried: played in a schema of its own on a real engine, with what came of it for a judge.

What lives here: reading the line, playing it, counting which steps were computed and by whom, and the sentences for a line
that cannot be played. What does not: what a line should have shown (`stages`), a run that is kept (`capsule`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...agents import WORKFLOWS, support_agent_with
from ...engine import Engine
from ...errors import BadSchedule, LaneError
from ...tools import StandInModel
from ..history.canonical import canonical
from ..history.entries import Row
from ..laboratory.laboratory import PATIENT
from ..laboratory.scratch_schema import new_name, own_schema
from ..notebook.tables import effects_of, shown
from ..schedule.grammar import Schedule, Setting, parse
from ..schedule.stepper import Stepper
from .checks import CheckFailed
from .exercise import a_kind


@dataclass(frozen=True)
class Tried:
    """What a line came to: the workflow's row and history, its effects, and how often each model call was made."""

    schedule: Schedule
    row: Row
    history: Sequence[Mapping[str, Any]]
    effects: int
    computed: Mapping[str, int]

    def entries(self, event: str) -> list[Mapping[str, Any]]:
        """The entries of this name, in order."""
        return [entry for entry in self.history if entry["event"] == event]


class CountingModel(StandInModel):
    """A stand-in model that also knows how often each of its calls was made."""

    def __init__(self) -> None:
        super().__init__()
        self.made: Counter[str] = Counter()

    def _answer(self, name: str, prompt: str, answer: Any) -> Any:
        self.made[name] += 1
        return super()._answer(name, prompt, answer)


def tried(line: Any, engine: Engine, setting: Setting | None = None) -> Tried:
    """The line was played where `engine` works, in a schema that is gone again; what came of request-1.

    `setting` is what it is played on, whatever the line says of it (by default nothing may be said). Raises CheckFailed.
    """
    schedule = read(line, setting)
    model = CountingModel()
    workflows = {**WORKFLOWS, "support_agent": support_agent_with(model)}
    url = engine.database.url.render_as_string(hide_password=False)
    with own_schema(url, new_name("tried")) as database:
        own = Engine(database, workflows=workflows, policy=PATIENT)
        try:
            with Stepper(own) as stepper:
                stepper.play(schedule)
            return Tried(
                schedule, own.get_workflow("request-1") or {}, canonical(own.history("request-1")),
                len(effects_of(own, "request-1")), dict(model.made),
            )  # fmt: skip
        except (BadSchedule, LaneError) as error:
            raise CheckFailed(f"Your schedule cannot be played to its end: {_said(error)}") from None
        finally:
            own.close()


def read(line: Any, setting: Setting | None = None) -> Schedule:
    """The schedule that the line spells. Raises CheckFailed."""
    if line is None:
        raise CheckFailed("Your function returns nothing (None): does it end with `return`?")
    if not isinstance(line, str):
        raise CheckFailed(f"Your function returns {a_kind(line)}, {shown(line)}. Return a schedule, such as 'A*'.")
    try:
        schedule = parse(line)
    except BadSchedule as error:
        raise CheckFailed(f"Your schedule cannot be read: {error}") from None
    if not schedule.moves:
        raise CheckFailed("Your schedule has no move: nothing happens. Begin with A, which claims the request.")
    if setting is None and schedule.setting != Setting():
        raise CheckFailed(f"Leave {schedule.setting} out: the engine stays as it is, and moves alone must do it.")
    return replace(schedule, setting=setting or schedule.setting)


def _said(error: BadSchedule | LaneError) -> str:
    notes = [note.rstrip(".") for note in getattr(error, "__notes__", [])]
    return " ".join([str(error), *(f"{note}." for note in notes[:1])])
