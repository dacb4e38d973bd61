"""The run capsule: one history with the line that made it, in one small JSON that says whether it is still the same.

What lives here: the canonical form of a history (the same on every machine), its hash, saving and loading, and where two
capsules part. What does not: playing (`stepper`), pictures (`timeline`). A loaded capsule needs no database to be read.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ..errors import BadCapsule, BadSchedule
from ..front import Engine
from .crew import Kind
from .look import STYLE, Table, counted, entry_sentence, worker_name
from .schedule import Setting, parse
from .stepper import Stepper

VERSION = 1
MAX_BYTES = 16 * 2**20
MEASURED = frozenset({"at", "asked_at", "replay_ms"})
"""What a clock measured: kept in a capsule, and not in its hash."""

Entry = dict[str, Any]
_TEXT, _MAYBE, _NUMBER = str, (str, type(None)), (int, float)
_ENTRY: Mapping[str, Any] = {
    "workflow_id": _TEXT, "n": int, "at": _NUMBER, "event": _TEXT, "transaction": _MAYBE, "subject": _MAYBE,
    "worker": _MAYBE, "fence_token": (int, type(None)), "detail": (dict, type(None)),
}  # fmt: skip
_CAPSULE: Mapping[str, Any] = {
    "agentflow_capsule": int, "schedule": _TEXT, "setting": dict, "engine": _TEXT, "requests": list, "history": list,
    "outcome": dict, "hash": _TEXT,
}  # fmt: skip
_OUTCOME: Mapping[str, Any] = {
    "workflows": list, "workflows_total": int, "workflows_completed": int, "tool_execution_attempts": int,
    "business_effects": int, "duplicate_business_effects": int, "problems": list, "sentence": _TEXT,
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class Capsule:
    """One run: the line, the engine's class, what was asked, the canonical history, and what it came to.

    `history` has the entries of all workflows, one workflow after the other; `outcome` has a row for each workflow, the
    reliability figures, the problems as sentences (none: all is well), and a sentence for the whole.
    """

    schedule: str
    engine: str
    requests: list[dict[str, Any]]
    history: list[Entry]
    outcome: dict[str, Any]

    @property
    def setting(self) -> Setting:
        """What the schedule played on."""
        return parse(self.schedule).setting

    @property
    def hash(self) -> str:
        """The same for every run that agrees in all but what a clock measured."""
        must_agree = {**vars(self), "history": [_agreed(entry) for entry in self.history], "version": VERSION}
        text = json.dumps(must_agree, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def workflows(self) -> list[str]:
        """The ids of the workflows that were played."""
        return [request["workflow_id"] for request in self.requests]

    def entries(self, workflow_id: str = "request-1") -> list[Entry]:
        """The history of one workflow."""
        return [entry for entry in self.history if entry["workflow_id"] == workflow_id]

    def to_dict(self) -> dict[str, Any]:
        """All of it, as it stands in the file."""
        setting = {**vars(self.setting), "without": list(self.setting.without)}
        first = {"agentflow_capsule": VERSION, "schedule": self.schedule, "setting": setting}
        return {**first, **vars(self), "hash": self.hash}

    def save(self, path: str | Path) -> Path:
        """The capsule is in the file, as indented JSON; the path. Raises OSError."""
        path = Path(path)
        path.write_text(json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Capsule:
        """The capsule in the file. Raises BadCapsule, which says what to do, if it is none or was changed."""
        return _read(str(path), _json_of(Path(path)))

    def play_again(self, engine: Engine, lanes: Kind = "thread") -> Capsule:
        """What the same line came to on this engine's laboratory, which was emptied first.

        Raises BadSchedule, LaneError, DatabaseAway, NotALaboratory.
        """
        with Stepper(engine, lanes=lanes) as stepper:
            stepper.play(self.schedule)
            return capture(stepper)

    def lines(self) -> list[str]:
        """The history, a numbered sentence for each entry, under the name of its workflow if there are several."""
        told = []
        for workflow_id in self.workflows:
            told += [f"{workflow_id}"] if len(self.workflows) > 1 else []
            told += [f"{entry['n']:>3}. {entry_sentence(entry)}" for entry in self.entries(workflow_id)]
        return told

    def __repr__(self) -> str:
        return "\n".join([self.schedule or "(nothing was played)", *self.lines(), *self.said(), f"hash {self.hash}"])

    def said(self) -> list[str]:
        """What it came to: the sentence, and one for each problem."""
        return [self.outcome["sentence"], *self.outcome["problems"]]

    def _repr_html_(self) -> str:
        rows = [{"n": entry["n"], "entry": entry_sentence(entry)} for entry in self.history]
        head = Table([{"schedule": self.schedule, "hash": self.hash[:12]}]).to_html()
        said = Table([{"outcome": line} for line in self.said()]).to_html()
        return f'{STYLE}<div class="af-look">{head}{Table(rows, "history").to_html()}{said}</div>'


# -- from a laboratory -------------------------------------------------------------------------------------------------


def capture(stepper: Stepper) -> Capsule:
    """What was played on this stepper so far, read from the rows. Raises DatabaseAway."""
    engine = stepper.engine
    found = [row for name in stepper.workflows if (row := engine.get_workflow(name)) is not None]
    requests = [{"workflow_id": row["id"], "input": row["input"]} for row in found]
    history = canonical(entry for row in found for entry in engine.history(row["id"]))
    return Capsule(stepper.line, type(engine).__name__, requests, history, _outcome(engine, found))


def canonical(history: Iterable[Mapping[str, Any]]) -> list[Entry]:
    """The entries as they are on every machine but for MEASURED, which becomes seconds since the first entry.

    Worker identities become the names of their lanes: `A` for the first that is seen in time, `A.2` for the second, so
    that `look.worker_name()` still gives `A`. Each workflow's effects are counted from 1. Done again it changes nothing.
    """
    entries = list(history)
    in_time = sorted(entries, key=lambda entry: entry["at"])
    first = in_time[0]["at"] if entries else None
    workers, effects = _lane_names(in_time), _effect_numbers(in_time)
    return [_canonical_entry(entry, first, workers, effects) for entry in entries]


def _lane_names(in_time: list[Mapping[str, Any]]) -> dict[str, str]:
    names: dict[str, str] = {}
    starts: Counter[str] = Counter()
    for entry in in_time:
        identity = entry["worker"]
        if identity and identity not in names:
            lane = worker_name(identity)
            starts[lane] += 1
            names[identity] = lane if starts[lane] == 1 else f"{lane}.{starts[lane]}"
    return names


def _effect_numbers(in_time: list[Mapping[str, Any]]) -> dict[Any, int]:
    numbers: dict[Any, int] = {}
    effects: Counter[str] = Counter()
    for entry in in_time:
        effect = (entry["workflow_id"], (entry["detail"] or {}).get("effect_id"))
        if effect[1] is not None and effect not in numbers:
            effects[effect[0]] += 1
            numbers[effect] = effects[effect[0]]
    return numbers


def _canonical_entry(
    entry: Mapping[str, Any], first: Any, workers: Mapping[str, str], effects: Mapping[Any, int]
) -> Entry:
    detail = dict(entry["detail"]) if entry["detail"] is not None else None
    if detail and detail.get("held_by"):
        detail["held_by"] = workers.get(detail["held_by"], worker_name(detail["held_by"]))
    if detail and detail.get("effect_id") is not None:
        detail["effect_id"] = effects[entry["workflow_id"], detail["effect_id"]]
    if detail and isinstance(detail.get("asked_at"), str):
        detail["asked_at"] = _since(first, datetime.fromisoformat(detail["asked_at"]))
    worker = workers[entry["worker"]] if entry["worker"] else None
    kept = {name: entry[name] for name in _ENTRY}
    return {**kept, "at": _since(first, entry["at"]), "worker": worker, "detail": detail}


def _since(first: Any, at: Any) -> float:
    """Seconds from the first entry; those that are already counted from there stay."""
    return round((at - first).total_seconds(), 6) if isinstance(at, datetime) else float(at)


def _agreed(entry: Entry | None) -> Entry | None:
    """The entry without what a clock measured."""
    if entry is None:
        return None
    detail = entry["detail"] and {name: value for name, value in entry["detail"].items() if name not in MEASURED}
    return {**{name: value for name, value in entry.items() if name not in MEASURED}, "detail": detail}


# -- what it came to ---------------------------------------------------------------------------------------------------


def _outcome(engine: Engine, found: list[dict[str, Any]]) -> dict[str, Any]:
    """A row for each workflow, the figures under their names, problems and the sentence."""
    figures = engine.reliability_metrics()
    rows = [
        {**{name: row[name] for name in ("id", "status", "state", "result")}, "error": _error(row)} for row in found
    ]
    kept = {name: figures[name] for name in _OUTCOME if name in figures}
    return {
        "workflows": rows, **kept, "problems": _problems(engine, found, figures), "sentence": _sentence(rows, figures),
    }  # fmt: skip


def _error(row: Mapping[str, Any]) -> str | None:
    error = row["error"]
    return f"{error['type']}: {error['message']}" if error else None


def _problems(engine: Engine, found: list[dict[str, Any]], figures: Mapping[str, Any]) -> list[str]:
    """What is not well: an effect that is doubled, or lost, and a workflow that failed. Unfinished is not: the line ended."""
    said = []
    if doubled := figures["duplicate_business_effects"]:
        said.append(f"{counted(doubled, 'business effect')} too many: a planned action left more than one.")
    for row in found:
        if row["status"] == "failed":
            said.append(f"{row['id']} has failed: {_error(row)}")
        if row["status"] == "completed":
            said += [f"{row['id']} is completed, and {one} left no effect." for one in _lost(engine, row)]
    return said


def _lost(engine: Engine, row: Mapping[str, Any]) -> list[str]:
    """The keys of a completed workflow's actions that are recorded as done, and of which the world knows nothing."""
    actions = {intent["key"]: intent["action"] for intent in row["actions"]}
    done = [step["step_id"] for step in row["steps"] if step["kind"] == "side_effect" and step["error"] is None]
    happened = {
        entry["subject"] for entry in engine.history(row["id"]) if entry["event"] == "tool_attempt_committed"
    }  # fmt: skip
    return [key for key in done if actions.get(key, key) not in happened]


def _sentence(rows: list[dict[str, Any]], figures: Mapping[str, Any]) -> str:
    if not rows:
        return "Nothing was played."
    attempts, effects = figures["tool_execution_attempts"], figures["business_effects"]
    world = f"{counted(attempts, 'attempt')} left {counted(effects, 'business effect')}"
    left = [f"{row['id']} ({row['state']})" for row in rows if row["status"] in ("ready", "waiting")]
    unfinished = f"; left unfinished: {', '.join(left)}" if left else ""
    done = f"{figures['workflows_completed']} of {counted(len(rows), 'workflow')}"
    return f"{done} completed; {world}{unfinished}."


# -- from a file -------------------------------------------------------------------------------------------------------


def _json_of(path: Path) -> Any:
    again = "Give a file that Capsule.save() or `agentflow play --capsule` wrote."
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadCapsule(f"{path} has more than {MAX_BYTES:,} bytes, so it is no capsule. {again}")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadCapsule(f"{path} cannot be read ({error.strerror}). {again}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadCapsule):
            raise
        raise BadCapsule(f"{path} is no JSON, so it is no capsule. {again}") from error


def _read(path: str, data: Any) -> Capsule:
    version = data.get("agentflow_capsule") if isinstance(data, dict) else None
    if isinstance(version, int) and version != VERSION:
        raise BadCapsule(
            f"{path} is a capsule of version {version}, and this AgentFlow reads version {VERSION}. Play its schedule "
            "again with this one, or read it with the AgentFlow that wrote it."
        )
    if why := _misshapen(data):
        raise BadCapsule(f"{path} is no capsule: {why}. Ask for the file again, or play its schedule.")
    capsule = Capsule(*(data[name] for name in ("schedule", "engine", "requests", "history", "outcome")))
    try:
        whole = capsule.to_dict() == data
    except (BadSchedule, ValueError) as error:
        raise BadCapsule(f"{path} is no capsule: {error} Ask for the file again.") from error
    if not whole:
        raise BadCapsule(
            f"{path} was changed after it was written: its hash says {data['hash']:.12}, its content {capsule.hash:.12}. "
            f"Ask for the file again, or play its schedule: agentflow play '{capsule.schedule:.200}'"
        )
    return capsule


def _misshapen(data: Any) -> str:
    """What is wrong with the shape of a capsule's data; empty if nothing is."""
    parts: list[tuple[str, Any, Mapping[str, Any]]] = [("it", data, _CAPSULE)]
    if not (why := _unlike(*parts[0])):
        parts.append(("outcome", data["outcome"], _OUTCOME))
        parts += [
            (f"request {n}", one, {"workflow_id": _TEXT, "input": object}) for n, one in enumerate(data["requests"], 1)
        ]
        parts += [(f"entry {n}", one, _ENTRY) for n, one in enumerate(data["history"], 1)]
    return why or next((why for part in parts[1:] if (why := _unlike(*part))), "")


def _unlike(what: str, value: Any, shape: Mapping[str, Any]) -> str:
    if not isinstance(value, dict) or set(value) != set(shape):
        return f"{what} has not the members {', '.join(shape)}"
    wrong = [name for name, kind in shape.items() if not isinstance(value[name], kind)]
    return f"{what} has a {wrong[0]} of the wrong kind" if wrong else ""


# -- two capsules ------------------------------------------------------------------------------------------------------


def first_divergence(one: Capsule, other: Capsule) -> str | None:
    """Where two runs part: workflow, number of the entry, and what stands in each. None if they agree."""
    for workflow_id in dict.fromkeys([*one.workflows, *other.workflows]):
        pairs = zip_longest(one.entries(workflow_id), other.entries(workflow_id))
        for number, (here, there) in enumerate(pairs, 1):
            if _agreed(here) != _agreed(there):
                return f"{workflow_id}, entry {number}: {_apart(here, there)}"
    for part in ("requests", "outcome", "schedule", "engine"):
        here, there = getattr(one, part), getattr(other, part)
        if here != there:
            return f"the histories agree; {part}: {_short(here)} against {_short(there)}"
    return None


def _apart(here: Entry | None, there: Entry | None) -> str:
    """What stands in each, in words; where the words are the same, the members that differ."""
    if here is None or there is None or entry_sentence(here) != entry_sentence(there):
        said = [f'"{entry_sentence(one)}"' if one else "nothing, the history has ended" for one in (here, there)]
        return " against ".join(said)
    left, right = _agreed(here) or {}, _agreed(there) or {}
    apart = [f"{name} {_short(left[name])} against {_short(right[name])}" for name in left if left[name] != right[name]]
    return f'"{entry_sentence(here)}", but {", ".join(apart)}'


def _short(value: Any) -> str:
    said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
    return said if len(said) <= 200 else said[:199] + "…"
