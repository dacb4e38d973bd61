"""One run: its plan is played and judged, AgentFlow's own word compared, and both tried with planted faults."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.chaos import shim, workflows
from tests.chaos.faults import FAULTS
from tests.chaos.judge import Verdict, judge
from tests.chaos.plan import Plan, Setting, make_plan
from tests.chaos.planted import planted_copy
from tests.chaos.world import SCHEMA, World
from tests.support.programs import agentflow, environment

# What `agentflow report` counts, by the names of the judge's figures.
SAME = {
    "workflows_total": "workflows", "workflows_completed": "completed", "tool_execution_attempts": "calls",
    "business_effects": "effects", "duplicate_business_effects": "doubled", "missing_business_effects": "missing",
    "unacknowledged_effects": "in the gap",
}  # fmt: skip
OFTEN = {kind: 12 if kind in ("restart_immediate", "restart_fast", "postmaster_killed") else 5 for kind in FAULTS}
NOT_HERE = shim.why_not()


def setting(
    seed: int, seconds: float = 600, number: int = 2400, times: Mapping[str, int] = OFTEN, **more: Any
) -> Setting:
    """A run of this size with all kinds of fault that this machine can make; as often as that for ten minutes."""
    scale = seconds / 600 if times is OFTEN else 1
    kinds = {
        kind: max(1, round(often * scale)) for kind, often in times.items() if not (FAULTS[kind].shim and NOT_HERE)
    }
    return Setting(seed, seconds, number, kinds, **more)


@dataclass
class Outcome:
    """What a run has come to: `wrong` is empty if all is well."""

    plan: Plan
    verdict: Verdict
    figures: dict[str, Any]
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        not_made = [kind for kind, fault in FAULTS.items() if fault.shim and NOT_HERE]
        lines = [str(self.plan)]
        if not_made:
            lines.append(f"  not made on this machine, since {NOT_HERE}: {', '.join(not_made)}")
        lines += [f"{name:<20} {value}" for name, value in self.figures.items()]
        lines += [*(f"WRONG: {one}" for one in self.wrong), "all is well" * (not self.wrong)]
        named = [workflow for workflow in self.verdict.cases if any(workflow in one for one in self.wrong)]
        return "\n".join([*lines, *(f"--- {workflow}\n{self.verdict.record(workflow)}" for workflow in named[:5])])


def run(told: Setting) -> Outcome:
    """Plays the plan of this setting, and has it judged."""
    plan, began = make_plan(told), time.monotonic()
    with World(plan) as world:
        world.play()
        world.settle()
        url = world.server.url().replace("+psycopg", "")
        verdict = judge(url, SCHEMA, world.shop.record, world.told)
        wrong = [*world.problems, *map(str, verdict.findings)]
        wrong += _compared(world, verdict) or _seen(world)
        figures = {
            **verdict.figures, "late": len(world.late), "restarts": world.restarts, "kills": world.crew.counts["killed"],
            "paused": world.crew.counts["paused"], "stopped": world.crew.counts["stopped"],
            "started": world.crew.counts["started"], "faults": sum(world.made.values()), "by kind": dict(world.made),
            "in the network": dict(world.network.happened), "seconds": round(time.monotonic() - began),
        }  # fmt: skip
    return Outcome(plan, verdict, figures, wrong)


def _compared(world: World, verdict: Verdict) -> list[str]:
    """Where report and checker say otherwise than the judge."""
    report, checked = _command(world, "report"), _command(world, "check")
    wrong = [
        f"the report says {name} {report.get(name)}, and the judge {verdict.figures[figure]}"
        for name, figure in SAME.items()
        if report.get(name) != verdict.figures[figure]
    ]
    wrong += [f"the report says: {one}" for one in report["problems"] if "clock" not in one]
    clock_was_set = bool({"clock_ahead", "clock_back"} & {*world.made})
    wrong += [f"the checker says: {one}" for one in _mistakes(checked, clock_was_set)]
    return wrong


def _seen(world: World) -> list[str]:
    """Which planted faults judge or checker did not name, and what they named besides."""
    with planted_copy(world) as copy:
        verdict = judge(copy.url.replace("+psycopg", ""), SCHEMA, copy.shop, world.told)
        env = {"DATABASE_URL": copy.url, workflows.RECORD: str(copy.shop)}
        mistakes = _mistakes(_command(world, "check", **env), clock_was_set=False)
    wrong = []
    for workflow, fault in copy.planted.items():
        if not any(one.workflow == workflow and one.sort == fault.sort for one in verdict.findings):
            wrong.append(f"planted, and not seen by the judge: {fault.name} in {workflow}")
        if fault.checked != any(workflow in one for one in mistakes):
            wrong.append(f"planted, and {'not ' * fault.checked}seen by the checker: {fault.name} in {workflow}")
    wrong += [f"not planted: {one}" for one in verdict.findings if one.workflow not in copy.planted]
    return wrong + [f"not planted: {one}" for one in mistakes if not any(workflow in one for workflow in copy.planted)]


def _command(world: World, name: str, **env: str) -> dict[str, Any]:
    merged = environment(**{**world.env, "DATABASE_URL": world.server.url(), **env})
    tool = "--tool", "tests.chaos.workflows:SHOP"
    ended = agentflow(name, "--json", "--schema", SCHEMA, *tool, env=merged, cwd=world.folder, seconds=300)
    try:
        answer: dict[str, Any] = json.loads(ended.stdout)
    except ValueError as error:
        raise AssertionError(f"agentflow {name} ended with {ended.returncode}: {ended.stderr}") from error
    return answer


def _mistakes(checked: Mapping[str, Any], clock_was_set: bool) -> list[str]:
    """What the checker found, without times if we set them: a jump in which only refused writes fell has no witness."""
    wrong = [one for one in checked["mistakes"] if not (clock_was_set and one["should"].startswith("a time "))]
    return [
        *checked["problems"],
        *(f"{one['table']} {one['row']}: {one['stands']}; should be: {one['should']}" for one in wrong),
    ]
