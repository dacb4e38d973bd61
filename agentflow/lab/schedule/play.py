"""Plays one schedule in a schema that is dropped afterwards, as `agentflow play` does; or several, for a picture of them all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...agents import WORKFLOWS
from ...engine import Engine
from ...errors import BadSchedule
from ...evidence import promise
from ...model import Tool
from ...run import Workflow
from ..broken.catalogue import engine_class
from ..history.entries import Row
from ..laboratory.laboratory import PATIENT
from ..laboratory.scratch_schema import new_name, own_schema
from ..pictures.multiples import draw_multiples
from ..pictures.svg import Picture
from .capsule import Capsule, capture, lost_effects
from .grammar import Schedule, Setting, parse
from .lane_set import LaneKind
from .presets import inputs_for
from .stepper import Stepper


@dataclass(frozen=True)
class Played:
    """A run, its reliability figures, and its problems, as sentences.

    A workflow that the line leaves unfinished is not a problem; `capsule.outcome` mentions it.
    """

    capsule: Capsule
    figures: Mapping[str, Any]
    problems: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The figures and the capsule, as one JSON object."""
        return {**self.figures, **self.capsule.to_dict(), "problems": list(self.problems)}


def read_line(
    line: str, workflow: str | None = None, without: Iterable[str] = (), own: Mapping[str, Workflow] = WORKFLOWS,
    inputs: Sequence[Any] | None = None,
) -> Schedule:  # fmt: skip
    """The schedule that a line and the options beside it make, for these workflows and inputs.

    Raises BadSchedule, UnfaithfulValue; AgentFlowError for unknown guards.
    """
    schedule = parse(line)
    setting = schedule.setting
    if workflow and setting.workflow not in (workflow, Setting.workflow):
        raise BadSchedule(
            f"The line has workflow={setting.workflow}, but the option is --workflow {workflow}; leave one of them out."
        )
    guards = tuple(sorted({*setting.without, *without}))
    setting = replace(setting, workflow=workflow or setting.workflow, without=guards)
    inputs_for(setting, own, inputs)
    engine_class(guards)
    return replace(schedule, setting=setting)


def play(
    url: str, schedule: Schedule, *, workflows: Mapping[str, Workflow] = WORKFLOWS, tool: Tool | None = None,
    asked: Sequence[Tool] = (), inputs: Sequence[Any] | None = None, lanes: LaneKind = "thread", schema: str | None = None,
) -> Played:  # fmt: skip
    """Plays the schedule on an empty laboratory, which is dropped afterwards; returns what came of it.

    `workflows`, `tool` and `asked` as for Engine, `inputs` as for Stepper. With workflows or a tool of one's own the ids
    begin with the schema's name, since such a tool remembers the keys of what was played before. Raises BadSchedule, LaneError or
    DatabaseAway at the move that cannot be made, and NotALaboratory if the schema exists.
    """
    with own_schema(url, schema or new_name("play")) as database:
        engine = Engine(database, workflows=workflows, tool=tool, policy=PATIENT)
        engine.asked = (*asked,)
        own = tool or asked or any(WORKFLOWS.get(name) is not function for name, function in workflows.items())
        prefix = f"{database.schema}." if own else ""
        try:
            with Stepper(engine, inputs=inputs, lanes=lanes, prefix=prefix) as stepper:
                moves = stepper.play(schedule)
                capsule, figures = capture(stepper), engine.reliability_metrics()
                gone = sum(len(lost_effects(engine, one)) for one in stepper.workflows)
                figures["semantics"] = promise(figures["duplicate_business_effects"], gone)
        finally:
            engine.close()
    trouble = [f'"{moved.move}": {moved.trouble}' for moved in moves if moved.trouble]
    return Played(capsule, figures, (*capsule.outcome["problems"], *trouble))


def small_multiples(engine: Engine, lines: Mapping[str, str]) -> Picture:
    """Plays each schedule on the engine's laboratory, which is emptied before; returns their pictures, one under the other.

    `lines` are schedules by the names that they get; the rows of the last one stay. Raises like Stepper.play().
    """
    told: dict[str, list[Row]] = {}
    with Stepper(engine) as stepper:
        for name, line in lines.items():
            stepper.play(line)
            told[name] = [row for workflow_id in stepper.workflows for row in stepper.engine.history(workflow_id)]
    return draw_multiples(told)
