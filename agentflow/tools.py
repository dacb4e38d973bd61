"""The simulated outside world, and the stand-in for a model: both can be told to misbehave, deterministically.

The world keeps its own record (tool ledger and attempts) on its own connection, in its own transactions. The engine never
reads it; only evidence and the laboratory do.
"""

from __future__ import annotations

import inspect
import random
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .errors import ToolRefused
from .log import log_event
from .model import Boundary, ToolCall
from .values import MAX_KEY, check_name, to_json

if TYPE_CHECKING:
    from .database import Database

ToolFault = Literal["refuse", "lose_request", "lose_reply", "forget"]
"""What the simulated tool can be told to do to a call. What the laboratory does to a run: `lab/history/faults`."""
ANSWERS: Mapping[str, Any] = {"resolve-account": {"account_unlocked": True, "resolution_code": "SIM-200"}}


class SimulatedTool:
    """A provider that honours idempotency keys: the first call with a key has the effect, later ones get its result.

    `fault` is asked before each call and may name a fault: refuse (certainly nothing happened), lose_request (nothing
    happened, the caller cannot know), lose_reply (it happened, the caller cannot know), forget (the provider's memory of
    all keys ends first). A call without a key always has an effect.
    """

    def __init__(
        self,
        database: Database,
        *,
        answers: Mapping[str, Any] = ANSWERS,
        fault: Callable[[ToolCall], ToolFault | None] | None = None,
    ) -> None:
        self.database, self.answers, self.fault = database, answers, fault

    def __call__(self, call: ToolCall) -> Any:
        """Returns the result of this key's one business effect. Raises ToolRefused, or TimeoutError if nobody knows; BadName."""
        check_name("action", call.action)
        _check_key(call.idempotency_key)
        if call.workflow_id:
            check_name("workflow id", call.workflow_id)
        fault = self.fault(call) if self.fault else None
        if fault == "refuse":
            who = {"p_key": call.idempotency_key, "p_workflow": call.workflow_id, "p_action": call.action}
            self._run("refuse", who)
            self._log("tool_refused", call)
            raise ToolRefused(
                f"Action {call.action!r} was refused by the provider; nothing happened. Fix the cause and requeue."
            )
        if fault == "lose_request":
            raise no_answer(call.action, "request")
        if fault == "forget":
            self.forget_keys()
        row = self._run("tool", self._params(call))[0]
        self._log("tool_attempt_committed", call, attempts=row["attempts"], effect_id=row["effect_id"])
        if fault == "lose_reply":
            raise no_answer(call.action, "reply")
        return row["result"]

    @property
    def ledger(self) -> str:
        """The schema beside which the ledger with this tool's effects is, where the laboratory counts them."""
        return self.database.schema

    def look_up(self, idempotency_key: str | None) -> tuple[bool, Any]:
        """Whether the key is remembered, and the result (which may be None); asked without acting. Raises BadName."""
        _check_key(idempotency_key)
        rows = self.database.read("look_up", {"p_key": idempotency_key})
        return bool(rows), rows[0]["result"] if rows else None

    def forget_keys(self, idempotency_key: str | None = None) -> int:
        """Makes the provider forget this key (or all keys), and returns how many it forgot. What was done stays done."""
        _check_key(idempotency_key)
        return len(self._run("forget", {"p_key": idempotency_key}))

    def _params(self, call: ToolCall) -> dict[str, Any]:
        answer = self.answers.get(call.action, {"done": call.action})
        return {
            "p_key": call.idempotency_key,
            "p_workflow": call.workflow_id,
            "p_action": call.action,
            "p_arguments": to_json(call.arguments, workflow=call.workflow_id, step=call.action),
            "p_result": to_json(answer, workflow=call.workflow_id, step=call.action),
        }

    def _log(self, event: str, call: ToolCall, **more: Any) -> None:
        where = {"workflow_id": call.workflow_id, "subject": call.action, "idempotency_key": call.idempotency_key}
        log_event(event, transaction="tool", **where, **more)

    def _run(self, name: str, params: Mapping[str, Any]) -> list[dict[str, Any]]:
        return self.database.transact(Boundary(name, "before"), params)[0]


def own_name(tool: Any, schema: str) -> str | None:
    """What a tool of one's own is called, `module:name`; None for the simulated one, whose ledger is beside that schema.

    An object is called as in its class's module, or by its class if it has no name there.
    """
    if getattr(tool, "ledger", None) == schema:
        return None
    while isinstance(tool, partial):
        tool = tool.func
    named = tool if hasattr(tool, "__qualname__") else type(tool)
    module, script = named.__module__, getattr(sys.modules["__main__"], "__file__", None)
    if module == "__main__" and script:  # it has the name under which others import it
        module = Path(script).stem
    there = {} if named is tool else getattr(sys.modules.get(named.__module__), "__dict__", {})
    return f"{module}:{next((name for name, value in there.items() if value is tool), named.__qualname__)}"


def why_no_tool(tool: Any) -> str | None:
    """Why this cannot be called as a tool, and what to do, as the end of a sentence about it; None if it can."""
    if isinstance(tool, type):
        return f"is a class. Name an object of it, such as tool = {tool.__name__}()"
    if callable(tool) and not inspect.iscoroutinefunction(tool):
        return None
    kind = "an async function" if callable(tool) else f"a value of type {type(tool).__name__}"
    return f"is no tool but {kind}. Give a function of a ToolCall, such as `def charge(call): ...`"


def _check_key(idempotency_key: str | None) -> None:
    if idempotency_key is not None:
        check_name("idempotency key", idempotency_key, MAX_KEY)


def no_answer(name: str, lost: str) -> TimeoutError:
    """What a caller gets when its `lost` ("request" or "reply") never arrives: it cannot know whether the tool has acted."""
    return TimeoutError(f"{name}: no answer (the {lost} was lost).")


def mock_llm_classify(request: str) -> dict[str, str]:
    """The tutorial's rule: "password" or "login" in the text makes it account access. Same text, same answer."""
    text = request.lower()
    category = "account_access" if "password" in text or "login" in text else "general_support"
    return {"category": category, "priority": "normal"}


def mock_llm_plan(classification: Mapping[str, str]) -> dict[str, list[str]]:
    """The tutorial's three steps for a category."""
    if classification["category"] == "account_access":
        return {"steps": ["validate identity", "reset credentials", "confirm access"]}
    return {"steps": ["inspect request", "apply documented fix", "confirm resolution"]}


class StandInModel:
    """A stand-in for a language model that counts its calls and what they cost, and can be told to misbehave.

    `fail_on` names calls that raise TimeoutError, for the first `failures` times each; `seconds` is how long a call takes;
    `varying=True` numbers its drafts by a seeded generator, so that asking again gives another answer. `cost` is in
    made-up cents, one for every 100 characters asked and answered, at least one a call.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        fail_on: tuple[str, ...] = (),
        failures: int = 1,
        seconds: float = 0.0,
        varying: bool = False,
    ) -> None:
        self._random, self._left = random.Random(seed), dict.fromkeys(fail_on, failures)
        self.seconds, self.varying = seconds, varying
        self.calls, self.cost = 0, 0

    def classify(self, request: str) -> dict[str, str]:
        """The request's category and priority."""
        answer: dict[str, str] = self.ask("classify", request, mock_llm_classify(request))
        return answer

    def plan(self, classification: Mapping[str, str]) -> dict[str, list[str]]:
        """The steps to take."""
        answer: dict[str, list[str]] = self.ask("plan", str(classification), mock_llm_plan(classification))
        return answer

    def ask(self, name: str, prompt: str, answer: Any) -> Any:
        """Returns the given answer to a prompt; a text gets a number after `#` if the model varies."""
        self.calls += 1
        self.cost += 1 + (len(prompt) + len(str(answer))) // 100
        if self.seconds:
            time.sleep(self.seconds)
        if self._left.get(name, 0) > 0:
            self._left[name] -= 1
            raise TimeoutError(f"{name} timed out")
        if self.varying and isinstance(answer, str):
            return f"{answer}#{self._random.randrange(1_000_000)}"
        return answer
