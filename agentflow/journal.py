"""PostgreSQL behind a DurableRunner: recorded results are replayed, each new one is a write guarded by the claim.

It knows which transaction follows which in one run of a claimed workflow, retries, and checks that the function asks for
what is recorded.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from . import errors
from .model import ActionIntent, Checkpoint, Claim, Tool
from .run import interrupted
from .tools import own_name
from .transactions import Transactions
from .values import fingerprint, to_json


class ClaimedJournal:
    """The recorded calls of one claimed workflow, and the way to add to them.

    `stopping` tells whether this worker has been asked to stop; `states` names the state after a step id.
    """

    def __init__(self, engine: Transactions, claim: Claim, tool: Tool, stopping: Callable[[], bool]) -> None:
        self.engine, self.claim, self.tool, self.stopping = engine, claim, tool, stopping
        self.states: Mapping[str, str] = {}
        self.recorded: list[Checkpoint] = []
        self.intents: dict[str, ActionIntent] = {}
        self.cursor, self.failed_tries = 0, claim.attempts
        self.began = time.perf_counter() if claim.recovered else None
        self.own: str | None = None  # the tool that is being called, if it is one of the author's own

    def load(self) -> None:
        """Loads what earlier claims recorded, counted against the row. Raises LostLease."""
        self.claim, self.recorded, self.intents = self.engine.load(self.claim)

    def replay(self, kind: str, step_id: str, action: str = "", arguments: Any = None) -> Checkpoint | None:
        """Returns the recorded result of the next call, or None. Raises DeterminismError if another call is recorded there."""
        if self.cursor < len(self.recorded):
            checkpoint = self.recorded[self.cursor]
            event = action if kind == "wait" else None
            if (kind, step_id, event) != (checkpoint.kind, checkpoint.step_id, checkpoint.waited_for):
                raise self._mismatch(str(checkpoint), str(Checkpoint(0, step_id, kind, waited_for=event)))
            if kind == "side_effect":
                self._check_action(self.intents[step_id], action, arguments)
            self.cursor += 1
            return checkpoint
        pending = self._pending()
        if pending and (kind, step_id) != ("side_effect", pending.key):
            raise self._mismatch(f"planned action {pending.key!r}", f"{kind} {step_id!r}")
        if self.stopping():
            raise errors.Stopping
        return None

    def record(self, step_id: str, value: Any) -> Any:
        """Checkpoints the step, and returns the value, which passed to_json(), as a replay would."""
        state = self.states.get(step_id)
        self._advance(self.engine.checkpoint(self.claim, step_id, value, state=state, detail=self._detail()))
        return value

    def fail(self, step_id: str, error: BaseException) -> NoReturn:
        """Records the failure: the step is tried again later (Postponed), or this was the last time (StepFailed).

        A value that cannot be stored and a misused step fail at once: another try would only repeat them.
        """
        failure, policy = errors.describe_failure(error), self.engine.policy
        tries = self.failed_tries + 1
        if tries < policy.max_attempts and not isinstance(error, errors.UnfaithfulValue | errors.StepMisuse):
            self._postpone(step_id, failure, tries)
        claim = self.engine.checkpoint(
            self.claim, step_id, state=f"{step_id.upper()}_FAILED", error=failure, detail=self._detail()
        )
        self._advance(claim)
        raise errors.StepFailed(claim.workflow_id, step_id, failure)

    def act(self, name: str, key: str, tool: Tool | None, arguments: Any) -> Any:
        """Plans the action, carries it out at least once, acknowledges it, and returns the tool's result.

        Raises StepFailed if the tool refused, Postponed if nobody knows what it did: it is called again with the same key.
        """
        chosen = tool or self.tool
        self.own = own_name(chosen, self.engine.database.schema)
        try:
            return self._carry_out(name, key, chosen, arguments)
        finally:
            self.own = None

    def _carry_out(self, name: str, key: str, chosen: Tool, arguments: Any) -> Any:
        intent, planned_before = self._plan(name, key, arguments)
        try:
            if not planned_before:  # else an earlier call may have acted, and nobody knows
                callable_tool(chosen)
            known, result = self._ask_world(intent, chosen) if planned_before else (False, None)
            if not known:
                result = self.engine.call_tool(self.claim, intent, chosen)
        except errors.ToolRefused as refusal:
            failure = errors.describe_failure(refusal)
            self._acknowledge(key, None, failure)
            raise errors.StepFailed(self.claim.workflow_id, key, failure) from refusal
        except errors.CrashInjected:
            raise
        except BaseException as unknown:  # a tool that exits is a tool that did not answer
            if interrupted(unknown):
                raise
            self._postpone(key, errors.describe_failure(unknown), self.failed_tries + 1)
        self._acknowledge(key, result, None)
        return json.loads(to_json(result, workflow=self.claim.workflow_id, step=key))

    def wait(self, step_id: str, name: str) -> Any:
        """Returns the event's payload, checkpointed. Raises Suspend if the workflow was parked instead."""
        told = {"state": self.states.get(step_id), "detail": self._detail()}
        claim, arrived, payload = self.engine.wait_for_event(self.claim, step_id, name, **told)
        if not arrived:
            raise errors.Suspend(step_id, name)
        self._advance(claim)
        return payload

    def complete(self, result: Any) -> None:
        """Completes the workflow under this claim."""
        self.engine.complete_workflow(self.claim, result, detail=self._detail())

    def check_end(self) -> None:
        """Checks that every recorded call and planned action was asked for. Raises DeterminismError."""
        if self.cursor < len(self.recorded):
            raise self._mismatch(str(self.recorded[self.cursor]), "the end of the workflow")
        if pending := self._pending():
            raise self._mismatch(f"planned action {pending.key!r}", "the end of the workflow")

    def _plan(self, name: str, key: str, arguments: Any) -> tuple[ActionIntent, bool]:
        if planned := self.intents.get(key):
            self._check_action(planned, name, arguments)
            return planned, True
        state = self.states.get(f"{key}:planned", "ACTION_PENDING")
        self.intents[key] = self.engine.create_action_intent(
            self.claim, key, name, arguments, state=state, detail=self._detail()
        )
        return self.intents[key], False

    def _check_action(self, planned: ActionIntent, name: str, arguments: Any) -> None:
        where = {"workflow": self.claim.workflow_id, "step": planned.key}
        if planned.action != name or fingerprint(arguments, **where) != fingerprint(planned.arguments, **where):
            recorded = f"action {planned.key!r}: {planned.action} {planned.arguments!r:.200}"
            raise self._mismatch(recorded, f"action {planned.key!r}: {name} {arguments!r:.200}")

    def _ask_world(self, intent: ActionIntent, tool: Tool) -> tuple[bool, Any]:
        """Whether the world remembers the key, and the result, if the policy is to look it up and the tool can."""
        look_up = getattr(tool, "look_up", None)
        if self.engine.policy.unknown_outcome != "look_up" or look_up is None:
            return False, None
        known, result = look_up(intent.idempotency_key)
        return bool(known), result

    def _acknowledge(self, key: str, result: Any, error: dict[str, Any] | None) -> None:
        state = self.states.get(key, "ACTION_ACKNOWLEDGED" if error is None else "ACTION_REFUSED")
        self._advance(
            self.engine.acknowledge_action(
                self.claim, result, key, state=state, error=error, detail=self._detail(refused=error is not None)
            )
        )
        del self.intents[key]

    def _postpone(self, step_id: str, failure: dict[str, Any], tries: int) -> NoReturn:
        delay = self.engine.policy.delay(tries)
        self.engine.postpone(self.claim, step_id, failure, delay)
        raise errors.Postponed(step_id, tries, delay)

    def _advance(self, claim: Claim) -> None:
        """The next write expects one checkpoint more."""
        self.claim, self.failed_tries = claim, 0
        self.cursor += 1

    def _pending(self) -> ActionIntent | None:
        done = {checkpoint.step_id for checkpoint in self.recorded if checkpoint.kind == "side_effect"}
        return next((intent for key, intent in self.intents.items() if key not in done), None)

    def _mismatch(self, recorded: str, asked: str) -> errors.DeterminismError:
        return errors.DeterminismError(self.claim.workflow_id, self.cursor + 1, recorded, asked)

    def _detail(self, refused: bool = False) -> str | None:
        """For the history: which tool of one's own is called, if it `refused`; once per recovery, the replay."""
        told: dict[str, Any] = {"tool": self.own} if self.own else {}
        told |= {"refused": True} if refused else {}
        if self.began is not None:
            taken, self.began = time.perf_counter() - self.began, None
            told |= {"replayed": self.cursor, "replay_ms": round(taken * 1000, 3)}
        return json.dumps(told) if told else None


def callable_tool(tool: Tool) -> Tool:
    """Returns the tool. Raises ToolRefused if it takes no call: it certainly does nothing then."""
    try:
        inspect.signature(tool).bind(None)
    except ValueError:
        return tool  # some builtins do not tell what they take
    except TypeError as misfit:
        raise errors.ToolRefused(
            f"The tool {own_name(tool, ''):.100} was not called, since it cannot take a ToolCall as its one argument ({misfit}). "
            "Correct it, and requeue the workflow."
        ) from misfit
    return tool
