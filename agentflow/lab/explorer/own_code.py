"""What of the learner's own code acts in the world while it is explored: tools, and steps that have an effect by stealth.

A call of a tool is answered like a statement, once for each state of the rows. A tool that offers `snapshot()` and
`restore(state)` runs for each of its own states, which are part of the rows (Rows.tools); what it did is read from its
`effects()`, or from the snapshot that changed. Any other tool stands behind the simulated ledger: its body runs once for each
call, and a key that the ledger holds is answered as the tool would have to. What was done is written into that ledger, so
everything that looks at effects sees it. An exception other than ToolRefused is an answer that never came, whoever raised it:
what a restorable tool did before it is seen, and what another did is taken to be nothing.
"""

from __future__ import annotations

import inspect
import json
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from psycopg.rows import DictRow

from ...engine import Engine
from ...errors import ToolRefused, UnfaithfulValue
from ...evidence import on_one_line
from ...model import ToolCall
from ...run import interrupted
from ...tools import own_name, why_no_tool
from ...values import to_json
from ..verify.invariants import UNTOLD
from ..verify.snapshot import Rows
from .answer_cache import AnswerCache, StatementResult, answer_key, question
from .hidden_effects import Effect, as_told, beyond, check_that_it_was_asked, sentence
from .own_process import SearchProgress, WrongCode, shown
from .way import repeatable_chance

States = tuple[tuple[str, str], ...]
"""The state of each restorable tool, as JSON text, by its name."""
Left = tuple[States, tuple[Effect, ...]]
"""What code did beside its side effects: the tools' states after it, and the effects that are new."""


@dataclass(frozen=True)
class ExploredTool:
    """A tool of the learner's own. `first` is its snapshot before the exploration; None: it cannot be put back.

    `told` is what the `effects()` of such a one told then; None: it has none.
    """

    tool: Any
    name: str
    first: str | None
    told: tuple[Counter[Effect], Counter[Effect]] | None = None


class OwnCode:
    """The own tools of an exploration, and how often their bodies and those of the steps ran for real.

    Raises WrongCode for a tool that is none, and for `snapshot()`, `restore()` or `effects()` that go wrong.
    """

    def __init__(self, progress: SearchProgress, engine: Engine) -> None:
        self.progress, self.database = progress, engine.database
        self._ours = engine.database, engine.world.database
        self.tools: list[ExploredTool] = []
        self.ran: dict[str, Counter[str]] = {"steps": Counter(), "tools": Counter()}
        self.step, self._asked_us = "", False
        self._now: dict[str, str] = {}  # the states in which the tools are known to be
        self._told: dict[tuple[str, str], Counter[Effect]] = {}
        self._called: dict[str, Counter[Effect]] = {}
        self._hidden: dict[str, Counter[Effect]] = {}
        self._kept: dict[str, tuple[Any, Exception | None]] = {}
        self._memory: dict[tuple[int, str], StatementResult] = {}

    # -- tools -------------------------------------------------------------------------------------------------------

    def known(self, tool: Any) -> ExploredTool:
        """The tool under its name. One that cannot be put back may be made anew in each run."""
        if why := why_no_tool(tool):
            raise WrongCode(f"the tool {shown(tool)} {why}")
        name, restores = str(own_name(tool, "")), all(hasattr(tool, one) for one in ("snapshot", "restore"))
        for one in self.tools:
            if one.tool is tool or (one.name == name and not restores):
                return one
        named = sum(one.name == name or one.name.startswith(f"{name} #") for one in self.tools)
        made = ExploredTool(tool, f"{name} #{named + 1}" if named else name, None)
        if restores:
            made = replace(made, first=self._snapshot(made))
        elif getattr(tool, "effects", None):
            made = replace(made, told=as_told(made.name, self._ask(made, "effects")))
        self.tools.append(made)
        self._tell()
        return made

    def first(self) -> tuple[DictRow, ...]:
        """The tools' states before the exploration, as rows."""
        return _as_rows((one.name, one.first) for one in self.tools if one.first is not None)

    def put_back(self) -> None:
        """Puts every tool back to its state before the exploration."""
        self._now.clear()
        self.progress.code_since = time.monotonic()
        self.put(())
        self.progress.code_since = 0.0

    def put(self, states: States, afresh: bool = False) -> None:
        """Puts the tools into these states; `afresh`: also those that seem to be in them."""
        for one in self.tools:
            state = dict(states).get(one.name, one.first)
            if state is not None and (afresh or self._now.get(one.name) != state):
                self._ask(one, "restore", json.loads(state))
                self._now[one.name] = state

    def _snapshot(self, one: ExploredTool) -> str:
        value = self._ask(one, "snapshot")
        self._now[one.name] = self._json(one, "snapshot()", value)
        return self._now[one.name]

    def _json(self, one: ExploredTool, what: str, value: Any) -> str:
        try:
            return to_json(value, workflow="", step="")
        except UnfaithfulValue as wrong:
            raise WrongCode(
                f"{one.name}: its {what} gave what JSON cannot hold ({wrong.path}: {wrong.reason}). Give plain JSON values."
            ) from None

    def _ask(self, one: ExploredTool, method: str, *args: Any) -> Any:
        try:
            with self._apart(one):
                return getattr(one.tool, method)(*args)
        except WrongCode:
            raise
        except (Exception, SystemExit) as error:
            raise WrongCode(f"{one.name}.{method}() raised {on_one_line(error):.300}") from error

    @contextmanager
    def _apart(self, one: ExploredTool) -> Iterator[None]:
        """Meanwhile the tool's code runs. Raises WrongCode if it asks the database in which the explorer puts rows back."""

        def refuse(*_: Any) -> Any:
            self._asked_us = True
            raise WrongCode(wrong)

        wrong = f"the tool {one.name} asks the explorer's own database. Let it keep what it does in a place of its own."
        self._asked_us = False
        for database in self._ours:
            database.door = refuse
        step, self.progress.step = self.progress.step, f" The tool {one.name} was being asked.".encode()[:1000]
        try:
            yield
        finally:
            self.progress.step = step
            for database in self._ours:
                database.door = None
            if self._asked_us:
                raise WrongCode(wrong)

    # -- what they did -----------------------------------------------------------------------------------------------

    def left(self, states: States, call: ToolCall | None = None, called: ExploredTool | None = None) -> Left | None:
        """What was done since the tools were in these states; None if nothing."""
        after, effects = [], list[Effect]()
        for one in self.tools:
            if one.first is None:
                continue
            before = dict(states).get(one.name, one.first)
            mine, now = one is called, self._snapshot(one)
            after.append((one.name, now))
            if now == before:
                continue
            if not hasattr(one.tool, "effects"):
                asked = (
                    (call.idempotency_key, call.action, call.workflow_id)
                    if call
                    else (None, self.step or "the workflow function", "")
                )
                effects.append(asked)
                self._hide(one, [] if call else [asked])
                continue
            new = [*(self._effects(one, now) - self._effects(one, before)).elements()]
            if mine and call:
                check_that_it_was_asked(one.name, new, call)
            effects += new
            self._hide(one, [] if call else new)
        changed = any(state != dict(states).get(name) for name, state in after)
        return (tuple(after), tuple(effects)) if changed else None

    def _effects(self, one: ExploredTool, state: str) -> Counter[Effect]:
        """What the tool tells in this state, in which it is."""
        if (one.name, state) not in self._told:
            if self._now.get(one.name) != state:
                now = self._now.get(one.name)
                self.put(((one.name, state),))
                told = self._effects(one, state)
                self.put(((one.name, str(now)),))
                return told
            self._told[one.name, state] = as_told(one.name, self._ask(one, "effects"))[0]
        return self._told[one.name, state]

    def _hide(self, one: ExploredTool, effects: list[Effect]) -> None:
        """Notes effects of no call; the same again, in another state, is no other."""
        self._hidden[one.name] = self._hidden.get(one.name, Counter()) | Counter(effects)

    def hidden(self) -> str:
        """Which effects were left by no call of a side effect, as a sentence; empty if none."""
        self.progress.code_since = time.monotonic()
        for one in self.tools:
            if one.told is not None:
                now, called = as_told(one.name, self._ask(one, "effects")), self._called.get(one.name, Counter())
                self._hidden |= [beyond(one.name, one.told, now, called)]
        self.progress.code_since = 0.0
        return sentence(self._hidden)

    # -- bodies ------------------------------------------------------------------------------------------------------

    def note(self, step_id: str, workflow: str) -> None:
        """This step is asked for now; its body may do anything to the tools."""
        self.progress.step = f" The last step that it asked for is {step_id!r} of workflow {workflow!r}.".encode()[
            :1000
        ]
        self.step = step_id
        self._now.clear()

    def ran_step(self, step_id: str) -> None:
        """The body of a step has run."""
        self.ran["steps"][step_id] += 1
        self._tell()

    def _tell(self) -> None:
        plain = [one for one in self.tools if one.first is None]
        names = {"as_if": sorted({one.name for one in plain})}
        names["unseen"] = sorted({one.name for one in plain if one.told is None})
        told: dict[str, Any] = self.ran | names
        text = json.dumps(told).encode()
        if len(text) > 19_000:  # thousands of step ids
            told = {kind: {"all": sum(ran.values())} for kind, ran in self.ran.items()} | names
            text = json.dumps(told).encode()
        self.progress.bodies = text

    def _body(self, one: ExploredTool, call: ToolCall, states: States) -> tuple[Any, Exception | None]:
        """The body's result, or its exception. Its chance is that of this call in these states."""
        self.ran["tools"][one.name] += 1
        self._called.setdefault(one.name, Counter())[call.idempotency_key, call.action, call.workflow_id] += 1
        self._tell()
        try:
            with self._apart(one), repeatable_chance(lambda: f"{call} in {states}"):
                result = one.tool(call)
        except WrongCode:
            raise
        except BaseException as error:
            if interrupted(error):
                raise
            lost = f"{call.action}: no answer ({type(error).__name__}: {error})"
            return None, error if isinstance(error, Exception) else TimeoutError(lost)
        try:
            return pickle.loads(pickle.dumps(result)), None
        except Exception:
            raise WrongCode(f"the tool {one.name} returned what JSON cannot hold: {result!r:.100}") from None

    # -- answers -----------------------------------------------------------------------------------------------------

    def called(self, one: ExploredTool, call: ToolCall, asks: str, cache: AnswerCache, number: int) -> StatementResult:
        """What this call does to these rows."""
        if (number, asks) not in self._memory:
            do = self._behind_the_ledger if one.first is None else self._put_back_and_called
            self._memory[number, asks] = do(one, call, asks, cache, number)
        return self._memory[number, asks]

    def _put_back_and_called(
        self, one: ExploredTool, call: ToolCall, _: str, cache: AnswerCache, number: int
    ) -> StatementResult:
        states = states_of(cache.rows(number))
        self.put(states)
        self._now.clear()
        result, error = self._body(one, call, states)
        left = self.left(states, call, one) or (states, ())
        return self._written(cache, number, left, (call, UNTOLD), result, error)

    def _behind_the_ledger(
        self, one: ExploredTool, call: ToolCall, asks: str, cache: AnswerCache, number: int
    ) -> StatementResult:
        states = states_of(cache.rows(number))
        held = _held(cache.rows(number), call.idempotency_key)
        if held:
            result, error = json.loads(held["result"]), None
        else:
            if asks not in self._kept:
                self._kept[asks] = self._body(one, call, ())
            result, error = self._kept[asks]
        new = () if held or error else ((call.idempotency_key, call.action, call.workflow_id),)
        try:
            text = to_json(result, workflow="", step="")
        except UnfaithfulValue:
            text = UNTOLD  # the engine will not record it
        return self._written(cache, number, (states, new), (call, text), result, error)

    def looked_up(
        self, one: ExploredTool, key: str | None, asks: str, cache: AnswerCache, number: int
    ) -> StatementResult:
        """What the tool answers when it is asked, without acting, about a key."""
        if (number, asks) in self._memory:
            return self._memory[number, asks]
        rows = cache.rows(number)
        if one.first is None:
            held = _held(rows, key)
            known, result = bool(held), json.loads(held["result"]) if held else None
        else:
            self.put(states_of(rows))
            self._now.clear()
            known, result = self._ask(one, "look_up", key)
        answer = [{"known": bool(known), "result": result}]
        self._memory[number, asks] = StatementResult(number, rows, answer, answer_key(answer))
        return self._memory[number, asks]

    def written(self, cache: AnswerCache, number: int, left: Left, workflow_id: str) -> StatementResult:
        """The rows after code that did this beside its side effects; effects of no workflow here are this one's."""
        asks = f"{workflow_id} {left}"
        if (number, asks) in self._memory:
            return self._memory[number, asks]
        here = {row["id"] for row in cache.rows(number).workflows}
        effects = [(key, action, who if who in here else workflow_id) for key, action, who in left[1]]
        nobody = ToolCall(None, "")
        done = self._written(cache, number, (left[0], tuple(effects)), (nobody, UNTOLD), None, None)
        self._memory[number, asks] = done
        return done

    def _written(
        self, cache: AnswerCache, number: int, left: Left, told: tuple[ToolCall, str], result: Any, error: Exception | None
    ) -> StatementResult:  # fmt: skip
        """The states and effects in the rows, and the calls in the simulated world's record."""
        (call, text), attempts = told, list[DictRow]()

        def ask(name: str, key: str | None, action: str = "", workflow_id: str = "") -> None:
            nonlocal number
            params = {"p_key": key}
            if name != "forget":
                params |= {"p_action": action, "p_workflow": workflow_id}
            if name == "tool":
                params |= {"p_arguments": json.dumps(call.arguments), "p_result": text}
            done = cache.ask(number, name, self.database.sql(name), params, question(name, params))
            number = done.rows
            attempts.extend(done.after.attempts)

        states, effects = left
        number = cache.number(replace(cache.rows(number), tools=_as_rows(states)))
        for key, action, workflow_id in effects:
            if _held(cache.rows(number), key):
                ask("forget", key)
            ask("tool", key, action, workflow_id)
        if not effects and call.action:
            if isinstance(error, ToolRefused):
                ask("refuse", call.idempotency_key, call.action, call.workflow_id)
            elif _held(cache.rows(number), call.idempotency_key):
                ask("tool", call.idempotency_key, call.action, call.workflow_id)
        after = replace(cache.rows(number), attempts=tuple(attempts))
        answer: Any = error or [{"result": result}]
        key = f"{type(error).__name__}: {error}" if error else answer_key(answer)
        return StatementResult(number, after, answer, key)


class StandIn:
    """Stands where the learner's own tool stands in a played run: a call of it is answered like a statement."""

    def __init__(self, one: ExploredTool, own: OwnCode, answer: Callable[..., list[DictRow]]) -> None:
        self._one, self._own, self._answer = one, own, answer
        self.ledger = own.database.schema  # what it does is written there, as the simulated tool does
        self.__module__, _, self.__qualname__ = one.name.partition(":")  # its name in messages
        with suppress(TypeError, ValueError):
            self.__signature__ = inspect.signature(one.tool)
        if hasattr(one.tool, "look_up"):
            self.look_up = self._look_up

    def __call__(self, call: ToolCall) -> Any:
        """What the tool answered. Raises what it raised."""
        asked = partial(self._own.called, self._one, call)
        return self._answer("tool", "", {"tool": self._one.name, **vars(call)}, asked)[0]["result"]

    def _look_up(self, key: str | None) -> tuple[bool, Any]:
        asked = partial(self._own.looked_up, self._one, key)
        row = self._answer("look_up", "", {"tool": self._one.name, "key": key}, asked)[0]
        return row["known"], row["result"]


def states_of(rows: Rows) -> States:
    """The states of the tools in these rows."""
    return tuple((row["tool"], row["state"]) for row in rows.tools)


def _as_rows(states: Any) -> tuple[DictRow, ...]:
    return tuple({"tool": name, "state": state} for name, state in states)


def _held(rows: Rows, key: str | None) -> Mapping[str, Any] | None:
    """The effect under a key that the ledger remembers."""
    found = (row for row in rows.effects if row["remembered"] and row["idempotency_key"] == key)
    return None if key is None else next(found, None)
