"""The transactions of a worker: a claim, and the writes that it guards."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from psycopg.rows import DictRow

from ..errors import ActionMismatch, AgentFlowError, CrashInjected, DuplicateStep, LostLease, ToolRefused
from ..model import ActionIntent, Boundary, Checkpoint, Claim, Outcome, Tool, ToolCall
from ..statements import TRANSACTIONS
from ..values import MAX_EVENT_NAME, check_name, check_settings, idempotency_key, to_json
from .unclaimed import UnclaimedTransactions


class Transactions(UnclaimedTransactions):
    """Every transaction of the engine, each one SQL statement through the database's one door.

    `hook` is called before and after each of them with a frozen Boundary. `lease_seconds` and the other times are in
    `policy`, in seconds.
    """

    journal: Any = None  # what keeps the calls of a claimed workflow, if it is not a ClaimedJournal

    # -- claiming ------------------------------------------------------------------------------------------------------

    def claim_workflow(
        self, worker_id: str, lease_seconds: float | None = None, *, names: Sequence[str]
    ) -> Claim | None:
        """Claims the oldest runnable workflow of these names for the worker; returns None if there is none now.

        Transaction: claim. A workflow whose crash budget is spent is failed instead, and the next one is claimed. One whose
        claim PostgreSQL refuses is logged and passed by for a while.
        """
        check_name("worker id", worker_id)
        lease = self.policy.lease_seconds if lease_seconds is None else lease_seconds
        check_settings(lease_seconds=lease)
        params = {
            "p_worker": worker_id,
            "p_names": list(names),
            "p_lease": timedelta(seconds=lease),
            "p_crash_budget": self.policy.crash_budget,
        }
        boundary = Boundary("claim", "before", worker=worker_id)
        while True:
            rows = self.aside.claimed(self.database, params, lambda told: self._claim(told, boundary))
            if not rows:
                return None
            row = rows[0]
            if row["status"] == "ready":
                return Claim(
                    row["id"], worker_id, row["fence_token"], row["name"], row["input"], row["checkpoints"],
                    row["attempts"], row["held_by"] is not None, lease, row["troubles"] or 0,
                )  # fmt: skip

    def _claim(self, params: Mapping[str, Any], boundary: Boundary) -> list[DictRow]:
        return self.database.transact(boundary, params, self.hook)[0]

    def runnable(self, names: Sequence[str]) -> bool:
        """Whether there is work now, also behind a row that a claim skipped because it was locked."""
        params = {"p_names": list(names), "p_ids": self.aside.ids(), "p_most": 1}
        return bool(self.database.read("runnable", params))

    def load(self, claim: Claim) -> tuple[Claim, list[Checkpoint], dict[str, ActionIntent]]:
        """Loads the checkpoints and planned actions of the claimed workflow, counted against its row.

        Transaction: load. Raises LostLease if the token is not the row's any more.
        """
        params = {"p_workflow": claim.workflow_id, "p_worker": claim.worker_id, "p_token": claim.fence_token}
        rows, _ = self.database.transact(self._boundary("load", claim), params, self.hook)
        if not rows or rows[0]["guards"]:
            raise lost_lease("load", claim, rows[0] if rows else None)
        steps = [
            Checkpoint(row["position"], row["subject"], row["kind"], row["value"], row["error"], row["waited_for"])
            for row in rows
            if row["position"] is not None
        ]
        intents = {
            row["subject"]: ActionIntent(
                claim.workflow_id, row["subject"], row["idempotency_key"], row["action"], row["arguments"]
            )
            for row in rows
            if row["kind"] == "intent"
        }
        if len(steps) != rows[0]["checkpoints"]:
            raise AgentFlowError(
                f"Workflow {claim.workflow_id!r} should have {rows[0]['checkpoints']} checkpoints, but has {len(steps)}: "
                "somebody changed its rows by hand. Nothing was replayed; restore the rows, or cancel the workflow."
            )
        return replace(claim, checkpoints=len(steps)), steps, intents

    # -- guarded writes ------------------------------------------------------------------------------------------------

    def checkpoint(
        self, claim: Claim, step_id: str, value: Any = None, *, state: str | None = None,
        error: dict[str, Any] | None = None, detail: str | None = None,
    ) -> Claim:  # fmt: skip
        """Records the step's result (or its final failure), and returns the claim for the next write.

        Transaction: checkpoint. Raises LostLease, UnfaithfulValue.
        """
        params = self._recorded(claim, step_id, value, error) | {"p_state": _state_after(step_id, state)}
        self._guarded("checkpoint", claim, step_id, params, detail)
        return replace(claim, checkpoints=claim.checkpoints + 1, attempts=0)

    def create_action_intent(
        self, claim: Claim, key: str, action: str, arguments: Any = None, *,
        state: str = "ACTION_PENDING", detail: str | None = None,
    ) -> ActionIntent:  # fmt: skip
        """Plans the action under its idempotency key, `<workflow id>:<key>`; planning it again changes nothing.

        Transaction: intent. Raises LostLease, and ActionMismatch if the key has another action or other arguments.
        """
        check_name("action key", key)
        text = to_json(arguments, workflow=claim.workflow_id, step=key)
        intent = ActionIntent(claim.workflow_id, key, idempotency_key(claim.workflow_id, key), action, json.loads(text))
        params = {
            "p_key": intent.idempotency_key,
            "p_action": check_name("action", action),
            "p_arguments": text,
            "p_state": state,
        }
        self._guarded("intent", claim, key, params, detail)
        return intent

    def call_tool(self, claim: Claim, intent: ActionIntent, tool: Tool) -> Any:
        """Calls the tool and returns its answer. The world may have acted whether or not this returns.

        Transaction: tool, the world's own. Raises ToolRefused if it certainly did nothing; any other error means that
        nobody knows.
        """
        boundary = self._boundary("tool", claim, intent.key)
        self._tell(boundary)
        try:
            result = tool(ToolCall(intent.idempotency_key, intent.action, intent.arguments, claim.workflow_id))
        except CrashInjected:
            raise
        except BaseException as error:
            outcome: Outcome = "refused" if isinstance(error, ToolRefused) else "unknown"
            self._tell(replace(boundary, edge="after", outcome=outcome))
            raise
        self._tell(replace(boundary, edge="after", outcome="committed"))
        return result

    def acknowledge_action(
        self, claim: Claim, tool_result: Any, key: str, *, state: str = "ACTION_ACKNOWLEDGED",
        error: dict[str, Any] | None = None, detail: str | None = None,
    ) -> Claim:  # fmt: skip
        """Acknowledges the planned action with the tool's result (or its refusal), and checkpoints it.

        Transaction: acknowledge. Raises LostLease, also when the action is not pending; UnfaithfulValue.
        """
        params = self._recorded(claim, key, tool_result, error) | {"p_state": state}
        self._guarded("acknowledge", claim, key, params, detail)
        return replace(claim, checkpoints=claim.checkpoints + 1, attempts=0)

    def complete_workflow(self, claim: Claim, result: Any, *, detail: str | None = None) -> None:
        """Completes the workflow with this result and ends its lease. Transaction: complete. Raises LostLease."""
        text = to_json(result, workflow=claim.workflow_id, step="result")
        self._guarded("complete", claim, None, {"p_value": text}, detail)

    def wait_for_event(
        self, claim: Claim, step_id: str, name: str, *, state: str | None = None, detail: str | None = None
    ) -> tuple[Claim, bool, Any]:
        """Checkpoints the event if it has arrived; otherwise parks the workflow without a lease.

        Returns the next claim, whether it had arrived, and the payload. Transaction: wait. Raises LostLease.
        """
        check_name("event name", name, MAX_EVENT_NAME)
        params = {"p_step": check_name("step id", step_id), "p_state": _state_after(step_id, state)}
        row = self._guarded("wait", claim, name, params, detail)
        if row["outcome"] == "refused":  # it was in doubt, and had been committed by an earlier issue
            if row["lease_owner"] is None:
                return claim, False, None
            claim, steps, _ = self.load(claim)
            return claim, True, steps[-1].value
        arrived = bool(row["arrived"])
        return replace(claim, checkpoints=row["checkpoints"], attempts=0), arrived, row["payload"]

    def renew_lease(self, claim: Claim) -> None:
        """Makes the lease last another `claim.lease_seconds`. Transaction: renew. Raises LostLease, also if it had expired."""
        self._guarded("renew", claim, None, {"p_lease": timedelta(seconds=claim.lease_seconds)})

    def release_lease(self, claim: Claim, error: dict[str, Any] | None = None, delay: float = 0.0) -> None:
        """Gives the workflow back; the next claim is not a recovery. Transaction: release. Raises LostLease.

        With an `error`, which was not the workflow's own, the row keeps it, and is due after `delay` seconds.
        """
        failure = error and json.dumps(error)
        self._guarded("release", claim, None, {"p_error": failure, "p_delay": timedelta(seconds=delay)})

    def postpone(self, claim: Claim, step_id: str, error: dict[str, Any], delay_seconds: float) -> None:
        """Counts the failure, releases the lease, and has the next try due later. Transaction: postpone. Raises LostLease."""
        text = to_json(error, workflow=claim.workflow_id, step=step_id)
        self._guarded("postpone", claim, step_id, {"p_error": text, "p_delay": timedelta(seconds=delay_seconds)})

    def fail_workflow(self, claim: Claim, error: dict[str, Any], step_id: str | None = None) -> None:
        """Fails the workflow and keeps the error; `requeue_workflow` revives it. Transaction: fail. Raises LostLease."""
        text = to_json(error, workflow=claim.workflow_id, step=step_id or "?")
        self._guarded("fail", claim, step_id, {"p_error": text})

    # -- how each of them is issued -----------------------------------------------------------------------------------

    def _recorded(self, claim: Claim, step_id: str, value: Any, error: dict[str, Any] | None) -> dict[str, Any]:
        """Returns exactly one of value and error as JSON text."""
        check_name("step id", step_id)
        if error is None:
            return {"p_value": to_json(value, workflow=claim.workflow_id, step=step_id), "p_error": None}
        return {"p_value": None, "p_error": to_json(error, workflow=claim.workflow_id, step=step_id)}

    def _boundary(self, name: str, claim: Claim, subject: str | None = None) -> Boundary:
        return Boundary(name, "before", claim.worker_id, claim.workflow_id, claim.fence_token, subject)

    def _tell(self, boundary: Boundary) -> None:
        if self.hook:
            self.hook(boundary)

    def _guarded(
        self, name: str, claim: Claim, subject: str | None, params: Mapping[str, Any], detail: str | None = None
    ) -> DictRow:
        """The row after a guarded write; LostLease if the guard refused it and no earlier issue of it was committed."""
        told = {
            "p_workflow": claim.workflow_id, "p_worker": claim.worker_id, "p_token": claim.fence_token,
            "p_checkpoints": claim.checkpoints, "p_subject": subject, "p_detail": detail, **params,
        }  # fmt: skip
        boundary = self._boundary(name, claim, subject)
        try:
            row, in_doubt = self._issue(boundary, told)
        except DuplicateStep as twice:
            step = f"step {told.get('p_step', subject)!r}"
            raise DuplicateStep(claim.workflow_id, claim.checkpoints + 1, step) from twice
        if row and (row["outcome"] == "committed" or (in_doubt and _was_mine(name, row, claim))):
            return row
        if row and name == "intent" and row["guards"] == ["intent"]:
            raise ActionMismatch(
                f"Workflow {claim.workflow_id!r}, action key {subject!r} was planned with another action or other arguments. "
                "Nothing was changed; give each planned action its own key."
            )
        raise lost_lease(name, claim, row)


def _state_after(step_id: str, declared: str | None) -> str:
    return declared or step_id.upper()


def _was_mine(name: str, row: DictRow, claim: Claim) -> bool:
    """Whether the locked row shows that an earlier issue of this statement was committed.

    The token is still mine, and only its holder can have made the change.
    """
    if row["fence_token"] != claim.fence_token or row["status"] == "cancelled":
        return False
    if row["lease_owner"] is None:
        return bool(TRANSACTIONS[name].releases)
    advanced = row["lease_owner"] == claim.worker_id and row["checkpoints"] == claim.checkpoints + 1
    return bool(advanced and TRANSACTIONS[name].advances)


def lost_lease(name: str, claim: Claim, row: DictRow | None) -> LostLease:
    """What to raise for a refused transaction: the guards that failed, each with what it met in the row as it is now."""
    if row is None:
        return LostLease(claim.workflow_id, name, "the workflow no longer exists")
    ended = "" if row["status"] == "ready" else f"the workflow is {row['status']}: "
    met = {
        "token": f"the row's token is {row['fence_token']}, not {claim.fence_token}",
        "owner": f"its owner is {row['lease_owner'] or 'nobody'}, not {claim.worker_id}",
        "lease": "its lease has expired" if row["lease_owner"] else "it has no lease",
        "checkpoints": f"the row has {row['checkpoints']} checkpoints and this claim expected {claim.checkpoints}",
        "status": "its status must be ready",
        "intent": "no such action is pending",
    }
    reason = ended + (", and ".join(met[guard] for guard in row["guards"]) or "the row changed twice meanwhile")
    return LostLease(claim.workflow_id, name, reason, tuple(row["guards"]))
