"""The transactions and reads that need no claim."""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from psycopg.rows import DictRow

from ..aside import Aside
from ..database import Database
from ..errors import AgentFlowError, AlreadyFinished, BadName, EventRefused, IdTaken, UnknownWorkflow
from ..model import Boundary, Hook, Policy
from ..values import MAX_EVENT_NAME, check_name, to_json


class UnclaimedTransactions:
    """What anybody may do to a workflow with no claim: create it, read it, deliver to it, cancel, requeue and age it."""

    def __init__(self, database: Database, *, policy: Policy | None = None, hook: Hook | None = None) -> None:
        self.database, self.policy, self.hook = database, policy or Policy(), hook
        self.aside = Aside()

    def with_hook(self, hook: Hook | None) -> Any:
        """The same engine on the same database, with another hook."""
        other = copy.copy(self)
        other.hook = hook
        return other

    # -- creating and reading ------------------------------------------------------------------------------------------

    def create_workflow(self, request: Any, *, name: str, workflow_id: str | None = None) -> dict[str, Any]:
        """Creates the workflow once, even if others create it with this id; returns its row as get_workflow() shows it.

        `created` in it says whether this call made it; None, if an answer was lost and another caller may have used the id.
        Transaction: create. Raises UnfaithfulValue, BadName, and IdTaken if the id belongs to another name or input.
        """
        ((found, created),) = self._create([request], name, [workflow_id]).items()
        return {**(self.get_workflow(found) or {}), "created": created}

    def create_workflows(
        self, requests: Sequence[Any], *, name: str, workflow_ids: Sequence[str | None] | None = None
    ) -> list[str]:
        """Creates all the workflows, in this order, and returns their ids. If one request is bad, the error names its index.

        None is created then. Transaction: create. Raises like create_workflow(); IdTaken names the first id that was taken,
        and the others exist.
        """
        return list(self._create(requests, name, workflow_ids or [None] * len(requests)))

    def _create(self, requests: Sequence[Any], name: str, wanted: Sequence[str | None]) -> dict[str, bool | None]:
        """The ids in order, and whether this call made each: None if that cannot be known."""
        check_name("workflow name", name)
        ids = [str(uuid.uuid4()) if i is None else i for i in wanted]
        texts = []
        for index, (workflow_id, request) in enumerate(zip(ids, requests, strict=True)):
            try:
                check_name("workflow id", workflow_id)
                texts.append(to_json(request, workflow=wanted[index] or "(new)", step="input"))
            except AgentFlowError as error:
                error.add_note(f"This is item {index} of {len(requests)}; none was created.")
                raise
        if len(set(ids)) != len(ids):
            raise BadName(
                "The same workflow id appears twice in one batch. None was created; give each workflow its own id."
            )
        if not ids:
            return {}
        params = {"p_ids": ids, "p_names": [name] * len(ids), "p_inputs": texts}
        subject = ids[0] if len(ids) == 1 else None
        rows, in_doubt = self.database.transact(Boundary("create", "before", workflow=subject), params, self.hook)
        if len(rows) != len(ids):
            raise AgentFlowError(
                f"PostgreSQL returned {len(rows)} of {len(ids)} workflows. Check which ones exist, and create again."
            )
        taken = {row["id"] for row in rows if not row["same"]}
        if taken:
            index = next(n for n, workflow_id in enumerate(ids) if workflow_id in taken)
            others = f" Item {index} is the first of {len(taken)}; the other items exist." if len(ids) > 1 else ""
            raise IdTaken(
                f"Workflow id {ids[index]!r} already belongs to a workflow with another name or input. That one was "
                "not changed; choose another id." + others
            )
        inserted = {row["id"]: bool(row["inserted"]) for row in rows}
        named = {i for i in wanted if i is not None}  # nobody else has an id that we made up
        return {i: inserted[i] or (in_doubt and (None if i in named else True)) for i in ids}

    def get_workflow(self, workflow_id: str) -> dict[str, Any] | None:
        """The workflow's row with `request`, `steps` and `actions`, or None."""
        rows = self.database.read("inspect", {"p_workflow": check_name("workflow id", workflow_id)})
        if not rows:
            return None
        row = rows[0]
        events = {name: json.loads(payload) for name, payload in row["events"].items()}
        return {**row, "events": events, "request": row["input"]}

    def list_workflows(
        self, *, status: str | None = None, prefix: str = "", limit: int = 100, offset: int = 0
    ) -> list[dict[str, Any]]:
        """A page of workflows, the newest first, whose id begins with `prefix` (taken literally)."""
        if prefix:
            check_name("prefix", prefix)
        params = {"p_status": status, "p_prefix": prefix, "p_limit": limit, "p_offset": offset}
        return self.database.read("list", params)

    def history(self, workflow_id: str, *, after: int = 0, limit: int | None = None) -> list[dict[str, Any]]:
        """Returns the entries of a workflow in order, all of them, or at most `limit` after the number `after`.

        The world's entries stand after the engine's that came before them.
        """
        asked = {"p_workflow": check_name("workflow id", workflow_id), "p_limit": limit, "p_offset": after}
        return [{**entry, "n": n} for n, entry in enumerate(self.database.read("history", asked), after + 1)]

    def show_sql(self, name: str) -> str:
        """The real text of a transaction."""
        return self.database.sql(name)

    # -- what people and the outside do to a workflow --------------------------------------------------------------------

    def deliver_event(self, workflow_id: str, name: str, payload: Any = None) -> None:
        """Gives the workflow the event; if it waits for it, it is runnable. The same delivery again changes nothing.

        Transaction: deliver. Raises UnknownWorkflow, UnfaithfulValue, and EventRefused if another payload came first or
        the workflow is finished.
        """
        check_name("event name", name, MAX_EVENT_NAME)
        text = to_json(payload, workflow=workflow_id, step=name)
        row = self._unclaimed("deliver", workflow_id, name, {"p_payload": text})
        if row["outcome"] == "refused" and not row["same"]:
            met = {"status": f"the workflow is {row['status']}", "event": "another payload came first and stays"}
            why = ", and ".join(met[guard] for guard in row["guards"])
            said = f"Workflow {workflow_id!r}, event {name!r:.80}: {why}"
            raise EventRefused(f"{said}. Nothing was changed; see get_workflow().")

    def cancel_workflow(self, workflow_id: str) -> None:
        """Cancels the workflow; a worker that holds it is refused from now on. Transaction: cancel.

        Raises UnknownWorkflow, and AlreadyFinished if complete or fail won.
        """
        row = self._unclaimed("cancel", workflow_id)
        if row["outcome"] == "refused" and row["status"] != "cancelled":
            raise AlreadyFinished(workflow_id, row["status"], "cannot be cancelled")

    def requeue_workflow(self, workflow_id: str) -> None:
        """Makes a failed workflow runnable again, with fresh budgets and without its last recorded failure. Transaction: requeue.

        Raises UnknownWorkflow, and AlreadyFinished if it is not failed, if somebody else has requeued it meanwhile, or if it
        would only replay the same end: it went on after the failure that it raised, with a compensation perhaps.
        """
        seen = self.get_workflow(workflow_id) or {"fence_token": 0, "status": "", "steps": [], "error": None}
        last = seen["steps"][-1:] if (seen["error"] or {}).get("type") == "StepFailed" else []
        if last and last[0]["error"] is None:
            why = f"what it recorded after the failure that it raised ({last[0]['step_id']!r}) stands, and it would end the same"
            raise AlreadyFinished(workflow_id, "failed", f"cannot be requeued, because {why}; create another workflow")
        row = self._unclaimed("requeue", workflow_id, params={"p_seen": seen["fence_token"]})
        if row["outcome"] == "committed" or (row["in_doubt"] and seen["status"] == "failed"):
            return  # in doubt, and not as it was: an earlier issue was committed, whatever came of the workflow since
        if seen["status"] != "failed" and "token" in row["guards"] and not row["in_doubt"]:
            return self.requeue_workflow(workflow_id)  # it has failed since it was looked at
        again = "was requeued by somebody else, and this is another failure"
        raise AlreadyFinished(workflow_id, row["status"], again if "token" in row["guards"] else "cannot be requeued")

    def expire_lease(self, workflow_id: str) -> None:
        """Ends the workflow's lease, or its back-off, now (the laboratory's clock). Transaction: expire.

        Raises UnknownWorkflow, and AlreadyFinished if there is nothing to end.
        """
        row = self._unclaimed("expire", workflow_id)
        if row["outcome"] == "refused" and not row["in_doubt"]:
            status = "ready and held by nobody" if row["status"] == "ready" else row["status"]
            raise AlreadyFinished(workflow_id, status, "has no lease or back-off to end")

    def _unclaimed(
        self, name: str, workflow_id: str, subject: str | None = None, params: Mapping[str, Any] | None = None
    ) -> DictRow:
        check_name("workflow id", workflow_id)
        nobody = {"p_worker": None, "p_token": None, "p_detail": None}
        told = {"p_workflow": workflow_id, "p_subject": subject, **nobody, **(params or {})}
        boundary = Boundary(name, "before", workflow=workflow_id, subject=subject)
        row, in_doubt = self._issue(boundary, told)
        if row is None:
            raise UnknownWorkflow(f"There is no workflow {workflow_id!r:.80}. list_workflows() shows those that exist.")
        return {**row, "in_doubt": in_doubt}

    def _issue(self, boundary: Boundary, params: Mapping[str, Any]) -> tuple[DictRow | None, bool]:
        """The row that a transaction gives, if any, and whether it was in doubt.

        A refusal waits, to be recorded, perhaps for the very change that makes the transaction possible. No guard of the row
        fails then (a plan is no part of it: the statement saw it as it was before the wait), and it is issued once more.
        """
        rows, in_doubt = self.database.transact(boundary, params, self.hook)
        if rows and rows[0]["outcome"] == "refused" and rows[0]["guards"] in ([], ["intent"]):
            rows, again = self.database.transact(boundary, params, self.hook)
            in_doubt = in_doubt or again
        return (rows[0] if rows else None), in_doubt
