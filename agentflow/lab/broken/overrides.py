"""The few lines of each broken engine that are Python: one method overridden, and the statement that it runs instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from psycopg.rows import DictRow

from ...engine import Engine
from ...errors import describe_failure
from ...journal import ClaimedJournal
from ...model import ActionIntent, Boundary, Checkpoint, Claim, Tool
from ...statements import Statement
from ...transactions.claimed import lost_lease
from ...values import idempotency_key

# -- guards that are behaviour -----------------------------------------------------------------------------------------


class NoKey(Engine):
    """Calls the tool without a key."""

    def call_tool(self, claim: Claim, intent: ActionIntent, tool: Tool) -> Any:
        """Calls the tool without the intent's key."""
        return super().call_tool(claim, replace(intent, idempotency_key=None), tool)


class PlansAfterwards(ClaimedJournal):
    """The plan is written between the tool's answer and its acknowledgment."""

    def _plan(self, name: str, key: str, arguments: Any) -> tuple[ActionIntent, bool]:
        if key in self.intents:
            return super()._plan(name, key, arguments)
        workflow_id = self.claim.workflow_id
        self.intents[key] = ActionIntent(workflow_id, key, idempotency_key(workflow_id, key), name, arguments)
        return self.intents[key], False

    def _acknowledge(self, key: str, result: Any, error: dict[str, Any] | None) -> None:
        planned = self.intents[key]
        self.engine.create_action_intent(self.claim, key, planned.action, planned.arguments, detail=self._detail())
        super()._acknowledge(key, result, error)


class MarksFirst(ClaimedJournal):
    """A step is checkpointed, with no result, before it is run."""

    def replay(self, kind: str, step_id: str, action: str = "", arguments: Any = None) -> Checkpoint | None:
        """The recorded result; of a step that has none, one without a value is recorded first."""
        recorded = super().replay(kind, step_id, action, arguments)
        if recorded is None and kind == "step":
            super().record(step_id, None)
        return recorded

    def record(self, step_id: str, value: Any) -> Any:
        """Nothing is recorded any more; the value."""
        return value


class AcknowledgesFirst(ClaimedJournal):
    """The action is acknowledged, with no result, before the tool is called."""

    def act(self, name: str, key: str, tool: Tool | None, arguments: Any) -> Any:
        """The action is acknowledged, then carried out; the tool's result, which nobody records."""
        intent, _ = self._plan(name, key, arguments)
        self._acknowledge(key, None, None)
        try:
            return self.engine.call_tool(self.claim, intent, tool or self.tool)
        except Exception as unknown:
            self._postpone(key, describe_failure(unknown), self.failed_tries + 1)


# -- other broken engines ----------------------------------------------------------------------------------------------


class KeyFromPosition(ClaimedJournal):
    """Uses the number of calls that this run has executed as the tool's key, instead of the planned one."""

    def _plan(self, name: str, key: str, arguments: Any) -> tuple[ActionIntent, bool]:
        intent, planned_before = super()._plan(name, key, arguments)
        nth = self.cursor - len(self.recorded) + 1
        return replace(intent, idempotency_key=f"{self.claim.workflow_id}:{nth}"), planned_before


class KeyAtExecution(Engine):
    """Makes the tool's key at the moment of the call."""

    def call_tool(self, claim: Claim, intent: ActionIntent, tool: Tool) -> Any:
        """Calls the tool under a key that no other call has."""
        made_now = f"{intent.idempotency_key}:made-under-{claim.fence_token}"
        return super().call_tool(claim, replace(intent, idempotency_key=made_now), tool)


class ReadsFence(Engine):
    """Compares the claim in a separate statement, before each write."""

    def _guarded(self, name: str, claim: Claim, subject: str | None, params: Any, detail: str | None = None) -> Any:
        who = {"p_workflow": claim.workflow_id, "p_worker": claim.worker_id, "p_token": claim.fence_token}
        mine, _ = self.database.transact(self._boundary("read_fence", claim, subject), who, self.hook)
        if not mine or mine[0]["guards"]:
            raise lost_lease(name, claim, mine[0] if mine else None)
        return super()._guarded(name, claim, subject, params, detail)


class ReadsBeforeClaiming(Engine):
    """Reads which row to claim in a separate statement."""

    def _claim(self, params: Mapping[str, Any], boundary: Boundary) -> list[DictRow]:
        seen, _ = self.database.transact(replace(boundary, transaction="read_runnable"), params, self.hook)
        return super()._claim({**params, **seen[0]}, boundary) if seen else []


class ReadsEvents(Engine):
    """Reads whether the event has come in a separate statement."""

    def _guarded(self, name: str, claim: Claim, subject: str | None, params: Any, detail: str | None = None) -> Any:
        if name == "wait":
            which = {"p_workflow": claim.workflow_id, "p_subject": subject}
            seen, _ = self.database.transact(self._boundary("read_events", claim, subject), which, self.hook)
            params = {**params, **seen[0]}
        return super()._guarded(name, claim, subject, params, detail)


READ_FENCE = Statement(
    "read_fence",
    "None: what was read may be old when the write comes.",
    """\
WITH w AS (
    SELECT status, lease_owner, fence_token, checkpoints,
           array_remove(ARRAY[
               CASE WHEN (fence_token = %(p_token)s) IS NOT TRUE THEN 'token' END,
               CASE WHEN (lease_owner = %(p_worker)s) IS NOT TRUE THEN 'owner' END,
               CASE WHEN (lease_expires_at > clock_timestamp()) IS NOT TRUE THEN 'lease' END], NULL) AS guards
    FROM agentflow.workflows
    WHERE id = %(p_workflow)s
)
SELECT CASE guards WHEN '{}' THEN 'committed' ELSE 'refused' END AS outcome, *
FROM w""",
)

READ_RUNNABLE = Statement(
    "read_runnable",
    "None: two workers may read the same row, and both then write.",
    """\
SELECT 'committed' AS outcome, id AS p_next, fence_token AS p_read_token
FROM agentflow.workflows
WHERE status = 'ready'
  AND next_run_at <= (SELECT clock_timestamp())
  AND (lease_expires_at IS NULL OR lease_expires_at <= clock_timestamp())
  AND name = ANY(%(p_names)s)
ORDER BY next_run_at
LIMIT 1""",
)

READ_EVENTS = Statement(
    "read_events",
    "None: an event may be delivered between this look and the write.",
    """\
SELECT 'committed' AS outcome, events ? %(p_subject)s AS p_seen
FROM agentflow.workflows
WHERE id = %(p_workflow)s""",
)
