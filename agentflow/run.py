"""What a workflow function sees: a run, with `step`, `side_effect` and `wait_for_event`, and nothing else.

Three runners carry the same function: NaiveRunner re-runs everything (the mistake, made visible), DurableRunner replays
recorded results, from a StepStore in memory or from PostgreSQL (`journal`). Each keeps an execution ledger.
Source: durable-py, whose checks hold here too, figure for figure.
"""

from __future__ import annotations

import copy
import inspect
import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from . import errors
from .model import Checkpoint, Tool, ToolCall
from .values import check_name, fingerprint, idempotency_key, to_json

Workflow = Callable[[Any, Any], Any]
_EFFECT = "__effect__"
_GOES_ON = (errors.StepFailed, errors.ToolRefused, errors.ActionMismatch, errors.BadName)


@dataclass
class Ledger:
    """What a runner executed, replayed and sent, in order. Each name is a step id or the name of a side effect."""

    executed: list[str] = field(default_factory=list)
    replayed: list[str] = field(default_factory=list)
    side_effects: list[str] = field(default_factory=list)

    @property
    def cost(self) -> int:
        """How many steps were really executed; a stand-in for tokens and time. Replays are free."""
        return len(self.executed)


@dataclass
class StepStore:
    """Recorded results in memory, by (run id, step id). `writes` counts how often something was recorded."""

    memo: dict[tuple[str, str], Any] = field(default_factory=dict)
    writes: int = 0

    def get(self, run_id: str, step_id: str) -> tuple[bool, Any]:
        """Whether a result is recorded, and the result (which may be None)."""
        key = (run_id, step_id)
        return key in self.memo, copy.deepcopy(self.memo.get(key))  # the function may change what it got

    def put(self, run_id: str, step_id: str, value: Any) -> None:
        """Records the result as a replay would return it. Raises UnfaithfulValue, and then records nothing."""
        self.memo[(run_id, step_id)] = json.loads(to_json(value, workflow=run_id, step=step_id))
        self.writes += 1

    def snapshot(self) -> str:
        """Returns all results as text, for another process."""
        return json.dumps([[run, step, value] for (run, step), value in sorted(self.memo.items())])

    @classmethod
    def restore(cls, blob: str) -> StepStore:
        """Returns a store with the results of a snapshot, and no writes yet."""
        return cls({(run, step): value for run, step, value in json.loads(blob)})


class Journal(Protocol):
    """Where a DurableRunner's results are recorded and replayed from."""

    def replay(self, kind: str, step_id: str, action: str = "", arguments: Any = None) -> Checkpoint | None:
        """The recorded result of the next call, or None if it has to run. Raises DeterminismError."""

    def record(self, step_id: str, value: Any) -> Any:
        """Records the result, which passed to_json(), and returns it as a replay would."""

    def fail(self, step_id: str, error: BaseException) -> NoReturn:
        """Records the failure, or raises it."""

    def act(self, name: str, key: str, tool: Tool | None, arguments: Any) -> Any:
        """Carries out the planned action, records it, and returns the tool's result."""

    def wait(self, step_id: str, name: str) -> Any:
        """The event's payload, recorded. Raises Suspend if it has not arrived."""

    def check_end(self) -> None:
        """Checks that every recorded call was asked for. Raises DeterminismError."""


class NaiveRunner:
    """Retry from the top, as a plain job queue gives it: finished steps run again, finished effects fire again."""

    def __init__(self, *, tool: Tool | None = None, events: dict[str, Any] | None = None) -> None:
        self.ledger, self.tool, self.events = Ledger(), tool, events or {}

    def step(self, step_id: str, fn: Callable[[], Any]) -> Any:
        """Computes the function's result again each time."""
        self.ledger.executed.append(step_id)
        return fn()

    def side_effect(self, name: str, key: str | None = None, tool: Tool | None = None, arguments: Any = None) -> Any:
        """Has the effect once more; nobody remembers the key. Raises StepFailed if the tool refused."""
        self.ledger.side_effects.append(name)
        try:
            return chosen(ToolCall(None, name, arguments)) if (chosen := tool or self.tool) else None
        except errors.ToolRefused as refusal:
            raise errors.StepFailed("naive", key or name, errors.describe_failure(refusal)) from refusal

    def wait_for_event(self, step_id: str, name: str) -> Any:
        """The event's payload. Raises Suspend if it is not there, and everything before it is forgotten."""
        if name not in self.events:
            raise errors.Suspend(step_id, name)
        self.ledger.executed.append(step_id)
        return self.events[name]


class DurableRunner:
    """Replays what is recorded, executes only the gap.

    `store` is a StepStore (with `events` and `tool` beside it) or a Journal. After anything that the function cannot know to
    be recorded (a loss of authority, a suspension, a determinism error, a write that was refused) it refuses everything.
    """

    def __init__(
        self, run_id: str, store: StepStore | Journal, events: dict[str, Any] | None = None, *, tool: Tool | None = None
    ) -> None:
        self.run_id, self.ledger = run_id, Ledger()
        if isinstance(store, StepStore):
            store = _MemoryJournal(run_id, store, {} if events is None else events, tool)
        self._journal: Journal = store
        self._asked: dict[str, str] = {}
        self._effects: dict[str, tuple[str, str, Checkpoint]] = {}
        self._thread, self._inside = threading.get_ident(), ""
        self._raised: BaseException | None = None  # by the last step
        self.ended_by: BaseException | None = None

    def step(self, step_id: str, fn: Callable[[], Any]) -> Any:
        """Returns the value of `fn()`, computed once and recorded, then replayed.

        Raises StepFailed if it failed for good, DuplicateStep, DeterminismError, StepMisuse.
        """
        with self._call("step", step_id):
            recorded = self._journal.replay("step", step_id)
            if recorded:
                self.ledger.replayed.append(step_id)
                return self._result(recorded)
            self.ledger.executed.append(step_id)
            return self._execute(step_id, fn)

    def side_effect(self, name: str, key: str, tool: Tool | None = None, arguments: Any = None) -> Any:
        """Has the tool carry out the planned action `key` at least once, and returns its recorded result.

        The same key again in one run is the same action, and so is its refusal. Raises StepFailed if the tool refused,
        ActionMismatch if the key was used with another name or other arguments, UnfaithfulValue.
        """
        self._allow("side_effect", key)
        told = fingerprint(arguments, workflow=self.run_id, step=key)
        if key in self._effects:
            return self._repeat(key, name, told)
        with self._call("side_effect", key):
            recorded = self._journal.replay("side_effect", key, name, arguments)
            if recorded is None:
                self.ledger.side_effects.append(name)
                try:
                    recorded = Checkpoint(0, key, "side_effect", self._journal.act(name, key, tool, arguments))
                except errors.StepFailed as refused:
                    recorded = Checkpoint(0, key, "side_effect", error=refused.error)
            self._effects[key] = name, told, copy.deepcopy(recorded)  # the function may change what it gets
            return self._result(recorded)

    def wait_for_event(self, step_id: str, name: str) -> Any:
        """Returns the event's payload, recorded once, then replayed. Raises Suspend while it has not arrived."""
        with self._call("wait", step_id):
            recorded = self._journal.replay("wait", step_id, name)
            if recorded:
                self.ledger.replayed.append(step_id)
                return self._result(recorded)
            payload = self._journal.wait(step_id, name)
            self.ledger.executed.append(step_id)
            return payload

    def finish(self) -> None:
        """Checks that everything recorded was asked for, and that nothing that ended this run was swallowed."""
        if self.ended_by is not None:
            raise self.ended_by
        self._journal.check_end()

    def _repeat(self, key: str, name: str, told: str) -> Any:
        if self._effects[key][:2] != (name, told):
            raise errors.ActionMismatch(
                f"Workflow {self.run_id!r}, action key {key!r} was used with another action or other arguments. Nothing was "
                "changed; give each planned action its own key."
            )
        return copy.deepcopy(self._result(self._effects[key][2]))

    def _result(self, recorded: Checkpoint) -> Any:
        if recorded.error is not None:
            raise errors.StepFailed(self.run_id, recorded.step_id, recorded.error)
        return recorded.value

    def _execute(self, step_id: str, fn: Callable[[], Any]) -> Any:
        self._inside = step_id
        try:
            odd = inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn)
            value = None if odd else fn()
            if odd or inspect.iscoroutine(value):
                if value is not None:
                    value.close()
                raise errors.StepMisuse(
                    f"Workflow {self.run_id!r}, step {step_id!r} is async or a generator; pass a plain function."
                )
            value = json.loads(to_json(value, workflow=self.run_id, step=step_id))
        except BaseException as error:
            if isinstance(error, errors.CrashInjected) or interrupted(error):
                raise
            self._raised = error
            self._journal.fail(step_id, error)
        finally:
            self._inside = ""
        return self._journal.record(step_id, value)

    def _allow(self, kind: str, step_id: str) -> None:
        """Checks that the call may be made here. Raises what ended the run, StepMisuse, BadName."""
        if self.ended_by is not None:
            raise self.ended_by
        if threading.get_ident() != self._thread:
            raise errors.StepMisuse(
                f"Workflow {self.run_id!r}: {kind} {step_id!r} was called from another thread; call it from the "
                "thread that runs the function."
            )
        if self._inside:
            raise errors.StepMisuse(
                f"Workflow {self.run_id!r}: {kind} {step_id!r} was called inside step {self._inside!r}; call it before or "
                "after that step."
            )
        check_name("step id", step_id)
        if kind != "side_effect" and step_id.startswith(_EFFECT):
            raise errors.BadName(
                f"Step id {step_id!r} starts with {_EFFECT!r}, which is reserved for actions; choose another id."
            )

    @contextmanager
    def _call(self, kind: str, step_id: str) -> Iterator[None]:
        """One call of the run: refused if misplaced, and what ends the run ends it for good."""
        self._allow(kind, step_id)
        try:
            if step_id in self._asked:
                raise errors.DuplicateStep(self.run_id, len(self._asked) + 1, f"{self._asked[step_id]} {step_id!r}")
            self._asked[step_id] = kind
            yield
        except BaseException as error:
            # It may catch and go on from what a replay raises again: a recorded failure (in memory, which records none, the
            # step's own), and a name or key of its own under which nothing was written.
            if not isinstance(error, _GOES_ON) and (error is not self._raised or not isinstance(error, Exception)):
                self.ended_by = error
            raise


def interrupted(error: BaseException) -> bool:
    """Whether somebody pressed Ctrl-C: only Python's own handler says so, in the main thread.

    A KeyboardInterrupt that code raises anywhere else is a failure like any other.
    """
    return (
        issubclass(type(error), KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


class _MemoryJournal:
    """A StepStore behind the runner: one write per result, after the effect, so this runner has the gap itself."""

    def __init__(self, run_id: str, store: StepStore, events: dict[str, Any], tool: Tool | None) -> None:
        self.run_id, self.store, self.events, self.tool = run_id, store, events, tool

    def replay(self, kind: str, step_id: str, action: str = "", arguments: Any = None) -> Checkpoint | None:
        hit, value = self.store.get(self.run_id, _memo_key(kind, step_id))
        return Checkpoint(0, step_id, kind, value) if hit else None

    def record(self, step_id: str, value: Any) -> Any:
        self.store.put(self.run_id, step_id, value)
        return self.store.get(self.run_id, step_id)[1]

    def fail(self, step_id: str, error: BaseException) -> NoReturn:
        raise error

    def act(self, name: str, key: str, tool: Tool | None, arguments: Any) -> Any:
        chosen = tool or self.tool
        result = chosen(ToolCall(idempotency_key(self.run_id, key), name, arguments, self.run_id)) if chosen else True
        return self.record(_memo_key("side_effect", key), result)

    def wait(self, step_id: str, name: str) -> Any:
        if name not in self.events:
            raise errors.Suspend(step_id, name)
        return self.record(step_id, self.events[name])

    def check_end(self) -> None:
        return None


def _memo_key(kind: str, step_id: str) -> str:
    return f"{_EFFECT}{step_id}" if kind == "side_effect" else step_id
