"""An invariant of each exploration: a workflow that ends has gone a way that its function goes when nobody disturbs it.

The answers of steps and events are given: what was recorded first stands, and a model may say something else each time. Of a
tool only those answers are given that a call got before there was an effect under its key. An answer that only a repeated call
gets comes from a fault, and what it changes is found. That it is handed on in the result changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice, product
from typing import Any

from psycopg.rows import DictRow

from ...errors import ToolRefused
from ...run import Workflow
from ..verify.invariants import Guilty, Transition
from ..verify.snapshot import Rows
from .own_code import OwnCode
from .own_invariant import HereOnly
from .way import AnswersTold, EndedAs, FoundEnd, RecordedCall, Way, handed_on, plain, told_apart, way_told, whose_chance

SPENT: EndedAs = ("failed", "CrashBudgetSpent")
_REFUSED = "refused"  # as a text, no JSON value is
_MOST = 64  # combinations of first answers that are tried for one end
_SENTENCE = (
    "A fault changes no way: a workflow that ends has planned and returned what an undisturbed run plans and returns."
)


class Ways:
    """Knows the undisturbed ways, hears what tools answer, and judges each end, as `invariant`.

    `ended` has each distinct end that was judged.
    """

    def __init__(self, function: Workflow, own: OwnCode, where: Callable[[], str]) -> None:
        self._function, self._own, self._where = function, own, where
        self._first: dict[tuple[str, str, str], dict[str, None]] = {}  # answers to (workflow, action, arguments)
        self._undisturbed: dict[str, Way] = {}
        self.ended: dict[FoundEnd, str] = {}
        self.invariant = HereOnly("a fault changes no way", "harm", _SENTENCE, self._check)

    def __getstate__(self) -> dict[str, Any]:
        """The ends, without the learner's function, which stays in its process."""
        return {"ended": self.ended}

    def undisturbed(self, rows: Rows) -> None:
        """These rows are how the workflows end when nobody disturbs them."""
        self._undisturbed = {row["id"]: ended.way for row in rows.workflows if (ended := as_ended(rows, row))}

    def heard(self, rows: Rows, call: Mapping[str, Any], answer: Any) -> None:
        """A tool was called on these rows, and answered."""
        told = {name.removeprefix("p_"): value for name, value in call.items()}
        key = told.get("idempotency_key", told.get("key"))
        if key is not None and any(row["idempotency_key"] == key for row in rows.effects):
            return
        if isinstance(answer, ToolRefused) or not isinstance(answer, Exception):
            said = _REFUSED if isinstance(answer, Exception) else _as_json(answer[0]["result"])
            arguments = plain(json.loads(told["arguments"]) if "p_arguments" in call else told["arguments"])
            which = str(told.get("workflow_id", told.get("workflow"))), str(told["action"]), arguments
            self._first.setdefault(which, {})[said] = None

    def _check(self, transition: Transition) -> Iterator[Guilty]:
        for before, row in transition.pairs():
            if before["status"] != row["status"] and (ended := as_ended(transition.after, row)):
                if ended not in self.ended:
                    self.ended[ended] = self._judged(ended)
                if self.ended[ended]:
                    yield Guilty("workflows", row["id"], self.ended[ended])

    def _judged(self, ended: FoundEnd) -> str:
        """What is wrong with this end; empty if nothing is. Whether it may end so at all, "no workflow is stuck" says."""
        did, undisturbed = ended.way, self._undisturbed.get(ended.workflow)
        if undisturbed is None or did == undisturbed or did.end != undisturbed.end:
            return ""
        said = ""
        asked = [one for one in ended.calls if one.kind == "side_effect"]
        for chosen in islice(product(*(self._answers(ended, one) for one in asked)), _MOST):
            instead = dict(zip(asked, chosen, strict=True))
            would = self._way([instead.get(one, one) for one in ended.calls], ended)
            changed = [(one.value, was.value) for was, one in instead.items() if one.value and was.value and one != was]
            if would.result != did.result:
                would = Way(would.end, would.planned, handed_on(would.result, changed))
            if would == did:
                return ""
            said = said or told_apart(did, would)
        return said

    def _way(self, calls: list[RecordedCall], ended: FoundEnd) -> Way:
        """The function's way with these answers. A step without an answer runs, on tools in their first states."""
        with self._own.progress.in_code(f"{self._where()}asked for its undisturbed way, the function went wrong: "):
            self._own.put((), afresh=True)
            try:
                return way_told(self._function, ended, AnswersTold(ended.workflow, calls))
            finally:
                self._own.put((), afresh=True)

    def _answers(self, ended: FoundEnd, call: RecordedCall) -> list[RecordedCall]:
        """The call with each answer that it may have: its own, if a first call may get that, or else all that one may get."""
        first = self._first.get((ended.workflow, call.name, call.arguments), {})
        own = _REFUSED if call.value is None else _as_json(json.loads(call.value))
        return [call] if own in first or not first else [_answering(call, said) for said in first]


def _as_json(value: Any) -> str:
    try:
        return plain(value)
    except (TypeError, ValueError):
        return _REFUSED  # it will not be recorded


def _answering(call: RecordedCall, said: str) -> RecordedCall:
    value, error = (None, plain({"type": "ToolRefused", "message": ""})) if said == _REFUSED else (said, None)
    return RecordedCall(call.kind, call.step_id, call.name, call.arguments, value, error)


def as_ended(rows: Rows, row: DictRow) -> FoundEnd | None:
    """The end of this workflow, if it has ended by itself."""
    end = row["status"], json.loads(row["error"] or "{}").get("type", "") if row["status"] == "failed" else ""
    if row["status"] not in ("completed", "failed") or end == SPENT:
        return None
    intents = {one["key"]: one for one in rows.of("intents", row["id"])}
    calls = []
    for step in rows.of("steps", row["id"]):
        intent = intents.get(step["step_id"]) if step["kind"] == "side_effect" else None
        name = intent["action"] if intent else step["waited_for"] or ""
        arguments = plain(json.loads(intent["arguments"])) if intent else "null"
        calls.append(RecordedCall(step["kind"], step["step_id"], name, arguments, step["value"], step["error"]))
    planned = sorted((key, one["action"], plain(json.loads(one["arguments"]))) for key, one in intents.items())
    way = Way(end, tuple(planned), plain(json.loads(row["result"] or "null")))
    return FoundEnd(row["id"], row["input"], whose_chance(row["id"], row["fence_token"]), tuple(calls), way)
