"""The judge: whether a run of chaos lost, doubled or falsified anything, from tables and the tools' own records alone.

It imports nothing of AgentFlow and asks nobody. For each workflow it plays the history on a little machine of its own,
in which a refused write changes nothing, and compares what comes out with the rows; it tells the workflow's story once
more over the recorded values; and it lays plans beside what the world did. It believes no clock.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from tests.chaos.machine import Machine
from tests.chaos.stories import EVENTS, MAY_FAIL, STORIES, Failure

Row = Mapping[str, Any]
ACKNOWLEDGED, REFUSED, PENDING = "ACKNOWLEDGED", "REFUSED", "PENDING"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: what sort ("lost", "doubled", ...), which workflow, and in a sentence."""

    sort: str
    workflow: str
    says: str

    def __str__(self) -> str:
        return f"{self.sort}: {self.workflow}: {self.says}"


@dataclass
class Case:
    """All that is recorded of one workflow, by those who recorded it."""

    row: Row
    steps: list[Row] = field(default_factory=list)
    intents: dict[str, Row] = field(default_factory=dict)
    history: list[Row] = field(default_factory=list)
    effects: list[Row] = field(default_factory=list)
    told: list[Row] = field(default_factory=list)


@dataclass(frozen=True)
class Verdict:
    """What is wrong, the figures, and all that is recorded of each workflow."""

    findings: list[Finding]
    figures: dict[str, int]
    cases: Mapping[str, Case]

    def record(self, workflow: str) -> str:
        """All that is recorded of the workflow, a line for each row."""
        case = self.cases[workflow]
        lines = ["row", case.row, "steps", *case.steps, "intents", *case.intents.values(), "effects", *case.effects]
        lines += ["told", *case.told, "history", *case.history]
        return "\n".join(
            one if isinstance(one, str) else "  " + ", ".join(f"{name} {value}" for name, value in one.items())
            for one in lines
        )


def judge(url: str, schema: str, shop: Path, people: Path) -> Verdict:
    """Judges what stands in these tables and books when everybody has gone home."""
    cases, findings = _cases(url, schema, shop, people)
    for one in cases.values():
        findings += one_by_one(one)
    return Verdict(findings, _figures(cases, findings), cases)


def one_by_one(case: Case) -> Iterator[Finding]:
    """What is wrong with one workflow."""
    name = case.row["id"]
    for sort, says in (*_end(case), *_machine(case), *_story(case), *_world(case), *_events(case), *_answers(case)):
        yield Finding(sort, name, says)


# -- what is wrong -----------------------------------------------------------------------------------------------------


def _end(case: Case) -> Iterator[tuple[str, str]]:
    """Each workflow has come to an end, or to the one that a person chose."""
    if case.row["status"] not in ("completed", "cancelled"):
        error = (case.row["error"] or {}).get("message", "")
        yield "lost", f"it is {case.row['status']}, in the state {case.row['state']} {error}".rstrip()


def _machine(case: Case) -> Iterator[tuple[str, str]]:
    """The history can have happened, and the rows are what it leaves."""
    machine = Machine()
    for n, entry in enumerate(case.history, 1):
        if entry["n"] != n:
            yield "history", f"entry {n} is missing"
            return
        if said := machine.take(entry):
            yield "history", f"entry {n}: {said}"
            return
    row, made = case.row, machine
    left = {
        "status": made.status, "entries": len(case.history), "fence_token": made.token, "checkpoints": len(made.progress),
        "lease_owner": made.holder, "waiting_for": made.waits_for,
    }  # fmt: skip
    for column, should in left.items():
        if row[column] != should:
            yield "rows", f"{column} is {row[column]!r}, and the history leaves {should!r}"
    stand = [
        (one["kind"], one["waited_for"] or one["step_id"], one["worker"], one["fence_token"]) for one in case.steps
    ]
    if stand != made.progress or [one["position"] for one in case.steps] != [*range(1, len(stand) + 1)]:
        wrong = next(
            (pair for pair in zip(stand, made.progress, strict=False) if pair[0] != pair[1]), (stand, made.progress)
        )
        yield "rows", f"checkpoints {wrong[0]} stand, and the history leaves {wrong[1]}"
    plans = {key: (one["worker"], one["fence_token"]) for key, one in case.intents.items()}
    if plans != made.plans:
        yield "rows", f"planned actions {plans}, and the history leaves {made.plans}"
    if set(row["events"]) != made.events:
        yield "events", f"events {sorted(row['events'])} stand, and {sorted(made.events)} were delivered"


def _story(case: Case) -> Iterator[tuple[str, str]]:
    """The checkpoints are those of the workflow's function, in its order, and the result is made of them alone."""
    story, ended = STORIES[case.row["name"]](case.row["input"]), False
    try:
        call = next(story)
        for step in case.steps:
            stands = step["kind"], step["step_id"], step["waited_for"]
            if stands != (call.kind, call.step, call.name if call.kind == "wait" else None):
                yield "story", f"{stands} stands where {call} was asked for"
                return
            if call.kind == "side_effect":
                yield from _plan(case.intents.get(call.step), call.name, call.arguments)
            if step["error"] is not None and call.step not in MAY_FAIL:
                yield "story", f"{call.step} failed for good: {step['error'].get('message')}"
                return
            call = story.send(step["value"] if step["error"] is None else Failure(step["error"]))
        ahead = set(case.intents) - {step["step_id"] for step in case.steps}
        if ahead - {call.step}:
            yield "story", f"{sorted(ahead)} were planned where {call} was asked for"
    except StopIteration as end:
        ended = True
        if case.row["status"] == "completed" and case.row["result"] != end.value:
            yield "story", f"the result is {case.row['result']}, and its checkpoints give {end.value}"
    except (LookupError, TypeError, AttributeError) as error:
        yield "story", f"a checkpoint holds what no step gives: {type(error).__name__}: {error}"
        return
    if case.row["status"] == "completed" and not ended:
        yield "story", f"it is completed, and {call} never happened"


def _plan(plan: Row | None, action: str | None, arguments: Any) -> Iterator[tuple[str, str]]:
    if plan is None:
        yield "story", f"{action} has a result, and was never planned"
    elif (plan["action"], plan["arguments"]) != (action, arguments):
        yield (
            "story",
            f"{plan['action']} {plan['arguments']} was planned, and its checkpoints give {action} {arguments}",
        )


def _world(case: Case) -> Iterator[tuple[str, str]]:
    """Each planned action left one effect, the one that was planned, and its result is the recorded one."""
    steps, by_key = {step["step_id"]: step for step in case.steps}, defaultdict[str, list[Row]](list)
    for effect in case.effects:
        by_key[effect["key"]].append(effect)
    for key, plan in case.intents.items():
        found, step = by_key.pop(plan["idempotency_key"], []), steps.get(key)
        yield from _one(plan, found)
        status = PENDING if step is None else ACKNOWLEDGED if step["error"] is None else REFUSED
        if plan["status"] != status:
            yield "rows", f"{key} is {plan['status']}, and its checkpoint says {status}"
        results = [plan["tool_result"], *([step["value"]] if step else []), *(one["result"] for one in found[:1])]
        if plan["status"] == ACKNOWLEDGED and any(result != results[0] for result in results):
            yield "results", f"{key} has results that differ: plan, checkpoint and world say {results}"
        if plan["status"] == PENDING and case.row["status"] == "completed":
            yield "missing", f"{key} is pending, and the workflow is completed"
    for key, found in by_key.items():
        yield "doubled", f"{len(found)} effects under {key}, which nobody planned"


def _one(plan: Row, found: list[Row]) -> Iterator[tuple[str, str]]:
    planned = plan["idempotency_key"], plan["action"], plan["arguments"]
    if len(found) > 1:
        yield "doubled", f"{len(found)} effects under {planned[0]}"
    if not found and plan["status"] == ACKNOWLEDGED:
        yield "missing", f"no effect under {planned[0]}, which is acknowledged"
    for one in found:
        if plan["status"] == REFUSED:
            yield "doubled", f"an effect under {planned[0]}, which was refused"
        if (one["action"], one["arguments"]) != planned[1:]:
            yield "results", f"the world did {one['action']} {one['arguments']}, and {planned[1:]} was planned"
        if one["calls"] != one["noted"]:
            yield "results", f"the world counts {one['calls']} calls under {planned[0]}, and noted {one['noted']}"


def _events(case: Case) -> Iterator[tuple[str, str]]:
    """A wait got the payload that stands in the row."""
    for step in case.steps:
        if step["kind"] == "wait" and step["value"] != case.row["events"].get(step["waited_for"]):
            yield "events", f"{step['step_id']} got {step['value']}, and the row holds {case.row['events']}"
    if foreign := set(case.row["events"]) - EVENTS:
        yield "events", f"events {sorted(foreign)}, for which nobody waits"


def _answers(case: Case) -> Iterator[tuple[str, str]]:
    """What people were told is so."""
    status, events = case.row["status"], case.row["events"]
    for told in case.told:
        done, payload = told["answer"] == "done", json.loads(told["payload"])
        if told["asked"] == "deliver" and done and events.get(told["name"]) != payload:
            yield "events", f"{told['name']} {payload} was accepted, and the row holds {events}"
        if (
            told["asked"] == "deliver"
            and not done
            and status != "cancelled"
            and events.get(told["name"], payload) == payload
        ):
            yield "answers", f"{told['name']} {payload} was refused, and the row holds {events}"
        if told["asked"] == "cancel" and done != (status == "cancelled"):
            yield "answers", f"cancelling was {told['answer']}, and it is {status}"
        if told["asked"] == "create" and (told["name"], payload) != (case.row["name"], case.row["input"]):
            yield "answers", f"{told['name']} {payload} was created, and {case.row['name']} {case.row['input']} stands"
    if status == "cancelled" and not any(told["asked"] == "cancel" for told in case.told):
        yield "answers", "it is cancelled, and nobody asked for that"
    payloads = {(told["name"], told["payload"]) for told in case.told if told["asked"] == "deliver"}
    for name, payload in events.items():
        if (name, json.dumps(payload)) not in payloads:
            yield "events", f"the row holds {name} {payload}, which nobody sent"


# -- what is recorded --------------------------------------------------------------------------------------------------


def _cases(url: str, schema: str, shop: Path, people: Path) -> tuple[dict[str, Case], list[Finding]]:
    """Everything recorded, by workflow; and what belongs to no workflow."""
    with psycopg.connect(url, row_factory=dict_row) as session:

        def read(table: str, order: str) -> list[dict[str, Any]]:
            return session.execute(f"SELECT * FROM {table} ORDER BY {order}".encode()).fetchall()

        cases = {row["id"]: Case(row) for row in read(f"{schema}.workflows", "id")}
        parts = [("steps", one) for one in read(f"{schema}.steps", "position")]
        parts += [("intents", one) for one in read(f"{schema}.action_intents", "created_at")]
        parts += [("history", one) for one in read(f"{schema}.history", "n")]
        noted = Counter(one["effect_id"] for one in read(f"{schema}_world.tool_attempts", "attempt_id"))
        for one in read(f"{schema}_world.tool_ledger", "effect_id"):
            same = {"key": one["idempotency_key"], "calls": one["attempts"], "noted": noted[one["effect_id"]]}
            parts.append(("effects", {**one, **same}))
    for case in cases.values():
        case.row["events"] = {name: json.loads(payload) for name, payload in case.row["events"].items()}
    with closing(sqlite3.connect(shop)) as books:
        books.row_factory = sqlite3.Row
        asked = "SELECT key, count(*) FROM calls WHERE did IN ('effect', 'repeated') GROUP BY key"
        noted_there = {one[0]: one[1] for one in books.execute(asked)}
        for one in map(dict, books.execute("SELECT * FROM effects ORDER BY number")):
            read_back = {name: json.loads(one[name]) for name in ("arguments", "result")}
            same = {"workflow_id": one["workflow"], "noted": noted_there.get(one["key"], 0)}
            parts.append(("effects", {**one, **read_back, **same}))
        others = books.execute("SELECT workflow, key FROM calls WHERE did = 'other arguments'").fetchall()
    with closing(sqlite3.connect(people)) as record:
        record.row_factory = sqlite3.Row
        parts += [
            ("told", {**one, "workflow_id": one["workflow"]}) for one in map(dict, record.execute("SELECT * FROM told"))
        ]
    findings = [Finding("results", one["workflow"], f"{one['key']} was used with other arguments") for one in others]
    return cases, findings + list(_sorted(cases, parts))


def _sorted(cases: dict[str, Case], parts: list[tuple[str, dict[str, Any]]]) -> Iterator[Finding]:
    for where, one in parts:
        case = cases.get(one["workflow_id"])
        if case is None:
            sort = "lost" if where == "told" else "rows"
            yield Finding(sort, one["workflow_id"], f"there is no such workflow, and {where} has {one}")
        elif where == "intents":
            case.intents[one["key"]] = one
        else:
            getattr(case, where).append(one)


def _figures(cases: dict[str, Case], findings: list[Finding]) -> dict[str, int]:
    status = Counter(case.row["status"] for case in cases.values())
    entries = Counter(entry["event"] for case in cases.values() for entry in case.history)
    effects = [effect for case in cases.values() for effect in case.effects]
    calls, sorts = sum(effect["calls"] for effect in effects), Counter(finding.sort for finding in findings)
    gap = sum(
        plan["status"] != ACKNOWLEDGED and any(effect["key"] == plan["idempotency_key"] for effect in case.effects)
        for case in cases.values()
        if case.row["finished_at"]
        for plan in case.intents.values()
    )
    return {
        "workflows": len(cases), "completed": status["completed"], "cancelled": status["cancelled"],
        "lost": sorts["lost"], "doubled": sorts["doubled"], "missing": sorts["missing"], "effects": len(effects),
        "calls": calls, "repeated": calls - len(effects), "in the gap": gap, "claims": entries["workflow_claimed"],
        "take-overs": sum(
            bool(entry["detail"]["recovered"])
            for case in cases.values() for entry in case.history if entry["event"] == "workflow_claimed"
        ),
        "refused writes": entries["write_refused"], "entries": entries.total(),
    }  # fmt: skip
