"""The run capsule: one history with the line that made it, as one small JSON file whose hash shows any change.

Reading a capsule needs no database.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from ...engine import Engine
from ...errors import BadCapsule, BadSchedule, printable
from ..history.belief import lost, with_unseen
from ..history.canonical import CanonicalEntry, agreed, canonical
from ..history.sentences import sentences
from ..history.words import brief, counted
from ..notebook.tables import effects_of
from ..pictures.saved import saved
from ..pictures.timeline import Timeline, timeline
from .grammar import Setting, parse
from .lane_set import LaneKind
from .stepper import Stepper

VERSION = 1
MAX_BYTES = 16 * 2**20
_ENTRY: Mapping[str, Any] = {
    "workflow_id": str, "n": int, "at": int | float, "event": str, "transaction": str | None, "subject": str | None,
    "worker": str | None, "fence_token": int | None, "detail": dict | None,
}  # fmt: skip
_CAPSULE: Mapping[str, Any] = {
    "agentflow_capsule": int, "schedule": str, "setting": dict, "engine": str, "requests": list, "history": list,
    "outcome": dict, "hash": str,
}  # fmt: skip
_OUTCOME: Mapping[str, Any] = {
    "workflows": list, "workflows_total": int, "workflows_completed": int, "tool_execution_attempts": int | None,
    "business_effects": int | None, "duplicate_business_effects": int | None, "problems": list, "sentence": str,
}  # fmt: skip


@dataclass(frozen=True, repr=False)
class Capsule:
    """One run: the line, the engine's class, what was asked, the canonical history, and the outcome.

    `history` has the entries of all workflows, one workflow after the other; `outcome` has a row for each workflow, the
    reliability figures, the problems as sentences (none: all is well), and a sentence for the whole.
    """

    schedule: str
    engine: str
    requests: list[dict[str, Any]]
    history: list[CanonicalEntry]
    outcome: dict[str, Any]

    @property
    def setting(self) -> Setting:
        """What the schedule played on."""
        return parse(self.schedule).setting

    @property
    def hash(self) -> str:
        """The same for every run that agrees in all but what a clock measured."""
        must_agree = {**vars(self), "history": [agreed(entry) for entry in self.history], "version": VERSION}
        text = json.dumps(must_agree, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def workflows(self) -> list[str]:
        """The ids of the workflows that were played."""
        return [request["workflow_id"] for request in self.requests]

    def entries(self, workflow_id: str | None = None) -> list[CanonicalEntry]:
        """The history of one workflow, by default the first."""
        chosen = workflow_id or next(iter(self.workflows), None)
        return [entry for entry in self.history if entry["workflow_id"] == chosen]

    def to_dict(self) -> dict[str, Any]:
        """The whole capsule, as it is in the file."""
        setting = {**vars(self.setting), "without": list(self.setting.without)}
        first = {"agentflow_capsule": VERSION, "schedule": self.schedule, "setting": setting}
        return {**first, **vars(self), "hash": self.hash}

    def save(self, path: str | Path) -> Path:
        """Writes the capsule to the file, as indented JSON; returns the path. Raises OSError."""
        path = Path(path)
        path.write_text(json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Capsule:
        """Reads a capsule from the file. Raises BadCapsule, which says what to do, if it is not one or was changed."""
        return _read(str(path), _json_of(Path(path)))

    def play_again(self, engine: Engine, lanes: LaneKind = "thread") -> Capsule:
        """Empties this engine's laboratory and plays the same line there on the same inputs; returns the new capsule.

        Raises BadSchedule, LaneError, DatabaseAway, NotALaboratory.
        """
        inputs = [request["input"] for request in self.requests] or None
        with Stepper(engine, lanes=lanes, inputs=inputs) as stepper:
            stepper.play(self.schedule)
            return capture(stepper)

    def lines(self) -> list[str]:
        """The history, a numbered sentence for each entry, under the name of its workflow if there are several."""
        told = []
        for workflow_id in self.workflows:
            told += [workflow_id] if len(self.workflows) > 1 else []
            said = (" ".join(one.splitlines()) for one in sentences(self.entries(workflow_id)))
            told += [f"{n:>3}. {one}" for n, one in enumerate(said, 1)]
        return told

    def picture(self, workflow_id: str | None = None) -> Timeline:
        """The timeline of one workflow, by default the first."""
        return timeline(self.entries(workflow_id), schedule=self.schedule)

    def draw(self, path: str | Path) -> list[Path]:
        """Writes the timeline to the file, as SVG; several workflows have a file each: `gap.svg`, `gap-request-2.svg`.

        Raises OSError, and BadCapsule before anything is written if the id of a workflow cannot be part of a file's name.
        """
        first = Path(path)
        if odd := next((one for one in self.workflows[1:] if re.search("[\0/\ud800-\udfff]", one)), None):
            raise BadCapsule(
                f"The workflow {brief(odd, 200)!r} of this capsule cannot be part of a file's name. Nothing was written; save "
                "its picture under a name of your own: capsule.picture(capsule.workflows[1]).save('mine.svg')."
            )
        names = [first, *(first.with_stem(f"{first.stem}-{workflow_id}") for workflow_id in self.workflows[1:])]
        return [self.picture(one).save(name) for one, name in zip(self.workflows or [""], names, strict=True)]

    def __repr__(self) -> str:
        told = [self.schedule or "(nothing was played)", *self.lines(), *self.said(), f"hash {self.hash}"]
        return printable("\n".join(told))

    def said(self) -> list[str]:
        """The outcome as a sentence, and one more for each problem."""
        return [self.outcome["sentence"], *self.outcome["problems"]]

    def _repr_html_(self) -> str:
        pictures = "".join(self.picture(workflow_id).svg for workflow_id in self.workflows)
        said = "".join(f"<p>{html.escape(line)}</p>" for line in (*self.said(), f"hash {self.hash[:12]}"))
        return saved(pictures + said)


# -- from a laboratory -------------------------------------------------------------------------------------------------


def capture(stepper: Stepper) -> Capsule:
    """The capsule of what was played on this stepper so far, read from the rows. Raises DatabaseAway."""
    engine = stepper.engine
    found = [row for name in stepper.workflows if (row := engine.get_workflow(name)) is not None]
    requests = [{"workflow_id": row["id"], "input": row["input"]} for row in found]
    history = canonical(entry for row in found for entry in engine.history(row["id"]))
    return Capsule(stepper.line, type(engine).__name__, requests, history, _outcome(engine, found))


# -- the outcome -------------------------------------------------------------------------------------------------------


def _outcome(engine: Engine, found: list[dict[str, Any]]) -> dict[str, Any]:
    """A row for each workflow, the figures under their names, problems and the sentence."""
    figures = engine.reliability_metrics()
    facts = ("id", "status", "state", "result")
    rows = [{**{name: row[name] for name in facts}, "error": _error(row)} for row in found]
    kept = {name: figures[name] for name in _OUTCOME if name in figures}
    said = {"problems": _problems(engine, found, figures), "sentence": _sentence(rows, figures)}
    return {"workflows": rows, **kept, **said}


def _error(row: Mapping[str, Any]) -> str | None:
    error = row["error"]
    return f"{error['type']}: {error['message']}" if error else None


def _problems(engine: Engine, found: list[dict[str, Any]], figures: Mapping[str, Any]) -> list[str]:
    """The problems: effects that are doubled or lost, and failed workflows. An unfinished one is not a problem."""
    said = []
    if doubled := figures["duplicate_business_effects"]:
        said.append(f"{counted(doubled, 'business effect')} too many: a planned action left more than one.")
    for row in found:
        if row["status"] == "failed":
            said.append(f"{row['id']} has failed: {_error(row)}")
        said += [f"{row['id']} is completed, and {one} left no effect." for one in lost_effects(engine, row["id"])]
    if figures["business_effects"] is None:
        said.append(
            "What a tool of your own did is not observed: let it tell in effects(), name it, also if only a side effect does "
            "(--tool MODULE:ATTRIBUTE, or engine.asked = (tool,)), and play again."
        )
    told = engine.told_effects()
    return said + [f"{one}." for one in (*told.problems, *(told.strange if said else ()))]


def lost_effects(engine: Engine, workflow_id: str) -> list[str]:
    """The keys of the actions of a completed workflow that left no effect."""
    row = engine.get_workflow(workflow_id)
    if row is None or row["status"] != "completed":
        return []
    return lost(row["steps"], with_unseen(row["actions"], engine.history(workflow_id)), effects_of(engine, workflow_id))


def _sentence(rows: list[dict[str, Any]], figures: Mapping[str, Any]) -> str:
    if not rows:
        return "Nothing was played."
    attempts, effects = figures["tool_execution_attempts"], figures["business_effects"]
    calls = "attempts that nobody counted" if attempts is None else counted(attempts, "attempt")
    world = f"{calls} left {counted(effects, 'business effect')}"
    if effects is None:
        world = "the effects of a tool of your own are not observed"
    left = [
        f"{row['id']} ({row['state']}{'; its last try: ' + brief(row['error'], 200) if row['error'] else ''})"
        for row in rows
        if row["status"] in ("ready", "waiting")
    ]
    unfinished = f"; left unfinished: {', '.join(left)}" if left else ""
    done = f"{figures['workflows_completed']} of {counted(len(rows), 'workflow')}"
    return f"{done} completed; {world}{unfinished}."


# -- from a file -------------------------------------------------------------------------------------------------------


def _json_of(path: Path) -> Any:
    why = f"has more than {MAX_BYTES:,} bytes"
    again = "Give a file that Capsule.save() or `agentflow play --capsule` wrote."
    try:
        found = path.stat()
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            why = "is no regular file"  # a pipe would be waited for, and a device may have no end
        elif found.st_size <= MAX_BYTES:
            with path.open("rb") as file:
                if len(read := file.read(MAX_BYTES + 1)) <= MAX_BYTES:  # it may grow, and some files state no size
                    return json.loads(read.decode())
    except OSError as error:
        raise BadCapsule(f"{path} cannot be read ({error.strerror}). {again}") from error
    except (ValueError, RecursionError) as error:
        raise BadCapsule(f"{path} is not JSON, so it is not a capsule. {again}") from error
    raise BadCapsule(f"{path} {why}, so it is not a capsule. {again}")


def _read(path: str, data: Any) -> Capsule:
    version = data.get("agentflow_capsule") if isinstance(data, dict) else None
    if isinstance(version, int) and version != VERSION:
        raise BadCapsule(
            f"{path} is a capsule of version {version}, but this AgentFlow reads version {VERSION}. Play its schedule "
            "again with this one, or read it with the AgentFlow that wrote it."
        )
    if why := next(filter(None, _misshapen(data)), ""):
        raise BadCapsule(f"{path} is not a capsule: {why}. Ask for the file again, or play its schedule.")
    capsule = Capsule(*(data[name] for name in ("schedule", "engine", "requests", "history", "outcome")))
    try:
        whole = capsule.to_dict() == data
        for workflow_id in {entry["workflow_id"] for entry in capsule.history}:
            sentences(capsule.entries(workflow_id))
    except (BadSchedule, ValueError, RecursionError) as error:
        raise BadCapsule(f"{path} is not a capsule: {brief(str(error), 400)} Ask for the file again.") from error
    except (AttributeError, LookupError, TypeError) as error:
        raise BadCapsule(f"{path} is not a capsule: its entries make no history. Ask for the file again.") from error
    if not whole:
        raise BadCapsule(
            f"{path} was changed after it was written: it states the hash {brief(data['hash'], 13)}, but has {capsule.hash:.12}. "
            f"Ask for the file again, or play its schedule: agentflow play {shlex.quote(brief(capsule.schedule, 200))}"
        )
    return capsule


def _misshapen(data: Any) -> Iterator[str]:
    """What is wrong with the shape of each part of a capsule's data; the later parts assume that the earlier are right."""
    yield _unlike("the file", data, _CAPSULE)
    yield _unlike("outcome", data["outcome"], _OUTCOME)
    for n, request in enumerate(data["requests"], 1):
        yield _unlike(f"request {n}", request, {"workflow_id": str, "input": object})
    for n, entry in enumerate(data["history"], 1):
        yield _unlike(f"entry {n}", entry, _ENTRY)


def _unlike(what: str, value: Any, shape: Mapping[str, Any]) -> str:
    """What is wrong with one part; empty if nothing is."""
    if not isinstance(value, dict) or set(value) != set(shape):
        return f"{what} does not have exactly the members {', '.join(shape)}"
    wrong = [name for name, kind in shape.items() if not isinstance(value[name], kind)]
    return f"{wrong[0]} of {what} has the wrong type" if wrong else ""


# -- two capsules ------------------------------------------------------------------------------------------------------


def first_divergence(one: Capsule, other: Capsule) -> str | None:
    """Where two runs begin to differ: workflow, number of the entry, and what each has there. None if they agree."""
    if one.hash == other.hash:
        return None
    named = (entry["workflow_id"] for run in (one, other) for entry in run.history)
    for workflow_id in dict.fromkeys([*one.workflows, *other.workflows, *named]):
        left, right = one.entries(workflow_id), other.entries(workflow_id)
        said = zip_longest(sentences(left), sentences(right))
        for number, (here, there, words) in enumerate(zip_longest(left, right, said), 1):
            if _text(agreed(here)) != _text(agreed(there)):
                return brief(f"{workflow_id}, entry {number}: {_apart(here, there, *(words or ('', '')))}", 1000)
    for part in ("requests", "outcome", "schedule", "engine"):
        here, there = getattr(one, part), getattr(other, part)
        if _text(here) != _text(there):
            return f"the histories agree; {part}: {_short(here)} against {_short(there)}"
    return "the histories agree, each by itself; their entries stand in another order"


def _apart(here: CanonicalEntry | None, there: CanonicalEntry | None, said: str | None, other: str | None) -> str:
    """What each has there, in words; if the words are the same, the members that differ."""
    if said != other:
        return " against ".join(f'"{one}"' if one else "nothing, the history has ended" for one in (said, other))
    left, right = agreed(here) or {}, agreed(there) or {}
    parts = ((name, _text(left[name]), _text(right[name])) for name in left)
    apart = [f"{name} {_short(one)} against {_short(two)}" for name, one, two in parts if one != two]
    return f'"{said}", but {", ".join(apart)}'


def _short(value: Any) -> str:
    return brief(value if isinstance(value, str) else _text(value), 200)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
