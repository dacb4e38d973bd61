"""Reliability evidence: figures from rows alone, after every process has died, and from what tools of one's own tell.

A duplicate is a second effect for one planned action, also under a newly made key. What nobody can see is *not observed*:
the effects of a tool of one's own that tells nothing, and a latency that a clock measured which went backwards.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import AgentFlowError, describe_failure
from .model import Tool
from .statements import Statement, command
from .tools import own_name
from .values import idempotency_key, to_json

if TYPE_CHECKING:
    from .database import Database

SEMANTICS = "at-least-once execution, exactly-once business effect per idempotency key"
REPORT = Path("artifacts/reliability-report.json")
_OF_EFFECTS = (
    "tool_execution_attempts", "business_effects", "duplicate_business_effects", "missing_business_effects",
    "unacknowledged_effects",
)  # fmt: skip
_TOLD = Statement(
    "told",
    "What a tool of one's own tells (p_told) against the rows: effects of no workflow here, or of no such plan.",
    text="""SELECT told.*, w.id IS NULL AS unknown, i.action AS planned, i.workflow_id AS planned_for
FROM json_to_recordset(%(p_told)s::json) AS told (idempotency_key text, workflow_id text, action text, attempts int)
LEFT JOIN agentflow.workflows AS w ON w.id = told.workflow_id
LEFT JOIN agentflow.action_intents AS i USING (idempotency_key)
WHERE w.id IS NULL
   OR told.idempotency_key IS NOT NULL AND (i.workflow_id, i.action) IS DISTINCT FROM (told.workflow_id, told.action)""",
)  # fmt: skip

_UNSETTLED = Statement(
    "unsettled",
    "Why ready workflows were last let go: by a call whose outcome nobody knows (of this action), or by trouble not their own.",
    text="""SELECT CASE WHEN w.error -> 'troubles' IS NULL THEN action END AS action, w.error ->> 'type' AS type,
       (array_agg(w.error ->> 'message' ORDER BY id))[1] AS message, count(*) AS workflows, min(id) AS example,
       sum(CASE WHEN w.error -> 'troubles' IS NULL THEN attempts ELSE (w.error ->> 'troubles')::int END)::bigint AS tries
FROM agentflow.workflows AS w
LEFT JOIN agentflow.action_intents AS i ON i.workflow_id = id AND i.status = 'PENDING'
WHERE w.status = 'ready'
  AND (w.error -> 'troubles' IS NOT NULL OR attempts > 0 AND action IS NOT NULL)
GROUP BY 1, 2, replace(w.error ->> 'message', id, '')
ORDER BY tries DESC, 1, 2""",
)  # fmt: skip

_GIVEN = Statement(
    "given",
    "The tools of one's own to which actions were given.",
    text="SELECT DISTINCT detail ->> 'tool' AS tool FROM agentflow.history "
    "WHERE transaction = 'intent' AND detail ->> 'tool' <> '' ORDER BY 1",
)


@dataclass(frozen=True)
class Told:
    """What tools of one's own tell in `effects()`: rows as the ledger has them, the tools' names, and what is wrong.

    `strange` is a sentence for its effects of no workflow here, which a provider that others use too may well have.
    """

    effects: list[dict[str, Any]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)

    @property
    def params(self) -> dict[str, Any]:
        """The binds of the statements that count them."""
        return {"p_told": json.dumps(self.effects), "p_asked": self.asked}

    def of(self, workflow_id: str) -> list[dict[str, Any]]:
        """The effects of one workflow."""
        return [one for one in self.effects if one["workflow_id"] == workflow_id]

    def marked(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """The entry, marked if it names a tool that was asked."""
        detail = entry["detail"] or {}
        return {**entry, "detail": {**detail, "told": True}} if detail.get("tool") in self.asked else dict(entry)

    def among(self, history: Iterable[Mapping[str, Any]], workflow_id: str) -> list[dict[str, Any]]:
        """The workflow's history with the calls that were told: the effect after its plan, the rest before the acknowledgment.

        When a call came, nobody knows. Of the calls that repeated one, the last stands for all.
        """
        left, entries = self.of(workflow_id), list[dict[str, Any]]()
        calls = {key: list(_calls(left, key)) for key in {one["idempotency_key"] for one in left}}
        for row in history:
            key = idempotency_key(workflow_id, row["subject"] or "")
            if row["event"] == "action_acknowledged":
                entries += [_entry(row, call) for call in calls.pop(key, ())]
            entries.append(self.marked(row))
            if row["event"] == "action_intent_committed" and calls.get(key):
                entries.append(_entry(row, calls[key].pop(0)))
        entries += [_entry(entries[-1], call) for rest in calls.values() for call in rest if entries]
        return [{**row, "n": n} for n, row in enumerate(entries, 1)]


def _calls(effects: Iterable[Mapping[str, Any]], key: str | None) -> Iterator[dict[str, Any]]:
    for one in effects:
        if one["idempotency_key"] == key:
            yield {**one, "attempts": 1, "outcome": "effect"}
            if (one["attempts"] or 1) > 1:
                yield {**one, "outcome": "repeated"}


def _entry(beside: Mapping[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
    detail = {name: call[name] for name in ("idempotency_key", "effect_id", "attempts", "outcome")}
    who: dict[str, Any] = {"worker": None, "fence_token": None, "subject": call["action"], "transaction": "tool"}
    return {**beside, **who, "event": "tool_attempt_committed", "detail": detail}


def ask(database: Database, tools: Iterable[Tool]) -> Told:
    """What these tools tell of their effects, compared with the plans: nothing is counted that belongs to no workflow here.

    A tool that raises, or tells what is no effect, was not heard. Raises DatabaseAway, SchemaMissing.
    """
    told, silent = Told(), set()
    for tool in {id(one): one for one in tools}.values():
        name, effects = own_name(tool, database.schema), getattr(tool, "effects", None)
        if name is None or effects is None:
            continue
        if isinstance(tool, type):
            told.problems.append(
                f"{name} is a class, and its effects are not observed: name an object of it, such as tool = {tool.__name__}()"
            )
            continue
        try:
            found = [effect_row(one, f"{name} {n}") for n, one in enumerate(effects(), 1)]
        except (Exception, SystemExit) as error:
            said = f"{name}.effects() raised {on_one_line(error)}"
            told.problems.append(f"{said:.300}. Mend it: until then its effects are not observed")
            silent.add(name)
            continue
        told.asked.append(name)
        if not hasattr(tool, "__qualname__"):  # where it was called it may have had no name of its own
            told.asked.append(str(own_name(type(tool), database.schema)))
        told.effects.extend(found)
    told.asked[:] = sorted({*told.asked} - silent)
    if told.effects:
        rows = database.run(_TOLD, {"p_told": json.dumps(told.effects)})
        told.problems.extend(_wrong(row) for row in rows if not row["unknown"])
        strange = [row for row in rows if row["unknown"]]
        more = f", and {len(strange) - 1} more are not" if len(strange) > 1 else ""
        told.strange.extend(f"{_wrong(row)}{more}" for row in strange[:1])
        unknown = {row["workflow_id"] for row in strange}
        told.effects[:] = [one for one in told.effects if one["workflow_id"] not in unknown]
    return told


def on_one_line(error: BaseException) -> str:
    """Returns the error's type and message for a sentence: what would break its line is an escape."""
    failure = describe_failure(error)
    return f"{failure['type']}: {failure['message']}".replace("\n", "\\n")


def never_used(database: Database, tools: Iterable[Tool]) -> Iterator[str]:
    """A sentence for each of these tools to which no action here was given. Raises DatabaseAway, SchemaMissing."""
    given = [row["tool"] for row in database.run(_GIVEN)]
    for name, kind in ((own_name(one, database.schema), own_name(type(one), database.schema)) for one in tools):
        if name and not {name, kind} & {*given}:
            others = (
                f"tools of one's own that got one: {', '.join(given)}" if given else "none went to a tool of one's own"
            )
            yield f"No action in schema {database.schema} was given to {name}; {others:.300}."


def effect_row(one: Any, effect_id: str) -> dict[str, Any]:
    """The effect as a row of the ledger. Raises TypeError, which says what an effect is."""
    whole = isinstance(one, tuple | list) and 3 <= len(one) <= 4
    key, action, workflow, attempts = [*one, None][:4] if whole else [0] * 4
    texts = isinstance(action, str) and isinstance(workflow, str) and isinstance(key, str | None)
    if not texts or (attempts is not None and (type(attempts) is not int or not 0 < attempts < 2**31)):
        raise TypeError(f"{one!r:.100} is no effect: give (idempotency key, action, workflow id, attempts or None)")
    told = {"idempotency_key": key, "workflow_id": workflow, "action": action, "attempts": attempts}
    to_json(told, workflow=str(workflow), step="effects()")  # it goes to PostgreSQL as JSON
    return {"effect_id": effect_id, "remembered": True, "arguments": None, "result": None, **told}


def _wrong(row: Mapping[str, Any]) -> str:
    what = (
        f"effects() tells of {row['action']!r} for workflow {row['workflow_id']!r} under key {row['idempotency_key']!r}"
    )
    if row["unknown"]:
        return f"{what}, and there is no such workflow here: it is not counted"
    if row["planned"] is None:
        return f"{what}, and no action was planned under that key"
    return f"{what}, and under that key {row['planned']!r} was planned for {row['planned_for']!r}"


def reliability_metrics(database: Database, tools: Iterable[Tool] = (), alone: bool = True) -> dict[str, Any]:
    """The reliability figures of a schema: rates from 0 to 1, counts, latencies in ms; None is "not observed".

    `tools` are of one's own, and are asked for their `effects()`. `problems` has a sentence for all that is doubled, missing
    or not observed, and unless the schema is not `alone` with its tools, for their effects of no workflow here. Recovery
    latency is from the first take-over to completion, as in the tutorial.
    """
    told = ask(database, tools)
    effects, row = dict(database.read("metrics", told.params)[0]), dict(database.read("condition", {})[0])
    backwards, blind = row.pop("recoveries_not_observed"), effects.pop("tools")
    problems = [*_problems(database.schema, effects, blind, backwards), *told.problems]
    problems += told.strange if alone or effects["missing_business_effects"] else ()
    said = promise(effects["duplicate_business_effects"], effects["missing_business_effects"])
    if blind:
        said = "not observed: what a tool of one's own did" if said == SEMANTICS else said
        effects |= dict.fromkeys(_OF_EFFECTS)
    if backwards:
        row |= dict.fromkeys(name for name in row if name.startswith("recovery_latency"))
    counts = {name: row[name] for name in ("workflows_total", "workflows_completed")}
    rate = counts["workflows_completed"] / counts["workflows_total"] if counts["workflows_total"] else 0.0
    first = {"workflow_completion_rate": rate, **counts, **effects}
    return {**first, **row, "semantics": said, "problems": problems}


def _problems(schema: str, row: Mapping[str, Any], blind: str | None, backwards: int) -> Iterator[str]:
    named = f"{command('check', schema)} names them"
    if doubled := row["duplicate_business_effects"]:
        yield f"business effects doubled: {doubled}; a planned action left more than one; {named}"
    if missing := row["missing_business_effects"]:
        yield f"business effects missing: {missing}; an action is acknowledged, and no effect was seen; {named}"
    if unseen := row["effects_not_observed"]:
        yield (
            f"actions whose effects are not observed: {unseen}, given to {blind}. Let that tool tell them "
            "in effects(), and name it: --tool MODULE:ATTRIBUTE, or Engine(..., tool=...)"
        )
    if backwards:
        yield f"recoveries during which the server's clock went backwards: {backwards}; the latency is not observed"


def unsettled(database: Database) -> list[dict[str, Any]]:
    """What keeps ready workflows from going on, most often first; `says` puts it into a sentence, `mend` what helps.

    A call whose outcome nobody knows, by `action` and `type` of error, or (no action) trouble that was not the workflow's own;
    how many `tries` there were, in how many `workflows`, and one of them. Raises DatabaseAway, SchemaMissing.
    """
    found = []
    for row in database.run(_UNSETTLED):
        what, mend = "Runs that were let go in a row", "Mend what it names; no workflow has failed by it"
        if row["action"]:
            what = f"Calls of {row['action']!r:.80} whose outcome nobody knows"
            mend = "Each is called again with its key until it answers: mend the tool, or cancel the workflow"
        many = f"{row['workflows']} workflow{'s' * (row['workflows'] > 1)}, such as {row['example']!r:.80}"
        why = f"{row['type']}: {row['message'].partition(' Nothing was')[0]}"
        found.append(
            {**row, "says": f"{what}: {row['tries']}, in {many}; {why:.300}".rstrip(".") + ".", "mend": f"{mend}."}
        )
    return found


def promise(doubled: int, lost: int = 0) -> str:
    """What is promised, or how it was broken: by so many business effects too many, and lost."""
    counts = ((doubled, "too many"), (lost, "lost"))
    broken = [f"{number} business effect{'s' * (number > 1)} {how}" for number, how in counts if number]
    return f"broken: {', '.join(broken)}" if broken else SEMANTICS


def recoveries(database: Database) -> list[dict[str, Any]]:
    """Each take-over in order, with its span in ms split into detect, claim, replay and re-execute (None: not known).

    detect: from the crash, where the laboratory recorded it, to the claim that took over; claim: that statement; replay:
    the function on recorded results; re_execute: from there to completion. `span_ms` is the whole, from the crash.
    """
    rows = database.read("recoveries", {})
    for row in rows:
        after_ms, replay_ms = _ms(row["claimed_at"], row["completed_at"]), row["replay_ms"]
        row |= {
            "detect_ms": _ms(row["crashed_at"], row["asked_at"]),
            "claim_ms": _ms(row["asked_at"], row["claimed_at"]),
            "re_execute_ms": None
            if after_ms is None or replay_ms is None or after_ms < replay_ms
            else after_ms - replay_ms,
            "recovery_ms": after_ms,
            "span_ms": _ms(row["crashed_at"], row["completed_at"]),
        }
    return rows


def write_reliability_report(database: Database, path: Path = REPORT, tools: Iterable[Tool] = ()) -> dict[str, Any]:
    """Writes the figures to the file as indented JSON, and returns them. Raises AgentFlowError if it is no report of ours."""
    report = reliability_metrics(database, tools)
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path) and not _is_report(path):
        raise AgentFlowError(
            f"{path} is in the way and no report of AgentFlow's. Nothing was written; move it elsewhere."
        )
    path.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return report


def _is_report(path: Path) -> bool:
    """Whether it is a file, not a link and under no other name, that begins as our reports do."""
    plain = path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1
    return plain and path.read_text(encoding="utf-8", errors="replace").startswith('{\n  "business_effects": ')


def _ms(start: Any, end: Any) -> float | None:
    """None if one of them is not known, or if the clock went backwards in between."""
    return None if start is None or end is None or end < start else round((end - start).total_seconds() * 1000, 3)
